"""Child tracker: counts an entity's children, and limits how many run at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from cantrip_acp.core.errors import ChildRefused

if TYPE_CHECKING:
    from cantrip_acp.core.entity import Entity
    from cantrip_acp.core.wards import Wards


class Children:
    """The children of one entity. ``born`` counts its own children, ``below`` all its descendants."""

    def __init__(self, entity: Entity) -> None:
        self._entity = entity
        self.born = 0
        self.below = 0
        self.living: dict[str, Entity] = {}
        """Persistent children that have not been dismissed, by id."""
        self.at_work: set[Entity] = set()
        """Children that were called and have not answered."""
        self._at_once: anyio.CapacityLimiter | None = None

    @property
    def at_once(self) -> anyio.CapacityLimiter:
        """The limiter that each running child holds a place of (``max_concurrent_children``)."""
        if self._at_once is None:
            self._at_once = anyio.CapacityLimiter(self._entity.circle.wards.max_concurrent_children)
        return self._at_once

    def hold_to(self, wards: Wards) -> None:
        """Apply new wards to running children at once: what restricts an entity restricts all below it."""
        if self._at_once is not None:
            self._at_once.total_tokens = wards.max_concurrent_children
        for child in (*self.living.values(), *self.at_work):
            child.hold_to(wards)

    async def dismiss(self, child_id: str) -> None:
        """End a persistent child. Does nothing if there is none with that id."""
        child = self.living.pop(child_id, None)
        if child is not None:
            await child.close()

    async def end(self) -> None:
        """End all persistent children concurrently."""
        children, self.living = list(self.living.values()), {}
        if children:
            with anyio.CancelScope(shield=True):
                async with anyio.create_task_group() as group:
                    for child in children:
                        group.start_soon(child.close)

    def admit(self, count: int, *, again: bool = False) -> int:
        """Count more children, for this entity and all above it. Returns the number of the first new child, from 0.

        ``again``: it is one more cast of an existing child.

        Raises `ChildRefused`, and counts nothing, if one of these entities reaches its limit
        (``max_children_total``).
        """
        line = self.check(count)
        for entity in line:
            entity.children.below += count
        first, self.born = self.born, self.born + (0 if again else count)
        return first

    def check(self, count: int) -> list[Entity]:
        """This entity and all above it. Raises `ChildRefused` if one of them may not have that many more children."""
        line = [self._entity]
        while (birth := line[-1].birth) is not None:
            line.append(birth.run.entity)
        for entity in line:
            most = entity.circle.wards.max_children_total
            there = entity.children.below
            if most is not None and there + count > most:
                whose = "this entity" if entity is self._entity else "an entity above this one"
                raise ChildRefused(
                    "max_children_total",
                    f"child refused by max_children_total: {whose} may have {most} children in all, those of its children "
                    f"among them, and has had {there}" + (f"; {count} more were asked for" if count > 1 else ""),
                )
        return line
