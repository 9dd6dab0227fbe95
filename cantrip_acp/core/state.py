"""The data of an entity and of its running cast, which the loop, folding, forks and delegation work on.

`core.entity.Entity` is an `EntityState` that can cast; `core.casting.loop.CastRun` owns a `CastState`. A child refers to its
parent's cast by a `ParentLink`, so usage and limits can be followed up the tree.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import anyio

from cantrip_acp.core.casting.query_digest import SentQueries
from cantrip_acp.core.casting.request_graph import RequestGraph
from cantrip_acp.core.casting.sampled_tokens import TokenLog
from cantrip_acp.core.context import Context
from cantrip_acp.core.event_hub import ChildHub, EventHub
from cantrip_acp.core.history.recorded_circle import RecordedCircles
from cantrip_acp.core.lifecycle.sources import SourceConnections
from cantrip_acp.core.running_calls import RunningCalls
from cantrip_acp.mediums.text_program import writes_calls
from cantrip_acp.types.messages import RequestParameters, ToolCall
from cantrip_acp.types.records import SentQuery, Turn, VoidedAttempt, new_id
from cantrip_acp.types.usage import NO_USAGE, Usage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from contextlib import AbstractAsyncContextManager

    from cantrip_acp.core.casting.result import CastResult
    from cantrip_acp.core.definition.cantrip_definition import CantripDefinition
    from cantrip_acp.core.definition.circle import Circle
    from cantrip_acp.gates.contract import Gate
    from cantrip_acp.gates.wards import Wards
    from cantrip_acp.loom.loom import Loom
    from cantrip_acp.telemetry.tracing import Trace
    from cantrip_acp.types.context_block import ContextBlock
    from cantrip_acp.types.events import Event
    from cantrip_acp.types.records import Location

WardsOf: TypeAlias = "Callable[[Circle], Wards | None]"
"""Wards that depend on the gates of a circle."""


@dataclass(slots=True)
class ParentLink:
    """A child's place in its tree.

    ``cast`` is the parent's cast that the child works for, ``turn_id`` the turn that spawned it, ``call_id`` the gate
    call in events, ``index`` its place in a batch. ``number`` counts the parent's children from 0, in order of
    creation. ``called``: the child is cast only once and then closed.
    A persistent child that is cast again works for the cast that asks: cast, turn and call are then replaced.
    """

    cast: CastState
    turn_id: str
    call_id: str
    number: int = 0
    index: int | None = None
    called: bool = False


class ChildEntity(Protocol):
    """A child entity as its parent uses it (`core.entity.Entity`)."""

    @property
    def id(self) -> str: ...

    @property
    def parent(self) -> ParentLink | None: ...

    @property
    def last_turn(self) -> str: ...

    @property
    def busy(self) -> bool: ...

    async def cast(self, intent: str, *, trace: Trace | None = None) -> CastResult: ...

    def set_wards(self, wards: Wards | WardsOf | None, note: ContextBlock | None = None) -> None: ...

    async def close(self) -> None: ...


class FileCheckpoints(Protocol):
    """Keeps the files of each turn (`core.lifecycle.checkpoints`)."""

    async def before_calls(self, calls: tuple[ToolCall, ...], circle: Circle) -> None: ...

    def call(
        self, gate: Gate, circle: Circle, locations: Iterable[Location]
    ) -> AbstractAsyncContextManager[Callable[[Iterable[str]], None]]: ...

    def program(self, text: str, circle: Circle) -> AbstractAsyncContextManager[None]: ...

    async def store(self, turn: Turn, circle: Circle) -> None: ...


@dataclass(slots=True)
class Children:
    """The children of one entity (`core.lifecycle.children`). ``count`` counts its own children, ``descendants`` all below it."""

    count: int = 0
    descendants: int = 0
    persistent: dict[str, ChildEntity] = field(default_factory=dict)
    """Persistent children that have not been dismissed, by id."""
    running: set[ChildEntity] = field(default_factory=set)
    """Children that were called and have not answered."""
    limiter: anyio.CapacityLimiter | None = None
    """Each running child holds a place of it (``max_concurrent_children``). Made with the first child."""


_FIXED = frozenset(("id", "cantrip", "circle", "crystal", "loom", "hub", "depth"))
"""The fields that only methods of the entity change (`Entity.set_wards`, `Entity.use_crystal`), because these also notify the
loom and the crystal."""
_OF_CANTRIP = frozenset(("call", "retry", "folding"))
"""What the entity's cantrip has, and the entity has not: setting it there would change nothing."""


class EntityState:
    """What one entity is and has done so far. Only the entity and its casts change it."""

    def __init__(
        self,
        cantrip: CantripDefinition,
        loom: Loom,
        *,
        entity_id: str | None = None,
        parent: ParentLink | None = None,
    ) -> None:
        """``parent`` links a child to its parent. An entity without one is the root of its tree."""
        above = None if parent is None else parent.cast.entity
        self.id = entity_id or new_id("e")
        """The id of the entity, which its turns and casts name."""
        self.cantrip = cantrip
        """The cantrip, with the gates that its sources added."""
        self.circle = cantrip.circle
        """The circle with the wards that are in force now."""
        self.crystal = cantrip.crystal
        """The model that answers the next query."""
        self.loom = loom
        self.parent = parent
        self.depth: int = 0 if above is None else above.depth + 1
        """0 for the root of the tree of entities, 1 for its children, and so on."""
        self.hub: EventHub = EventHub() if parent is None or above is None else ChildHub(above.hub, parent, self.id)
        """Where the events of this entity and its children go."""
        self.context = self._new_context()
        """The messages of the next query."""
        self.usage = NO_USAGE
        """The usage of all casts so far (PROD-3)."""
        self.sequence = 0
        """The number of the last turn: 0 before the first one."""
        self.last_turn = ""
        """The id of the last turn, from which the next one continues."""
        self.last_cast = ""
        """The cast whose intent is the last one in the context, if it began in this process."""
        self.token_log = TokenLog()
        self.sent_queries = SentQueries()
        self.requests: RequestGraph = RequestGraph(None if above is None else above.requests)
        self.checkpoints: FileCheckpoints | None = None if above is None else above.checkpoints
        """Keeps the files of this tree of entities; None if they are not kept."""
        self.running_calls: RunningCalls = RunningCalls() if above is None else above.running_calls
        """The running calls of this tree of entities."""
        self.running: CastState | None = None
        """The running cast."""
        self.children = Children()
        self.sources = SourceConnections(cantrip.sources if parent is None else ())
        """The gate sources (MCP servers), which are connected before the first turn."""
        self.closed = False
        self.note: ContextBlock | None = None if above is None else above.note
        """The note for the entity about the wards in force (`Entity.set_wards`). Its ``uri`` begins with `WARDS`."""
        self.known_note: str | None = None if self.note is None else self.note.uri
        """The ``uri`` of the note that held before it was told of any."""

    if not TYPE_CHECKING:

        def __setattr__(self, name: str, value: object) -> None:
            if name in _OF_CANTRIP or (name in _FIXED and hasattr(self, name)):
                raise AttributeError(f"{name} of an entity is to be read, not set")
            object.__setattr__(self, name, value)

    def _change(self, **fields: object) -> None:
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def _new_context(self) -> Context:
        by_text = writes_calls(self.crystal)
        return Context(self.cantrip.call, self.circle, text_calls=by_text, recorded=RecordedCircles(self.loom))

    @property
    def busy(self) -> bool:
        """Whether a cast is running."""
        return self.running is not None

    @property
    def due_note(self) -> ContextBlock | None:
        """The note on wards that the entity has not read yet; None if its last note is still right."""
        told = self.context.told or self.known_note
        return self.note if self.note is not None and self.note.uri != told else None

    @property
    def require_done(self) -> bool:
        """Whether the cantrip's call or the wards in force require ``done`` to complete a cast (LOOP-6)."""
        return self.cantrip.require_done or self.circle.wards.require_done_tool

    @property
    def ends_when_cut(self) -> bool:
        """Whether this entity ends if its running cast is cut off now. Its medium's state is not needed then.

        This is true for a child that is cast once, and for any child that is cut off by an entity above it.
        """
        if self.parent is None:
            return False
        return self.parent.called or (self.running is not None and not self.running.scope.cancel_called)

    def write_root(self) -> None:
        """Write the call to the loom as this entity's root, unless it is there (CALL-4). A child's root hangs on the turn
        that spawned it."""
        if not self.last_turn:
            call, circle = self.cantrip.records
            above = self.parent.turn_id if self.parent is not None else None
            self.last_turn = self.loom.begin(self.cantrip.id, call, circle, self.id, self.cantrip.shown, above=above)


@dataclass(slots=True, eq=False)
class SteeringMessage:
    """A message for a running cast. Its blocks may change until it is delivered."""

    blocks: tuple[ContextBlock, ...]
    delivered: bool = False
    """Whether the message is in the loom and in the crystal's messages. A cast that ends before its next query does not
    deliver it: the caller then decides what to do with it."""
    message_id: str = ""
    """The id of the record with its text, once it is delivered."""


@dataclass(slots=True)
class Spent:
    """What a cast has used up so far. Limits are compared with it (`casting.ward_limits`), and `casting.spending` counts it."""

    usage: Usage = NO_USAGE
    """With the usage of all its children."""
    children_usage: Usage | None = None
    """The children's part of that usage; None if there were no children."""
    estimated: int = 0
    """Estimated tokens of queries whose usage is unknown, including children's."""
    unpriced: dict[str, None] = field(default_factory=dict)
    """The models that reported no cost."""
    before: Usage = NO_USAGE
    """The usage of the casts that this one continues."""
    queries: int = 0
    """With those of the casts that this one continues."""

    @property
    def tokens(self) -> int:
        """The count for `max_total_tokens`: tokens that providers reported, plus an estimate for the others."""
        return (self.usage.total_tokens or 0) + (self.before.total_tokens or 0) + self.estimated

    @property
    def cost(self) -> float:
        """The known cost for `max_cost_usd`, in US dollars."""
        return (self.usage.cost or 0.0) + (self.before.cost or 0.0)


@dataclass(slots=True)
class RunningQuery:
    """The query that waits for its response, or that the running turn has the response of."""

    sent: SentQuery | None = None
    """What the record says about it."""
    extra_usage: Usage = NO_USAGE
    """Its usage besides the response: failed attempts, and answers that broke the contract."""
    voided: list[VoidedAttempt] = field(default_factory=list)
    """The attempts that broke off, with their streamed text."""


@dataclass(slots=True, eq=False)
class CastState:
    """One cast of an entity while it runs: what it was asked, what it spent, and how to stop it."""

    id: str
    entity: EntityState
    intent: str
    trace: Trace
    blocks: Sequence[ContextBlock] = ()
    parameters: RequestParameters | None = None
    """The call's parameters, or None if it sets none."""
    spent: Spent = field(default_factory=Spent)
    query: RunningQuery = field(default_factory=RunningQuery)
    turns: int = 0
    """The number of its turns in the loom."""
    steering: list[SteeringMessage] = field(default_factory=list)
    """Messages of the user that wait for the next query."""
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    stop_reason: str | None = None
    """Why the scope was cancelled, if it was. Set it before cancelling."""

    @property
    def ids(self) -> dict[str, Any]:
        """The fields that all events of this cast have."""
        return {"entity_id": self.entity.id, "cast_id": self.id, "depth": self.entity.depth}

    async def report(self, event: Callable[..., Event], **about: Any) -> None:
        """Send an event of this cast, if anybody reads events. ``about`` are its fields beside `ids`."""
        if self.entity.hub.active:
            await self.entity.hub.send(event(**about, **self.ids))

    def cancel(self, reason: str) -> None:
        """Stop the cast. The first reason counts."""
        if self.stop_reason is None:
            self.stop_reason = reason
        self.scope.cancel()
