"""Subagent view: shows child entities in the content of the tool call that started them, with their intents and actions.

The text and the actions of a child are lines below its intent. Children are numbered; the number of a child's child
begins with its parent's number, as in 2.1. The size is limited: of long text only the end is shown, and of many finished
children only their number. Only calls that need the user's permission also become separate tool calls.
"""

from __future__ import annotations

from collections import deque

from cantrip_acp.acp import protocol as acp
from cantrip_acp.acp.render.formatting import (
    CONTENT_LIMIT,
    code_block,
    failure_text,
    headline,
    pretty_json,
    text_content,
)
from cantrip_acp.types import events

MAX_CHILDREN = 24
"""The largest number of children of one call that are shown separately."""

_MAX_LINES = 24
_MAX_TEXT = 2_000
_MAX_TASK = 300
_MAX_DIFF_CHARS = 64 * 1024


class _Child:
    """One child: its last lines, and its message or output that is not complete yet."""

    __slots__ = (
        "_actions",
        "_lines",
        "child_count",
        "entity_id",
        "intent",
        "number",
        "open_message",
        "output",
        "state",
    )

    def __init__(self, entity_id: str, number: tuple[int, ...], actions: list[dict[str, str]]) -> None:
        self._actions = actions
        self.entity_id = entity_id
        self.number = number
        self.child_count = 0
        self.intent = ""
        self.state = "running"
        self.open_message: tuple[str, str] = ("", "")
        self.output = ""
        self._lines: deque[str] = deque(maxlen=_MAX_LINES)

    @property
    def running(self) -> bool:
        return self.state == "running"

    def append_text(self, message_id: str, delta: str) -> None:
        open_id, text = self.open_message
        if open_id != message_id:
            self.finish_message()
            text = ""
        self.open_message = (message_id, (text + delta)[-_MAX_TEXT:])

    def discard_text(self, message_id: str) -> None:
        """Drop the text of a message that broke off. The line about the retry says why."""
        if self.open_message[0] == message_id:
            self.open_message = ("", "")

    def finish_message(self) -> None:
        """End the open message, and add its text as a line."""
        text = self.open_message[1].strip()
        self.open_message = ("", "")
        if text:
            self._lines.append(_quote(text))
            self.add_action_data("text", text)

    def add_action(self, line: str, plain: str, kind: str = "action") -> None:
        """Add an action: as a line of Markdown for the view, and as plain text for `_meta.cantrip.children`."""
        self.finish_message()
        self.output = ""
        self._lines.append(f"- {line}")
        self.add_action_data(kind, plain)

    def add_action_data(self, kind: str, text: str) -> None:
        """Add an action for `_meta.cantrip.children`."""
        self._actions.append({"number": _number_text(self.number), "kind": kind, "text": text, "child": self.entity_id})

    def render(self) -> str:
        label = "Child" + (f" {_number_text(self.number)}" if self.number else "")
        parts = [f"**{label}** ({self.state}): {_inline(self.intent)}", *self._lines]
        if text := self.open_message[1].strip():
            parts.append(_quote(text))
        if self.output.strip():
            parts.append(code_block(self.output.strip("\n")))
        return "\n\n".join(parts)


class CallChildren:
    """The children of one tool call, including children of children. ``as_sessions``: the client shows them as sessions of
    their own, so that the call shows only the files that they changed."""

    def __init__(self, *, as_sessions: bool = False) -> None:
        self._as_sessions = as_sessions
        self._children: dict[str, _Child] = {}
        self._actions: list[dict[str, str]] = []
        self._locations: dict[str, acp.Location] = {}
        self._diffs: list[acp.Diff] = []
        self._diff_budget = _MAX_DIFF_CHARS
        self._finished: dict[str, int] = {}

    def add(self, event: events.ChildEvent) -> bool:
        """Add an event of a child. Returns whether the view changed."""
        child, inner = self._child(event), event.inner
        match inner:
            case events.Text():
                child.append_text(inner.message_id, inner.delta)
            case events.Voided():
                child.discard_text(inner.message_id)
            case events.CommandOutput():
                child.output = (child.output + inner.data)[-_MAX_TEXT:]
            case events.CastStarted():
                child.intent, child.state = headline(inner.intent), "running"
                child.add_action_data("intent", _task_text(inner.intent))
            case events.GateCalled(gate=gate) if gate != "done":
                child.add_action(_inline(inner.title or gate, code=True), headline(inner.title or gate))
            case events.GateFinished():
                self._add_diffs(inner.diffs)
                record = inner.record
                if record.is_error:
                    text = record.result if isinstance(record.result, str) else pretty_json(record.result)
                    reason = failure_text(text, record.annotations or {})
                    plain = f"{record.gate} failed: {headline(reason)}"
                    child.add_action(f"{_inline(record.gate, code=True)} failed: {_inline(reason)}", plain, "failure")
                elif not inner.diffs:
                    return False
            case events.CommandStarted():
                command = f"{'$' if inner.tool == 'bash' else '>>>'} {headline(inner.command)}"
                child.add_action(_inline(command, code=True), command)
            case events.CommandFinished():
                why = inner.record.error or ("it ran longer than it may" if inner.record.timed_out else None)
                if why is None and inner.exit_code in (0, None):
                    return False
                why = why and failure_text(why, inner.record.annotations or {})
                output = child.output
                line = f"exit status {inner.exit_code}" + (f": {_inline(why)}" if why else "")
                child.add_action(line, line, "failure")
                child.output = output
            case events.PlanChanged():
                # A child's plan is shown as a line. The session's plan belongs to the session's entity.
                line = "plan: " + "; ".join(f"{_inline(e.content)} ({e.status})" for e in inner.entries[:12])
                child.add_action(line, line)
            case events.RetryScheduled():
                line = f"the model did not answer ({_inline(inner.error)}); asking again {inner.when}"
                child.add_action(line, line, "retry")
            case events.CastEnded():
                child.finish_message()
                end = inner.record
                child.state = "done" if end.terminated else f"stopped: {end.reason}"
                child.add_action_data("done" if end.terminated else "stopped", child.state)
            case _:
                return False
        return True

    def _child(self, event: events.ChildEvent) -> _Child:
        found = self._children.get(event.path[-1])
        if found is None:
            parent = self._children.get(event.path[-2]) if len(event.path) > 1 else None
            if event.index is not None and parent is None:
                number: tuple[int, ...] = (event.index + 1,)
            elif parent is not None:
                parent.child_count += 1
                number = (*parent.number, parent.child_count)
            else:
                # A single child has no number. Several casts by one cell have none either.
                number = ()
            found = self._children[event.path[-1]] = _Child(event.path[-1], number, self._actions)
            self._drop_oldest()
        return found

    def _drop_oldest(self) -> None:
        """If there are too many children, drop the oldest finished ones and keep only their count."""
        while len(self._children) > MAX_CHILDREN:
            oldest = next((c for c in self._children.values() if not c.running), None)
            if oldest is None:
                return
            del self._children[oldest.entity_id]
            self._finished[oldest.state] = self._finished.get(oldest.state, 0) + 1

    def _add_diffs(self, diffs: tuple[events.Diff, ...]) -> None:
        for diff in diffs:
            self._locations.pop(diff.path, None)
            self._locations[diff.path] = acp.Location(diff.path)
            size = len(diff.old_text or "") + len(diff.new_text)
            if size <= self._diff_budget:
                self._diff_budget -= size
                self._diffs.append(acp.Diff(diff.path, diff.old_text, diff.new_text))

    def name_of(self, entity_id: str) -> str | None:
        """The display name of a child; None if it is not one of these."""
        child = self._children.get(entity_id)
        if child is None:
            return None
        return f"child {_number_text(child.number)}" if child.number else "child"

    def take_actions(self) -> list[dict[str, str]] | None:
        """The actions of the children since the last call of this method; None if they are sessions of their own."""
        if self._as_sessions:
            return None
        actions = self._actions[:]
        self._actions.clear()
        return actions

    @property
    def locations(self) -> list[acp.Location] | None:
        """The last 20 files that the children changed."""
        return list(self._locations.values())[-20:] or None

    def content(self) -> list[acp.ToolContent]:
        """The children as content of their call."""
        if self._as_sessions:
            return []
        parts: list[str] = []
        if self._finished:
            parts.append("Earlier children: " + ", ".join(f"{n} {state}" for state, n in self._finished.items()) + ".")
        sections = [c.render() for c in sorted(self._children.values(), key=lambda c: c.number)]
        # The children share the limit. The end of each section is kept, because it shows the latest actions.
        each = max(CONTENT_LIMIT // max(len(sections), 1), 400)
        parts += [s if len(s) <= each else _shorten_section(s, each) for s in sections]
        return [text_content("\n\n".join(parts)[:CONTENT_LIMIT]), *self._diffs]


def _number_text(number: tuple[int, ...]) -> str:
    return ".".join(map(str, number))


def _task_text(intent: str) -> str:
    """The task of a child on one line. Unlike a title, it keeps its colons."""
    line = " ".join(intent[: 2 * _MAX_TASK].split())
    return line if len(line) <= _MAX_TASK else line[: _MAX_TASK - 1].rstrip() + "…"


def _inline(text: str, *, code: bool = False) -> str:
    """The text on one line. With ``code``, as inline code of Markdown."""
    line = headline(text)
    if not code:
        return line
    fence = "`"
    while fence in line:
        fence += "`"
    return f"{fence} {line} {fence}" if len(fence) > 1 else f"`{line}`"


def _quote(text: str) -> str:
    return "\n".join(f"> {line}" for line in text.splitlines())


def _shorten_section(section: str, limit: int) -> str:
    """Shorten the section of a child to its start (the intent) and its last actions."""
    head, _, rest = section.partition("\n\n")
    return f"{head[:300]}\n\n[earlier lines left out]\n\n{rest[-max(limit - 340, 0) :]}" if rest else head[:limit]
