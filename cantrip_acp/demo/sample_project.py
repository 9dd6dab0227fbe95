"""Demo setup: copies the sample project with a short git history, and puts the recipe beside it."""

from __future__ import annotations

import importlib.resources
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from cantrip_acp.types.usage import NO_USAGE, Usage

INTENT: Final = "The tests fail. Find out why, mend it, and show that they pass."

SUSPECT: Final = "pennywise/split.py"
"""The file with the bug, and the only one that the demo changes."""

_HISTORY: Final = (
    (
        "Count money in whole pennies",
        ["README.md", "Makefile", ".gitignore", "pennywise/__init__.py", "pennywise/money.py"],
    ),
    ("Split a bill evenly, or by weight", ["pennywise/split.py", "pennywise/__main__.py"]),
    ("Test that shares add up", ["tests"]),
)
_MILLISECONDS_A_WORD: Final = 45


@dataclass(frozen=True)
class SampleProject:
    """`project` is the project's copy, `recipe` the recipe to run on it; both are below one temporary folder."""

    project: Path
    recipe: Path
    script: tuple[Mapping[str, Any], ...]

    def files(self) -> dict[str, bytes]:
        """The project's files by path, without `.git` and `__pycache__`."""
        found = {}
        for folder, folders, names in os.walk(self.project):
            folders[:] = [name for name in folders if name not in (".git", "__pycache__")]
            for name in names:
                path = Path(folder, name)
                found[str(path.relative_to(self.project))] = path.read_bytes()
        return found


def prepare(root: Path, *, slow: bool = False) -> SampleProject:
    """Copy everything below `root`, an empty folder. With `slow` the script speaks word by word, as a model does."""
    project = root / "pennywise"
    with importlib.resources.as_file(importlib.resources.files("cantrip_acp.demo")) as data:
        shutil.copytree(data / "project", project, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
        shutil.copy(data / "demo.cantrip.yaml", root)
        responses = _read_script(data / "session.yaml")
    (project / "gitignore").rename(project / ".gitignore")
    # JSON is also YAML. The script is written anew because its speed may differ.
    paced = [_paced(response) if slow else response for response in responses]
    (root / "session.yaml").write_text(json.dumps(paced, indent=1, ensure_ascii=False), encoding="utf-8")
    _commit(project)
    return SampleProject(project, root / "demo.cantrip.yaml", tuple(responses))


def _read_script(file: Path) -> list[dict[str, Any]]:
    from ruamel.yaml import YAML

    with file.open(encoding="utf-8") as stream:
        script: list[dict[str, Any]] = YAML(typ="safe", pure=True).load(stream)
    return script


def _paced(response: Mapping[str, Any]) -> dict[str, Any]:
    words = str(response.get("content", "")).split(" ")
    chunks = [word + " " for word in words[:-1]] + words[-1:]
    return {**response, "chunks": chunks, "delay_ms": _MILLISECONDS_A_WORD}


def _commit(project: Path) -> None:
    """Make a history of three commits, so that `git log` shows something. Without git there is none."""
    git = shutil.which("git")
    if git is None:
        return
    environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(project.parent),
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_SYSTEM": os.devnull,
        "LC_ALL": "C",
    }
    for person in ("AUTHOR", "COMMITTER"):
        environment |= {f"GIT_{person}_NAME": "Penny Wise", f"GIT_{person}_EMAIL": "penny@example.org"}

    def run(*arguments: str, when: str = "") -> None:
        dated = {"GIT_AUTHOR_DATE": when, "GIT_COMMITTER_DATE": when} if when else {}
        subprocess.run(
            [git, "-c", "init.defaultBranch=main", *arguments],
            cwd=project,
            env=environment | dated,
            check=True,
            capture_output=True,
            timeout=30,
        )

    run("init", "--quiet")
    for day, (message, paths) in enumerate(_HISTORY, 11):
        run("add", "--", *paths)
        run("commit", "--quiet", "--message", message, when=f"2026-03-{day}T10:00:00Z")


@dataclass(frozen=True)
class TestRun:
    """A run of the project's tests on this machine, outside the sandbox (the tests are our own). `words` is the last line."""

    passed: bool
    words: str


def run_tests(project: Path) -> TestRun:
    done = subprocess.run(
        [sys.executable, "-B", "-m", "unittest", "discover", "-s", "tests", "-t", "."],
        cwd=project,
        env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C.UTF-8"},
        capture_output=True,
        text=True,
        errors="replace",
        timeout=120,
        check=False,
    )
    lines = done.stderr.strip().splitlines() or ["it printed nothing"]
    return TestRun(done.returncode == 0, lines[-1])


@dataclass
class Record:
    """What one loom recorded. `commands` are `(command, exit status)`; a command that ended the cast has status None or 0."""

    turns: int = 0
    commands: list[tuple[str, int | None]] = field(default_factory=list)
    gates: list[str] = field(default_factory=list)
    failed_gates: list[str] = field(default_factory=list)
    usage: Usage = NO_USAGE
    reason: str | None = None


def read_loom(path: Path) -> Record:
    """Read a loom. Raises LoomError if it cannot be read."""
    from cantrip_acp.loom.loom import Loom

    record = Record()
    with Loom.open(path, readonly=True) as loom:
        for turn in loom.turns():
            if turn.role != "crystal":
                continue
            record.turns += 1
            record.reason = turn.reason
            record.usage += turn.metadata.usage
            if turn.utterance.code is not None and turn.observation.output is not None:
                record.commands.append((turn.utterance.code, turn.observation.output.exit_code))
            for result in turn.observation.results:
                record.gates.append(result.gate)
                if result.is_error:
                    record.failed_gates.append(f"{result.gate}: {str(result.result)[:200]}")
    return record


@dataclass(frozen=True)
class Finding:
    """The check of one promise of the demo: whether it holds, and what was found."""

    holds: bool
    words: str


def check_result(
    stage: SampleProject, before: Mapping[str, bytes], first: TestRun, record: Record, stop_reason: str
) -> list[Finding]:
    """Check everything that the demo claims. `before` and `first` were taken before the session."""
    runs = [status for command, status in record.commands if command.strip().startswith("make test")]
    after = stage.files()
    changed = sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
    last = run_tests(stage.project)
    missing = len(stage.script) - record.turns
    flipped = len(runs) == 2 and runs[0] not in (0, None) and runs[1] == 0
    return [
        Finding(
            flipped,
            f"in the sandbox, `make test` failed and then passed (exit {' then '.join(map(str, runs)) or 'never'})",
        ),
        Finding(
            not first.passed and last.passed,
            f"outside of it the same tests failed before ({first.words}) and pass now ({last.words})",
        ),
        Finding(changed == [SUSPECT], f"changed in the project: {', '.join(changed) or 'nothing'}"),
        Finding(
            not record.failed_gates and "edit_file" in record.gates,
            "every gate did its work: "
            + (", ".join(record.gates) if not record.failed_gates else "; ".join(record.failed_gates)),
        ),
        Finding(
            stop_reason == "end_turn" and record.reason == "done" and not missing,
            f"the entity was done by itself after {record.turns} turns ({stop_reason}, {record.reason})",
        ),
    ]
