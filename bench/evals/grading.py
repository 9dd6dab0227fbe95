"""Judging: the hidden tests on a copy of what the entity left, in the sandbox, and checks of files and answer.

The copy matters: a test that the entity changed or removed is back in its place, and nothing that it wrote runs outside of
the sandbox.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.evals.copying import copied, lay
from bench.evals.task import Task
from cantrip_acp.core.definition.circle import Circle
from cantrip_acp.core.errors import CantripError
from cantrip_acp.gates.contract import GateContext
from cantrip_acp.gates.dynamic_gates import DynamicGates

_WARDS = ({"max_turns": 1}, {"bash_writable_paths": ["workspace"]}, {"bash_timeout_ms": 120_000})


@dataclass(frozen=True, slots=True)
class Grade:
    """Whether it was done, and if not, everything that is wrong."""

    passed: bool
    wrong: tuple[str, ...]


async def grade(task: Task, workspace: Path, answer: str, scratch: Path) -> Grade:
    """Judge what an entity left in ``workspace`` and what it answered. ``scratch`` is a folder for the copy."""
    wrong = [text for check in task.checks for text in _checked(check, task, workspace, answer)]
    if task.hidden:
        wrong += await _tested(task, workspace, scratch)
    return Grade(not wrong, tuple(wrong))


async def _tested(task: Task, workspace: Path, scratch: Path) -> list[str]:
    copy = scratch / "graded"
    copied(task, workspace, copy)
    canary, name = _canary(task)
    lay(canary, copy)
    circle = Circle("bash", ["done", "run_tests"], _WARDS, workspace=copy)
    gate = circle.gates["run_tests"]
    assert gate.opens is not None
    session = gate.opens(DynamicGates(circle), circle)
    context = GateContext({}, circle.wards, copy, "grader", "grader", "", "grader")
    args: dict[str, Any] = {"runner": task.runner} if task.runner else {}
    try:
        result = (await session.call(args, context)).result
    except CantripError as error:
        return [f"the hidden tests cannot be run: {error}"]
    finally:
        await session.close()
    failed = [failure["name"] for failure in result["failures"]]
    if canary:
        if result["ok"] or (result["passed"] is not None and not any(name in each for each in failed)):
            return ["hidden tests: one that must fail did not, so what the tests say is not to be believed"]
        if (result["failed"], result["errors"] or 0) == (1, 0) and (result["passed"] or 0) >= 2 * _counted(task):
            return []
        failed = [each for each in failed if name not in each]
    elif result["ok"]:
        return []
    names = ", ".join(failed[:5]) or result.get("note") or result["output"][-300:]
    broken = (result["failed"] or 0) - bool(canary and result["failed"])
    return [f"hidden tests: {broken} failed, {result['errors'] or 0} errors ({names})"]


def _canary(task: Task) -> tuple[dict[str, str], str]:
    """A second copy of the hidden tests with one more that fails, under a name that nobody knows: whatever makes tests pass
    without doing the work makes this one pass too. Nothing where the tests' language is not known."""
    name = f"canary_{secrets.token_hex(8)}"
    for path, text in task.hidden.items():
        place = Path(path)
        if place.suffix == ".py":
            more = f"\n\ndef test_{name}():\n    assert False\n"
            if re.search(r"^class \w+\(.*TestCase\)", text, re.MULTILINE):
                more = (
                    f"\n\nimport unittest\n\n\nclass {name.title()}(unittest.TestCase):\n"
                    f"    def test_{name}(self):\n        self.fail()\n"
                )
            return {str(place.with_name(f"test_{name}.py")): text + more}, name
        if place.name.endswith((".test.js", ".test.mjs")):
            return {
                str(place.with_name(f"{name}{''.join(place.suffixes[-2:])}")): text
                + f'\ntest("{name}", () => assert.ok(false));\n'
            }, name
    return {}, name


def _counted(task: Task) -> int:
    """How many tests the first hidden file has, at least."""
    text = next(iter(task.hidden.values()))
    return len(re.findall(r"^\s*(?:(?:async )?def test_|(?:test|it)\()", text, re.MULTILINE))


def _checked(check: Mapping[str, Any], task: Task, workspace: Path, answer: str) -> list[str]:
    ((name, value),) = check.items()
    return [
        text
        for each in (value if isinstance(value, list) else [value])
        for text in _one(name, each, task, workspace, answer)
    ]


def _one(name: str, value: Any, task: Task, workspace: Path, answer: str) -> list[str]:
    def text(path: str) -> str:
        try:
            # A pipe would be waited for.
            found = workspace / path
            return found.read_text(encoding="utf-8", errors="replace") if found.is_file() else ""
        except OSError:
            return ""

    def pairs(test: Callable[[str, str], bool], says: str) -> list[str]:
        return [says.format(path=path, what=what) for path, what in value.items() if test(text(path), what)]

    match name:
        case "answer":
            return [] if re.search(value, answer, re.IGNORECASE | re.DOTALL) else [f"the answer does not say {value!r}"]
        case "answer_lacks":
            return [f"the answer says {value!r}"] if re.search(value, answer, re.IGNORECASE | re.DOTALL) else []
        case "has":
            return pairs(lambda said, what: not re.search(what, said), "{path} has no {what!r}")
        case "lacks":
            return pairs(lambda said, what: bool(re.search(what, said)), "{path} still has {what!r}")
        case "missing":
            return [f"{value} is there"] if (workspace / value).exists() else []
        case "unchanged":
            names = task.files if value == "all" else [value]
            return [f"{path} was changed" for path in names if text(path) != task.files[path]]
        case "lines_at_most":
            return pairs(lambda said, most: len(said.splitlines()) > int(most), "{path} has more than {what} lines")
    raise ValueError(f"unknown check {name!r}")
