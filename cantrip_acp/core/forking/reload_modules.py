"""Loads compiled modules again in an entity that continues, from what its loom recorded (`gates.loaded`).

Each module is admitted again, by the wards and interceptors of the new entity, and only if its source has the
recorded hash. What a module kept in variables is not in the loom and is lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cantrip_acp.loom.query.history import CastPart, crystal_turns
from cantrip_acp.telemetry import tracing
from cantrip_acp.types.records import GateRecord, new_id

if TYPE_CHECKING:
    from cantrip_acp.core.entity import Entity

LOADING_GATE = "compile_and_load"


@dataclass(frozen=True, slots=True)
class ReloadedModules:
    """Which modules were loaded again, and in words which could not be."""

    loaded: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    @property
    def notes(self) -> list[str]:
        """All differences from the earlier modules, in words."""
        return [*self.loaded, *self.failed]


def loaded_modules(parts: Sequence[CastPart]) -> dict[str, GateRecord]:
    """The modules that the history loaded, by name.

    Each maps to the call that loaded it last, in the order of these calls.
    """
    found: dict[str, GateRecord] = {}
    for _, turn in crystal_turns(list(parts)):
        for record in turn.observation.results:
            result: Any = record.result
            if record.gate == LOADING_GATE and not record.is_error and isinstance(result, Mapping):
                name = str(result.get("module", ""))
                found.pop(name, None)
                found[name] = record
    return found


async def reload_modules(entity: Entity, parts: Sequence[CastPart]) -> ReloadedModules:
    again = ReloadedModules()
    for name, record in loaded_modules(parts).items():
        if LOADING_GATE not in entity.circle.gates:
            again.failed.append(f"module {name} and its gates: this circle has no {LOADING_GATE}")
            continue
        args = dict(record.args) if isinstance(record.args, Mapping) else {}
        args["sha256"] = record.result["sha256"]
        reply = await entity.executor.execute(
            LOADING_GATE,
            args,
            call_id=f"{new_id('t')}.reload",
            entity_id=entity.id,
            cast_id=entity.running.id if entity.running is not None else "",
            trace=tracing.trace_from(None),
        )
        if reply.is_error:
            again.failed.append(f"module {name} and its gates: {' '.join(str(reply.result).split())[:300]}")
        else:
            again.loaded.append(f"module {name}: loaded again; the values of its variables are lost")
    return again


def unloaded_notes(parts: Sequence[CastPart]) -> list[str]:
    """Notes about the modules, for a fork that loads none of them again."""
    return [f"module {name} and its gates: not loaded again" for name in loaded_modules(parts)]
