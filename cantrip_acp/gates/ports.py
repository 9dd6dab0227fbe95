"""Ports: what lower parts (gates, mediums, events) may use of the parts above them, as protocols.

`gates.contract` has two more that need `Gate`: `CircleView` and `GateRegistrar`.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cantrip_acp.gates.wards import Wards
    from cantrip_acp.sandbox import Sandbox
    from cantrip_acp.types.context_block import ContextBlock
    from cantrip_acp.types.events import Event
    from cantrip_acp.types.records import GateRecord, Output


Network: TypeAlias = "Sandbox"
"""A sandbox whose network others join."""


class MediumView(Protocol):
    """The part of a circle's medium that gates may use."""

    @property
    def name(self) -> str: ...

    @property
    def tool(self) -> str | None:
        """The name of the medium's own tool; None if there are only gates."""
        ...


class MediumBase:
    """The defaults for the optional members of a medium."""

    tag: str | None = None
    """With ``arguments(program) -> str``: a crystal in text-call mode may give a program as a code block with that tag;
    ``arguments`` makes the tool call's arguments of it (`mediums.text_program`)."""
    has_values: bool = False
    """Whether code in the medium can make children from values (`core.delegation.child_values`)."""
    keeps_state: bool = False
    """Whether the medium's sessions have ``chunks``, ``snapshot()`` and ``restore(snapshot, chunks)``, for forks."""
    remembers_folds: bool = False
    """Whether the medium's sessions offer the folded turns (`TurnContext.folded`) as a variable."""
    options: Mapping[str, Any] = MappingProxyType({})
    """The options that differ from the medium's defaults, by the keys of a recipe: the loom records them."""


class ProgramReport(Protocol):
    """Reports a program of the medium to readers."""

    async def end(self, output: Output) -> Output:
        """Send the end event. Returns the output as the loom keeps it."""
        ...


class TurnContext(Protocol):
    """The current turn, as a medium or a gate sees it."""

    @property
    def wards(self) -> Wards: ...

    @property
    def entity_id(self) -> str: ...

    @property
    def cast_id(self) -> str: ...

    @property
    def trace_id(self) -> str: ...

    def shared_network(self) -> Network | None:
        """The sandbox whose network programs join: that of the entity's services. None while it has none."""
        ...

    @property
    def traceparent(self) -> str:
        """W3C trace context for processes that the medium starts (``TRACEPARENT`` in their environment)."""
        ...

    @property
    def depth(self) -> int: ...

    @property
    def ends_when_cut(self) -> bool:
        """Whether the entity ends if this turn is cut off now. Then nobody needs its medium's state any more."""
        ...

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

    async def gate(
        self, name: str, args: Mapping[str, Any] | str, *, via: str | None = None, own: Any = None
    ) -> GateRecord:
        """Call a gate through the executor. When this returns, the record is already in the turn.

        ``own``: the `Gate`, if it is one of the medium that the circle does not declare.
        """
        ...

    async def emit(self, event: Event) -> None:
        """Send an event; waits while a blocking reader is slow."""
        ...

    def interrupted(self, output: Output, report: ProgramReport) -> None:
        """Report the output so far when a cancel came. ``report`` sends the end event, when the turn is written.

        Call it during cleanup, before the cancellation is raised again.
        """
        ...
