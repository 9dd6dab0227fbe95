"""Renderer: prints the items of the display model (`display.py`) on a screen.

Printed lines are never changed. So a tool call is printed as a heading, its output, and a last line with its status.
"""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from cantrip_acp.cli.render.display import (
    ChildAction,
    Compaction,
    Item,
    Message,
    Note,
    Notice,
    Plan,
    ToolCall,
    duration,
)
from cantrip_acp.cli.render.terminal import Block, Flow, MarkdownFlow, Screen
from cantrip_acp.text.sanitize import clean, clean_line
from cantrip_acp.types.styled import Styled

_WAITING = {"pending", ""}
_ENDED = {"completed", "failed"}
_LONGEST_CHILD_LINE = 160
_MOST_DIFF_LINES = 20_000
"""Above this number of lines, a diff takes too long to compute."""


_LASTING = ("title", "kind", "status", "locations", "command", "above", "result", "exit_code", "signal")
"""The fields of a `ToolCall` that stay until the next news of the call has another value."""


@dataclass(slots=True)
class _Call:
    """One tool call until the end of its turn: its known state, and how much of that is printed."""

    told: ToolCall
    started: float
    content: str = ""
    changes: set[int] = field(default_factory=set)
    """The hashes of the changes that were printed, which may be long."""
    headed: bool = False
    showed_output: bool = False
    block: Block | None = None

    def update(self, item: ToolCall) -> ToolCall:
        """Update the call. Returns the update without the changes and the output that were already known."""
        told = {name: value for name in _LASTING if (value := getattr(item, name)) is not None}
        self.told = replace(self.told, **told, inner=self.told.inner or item.inner)
        changes = tuple(each for each in dict.fromkeys(item.changes) if hash(each) not in self.changes)
        self.changes.update(map(hash, changes))
        output = item.output + (self._added(item.content, item.styled) if item.content is not None else "")
        return replace(item, changes=changes, output=output)

    def _added(self, content: str, styled: Styled | None) -> str:
        """The new part of the content. An output that comes as a whole gets its colours."""
        if self.status in _WAITING and content.strip() == (self.told.command or "").strip():
            # A permission request contains the command again, but the heading already shows it.
            content = ""
        before, self.content = self.content, content
        if not before and self.told.above and content.strip() == self.told.above:
            # A question about a plan contains the plan, which is the answer above it.
            self.content += "\n"
            return ""
        if before.startswith(content):
            return ""
        added = content[len(before) :] if content.startswith(before) else f"\n{content}"
        return styled.coded() if styled is not None and styled.text.rstrip() == added.rstrip() else added

    @property
    def status(self) -> str:
        return self.told.status or ""

    def title(self) -> str:
        """The agent's title. If the title is the beginning of a command: a command with one line, else an empty text."""
        title = clean_line((self.told.title or "").strip("`"), 160) or clean_line(self.told.call_id, 60) or "(no name)"
        lines = clean(self.told.command or "").strip().splitlines()
        if lines and clean_line(lines[0]).startswith(title.rstrip(" ….")[:60]):
            return lines[0].strip() if len(lines) == 1 else ""
        return title

    def name(self) -> str:
        """The title, or the first line of the command if the title is empty."""
        return self.title() or self.command_lines()[0]

    def command_lines(self) -> list[str]:
        """The shell command of an `execute` call, if the title does not contain all of it."""
        command = clean(self.told.command or "").strip()
        if not command or command == self.title():
            return []
        lines = command.splitlines()
        return lines if len(lines) <= 20 else [*lines[:19], f"… {len(lines) - 19} more lines"]

    def outcome(self) -> str:
        """How the call ended: its status, with the signal or the exit status if there is one."""
        if self.told.signal:
            return f"{self.status} · {clean_line(self.told.signal, 20)}"
        return f"{self.status} · exit {self.told.exit_code}" if self.told.exit_code is not None else self.status


class Renderer:
    """Shows one session. `full` shows whole outputs. `clock` returns seconds; tests replace it."""

    def __init__(
        self, screen: Screen, *, folder: Path, full: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._screen = screen
        self._folder = folder
        self._full = full
        self._clock = clock
        self._flow: Flow | MarkdownFlow | None = None
        self._flow_key: tuple[str, str] | None = None
        self._calls: dict[str, _Call] = {}
        # The call of the last printed line, and the last call that printed a heading.
        self._current: str | None = None
        self._owner: str | None = None
        self._needs_gap = False
        self.call_count = 0

    def begin_output(self) -> None:
        """Call this after other text was printed, so that the next output begins with an empty line."""
        self._needs_gap = True

    def show_prompt(self, words: str) -> None:
        """Show the user's prompt at the beginning of a turn."""
        self.call_count = 0
        self.close_open_output()
        self._gap()
        first, *rest = words.strip().splitlines() or [""]
        self._screen.line((f"{self._screen.marks.prompt} ", "bold magenta"), (first, "bold"))
        for line in rest:
            self._screen.line((line, "bold"), indent=2)

    def show_note(self, words: str, style: str = "dim") -> None:
        """Show a remark."""
        self.close_open_output()
        self._screen.line((words, style), indent=2)

    def flush_text(self) -> None:
        """Print the incomplete word that waits for wrapping. Call this after a moment without new text."""
        if self._flow is not None:
            self._flow.flush()

    def close_open_output(self) -> None:
        """End the output that is being streamed, so that other output can be written."""
        if self._flow is not None:
            self._flow.close()
            self._flow = None
            self._flow_key = None
        if self._current is not None:
            call = self._calls.get(self._current)
            if call is not None:
                _close_block(call)
            self._current = None

    def show(self, item: Item) -> None:
        match item:
            case Message():
                self._message(item)
            case ToolCall():
                self._update_call(item)
            case ChildAction():
                self._child_action(item)
            case Note():
                self.show_note(item.text, "yellow" if item.warning else "dim")
            case Plan():
                self._plan(item)
            case Notice():
                self._notice(item)
            case Compaction():
                self._compaction(item)

    # Messages, plans and notices

    def _message(self, item: Message) -> None:
        words = item.text
        key = (item.role, item.message_id)
        if self._flow is None or self._flow_key != key:
            self.close_open_output()
            self._gap()
            marks = self._screen.marks
            mark, style, mark_style = {
                "agent": (marks.message, "", "cyan"),
                "thought": (marks.thought, "dim italic", "dim"),
                "user": (marks.prompt, "bold", "bold magenta"),
            }[item.role]
            self._flow = self._screen.flow(mark, style=style, mark_style=mark_style)
            self._flow_key = key
            # An agent may begin a message with a line break, for clients that ignore message ids.
            words = words.lstrip("\n")
        self._flow.feed(words)

    def _plan(self, plan: Plan) -> None:
        self.close_open_output()
        self._gap()
        marks = self._screen.marks
        self._screen.line(("plan", "bold"), indent=2)
        for content, status in plan.entries:
            mark = {"completed": marks.done, "in_progress": marks.running}.get(status, marks.waiting)
            style = {"completed": "dim", "in_progress": "bold"}.get(status, "")
            self._screen.line((f"{mark} {clean_line(content)}", style), indent=4)

    def _notice(self, notice: Notice) -> None:
        """Show the title, coloured by its severity, and the description below it."""
        self.close_open_output()
        self._gap()
        style = {"warning": "yellow", "error": "red"}.get(notice.severity, "dim")
        title = clean_line(notice.title) or "a notice without a title"
        self._screen.line((f"{self._screen.marks.notice} {title}", style), indent=2)
        for line in notice.description.strip().splitlines():
            self._screen.line((clean_line(line), "dim"), indent=4)

    def _compaction(self, compaction: Compaction) -> None:
        self.close_open_output()
        self._gap()
        mark = self._screen.marks.notice
        if compaction.status != "completed":
            words = f"compacting the context {'failed' if compaction.status == 'failed' else 'was cancelled'}"
            error = f": {compaction.error}" if compaction.error else ""
            self._screen.line((f"{mark} {words}{error}", "yellow"), indent=2)
            return
        self._screen.line(
            (f"{mark} the context was compacted: a summary replaces the earlier messages", "dim"), indent=2
        )
        if compaction.summary:
            head, tail = (None, 0) if self._full else (12, 4)
            self._block(compaction.summary, head, tail).close()

    def _block(self, words: str, head: int | None, tail: int = 15) -> Block:
        block = Block(self._screen, indent=2, head=head, tail=tail)
        block.feed(words)
        return block

    # Tool calls

    def show_call(self, item: ToolCall) -> None:
        """Print the heading and the changes of a call before it runs, for a permission request."""
        call = self._call(item.call_id)
        self._show_call(call, call.update(item))
        # A question follows, so show all output so far.
        _close_block(call)

    def _update_call(self, item: ToolCall) -> None:
        call = self._call(item.call_id)
        before = call.status
        item = call.update(item)
        if call.status == "in_progress" and before != "in_progress":
            call.started = self._clock()
        if call.status not in _WAITING or item.children or item.changes or item.output:
            self._show_call(call, item)
        if call.status in _ENDED and before not in _ENDED:
            self._end_call(call)

    def _call(self, call_id: str) -> _Call:
        call = self._calls.get(call_id)
        if call is None:
            call = self._calls[call_id] = _Call(ToolCall(call_id), self._clock())
            self.call_count += 1
        return call

    def _show_call(self, call: _Call, item: ToolCall) -> None:
        if not call.headed:
            self._heading(call)
        for action in item.children:
            self._child_action(action)
        for change in item.changes:
            self._continue_call(call)
            for line, style in unified_diff(
                relative_path(change.path, self._folder),
                change.old_text,
                change.new_text,
                limit=None if self._full else 120,
            ):
                # Print an unchanged empty line without its white space; keep white space that was added or removed.
                self._screen.line_with_bar(line if line.strip() else "", style)
        if item.output and not call.told.inner:
            self._continue_call(call)
            if call.block is None:
                head, tail = (None, 0) if self._full else (40, 15)
                call.block = Block(self._screen, indent=2, head=head, tail=tail)
            call.block.feed(item.output)
            call.showed_output = True

    def _heading(self, call: _Call) -> None:
        self.close_open_output()
        call.headed = True
        self._current = call.told.call_id
        if call.told.inner:
            return  # A command called this gate. Such a call gets only one line, at its end (see _end_call).
        self._owner = call.told.call_id
        self._gap()
        self._screen.line((f"{self._screen.marks.call} ", "blue"), *self._title(call))
        for n, line in enumerate(call.command_lines()):
            self._screen.line(("$ " if n == 0 else "  ", "dim"), (line, "bold"), indent=2)

    def _title(self, call: _Call) -> list[str | tuple[str, str]]:
        title = call.title()
        # The kind "other" adds nothing to the title.
        kind = clean_line(call.told.kind or "", 20)
        kind = kind if kind != "other" or not title else ""
        parts: list[str | tuple[str, str]] = [(kind, "bold blue"), "  " if kind and title else "", title]
        places = [
            relative_path(path, self._folder) + (f":{line}" if line is not None else "")
            for path, line in call.told.locations or ()
            if path
        ]
        unseen = [place for place in places if place.split(":")[0] not in title]
        if unseen:
            more = f" and {len(unseen) - 2} more" if len(unseen) > 2 else ""
            parts.append((f"  {', '.join(unseen[:2])}{more}", "dim"))
        return parts

    def _end_call(self, call: _Call) -> None:
        result = call.told.result
        if not call.told.inner and not call.showed_output and not call.changes and result:
            self._continue_call(call)
            call.block = self._block(result, None if self._full else 40)
        self._continue_call(call)
        _close_block(call)
        failed = call.status == "failed"
        marks = self._screen.marks
        mark, style = (marks.failed, "red") if failed else (marks.done, "green")
        if call.told.inner:
            parts: list[str | tuple[str, str]] = [(f"{marks.inner} ", "dim"), *self._title(call)]
            parts.append((f"  {mark} {call.outcome()}", style))
            if failed and result:
                parts.append((f": {clean_line(result)}", "red"))
            self._screen.line(*parts, indent=2)
        else:
            seconds = f" {marks.dot} {duration(self._clock() - call.started)}"
            self._screen.line((f"{mark} {call.outcome()}", style), (seconds, "dim"), indent=2)
        self._current = None

    def _continue_call(self, call: _Call) -> None:
        """Print a line with the call's name if the last line belongs to another call (calls may run in parallel)."""
        if self._current == call.told.call_id:
            return
        self.close_open_output()
        self._current = call.told.call_id
        if not call.told.inner and self._owner != call.told.call_id:
            self._owner = call.told.call_id
            self._screen.line(("… ", "dim"), (call.name(), "dim"), indent=2)

    def _child_action(self, action: ChildAction) -> None:
        """Print an action of a child, indented by its depth in the tree."""
        call = self._calls.get(action.call_id)
        if call is None:
            self.close_open_output()
        else:
            if not call.headed:
                self._heading(call)
            self._continue_call(call)
            _close_block(call)
        marks = self._screen.marks
        mark, style = {
            "intent": (marks.prompt, "magenta"),
            "text": (marks.message, "cyan"),
            "action": (marks.call, "dim"),
            "failure": (marks.failed, "red"),
            "retry": (marks.waiting, "yellow"),
            "done": (marks.done, "green"),
            "stopped": (marks.stop, "yellow"),
        }[action.kind]
        words = action.text if self._full else clean_line(action.text, _LONGEST_CHILD_LINE)
        number = f"{action.number} " if action.number else ""
        self._screen.line((number, "dim"), (f"{mark} ", style), words, indent=2 + 2 * action.depth)

    def end_turn(self) -> None:
        """End a turn. Calls that have not ended are reported."""
        for call in self._calls.values():
            if call.status not in _ENDED:
                if not call.headed:
                    self._heading(call)
                self._continue_call(call)
                _close_block(call)
                why = "did not end" if call.status == "in_progress" else "did not begin"
                self._screen.line((f"{self._screen.marks.failed} {call.name()}: {why}", "yellow"), indent=2)
        self.close_open_output()
        # No more updates come for this turn, and outputs need much memory.
        self._calls.clear()

    def _gap(self) -> None:
        """Print an empty line between two outputs, but not before the first."""
        if self._needs_gap:
            self._screen.blank()
        self._needs_gap = True


def relative_path(path: str, folder: Path) -> str:
    """A path in this folder without the folder's own path. Any other path is shown whole."""
    path = clean_line(path)
    try:
        return str(Path(path).relative_to(folder))
    except ValueError:
        return path


def _close_block(call: _Call) -> None:
    if call.block is not None:
        call.block.close()
        call.block = None


def unified_diff(name: str, old: str | None, new: str, *, limit: int | None = 120) -> Iterator[tuple[str, str]]:
    """Yield a change of a file as a unified diff: `(line, style)` pairs. `old` is None for a new file.

    After `limit` lines, one more line says how many lines are left out.
    """
    before = [] if old is None else old.splitlines()
    after = new.splitlines()
    a, b = (name, name) if name.startswith("/") else (f"a/{name}", f"b/{name}")
    yield ("--- /dev/null" if old is None else f"--- {a}"), "bold"
    yield f"+++ {b}", "bold"
    if len(before) + len(after) > _MOST_DIFF_LINES:
        yield f"{len(before):,} lines become {len(after):,}; the change is too large to show", "dim italic"
        return
    shown = 0
    left_out = 0
    for number, line in enumerate(difflib.unified_diff(before, after, lineterm="", n=3)):
        if number < 2:
            continue  # the file names that difflib writes
        if limit is not None and shown >= limit:
            left_out += 1
            continue
        shown += 1
        yield line, {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], "")
    if left_out:
        yield f"… {left_out:,} more lines of this change …", "dim italic"
    elif not shown:
        yield "(no line differs)", "dim italic"
    elif old is not None and old.endswith("\n") != new.endswith("\n"):
        yield "\\ no newline at the end of the " + ("new file" if old.endswith("\n") else "old file"), "dim"
