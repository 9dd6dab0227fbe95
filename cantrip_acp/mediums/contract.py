"""The medium contract: what a medium must offer to a circle (§4.1, §4.6).

A medium is a description without state. `Medium.open` makes a session for one entity; the session keeps the state
that survives turns and casts. A session starts nothing before its first use, except by `SessionBase.warm`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from cantrip_acp.gates.contract import CircleView, Gate
    from cantrip_acp.gates.ports import TurnContext
    from cantrip_acp.types.messages import ToolCall, ToolDefinition
    from cantrip_acp.types.records import Output


@runtime_checkable
class MediumSession(Protocol):
    """The session of one entity.

    It may also have the members of `SessionBase`.
    """

    async def run(self, call: ToolCall, turn: TurnContext) -> Output:
        """Run one call of the medium's own tool. Expected failures are in the `Output`, not raised."""
        ...

    async def close(self) -> None:
        """End everything that the session started. Safe to call twice."""
        ...


class SessionBase:
    """The defaults for the optional members of a medium's session."""

    gained: Mapping[str, Gate] = MappingProxyType({})
    """The gates that were added, by name."""

    def gates_added(self, gates: Mapping[str, Gate]) -> None:
        """Make added gates callable at once. It is called with all of them each time the entity gains or loses gates besides
        its circle's."""

    def remark(self, text: str) -> None:
        """Show the entity a text before the output of its next program."""

    def so_far(self) -> Output | None:
        """The output of the running program since the last request. None if no program runs."""
        return None

    @property
    def sandbox_pid(self) -> int:
        """A process of the sandbox in which it runs a program now, as the host counts; 0 if none runs."""
        return 0

    async def warm(self) -> None:
        """Start everything that the first program needs."""


@runtime_checkable
class Medium(Protocol):
    """An environment to work in. ``tool`` is the name of its own tool, None if there are only gates (conversation).

    It may also have the members of `gates.ports.MediumBase`.
    """

    @property
    def name(self) -> str: ...

    @property
    def tool(self) -> str | None: ...

    def tools(self, circle: CircleView) -> tuple[ToolDefinition, ...]:
        """The tools that the crystal is offered on every query (CIRCLE-11)."""
        ...

    def presentation(self, circle: CircleView) -> str | None:
        """The capability block, a system message after the call's. None if tool definitions are enough."""
        ...

    async def open(self, circle: CircleView, entity_id: str) -> MediumSession:
        """Make a new session for one entity. Raises `SandboxMissing` if the medium cannot run here."""
        ...

    def code(self, call: ToolCall) -> str | None:
        """The program in a call of the medium's own tool; None if the arguments hold none."""
        ...

    def observe(self, output: Output) -> str:
        """An output as text for the crystal."""
        ...
