"""Runs a child inside its parent's gate call: make it, cast it once, close it (COMP-2, COMP-3, COMP-8, COMP-9).

The child runs in the task of the call. So whatever stops the parent stops the child first, and the child's turns are
in the loom before the parent's. A child's failure becomes an error that the parent sees; it never ends the parent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel

from cantrip_acp.core.delegation.child_cantrip import CheckedChild, cantrip_of, check_request, crystal_of
from cantrip_acp.core.delegation.request import Request
from cantrip_acp.core.entity import Entity
from cantrip_acp.core.lifecycle import children
from cantrip_acp.core.state import ParentLink
from cantrip_acp.telemetry import tracing
from cantrip_acp.text.logs import logger
from cantrip_acp.types.errors import CantripError, ChildRefused, GateError, LoomError, one_failure
from cantrip_acp.types.events import ChildRejected

if TYPE_CHECKING:
    from cantrip_acp.core.casting.result import CastResult
    from cantrip_acp.core.casting.turn_builder import TurnBuilder
    from cantrip_acp.core.definition.circle import Circle
    from cantrip_acp.core.state import ChildEntity, EntityState
    from cantrip_acp.gates.wards import Wards

_log = logger(__name__)

EVENT = "cantrip.ward.child_rejected"
_CHECKS_PER_STEP = 16
"""Number of children that are checked before other tasks may run on the event loop."""


class ChildFailed(GateError):
    """A child was cut off. ``account`` has the data on its cast, for a parent that wants more than the answer."""

    def __init__(self, message: str, account: Mapping[str, Any]) -> None:
        self.account = account
        super().__init__(message)


class Planned:
    """A child that was admitted and has not begun. ``number`` counts its parent's children from 0.

    ``wards`` are the parent's wards at the time of the check.
    """

    __slots__ = ("judged", "number", "wards")

    def __init__(self, judged: CheckedChild, number: int, wards: Wards) -> None:
        self.judged = judged
        self.number = number
        self.wards = wards


async def plan_children(turn: TurnBuilder, requests: Sequence[Request], call_id: str) -> list[Planned]:
    """Check all children before any of them begins. Either all are admitted or none.

    Raises `ChildRefused` for the first that is not admitted; the message has its place in a batch.
    """
    parent = turn.entity
    judged: list[CheckedChild] = []
    wards = parent.circle.wards
    alike: dict[str, Circle] = {}
    try:
        for place, request in enumerate(requests):
            if place % _CHECKS_PER_STEP == _CHECKS_PER_STEP - 1:
                await anyio.lowlevel.checkpoint()
            try:
                judged.append(check_request(parent, request, alike))
            except ChildRefused as refused:
                if len(requests) == 1:
                    raise
                raise ChildRefused(refused.ward, f"request {place}: {refused}", place) from None
        children.check_limit(parent, len(requests))
        first = parent.children.count
        made: set[int] = set()
        for number, each in enumerate(judged, first):
            # Make each one now to find every error before the first child begins, above all a missing crystal.
            try:
                if id(each.circle) in made:
                    crystal_of(parent, each.request, number)
                else:
                    made.add(id(each.circle))
                    cantrip_of(parent, each, number)
            except ChildRefused as refused:
                if len(judged) == 1:
                    raise
                place = number - first
                raise ChildRefused(refused.ward, f"request {place}: {refused}", place) from None
        first = children.admit(parent, len(requests))
    except ChildRefused as refused:
        await report_refusal(refused, turn, call_id)
        raise
    return [Planned(each, number, wards) for number, each in enumerate(judged, first)]


def answer_of(result: CastResult) -> Any:
    """A child's answer. Raises `ChildFailed` if it was cut off before it answered (COMP-8)."""
    if result.terminated:
        return result.result
    raise ChildFailed(f"the child was cut off by {result.reason}. {result.summary or ''}".rstrip(), cast_data(result))


def cast_data(result: CastResult) -> dict[str, Any]:
    """Data on how a child's cast ended, without its answer, for its parent's code."""
    return {
        "reason": result.reason,
        "usage": result.usage.record(),
        "turns": result.turns,
        "entity_id": result.entity_id,
    }


async def run_child(
    turn: TurnBuilder, planned: Planned, call_id: str, tell: Callable[[CastResult], Any] = answer_of
) -> Any:
    """Run one child to its end. Returns its answer, or what ``tell`` makes of its result.

    Raises `GateError` with what stopped it if there is no answer (COMP-8).
    """
    async with turn.spawning(call_id) as turn_id:
        return tell(await _run_entity(turn, planned, turn_id, call_id, None))


async def run_children(
    turn: TurnBuilder, planned: Sequence[Planned], call_id: str, tell: Callable[[CastResult], Any] = answer_of
) -> list[Any]:
    """Run children concurrently, at most ``max_concurrent_children`` at once.

    Answers are in the order of the requests.

    A child that fails has ``{"is_error": true, "error": …}`` in its place (COMP-3, COMP-8).
    """
    if not planned:
        return []
    answers: list[Any] = [None] * len(planned)
    waiting = iter(enumerate(planned))

    async def work(turn_id: str) -> None:
        for place, child in waiting:
            try:
                answers[place] = tell(await _run_entity(turn, child, turn_id, call_id, place))
            except GateError as error:
                more: Mapping[str, Any] = (
                    error.account if isinstance(error, ChildFailed) and tell is not answer_of else {}
                )
                answers[place] = {"is_error": True, "error": str(error), **more}

    async with turn.spawning(call_id) as turn_id:
        most = turn.entity.circle.wards.max_concurrent_children
        with one_failure():
            async with anyio.create_task_group() as group:
                for _ in range(min(most, len(planned))):
                    group.start_soon(work, turn_id)
    return answers


async def _run_entity(turn: TurnBuilder, planned: Planned, turn_id: str, call_id: str, index: int | None) -> CastResult:
    parent = turn.entity
    async with children.limiter(parent):
        link = ParentLink(turn.cast, turn_id, call_id, planned.number, index, called=True)
        cantrip = cantrip_of(parent, planned.judged, planned.number)
        child = Entity(cantrip, parent.loom, parent=link)
        if parent.circle.wards is not planned.wards:
            # The wards changed while the child waited to start.
            child.set_wards(parent.circle.wards)
        parent.children.running.add(child)
        try:
            async with child:
                return await cast_child(parent, child, planned.judged.request.intent, turn)
        finally:
            parent.children.running.discard(child)


async def cast_child(parent: EntityState, child: ChildEntity, intent: str, turn: TurnBuilder) -> CastResult:
    """Cast a child for its parent's turn. Its failure becomes a `GateError` that the parent sees (COMP-8)."""
    try:
        return await child.cast(intent, trace=turn.cast.trace)
    except LoomError:
        # Nothing may go on that is not recorded.
        raise
    except CantripError as error:
        raise GateError(f"the child failed: {error}") from None


async def report_refusal(refused: ChildRefused, turn: TurnBuilder, call_id: str) -> None:
    """Report a refusal: an event for readers, a log line, and an event on the gate call's span."""
    entity_id, depth = turn.entity_id, turn.depth
    _log.info("child of %s refused by %s: %s", entity_id, refused.ward, refused)
    tracing.note(
        EVENT,
        {
            "cantrip.ward": refused.ward,
            "cantrip.entity.id": entity_id,
            "cantrip.depth": depth,
            "cantrip.why": str(refused),
        },
    )
    if turn.listening:
        await turn.emit(
            ChildRejected(
                entity_id=entity_id,
                cast_id=turn.cast_id,
                depth=depth,
                call_id=call_id,
                ward=refused.ward,
                reason=str(refused),
                index=refused.index,
            )
        )
