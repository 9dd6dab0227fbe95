"""Refused children: the error for the parent, and the event for an operator (D-011)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from cantrip_acp.core.errors import ChildRefused
from cantrip_acp.core.events import ChildRejected
from cantrip_acp.telemetry import tracing

if TYPE_CHECKING:
    from cantrip_acp.core.casting.turn_builder import TurnBuilder

EVENT = "cantrip.ward.child_rejected"

_log = logging.getLogger(__name__)


async def report(refused: ChildRefused, turn: TurnBuilder, call_id: str) -> None:
    """Report a refusal: an event for readers, a log line, and an event on the gate call's span."""
    entity_id, depth = turn.entity_id, turn.depth
    _log.info("child of %s refused by %s: %s", entity_id, refused.ward, refused)
    tracing.note(
        EVENT,
        {
            "cantrip.ward": refused.ward,
            "gen_ai.agent.id": entity_id,
            "cantrip.depth": depth,
            "cantrip.why": str(refused),
        },
    )
    if turn.listening:
        reason = turn.entity.redactor.diagnostic(str(refused))
        await turn.emit(
            ChildRejected(
                entity_id=entity_id,
                cast_id=turn.cast_id,
                depth=depth,
                call_id=call_id,
                ward=refused.ward,
                reason=reason,
                index=refused.index,
            )
        )
