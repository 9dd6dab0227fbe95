"""Judging: the hidden tests on a copy of what the entity left, in the sandbox, and checks of files and answer.

The copy matters: a test that the entity changed or removed is back in its place, and nothing that it wrote runs outside of
the sandbox.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.evals.task import Task, put
from cantrip_acp.circle import Circle
from cantrip_acp.errors import CantripError
from cantrip_acp.gates.contract import GateContext
from cantrip_acp.gates.overlay import Overlay

_WARDS = ({"max_turns": 1}, {"bash_writable_paths": ["workspace"]}, {"bash_timeout_ms": 120_000})

_STEERING = frozenset(
    {"conftest.py", "pytest.ini", ".pytest.ini", "tox.ini", "setup.cfg", "pyproject.toml", "package.json", "Makefile"}
)


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
    shutil.copytree(
        workspace, copy, symlinks=True, ignore=shutil.ignore_patterns(".git", "__pycache__", "node_modules")
    )
    for name in task.hidden:
        # Where a link was put, the test goes into the copy and not to where it leads.
        target = copy / name
        if target.is_symlink():
            target.unlink()
    _steered(task, copy)
    put(task.hidden, copy)
    circle = Circle("bash", ["done", "run_tests"], _WARDS, workspace=copy)
    gate = circle.gates["run_tests"]
    assert gate.opens is not None
    session = gate.opens(Overlay(circle), circle)
    context = GateContext({}, circle.wards, copy, "grader", "grader", "", "grader")
    args: dict[str, Any] = {"runner": task.runner} if task.runner else {}
    try:
        result = (await session.call(args, context)).result
    except CantripError as error:
        return [f"the hidden tests cannot be run: {error}"]
    finally:
        await session.close()
    if result["ok"]:
        return []
    names = (
        ", ".join(failure["name"] for failure in result["failures"][:5])
        or result.get("note")
        or result["output"][-300:]
    )
    return [f"hidden tests: {result['failed']} failed, {result['errors'] or 0} errors ({names})"]


def _steered(task: Task, copy: Path) -> None:
    """What steers a test runner is as it was: an entity must not pass by what it wrote there."""
    for path in [p for p in copy.rglob("*") if p.name in _STEERING and (p.is_file() or p.is_symlink())]:
        path.unlink()
    put({name: text for name, text in task.files.items() if Path(name).name in _STEERING}, copy)


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
            return (workspace / path).read_text(encoding="utf-8", errors="replace")
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
