"""Services that an entity had and that do not run here: those of a process that was killed, and those of a forked entity.

The loom says which services began and which ended. A fork does not have them, and the first writer after a crash records their
ends. The entity is told of both, because its history says that they run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from cantrip_acp.types.records import ServiceRecord, now

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cantrip_acp.core.entity import Entity
    from cantrip_acp.loom.query.history import CastPart

PROCESS_ENDED = "the process of its session ended"


def tell_of_ended_services(entity: Entity, parts: Sequence[CastPart]) -> None:
    """Tell an entity that continues this history which of its services do not run. Ends that no process recorded are recorded."""
    casts = {part.id for part in parts if any("start" in turn.gate_calls for turn in part.turns)}
    if not casts:
        return
    last = max((turn.metadata.timestamp for part in parts for turn in part.turns), default="")
    open_at_last: dict[str, ServiceRecord] = {}
    without_end: dict[str, ServiceRecord] = {}
    for record in entity.loom.records():
        if not isinstance(record, ServiceRecord):
            continue
        if record.event == "start" and record.cast_id in casts and record.timestamp <= last:
            open_at_last[record.id] = without_end[record.id] = record
        elif record.event == "end":
            without_end.pop(record.id, None)
            if record.timestamp <= last:
                open_at_last.pop(record.id, None)
    for record in without_end.values():
        if record.entity_id == entity.id:
            end = msgspec.structs.replace(
                record, event="end", command="", cast_id=None, why=PROCESS_ENDED, timestamp=now()
            )
            entity.loom.append(end)
    if open_at_last and entity.executor.services is not None:
        listed = ", ".join(f"{each.name} ({' '.join(each.command.split())[:80]})" for each in open_at_last.values())
        entity.executor.services.note(
            f"these services do not run any more, start them again if you need them: {listed}"
        )
