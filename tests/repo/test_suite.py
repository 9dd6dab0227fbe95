"""The count that CI prints is the count of what ran: `.ci/suite.py` is tried on tests that pass, fail, skip and vanish."""

import importlib.util
import os
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
CASES = """
import os, pytest
def test_good(): pass
def test_also_good(): pass
def test_skipped(): pytest.skip("no moon")
def test_bad(): assert False
@pytest.fixture
def broken(): raise RuntimeError
def test_error(broken): pass
"""


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("suite", ROOT / ".ci" / "suite.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Its dataclass looks itself up there.
    monkeypatch.setitem(sys.modules, "suite", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "REPORTS", tmp_path / "reports")
    (tmp_path / "reports").mkdir()
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return module


def test_counts_are_those_of_the_report(suite: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "test_cases.py").write_text(CASES)
    outcome = suite.pytest_stage("some", ["-p", "no:cacheprovider"], 1)
    assert (outcome.passed, outcome.failed, outcome.skipped) == (2, 2, 1)
    assert outcome.skips == {"no moon": 1}


def test_no_tests_are_no_failure_of_a_stage(suite: ModuleType) -> None:
    outcome = suite.pytest_stage("none", ["-p", "no:cacheprovider"], 1)
    assert (outcome.passed, outcome.failed, outcome.skipped) == (0, 0, 0)


@pytest.mark.parametrize(
    "code",
    ["import os; os._exit(0)", "raise SystemExit(3)", "def broken(:"],
    ids=["died without a report", "left early", "not Python"],
)
def test_a_stage_that_breaks_is_a_failure(suite: ModuleType, tmp_path: Path, code: str) -> None:
    (tmp_path / "test_cases.py").write_text(code + "\n")
    assert suite.pytest_stage("broken", ["-p", "no:cacheprovider"], 1).failed >= 1


@pytest.mark.slow
def test_a_stage_over_time_is_a_failure_and_its_processes_end(suite: ModuleType, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    child = f"import os, time; open({str(note)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    (tmp_path / "test_cases.py").write_text(
        f"import subprocess, sys\ndef test_hang(): subprocess.run([sys.executable, '-c', {child!r}])\n"
    )
    # Long enough for pytest to reach the test on a busy machine.
    assert suite.pytest_stage("slow", ["-p", "no:cacheprovider"], 15 / 60).failed >= 1
    # It is an orphan by now: gone, or dead and not yet buried by whoever adopted it.
    status = Path(f"/proc/{note.read_text()}/stat")
    for _ in range(50):
        if not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "Z":
            return
        time.sleep(0.05)
    pytest.fail("the test's child outlived its stage")


@pytest.mark.parametrize(
    ("output", "status", "expected"),
    [
        ("ok\\n12 passed, 0 failed, 3 skipped", 0, (12, 0, 3)),
        ("12 passed, 2 failed, 3 skipped", 1, (12, 2, 3)),
        ("12 passed, 0 failed, 0 skipped", 1, (12, 1, 0)),
        ("conformance: 5 passed, 0 failed, 0 skipped", 0, (5, 0, 0)),
        ("Traceback (most recent call last):", 1, (0, 1, 0)),
        ("", 0, (0, 1, 0)),
    ],
)
def test_the_conformance_stage_reads_the_last_line(
    suite: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    output: str,
    status: int,
    expected: tuple[int, ...],
) -> None:
    command = tmp_path / "cantrip"
    command.write_text(f"#!/bin/sh\nprintf '{output}\\n'\nexit {status}\n")
    command.chmod(0o755)
    monkeypatch.setattr(suite, "BIN", tmp_path)
    outcome = suite.conformance_stage()
    assert (outcome.passed, outcome.failed, outcome.skipped) == expected


def test_skipped_cases_give_their_reasons(suite: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = "skipped LOOM-4 forks [forks are to come]\\nskipped LOOM-5 folds\\n0 passed, 0 failed, 2 skipped\\n"
    command = tmp_path / "cantrip"
    command.write_text(f"#!/bin/sh\nprintf '{lines}'\n")
    command.chmod(0o755)
    monkeypatch.setattr(suite, "BIN", tmp_path)
    assert suite.conformance_stage().skips == {"forks are to come": 1, "a conformance case, no reason given": 1}


def test_shell_scripts_parse() -> None:
    for script in (".ci/run", ".ci/setup"):
        subprocess.run(["bash", "-n", script], cwd=ROOT, check=True)
        assert os.access(ROOT / script, os.X_OK), f"{script} is not executable"
