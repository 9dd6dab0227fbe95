"""Gates that are not known until something outside was reached: the tools of servers, for one.

A cantrip names its sources; an entity reaches them once, before its first turn, and from then on its circle has their gates
as it has its own. They end with the entity.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import anyio

from cantrip_acp.core.errors import DefinitionError

if TYPE_CHECKING:
    from cantrip_acp.core.circle import Circle
    from cantrip_acp.gates.contract import Gate


class Opened(Protocol):
    """What a source gave: ``gates``, and ``problems`` in words for the user. `close` ends it; safe to call twice."""

    gates: list[Gate]
    problems: list[str]

    async def close(self) -> None: ...


class GateSource(Protocol):
    """Something to be reached for an entity; a value, which any number of entities may open."""

    async def open(self, circle: Circle) -> Opened:
        """Reach it within a time of its own. Raises `CantripError` where the entity cannot do without."""
        ...


class Reached:
    """One entity's sources, reached at most once."""

    def __init__(self, sources: Sequence[GateSource]) -> None:
        self._sources = sources
        self._lock = anyio.Lock()
        self._opened: list[Opened] = []
        self._done = not sources
        self.problems: list[str] = []
        """What the user has not been told yet."""

    async def circle(self, circle: Circle) -> Circle | None:
        """The circle with what its sources give; None where there is nothing to add, or it was added before.

        Cancelled, it has reached nothing, and the next call begins again.
        """
        if self._done:
            return None
        async with self._lock:
            if self._finished():
                return None
            opened: list[Opened] = []
            try:
                for source in self._sources:
                    opened.append(await source.open(circle))
                more = [gate for found in opened for gate in found.gates]
                problems = [problem for found in opened for problem in found.problems]
                larger, twice = _with(circle, more)
            except BaseException:
                with anyio.CancelScope(shield=True):
                    for found in opened:
                        await found.close()
                raise
            self._opened, self._done = opened, True
            self.problems += problems + twice
            return larger

    def _finished(self) -> bool:
        """Asked anew: it may have become true while others were waited for."""
        return self._done

    def told(self) -> list[str]:
        """The problems that nobody was told of yet; whoever takes them tells them."""
        problems, self.problems = self.problems, []
        return problems

    async def close(self) -> None:
        """End them. Safe to call twice."""
        self._done = True
        while self._opened:
            await self._opened.pop().close()


def _with(circle: Circle, gates: Sequence[Gate]) -> tuple[Circle | None, list[str]]:
    """The circle with more gates, and in words which of them could not be added; its own are never replaced."""
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
