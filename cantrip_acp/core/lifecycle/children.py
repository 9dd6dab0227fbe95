"""Counts an entity's children and limits them: how many in all, how many at once, and when they end (COMP-6, COMP-9)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from cantrip_acp.types.errors import ChildRefused

if TYPE_CHECKING:
    from cantrip_acp.core.state import EntityState
    from cantrip_acp.gates.wards import Wards
    from cantrip_acp.types.context_block import ContextBlock


def limiter(entity: EntityState) -> anyio.CapacityLimiter:
    """The limiter that each running child holds a place of (``max_concurrent_children``)."""
    children = entity.children
    if children.limiter is None:
        children.limiter = anyio.CapacityLimiter(entity.circle.wards.max_concurrent_children)
    return children.limiter


def set_wards(entity: EntityState, wards: Wards, note: ContextBlock | None) -> None:
    """Note the new wards in running children at once, because restrictions of an entity apply to everything below it.
    ``note`` tells the children."""
    children = entity.children
    if children.limiter is not None:
        children.limiter.total_tokens = wards.max_concurrent_children
    for child in (*children.persistent.values(), *children.running):
        child.set_wards(wards, note)


async def dismiss(entity: EntityState, child_id: str) -> None:
    """End a persistent child. Does nothing if there is none with that id."""
    child = entity.children.persistent.pop(child_id, None)
    if child is not None:
        await child.close()


async def close_all(entity: EntityState) -> None:
    """End all persistent children concurrently."""
    children, entity.children.persistent = list(entity.children.persistent.values()), {}
    if children:
        with anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as group:
                for child in children:
                    group.start_soon(child.close)


def admit(entity: EntityState, count: int, *, again: bool = False) -> int:
    """Count more children, for this entity and all above it. Returns the number of the first new child, from 0.

    ``again``: it is one more cast of an existing child.

    Raises `ChildRefused`, and counts nothing, if one of these entities reaches its limit (``max_children_total``).
    """
    for each in check_limit(entity, count):
        each.children.descendants += count
    first = entity.children.count
    if not again:
        entity.children.count += count
    return first


def check_limit(entity: EntityState, count: int) -> list[EntityState]:
    """Return the entity and all above it. Raises `ChildRefused` if one of them may not have ``count`` more children."""
    line = [entity]
    while (link := line[-1].parent) is not None:
        line.append(link.cast.entity)
    for each in line:
        most = each.circle.wards.max_children_total
        so_far = each.children.descendants
        if most is not None and so_far + count > most:
            whose = "this entity" if each is entity else "an entity above this one"
            raise ChildRefused(
                "max_children_total",
                f"child refused by max_children_total: {whose} may have {most} children in all, counting the children of "
                f"its children, and {so_far} were started"
                + (f"; this call asks for {count} more" if count > 1 else ""),
            )
    return line
