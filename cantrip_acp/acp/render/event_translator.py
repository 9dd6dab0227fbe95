"""Event translator: turns the events of an entity into updates of a session (ACP, Prompt Turn and Tool Calls).

Every gate call and every command becomes a tool call. It is pending when it is requested, in progress while it runs,
and completed or failed at the end. The output of a command goes into a display terminal if the client has one
(``_meta.terminal_output``), or else into the content of the tool call. Each update replaces the whole content. So updates
with output are sent at intervals (`Translator.flush`), and hold only the end of a long output.

The actions of a child entity are shown in the content of the call that started the child (`subagent_view`). A call of a
child that needs the user's permission is a separate tool call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from cantrip_acp.acp import protocol as acp
from cantrip_acp.acp.render.formatting import (
    call_meta,
    code_block,
    failure_text,
    file_locations,
    headline,
    pretty_json,
    raw_output,
    text_content,
    title_with_counts,
    truncate_end,
)
from cantrip_acp.acp.render.notices import fold_notice, notice, retry_notice, steering_message, void_notice
from cantrip_acp.acp.render.open_call import CommandText, OpenCall
from cantrip_acp.acp.render.plan import Batch, SessionPlan
from cantrip_acp.acp.render.subagent_view import CallChildren
from cantrip_acp.types import events
from cantrip_acp.types.styled import Styled

if TYPE_CHECKING:
    from cantrip_acp.acp.permissions.interceptor import Question

_AGAIN = "\r\x1b[K"
"""Begins the last line of a terminal again."""


STOP_REASONS: dict[str, acp.StopReason] = {
    "done": "end_turn",
    "text": "end_turn",
    "max_turns": "max_turn_requests",
    "max_seconds": "max_turn_requests",
    "max_tokens": "max_tokens",
    "max_cost": "max_tokens",
    "output_limit": "max_tokens",
    "cancelled": "cancelled",
    "parent_terminated": "cancelled",
    "refusal": "refusal",
}
"""The ACP stop reason for each reason why a cast ended. The reason ``error`` is missing: it becomes an error reply."""


class TerminalOpened(events.Event, frozen=True, kw_only=True, tag="terminal"):
    """A call runs in a terminal of the client. The client shows the output there."""

    call_id: str
    terminal_id: str


class Checkpoint(events.Event, frozen=True, kw_only=True, tag="reached"):
    """Marks a place among the events. ``reached`` is set when all earlier events were sent."""

    reached: Any


class _CostTold:
    """The usage of a session as its client knows it. The session's cost includes its children. They may report very often,
    so their cost is sent with the entity's next turn or at the end of the prompt."""

    def __init__(self) -> None:
        self._window: tuple[int, int] | None = None
        self._total: float | None = None
        self._new = False

    def report(self, event: events.UsageReported) -> list[acp.Update]:
        """The update for the usage of a turn."""
        # The protocol requires the size of the context window. Where it is not known, the usage is still in the reply to the
        # prompt and in the answer to /cost.
        self._window = (event.used, event.size) if event.size else None
        self._total, self._new = event.cumulative.cost, True
        return self.rest()

    def add_child(self, event: events.UsageReported) -> None:
        if event.usage.cost:
            self._total = (self._total or 0.0) + event.usage.cost
            self._new = True

    def rest(self) -> list[acp.Update]:
        """The update for usage that the client does not know yet."""
        if not self._new or self._window is None:
            return []
        self._new = False
        return [acp.UsageUpdate(*self._window, None if self._total is None else acp.Cost(self._total))]


class Translator:
    """Makes the updates of one session. It remembers the running calls and the current message."""

    def __init__(self, client: acp.ClientAbilities, session_id: str = "") -> None:
        self._client = client
        self._child_sessions = ChildSessions(client, session_id) if client.subagents else None
        self._calls: dict[str, OpenCall] = {}
        self._plan = SessionPlan(client)
        self._cost = _CostTold()
        self._message_id: str | None = None
        self._message_parts: list[str] = []
        self._open_fold: str | None = None
        """The id of a fold whose summary is being written."""
        self.turns_before = 0
        """The turns of the thread before the entity's own: turns are numbered from the thread's root, as `/fork` takes them."""
        self._told: set[str] = set()

    @property
    def dirty(self) -> bool:
        """Whether output of a command or actions of a child wait for `flush`."""
        waits = any(call.dirty for call in self._calls.values())
        return waits or (self._child_sessions is not None and self._child_sessions.dirty)

    def translate(self, event: events.Event) -> list[acp.Update]:
        """The updates for one event, in order. Empty for events that are not shown."""
        make = self._HANDLERS.get(type(event))
        return make(self, event) if make is not None else []

    def flush(self) -> list[acp.Update]:
        """Updates for each call with new output or new actions of children. Each holds the whole content of the call."""
        updates: list[acp.Update] = []
        for call_id, call in self._calls.items():
            if call.dirty:
                call.dirty = False
                content, locations = call.content() or None, call.children and call.children.locations
                updates.append(self._update(call_id, content=content, locations=locations, meta=call.meta({})))
        if self._child_sessions is not None:
            updates += self._child_sessions.flush()
        return updates

    def close(self) -> list[acp.Update]:
        """Call this at the end of a prompt: marks all calls that still run as stopped."""
        updates = self._child_sessions.close() if self._child_sessions is not None else []
        for call_id, call in self._calls.items():
            stopped = call.meta({"stopped": True}) or {}
            if call.terminal:
                stopped["terminal_exit"] = {"terminal_id": call_id, "exit_code": None, "signal": "SIGKILL"}
            updates.append(self._update(call_id, status="failed", content=call.stopped() or None, meta=stopped))
        if self._open_fold is not None:
            updates.append(acp.CompactionUpdate(self._open_fold, "cancelled", []))
            self._open_fold = None
        self._calls.clear()
        self._plan.clear()
        self._message_id = None
        self._message_parts.clear()
        return updates

    def _update(self, call_id: str, call: OpenCall | None = None, **more: Any) -> acp.ToolCallUpdate:
        """An update of a call. It repeats title and kind, because some clients show only the last update."""
        call = call or self._calls.get(call_id)
        if call is not None:
            more = {"title": call.title, "kind": call.kind, **more}
        return acp.ToolCallUpdate(tool_call_id=call_id, **more)

    def _steered(self, event: events.Steered) -> list[acp.Update]:
        """The user's message during the prompt. Other clients show their own message when they send it."""
        if not self._client.queues_prompts:
            return []
        return [steering_message(event)]

    # --- text --------------------------------------------------------------------------------------------------------

    def _text(self, event: events.Text) -> list[acp.Update]:
        if not event.delta:
            return []
        if event.message_id != self._message_id:
            self._message_id = event.message_id
            self._message_parts.clear()
        self._message_parts.append(event.delta)
        return [acp.AgentMessageChunk(acp.TextContent(event.delta), event.message_id)]

    def _thought(self, event: events.Thought) -> list[acp.Update]:
        if not event.delta:
            return []
        # A thought is not part of the message that follows it, so it has its own id.
        return [acp.AgentThoughtChunk(acp.TextContent(event.delta), f"{event.message_id}:thought")]

    def _voided(self, event: events.Voided) -> list[acp.Update]:
        # The text of this attempt no longer counts when the result of `done` is compared with the last message.
        self._message_parts.clear()
        had_text, self._message_id = self._message_id == event.message_id, None
        return [void_notice(event, self._client, had_text=had_text)]

    def _noticed(self, event: events.Noticed) -> list[acp.Update]:
        self._told.add(event.text)
        return [notice(event.text, self._client)]

    def _cast_ended(self, event: events.CastEnded) -> list[acp.Update]:
        """Send the result of `done` (unless the last message has the same text), the cost of children, and warnings."""
        new = [warning for warning in event.record.warnings or () if warning not in self._told]
        self._told.update(new)
        warnings = [notice(warning, self._client) for warning in new]
        return [*self._answer(event), *self._cost.rest(), *warnings]

    def _answer(self, event: events.CastEnded) -> list[acp.Update]:
        result = event.record.result
        if event.record.reason != "done" or result in (None, ""):
            return []
        answer = result if isinstance(result, str) else code_block(pretty_json(result), "json")
        if answer.strip() == "".join(self._message_parts).strip():
            return []
        return [acp.AgentMessageChunk(acp.TextContent(answer), f"{event.cast_id}:answer")]

    def _turn_ended(self, event: events.TurnEnded) -> list[acp.Update]:
        if not self._client.turns:
            return []
        turn, metadata = event.turn, event.turn.metadata
        number = self.turns_before + turn.sequence
        told = {"id": turn.id, "number": number, "ms": metadata.duration_ms, "usage": metadata.usage.record()}
        return [acp.SessionInfoChanged(meta={"cantrip": {"turn": told}})]

    # --- children ----------------------------------------------------------------------------------------------------

    def _child(self, event: events.ChildEvent) -> list[acp.Update]:
        inner, updates = event.inner, list[acp.Update]()
        call = self._calls.get(event.calls[0])
        if call is not None:
            if call.children is None:
                call.children = CallChildren(as_sessions=self._child_sessions is not None)
            if call.children.add(event):
                call.dirty = True
                if call.batch is not None and event.index is not None and len(event.path) == 1:
                    updates += self._plan.progress(call.batch, event.index, inner)
        if isinstance(inner, events.UsageReported):
            self._cost.add_child(inner)
        if self._child_sessions is not None:
            updates += self._child_sessions.translate(event)
        elif getattr(inner, "call_id", None) in self._calls and not isinstance(inner, events.GateCalled):
            # The user was asked about this call, so it is a tool call.
            updates += self.translate(inner)
        return updates

    def _parent_call(self, entity_id: str) -> tuple[str, str] | None:
        """The id of the call that started a child, and the child's display name. None for an unknown entity."""
        for call_id, call in self._calls.items():
            if call.children is not None and (name := call.children.name_of(entity_id)) is not None:
                return call_id, name
        return None

    def child_name_of(self, question: Question) -> str | None:
        """The display name of the child that a question comes from. None for the session's entity."""
        found = self._parent_call(question.entity_id)
        return found[1] if found is not None and self._child_sessions is None else None

    def child_session_of(self, question: Question) -> str | None:
        """The id of the session of the child that a question comes from. None if it is not a session of its own."""
        sessions = self._child_sessions
        return question.entity_id if sessions is not None and question.entity_id in sessions.children else None

    def _summary_text(self, event: events.SummaryText) -> list[acp.Update]:
        if not self._client.compaction or not event.delta:
            return []
        self._open_fold = event.turn_id
        return [acp.CompactionSummaryChunk(event.turn_id, acp.TextContent(event.delta))]

    def _folded(self, event: events.Folded) -> list[acp.Update]:
        self._open_fold = None
        return [fold_notice(event, self._client)]

    # --- gates -------------------------------------------------------------------------------------------------------

    def _gate_called(self, event: events.GateCalled) -> list[acp.Update]:
        title = headline(event.title or event.gate)
        call = self._calls[event.call_id] = OpenCall(event.kind, title)
        if event.via:
            # A command calls this gate. Its result is also in the output of the command, so a client may hide this call.
            call.origin = {"via": event.via}
        call.batch = Batch.of(event)
        return [
            acp.ToolCall(
                tool_call_id=event.call_id,
                title=title,
                name=event.gate,
                kind=event.kind,
                status="pending",
                locations=file_locations(event.locations),
                raw_input=event.args,
                meta={"cantrip": call.origin} if call.origin else None,
            )
        ]

    def _gate_started(self, event: events.GateStarted | events.GateFinished) -> list[acp.Update]:
        call = self._calls.get(event.call_id)
        if call is not None:
            call.started = True
        return [self._update(event.call_id, status="in_progress")]

    def _gate_finished(self, event: events.GateFinished) -> list[acp.Update]:
        call = self._calls.get(event.call_id)
        record, annotations = event.record, event.record.annotations or {}
        if record.gate == "done" and not record.is_error and record.parent_call_id in self._calls:
            # `done` inside a command ends the command at once. The command has not failed then.
            self._calls[record.parent_call_id].done = True
        # A call that was refused before it ran also gets the state in_progress, because clients may expect each state.
        started_updates = [] if call is None or call.started else self._gate_started(event)
        self._calls.pop(event.call_id, None)
        call = call or OpenCall("other", headline(record.gate))
        if call.child_name is None:
            call.title = title_with_counts(record.title or record.gate, event.diffs)
        elif not record.is_error:
            # A refused call keeps the title of the question.
            call.title = title_of_child_call(
                title_with_counts(record.title or record.gate, event.diffs), call.child_name
            )
        if call.batch is not None:
            call.batch.ended = True
        return [
            *started_updates,
            self._update(
                event.call_id,
                call,
                status="failed" if record.is_error else "completed",
                content=call.final_content(event) or None,
                locations=file_locations(record.locations or ()) or (call.children and call.children.locations),
                raw_output=raw_output(record.result),
                meta=call.meta(annotations),
            ),
        ]

    def _terminal_opened(self, event: TerminalOpened) -> list[acp.Update]:
        call = self._calls.get(event.call_id)
        if call is not None:
            call.in_client_terminal = True
        return [self._update(event.call_id, content=[acp.Terminal(event.terminal_id)])]

    def _checkpoint(self, event: Checkpoint) -> list[acp.Update]:
        event.reached.set()
        return []

    # --- commands ----------------------------------------------------------------------------------------------------

    def propose_call(self, question: Question) -> list[acp.Update]:
        """Make a pending tool call for a question, if the client does not know the call: a command, or a child's call."""
        if self._child_sessions is not None and (child := self._child_sessions.children.get(question.entity_id)):
            return child.wrap(child.translator.propose_call(question))
        if question.call_id in self._calls:
            return []
        update = None
        if question.program:
            update = self._command(question.call_id, question.tool, question.text, question.cwd)
        find_child = self._parent_call(question.entity_id)
        if find_child is None:
            return [update] if update is not None else []
        call_id, child_name = find_child
        if update is None:
            self._calls[question.call_id] = OpenCall(question.kind, "")
            update = acp.ToolCall(
                tool_call_id=question.call_id,
                title=title_with_counts(question.title, question.diffs),
                name=question.tool,
                kind=question.kind,
                status="pending",
                locations=file_locations(tuple(question.locations)),
                raw_input=question.raw_input,
            )
        update.title = title_of_child_call(update.title, child_name)
        call = self._calls[question.call_id]
        call.title, call.child_name = update.title, child_name
        call.origin = {"via": call_id, "child": question.entity_id}
        update.meta = {**(update.meta or {}), "cantrip": call.origin}
        return [update]

    def _command_started(self, event: events.CommandStarted) -> list[acp.Update]:
        known = event.call_id in self._calls
        updates = [] if known else [self._command(event.call_id, event.tool, event.command, event.cwd)]
        return [*updates, self._update(event.call_id, status="in_progress")]

    def _command(self, call_id: str, tool: str, command: str, cwd: str | None) -> acp.ToolCall:
        terminal = self._client.display_terminal
        call = self._calls[call_id] = OpenCall("execute", headline(command), command=True, terminal=terminal)
        info: dict[str, Any] = {"terminal_id": call_id}
        if cwd is not None:
            info["cwd"] = cwd
        return acp.ToolCall(
            tool_call_id=call_id,
            title=call.title,
            name=tool,
            kind="execute",
            status="pending",
            content=[acp.Terminal(call_id)] if terminal else None,
            raw_input={"code" if tool == "python" else "command": command},
            meta={"terminal_info": info} if terminal else None,
        )

    def _command_output(self, event: events.CommandOutput) -> list[acp.Update]:
        call = self._calls.get(event.call_id)
        if call is None or call.output is None or not event.data:
            return []
        call.output.add(event.styled)
        begin, call.output.progress = _AGAIN if call.output.progress else "", ""
        return self._show_output(event.call_id, call, begin + event.styled.coded())

    def _command_progress(self, event: events.CommandProgress) -> list[acp.Update]:
        call = self._calls.get(event.call_id)
        if call is None or call.output is None:
            return []
        call.output.progress = event.line
        return self._show_output(event.call_id, call, _AGAIN + event.styled.coded())

    def _show_output(self, call_id: str, call: OpenCall, data: str) -> list[acp.Update]:
        """Send what the command printed to its terminal, if it has one. Else the content waits for `flush`."""
        if call.terminal:
            return [self._terminal_output(call_id, call, data)]
        call.dirty = True
        return []

    def _command_finished(self, event: events.CommandFinished) -> list[acp.Update]:
        call = self._calls.pop(event.call_id, None) or OpenCall("execute", "", command=True)
        printed = call.output = call.output or CommandText()
        printed.progress = ""
        record, exit_signal = event.record, events.signal_name(event.exit_code)
        annotations = record.annotations or {}
        if (shortened := event.shortened) is not None:
            printed.replace(shortened)
        succeeded = call.done or not event.failed
        content = call.content()
        updates: list[acp.Update] = []
        if record.timed_out or record.error is not None:
            # A traceback or the reason why it was stopped. It is not in the output, so send it to the terminal too.
            note = record.error or "stopped: it ran longer than it may"
            text = failure_text(note, annotations)
            if not call.terminal:
                content.append(text_content(code_block(text) if "\n" in text else text))
            note = ("" if printed.whole().text[-1:] in ("", "\n") else "\n") + note + "\n"
            printed.add(Styled(note))
            # If `_meta` says that the call was not allowed or was stopped, the client shows that itself.
            if call.terminal and not call_meta(annotations):
                updates.append(self._terminal_output(event.call_id, call, note))
        output = printed.whole()
        raw = {
            "output": output.text,
            "exit_code": event.exit_code,
            "signal": exit_signal,
            "timed_out": record.timed_out is True,
            "truncated": record.truncated,
        }
        meta = call.meta(annotations) or {}
        if output.changes and self._client.output_styles:
            meta["cantrip"] = {**meta.get("cantrip", {}), "styles": output.changes}
        if call.terminal:
            meta["terminal_exit"] = {
                "terminal_id": event.call_id,
                "exit_code": event.exit_code,
                "signal": exit_signal,
            }
        return [
            *updates,
            self._update(
                event.call_id,
                call,
                status="completed" if succeeded else "failed",
                content=content or None,
                raw_output=raw,
                meta=meta or None,
            ),
        ]

    def _terminal_output(self, call_id: str, call: OpenCall, data: str) -> acp.ToolCallUpdate:
        """The update that adds output to a display terminal."""
        return self._update(call_id, call, meta={"terminal_output": {"terminal_id": call_id, "data": data}})

    _HANDLERS: ClassVar[Mapping[type[events.Event], Callable[[Translator, Any], list[acp.Update]]]] = {
        events.Steered: _steered,
        events.Text: _text,
        events.Thought: _thought,
        events.Voided: _voided,
        events.RetryScheduled: lambda self, event: [retry_notice(event, self._client)],
        events.Noticed: _noticed,
        events.ChildRejected: lambda self, event: [notice(f"No child was started: {event.reason}", self._client)],
        events.GateCalled: _gate_called,
        events.GateStarted: _gate_started,
        events.GateFinished: _gate_finished,
        events.PlanChanged: lambda self, event: self._plan.set(event.entries),
        events.CommandStarted: _command_started,
        events.CommandOutput: _command_output,
        events.CommandProgress: _command_progress,
        events.CommandFinished: _command_finished,
        events.UsageReported: lambda self, event: self._cost.report(event),
        events.TurnEnded: _turn_ended,
        events.SummaryText: _summary_text,
        events.Folded: _folded,
        TerminalOpened: _terminal_opened,
        Checkpoint: _checkpoint,
        events.CastEnded: _cast_ended,
        events.ChildEvent: _child,
    }


# --- children as sessions


class _ChildSession:
    """One child: its id, the id of its parent's session, and the translator of its events."""

    def __init__(self, client: acp.ClientAbilities, child_id: str, parent: str | None) -> None:
        self.id = child_id
        self.parent = parent
        self.translator = Translator(msgspec.structs.replace(client, subagents=False), child_id)
        self.running = False

    def wrap(self, updates: list[acp.Update]) -> list[acp.Update]:
        return [acp.OfChild(self.id, update) for update in updates]


class ChildSessions:
    """The children of a session as sessions of their own, for clients with the ability `subagents` (ACP, Subagents).

    The id of a child's session is the id of its entity. Its parent's session announces it and tells its state, and both
    have the messages between them: the intent and the answer. A client cannot prompt, load or cancel a child.
    """

    def __init__(self, client: acp.ClientAbilities, session_id: str) -> None:
        self._client = client
        self._session_id = session_id
        self.children: dict[str, _ChildSession] = {}

    @property
    def dirty(self) -> bool:
        """Whether output of a child's command waits for `flush`."""
        return any(child.translator.dirty for child in self.children.values())

    def translate(self, event: events.ChildEvent) -> list[acp.Update]:
        child_id, inner = event.path[-1], event.inner
        child = self.children.get(child_id)
        if child is None:
            parent = event.path[-2] if len(event.path) > 1 else None
            child = self.children[child_id] = _ChildSession(self._client, child_id, parent)
        updates: list[acp.Update] = []
        if not child.running and not isinstance(inner, events.CastEnded):
            child.running = True
            intent = inner.intent if isinstance(inner, events.CastStarted) else ""
            updates += self._of_parent(
                child,
                acp.SubagentUpdate(session_id=child_id, title=headline(intent) or None, state=acp.WorkState("running")),
            )
            updates += self._message(child, f"{event.cast_id}:intent", intent, to_child=True)
        updates += child.wrap(child.translator.translate(inner))
        if isinstance(inner, events.CastEnded):
            updates += self._end(child, STOP_REASONS.get(inner.record.reason or "", "error"))
            result = inner.record.result
            answer = result if isinstance(result, str) else pretty_json(result)
            if inner.record.terminated:
                updates += self._message(child, f"{event.cast_id}:answer", answer, to_child=False)
        return updates

    def flush(self) -> list[acp.Update]:
        return [
            update
            for child in self.children.values()
            if child.translator.dirty
            for update in child.wrap(child.translator.flush())
        ]

    def close(self) -> list[acp.Update]:
        """The updates of children that still run when their parent's prompt ends."""
        running = [child for child in self.children.values() if child.running]
        return [update for child in running for update in self._end(child, "cancelled")]

    def _end(self, child: _ChildSession, reason: str) -> list[acp.Update]:
        child.running = False
        ended = acp.SubagentUpdate(session_id=child.id, state=acp.WorkState("idle", reason))
        return [*child.wrap(child.translator.close()), *self._of_parent(child, ended)]

    def _of_parent(self, child: _ChildSession, update: acp.Update) -> list[acp.Update]:
        return [update if child.parent is None else acp.OfChild(child.parent, update)]

    def _message(self, child: _ChildSession, message_id: str, text: str, *, to_child: bool) -> list[acp.Update]:
        """A message between a child and its parent, in the transcripts of both."""
        if not text:
            return []
        parent = child.parent or self._session_id
        sender, recipient = (parent, child.id) if to_child else (child.id, parent)
        both = {"sender_session_id": sender, "recipient_session_id": recipient}
        content = [acp.TextContent(truncate_end(text))]
        sent, received = f"{message_id}:sent", f"{message_id}:received"
        outgoing = acp.SessionMessage(message_id=sent, recipient_message_id=received, content=content, **both)
        incoming = acp.SessionMessage(message_id=received, sender_message_id=sent, content=content, **both)
        in_parent, in_child = (outgoing, incoming) if to_child else (incoming, outgoing)
        ordered = [*self._of_parent(child, in_parent), *child.wrap([in_child])]
        return ordered if to_child else ordered[::-1]


def title_of_child_call(title: str, child_name: str) -> str:
    """The title of a call that a child made."""
    return f"{headline(title)} ({child_name})"
