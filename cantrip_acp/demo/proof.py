"""Demo checks: compares the loom and the files after the demo with what the demo promises."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cantrip_acp.crystals.contract import NO_USAGE, Usage
from cantrip_acp.demo.stage import SUSPECT, Stage


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


def examine(
    stage: Stage, before: Mapping[str, bytes], first: TestRun, record: Record, stop_reason: str
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
