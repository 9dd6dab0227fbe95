"""Scripts of prompts with expectations: with an agent without a model, and with our own over real sessions."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.cli.integration.client.client_processes import POLITE, rude, run_client

OURS = str(Path(sys.executable).parent / "cantrip-acp")
Play = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def play(tmp_path: Path) -> Play:
    folder = tmp_path / "project"
    folder.mkdir()

    def run(script: Any, *arguments: str, agent: Sequence[str] = POLITE) -> subprocess.CompletedProcess[str]:
        path = tmp_path / "s.yaml"
        path.write_text(script if isinstance(script, str) else json.dumps(script))
        return run_client("--cwd", str(folder), "--script", str(path), *arguments, agent=agent, timeout=100)

    return run


def test_what_holds_is_status_0_and_a_line_a_step(play: Play) -> None:
    done = play(
        """
        name: polite
        allow: once
        steps:
          - prompt: say Hello, you.
            expect: {stop_reason: end_turn, text: "Hello,", updates: [{content: {text: {matches: "^Think"}}}], tool_calls: []}
          - prompt: tool
            name: it uses tools
            expect:
              tool_calls:
                - {kind: execute, status: failed, output: {contains: 1 failed}, rawInput: {command: make test}}
                - {kind: edit, diffs: [{path: /p/a.py, oldText: {not: null}, newText: {contains: "2\\n"}}]}
              updates:
                - {sessionUpdate: tool_call, toolCallId: t1}
                - {sessionUpdate: tool_call_update, status: in_progress}
                - {sessionUpdate: tool_call, toolCallId: t2}
              never: [plan, {status: pending, kind: delete}]
          - prompt: limit
            expect: {stop_reason: max_turn_requests}
          - prompt: error
            expect: {error: {code: -32603, message: {contains: out of order}}}
          - prompt: error
            expect: {error: status 529}
        """
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert [line[:2] for line in lines[:5]] == ["✓ "] * 5
    assert "✓ it uses tools" in lines[1]
    assert lines[-1] == "polite: 5 passed, 0 failed"
    assert done.stderr == ""


def test_what_does_not_hold_is_shown_as_a_difference(play: Play) -> None:
    done = play(
        """
steps:
  - prompt: say one two
    expect:
      stop_reason: refusal
      text: three
  - prompt: tool
    expect:
      tool_calls:
        - {kind: execute, title: make test, status: completed}
  - prompt: say fine
    expect: {text: fine}
  - prompt: error
"""
    )
    assert done.returncode == 1, done.stderr
    out = done.stdout
    for part in (
        "✗ prompt say one two",
        's.yaml:3:5\n  stop_reason:\n      - "refusal"\n      + "end_turn"\n',
        'text: does not contain "three"; it is "one two "',
        'tool_calls[0]: no tool call matches {"kind": "execute", "title": "make test", "status": "completed"}; there were:',
        "0  execute  failed  make test",
        'the nearest, 0.status:\n      - "completed"\n      + "failed"',
        "✓ prompt say fine",
        "✗ prompt error",
        "it failed: the agent",
        "s.yaml: 1 passed, 3 failed",
    ):
        assert part in out, out


@pytest.mark.parametrize(
    ("allow", "answer"),
    [
        ("once", "selected one"),
        ("always", "selected all"),
        ("never", "selected no"),
        ("cancelled", "cancelled None"),
    ],
)
def test_answers_to_questions(play: Play, allow: Any, answer: str) -> None:
    asked = {"tool_call": {"title": "Delete the world"}}
    done = play({"steps": [{"prompt": "ask", "allow": allow, "expect": {"text": answer, "permissions": [asked]}}]})
    assert done.returncode == 0, done.stdout


def test_a_script_without_answers_takes_the_command_lines(play: Play) -> None:
    script = {"steps": [{"prompt": "ask", "expect": {"text": "selected one"}}]}
    assert play(script, "--allow", "never", "--allow", "delete=once").returncode == 0
    assert play(script, "--allow", "once", "--allow", "delete=never").returncode == 1
    assert play(script).returncode == 1


@pytest.mark.parametrize("after", [0.2, "agent_message_chunk", {"content": {"text": "waiting"}}])
def test_a_cancel_after_a_time_or_an_update(play: Play, after: Any) -> None:
    step = {"prompt": "wait", "cancel_after": after, "expect": {"stop_reason": "cancelled"}}
    assert play({"steps": [step, {"prompt": "say on", "expect": {"text": "on"}}]}).returncode == 0


def test_a_turn_that_takes_too_long_is_cancelled_and_said(play: Play) -> None:
    done = play({"timeout": 0.5, "steps": [{"prompt": "wait"}, {"prompt": "say still here"}]})
    assert done.returncode == 1
    assert "did not answer session/prompt within 0.5 s; it ended its turn when it was cancelled" in done.stdout
    assert "✓ prompt say still here" in done.stdout


def test_lines_of_json(play: Play) -> None:
    script = "name: lines\nsteps:\n  - prompt: say a\n  - {prompt: say b, expect: {text: c}}\n"
    done = play(script, "--json")
    assert done.returncode == 1
    first, second, last = map(json.loads, done.stdout.splitlines())
    assert (first["event"], first["passed"], first["happened"]["text"]) == ("step", True, "a ")
    assert second["where"].endswith("s.yaml:4:5")
    assert second["problems"] == ['text: does not contain "c"; it is "b "']
    assert last == {"event": "script", "name": "lines", "passed": 1, "failed": 1, "not_played": 0}


def test_an_agent_that_dies_ends_it(play: Play) -> None:
    done = play({"steps": [{"prompt": "x"}, {"prompt": "y"}]}, agent=rude("dies_in_a_turn"))
    assert done.returncode == 1
    assert "it failed: the agent" in done.stdout, done.stdout
    assert "1 not run, because the agent had ended" in done.stdout


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("steps: []", "s.yaml:1:1: needs steps"),
        ("steps:\n  - promt: x", "s.yaml:2:5: unknown key 'promt'; did you mean 'prompt'?"),
        ("steps:\n  - prompt: x\n    expct: {}", "s.yaml:3:5: unknown key 'expct'; did you mean 'expect'?"),
        ("steps:\n  - prompt: x\n    expect:\n      tekst: y", "s.yaml:4:7: unknown key 'tekst'; did you mean 'text'?"),
        ("steps:\n  - name: y", "a step needs a prompt"),
        ("steps:\n  - {prompt: x, expect: {text: {matches: '('}}}", "not a valid regular expression"),
        ("steps:\n  - {prompt: x, allow: maybe}", "unknown answer 'maybe'"),
        ("steps:\n  - {prompt: x, timeout: 0}", "seconds above 0"),
        ("steps: [", "s.yaml:1"),
    ],
)
def test_a_wrong_script_is_status_2_with_its_place(play: Play, script: str, words: str) -> None:
    done = play(script)
    assert done.returncode == 2
    assert words in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


def test_a_script_says_itself_what_is_prompted(play: Play) -> None:
    assert play({"steps": [{"prompt": "say x"}]}, "--prompt", "y").returncode == 2


@pytest.mark.sandbox
def test_a_script_with_our_own_agent(play: Play, tmp_path: Path) -> None:
    recipe = tmp_path / "r.cantrip.yaml"
    responses: list[dict[str, Any]] = [
        {"content": "Let me see.", "bash": "echo one > made && cat made"},
        {"tool_calls": [{"gate": "done", "args": {"answer": "Made."}}]},
        {"bash": "echo two >> made"},
        {"content": "I was refused."},
        {"bash": "sleep 1000"},
        {"content": "Back again."},
    ]
    circle = {"medium": "bash", "gates": ["done"], "wards": [{"max_turns": 9}, {"bash_writable_paths": ["."]}]}
    crystal = {"provider": "scripted", "responses": responses}
    # Without kept files, a session begins in the mode ask.
    recipe.write_text(json.dumps({"name": "r", "crystal": crystal, "circle": circle, "loom": {"files": False}}))
    done = play(
        {
            "steps": [
                {
                    "prompt": "Make it.",
                    "allow": "once",
                    "expect": {
                        "stop_reason": "end_turn",
                        "text": "Let me see.\n\nMade.",
                        "tool_calls": [{"kind": "execute", "status": "completed", "output": {"contains": "one"}}],
                        "permissions": [{"tool_call": {"kind": "execute"}, "answer": "allow_once"}],
                    },
                },
                {"prompt": "More.", "allow": "never", "expect": {"text": "I was refused."}},
                {
                    "prompt": "Wait.",
                    "allow": "once",
                    "cancel_after": {"status": "in_progress"},
                    "expect": {"stop_reason": "cancelled"},
                },
                {"prompt": "And now?", "expect": {"text": "Back again."}},
            ]
        },
        agent=[OURS, "--recipe", str(recipe), "--state-dir", str(tmp_path / "state")],
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed, 0 failed" in done.stdout
    assert (tmp_path / "project" / "made").read_text() == "one\n"


@pytest.mark.parametrize(
    ("script", "where"),
    [
        ("cwd: x\nsteps: [{prompt: x}]", "s.yaml:1:1: 'cwd'"),
        ("steps:\n  - restart: true", "s.yaml:2:5: 'restart'"),
        ("steps:\n  - prompt: x\n    expect: {usage: {}}", "'usage'"),
        ("steps:\n  - prompt: x\n    expect: {text: {equals: y}}", "'equals'"),
    ],
)
def test_a_key_of_earlier_versions_is_named(play: Play, script: str, where: str) -> None:
    done = play(script)
    assert done.returncode == 2
    assert f"{where} is no longer part of the script language (docs/client.md)" in done.stderr
