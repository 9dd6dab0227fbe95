"""Gate sources: gates that are known only after a connection, such as the tools of MCP servers.

A cantrip names its sources. An entity opens them once, before its first turn; then their gates are part of its
circle. They are closed with the entity.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import anyio

from cantrip_acp.types.errors import DefinitionError

if TYPE_CHECKING:
    from cantrip_acp.core.definition.circle import Circle
    from cantrip_acp.gates.contract import Gate, GateSource, OpenedSource


class SourceConnections:
    """The sources of one entity, opened at most once."""

    def __init__(self, sources: Sequence[GateSource]) -> None:
        self.given = sources
        self._lock = anyio.Lock()
        self._opened: list[OpenedSource] = []
        self.connected = not sources
        """Whether the sources are connected, or there are none."""
        self.problems: tuple[str, ...] = ()
        """The problems of sources that cannot be used. Each cast of the entity has them as warnings."""
        self._unseen: list[str] = []

    def listed(self) -> list[tuple[GateSource, OpenedSource | None]]:
        """The sources, each with its opened form, or None before they are connected."""
        opened: Sequence[OpenedSource | None] = self._opened or [None] * len(self.given)
        return list(zip(self.given, opened, strict=False))

    async def connect(self, circle: Circle) -> Circle | None:
        """The circle with the gates of its sources; None if there is nothing to add, or it was added before.

        If cancelled, nothing is opened, and the next call starts again.
        """
        if self.connected:
            return None
        async with self._lock:
            if self._is_done():
                return None
            opened: list[OpenedSource] = []
            try:
                for source in self.given:
                    opened.append(await source.open(circle))
                more = [gate for found in opened for gate in found.gates]
                problems = [problem for found in opened for problem in found.problems]
                larger, duplicates = _add_gates(circle, more)
            except BaseException:
                with anyio.CancelScope(shield=True):
                    for found in opened:
                        await found.close()
                raise
            self._opened, self.connected = opened, True
            self.problems = (*problems, *duplicates)
            self._unseen += self.problems
            return larger

    def _is_done(self) -> bool:
        """Read the flag again, because it may have changed while we waited for the lock."""
        return self.connected

    def take_problems(self) -> list[str]:
        """Return the unseen problems and clear them; the caller must show them."""
        problems, self._unseen = self._unseen, []
        return problems

    async def close(self) -> None:
        self.connected = True
        while self._opened:
            await self._opened.pop().close()


def _add_gates(circle: Circle, gates: Sequence[Gate]) -> tuple[Circle | None, list[str]]:
    """The circle with more gates, and messages about gates that could not be added. Existing gates are never
    replaced."""
    taken = {gate.name for gate in circle.declared_gates}
    added: list[Gate] = []
    problems: list[str] = []
    for gate in gates:
        if gate.name in taken:
            problems.append(f"the gate {gate.name} was left out: the circle has one of that name")
            continue
        taken.add(gate.name)
        added.append(gate)
    try:
        return (circle.replace(gates=(*circle.own_gates, *added)) if added else None), problems
    except DefinitionError as error:
        return None, [*problems, f"the gates of servers could not be added: {error}"]
