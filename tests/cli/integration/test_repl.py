"""`cantrip repl`: an entity that remembers, in a real terminal and in a pipe."""

import json
import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from cantrip_acp import Loom
from tests.support import processes
from tests.support.command_line import GREETER, SHELL, SLEEPER, Terminal, recipe, run, start
from tests.support.processes import CANTRIP
from tests.support.waiting import settled

TALKER = """
crystal:
  provider: scripted
  responses:
    - {when: first, content: "The first answer.", usage: {prompt_tokens: 5, completion_tokens: 2}}
    - {when: second, content: "The second answer.", usage: {prompt_tokens: 9, completion_tokens: 2}}
    - {when: "two\\nlines", content: "Both lines came."}
circle:
  gates: [done]
  wards: [{max_turns: 3}]
"""

needs_sandbox = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed here")


def test_a_talk_in_a_terminal(tmp_path: Path) -> None:
    loom = tmp_path / "x.loom.jsonl"
    with Terminal("repl", recipe(tmp_path, TALKER), "--loom", loom, cwd=tmp_path, TERM="dumb") as terminal:
        greeting = terminal.wait_for("❯ ")
        assert "conversation" in greeting
        assert str(loom) in greeting
        terminal.type("the first\r")
        assert "The first answer." in terminal.wait_for("❯ ")
        terminal.type("the second\r")
        assert "The second answer." in terminal.wait_for("❯ ")
        terminal.type("/usage\r")
        assert "14 tokens in, 4 out" in terminal.wait_for("❯ ")
        terminal.type("two\\\r")
        terminal.wait_for("… ")
        terminal.type("lines\r")
        assert "Both lines came." in terminal.wait_for("❯ ")
        terminal.type("/nonsense\r")
        assert "/help" in terminal.wait_for("❯ ")
        terminal.type("\x04")
        assert terminal.end() == 0
    with Loom.open(loom, readonly=True) as held:
        (thread,) = held.threads()
        assert len(thread.acted) == 3
        assert [start.intent for start, _ in held.casts()] == ["the first", "the second", "two\nlines"]


@needs_sandbox
def test_ctrl_c_cancels_the_cast_and_the_talk_goes_on(tmp_path: Path) -> None:
    loom = tmp_path / "x.loom.jsonl"
    with Terminal("repl", recipe(tmp_path, SLEEPER), "--loom", loom, cwd=tmp_path, TERM="dumb") as terminal:
        terminal.wait_for("❯ ")
        terminal.type("go\r")
        terminal.wait_for("begun")
        begun = time.monotonic()
        terminal.type("\x03")
        assert "cancelled" in terminal.wait_for("❯ ")
        assert time.monotonic() - begun < 60
        terminal.type("again\r")
        assert "after the break" in terminal.wait_for("❯ ")
        # At the prompt it only begins a new line.
        terminal.type("half a line")
        terminal.wait_for("half a line")
        terminal.type("\x03")
        terminal.wait_for("❯ ")
        terminal.type("/quit\r")
        assert terminal.end() == 0
    with Loom.open(loom, readonly=True) as held:
        assert [end.reason for _, end in held.casts() if end] == ["cancelled", "text"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_polite_signal_at_the_prompt_leaves(tmp_path: Path, number: int) -> None:
    import os

    with Terminal("repl", recipe(tmp_path, TALKER), cwd=tmp_path, TERM="dumb") as terminal:
        terminal.wait_for("❯ ")
        settled(terminal.pid)  # readline shows the prompt a moment before it waits
        os.kill(terminal.pid, number)
        assert terminal.end() == 128 + number


def test_a_pipes_lines_are_intents(tmp_path: Path) -> None:
    done = run("repl", recipe(tmp_path, TALKER), cwd=tmp_path, stdin="the first\n\nthe second\n/usage\n")
    assert done.status == 0, done.err
    assert "❯ the first" in done.out
    assert "The second answer." in done.out
    assert "14 tokens in, 4 out" in done.out
    assert "\x1b" not in done.out


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_an_intent_in_a_pipe_that_is_not_utf8(tmp_path: Path, errors: str) -> None:
    """The same in each locale; Python itself treats such input by the name of the locale."""
    command = [*CANTRIP, "repl", str(recipe(tmp_path, TALKER)), "--loom", str(tmp_path / "x.loom.jsonl")]
    env = {**os.environ, "PYTHONIOENCODING": f"utf-8:{errors}"}
    done = processes.run(command, cwd=tmp_path, input=b"the first \xff\n", capture_output=True, env=env)
    assert (done.returncode, done.stderr.decode().count("\n")) == (0, 1), done.stderr
    assert "❯ the first \ufffd" in done.stdout.decode()
    with Loom.open(tmp_path / "x.loom.jsonl", readonly=True) as loom:
        assert [start.intent for start, _ in loom.casts()] == ["the first \ufffd"]


def test_a_failed_cast_in_a_pipe_does_not_end_the_talk(tmp_path: Path) -> None:
    done = run("repl", recipe(tmp_path, TALKER), cwd=tmp_path, stdin="unheard of\nthe first\n")
    assert done.status == 1
    assert "the script has run out" in done.err
    assert "The first answer." in done.out


@needs_sandbox
def test_the_medium_keeps_its_files_from_cast_to_cast(tmp_path: Path) -> None:
    done = run("repl", recipe(tmp_path, SHELL), cwd=tmp_path, stdin="go\n")
    assert done.status == 0, done.err
    assert "all is well" in done.out
    assert (tmp_path / "made.txt").exists()


def test_an_interrupted_pipe_is_130(tmp_path: Path) -> None:
    text = GREETER.replace("- thinking: Let me think.", "- delay_ms: 60000\n      thinking: x")
    (tmp_path / "in").write_text("go\n")
    process = start("repl", recipe(tmp_path, text), cwd=tmp_path, stdin=tmp_path / "in")
    assert process.stdout is not None
    for line in process.stdout:
        if "go" in line:
            break
    settled(process.pid)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "cancelled" in out


WAITER = """
crystal:
  provider: scripted
  tools: text
  responses:
    - {bash: "echo waiting; until test -e go; do sleep 0.05; done"}
    - {bash: "echo waiting again; until test -e on; do sleep 0.05; done"}
    - {content: First answer.}
    - {content: Second answer.}
    - {bash: "echo waiting more; sleep 60"}
    - {content: Last answer.}
circle:
  medium: bash
  gates: [done]
  wards: [{max_turns: 9}]
"""


@needs_sandbox
def test_lines_typed_while_a_cast_runs_wait_or_are_sent_now(tmp_path: Path) -> None:
    loom = tmp_path / "talk.loom.jsonl"
    with Terminal("repl", recipe(tmp_path, WAITER), "--loom", loom, cwd=tmp_path, TERM="dumb") as terminal:
        terminal.wait_for("❯ ")
        terminal.type("the first\r")
        terminal.wait_for("waiting")
        for typed, shown in (
            ("the second\r", "waits as 1: the second"),
            ("use tabs\r", "waits as 2: use tabs"),
            ("never\r", "waits as 3: never"),
            ("/queue remove 3\r", "2. use tabs"),
            ("/queue edit 1 the 2nd\r", "1. the 2nd"),
            ("/queue now 2\r", "1. use tabs (sent with the next query)"),
            ("/queue shout\r", "/queue edit NUMBER TEXT"),
        ):
            terminal.type(typed)
            terminal.wait_for(shown)
        (tmp_path / "go").touch()
        terminal.wait_for("waiting again")
        terminal.type("/now and quickly\r")
        terminal.wait_for("sent with the next query: and quickly")
        terminal.type("/queue\r")
        terminal.wait_for("2. the 2nd")
        (tmp_path / "on").touch()
        terminal.wait_for("Second answer.")
        terminal.wait_for("❯ ")
        terminal.type("the third\r")
        terminal.wait_for("waiting more")
        terminal.type("lost?\r")
        terminal.wait_for("waits as 1: lost?")
        terminal.type("\x03")
        terminal.wait_for("not started: lost?")
        terminal.wait_for("❯ ")
        terminal.type("/quit\r")
        assert terminal.end() == 0
    records = [json.loads(line) for line in loom.read_text().splitlines()]
    intents = [r["intent"] for r in records if r["type"] == "cast" and r["event"] == "start"]
    assert intents == ["the first", "the 2nd", "the third"]
    assert [(r["source"], r["text"]) for r in records if r["type"] == "context"] == [
        ("steering", "use tabs"), ("steering", "and quickly"),
    ]  # fmt: skip
