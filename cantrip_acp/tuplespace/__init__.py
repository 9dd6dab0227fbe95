"""Tuple-space: units of work (tuples) that any process can claim, run and answer with a receipt.

Start with `tuples` (the unit of work), `space` (the operations of a program) and `stores` (SQLite or PostgreSQL).

The tuple-space uses the core, recipes and text helpers. The core does not import it. `cli` uses all of it, ACP only `reuse`.
The names of ``__all__`` are public, and imported when they are first used.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from cantrip_acp.tuplespace.catalog.build import build_catalog as build_catalog
    from cantrip_acp.tuplespace.catalog.capabilities import UnknownCapability as UnknownCapability
    from cantrip_acp.tuplespace.catalog.capabilities import read_catalog as read_catalog
    from cantrip_acp.tuplespace.reuse.step_results import Reuse as Reuse
    from cantrip_acp.tuplespace.space import TupleSpace as TupleSpace
    from cantrip_acp.tuplespace.stores import open_store as open_store
    from cantrip_acp.tuplespace.stores.postgres import PostgresTupleStore as PostgresTupleStore
    from cantrip_acp.tuplespace.tuples import Pattern as Pattern
    from cantrip_acp.tuplespace.tuples import new_tuple as new_tuple
    from cantrip_acp.tuplespace.workers.worker import Worker as Worker
    from cantrip_acp.tuplespace.yools.step import StepCall as StepCall
    from cantrip_acp.tuplespace.yools.step import StepFailed as StepFailed
    from cantrip_acp.tuplespace.yools.step import StepResult as StepResult

_HOMES = {
    "Pattern": "tuples",
    "PostgresTupleStore": "stores.postgres",
    "Reuse": "reuse.step_results",
    "StepCall": "yools.step",
    "StepFailed": "yools.step",
    "StepResult": "yools.step",
    "TupleSpace": "space",
    "UnknownCapability": "catalog.capabilities",
    "Worker": "workers.worker",
    "build_catalog": "catalog.build",
    "new_tuple": "tuples",
    "open_store": "stores",
    "read_catalog": "catalog.capabilities",
}

__all__ = list(_HOMES)
__all__ += [
    "alarms", "authority", "batch", "catalog", "errors", "events", "fan_out", "mcp_edge", "monitoring", "project_log",
    "receipts", "retention", "reuse", "stores", "tuples", "workers", "yools",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(f"{__name__}.{home}"), name)
    return value
