"""A conformance case: its rule and name, its setup, its actions, and its expectations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
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
        return cls(file, line, {}, Problem("", f"a case is a mapping with rule, name, setup …, not {value!r:.60}"))

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
