"""The medium contract: what a medium must offer to a circle (§4.1, §4.6).

A medium is a description without state. `Medium.open` makes a session for one entity; the session keeps the state
that survives turns and casts. A session starts nothing before its first use. If it has a method ``warm()``, that
method starts what the first call needs ahead of it.
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
    """What a medium can use while it runs one call of a turn."""

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
        """W3C trace context for processes that the medium starts (``TRACEPARENT`` in their environment)."""
        ...

    @property
    def depth(self) -> int: ...

    @property
    def finished(self) -> bool:
        """True once ``done`` succeeded: whatever still runs is ended at once (D-003)."""
        ...

    @property
    def listening(self) -> bool:
        """Whether there is any reader of events. Without one, events need not be built."""
        ...

    @property
    def context(self) -> Sequence[ContextBlock]:
        """The context blocks that came with the cast."""
        ...

    @property
    def folded(self) -> int:
        """How many of the entity's first turns a summary replaces in what the crystal sees."""
        ...

    def history(self, start: int, count: int) -> tuple[int, list[Any]]:
        """The number of the entity's earlier turns, and up to ``count`` of them from ``start`` as plain data
        (LOOM-11).
        """
        ...

    async def gate(self, name: str, args: Mapping[str, Any] | str, *, via: str | None = None) -> GateRecord:
        """Call a gate through the executor. When this returns, the record is already in the turn."""
        ...

    async def emit(self, event: Event) -> None:
        """Send an event; waits while a blocking reader is slow."""
        ...

    def interrupted(self, output: Output) -> None:
        """Report the output so far when a cancel came.

        Call it during cleanup, before the cancellation is raised again.
        """
        ...


@runtime_checkable
class MediumSession(Protocol):
    """The session of one entity.

    A session may also have ``gates_gained(gates)``. It is called with all added gates each time the entity gains or
    loses gates besides its circle's, and must make them callable at once.
    """

    async def run(self, call: ToolCall, turn: TurnContext) -> Output:
        """Run one call of the medium's own tool. Expected failures are in the `Output`, not raised."""
        ...

    async def close(self) -> None:
        """End everything that the session started. Safe to call twice."""
        ...


@runtime_checkable
class Medium(Protocol):
    """An environment to work in. ``tool`` is the name of its own tool, None if there are only gates (conversation).

    Optional attributes:
    - ``tag``, with ``arguments(program) -> str``: a crystal in text-call mode may give a program as a code block with
      that tag; ``arguments`` makes the tool call's arguments of it (`mediums.text_program`).
    - ``has_values`` true: its code can make children from values (`delegation.child_values`).
    - ``keeps_state`` true: its sessions have ``chunks``, ``snapshot()`` and ``restore(snapshot, chunks)``, for forks.
    - ``remembers_folds`` true: its sessions offer the folded turns (`TurnContext.folded`) as a variable.
    """

    @property
    def name(self) -> str: ...

    @property
    def tool(self) -> str | None: ...

    def tools(self, circle: Circle) -> tuple[ToolDefinition, ...]:
        """The tools that the crystal is offered on every query (CIRCLE-11)."""
        ...

    def presentation(self, circle: Circle) -> str | None:
        """The capability block, a system message after the call's. None if tool definitions are enough."""
        ...

    async def open(self, circle: Circle, entity_id: str) -> MediumSession:
        """Make a new session for one entity. Raises `SandboxMissing` if the medium cannot run here."""
        ...

    def code(self, call: ToolCall) -> str | None:
        """The program in a call of the medium's own tool; None if the arguments hold none."""
        ...

    def observe(self, output: Output) -> str:
        """An output as text for the crystal."""
        ...
