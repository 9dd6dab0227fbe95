"""The events of a recorded thread."""

from cantrip_acp.loom.loom import Loom
from cantrip_acp.loom.query.history import casts_of
from cantrip_acp.loom.query.recorded_events import RecordedEvents
from cantrip_acp.types.events import Event


def thread_events(loom: Loom, turn_id: str) -> list[Event]:
    """The events of all casts of an entity on the path to a turn, oldest first."""
    casts = casts_of(loom, turn_id)
    recorded = RecordedEvents(loom, casts)
    return [event for part in casts for event in recorded.cast(part)]
