"""A child that may not be: the error that its parent sees, and the event that an operator sees (D-011)."""

from __future__ import annotations

import logging

from cantrip_acp import telemetry
from cantrip_acp.errors import GateError

EVENT = "cantrip.ward.child_rejected"

_log = logging.getLogger(__name__)


class ChildRefused(GateError):
    """A child that its parent's circle does not admit. ``ward`` names what refused it: a ward, or gate, medium, crystal."""

    def __init__(self, ward: str, message: str) -> None:
        self.ward = ward
        super().__init__(message)


def report(refused: ChildRefused, *, entity_id: str, depth: int) -> None:
    """Tell whoever watches: a log line, and an event on the gate call's span."""
    _log.info("child of %s refused by %s: %s", entity_id, refused.ward, refused)
    telemetry.note(
        EVENT,
        {
            "cantrip.ward": refused.ward,
            "gen_ai.agent.id": entity_id,
            "cantrip.depth": depth,
            "cantrip.why": str(refused),
        },
    )
