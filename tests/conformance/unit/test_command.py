"""The command: a line a case, the counts at the end, exit statuses, --rule, --json; and runs that go wrong."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

CASE = """
- rule: {rule}
  name: {name}
  setup:
    crystal: {{ responses: [{{ content: hi }}] }}
    circle: {{ gates: [done], wards: [{{ max_turns: 5 }}] }}
  action: {{ cast: {{ intent: greet }} }}
  expect: {{ result: {result} }}
"""
PASSES = CASE.format(rule="LOOP-6", name="it passes", result="hi")
FAILS = CASE.format(rule="LOOM-7", name="it fails", result="ho")
SKIPS = "\n- { rule: PROD-1, name: it is elsewhere }\n"


def test_all_passed(write, command) -> None:
    result = command(write(PASSES + SKIPS))
    assert result.exit_code == 0
    passed, skipped, counts = result.stdout.splitlines()
    assert re.fullmatch(r"passed +LOOP-6 +it passes", passed)
    assert re.fullmatch(r"skipped +PROD-1 +it is elsewhere +\[it has no action.*\]", skipped)
    assert counts == "1 passed, 0 failed, 1 skipped"


def test_one_failed(write, command) -> None:
    path = write(PASSES + FAILS + SKIPS)
    result = command(path)
    assert result.exit_code == 1
    assert len(result.stdout.splitlines()) == 4
    assert f"{path}:10: expect.result: expected 'ho', got 'hi'" in result.stdout
    assert result.stdout.endswith("1 passed, 1 failed, 1 skipped\n")


def test_several_files(write, command, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(FAILS)
    result = command(write(PASSES), other)
    assert result.exit_code == 1
    assert result.stdout.endswith("1 passed, 1 failed, 0 skipped\n")


def test_an_unreadable_file_does_not_keep_the_others_from_running(write, command, tmp_path: Path) -> None:
    result = command(tmp_path / "missing.yaml", write(PASSES))
    assert result.exit_code == 2
    assert "missing.yaml: cannot read the suite: No such file or directory" in result.stderr
    assert result.stdout.endswith("1 passed, 0 failed, 0 skipped\n")


def test_a_file_that_is_no_suite(write, command) -> None:
    result = command(write("a: b\n"))
    assert result.exit_code == 2
    assert "suite.yaml:1: a suite is a YAML list of cases" in result.stderr


def test_no_file_is_a_usage_error(command) -> None:
    assert command().exit_code == 2


@pytest.mark.parametrize(
    ("rules", "counts"),
    [
        (["LOOP-6"], "1 passed, 0 failed, 0 skipped"),
        (["loop-6"], "1 passed, 0 failed, 0 skipped"),
        (["LOOM"], "0 passed, 1 failed, 0 skipped"),
        (["LOOM-*", "PROD-1"], "0 passed, 1 failed, 1 skipped"),
    ],
)
def test_rule(write, command, rules: list[str], counts: str) -> None:
    result = command(write(PASSES + FAILS + SKIPS), *(a for rule in rules for a in ("--rule", rule)))
    assert result.stdout.endswith(counts + "\n")


def test_a_rule_that_no_case_has(write, command) -> None:
    result = command(write(PASSES), "--rule", "LOOP-66")
    assert result.exit_code == 2
    assert "no case has the rule LOOP-66; the rules of these files: LOOP-6" in result.stderr


def test_json(write, command) -> None:
    path = write(PASSES + FAILS + SKIPS)
    result = command(path, "--json")
    assert result.exit_code == 1
    passed, failed, skipped, counts = map(json.loads, result.stdout.splitlines())
    assert (passed["status"], passed["rule"], passed["name"], passed["line"]) == ("passed", "LOOP-6", "it passes", 2)
    assert passed["file"] == str(path)
    assert passed["duration_ms"] > 0
    assert failed["problems"] == [{"path": "expect.result", "message": "expected 'ho', got 'hi'"}]
    assert skipped["reason"].startswith("it has no action")
    assert counts == {"event": "result", "passed": 1, "failed": 1, "skipped": 1}


def test_control_characters_of_a_suite_do_not_reach_the_terminal(write, command) -> None:
    result = command(write(CASE.format(rule="A", name='"\\e[31mred\\e]0;title\\a"', result='"\\e[2J"')))
    assert "\x1b" not in result.stdout
    assert result.exit_code == 1


def test_help_has_an_example(command) -> None:
    assert "cantrip conformance tests.yaml" in command("--help").stdout


async def test_a_case_that_hangs_is_stopped(outcomes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cantrip_acp.conformance.runner.CASE_LIMIT_S", 0.2)
    slow = """
    - rule: A
      name: it waits for ever
      setup:
        crystal: { responses: [{ delay_ms: 600000, content: late }] }
        circle: { gates: [done], wards: [{ max_turns: 5 }] }
      action: { cast: { intent: wait } }
    """
    (outcome,) = await outcomes(slow)
    assert str(outcome.problems[0]) == "action.cast: did not end within 0.2 s"


async def test_a_fault_of_the_product_is_that_case_s_failure(outcomes, monkeypatch: pytest.MonkeyPatch) -> None:
    from cantrip_acp.core.cantrip import Cantrip

    def broken(self: Cantrip) -> None:
        raise ZeroDivisionError("a fault")

    monkeypatch.setattr(Cantrip, "invoke", broken)
    first, second = await outcomes(PASSES + SKIPS)
    assert str(first.problems[0]) == "action.cast: crashed: ZeroDivisionError: a fault"
    assert second.status == "skipped"


ACTIONS = [
    ("{ invoke: true, cast: { intent: a } }", "passed", ""),
    ("[{ invoke: true }, { cast: { intent: a, crystal: crystal } }]", "failed", "cannot name a crystal"),
    ("{ cast: { intent: a, crystal: nobody } }", "failed", "the case sets up no crystal 'nobody'; it has crystal"),
    ("{ construct_cantrip: false }", "failed", "action.construct_cantrip is true or left out"),
    ("{ cast: { intent: a }, then: { delete_turn: 4 } }", "failed", "no turn 4: the loom has 1"),
    ("{ cast: { intent: a }, then: { delete_turn: first } }", "failed", "named by its index from 0"),
    ("{ cast: { intent: a }, then: { annotate_reward: { turn: 0 } } }", "failed", "a reward is a number"),
    ("{ cast: { intent: a }, then: { extract_thread: 1 } }", "failed", "no thread 1: the loom has 1"),
    ("{ cast: { intent: 42 } }", "passed", ""),
]


@pytest.mark.parametrize(("action", "status", "message"), ACTIONS, ids=[a for a, _, _ in ACTIONS])
async def test_actions(outcomes, action: str, status: str, message: str) -> None:
    (outcome,) = await outcomes(PASSES.replace("{ cast: { intent: greet } }", action))
    assert outcome.status == status
    assert message in " ".join(map(str, outcome.problems))


GATES = [
    ("{ name: done }, nosuch", "unknown gate 'nosuch'"),
    ("done, { result: 1 }", "a gate needs a name"),
    ("done, { name: odd, behavior: explode }", "a gate's behavior is throw or delay, not 'explode'"),
]


@pytest.mark.parametrize(("gates", "message"), GATES, ids=[m for _, m in GATES])
async def test_gates_that_nobody_knows(outcomes, gates: str, message: str) -> None:
    (outcome,) = await outcomes(PASSES.replace("gates: [done]", f"gates: [{gates}]"))
    assert outcome.status == "failed"
    assert message in str(outcome.problems[0])


async def test_files_of_a_case_never_leave_its_folder(outcomes, tmp_path: Path) -> None:
    text = PASSES.replace(
        "  action:",
        f"    filesystem: {{ ../../escape.txt: a, {tmp_path}/absolute.txt: b, /a/../../up.txt: c }}\n  action:",
    )
    (outcome,) = await outcomes(text)
    assert outcome.status == "passed"
    assert [p.name for p in tmp_path.iterdir()] == ["suite.yaml"]
