"""The client at a terminal: prompts, Ctrl-C, Ctrl-D, permissions, colour."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.integration.client.client_processes import CLIENT, POLITE, Terminal, rude
from tests.support.command_line import TerminalScreen, recipe

Start = Callable[..., Terminal]
AGENT = [*CLIENT, "--", *POLITE]
AGENT_OF_OURS = [sys.executable, "-m", "cantrip_acp.acp.start"]

EDITOR = """
crystal:
  provider: scripted
  responses:
    - tool_calls: [{gate: write_file, args: {path: one.txt, content: "after\\n"}}]
    - content: Written.
circle:
  gates: [done, write_file]
  wards: [{max_turns: 3}]
"""


def test_a_conversation(terminal: Start) -> None:
    at = terminal(AGENT)
    at.until("Ctrl-D quits")
    at.until("❯ ")
    at.type("say Good day.\n")
    seen = at.until("end_turn")
    assert "Good day." in seen
    assert "\x1b[" in seen
    at.until("❯ ")
    at.type("say one \\\n")
    at.type("two\n")
    at.until("end_turn")
    at.until("❯ ")
    at.type("\x04")
    assert at.wait() == 0


def test_interrupt_cancels_the_turn_and_the_session_goes_on(terminal: Start) -> None:
    at = terminal(AGENT)
    at.until("❯ ")
    at.type("wait\n")
    at.until("waiting")
    at.type("\x03")
    at.until("cancelling; press Ctrl-C again to quit")
    at.until("cancelled")
    at.until("❯ ")
    at.type("say again\n")
    at.until("end_turn")
    at.until("❯ ")
    at.type("\x04")
    assert at.wait() == 0


def test_interrupt_twice_at_the_prompt_quits(terminal: Start) -> None:
    at = terminal(AGENT)
    at.until("❯ ")
    at.type("\x03")
    at.until("again to quit")
    at.until("❯ ")
    at.type("\x03")
    assert at.wait() == 130


def test_interrupt_twice_in_a_turn_quits(terminal: Start) -> None:
    at = terminal([*CLIENT, "--", *rude("deaf")])
    at.until("❯ ")
    at.type("x\n")
    at.until("child ")
    at.type("\x03")
    at.until("again to quit")
    at.type("\x03")
    assert at.wait() == 130


@pytest.mark.parametrize(
    ("keys", "answer"),
    [("2", "all"), ("a", "all"), ("y", "one"), ("n", "no"), ("\r9xN", "no"), ("rToo much.\n", "no Too much.")],
)
def test_permission_is_asked_for_with_one_key(terminal: Start, keys: str, answer: str) -> None:
    at = terminal(AGENT)
    at.until("❯ ")
    at.type("ask\n")
    at.until("Delete the world")
    at.until("which?")
    at.type(keys)
    at.until(f"answer: selected {answer}")
    at.until("❯ ")
    # The terminal edits lines again.
    at.type("say Good day.\n")
    at.until("end_turn")
    at.until("❯ ")
    at.type("\x04")
    assert at.wait() == 0


def test_the_question_of_our_agent_shows_the_change(terminal: Start, tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("before\n")
    agent = [*AGENT_OF_OURS, "--recipe", str(recipe(tmp_path, EDITOR))]
    at = terminal([*CLIENT, "--cwd", str(tmp_path), "--mode", "ask", "--", *agent])
    at.until("❯ ")
    at.type("go\n")
    shown = at.until("which?")
    assert "-before" in shown
    assert "+after" in shown
    assert "Allow" in shown
    assert (tmp_path / "one.txt").read_text() == "before\n"
    at.type("y")
    at.until("end_turn")
    assert (tmp_path / "one.txt").read_text() == "after\n"
    at.until("❯ ")
    at.type("\x04")
    assert at.wait() == 0


def test_end_of_input_at_a_question_is_a_no(terminal: Start) -> None:
    at = terminal(AGENT)
    at.until("❯ ")
    at.type("ask\n")
    at.until("which?")
    at.type("\x04")
    at.until("(end of input)")
    at.until("answer: selected no")
    at.until("❯ ")
    at.type("\x04")
    assert at.wait() == 0


def test_interrupt_at_a_question_cancels_the_turn(terminal: Start) -> None:
    at = terminal(AGENT)
    at.until("❯ ")
    at.type("ask\n")
    at.until("which?")
    at.type("\x03")
    at.until("cancelled")
    at.until("❯ ")
    at.type("say on we go\n")
    at.until("end_turn")
    at.until("❯ ")
    at.type("\x04")
    assert at.wait() == 0


@pytest.mark.parametrize("variable", ["NO_COLOR=1", "TERM=dumb"])
def test_no_colour_where_none_is_wanted(terminal: Start, variable: str) -> None:
    name, _, value = variable.partition("=")
    at = terminal([*CLIENT, "--prompt", "tool", "--", *POLITE], **{name: value})
    assert at.wait() == 0
    colours = [f"\x1b[{code}m" for code in range(30, 38)]
    assert not [colour for colour in colours if colour in at.seen]
    if name == "TERM":
        assert "\x1b" not in at.seen


def test_an_agent_that_dies_ends_the_conversation(terminal: Start) -> None:
    at = terminal([*CLIENT, "--", *rude("dies_in_turn")])
    at.until("❯ ")
    at.type("x\n")
    at.until("Segmentation fault")
    assert at.wait() == 1


MARKDOWN = """
crystal:
  provider: scripted
  responses:
    - delay_ms: 150
      chunks:
        ["# A head", "ing\\n\\nSome **bold** words.\\n\\n", "| name | size |\\n|---|---|\\n", "| one | 1 |\\n\\n", "The ", "end."]
    # The window is resized before it: the emulator of the test does not wrap anew what is on its screen.
    - {delay_ms: 1000, chunks: ["Second: LONG."]}
circle:
  gates: [done]
  wards: [{max_turns: 3}]
""".replace("LONG", " ".join(f"word{n}" for n in range(40)))


def test_markdown_is_rendered_and_what_is_typed_meanwhile_waits(tmp_path: Path) -> None:
    agent = [*AGENT_OF_OURS, "--recipe", recipe(tmp_path, MARKDOWN)]
    with TerminalScreen("client", "--cwd", tmp_path, "--", *agent, cwd=tmp_path, COLUMNS="", LINES="") as terminal:
        terminal.ready()
        terminal.type("go\r")
        terminal.until("A heading")
        terminal.type("typed ahead\rand th")
        terminal.until("The end.")
        terminal.until("❯ typed ahead")
        terminal.resize(50)
        terminal.until("word39")
        shown = terminal.until(lambda at: at.input == "❯ and th")
        assert "● A heading" in shown
        assert "Some bold words." in shown
        assert "|---|" not in shown
        assert "**" not in shown
        assert [shown.count(words) for words in ("A heading", "Some bold", "The end.", "❯ typed ahead")] == [1, 1, 1, 1]
        assert all(len(line) <= 50 for line in terminal.lines if "word" in line)
        terminal.type("en\r")
        terminal.until("❯ and then")


SWITCHES = """
crystal: {provider: scripted, responses: [{content: From the first., repeat: true}]}
crystals: {second: {provider: scripted, responses: [{content: From the second., repeat: true}]}}
circle:
  gates: [done]
  wards: [{max_turns: 3}]
"""


def test_model_clear_mentions_and_completion(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("what was noted\n")
    agent = [*AGENT_OF_OURS, "--recipe", recipe(tmp_path, SWITCHES)]
    with TerminalScreen("client", "--cwd", tmp_path, "--", *agent, cwd=tmp_path) as terminal:
        terminal.ready()
        terminal.type("/model\r")
        terminal.until("model: scripted:scripted")
        terminal.until("/model second")
        terminal.ready()
        terminal.type("/model sec\t")
        terminal.until(lambda at: at.input.startswith("❯ /model"))
        terminal.type("\x15/model second\r")
        terminal.until("model: second, from the next prompt on")
        terminal.ready()
        terminal.type("see @not\t")
        terminal.until(lambda at: at.input == "❯ see @notes.txt")
        terminal.type(" and @no/such.py\r")
        terminal.until("❯ see @notes.txt and @no/such.py")
        terminal.until("there is no file 'no/such.py'")
        terminal.until("From the second.")
        terminal.ready()
        terminal.type("/contxt now\r")
        terminal.until("unknown command /contxt; did you mean /context?")
        terminal.ready()
        if shutil.which("bwrap"):
            terminal.type("!echo ran$((1 + 1))\r")
            terminal.until("ran2")
            terminal.ready()
        terminal.type("/clear\r")
        terminal.until("the earlier conversation is kept: /load sess_")
        terminal.ready()
        terminal.type("Hi.\r")
        terminal.until("From the first.")
        terminal.ready()
        terminal.type("\x04")
        assert terminal.end() == 0
        sessions = {line.split()[1] for line in terminal.lines if line.startswith("session  ")}
        looms = [
            Path(line.split()[1]) for line in terminal.lines if line.startswith("loom     ") and line.endswith(".jsonl")
        ]
    assert len(sessions) == 2
    assert not looms or "what was noted" in looms[0].read_text()
