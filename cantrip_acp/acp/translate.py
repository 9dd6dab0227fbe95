"""Events of an entity as updates of a session (ACP, Prompt Turn and Tool Calls).

Every gate call and every command is a tool call: pending when it is asked for, in progress when it runs, and completed
or failed at its end. A command's output goes into a display terminal where the client offers one
(``_meta.terminal_output``) and into the tool call's content elsewhere; since an update replaces that content, it is sent
at intervals and holds the end of a long output.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from cantrip_acp import events
from cantrip_acp.acp import protocol as acp

CONTENT_LIMIT = 32 * 1024
"""Characters of a result or an output that are shown as content; ``rawOutput`` and the loom have more."""

OUTPUT_LIMIT = 100_000
"""Characters of a command's output that its ``rawOutput`` holds."""

TITLE_LIMIT = 160

_FENCED_KINDS = frozenset({"read", "search", "execute", "fetch"})


class _Call:
    """A tool call that is not finished."""

    __slots__ = ("_pieces", "_size", "command", "dirty", "done", "kind", "started", "terminal")

    def __init__(self, kind: str, *, command: bool = False, terminal: bool = False) -> None:
        self.kind = kind
        self.command = command
        self.terminal = terminal
        self.started = command
        self.dirty = False
        self.done = False
        self._pieces: list[str] = []
        self._size = 0

    def add(self, data: str) -> None:
        self._pieces.append(data)
        self._size += len(data)
        if self._size > 2 * OUTPUT_LIMIT:
            self._pieces = [self.output()]
            self._size = len(self._pieces[0])

    def output(self, limit: int = OUTPUT_LIMIT) -> str:
        """The end of what came out."""
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        return self._pieces[0][-limit:] if self._pieces else ""

    def shown(self) -> list[acp.ToolContent] | None:
        """The output as content; a client with a display terminal has it already, and an empty one is none."""
        text = self.output(CONTENT_LIMIT + 1)
        if not text:
            return None
        return [_text(_fenced(text if len(text) <= CONTENT_LIMIT else "[earlier output left out]\n" + text[1:]))]


class Translator:
    """The updates of one session. It keeps what is open: calls that run, and the message that is being spoken."""

    def __init__(self, client: acp.ClientAbilities) -> None:
        self._client = client
        self._calls: dict[str, _Call] = {}
        self._message_id: str | None = None
        self._said: list[str] = []
        self.dirty = False
        """Whether output of a command waits to be shown by `flush`."""
        self._makers: dict[type[events.Event], Callable[[Any], list[acp.Update]]] = {
            events.Text: self._text,
            events.Thought: self._thought,
            events.RetryScheduled: self._retry,
            events.GateCalled: self._gate_called,
            events.GateStarted: self._gate_started,
            events.GateFinished: self._gate_finished,
            events.PlanChanged: self._plan,
            events.CommandStarted: self._command_started,
            events.CommandOutput: self._command_output,
            events.CommandFinished: self._command_finished,
            events.UsageReported: self._usage,
            events.CastEnded: self._cast_ended,
        }

    def translate(self, event: events.Event) -> list[acp.Update]:
        """The updates that one event asks for, in order; none for events that a client need not see."""
        make = self._makers.get(type(event))
        return make(event) if make is not None else []

    def flush(self) -> list[acp.Update]:
        """The output that came since the last time: each running command's content anew."""
        self.dirty = False
        updates: list[acp.Update] = []
        for call_id, call in self._calls.items():
            if call.dirty:
                call.dirty = False
                updates.append(acp.ToolCallUpdate(tool_call_id=call_id, content=call.shown()))
        return updates

    def close(self) -> list[acp.Update]:
        """The turn is over: whatever still ran was stopped."""
        updates: list[acp.Update] = []
        for call_id, call in self._calls.items():
            exit_info = {"terminal_id": call_id, "exit_code": None, "signal": "SIGKILL"}
            updates.append(
                acp.ToolCallUpdate(
                    tool_call_id=call_id,
                    status="failed",
                    content=None if call.terminal else call.shown(),
                    meta={"terminal_exit": exit_info} if call.terminal else None,
                )
            )
        self._calls.clear()
        self._message_id = None
        self._said.clear()
        self.dirty = False
        return updates

    # --- words -------------------------------------------------------------------------------------------------------

    def _text(self, event: events.Text) -> list[acp.Update]:
        if not event.delta:
            return []
        if event.message_id != self._message_id:
            self._message_id = event.message_id
            self._said.clear()
        self._said.append(event.delta)
        return [acp.AgentMessageChunk(acp.TextContent(event.delta), event.message_id)]

    def _thought(self, event: events.Thought) -> list[acp.Update]:
        if not event.delta:
            return []
        # The thought that leads to a message is not that message, so it has an id of its own.
        return [acp.AgentThoughtChunk(acp.TextContent(event.delta), f"{event.message_id}:thought")]

    def _retry(self, event: events.RetryScheduled) -> list[acp.Update]:
        what = f"The model did not answer ({event.error}); asking again in {event.delay_s:.1f} s."
        if self._client.notices:
            return [acp.Notice("warning", "Asking the model again", what)]
        return [acp.AgentThoughtChunk(acp.TextContent(what), f"{event.message_id}:retry")]

    def _cast_ended(self, event: events.CastEnded) -> list[acp.Update]:
        """What `done` was called with is the answer: said in words, unless it was said just before."""
        if event.reason != "done" or event.result in (None, ""):
            return []
        answer = event.result if isinstance(event.result, str) else _fenced(_pretty(event.result), "json")
        if answer.strip() == "".join(self._said).strip():
            return []
        return [acp.AgentMessageChunk(acp.TextContent(answer), f"{event.cast_id}:answer")]

    def _usage(self, event: events.UsageReported) -> list[acp.Update]:
        cost = event.cumulative.get("cost")
        return [
            acp.UsageUpdate(
                event.used,
                # The size is required, and 0 is what editors take for "not known".
                event.size or 0,
                acp.Cost(float(cost)) if isinstance(cost, int | float) else None,
            )
        ]

    # --- gates -------------------------------------------------------------------------------------------------------

    def _gate_called(self, event: events.GateCalled) -> list[acp.Update]:
        self._calls[event.call_id] = _Call(event.kind)
        return [
            acp.ToolCall(
                tool_call_id=event.call_id,
                title=_title(event.title or event.gate),
                name=event.gate,
                kind=event.kind,
                status="pending",
                locations=_locations(event.locations),
                raw_input=event.args,
                # A gate that a command calls: its result is in that command's output too, and a client may fold it in.
                meta={"cantrip": {"via": event.via}} if event.via else None,
            )
        ]

    def _gate_started(self, event: events.GateStarted | events.GateFinished) -> list[acp.Update]:
        call = self._calls.get(event.call_id)
        if call is not None:
            call.started = True
        return [acp.ToolCallUpdate(tool_call_id=event.call_id, status="in_progress")]

    def _gate_finished(self, event: events.GateFinished) -> list[acp.Update]:
        call = self._calls.pop(event.call_id, None)
        if event.gate == "done" and not event.is_error and event.via in self._calls:
            # `done` from within a command ends that command at once, and that is no failure of it.
            self._calls[event.via].done = True
        # A call that was refused before it ran goes through the same states: clients may count on each.
        begun = [] if call is None or call.started else self._gate_started(event)
        content: list[acp.ToolContent] = [acp.Diff(diff.path, diff.old_text, diff.new_text) for diff in event.diffs]
        if event.is_error or (not content and event.gate != "done"):
            text = _shortened(event.result if isinstance(event.result, str) else _pretty(event.result))
            if text:
                fenced = call is not None and call.kind in _FENCED_KINDS and not event.is_error
                content.append(_text(_fenced(text) if fenced else text))
        return [
            *begun,
            acp.ToolCallUpdate(
                tool_call_id=event.call_id,
                title=_title(event.title) if event.title else None,
                status="failed" if event.is_error else "completed",
                content=content or None,
                locations=_locations(event.locations),
                raw_output=event.result,
            ),
        ]

    def _plan(self, event: events.PlanChanged) -> list[acp.Update]:
        return [acp.Plan([acp.PlanEntry(e.content, e.priority, e.status) for e in event.entries])]

    # --- commands ----------------------------------------------------------------------------------------------------

    def _command_started(self, event: events.CommandStarted) -> list[acp.Update]:
        terminal = self._client.display_terminal
        self._calls[event.call_id] = _Call("execute", command=True, terminal=terminal)
        info: dict[str, Any] = {"terminal_id": event.call_id}
        if event.cwd is not None:
            info["cwd"] = event.cwd
        raw_input = {"code" if event.tool == "python" else "command": event.command}
        return [
            acp.ToolCall(
                tool_call_id=event.call_id,
                title=_title(event.command),
                name=event.tool,
                kind="execute",
                status="pending",
                content=[acp.Terminal(event.call_id)] if terminal else None,
                raw_input=raw_input,
                meta={"terminal_info": info} if terminal else None,
            ),
            acp.ToolCallUpdate(tool_call_id=event.call_id, status="in_progress"),
        ]

    def _command_output(self, event: events.CommandOutput) -> list[acp.Update]:
        call = self._calls.get(event.call_id)
        if call is None or not event.data:
            return []
        call.add(event.data)
        if call.terminal:
            return [_piece(event.call_id, event.data)]
        call.dirty = self.dirty = True
        return []

    def _command_finished(self, event: events.CommandFinished) -> list[acp.Update]:
        call = self._calls.pop(event.call_id, None) or _Call("execute", command=True)
        well = call.done or (event.exit_code == 0 and not event.timed_out and event.error is None)
        content = None if call.terminal else (call.shown() or [])
        told: list[acp.Update] = []
        if event.timed_out or event.error is not None:
            # A traceback, or why it was stopped: it was in no stream, so a terminal hears of it here.
            note = event.error or "stopped: it ran longer than it may"
            if content is not None:
                content.append(_text(_fenced(note) if "\n" in note else note))
            note = ("" if call.output(1) in ("", "\n") else "\n") + note + "\n"
            call.add(note)
            if call.terminal:
                told.append(_piece(event.call_id, note))
        raw_output = {
            "output": call.output(),
            "exit_code": event.exit_code,
            "signal": event.signal,
            "timed_out": event.timed_out,
            "truncated": event.truncated,
        }
        exit_info = {"terminal_id": event.call_id, "exit_code": event.exit_code, "signal": event.signal}
        return [
            *told,
            acp.ToolCallUpdate(
                tool_call_id=event.call_id,
                status="completed" if well else "failed",
                content=content or None,
                raw_output=raw_output,
                meta={"terminal_exit": exit_info} if call.terminal else None,
            ),
        ]


def _piece(call_id: str, data: str) -> acp.ToolCallUpdate:
    """What a display terminal is to show next."""
    output = {"terminal_id": call_id, "data": data}
    return acp.ToolCallUpdate(tool_call_id=call_id, meta={"terminal_output": output})


def _title(text: str) -> str:
    """One line, as an editor has room for."""
    first, _, more = text.strip().partition("\n")
    first = " ".join(first.split())
    if more.strip() or len(first) > TITLE_LIMIT:
        return first[:TITLE_LIMIT].rstrip() + " …"
    return first or "(empty)"


def _locations(locations: tuple[events.Location, ...]) -> list[acp.Location] | None:
    return [acp.Location(place.path, place.line) for place in locations] or None


def _text(text: str) -> acp.Content:
    return acp.Content(acp.TextContent(text))


def _shortened(text: str) -> str:
    if len(text) <= CONTENT_LIMIT:
        return text
    return f"{text[:CONTENT_LIMIT]}\n[{len(text) - CONTENT_LIMIT} more characters are not shown]"


def _fenced(text: str, language: str = "") -> str:
    """As a code block: clients render content as Markdown, and a file or an output is none."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def _pretty(value: Any) -> str:
    return "" if value is None else json.dumps(value, ensure_ascii=False, indent=2, default=str)
