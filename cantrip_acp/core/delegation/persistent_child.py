"""Persistent children: a child that keeps its state from one intent to the next, at most until its parent ends.

It is cast in the task of the call that sends it an intent. A cancelled call ends its child, and a cancelled cast of
the parent ends all its children (COMP-9).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from cantrip_acp.core.delegation import run_child
from cantrip_acp.core.delegation.child_cantrip import cantrip_of
from cantrip_acp.core.delegation.run_child import report_refusal
from cantrip_acp.core.entity import Entity
from cantrip_acp.core.lifecycle import children
from cantrip_acp.core.state import ParentLink
from cantrip_acp.types.errors import ChildRefused, GateError

if TYPE_CHECKING:
    from cantrip_acp.core.casting.result import CastResult
    from cantrip_acp.core.casting.turn_builder import TurnBuilder
    from cantrip_acp.core.delegation.request import Request


async def summon(turn: TurnBuilder, request: Request, call_id: str) -> Entity:
    """Make a child that waits for its first intent. Until then it is not in the loom. Raises `ChildRefused`."""
    parent = turn.entity
    persistent = parent.children.persistent
    most = parent.circle.wards.max_concurrent_children
    if len(persistent) >= most:
        # Each one may hold a process and its memory.
        full = ChildRefused(
            "max_concurrent_children",
            f"child refused by max_concurrent_children: {len(persistent)} summoned children live already, and {most} may; "
            "dismiss one first, or use cast for what needs no state",
        )
        await report_refusal(full, turn, call_id)
        raise full
    (planned,) = await run_child.plan_children(turn, [request], call_id)
    link = ParentLink(turn.cast, turn.id, call_id, planned.number)
    child = Entity(cantrip_of(parent, planned.judged, planned.number), parent.loom, parent=link)
    persistent[child.id] = child
    return child


async def send(turn: TurnBuilder, child_id: str, intent: str, call_id: str) -> CastResult:
    """Cast a persistent child once more. Raises `GateError` if it does not exist, is busy or has failed.

    Raises `ChildRefused` if ``max_children_total`` is used up: each cast of a child counts.
    """
    parent = turn.entity
    child = parent.children.persistent.get(child_id)
    if child is None:
        known = ", ".join(parent.children.persistent) or "none"
        raise GateError(
            f"there is no child {child_id!r} here: it was dismissed, its cast was stopped, or it belongs to another "
            f"entity (open: {known})",
            "summon another",
        )
    link = child.parent
    assert link is not None
    if child.last_turn:
        try:
            children.admit(parent, 1, again=True)
        except ChildRefused as why:
            await report_refusal(why, turn, call_id)
            raise
    try:
        async with turn.spawning(call_id) as turn_id, children.limiter(parent):
            if child.busy:
                raise GateError(f"child {child_id!r} is busy with another intent", "wait for it")
            link.cast, link.turn_id, link.call_id = turn.cast, turn_id, call_id
            return await run_child.cast_child(parent, child, intent, turn)
    except anyio.get_cancelled_exc_class():
        with anyio.CancelScope(shield=True):
            await children.dismiss(parent, child_id)
        raise
