"""What happens in an entity, as a stream with back-pressure.

Events report and never steer (§7.4). A reader subscribes to an `EventHub` in one of two ways:

- **blocking** (the default): a bounded stream. A reader that stops reading stops the entity at its next event.
- **lossy**, by declaration: when its buffer is full, events are dropped and counted in `Subscription.dropped`.

Without a reader nothing is built and nothing is sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self

import anyio
import msgspec

from cantrip_acp.crystals.contract import Attachment
from cantrip_acp.loom.records.turn import Location as Location
from cantrip_acp.loom.records.turn import Turn
from cantrip_acp.text.json_data import freeze_record

if TYPE_CHECKING:
    from collections.abc import Iterator

    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

    from cantrip_acp.core.loop import CastRun


# --- Where a child comes from.


@dataclass(slots=True)
class Birth:
    """A child's place in its tree.

    ``run`` is the parent's cast that it works for, ``turn_id`` the turn that spawned it, ``call_id`` the gate call among
    events, ``index`` its place in a batch. ``number`` counts its parent's children from 0, in the order of their birth. A
    child that is asked again later (one that was summoned) works for the cast that asks: run, turn and call are then set anew.
    """

    run: CastRun
    turn_id: str
    call_id: str
    number: int = 0
    index: int | None = None


BUFFER = 64
"""Events that may wait for a blocking reader before the entity waits for it."""


class Diff(msgspec.Struct, frozen=True):
    """A change of one file. ``old_text`` is None where the file is new."""

    path: str
    old_text: str | None
    new_text: str


class PlanEntry(msgspec.Struct, frozen=True):
    """One step of a plan, with the words of ACP: ``priority`` high | medium | low, ``status`` pending | in_progress |
    completed."""

    content: str
    priority: str = "medium"
    status: str = "pending"


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag=str.lower):
    """What every event carries: whose it is, and in which cast. ``depth`` is 0 for the root entity of a tree."""

    entity_id: str
    cast_id: str
    depth: int = 0


class CastStarted(Event, frozen=True, kw_only=True, tag="cast"):
    intent: str
    trace_id: str


class QueryStarted(Event, frozen=True, kw_only=True, tag="query"):
    """A query is sent; ``message_id`` marks the pieces that will come of it. ``attempt`` counts from 1."""

    message_id: str
    attempt: int = 1


class Text(Event, frozen=True, kw_only=True, tag="text"):
    """A piece of the entity's words. Pieces with one ``message_id`` belong together."""

    delta: str
    message_id: str


class Thought(Event, frozen=True, kw_only=True, tag="thought"):
    """A piece of the entity's thinking."""

    delta: str
    message_id: str


class GateCalled(Event, frozen=True, kw_only=True, tag="gate_call"):
    """A gate was asked for. ``via`` is the id of the command or cell that asked, None for a direct call."""

    call_id: str
    gate: str
    args: Any
    kind: str = "other"
    title: str = ""
    locations: tuple[Location, ...] = ()
    via: str | None = None


class GateStarted(Event, frozen=True, kw_only=True, tag="gate_start"):
    """The gate is running: it was allowed, and its arguments fit."""

    call_id: str
    gate: str


class GateFinished(Event, frozen=True, kw_only=True, tag="gate_result"):
    """A gate has answered. ``annotations`` are those of its record (`GateRecord`)."""

    call_id: str
    gate: str
    result: Any
    is_error: bool = False
    title: str | None = None
    locations: tuple[Location, ...] = ()
    diffs: tuple[Diff, ...] = ()
    via: str | None = None
    attachments: tuple[Attachment, ...] = ()
    annotations: Mapping[str, Any] = {}


class PlanChanged(Event, frozen=True, kw_only=True, tag="plan"):
    """What the entity means to do: the whole list, which replaces the one before."""

    entries: tuple[PlanEntry, ...]


class CommandStarted(Event, frozen=True, kw_only=True, tag="command"):
    """The medium runs a command or a cell; ``tool`` is bash or python."""

    call_id: str
    command: str
    tool: str
    cwd: str | None = None


class CommandOutput(Event, frozen=True, kw_only=True, tag="command_output"):
    """A piece of output, cleaned for an editor: valid text without terminal control sequences.

    The value of a cell's last expression comes as a last line that begins with ``=>``.
    """

    call_id: str
    stream: Literal["stdout", "stderr"]
    data: str


class CommandFinished(Event, frozen=True, kw_only=True, tag="command_result"):
    """It has ended. ``exit_code`` of a cell is 0, or 1 where it failed. ``annotations`` are those of its output."""

    call_id: str
    exit_code: int | None
    signal: str | None = None
    truncated: bool = False
    timed_out: bool = False
    error: str | None = None
    annotations: Mapping[str, Any] = {}


class UsageReported(Event, frozen=True, kw_only=True, tag="usage"):
    """After a query: its usage, the entity's so far, and how full the crystal's window is (``size`` None: not known)."""

    usage: Mapping[str, Any]
    cumulative: Mapping[str, Any]
    used: int
    size: int | None


def seconds_words(seconds: float) -> str:
    """A wait as people read it: ``1.5 s``, ``42 s``, ``3 min 20 s``."""
    if seconds < 10:
        return f"{seconds:.1f}".removesuffix(".0") + " s"
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes:,} min" + (f" {rest} s" if rest else "")


class Voided(Event, frozen=True, kw_only=True, tag="void"):
    """What was streamed of an attempt is void: it broke off, or its answer could not be used. The next attempt has another id.

    ``message_id`` names the pieces, text and thinking. A reader that showed them removes or marks them. An attempt that streamed
    nothing has no such event. A `RetryScheduled` says when the model is asked again.
    """

    message_id: str
    attempt: int
    error: str


class RetryScheduled(Event, frozen=True, kw_only=True, tag="retry"):
    """A query failed and will be asked again; the pieces of ``message_id`` are void (D-006)."""

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
    """Something for the user that stops nothing, such as a server that could not be reached."""

    text: str


class Folded(Event, frozen=True, kw_only=True, tag="fold"):
    """Earlier turns were replaced by a summary in what the crystal sees; ``turn_id`` is the turn that tells of it."""

    first: int
    last: int
    summary: str
    turn_id: str


class ChildEvent(Event, frozen=True, kw_only=True, tag="child"):
    """An event of a child, as a reader of an entity above it hears it.

    ``entity_id``, ``cast_id`` and ``depth`` are the child's. ``path`` are the ids of the entities that lead to it, from the
    reader's own child down to the child itself, and ``calls`` the ids of the gate calls that spawned each of them, so
    that ``calls[0]`` is a call of the reader's entity. ``index`` is the child's place in a batch, None outside of one.
    """

    path: tuple[str, ...]
    calls: tuple[str, ...]
    inner: Any
    index: int | None = None

    @property
    def call_id(self) -> str:
        """The gate call that spawned this child."""
        return self.calls[-1]


class ChildRejected(Event, frozen=True, kw_only=True, tag="child_rejected"):
    """A child was asked for that may not be; nothing was spent on it, nor on any other of its batch.

    ``call_id`` is the gate call that asked, ``ward`` what refused it (a ward, or gate, medium, crystal, circle, call), ``index``
    its place in a batch, None outside of one or where no single place is to blame.
    """

    call_id: str
    ward: str
    reason: str
    index: int | None = None


class TurnEnded(Event, frozen=True, kw_only=True, tag="turn"):
    """A turn stands in the loom."""

    turn: Turn


class CastEnded(Event, frozen=True, kw_only=True, tag="result"):
    """The last event of a cast. ``warnings`` say which wards could not be enforced, or not exactly, and why."""

    result: Any
    terminated: bool
    truncated: bool
    reason: str
    usage: Mapping[str, Any]
    trace_id: str
    turns: int
    loom: str | None = None
    error: str | None = None
    warnings: tuple[str, ...] = ()


def as_json(event: Event) -> dict[str, Any]:
    """An event as plain data, as ``cantrip cast --json`` prints it: a turn's record stands flat beside ``event``."""
    if isinstance(event, TurnEnded):
        record = msgspec.to_builtins(event.turn)
        record.pop("type", None)
        return {"event": "turn", **record}
    if isinstance(event, ChildEvent):
        data: dict[str, Any] = {"event": "child", "entity_id": event.entity_id, "cast_id": event.cast_id}
        data |= {"depth": event.depth, "path": list(event.path), "calls": list(event.calls)}
        return data | {"call_id": event.call_id, "index": event.index, "inner": as_json(event.inner)}
    plain: dict[str, Any] = msgspec.to_builtins(event)
    return plain


class Subscription:
    """One reader's end. Iterate it; close it (or leave its ``with``) to stop reading without hurting the entity."""

    def __init__(self, hub: EventHub, buffer: float, lossy: bool) -> None:
        self._hub = hub
        self.lossy = lossy
        self.dropped = 0
        send, receive = anyio.create_memory_object_stream[Event](buffer)
        self._send: MemoryObjectSendStream[Event] = send
        self._receive: MemoryObjectReceiveStream[Event] = receive

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        # What waits is handed on without a trip through the event loop for each: streams of small pieces are several times
        # faster so, and readers can send them on together. No generator, which would outlive a reader that was cancelled.
        try:
            return self._receive.receive_nowait()
        except anyio.WouldBlock:
            pass
        except anyio.EndOfStream:
            raise StopAsyncIteration from None
        try:
            return await self._receive.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def receive(self) -> Event:
        """The next event; raises `anyio.EndOfStream` after the last one."""
        return await self._receive.receive()

    def close(self) -> None:
        """Stop reading. An entity that waits for this reader goes on."""
        self._hub._drop(self)
        self._receive.close()
        self._send.close()

    def finish(self) -> None:
        """No more events will come; what waits can still be read."""
        self._hub._drop(self)
        self._send.close()

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class EventHub:
    """Where an entity's events go out. Sending waits for every blocking reader."""

    __slots__ = ("_subscriptions", "active")

    def __init__(self) -> None:
        self._subscriptions: tuple[Subscription, ...] = ()
        self.active = False
        """Whether anybody listens: who builds events asks this first."""

    def subscribe(self, *, lossy: bool = False, buffer: int = BUFFER) -> Subscription:
        """A new reader; with ``lossy`` it never slows the entity and may miss events."""
        subscription = Subscription(self, buffer, lossy)
        self._subscriptions = (*self._subscriptions, subscription)
        self.active = True
        return subscription

    def _drop(self, subscription: Subscription) -> None:
        self._subscriptions = tuple(s for s in self._subscriptions if s is not subscription)
        self.active = bool(self._subscriptions)

    async def send(self, event: Event) -> None:
        """Hand an event to every reader; returns when each blocking one has room for it. No reader can change it."""
        if type(event) is not TurnEnded:
            # A turn cannot be changed from the start (`turnstate`).
            event = freeze_record(event)
        for subscription in self._subscriptions:
            try:
                subscription._send.send_nowait(event)
            except anyio.WouldBlock:
                if subscription.lossy:
                    subscription.dropped += 1
                    continue
                try:
                    await subscription._send.send(event)
                except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                    self._drop(subscription)
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                self._drop(subscription)

    @contextmanager
    def listening(self, *, lossy: bool = False, buffer: int = BUFFER) -> Iterator[Subscription]:
        """A subscription for the length of a ``with`` block."""
        subscription = self.subscribe(lossy=lossy, buffer=buffer)
        try:
            yield subscription
        finally:
            subscription.close()


class ChildHub(EventHub):
    """A child's hub: what goes out of it reaches the readers of all entities above, marked with its place in the tree.

    A parent's slow reader slows the child as it slows the parent.
    """

    __slots__ = ("_above", "_birth", "_entity_id")

    def __init__(self, birth: Birth, entity_id: str) -> None:
        self._birth = birth
        self._above = birth.run.entity.hub
        self._entity_id = entity_id
        super().__init__()

    @property
    def active(self) -> bool:
        return bool(self._subscriptions) or self._above.active

    @active.setter
    def active(self, value: bool) -> None:
        """It follows from who listens, here and above."""

    async def send(self, event: Event) -> None:
        if self._subscriptions:
            await super().send(event)
        if not self._above.active:
            return
        birth, me = self._birth, self._entity_id
        if isinstance(event, ChildEvent):
            marked = msgspec.structs.replace(event, path=(me, *event.path), calls=(birth.call_id, *event.calls))
        else:
            marked = ChildEvent(
                entity_id=event.entity_id,
                cast_id=event.cast_id,
                depth=event.depth,
                path=(me,),
                calls=(birth.call_id,),
                inner=event,
                index=birth.index,
            )
        await self._above.send(marked)
