"""Judging: hidden tests on a copy of what the entity left, in the sandbox; checks of files and answer; scores.

The copy matters: a test that the entity changed or removed is back in its place, and nothing that it wrote runs outside of
the sandbox. What was left is taken as hostile: a link, a pipe or a program in the place of a folder must not lead the grader,
which runs outside of the sandbox, out of the copy.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from cantrip_acp.core.definition.circle import Circle
from cantrip_acp.core.scoring import Scorer, own_thread, score_of
from cantrip_acp.evaluation.suite import Task
from cantrip_acp.files.folder import Folder
from cantrip_acp.gates.contract import GateContext, as_text
from cantrip_acp.gates.dynamic_gates import DynamicGates
from cantrip_acp.training import judge
from cantrip_acp.types.errors import CantripError, DefinitionError

if TYPE_CHECKING:
    from cantrip_acp.core.cantrip import Cantrip
    from cantrip_acp.loom.loom import Loom
    from cantrip_acp.types.usage import Usage

_WARDS = ({"max_turns": 1}, {"bash_writable_paths": ["workspace"]}, {"bash_timeout_ms": 120_000})
_STEERING = frozenset(
    {
        "conftest.py",
        "pytest.ini",
        ".pytest.ini",
        "pytest.toml",
        ".pytest.toml",
        "tox.ini",
        "setup.cfg",
        "pyproject.toml",
    }
    | {"package.json", ".npmrc", "Makefile", "makefile", "GNUmakefile", "sitecustomize.py", "usercustomize.py"}
)
"""Files that say how tests are run."""
_PATTERN_SECONDS = 10.0
"""The longest time of a search for a pattern in an answer or a file, in seconds."""
_LEFT_OUT = frozenset({".git", "__pycache__", "node_modules", ".venv", "venv", "env", ".env"})
"""Folders that tools make. An interpreter that the entity made must not judge its work."""


@dataclass(frozen=True, slots=True)
class Grade:
    """The judgement of a sample. ``wrong`` lists everything that is wrong. ``score`` comes from the function or the verifier,
    else 1 if the sample passed and 0 if not. ``error`` says why there is no grade. ``usage`` is the verifier's."""

    passed: bool
    wrong: tuple[str, ...]
    score: float
    error: str | None = None
    usage: Usage | None = None


@dataclass(frozen=True, slots=True)
class Left:
    """The results of a sample to judge: its folder, its answer, and its thread in a loom (None if it wrote no turn).

    ``scratch`` is a folder for the graded copy. ``verifier`` is the cantrip that judges.
    """

    workspace: Path
    answer: Any
    loom: Loom
    leaf: str | None
    scratch: Path
    verifier: Cantrip | None = None


async def grade(task: Task, left: Left) -> Grade:
    """Judge the files and the answer of an entity."""
    try:
        wrong = await anyio.to_thread.run_sync(_checked, task, left.workspace, as_text(left.answer))
    except CantripError as error:
        return Grade(False, (), 0.0, f"not judged: {error}")
    if task.hidden:
        wrong += await _tested(task, left.workspace, left.scratch)
    score: float | None = None
    usage = None
    try:
        for judged in (_scored, _verified):
            found = await judged(task, left)
            if found is not None:
                value, note, used = found
                usage = used or usage
                score = value if score is None else min(score, value)
                if value < task.pass_at:
                    wrong.append(f"the score is {value:g}, below {task.pass_at:g}" + (f": {note}" if note else ""))
    except CantripError as error:
        return Grade(False, tuple(wrong), 0.0, f"not judged: {error}", usage)
    return Grade(not wrong, tuple(wrong), float(not wrong) if score is None else score, None, usage)


_Found = tuple[float, str | None, "Usage | None"]


async def _scored(task: Task, left: Left) -> _Found | None:
    """The score of the task's function. It gets the thread, and further values by the names of its parameters."""
    if task.score is None or left.leaf is None:
        return None if task.score is None else (0.0, "the entity wrote nothing", None)
    offered = {"intent": task.intent, "reference": task.reference, "answer": left.answer, "workspace": left.workspace}
    scorer = Scorer(task.score, name="score", at="cast")
    score, note = await score_of(scorer, own_thread(left.loom, left.leaf), offered)
    if score is None:
        raise DefinitionError(f"the function score gave no score: {note or 'it returned None'}")
    return score, note, None


async def _verified(task: Task, left: Left) -> _Found | None:
    """The score of the verifier, which reads the expected answer and the thread."""
    if left.verifier is None or left.leaf is None:
        return None if left.verifier is None else (0.0, "the entity wrote nothing", None)
    verdict = await judge.verify(left.verifier, left.loom, left.leaf, record=False)
    return verdict.reward, verdict.note, verdict.usage


async def _tested(task: Task, workspace: Path, scratch: Path) -> list[str]:
    copy = scratch / "graded"
    canary, name = _canary(task)
    try:
        copied(task, workspace, copy)
        lay(canary, copy)
    except OSError as error:
        return [f"the hidden tests cannot be run: {error}"]
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
    """A second copy of the hidden tests with one more test that fails, under a secret name: whatever makes tests pass without
    doing the work makes this one pass too. Empty if the tests' language is unknown."""
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
    """The minimum number of tests in the first hidden file."""
    text = next(iter(task.hidden.values()))
    return len(re.findall(r"^\s*(?:(?:async )?def test_|(?:test|it)\()", text, re.MULTILINE))


def _checked(task: Task, workspace: Path, answer: str) -> list[str]:
    return [
        text
        for name, value in task.checks
        for each in (value if isinstance(value, list) else [value])
        for text in _one(name, each, task, workspace, answer)
    ]


def _searched(pattern: str, text: str, flags: int = 0) -> bool:
    """Whether a text matches a pattern. Raises `CantripError` if the search takes some seconds: ``(a+)+$`` takes twice as
    long for each letter, and a search cannot be stopped in its own process."""
    if not re.search(r"[*+{?|]", pattern):
        return re.search(pattern, text, flags) is not None
    program = "import json, re, sys; print(re.search(*json.load(sys.stdin)) is not None)"
    given = json.dumps([pattern, text, int(flags)])
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", program],
            input=given,
            capture_output=True,
            text=True,
            timeout=_PATTERN_SECONDS,
            check=True,
        )
    except (subprocess.TimeoutExpired, subprocess.CalledProcessError, OSError) as error:
        why = f"longer than {_PATTERN_SECONDS:g} s" if isinstance(error, subprocess.TimeoutExpired) else str(error)
        raise CantripError(f"the search for {pattern!r} in {len(text):,} characters: {why}") from None
    return done.stdout.strip() == "True"


def _one(name: str, value: Any, task: Task, workspace: Path, answer: str) -> list[str]:
    refused: list[str] = []

    def text(path: str) -> str:
        try:
            with Folder.of(workspace) as folder, folder.file(path) as file:
                return file.read().decode("utf-8", "replace")
        except FileNotFoundError:
            return ""
        except OSError as error:
            # The entity may have made a link to another file that contains the searched text.
            refused.append(f"{path} is not judged: {error.strerror}")
            return ""

    def is_there(path: str) -> bool:
        above, _, name = path.rpartition("/")
        try:
            with Folder.of(workspace) as folder, folder.beneath(above) as place:
                return place.entry(name) is not None
        except FileNotFoundError:
            return False
        except OSError as error:
            refused.append(f"{path} is not judged: {error.strerror}")
            return False

    def pairs(test: Callable[[str, str], bool], says: str) -> list[str]:
        wrong = [says.format(path=path, what=what) for path, what in value.items() if test(text(path), what)]
        return refused or wrong

    match name:
        case "reference":
            wanted, said = (" ".join(each.split()).casefold() for each in (as_text(task.reference), answer))
            same = wanted == said.strip(" .") if value == "exact" else wanted in said
            return (
                []
                if same
                else [f"the answer {'is not' if value == 'exact' else 'does not say'} {as_text(task.reference)!r}"]
            )
        case "answer":
            return [] if _searched(value, answer, re.IGNORECASE | re.DOTALL) else [f"the answer does not say {value!r}"]
        case "answer_lacks":
            return [f"the answer says {value!r}"] if _searched(value, answer, re.IGNORECASE | re.DOTALL) else []
        case "has":
            return pairs(lambda said, what: not _searched(what, said), "{path} has no {what!r}")
        case "lacks":
            return pairs(lambda said, what: _searched(what, said), "{path} still has {what!r}")
        case "missing":
            return refused or [f"{value} is there"] if is_there(value) or refused else []
        case "unchanged":
            names = task.files if value == "all" else [value]
            changed = [f"{path} was changed" for path in names if text(path) != task.files[path]]
            return refused or changed
        case "lines_at_most":
            return pairs(lambda said, most: len(said.splitlines()) > int(most), "{path} has more than {what} lines")
    raise ValueError(f"unknown check {name!r}")


# The copy


def copied(task: Task, workspace: Path, copy: Path) -> None:
    """Make the copy, with the task's configuration of the test runner and the hidden tests in their places."""
    _tree(workspace, copy)
    ours = {name: text for name, text in task.files.items() if Path(name).name in _STEERING}
    lay({**ours, **task.hidden}, copy)


def lay(files: Mapping[str, str], copy: Path) -> None:
    """Write files into the copy, and replace anything in their places or on the way."""
    for name in files:
        way = copy
        parts = Path(name).parts
        for place, part in enumerate(parts, 1):
            way = way / part
            if way.is_symlink() or (way.exists() and way.is_dir() is (place == len(parts))):
                shutil.rmtree(way) if way.is_dir() and not way.is_symlink() else way.unlink()
    put(files, copy)


def _tree(source: Path, target: Path) -> None:
    """Copy files and folders, but no links, pipes, sockets, devices, test configuration or folders of tools."""
    target.mkdir(parents=True)
    waiting = [(str(source), str(target))]
    while waiting:
        here, there = waiting.pop()
        for entry in os.scandir(here):
            mode = entry.stat(follow_symlinks=False).st_mode
            place = os.path.join(there, entry.name)
            if stat.S_ISDIR(mode) and entry.name not in _LEFT_OUT:
                os.mkdir(place)
                waiting.append((entry.path, place))
            elif stat.S_ISREG(mode) and entry.name not in _STEERING:
                shutil.copy(entry.path, place, follow_symlinks=False)


def put(files: Mapping[str, str], where: Path) -> None:
    for name, text in files.items():
        path = where / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
