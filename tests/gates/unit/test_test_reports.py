"""What runners print, read: outputs as programs of several versions write them, and outputs made to confuse."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_acp.gates.testing.test_report import MOST_FAILURES, READERS, GoReader, read

CARGO = """running 3 tests
test tests::adds ... FAILED
test tests::zero ... ok
test tests::slow ... ignored

failures:

---- tests::adds stdout ----
thread 'tests::adds' panicked at src/lib.rs:10:9:
assertion `left == right` failed
  left: -1
 right: 3


failures:
    tests::adds

test result: FAILED. 1 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s
"""
JEST = """FAIL ./sum.test.js
  ✓ zero (1 ms)
  ✕ adds (2 ms)

  ● adds

    expect(received).toBe(expected)

Test Suites: 1 failed, 1 total
Tests:       1 failed, 2 skipped, 3 passed, 6 total
Time:        0.5 s
"""
VITEST = """ FAIL  test/sum.test.ts > adds
AssertionError: expected -1 to be 3

 Test Files  1 failed (1)
      Tests  1 failed | 2 passed | 1 skipped (4)
   Duration  300ms
"""
MOCHA = """  sum
    ✔ zero
    1) adds


  2 passing (5ms)
  1 pending
  1 failing

  1) sum
       adds:

      AssertionError [ERR_ASSERTION]: -1 == 3
"""
TAP = """TAP version 13
ok 1 - one
not ok 2 - two
  error: 'x'
# tests 2
# pass 1
# fail 1
# skipped 0
"""
PYTEST = """.FE                                                                      [100%]
==================================== ERRORS ====================================
________________________ ERROR at setup of test_c ________________________
E   fixture 'x' not found
=================================== FAILURES ===================================
_________________________________ test_b[1-2] __________________________________
tests/test_x.py:4: in test_b
    assert 1 == 2
E   assert 1 == 2
=========================== short test summary info ============================
FAILED tests/test_x.py::test_b[1-2] - assert 1 == 2
1 failed, 1 passed, 2 skipped, 1 xfailed, 1 warning, 1 error in 0.05s
"""
UNITTEST = """test_a (t.T.test_a) ... FAIL
======================================================================
FAIL: test_a (t.T.test_a)
----------------------------------------------------------------------
Traceback (most recent call last):
AssertionError: 1 != 2

----------------------------------------------------------------------
Ran 4 tests in 0.001s

FAILED (failures=1, errors=1, skipped=1)
"""
GO = "\n".join(
    json.dumps(event)
    for event in (
        {"Action": "run", "Package": "x", "Test": "TestA"},
        {"Action": "output", "Package": "x", "Test": "TestA", "Output": "    a_test.go:7: got -1\n"},
        {"Action": "fail", "Package": "x", "Test": "TestA"},
        {"Action": "pass", "Package": "x", "Test": "TestB"},
        {"Action": "skip", "Package": "x", "Test": "TestC"},
        {"Action": "output", "Package": "x", "Output": "FAIL\n"},
        {"Action": "fail", "Package": "x"},
        {"Action": "output", "Package": "y", "Output": "FAIL\ty [build failed]\n"},
        {"Action": "fail", "Package": "y"},
    )
)
GO_PLAIN = "=== RUN   TestA\n--- FAIL: TestA (0.00s)\n    a_test.go:7: got -1\n--- PASS: TestB (0.00s)\nFAIL\n"


@pytest.mark.parametrize(
    ("runner", "output", "counts", "name", "says"),
    [
        ("cargo", CARGO, (1, 1, 0, 1), "tests::adds", "left: -1"),
        ("cargo", CARGO + CARGO, (2, 2, 0, 2), "tests::adds", "left: -1"),
        ("npm", JEST, (3, 1, 0, 2), "adds", "expect(received)"),
        ("npm", VITEST, (2, 1, 0, 1), "test/sum.test.ts > adds", "expected -1"),
        ("npm", MOCHA, (2, 1, 0, 1), "sum", "ERR_ASSERTION"),
        ("npm", TAP, (1, 1, 0, 0), "two", "error: 'x'"),
        ("pytest", PYTEST, (1, 1, 1, 3), "test_b[1-2]", "assert 1 == 2"),
        ("unittest", UNITTEST, (1, 1, 1, 1), "test_a (t.T.test_a)", "1 != 2"),
        ("unittest", PYTEST, (1, 1, 1, 3), "test_b[1-2]", "assert 1 == 2"),
        ("make", CARGO, (1, 1, 0, 1), "tests::adds", "left: -1"),
        ("command", GO, (1, 1, 1, 1), "x TestA", "got -1"),
        ("go", GO_PLAIN, (1, 1, 0, 0), "TestA", "got -1"),
    ],
)
def test_runners(runner: str, output: str, counts: tuple[int, ...], name: str, says: str) -> None:
    report = read(runner, output)
    assert tuple(n or 0 for n in (report.passed, report.failed, report.errors, report.skipped)) == counts
    failure = next(f for f in report.failures if f.name == name)
    assert says in failure.text


@pytest.mark.parametrize("output", ["", "all fine\n", "3 passed the door\n", "Ran home\n", "Tests: see below\n"])
def test_nothing_said(output: str) -> None:
    for runner in ("make", *READERS):
        report = read(runner, output)
        assert not report.counted
        assert (report.passed, report.failed) == (None, None)


def test_go_in_pieces_and_with_noise() -> None:
    reader = GoReader()
    for n in range(0, len(GO), 7):
        reader.feed(GO[n : n + 7].encode())
    reader.feed(b"\nnot json\n{broken\n[1]\n{}\n" + b"x" * 3_000_000)
    assert (reader.report.passed, reader.report.failed, reader.report.errors) == (1, 1, 1)


def test_a_flood_of_failures_is_bounded() -> None:
    text = "".join(f"____________ test_{n} ____________\n{'x' * 20_000}\n" for n in range(500))
    report = read("pytest", f"{text}500 failed in 1.0s\n")
    assert report.failed == 500
    assert len(report.failures) == MOST_FAILURES
    assert all(len(failure.text) < 5_000 for failure in report.failures)


@pytest.mark.parametrize(
    "output",
    ["1 a" * 100_000, "= " * 200_000, "_" * 400_000, "Tests: " + "1 a, " * 80_000, "1 passed" * 50_000, "\n" * 400_000,
     "Ran 1 test in 0.1s\nOK (" + "failures=1," * 50_000, "not ok 1 - " * 50_000, "#" * 300_000],
)  # fmt: skip
def test_an_output_made_to_be_slow(output: str) -> None:
    before = time.process_time()
    for runner in ("make", *READERS):
        read(runner, output)
    assert time.process_time() - before < 20


@given(st.text(max_size=300))
def test_any_output(output: str) -> None:
    for runner in ("make", *READERS):
        read(runner, output)
