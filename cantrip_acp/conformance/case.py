"""A conformance case: its rule and name, its setup, its actions, and its expectations."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cantrip_acp.conformance.grammar import CASE, Problem


@dataclass(frozen=True)
class Case:
    """One case as read. ``problem`` is why it could not be read; such a case fails."""

    file: Path
    line: int
    data: Mapping[str, Any] = field(default_factory=dict)
    problem: Problem | None = None

    @classmethod
    def of(cls, value: Any, file: Path, line: int) -> Case:
        if isinstance(value, Mapping):
            return cls(file, line, value)
        return cls(file, line, {}, Problem("", f"a case must be a mapping with rule, name, setup …, not {value!r:.60}"))

    @property
    def rule(self) -> str:
        return str(self.data.get("rule") or "-")

    @property
    def name(self) -> str:
        return " ".join(str(self.data.get("name") or "(no name)").split())

    @property
    def where(self) -> str:
        return f"{self.file}:{self.line}"

    @property
    def setup(self) -> Mapping[str, Any]:
        return self.data.get("setup") or {}

    @property
    def expect(self) -> Mapping[str, Any]:
        return self.data.get("expect") or {}

    @property
    def actions(self) -> list[tuple[str, Mapping[str, Any]]]:
        """The actions in order, each with its path in the case; a single mapping counts as a list of one."""
        action = self.data.get("action")
        if action is None:
            return []
        if isinstance(action, list):
            return [(f"action[{n}]", item) for n, item in enumerate(action)]
        return [("action", action)]

    def problems(self) -> list[Problem]:
        """What is wrong with the case itself, before anything runs."""
        if self.problem is not None:
            return [self.problem]
        found = list(CASE.check(self.data, ""))
        if not found and self.data.get("action") is None and not (self.data.get("rule") and self.data.get("name")):
            found.append(Problem("", "a case without an action needs a rule and a name, to say what it stands for"))
        return found


@dataclass(frozen=True)
class Feature:
    """``name`` completes the sentence "needs …"; ``needed`` tests a case, ``present`` tests this version."""

    name: str
    needed: Callable[[Case], bool]
    present: Callable[[], bool]


def missing_features(case: Case) -> str | None:
    """Why this version cannot run the case; None if it can."""
    for feature in FEATURES:
        if feature.needed(case) and not feature.present():
            return f"needs {feature.name}, which this version does not have"
    return None


def medium_of(case: Case) -> str:
    """The medium of the case's circle; ``conversation`` if it names none."""
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
