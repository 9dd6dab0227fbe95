"""Modules that an entity had loaded are loaded again where it goes on (`hotgates`): from what its loom recorded.

Each is admitted anew, by the wards and the interceptors of whoever goes on, and only if its source is the very one that was
loaded then: the hash of the record is asked for. What a module kept in variables is not in any loom, and is gone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cantrip_acp import telemetry
from cantrip_acp.loom.query.history import CastPart, spoken
from cantrip_acp.loom.records.turn import GateRecord, new_id

if TYPE_CHECKING:
    from cantrip_acp.core.entity import Entity

GATE = "compile_and_load"


def loaded(parts: Sequence[CastPart]) -> dict[str, GateRecord]:
    """The modules that were loaded on the way, by name, each by the call that loaded it last, in that order."""
    found: dict[str, GateRecord] = {}
    for _, turn in spoken(list(parts)):
        for record in turn.observation.results:
            result: Any = record.result
            if record.gate == GATE and not record.is_error and isinstance(result, Mapping):
                name = str(result.get("module", ""))
                found.pop(name, None)
                found[name] = record
    return found


async def load_again(entity: Entity, parts: Sequence[CastPart]) -> list[str]:
    """Load them into ``entity``; what could not be loaded, or is not as it was, in words."""
    missing: list[str] = []
    for name, record in loaded(parts).items():
        if GATE not in entity.circle.gates:
            missing.append(f"module {name} and its gates: this circle has no {GATE}")
            continue
        args = dict(record.args) if isinstance(record.args, Mapping) else {}
        args["sha256"] = record.result["sha256"]
        again = await entity.executor.execute(
            GATE,
            args,
            call_id=f"{new_id('t')}.reload",
            entity_id=entity.id,
            cast_id="",
            trace=telemetry.trace_from(None),
        )
        if again.is_error:
            missing.append(f"module {name} and its gates: {' '.join(str(again.result).split())[:300]}")
        else:
            missing.append(f"module {name}: loaded anew; what it kept in variables is gone")
    return missing


def not_loaded(parts: Sequence[CastPart]) -> list[str]:
    """What is missing where nothing is loaded again."""
    return [f"module {name} and its gates: not loaded again" for name in loaded(parts)]
