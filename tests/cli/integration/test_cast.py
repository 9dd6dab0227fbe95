"""`cantrip cast`: progress, JSON lines, exit statuses, signals."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cantrip_acp import Loom
from tests.support.command_line import CANTRIP, GREETER, SHELL, SLEEPER, Terminal, recipe, run, start

sandbox = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed here")


def test_progress_is_plain_in_a_pipe(tmp_path: Path) -> None:
    done = run("cast", recipe(tmp_path, GREETER), "Say hello.", cwd=tmp_path)
    assert done.status == 0, done.err
    for part in (
        "❯ Say hello.",
        "Let me think.",
        "I try the gate.",
        "hello",
        "turn 1",
        "● said hello",
        "■ done · 2 turns",
    ):
        assert part in done.out
    assert "30 tokens in, 7 out" in done.out
    assert "\x1b" not in done.out
    assert done.out.count("said hello") == 1


def test_progress_is_in_colour_on_a_terminal(tmp_path: Path) -> None:
    with Terminal("cast", recipe(tmp_path, GREETER), "Say hello.", cwd=tmp_path) as terminal:
        assert terminal.end() == 0
        assert "\x1b[" in terminal.seen
        assert "said hello" in terminal.seen


CALLS = """
crystal:
  provider: scripted
  responses:
    - tool_calls:
        - {gate: count, args: {path: x}}
        - {gate: count, args: {file: x}}
        - {gate: count, args: {path: 3}}
        - {gate: cuont, args: {path: x}}
        - {gate: notes.add, args: {text: x}}
    - {tool_calls: [{gate: done, args: {answer: ok}}]}
circle:
  medium: conversation
  gates: [done, {python: count.py}]
  wards: [{max_turns: 3}]
mcp_servers:
  - {name: notes, command: python3, args: [broken.py]}
"""


def test_failed_calls_say_what_did_not_fit_and_data_is_shown(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import sys\nsys.exit('set NOTES_DIR')\n")
    (tmp_path / "count.py").write_text(
        "from dataclasses import dataclass\nfrom cantrip_acp import gate\n\n\n"
        "@dataclass\nclass Count:\n    text: str\n    words: int\n\n\n"
        '@gate\ndef count(path: str) -> Count:\n    """Count."""\n    return Count("a b", 2)\n'
    )
    file = recipe(tmp_path, CALLS)
    done = run("cast", file, "Count.", cwd=tmp_path)
    assert done.status == 0, done.err
    assert '"words": 2' in done.out
    for part in (
        "missing required argument 'path' of gate count(path)",
        "path: 3 is not of type 'string'",
        "there is no gate 'cuont' here. Did you mean 'count'?",
        "there is no gate 'notes.add' here. Its server cannot be used",
    ):
        assert part in done.out
    last = json.loads(run("cast", file, "Count.", "--json", cwd=tmp_path).out.splitlines()[-1])
    assert "set NOTES_DIR" in last["warnings"][0]


SEARCHES = """
crystal:
  provider: scripted
  responses:
    - bash: |
        cat /proc/*/cmdline /proc/*/environ 2>/dev/null | tr '\\0' ' '
        grep -rsI -D skip 'expected.answer' "$PWD" /tmp
        true
    - tool_calls: [{gate: done, args: {answer: '391'}}]
circle:
  medium: bash
  gates: [done]
  wards: [{max_turns: 3}]
  score: {python: rubric.py, at: cast}
"""


@sandbox
def test_the_reference_is_for_the_scorer_and_not_in_the_sandbox(tmp_path: Path) -> None:
    path = recipe(tmp_path, SEARCHES)
    rubric = "def score(thread, reference):\n    return float(reference == 'expected-answer ' + thread.result)\n"
    (Path(path).parent / "rubric.py").write_text(rubric)
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    reference = "expected-answer 391"
    state = str(tmp_path / "state")
    done = run("cast", path, "17 × 23?", "--reference", reference, "--json", cwd=workspace, CANTRIP_STATE_DIR=state)
    assert done.status == 0, done.err
    loom = Loom.open(done.lines[-1]["loom"])
    (start, _), *_ = loom.casts()
    assert start.reference == reference
    turns = [turn for turn in loom.turns() if turn.role == "crystal"]
    assert turns[-1].reward == 1.0
    output = turns[0].observation.output
    assert output is not None
    assert output.exit_code == 0
    assert "bash" in output.stdout
    assert reference not in output.stdout
    # In the workspace the entity could read it.
    refused = run("cast", path, "17 × 23?", "--reference", reference, "--loom", "x.loom.jsonl", cwd=workspace)
    assert refused.status == 2
    assert "x.loom.jsonl holds the expected answer of the cast, and the entity could read it there" in refused.err


def test_json_lines(tmp_path: Path) -> None:
    loom = tmp_path / "x.loom.jsonl"
    done = run("cast", recipe(tmp_path, GREETER), "Say hello.", "--json", "--loom", loom, cwd=tmp_path)
    assert done.status == 0, done.err
    assert done.err == "cantrip: allows nothing that changes files or reaches the network\n"
    kinds = [line["event"] for line in done.lines]
    assert [k for k in kinds if k in ("cast", "turn", "result")] == ["cast", "turn", "turn", "result"]
    assert {"text", "thought", "gate_call", "gate_result", "usage"} <= set(kinds)
    last = done.lines[-1]
    assert last["result"] == "said hello"
    assert (last["terminated"], last["truncated"], last["reason"]) == (True, False, "done")
    assert last["usage"]["total_tokens"] == 37
    assert last["loom"] == str(loom)
    assert last["entity_id"]
    assert len(last["trace_id"]) == 32
    # A turn is the loom's own record, flat.
    told = [{k: v for k, v in line.items() if k != "event"} for line in done.lines if line["event"] == "turn"]
    kept = [json.loads(line) for line in loom.read_text().splitlines()]
    kept = [
        {k: v for k, v in r.items() if k not in ("type", "sum", "prev")}
        for r in kept
        if r["type"] == "turn" and r["role"] == "crystal"
    ]
    assert told == kept


def test_the_intent_comes_from_stdin(tmp_path: Path) -> None:
    done = run("cast", recipe(tmp_path, GREETER), "-", "--json", cwd=tmp_path, stdin="From a pipe.\n")
    assert done.lines[0]["intent"].strip() == "From a pipe."


@pytest.mark.parametrize("intent", ["", "  ", "-"])
def test_an_intent_is_required(tmp_path: Path, intent: str) -> None:
    done = run("cast", recipe(tmp_path, GREETER), intent, cwd=tmp_path)
    assert done.status == 2
    assert "intent is required" in done.err


def test_looms_go_to_the_state_folder_and_nothing_into_the_workspace(tmp_path: Path) -> None:
    (tmp_path / "ws").mkdir()
    done = run(
        "cast",
        recipe(tmp_path, GREETER),
        "x",
        "--cwd",
        tmp_path / "ws",
        "--state-dir",
        tmp_path / "s",
        "--json",
        cwd=tmp_path,
    )
    assert done.status == 0
    assert Path(done.lines[-1]["loom"]).parent == tmp_path / "s" / "looms"
    assert list((tmp_path / "ws").iterdir()) == []


def test_a_loom_in_memory_when_the_recipe_says_so(tmp_path: Path) -> None:
    done = run("cast", recipe(tmp_path, GREETER + "loom: {store: memory}\n"), "x", "--json", cwd=tmp_path)
    assert done.lines[-1]["loom"] is None
    assert not list(Path(os.environ["CANTRIP_STATE_DIR"]).glob("looms/*"))


def test_a_loom_is_appended_to(tmp_path: Path) -> None:
    path, loom = recipe(tmp_path, GREETER), tmp_path / "x.loom.jsonl"
    for _ in range(2):
        assert run("cast", path, "x", "--loom", loom, cwd=tmp_path).status == 0
    with Loom.open(loom, readonly=True) as held:
        assert len(held.casts()) == 2
        assert len(held.threads()) == 2


def test_a_locked_loom_is_a_clear_error(tmp_path: Path) -> None:
    path, loom = recipe(tmp_path, GREETER), tmp_path / "x.loom.jsonl"
    with Loom.open(loom):
        done = run("cast", path, "x", "--loom", loom, cwd=tmp_path)
    assert done.status == 2
    assert str(loom) in done.err
    assert "Traceback" not in done.err


def test_context_files_stand_before_the_intent(tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("The sky is green.\n")
    loom = tmp_path / "x.loom.jsonl"
    done = run("cast", recipe(tmp_path, GREETER), "x", "--context", tmp_path / "notes.md", "--loom", loom, cwd=tmp_path)
    assert done.status == 0, done.err
    records = [json.loads(line) for line in loom.read_text().splitlines()]
    (block,) = [r for r in records if r["type"] == "context"]
    assert block["text"] == "The sky is green.\n"
    assert block["title"] == "notes.md"
    (tmp_path / "binary").write_bytes(b"\0\1")
    done = run("cast", recipe(tmp_path, GREETER), "x", "--context", tmp_path / "binary", cwd=tmp_path)
    assert done.status == 2
    assert "binary" in done.err


def test_truncated_is_status_1(tmp_path: Path) -> None:
    done = run("cast", recipe(tmp_path, GREETER.replace("max_turns: 3", "max_turns: 1")), "x", "--json", cwd=tmp_path)
    assert done.status == 1
    assert done.lines[-1]["reason"] == "max_turns"
    assert done.lines[-1]["truncated"] is True


def test_a_failed_query_is_status_1_and_the_last_line_says_so(tmp_path: Path) -> None:
    text = GREETER.replace(
        "- thinking: Let me think.", "- error: {status: 400, message: no such model}\n    - thinking: x"
    )
    done = run("cast", recipe(tmp_path, text), "x", "--json", cwd=tmp_path)
    assert done.status == 1
    assert done.lines[-1]["event"] == "result"
    assert done.lines[-1]["reason"] == "error"
    assert "no such model" in done.lines[-1]["error"]
    assert "no such model" in done.err
    assert "Traceback" not in done.err


def test_a_bad_recipe_is_status_2_with_its_place_first(tmp_path: Path) -> None:
    path = recipe(tmp_path, GREETER.replace("max_turns", "max_turn"))
    done = run("cast", "./r.cantrip.yaml", "x", cwd=tmp_path)
    assert done.status == 2
    assert done.err.startswith("./r.cantrip.yaml:14:")
    assert path.name in done.err


def test_no_key_says_what_to_set(tmp_path: Path) -> None:
    done = run("cast", "coding", "x", cwd=tmp_path)
    assert done.status == 2
    assert "CANTRIP_CRYSTAL" in done.err


def test_a_workspace_recipe_by_name_is_untrusted_and_by_path_trusted(tmp_path: Path) -> None:
    text = GREETER.replace("{max_turns: 3}", "{max_turns: 3}, {bash_network: true}")
    recipe(tmp_path, text, ".cantrip/theirs.cantrip.yaml")
    done = run("cast", "theirs", "x", cwd=tmp_path)
    assert done.status == 2
    assert "circle.wards[1].bash_network: not allowed" in done.err
    assert f"cantrip trust {tmp_path}" in done.err
    assert run("cast", ".cantrip/theirs.cantrip.yaml", "x", cwd=tmp_path).status == 0
    assert run("trust", "--yes", tmp_path, cwd=tmp_path).status == 0
    assert run("cast", "theirs", "x", cwd=tmp_path).status == 0


@sandbox
def test_a_cast_in_the_sandbox(tmp_path: Path) -> None:
    (tmp_path / "ws").mkdir()
    done = run("cast", recipe(tmp_path, SHELL), "x", "--cwd", tmp_path / "ws", "--json", cwd=tmp_path)
    assert done.status == 0, done.err
    turns = [line for line in done.lines if line["event"] == "turn"]
    output = turns[0]["observation"]["output"]
    assert output["stdout"].splitlines()[0] == "out"
    assert str(tmp_path / "ws") in output["stdout"]
    assert output["stderr"].startswith("err")
    assert (tmp_path / "ws" / "made.txt").read_text() == "made\n"
    assert turns[0]["gate_calls"] == ["echo"]
    assert done.lines[-1]["result"] == "all is well"
    assert {"command", "command_output", "command_result"} <= {line["event"] for line in done.lines}
    plain = run("cast", recipe(tmp_path, SHELL), "x", "--cwd", tmp_path / "ws", cwd=tmp_path)
    assert "✗" not in plain.out, plain.out


@sandbox
def test_a_traceback_is_shown_below_what_was_printed(tmp_path: Path) -> None:
    code = "import sys; print('half', end='', file=sys.stderr)\\n1/0"
    text = f'''name: cells
crystal: {{provider: scripted, responses: [{{code: "{code}"}}, {{code: done(1)}}]}}
call: {{system_prompt: x}}
circle: {{medium: code, gates: [done], wards: [{{max_turns: 3}}]}}
'''
    path = tmp_path / "cells.cantrip.yaml"
    path.write_text(text)
    done = run("cast", path, "x", cwd=tmp_path)
    assert done.status == 0, done.err
    assert "│ half\n  │ Traceback (most recent call last):\n" in done.out
    # The line has no line feed, and the carets stand below what failed all the same.
    assert "  │     1/0\n  │     ~^~\n  │ ZeroDivisionError: division by zero\n" in done.out


@sandbox
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_cancels_records_and_leaves_with_130(tmp_path: Path, number: int) -> None:
    loom = tmp_path / "x.loom.jsonl"
    # A text of this test's own: the same test with another signal may run beside it.
    mark = f"not reached {os.getpid()} {number}"
    written = recipe(tmp_path, SLEEPER.replace("not reached", mark))
    process = start("cast", written, "x", "--json", "--loom", loom, cwd=tmp_path)
    assert process.stdout is not None
    for line in process.stdout:
        if json.loads(line)["event"] == "command_output":
            break
    begun = time.monotonic()
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert time.monotonic() - begun < 60
    last = json.loads(out.splitlines()[-1])
    assert (last["event"], last["reason"], last["truncated"]) == ("result", "cancelled", True)
    with Loom.open(loom, readonly=True) as held:
        (thread,) = held.threads()
        assert thread.leaf.reason == "cancelled"
        assert thread.leaf.observation.output is not None
        assert thread.leaf.observation.output.stdout == "begun\n"
    alive = subprocess.run(["pgrep", "-f", mark], capture_output=True, text=True)
    assert alive.stdout == ""


def test_a_hangup_that_was_ignored_from_the_start_stays_ignored(tmp_path: Path) -> None:
    """As `nohup cantrip cast` promises: the terminal closes, and the cast goes on."""
    text = GREETER.replace("- thinking: Let me think.", "- delay_ms: 1500\n      thinking: x")
    ignoring = "trap '' HUP; exec \"$@\""
    command = ["sh", "-c", ignoring, "sh", *CANTRIP, "cast", str(recipe(tmp_path, text)), "x", "--json"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if json.loads(line)["event"] == "query":
            break
    process.send_signal(signal.SIGHUP)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert json.loads(out.splitlines()[-1])["terminated"]


def test_a_signal_during_a_query(tmp_path: Path) -> None:
    text = GREETER.replace("- thinking: Let me think.", "- delay_ms: 60000\n      thinking: x")
    process = start("cast", recipe(tmp_path, text), "x", "--json", cwd=tmp_path)
    assert process.stdout is not None
    for line in process.stdout:
        if json.loads(line)["event"] == "query":
            break
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert json.loads(out.splitlines()[-1])["reason"] == "cancelled"


@pytest.mark.parametrize("arguments", [["cast", "r.cantrip.yaml", "x", "--json"], ["repl", "r.cantrip.yaml"]])
def test_without_a_sandbox_it_is_status_3(tmp_path: Path, arguments: list[str]) -> None:
    recipe(tmp_path, SHELL)
    # The same program on a machine whose system folders hold no bubblewrap.
    script = (
        "import sys; from cantrip_acp.sandbox.launch import availability as probe; from cantrip_acp.cli.main import main\n"
        f"probe.find_bubblewrap.__defaults__ = ({str(tmp_path / 'none')!r},)\n"
        f"main({arguments!r})"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, input="x\n")
    assert done.returncode == 3, done.stderr
    assert "apt install bubblewrap" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "made.txt").exists()
    if "--json" in arguments:
        last = json.loads(done.stdout.splitlines()[-1])
        assert (last["event"], last["reason"], last["terminated"]) == ("result", "error", False)


@pytest.mark.parametrize("flags", ["--json", ""])
def test_a_reader_that_leaves_ends_the_cast(tmp_path: Path, flags: str) -> None:
    text = GREETER.replace("- thinking: Let me think.", "- repeat: true\n      thinking: x").replace(
        "turns: 3", "turns: 1000000"
    )
    loom = tmp_path / "x.loom.jsonl"
    command = " ".join([*CANTRIP, "cast", str(recipe(tmp_path, text)), "x", "--loom", str(loom), flags])
    done = subprocess.run(f"{command} | head -3", shell=True, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert len(done.stdout.splitlines()) == 3
    assert done.stderr == "cantrip: allows nothing that changes files or reaches the network\n"
    with Loom.open(loom, readonly=True) as held:
        ((_, end),) = held.casts()
        assert end is not None
        assert end.reason == "cancelled"


@pytest.mark.parametrize("flags", [["--json"], []])
def test_a_full_disk_behind_stdout(tmp_path: Path, flags: list[str]) -> None:
    command = [*CANTRIP, "cast", str(recipe(tmp_path, GREETER)), "x", *flags]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 1
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams(tmp_path: Path, closed: str) -> None:
    loom = tmp_path / "x.loom.jsonl"
    command = " ".join([*CANTRIP, "cast", str(recipe(tmp_path, GREETER)), "x", "--loom", str(loom), closed])
    done = subprocess.run(command, shell=True, cwd=tmp_path, timeout=60)
    assert done.returncode == 0
    with Loom.open(loom, readonly=True) as held:
        assert held.problems == ()


@pytest.mark.parametrize("loom", ["/dev/full", ".", "/proc/x"])
def test_a_loom_that_is_no_file(tmp_path: Path, loom: str) -> None:
    done = run("cast", recipe(tmp_path, GREETER), "x", "--loom", loom, cwd=tmp_path)
    assert done.status == 2
    assert loom in done.err


def test_a_state_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")
    done = run("cast", recipe(tmp_path, GREETER), "x", "--state-dir", tmp_path / "state", cwd=tmp_path)
    assert done.status == 2
    assert "the state folder cannot be used" in done.err


def test_a_cast_that_fails_says_where_its_record_is(tmp_path: Path) -> None:
    loom = tmp_path / "x.loom.jsonl"
    written = recipe(
        tmp_path, GREETER[: GREETER.index("  responses:")] + "  responses: []\n" + GREETER[GREETER.index("circle:") :]
    )
    done = run("cast", written, "x", "--loom", loom, cwd=tmp_path)
    assert done.status == 1
    assert "the script has run out" in done.err
    assert f"loom     {loom}" in done.out or "loom     x.loom.jsonl" in done.out
