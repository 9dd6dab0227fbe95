"""Runs every test of the project and counts them: `make test`.

    python .ci/suite.py            everything
    python .ci/suite.py -k loom    the pytest stages alone, with these arguments

Stages: the tests, two at a time for each core (or as many as TEST_WORKERS says); beside them, in one process, those that run real
models, the doctests and the conformance suite; and at the end those that measure time, one at a time. The counts are read from
what the runners wrote (JUnit XML, the conformance runner's last line), never guessed: a stage that wrote nothing, or that
failed without naming a failure, counts as one. A failed test is not tried again. The last line is `N passed, N failed, N
skipped`, and `.reports/counts` holds the same three numbers for `.ci/run`. Exit status 0 only where nothing failed.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
REPORTS = ROOT / ".reports"
BIN = Path(sys.executable).parent
NO_TESTS_COLLECTED = 5  # pytest's exit status
WORKERS = int(os.environ.get("TEST_WORKERS", 0)) or 2 * (os.cpu_count() or 1)
"""Tests at the same time. Most of them wait for processes for more than half of their time."""


@dataclass
class Outcome:
    """What one stage did. ``skips`` counts the reasons given."""

    name: str
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    skips: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def fail(self, what: str) -> None:
        self.failed += 1
        self.failures.append(what)

    def line(self) -> str:
        return (
            f"{self.name:<12} {self.passed:>5} passed {self.failed:>4} failed {self.skipped:>4} skipped"
            f" {self.seconds:>7.1f} s"
        )


_running: set[int] = set()
"""The process groups of the stages that run now."""


def run(command: list[str], minutes: float, *, keep: bool = False) -> tuple[int, str]:
    """Run a stage with no standard input in a process group of its own; gone when it is over time.

    Returns its exit status and, where ``keep``, its standard output (printed all the same).
    """
    print(f"\n$ {' '.join(command)}", flush=True)
    environment = os.environ | {"PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}
    # Thousands of processes start here. Without bytecode files, each would compile every module that it imports.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if keep else None,
        text=keep,
        errors="replace" if keep else None,
        start_new_session=True,
    )
    _running.add(process.pid)
    try:
        output, _ = process.communicate(timeout=minutes * 60)
    except (subprocess.TimeoutExpired, KeyboardInterrupt) as stop:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        if isinstance(stop, KeyboardInterrupt):
            raise
        print(f"stopped after {minutes:g} minutes", flush=True)
        return -signal.SIGKILL, output or ""
    finally:
        _running.remove(process.pid)
    if keep:
        print(output, end="", flush=True)
    return process.returncode, output or ""


def pytest_stage(name: str, arguments: list[str], minutes: float, *, keep: bool = False) -> Outcome:
    """One run of pytest, counted from its JUnit report. Where ``keep``, its output is printed when it has ended."""
    outcome = Outcome(name)
    report = REPORTS / f"{name}.xml"
    began = time.monotonic()
    status, _ = run([sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", *arguments], minutes, keep=keep)
    if status == NO_TESTS_COLLECTED:
        return outcome
    try:
        _read(report, outcome)
    except (OSError, ElementTree.ParseError) as problem:
        outcome.fail(f"{name}: pytest ended with status {status} and no report ({problem})")
        return outcome
    if status != 0 and not outcome.failures:
        outcome.fail(f"{name}: pytest ended with status {status}, though no test failed")
    outcome.seconds = time.monotonic() - began
    return outcome


_GROUP = re.compile(r"@[\w-]+$")
"""The group of a test, which a worker of xdist adds to its id."""


def _label(case: ElementTree.Element) -> str:
    return f"{case.get('classname')}::{_GROUP.sub('', case.get('name') or '')}"


def _read(report: Path, outcome: Outcome) -> None:
    """Add what a JUnit report says."""
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        label = _label(case)
        if case.find("failure") is not None or case.find("error") is not None:
            outcome.fail(label)
        elif (skipped := case.find("skipped")) is not None:
            outcome.skipped += 1
            outcome.skips[skipped.get("message") or "no reason given"] += 1
        else:
            outcome.passed += 1


def conformance_stage() -> Outcome:
    """`cantrip conformance tests.yaml`, counted by its last line."""
    outcome = Outcome("conformance")
    began = time.monotonic()
    status, output = run([str(BIN / "cantrip"), "conformance", "tests.yaml"], 15, keep=True)
    outcome.seconds = time.monotonic() - began
    lines = output.rstrip().splitlines() or [""]
    counts = re.fullmatch(r"(?:.*\s)?(\d+) passed, (\d+) failed, (\d+) skipped\s*", lines[-1])
    if counts is None:
        outcome.fail(f"conformance: ended with status {status} and no summary line")
        return outcome
    outcome.passed, failed, outcome.skipped = map(int, counts.groups())
    for _ in range(failed):
        outcome.fail("a conformance case (its line is above)")
    # A skipped case's line ends with its reason in brackets.
    outcome.skips.update(re.findall(r"^skipped .*\[(.+)\]$", output, re.MULTILINE))
    if untold := outcome.skipped - outcome.skips.total():
        outcome.skips["a conformance case, no reason given"] += untold
    if status != 0 and not failed:
        outcome.fail(f"conformance: ended with status {status}, though no case failed")
    return outcome


def _files_with(pattern: str) -> list[str]:
    """The test files with a line that begins like this. To collect these alone takes a tenth of the time."""
    found = re.compile(f"^{pattern}", re.MULTILINE)
    return [str(path) for path in sorted((ROOT / "tests").rglob("test_*.py")) if found.search(path.read_text())]


def _rewrite() -> None:
    """Let pytest keep the test modules as it rewrites them: on a fresh checkout, each worker would rewrite all by itself."""
    tests = ROOT / "tests"
    if any(tests.glob("repo/__pycache__/*-pytest-*.pyc")):
        return
    folders = sorted(
        str(each) for each in tests.iterdir() if each.is_dir() and each.name not in ("support", "__pycache__")
    )
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider"]
    left_out = [f"--ignore={path}" for path in _files_with(r"pytestmark = .*\bmark\.model\b")]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    halves = [
        subprocess.Popen(
            [*command, *left_out, *half],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for half in (folders[::2], folders[1::2])
    ]
    # Whatever fails here fails again in a stage, and is told there.
    for each in halves:
        each.wait()


def _stages_beside(arguments: list[str]) -> list[Callable[[], Outcome]]:
    """What runs in one process, one after the other, while the tests run. Each prints what it told when it has ended."""
    models = ["-m", "model", *(arguments or _files_with(r".*\bmark\.model\b"))]
    stages: list[Callable[[], Outcome]] = [partial(pytest_stage, "models", models, 40, keep=True)]
    if not arguments:
        pages = ["README.md", *sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").glob("*.md"))]
        doctests = ["--doctest-modules", "--doctest-glob=*.md", "cantrip_acp/__init__.py", *pages]
        stages += [partial(pytest_stage, "doctests", doctests, 15, keep=True), conformance_stage]
    return stages


def main(arguments: list[str]) -> int:
    shutil.rmtree(REPORTS, ignore_errors=True)
    REPORTS.mkdir()
    _rewrite()
    # Each worker would import torch, and keep it, for tests that it does not run.
    left_out = [f"--ignore={path}" for path in _files_with(r"pytestmark = .*\bmark\.model\b")]
    # loadgroup: tests that must not meet each other name the same xdist_group.
    parallel = [
        "-n",
        str(WORKERS),
        "-p",
        "tests.support.scheduling",
        "--dist",
        "loadgroup",
        *left_out,
    ]
    with ThreadPoolExecutor(1) as thread:
        beside = [thread.submit(stage) for stage in _stages_beside(arguments)]
        try:
            outcomes = [pytest_stage("tests", ["-m", "not timing and not model", *parallel, *arguments], 60)]
            outcomes.extend(each.result() for each in beside)
        except KeyboardInterrupt:
            thread.shutdown(wait=False, cancel_futures=True)
            for group in list(_running):
                with suppress(ProcessLookupError):
                    os.killpg(group, signal.SIGKILL)
            raise
    outcomes.append(pytest_stage("timing", ["-m", "timing", *(arguments or _files_with(r".*\bmark\.timing\b"))], 15))

    passed, failed, skipped = (
        sum(getattr(each, name) for each in outcomes) for name in ("passed", "failed", "skipped")
    )
    reasons = sum((each.skips for each in outcomes), Counter[str]())
    if reasons:
        print("\nskipped:")
        for reason, count in reasons.most_common():
            print(f"  {count:>4} x {reason}")
    if failed:
        print("\nfailed:")
        for each in outcomes:
            for what in each.failures:
                print(f"  {each.name}: {what}")
    print()
    for each in outcomes:
        print(each.line())
    if passed == 0 and failed == 0:
        print("no test ran: that is no success (check the arguments)")
        failed = 1
    (REPORTS / "counts").write_text(f"{passed} {failed} {skipped}\n")
    print(f"{passed} passed, {failed} failed, {skipped} skipped", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
