"""Features that cases need and this version may lack.

Each row says which cases need the feature, and how to test whether it is present. A case that needs a missing feature
is skipped with a message; it never counts as passed.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from cantrip_acp.conformance.case import Case


@dataclass(frozen=True)
class Feature:
    """``name`` completes the sentence "needs …"; ``needed`` tests a case, ``present`` tests this version."""

    name: str
    needed: Callable[[Case], bool]
    present: Callable[[], bool]


def lacking(case: Case) -> str | None:
    """Why this version cannot run the case; None where it can."""
    for feature in FEATURES:
        if feature.needed(case) and not feature.present():
            return f"needs {feature.name}, which this version does not have"
    return None


def medium_of(case: Case) -> str:
    """The medium of the case's circle; ``conversation`` where it names none."""
    circle = case.setup.get("circle") or {}
    return str(circle.get("medium") or circle.get("type") or "conversation")


def crystals_of(case: Case) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield every crystal that the case sets up, with its key."""
    for key, value in case.setup.items():
        if isinstance(value, Mapping) and re.fullmatch(r"crystal|child_crystal(_l\d+)?|\w+_crystal|crystal_\w+", key):
            yield key, value


def _gate_names(case: Case) -> set[str]:
    gates = (case.setup.get("circle") or {}).get("gates") or []
    return {str(g.get("name")) if isinstance(g, Mapping) else str(g) for g in gates}


def _delegates(case: Case) -> bool:
    names = {"call_agent", "call_agent_batch", "call_entity", "call_entity_batch"}
    children = any(key.startswith("child_crystal") or crystal.get("children") for key, crystal in crystals_of(case))
    return children or bool(_gate_names(case) & names)


def _forks(case: Case) -> bool:
    for _, action in case.actions:
        then = action.get("then")
        for step in then if isinstance(then, list) else [then]:
            if isinstance(step, Mapping) and "fork" in step:
                return True
    return False


def _ephemeral(case: Case) -> bool:
    gates = (case.setup.get("circle") or {}).get("gates") or []
    return any(isinstance(gate, Mapping) and gate.get("ephemeral") for gate in gates)


def _medium(name: str) -> Callable[[], bool]:
    def present() -> bool:
        return name in import_module("cantrip_acp.mediums.registry").names()

    return present


def _gate(name: str) -> Callable[[], bool]:
    def present() -> bool:
        return name in import_module("cantrip_acp.gates.registry").names()

    return present


def _cantrip_takes(parameter: str) -> bool:
    return parameter in inspect.signature(import_module("cantrip_acp.core.cantrip").Cantrip).parameters


FEATURES = (
    Feature("the code medium", lambda case: medium_of(case) == "code", _medium("code")),
    Feature(
        "the monty medium",
        lambda case: medium_of(case) == "monty",
        lambda: _medium("monty")() and find_spec("pydantic_monty") is not None,
    ),
    Feature("delegation (call_agent)", _delegates, _gate("call_agent")),
    Feature("forks", _forks, lambda: hasattr(import_module("cantrip_acp.core.cantrip").Cantrip, "fork")),
    Feature("folding", lambda case: bool(case.setup.get("folding")), lambda: _cantrip_takes("folding")),
    Feature("ephemeral gates", _ephemeral, lambda: hasattr(import_module("cantrip_acp.core.context"), "EPHEMERAL")),
    Feature(
        "a provider's normalisation",
        lambda case: any(crystal.get("raw_response") is not None for _, crystal in crystals_of(case)),
        lambda: find_spec("cantrip_acp.crystals.openai.responses_api") is not None,
    ),
)
