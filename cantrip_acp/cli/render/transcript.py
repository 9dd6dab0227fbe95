"""Session transcript: shows each ACP `session/update`, from any agent, as lines on a screen.
It accepts updates that are unknown or incomplete: an agent's mistake must not end the session.
Output only grows at its end. So a tool call is a heading, its output, and a closing line.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cantrip_acp.cli.render.child_output import ChildLine
from cantrip_acp.cli.render.notices import Compactions, notice, words_of
from cantrip_acp.cli.render.terminal import Block, Flow, Screen
from cantrip_acp.cli.render.tool_call import ToolView, listed, mapped, number, text, unified
from cantrip_acp.text.sanitize import clean_line

_WAITING = {"pending", ""}
_OVER = {"completed", "failed"}
_LONGEST = 160
"""The longest line about a child, in characters."""


class Transcript:
    """Shows one session. `full` shows whole outputs. `clock` returns seconds; tests replace it."""

    def __init__(
        self, screen: Screen, *, folder: Path, full: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._screen = screen
        self._folder = folder
        self._full = full
        self._clock = clock
        self._flow: Flow | None = None
        self._flow_key: tuple[str, str] | None = None
        self._calls: dict[str, ToolView] = {}
        # The call that the last line belongs to, and the last call that printed a heading.
        self._speaking: str | None = None
        self._owner: str | None = None
        self._something = False
        self._compactions = Compactions(screen, full=full)
        self.calls = 0
        self.failed_calls = 0
        self.context: Mapping[str, Any] = {}

    # What the user and the agent say

    def begin_turn(self) -> None:
        """Start a new turn: count its tool calls from zero."""
        self.calls = 0
        self.failed_calls = 0

    def begun(self) -> None:
        """Say that something was printed above, so that the next output begins with an empty line."""
        self._something = True

    def prompt(self, words: str) -> None:
        """Show the user's prompt at the beginning of a turn."""
        self.begin_turn()
        self.settle()
        self._gap()
        first, *rest = words.strip().splitlines() or [""]
        self._screen.line((f"{self._screen.marks.prompt} ", "bold magenta"), (first, "bold"))
        for line in rest:
            self._screen.line((line, "bold"), indent=2)

    def note(self, words: str, style: str = "dim") -> None:
        """Show a remark of the client itself."""
        self.settle()
        self._screen.line((words, style), indent=2)

    def idle(self) -> None:
        """Nothing came for a moment: show the text that was held back for wrapping."""
        if self._flow is not None:
            self._flow.flush()

    def settle(self) -> None:
        """End what is being streamed, so that something else can be written."""
        if self._flow is not None:
            self._flow.close()
            self._flow = None
            self._flow_key = None
        if self._speaking is not None:
            view = self._calls.get(self._speaking)
            if view is not None and view.block is not None:
                view.block.close()
                view.block = None
            self._speaking = None

    def update(self, update: Mapping[str, Any]) -> None:
        """Show the `update` of one `session/update` (ACP, "Session updates")."""
        kind = text(update, "sessionUpdate")
        if kind == "agent_message_chunk":
            self._say("message", update)
        elif kind == "agent_thought_chunk":
            self._say("thought", update)
        elif kind == "user_message_chunk":
            self._say("user", update)
        elif kind in ("tool_call", "tool_call_update"):
            self._tool(update)
        elif kind == "usage_update":
            self.context = update
        elif kind == "plan":
            self._plan(listed(update, "entries"))
        elif kind == "current_mode_update":
            self.note(f"mode: {clean_line(text(update, 'currentModeId'))}")
        elif kind == "session_info_update":
            if title := text(update, "title"):
                self.note(f"session: {clean_line(title)}")
        elif kind == "notice":
            self._aside(lambda: notice(self._screen, update))
        elif kind == "compaction_summary_chunk":
            self._compactions.chunk(update)
        elif kind == "compaction_update":
            if self._compactions.over(update):
                self._aside(lambda: self._compactions.show(update))
        elif kind in ("available_commands_update", "config_option_update"):
            pass  # These list the possible choices; nothing happened that a reader needs to see.
        else:
            self._other(kind, update)

    def _say(self, who: str, update: Mapping[str, Any]) -> None:
        words = words_of(update.get("content"))
        key = (who, text(update, "messageId"))
        if self._flow is None or self._flow_key != key:
            self.settle()
            self._gap()
            marks = self._screen.marks
            self._flow = {
                "message": lambda: Flow(self._screen, marks.message, mark_style="cyan"),
                "thought": lambda: Flow(self._screen, marks.thought, style="dim italic", mark_style="dim"),
                "user": lambda: Flow(self._screen, marks.prompt, style="bold", mark_style="bold magenta"),
            }[who]()
            self._flow_key = key
            # An agent may begin a message with a line break, for clients that ignore message ids.
            words = words.lstrip("\n")
        self._flow.feed(words)

    def _plan(self, entries: list[Any]) -> None:
        self.settle()
        self._gap()
        marks = self._screen.marks
        self._screen.line(("plan", "bold"), indent=2)
        for entry in entries:
            if isinstance(entry, Mapping):
                status = text(entry, "status")
                mark = {"completed": marks.done, "in_progress": marks.running}.get(status, marks.waiting)
                style = {"completed": "dim", "in_progress": "bold"}.get(status, "")
                self._screen.line((f"{mark} {clean_line(text(entry, 'content'))}", style), indent=4)

    def _aside(self, show: Callable[[], None]) -> None:
        """Show something that is not part of the turn's text or actions."""
        self.settle()
        self._gap()
        show()

    def _other(self, kind: str, update: Mapping[str, Any]) -> None:
        words = text(update, "message") or text(update, "text") or words_of(update.get("content"))
        name = clean_line(kind, 60) or "an update without a name"
        self.note(f"{name}: {clean_line(words)}" if words else name)

    # What the agent does

    def _tool(self, update: Mapping[str, Any]) -> None:
        view = self._view(update)
        before = view.status
        view.take(update)
        if view.status == "in_progress" and before != "in_progress":
            view.started = self._clock()
        if view.status not in _WAITING or view.has_news():
            self._show(view)
        if view.status in _OVER and before not in _OVER:
            self._end(view)
        elif before in _OVER and view.status in _OVER and view.has_news():
            self._show(view)

    def show_call(self, update: Mapping[str, Any]) -> None:
        """Show the call of a permission request at once: its heading and its changes."""
        view = self._view(update)
        view.take(update)
        self._show(view)

    def _view(self, update: Mapping[str, Any]) -> ToolView:
        call_id = text(update, "toolCallId")
        view = self._calls.get(call_id)
        if view is None:
            view = self._calls[call_id] = ToolView(call_id, started=self._clock())
            self.calls += 1
        return view

    def _show(self, view: ToolView) -> None:
        if not view.headed:
            self._heading(view)
        for path, old, new in view.take_diffs():
            self._speak(view)
            self._diff(view, path, old, new)
        for line in view.take_children():
            self._speak(view)
            self._child(line)
        words = view.take_output()
        if words and not view.inner:
            self._speak(view)
            if view.block is None:
                head, tail = (None, 0) if self._full else (40, 15)
                view.block = Block(self._screen, indent=2, head=head, tail=tail)
            view.block.feed(words)
            view.showed_output = True

    def _heading(self, view: ToolView) -> None:
        self.settle()
        view.headed = True
        self._speaking = view.call_id
        if view.inner:
            return  # A command called this gate: it gets one line, at its end (see _end).
        self._owner = view.call_id
        self._gap()
        self._screen.line((f"{self._screen.marks.call} ", "blue"), *self._title(view))
        for n, line in enumerate(view.command_lines()):
            self._screen.line(("$ " if n == 0 else "  ", "dim"), (line, "bold"), indent=2)

    def _title(self, view: ToolView) -> list[str | tuple[str, str]]:
        title = view.title()
        # The kind "other" adds nothing to the title.
        kind = view.kind if view.kind != "other" or not title else ""
        parts: list[str | tuple[str, str]] = [(kind, "bold blue"), "  " if kind and title else "", title]
        places = [self._place(location) for location in view.locations if isinstance(location, Mapping)]
        unseen = [place for place in places if place and place.split(":")[0] not in title]
        if unseen:
            more = f" and {len(unseen) - 2} more" if len(unseen) > 2 else ""
            parts.append((f"  {', '.join(unseen[:2])}{more}", "dim"))
        return parts

    def _end(self, view: ToolView) -> None:
        if not view.inner and not view.showed_output and not view.showed_diff and (result := view.result_text()):
            self._speak(view)
            view.block = Block(self._screen, indent=2, head=None if self._full else 40)
            view.block.feed(result)
        self._speak(view)
        if view.block is not None:
            view.block.close()
            view.block = None
        failed = view.status == "failed"
        self.failed_calls += failed
        marks = self._screen.marks
        mark, style = (marks.failed, "red") if failed else (marks.done, "green")
        if view.inner:
            parts: list[str | tuple[str, str]] = [(f"{marks.inner} ", "dim"), *self._title(view)]
            parts.append((f"  {mark} {view.outcome()}", style))
            if failed and (result := view.result_text()):
                parts.append((f": {clean_line(result)}", "red"))
            self._screen.line(*parts, indent=2)
        else:
            seconds = self._clock() - view.started
            self._screen.line(
                (f"{mark} {view.outcome()}", style), (f" {marks.dot} {duration(seconds)}", "dim"), indent=2
            )
        self._speaking = None

    def _speak(self, view: ToolView) -> None:
        """Make sure that the next line belongs to this call: several calls may run at once."""
        if self._speaking == view.call_id:
            return
        self.settle()
        self._speaking = view.call_id
        if not view.inner and self._owner != view.call_id:
            self._owner = view.call_id
            self._screen.line(("… ", "dim"), (view.name(), "dim"), indent=2)

    def _child(self, line: ChildLine) -> None:
        """Show what a child of the call did, indented by the child's depth in the tree."""
        marks = self._screen.marks
        mark, style = {
            "asked": (marks.prompt, "magenta"),
            "said": (marks.message, "cyan"),
            "did": (marks.call, "dim"),
            "failed": (marks.failed, "red"),
            "done": (marks.done, "green"),
            "stopped": (marks.stop, "yellow"),
        }[line.kind]
        words = line.words if self._full else clean_line(line.words, _LONGEST)
        number = f"{line.number} " if line.number else ""
        self._screen.line((number, "dim"), (f"{mark} ", style), words, indent=2 + 2 * line.depth)

    def _diff(self, view: ToolView, path: str, old: str | None, new: str) -> None:
        view.showed_diff = True
        name = self._relative(path)
        limit = None if self._full else 120
        for line, style in unified(name, old, new, limit=limit):
            # Print an unchanged empty line without its white space; keep white space that was added or removed.
            self._screen.barred(line if line.strip() else "", style)

    # Ends

    def finish(self) -> None:
        """End a prompt's turn. Calls without an end are reported."""
        for view in self._calls.values():
            if view.status not in _OVER:
                if not view.headed:
                    self._heading(view)
                self._speak(view)
                if view.block is not None:
                    view.block.close()
                    view.block = None
                words = f"{self._screen.marks.failed} {view.name()}: " + (
                    "did not end" if view.status == "in_progress" else "never began"
                )
                self._screen.line((words, "yellow"), indent=2)
        self.settle()
        # Nothing about a turn comes after its end, and outputs need much memory.
        self._calls.clear()

    def _gap(self) -> None:
        """Print an empty line between two outputs, none before the first."""
        if self._something:
            self._screen.blank()
        self._something = True

    def _place(self, location: Mapping[str, Any]) -> str:
        path = text(location, "path")
        if not path:
            return ""
        line = number(location, "line")
        return self._relative(path) + (f":{line}" if line is not None else "")

    def _relative(self, path: str) -> str:
        path = clean_line(path)
        try:
            return str(Path(path).relative_to(self._folder))
        except ValueError:
            return path


def duration(seconds: float) -> str:
    """A duration for people: `12 ms`, `1.4 s`, `3 min 20 s`."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{int(seconds // 60)} min {int(seconds % 60)} s"


def usage_line(usage: Mapping[str, Any], context: Mapping[str, Any]) -> list[str]:
    """Tokens and cost, if the agent reports them (`usage` of the prompt's reply, the last `usage_update`)."""
    parts = []
    # ACP's names first, then the names of our own `_meta.cantrip.usage`.
    taken, given, cached = (
        next((value for key in keys if (value := number(usage, key)) is not None), None)
        for keys in (
            ("inputTokens", "prompt_tokens"),
            ("outputTokens", "completion_tokens"),
            ("cachedReadTokens", "cached_tokens"),
        )
    )
    if taken is not None or given is not None:
        words = f"{taken or 0:,} tokens in, {given or 0:,} out"
        parts.append(f"{words} ({cached:,} cached)" if cached else words)
    used, size = number(context, "used"), number(context, "size")
    if used is not None and size:
        parts.append(f"context {used:,} of {size:,} ({used * 100 // size}%)")
    cost = mapped(context, "cost")
    # An agent that does not know the context window sends no `usage_update`. Ours then sends the cost with its tokens.
    amount = cost.get("amount", usage.get("cost"))
    if isinstance(amount, int | float) and not isinstance(amount, bool):
        currency = clean_line(text(cost, "currency"), 8) or "USD"
        parts.append(f"${amount:.4f}" if currency == "USD" else f"{amount:.4f} {currency}")
    return parts
