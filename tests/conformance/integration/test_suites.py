"""The project's own suite passes, a suite of wrong cases fails everywhere, and a stranger's suite is taken as it is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from cantrip_acp.conformance import grammar
from cantrip_acp.conformance.case import Case, medium_of
from cantrip_acp.conformance.grammar import Shape
from cantrip_acp.conformance.runner import run_case
from cantrip_acp.conformance.suite import read_suite
from tests.support.fixtures.conformance import HERE, ROOT


@cache
def suite(file: Path) -> list[Case]:
    """The cases of a suite. To read one takes seconds, so nothing does while tests are collected."""
    return read_suite(file)


OWN, WRONG = ROOT / "tests.yaml", HERE / "wrong.yaml"

RULES = """CANTRIP-1 CANTRIP-2 CANTRIP-3 INTENT-1 INTENT-2 INTENT-3 ENTITY-1 ENTITY-2 ENTITY-3 ENTITY-4 ENTITY-5 ENTITY-6
LOOP-1 LOOP-2 LOOP-3 LOOP-4 LOOP-5 LOOP-6 CRYSTAL-1 CRYSTAL-2 CRYSTAL-3 CRYSTAL-4 CRYSTAL-5 CALL-1 CALL-2 CALL-3 CALL-4
CIRCLE-1 CIRCLE-2 CIRCLE-3 CIRCLE-4 CIRCLE-5 CIRCLE-6 CIRCLE-7 CIRCLE-8 CIRCLE-10 CIRCLE-11 WARD-1
LOOM-1 LOOM-2 LOOM-3 LOOM-7 LOOM-9 LOOM-10 PROD-1 PROD-2 PROD-3 D-001 D-003 D-004 D-005 D-006""".split()
"""Rules that this version keeps; each has a case that runs."""

LATER = """CIRCLE-9 COMP-1 COMP-2 COMP-3 COMP-4 COMP-5 COMP-6 COMP-7 COMP-8 COMP-9 LOOM-4 LOOM-5 LOOM-6 LOOM-8 LOOM-11 LOOM-12
PROD-4 PROD-5 CRYSTAL-6 CALL-5 D-002 D-007 D-008 D-009 D-010
D-011""".split()
"""Rules whose cases stand in the suite already and are skipped until what they need is there."""


async def test_every_rule_has_a_case_that_runs_and_none_fails() -> None:
    """Without those that need a sandbox: `cantrip conformance tests.yaml`, a stage of `make test`, runs all cases."""
    outcomes = [await run_case(case) for case in suite(OWN) if medium_of(case) != "bash"]
    failed = [
        f"{each.case.where}: {problem}" for each in outcomes if each.status == "failed" for problem in each.problems
    ]
    assert not failed, "\n".join(failed)
    ran = {outcome.case.rule for outcome in outcomes if outcome.status == "passed"}
    assert set(RULES) <= ran, f"no case runs for {sorted(set(RULES) - ran)}"
    assert {case.rule for case in suite(OWN)} == set(RULES) | set(LATER)


def test_cases_without_an_action_say_where_the_rule_is_tested() -> None:
    for case in suite(OWN):
        if not case.actions:
            assert case.data.get("notes"), case.where


async def test_wrong_cases_fail_where_they_are_wrong() -> None:
    for case in suite(WRONG):
        outcome = await run_case(case)
        assert outcome.status == "failed", case.where
        assert {problem.path for problem in outcome.problems} == {case.data["notes"]}, case.where


EXHAUSTED = """
- rule: LOOP-1
  name: the script has one response for two queries
  setup:
    crystal: { responses: [{ tool_calls: [{ gate: echo, args: { text: one } }] }] }
    circle: { gates: [done, echo], wards: [{ max_turns: 5 }] }
  action: { cast: { intent: go } }
  expect: {EXPECT}
"""


@pytest.mark.parametrize(
    ("expect", "places"),
    [
        pytest.param("{ gate_results: [one] }", ["action.cast"], id="the failure is a line of its own"),
        pytest.param(
            "{ gate_results: [two], crystal_invocations: 7, result: x, terminated: true }",
            [
                "action.cast",
                "expect.gate_results[0]",
                "expect.crystal_invocations",
                "expect.result",
                "expect.terminated",
            ],
            id="every other expectation is judged",
        ),
        pytest.param(
            "{ error: the script has run out, gate_results: [one], crystal_invocations: 2 }", [], id="as expected"
        ),
        pytest.param(
            "{ error: something else, gate_results: [two] }",
            ["expect.error", "expect.gate_results[0]"],
            id="another failure was expected",
        ),
    ],
)
async def test_a_script_that_runs_out_leaves_the_other_expectations_judged(outcomes, expect, places) -> None:
    (outcome,) = await outcomes(EXHAUSTED.replace("{EXPECT}", expect))
    assert [problem.path for problem in outcome.problems] == places
    assert outcome.status == ("failed" if places else "passed")


def test_wrong_cases_cover_every_expectation() -> None:
    """Each key that the grammar admits under ``expect`` fails somewhere in the file of wrong cases."""
    notes = [str(case.data["notes"]) for case in suite(WRONG)]
    missing = [place for place in _places() if not any(re.fullmatch(place, note) for note in notes)]
    assert not missing


def _places() -> Iterator[str]:
    """A pattern for each place at which an expectation can fail."""

    def under(prefix: str, shape: Shape) -> Iterator[str]:
        for key in shape.keys or {}:
            yield rf"{prefix}\.{key}(\b.*)?"

    yield from under("expect", grammar.EXPECT)
    yield from (r"expect\.turn_\d+_observation", r"expect\.thread_\d+", r"expect\.\w+_crystal_invocations")
    yield from under(r"expect\.turn_\d+_observation", grammar.FIRST_RESULT)
    yield from under(r"expect\.thread_\d+", grammar.THREAD)
    yield from under(r"expect\.loom", grammar.EXPECT.keys["loom"])
    for usage in ("usage", "cumulative_usage"):
        yield rf"expect\.{usage}\.(prompt|total)_tokens"
    yield from under(r"expect\.usage", grammar.USAGE)
    # The size of a list of queries and of turns stands before its items, not in one of them.
    invocation = {key: shape for key, shape in grammar.INVOCATION.keys.items() if key != "length"}
    yield from under(r"expect\.\w+_invocations\[\d\]", Shape(invocation))
    yield from (r"expect\.crystal_invocations\.length", r"expect\.loom\.turns\.length", r"expect\.thread\.length")
    yield from under(r"expect\.\w+_invocations\[\d\]\.messages\[\d\]", Shape({**grammar.MESSAGE.keys}))
    yield from under(
        r"expect\.crystal_received_tools\[\d\]", Shape(dict.fromkeys(("description", "parameters"), grammar.PLAIN))
    )
    turn = {key: shape for key, shape in grammar.TURN.keys.items() if key != "length"}
    yield from under(r"expect\.loom\.turns\[\d\]", Shape(turn))
    yield from under(r"expect\.loom\.turns\[\d\]\.metadata", grammar.METADATA)
    yield from under(r"expect\.loom\.turns\[\d\]\.utterance", turn["utterance"])
    yield from under(r"expect\.loom\.turns\[\d\]\.observation", turn["observation"])
    yield from under(r"expect\.loom\.turns\[\d\]\.observation\.results\[\d\]", grammar.RECORD)
    yield from under(r"expect\.loom\.turns\[\d\]\.observation\.output", grammar.OUTPUT)


async def test_strangers_suite() -> None:
    outcomes = [await run_case(case) for case in read_suite(HERE / "stranger.yaml")]
    told = {(o.case.rule, o.case.name): o for o in outcomes}
    assert len(told) == len(outcomes) == 20
    problems = {o.case.name: [str(p) for p in o.problems] for o in outcomes if o.status == "failed"}
    assert set(problems) == {"not YAML at all", "a key that nobody knows"}
    (broken,) = problems["not YAML at all"]
    assert re.search(r"stranger\.yaml:\d+:\d+: not YAML: ", broken)
    assert problems["a key that nobody knows"] == ["expect.reslut: unknown key; did you mean 'result'?"]
    reasons = {o.case.rule: o.reason for o in outcomes if o.status == "skipped"}
    assert reasons["CIRCLE-9"] == "the suite says to skip it"
    assert "no action" in reasons["ENTITY-6"]
    assert told["LAST", "what comes after a broken case is run"].status == "passed"
