"""Test report: parses the output of a test run for the numbers of passed and failed tests, and the text of each failure.

The output comes from the sandbox and may be wrong, so it only informs the entity. The exit status decides whether the tests
passed. A number that is not found is None.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

MOST_FAILURES = 30
LONGEST = 4_000
"""The most characters of one failure's text."""
_MOST_PENDING = 2_000


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed test, with the text of its failure."""

    name: str
    text: str = ""


@dataclass(slots=True)
class Report:
    """The numbers and failures in an output. A number is None if the output does not have it."""

    passed: int | None = None
    failed: int | None = None
    errors: int | None = None
    skipped: int | None = None
    failures: list[Failure] = field(default_factory=list)

    @property
    def counted(self) -> bool:
        return self.passed is not None or self.failed is not None

    @property
    def total(self) -> int:
        """The number of tests that were run, without skipped ones."""
        return sum(n or 0 for n in (self.passed, self.failed, self.errors))

    def add(self, name: str, text: str) -> None:
        if len(self.failures) < MOST_FAILURES:
            text = text.strip("\n")
            short = text if len(text) <= LONGEST else f"{text[: LONGEST // 2]}\n[…]\n{text[-LONGEST // 2 :]}"
            self.failures.append(Failure(" ".join(name.split())[:300], short))


def read(runner: str, output: str) -> Report:
    """Parse the output of a run. If the parser of the runner finds nothing, all other parsers are tried, because a command
    may start any runner."""
    names = [runner, *(name for name in READERS if name != runner)]
    for name in names:
        report = READERS[name](output) if name in READERS else Report()
        if report.counted:
            return report
    return Report()


_PYTEST_COUNT = re.compile(r"(\d+) (passed|failed|errors?|skipped|xfailed|xpassed)\b")
_PYTEST_END = re.compile(r"^(?:=+ )?((?:\d+ [a-z]+(?:, )?)+) in [\d.]+s.*$|^(?:=+ )?no tests ran in", re.MULTILINE)
_PYTEST_HEAD = re.compile(r"^_{3,} (.{1,300}?) _{3,}$", re.MULTILINE)
_PYTEST_PART = re.compile(r"^=+ (?:[A-Za-z ]+|\d.*) =+$", re.MULTILINE)


def _pytest(output: str) -> Report:
    report = Report()
    ends = list(_PYTEST_END.finditer(output))
    if not ends:
        return report
    report.passed = report.failed = report.errors = report.skipped = 0
    for number, word in _PYTEST_COUNT.findall(ends[-1][1] or ""):
        match word:
            case "passed" | "xpassed":
                report.passed += int(number)
            case "failed":
                report.failed += int(number)
            case "error" | "errors":
                report.errors += int(number)
            case _:
                report.skipped += int(number)
    heads = list(_PYTEST_HEAD.finditer(output))
    for index, head in enumerate(heads):
        end = heads[index + 1].start() if index + 1 < len(heads) else ends[-1].start()
        text = output[head.end() : end]
        part = _PYTEST_PART.search(text)
        report.add(head[1], text[: part.start()] if part else text)
    return report


_UNITTEST_RAN = re.compile(r"^Ran (\d+) tests? in [\d.]+s$", re.MULTILINE)
_UNITTEST_END = re.compile(r"^(OK|FAILED|NO TESTS RAN)(?: \(([^)\n]{1,200})\))?$", re.MULTILINE)
_UNITTEST_HEAD = re.compile(r"^={70}\n(?:FAIL|ERROR): (.+)$", re.MULTILINE)


def _unittest(output: str) -> Report:
    report = Report()
    ran = list(_UNITTEST_RAN.finditer(output))
    ends = [m for m in _UNITTEST_END.finditer(output) if ran and m.start() > ran[-1].start()]
    if not ran or not ends:
        return report
    said = dict(
        re.findall(r"(failures|errors|skipped|expected failures|unexpected successes)=(\d+)", ends[-1][2] or "")
    )
    report.failed = int(said.get("failures", 0)) + int(said.get("unexpected successes", 0))
    report.errors = int(said.get("errors", 0))
    report.skipped = int(said.get("skipped", 0)) + int(said.get("expected failures", 0))
    report.passed = max(0, int(ran[-1][1]) - report.failed - report.errors - report.skipped)
    heads = list(_UNITTEST_HEAD.finditer(output))
    for index, head in enumerate(heads):
        end = heads[index + 1].start() if index + 1 < len(heads) else ran[-1].start()
        report.add(head[1], output[head.end() : end].strip("\n").strip("-"))
    return report


_JEST = re.compile(r"^[ \t]*Tests:?[ \t]+((?:\d+ [a-z]+(?:,[ ]?| \| | )?)+)", re.MULTILINE)
_JEST_HEAD = re.compile(r"^[ \t]*(?:●|FAIL|×|✗) +(.{1,300})$", re.MULTILINE)
_MOCHA = re.compile(r"^[ \t]+(\d+) (passing|failing|pending)\b", re.MULTILINE)
_MOCHA_HEAD = re.compile(r"^  (\d+)\) (.+)$", re.MULTILINE)
_TAP_COUNT = re.compile(r"^(?:#|ℹ) (pass|fail|skipped) (\d+)$", re.MULTILINE)
_TAP_HEAD = re.compile(r"^ *(?:not ok \d+ - |✖ )(.{1,300})$", re.MULTILINE)


def _npm(output: str) -> Report:
    report = Report()
    jest, mocha, tap = list(_JEST.finditer(output)), _MOCHA.findall(output), _TAP_COUNT.findall(output)
    if jest:
        said = {word: int(number) for number, word in re.findall(r"(\d+) ([a-z]+)", jest[-1][1])}
        report.passed, report.failed = said.get("passed", 0), said.get("failed", 0)
        report.skipped = said.get("skipped", 0) + said.get("todo", 0)
        heads = _JEST_HEAD
    elif mocha:
        said = {word: int(number) for number, word in mocha}
        report.passed, report.failed = said.get("passing", 0), said.get("failing", 0)
        report.skipped = said.get("pending", 0)
        heads = _MOCHA_HEAD
    elif tap:
        said = {word: int(number) for word, number in tap}
        report.passed, report.failed, report.skipped = said.get("pass", 0), said.get("fail", 0), said.get("skipped", 0)
        heads = _TAP_HEAD
    else:
        return report
    if report.failed:
        _blocks(report, heads, output)
    return report


_CARGO = re.compile(r"^test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored", re.MULTILINE)
_CARGO_HEAD = re.compile(r"^---- (.{1,300}?) stdout ----$", re.MULTILINE)


def _cargo(output: str) -> Report:
    report = Report()
    found = _CARGO.findall(output)
    if found:
        report.passed, report.failed, report.skipped = (sum(int(row[i]) for row in found) for i in range(3))
        _blocks(report, _CARGO_HEAD, output, until=re.compile(r"^failures:$", re.MULTILINE))
    return report


_GO_LINE = re.compile(r"^[ \t]*--- (PASS|FAIL|SKIP): (\S+)", re.MULTILINE)


def _parse_go(output: str) -> Report:
    """Parse the JSON of ``go test -json``, or the normal lines with -v."""
    reader = GoReader()
    reader.feed(output.encode() + b"\n")
    if reader.report.counted:
        return reader.report
    report = Report()
    lines = _GO_LINE.findall(output)
    if lines:
        report.passed, report.failed, report.skipped = (
            sum(word == w for word, _ in lines) for w in ("PASS", "FAIL", "SKIP")
        )
        _blocks(report, re.compile(r"^[ \t]*--- FAIL: (\S+).*$", re.MULTILINE), output)
    return report


class GoReader:
    """Parses the output of ``go test -json`` while it arrives. `report` has the result so far."""

    def __init__(self) -> None:
        self.report = Report()
        self._rest = b""
        self._pending_output: dict[tuple[str, str], list[str]] = {}

    def feed(self, data: bytes) -> None:
        """Parse the next bytes. A very long unfinished line is dropped."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > 1_000_000:
            self._rest = b""
        for line in lines:
            if line.startswith(b"{"):
                self._line(line)

    def _line(self, line: bytes) -> None:
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            return
        if not isinstance(event, dict):
            return
        test, package, action = event.get("Test"), event.get("Package", ""), event.get("Action")
        key = (str(package), str(test or ""))
        if action == "output" and isinstance(event.get("Output"), str):
            if len(self._pending_output) < _MOST_PENDING or key in self._pending_output:
                said = self._pending_output.setdefault(key, [])
                if sum(map(len, said)) < LONGEST:
                    said.append(event["Output"])
        elif action in ("pass", "fail", "skip"):
            said = self._pending_output.pop(key, [])
            if test is None and not (action == "fail" and "build failed" in "".join(said)):
                return
            report = self.report
            report.passed, report.failed = report.passed or 0, report.failed or 0
            report.errors, report.skipped = report.errors or 0, report.skipped or 0
            if action == "pass":
                report.passed += 1
            elif action == "skip":
                report.skipped += 1
            else:
                report.failed += test is not None
                report.errors += test is None
                report.add(f"{key[0]} {key[1]}".strip(), "".join(said))


def _blocks(report: Report, heads: re.Pattern[str], output: str, until: re.Pattern[str] | None = None) -> None:
    """Add a failure for each heading, with the text up to the next heading."""
    for name, text in _parts(heads, output):
        if until is not None and (end := until.search(text)):
            text = text[: end.start()]
        report.add(name, text)


def _parts(heads: re.Pattern[str], output: str) -> Iterator[tuple[str, str]]:
    found = list(heads.finditer(output))[: MOST_FAILURES + 1]
    for index, head in enumerate(found):
        end = found[index + 1].start() if index + 1 < len(found) else len(output)
        yield head[head.lastindex or 0], output[head.end() : end]


READERS: dict[str, Callable[[str], Report]] = {
    "pytest": _pytest,
    "unittest": _unittest,
    "npm": _npm,
    "cargo": _cargo,
    "go": _parse_go,
}
"""The parser of each runner's output."""
