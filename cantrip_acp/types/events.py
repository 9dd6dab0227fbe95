"""Events: what happens in an entity (`core.event_hub` sends them). They report and never steer (§7.4)."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from typing import Any, ClassVar, Literal
from typing import cast as typed

import msgspec

from cantrip_acp.types.records import CastRecord, ContextRecord, GateRecord, Output, Turn
from cantrip_acp.types.records import Diff as Diff
from cantrip_acp.types.records import Location as Location
from cantrip_acp.types.styled import Styled, join
from cantrip_acp.types.usage import Usage


class PlanEntry(msgspec.Struct, frozen=True):
    """One step of a plan, with ACP's values: ``priority`` high | medium | low, ``status`` pending | in_progress |
    completed.
    """

    content: str
    priority: str = "medium"
    status: str = "pending"


def plan_entries(args: Mapping[str, Any]) -> tuple[PlanEntry, ...]:
    """The entries in the arguments of a call of ``plan``. Raises `ValueError` for an empty entry."""
    entries = []
    for index, given in enumerate(args["entries"]):
        content = " ".join(given["content"].split())
        if not content:
            raise ValueError(f"entry {index} has no content")
        entries.append(PlanEntry(content, given.get("priority", "medium"), given.get("status", "pending")))
    return tuple(entries)


ASKED_IN_CHAT = "asked_in_chat"
"""The annotation of a call of ``ask_user`` whose question was sent as a message of the chat: its text."""
QUESTION = "question"
"""The annotation of a call of ``ask_user`` that the user saw: ``answered``, ``skipped`` or ``unanswered``."""


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag=str.lower):
    """Fields of every event: its entity and its cast. ``depth`` is 0 for the root entity of a tree."""

    entity_id: str
    cast_id: str
    depth: int = 0


class CastStarted(Event, frozen=True, kw_only=True, tag="cast"):
    intent: str
    trace_id: str


class Steered(Event, frozen=True, kw_only=True, tag="steering"):
    """The next query sees what the user sent while the cast ran. ``record`` is what the loom keeps of it: a text, a document
    with its title and address, or an attachment.

    As JSON, these fields of the record stand here: ``id`` as ``message_id``, ``text``, ``title``, ``uri``, and its
    ``attachment``.
    """

    record: ContextRecord


class QueryStarted(Event, frozen=True, kw_only=True, tag="query"):
    """A query was sent. ``message_id`` marks the pieces of its answer. ``attempt`` counts from 1."""

    message_id: str
    attempt: int = 1


class Text(Event, frozen=True, kw_only=True, tag="text"):
    """A piece of the entity's text. Pieces with the same ``message_id`` belong together."""

    delta: str
    message_id: str


class Thought(Event, frozen=True, kw_only=True, tag="thought"):
    """A piece of the entity's thinking."""

    delta: str
    message_id: str


class GateCalled(Event, frozen=True, kw_only=True, tag="gate_call"):
    """A gate call was made. ``via`` is the id of the command or cell that made it, None for a direct call."""

    call_id: str
    gate: str
    args: Any
    kind: str = "other"
    title: str = ""
    locations: tuple[Location, ...] = ()
    via: str | None = None


class GateStarted(Event, frozen=True, kw_only=True, tag="gate_start"):
    """The gate is running: the call was allowed, and its arguments are valid."""

    call_id: str
    gate: str


class GateFinished(Event, frozen=True, kw_only=True, tag="gate_result"):
    """A gate has answered. ``record`` is what the loom keeps of the call: its result, whether it failed, its annotations.

    ``diffs`` are whole; the record has large ones shortened.

    As JSON, these fields of the record stand beside its own: ``gate``, ``result``, ``is_error``, ``title``, ``locations``,
    ``attachments``, ``annotations``, and its ``parent_call_id`` as ``via``.
    """

    call_id: str
    record: GateRecord
    diffs: tuple[Diff, ...] = ()


class PlanChanged(Event, frozen=True, kw_only=True, tag="plan"):
    """The entity's plan. The whole list replaces the one before."""

    entries: tuple[PlanEntry, ...]


class CommandStarted(Event, frozen=True, kw_only=True, tag="command"):
    """The medium runs a command or a cell. ``tool`` is bash or python."""

    call_id: str
    command: str
    tool: str
    cwd: str | None = None


class CommandOutput(Event, frozen=True, kw_only=True, tag="command_output"):
    """A piece of output, cleaned for display: valid text without terminal control sequences.

    The value of a cell's last expression is a last line that begins with ``=>``. ``styles``, if the program printed in
    colours: pairs of a character's number in ``data`` and the style that begins there, as in `Output`.
    """

    styled_fields: ClassVar = {"data": "styles"}

    call_id: str
    stream: Literal["stdout", "stderr"]
    data: str
    styles: tuple[tuple[int, str], ...] | msgspec.UnsetType = msgspec.UNSET

    @property
    def styled(self) -> Styled:
        """The text with its colours."""
        return Styled(self.data, self.styles or ())


class CommandProgress(Event, frozen=True, kw_only=True, tag="command_progress"):
    """What the line says that a command is writing or rewriting (a progress bar), a few times a second.

    It is not part of the output: when the line is complete, `CommandOutput` has its last state. ``styles`` are its colours.
    """

    styled_fields: ClassVar = {"line": "styles"}

    call_id: str
    line: str
    styles: tuple[tuple[int, str], ...] | msgspec.UnsetType = msgspec.UNSET

    @property
    def styled(self) -> Styled:
        """The line with its colours."""
        return Styled(self.line, self.styles or ())


class CommandFinished(Event, frozen=True, kw_only=True, tag="command_result"):
    """A command or cell of a medium's ``tool`` has ended. ``record`` is what the loom keeps of its output.

    As JSON, these stand here: `exit_code`, ``signal`` (its name), the record's ``truncated``, ``timed_out``, ``error`` and
    ``annotations``, and if the output was too long, ``output`` (its beginning and its end, with the size of the gap) with its
    ``styles``. `CommandOutput` had more of its beginning, and samples of the rest.
    """

    call_id: str
    tool: str
    record: Output

    @property
    def exit_code(self) -> int | None:
        """Of a cell: 0, or 1 if it failed."""
        return int(self.record.error is not None) if self.tool == "python" else self.record.exit_code

    @property
    def failed(self) -> bool:
        """Whether it was stopped, left an error, or has an exit code other than 0."""
        return self.exit_code != 0 or self.record.timed_out is True or self.record.error is not None

    @property
    def shortened(self) -> Styled | None:
        """What the record has of an output that was too long, None of any other."""
        return shown_output(self.record) if self.record.truncated else None


def shown_output(output: Output) -> Styled:
    """The output as readers see it: both streams in their order, and the value of a cell's last expression."""
    return join([output.styled, Styled(value_line(output))])


def value_line(output: Output) -> str:
    """The value of a cell's last expression as readers see it after the cell's output; empty if there is none."""
    return "" if output.value is None else f"=> {output.value}\n"


def signal_name(exit_code: int | None) -> str | None:
    """The signal in an exit status as shells give it (128 plus the number); None if there is none."""
    if exit_code is None or not 128 < exit_code <= 128 + 64:
        return None
    try:
        return signal.Signals(exit_code - 128).name
    except ValueError:
        return None


class UsageReported(Event, frozen=True, kw_only=True, tag="usage"):
    """After a query: its usage, the entity's usage so far, and how full the crystal's window is (``size`` None: not
    known).
    """

    usage: Usage
    cumulative: Usage
    used: int
    size: int | None


def seconds_words(seconds: float) -> str:
    """A duration for people: ``1.5 s``, ``42 s``, ``3 min 20 s``."""
    if seconds < 10:
        return f"{seconds:.1f}".removesuffix(".0") + " s"
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes:,} min" + (f" {rest} s" if rest else "")


class Voided(Event, frozen=True, kw_only=True, tag="void"):
    """The streamed pieces of an attempt are void: it broke off, or its answer could not be used.

    ``message_id`` names the pieces, text and thinking. A reader that showed them removes or marks them. The next
    attempt has another id. An attempt that streamed nothing has no such event. A `RetryScheduled` says when the model
    is asked again.
    """

    diagnostics: ClassVar = ("error",)

    message_id: str
    attempt: int
    error: str


class RetryScheduled(Event, frozen=True, kw_only=True, tag="retry"):
    """A query failed and will be repeated. The pieces of ``message_id`` are void (D-006)."""

    diagnostics: ClassVar = ("error",)

    message_id: str
    attempt: int
    delay_s: float
    error: str
    status: int | None = None

    @property
    def when(self) -> str:
        """When the model is asked again, in words: ``at once``, ``in 1.5 s``, ``in 42 s``, ``in 3 min 20 s``."""
        return f"in {seconds_words(self.delay_s)}" if self.delay_s >= 0.05 else "at once"


class Noticed(Event, frozen=True, kw_only=True, tag="notice"):
    """A message for the user about something that stops nothing, such as a server that could not be reached."""

    diagnostics: ClassVar = ("text",)

    text: str


class SummaryText(Event, frozen=True, kw_only=True, tag="summary"):
    """A piece of the summary that a summarizer is writing. ``turn_id`` is the turn that will record the fold."""

    delta: str
    turn_id: str


class Folded(Event, frozen=True, kw_only=True, tag="fold"):
    """A summary, the text of ``turn``, replaced earlier turns in what the crystal sees.

    As JSON, these stand here: ``first`` and ``last`` of the turns that it replaced, its ``summary``, and ``turn_id``.
    """

    turn: Turn

    @property
    def last(self) -> int:
        """The number of the last replaced turn; the first one is 1. 0 in looms of earlier versions, which do not record it."""
        return self.turn.metadata.folded or 0

    @property
    def summary(self) -> str:
        return self.turn.utterance.content or ""


class ChildEvent(Event, frozen=True, kw_only=True, tag="child"):
    """An event of a child, as readers of an entity above it get it.

    ``entity_id``, ``cast_id`` and ``depth`` are the child's. ``path`` has the ids of the entities from the reader's
    own child down to the child itself. ``calls`` has the ids of the gate calls that spawned each of them, so
    ``calls[0]`` is a call of the reader's entity. ``index`` is the child's place in a batch, None outside of one.
    """

    path: tuple[str, ...]
    calls: tuple[str, ...]
    inner: Any
    index: int | None = None

    @classmethod
    def above(cls, event: Event, child_id: str, call_id: str, index: int | None) -> ChildEvent:
        """The event of a child, or of a child of it, as a reader of the parent gets it."""
        if isinstance(event, ChildEvent):
            return msgspec.structs.replace(event, path=(child_id, *event.path), calls=(call_id, *event.calls))
        ids: dict[str, Any] = {"entity_id": event.entity_id, "cast_id": event.cast_id, "depth": event.depth}
        return cls(**ids, path=(child_id,), calls=(call_id,), inner=event, index=index)

    @property
    def call_id(self) -> str:
        """The gate call that spawned this child."""
        return self.calls[-1]


class ChildRejected(Event, frozen=True, kw_only=True, tag="child_rejected"):
    """A request for a child was refused. Nothing was spent on it, nor on any other child of its batch.

    ``call_id`` is the gate call, ``ward`` what refused it (a ward, or gate, medium, crystal, circle, call). ``index``
    is its place in a batch, None outside of one or where the fault is not in one place.
    """

    diagnostics: ClassVar = ("reason",)

    call_id: str
    ward: str
    reason: str
    index: int | None = None


class TurnEnded(Event, frozen=True, kw_only=True, tag="turn"):
    """A turn was written to the loom. It holds what the entity said and called, what came of each call, and the usage."""

    turn: Turn


class CastEnded(Event, frozen=True, kw_only=True, tag="result"):
    """The last event of a cast. ``record`` is what the loom keeps of its end, and ``loom`` where that is.

    As JSON, these fields of the record stand here: ``result``, ``terminated``, ``truncated``, ``reason``, ``usage`` (without
    that of its children), ``trace_id``, ``turns``, ``warnings``, and ``error`` without the name of its class.
    """

    record: CastRecord
    loom: str | None = None

    @property
    def error(self) -> str | None:
        """The text of the error, without the name of its class."""
        return self.record.error and _CLASS.sub("", self.record.error)


_CLASS = re.compile(r"\A\w+: ")


def as_json(event: Event) -> dict[str, Any]:
    """An event as plain data, as ``cantrip cast --json`` prints it. A record is merged with its event."""
    data: dict[str, Any]
    match event:
        case TurnEnded():
            record = msgspec.to_builtins(event.turn)
            record.pop("type", None)
            return {"event": "turn", **record}
        case Steered(record=sent):
            data = {"message_id": sent.id, "text": sent.text, "title": sent.title, "uri": sent.uri}
            data["attachment"] = sent.attachment
        case GateFinished(record=call):
            data = {"call_id": event.call_id, "gate": call.gate, "result": call.result, "is_error": call.is_error}
            data |= {"title": call.title or None, "locations": call.locations or (), "diffs": event.diffs}
            data |= {"via": call.parent_call_id or None, "attachments": call.attachments or ()}
            data["annotations"] = call.annotations or {}
        case CommandFinished(record=output):
            data = {"call_id": event.call_id, "exit_code": event.exit_code, "signal": signal_name(event.exit_code)}
            data |= {"truncated": output.truncated, "timed_out": output.timed_out is True, "error": output.error}
            shown = event.shortened
            data |= {"annotations": output.annotations or {}, "output": None if shown is None else shown.text}
            data |= {"styles": shown.changes} if shown is not None and shown.changes else {}
        case UsageReported():
            data = {"usage": event.usage.record(), "cumulative": event.cumulative.record()}
            data |= {"used": event.used, "size": event.size}
        case Folded(turn=turn):
            data = {"first": min(event.last, 1), "last": event.last, "summary": event.summary, "turn_id": turn.id}
        case CastEnded(record=end):
            data = {"result": end.result, "terminated": end.terminated, "truncated": end.truncated}
            data |= {"reason": end.reason, "usage": {k: v for k, v in end.usage.items() if k != "children"}}
            data |= {"trace_id": end.trace_id, "turns": end.turns, "loom": event.loom}
            data |= {"error": event.error, "warnings": end.warnings or ()}
        case ChildEvent():
            data = {"path": event.path, "calls": event.calls, "call_id": event.call_id, "index": event.index}
            data["inner"] = as_json(event.inner)
        case _:
            return typed("dict[str, Any]", msgspec.to_builtins(event))
    about = {name: getattr(event, name) for name in Event.__struct_fields__}
    return {"event": type(event).__struct_config__.tag, **msgspec.to_builtins(about | data)}
