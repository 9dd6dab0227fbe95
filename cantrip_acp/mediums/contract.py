"""The medium contract: what a circle's inside must offer (§4.1, §4.6).

A medium is a stateless description; `Medium.open` makes the session that one entity works in, and that session keeps
the state that survives turns and casts. A session starts nothing before it is first used, or told to by ``warm()``, which
it may have: then the first call finds running what it needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cantrip_acp.core.circle import Circle
    from cantrip_acp.core.context import ContextBlock
    from cantrip_acp.core.events import Event
    from cantrip_acp.core.wards import Wards
    from cantrip_acp.crystals.contract import ToolCall, ToolDefinition
    from cantrip_acp.loom.records.turn import GateRecord, Output


class TurnContext(Protocol):
    """What a medium may do while it runs one call of a turn."""

    @property
    def wards(self) -> Wards: ...

    @property
    def entity_id(self) -> str: ...

    @property
    def cast_id(self) -> str: ...

    @property
    def trace_id(self) -> str: ...

    @property
    def traceparent(self) -> str:
        """W3C trace context for what the medium starts (``TRACEPARENT`` in its environment)."""
        ...

    @property
    def depth(self) -> int: ...

    @property
    def finished(self) -> bool:
        """True once ``done`` succeeded: whatever still runs is ended at once (D-003)."""
        ...

    @property
    def listening(self) -> bool:
        """Whether anybody reads events; where not, there is no need to build them."""
        ...

    @property
    def context(self) -> Sequence[ContextBlock]:
        """What was given with the cast beside its intent."""
        ...

    @property
    def folded(self) -> int:
        """How many of the entity's turns, its first ones, a summary stands for in what the crystal sees."""
        ...

    def history(self, start: int, count: int) -> tuple[int, list[Any]]:
        """How many turns the entity has behind it, and up to ``count`` of them from ``start`` as plain data (LOOM-11)."""
        ...

    async def gate(self, name: str, args: Mapping[str, Any] | str, *, via: str | None = None) -> GateRecord:
        """Call a gate through the executor. The record is in the turn already when this returns."""
        ...

    async def emit(self, event: Event) -> None:
        """Report something; waits while a blocking reader is slow."""
        ...

    def interrupted(self, output: Output) -> None:
        """Say what there was when a cancel came; called from cleanup, before the cancellation is raised on."""
        ...


@runtime_checkable
class MediumSession(Protocol):
    """One entity's inside.

    A session may also have ``gates_gained(gates)``: it is told each time when the entity has gained or lost gates beside
    its circle's, with all that it has gained, and makes them callable at once.
    """

    async def run(self, call: ToolCall, turn: TurnContext) -> Output:
        """Run one call of the medium's own tool. Expected failures are in the `Output`, not raised."""
        ...

    async def close(self) -> None:
        """End everything that the session started; safe to call twice."""
        ...


@runtime_checkable
class Medium(Protocol):
    """A substrate to work in. ``tool`` is the name of its own tool, None where gates are all there is (conversation).

    A medium may also have a ``tag``, with ``arguments(program) -> str``: a crystal in text-call mode may then give a program
    as a code block with that tag, and ``arguments`` makes the arguments of a tool call of it (`mediums.text_program`).
    With ``has_values`` true children can be made of values in it (`delegation.construction`).
    With ``keeps_state`` true its sessions have ``chunks``, ``snapshot()`` and ``restore(snapshot, chunks)``, for forks; with
    ``remembers_folds`` true they offer the turns that were folded (`TurnContext.folded`) as a variable.
    """

    @property
    def name(self) -> str: ...

    @property
    def tool(self) -> str | None: ...

    def tools(self, circle: Circle) -> tuple[ToolDefinition, ...]:
        """What the crystal is offered on every query (CIRCLE-11)."""
        ...

    def presentation(self, circle: Circle) -> str | None:
        """The capability block, a system message of its own after the call's; None where tool definitions alone serve."""
        ...

    async def open(self, circle: Circle, entity_id: str) -> MediumSession:
        """A fresh session for one entity. Raises `SandboxMissing` where the medium cannot run here."""
        ...

    def code(self, call: ToolCall) -> str | None:
        """The program in a call of the medium's own tool; None where the arguments hold none."""
        ...

    def observe(self, output: Output) -> str:
        """An output as the crystal reads it."""
        ...
