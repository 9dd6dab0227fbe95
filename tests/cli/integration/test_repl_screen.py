"""`cantrip repl` on a real pseudo-terminal, by what a person sees on the screen."""

import os
import re
import shutil
import signal
import time
from pathlib import Path

import pytest

from cantrip_acp import Loom
from tests.cli.integration.test_ask import PLANS, WRITER
from tests.cli.integration.test_human_crystal import HUMAN
from tests.cli.integration.test_repl import TALKER, WAITER
from tests.support.command_line import Terminal, TerminalScreen, recipe, run
from tests.support.waiting import settled

needs_sandbox = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed here")

MARKDOWN = """
crystal:
  provider: scripted
  responses:
    - delay_ms: 400
      chunks:
        - "# A hea"
        - "ding\\n\\nSome **bo"
        - "ld** words.\\n\\n"
        - "| name | size |\\n|---|---|\\n| one | 1 |\\n| two"
        - " | 2 |\\n\\n"
        - "```python\\nfor x in y:\\n    pri"
        - "nt(x)\\n```\\n\\nThe en"
        - "d."
circle:
  gates: [done]
  wards: [{max_turns: 3}]
"""


def intents(loom: Path) -> list[str | None]:
    with Loom.open(loom, readonly=True) as held:
        return [start.intent for start, _ in held.casts()]


def asked(terminal: TerminalScreen, name: str) -> None:
    """Wait for the question about a file."""
    terminal.until(lambda at: name in at.text and any(line.strip() == "which?" for line in at.lines))


def test_a_talk(tmp_path: Path) -> None:
    loom = tmp_path / "x.loom.jsonl"
    with TerminalScreen("repl", recipe(tmp_path, TALKER), "--loom", loom, cwd=tmp_path) as terminal:
        assert str(loom) in terminal.until("allows nothing that changes files")
        terminal.ready()
        terminal.type("the first\r")
        terminal.until("The first answer.")
        assert "❯ the first" in terminal.ready()
        terminal.type("two\\\r")
        terminal.until(lambda at: at.input == "")
        terminal.type("lines\r")
        terminal.until("Both lines came.")
        terminal.ready()
        terminal.type("/nonsense\r")
        terminal.until("unknown command /nonsense")
        terminal.type("half a line\x03")
        terminal.ready()
        terminal.type("\x04")
        assert terminal.end() == 0
    assert intents(loom) == ["the first", "two\nlines"]


def test_a_paste_of_several_lines_is_one_message(tmp_path: Path) -> None:
    loom = tmp_path / "x.loom.jsonl"
    with TerminalScreen("repl", recipe(tmp_path, TALKER), "--loom", loom, cwd=tmp_path) as terminal:
        terminal.ready()
        terminal.type("\x1b[200~two\rlines\x1b[201~")
        terminal.until(lambda at: at.input.endswith("lines"))
        assert "Both" not in terminal.text
        terminal.type("\r")
        terminal.until("Both lines came.")
        terminal.type("\x04")
        assert terminal.end() == 0
    assert intents(loom) == ["two\nlines"]


def test_the_history_is_for_the_user_alone(tmp_path: Path) -> None:
    for typed in ("the first\r", "\x1b[A\r"):
        with TerminalScreen("repl", recipe(tmp_path, TALKER), "--state-dir", tmp_path / "s", cwd=tmp_path) as terminal:
            terminal.until("allows nothing")
            terminal.ready()
            terminal.type(typed)
            terminal.until("The first answer.")
            terminal.ready()
            terminal.type("\x04")
            assert terminal.end() == 0
    assert (tmp_path / "s" / "repl_history").stat().st_mode & 0o077 == 0


def test_work_is_shown_before_the_first_word_and_markdown_while_it_comes(tmp_path: Path) -> None:
    with TerminalScreen("repl", recipe(tmp_path, MARKDOWN), cwd=tmp_path) as terminal:
        terminal.ready()
        terminal.type("go\r")
        begun = terminal.until(" working ")
        assert "heading" not in begun
        # The table is one before the code comes, and the last words do not wait for the end.
        table = terminal.until(lambda at: re.search(r"two\s+2", at.text) is not None)
        assert "|---|" not in table
        assert "The end." not in table
        terminal.until("The end.")
        shown = terminal.ready()
    assert "● A heading" in shown
    assert "Some bold words." in shown
    assert "for x in y:" in shown
    assert "```" not in shown
    assert shown.count("The end.") == shown.count("Some bold words.") == 1
    assert b"\x1b[1mbold" in terminal.written


def test_cast_renders_markdown_while_it_comes(tmp_path: Path) -> None:
    with TerminalScreen("cast", recipe(tmp_path, MARKDOWN), "go", cwd=tmp_path, rows=24) as terminal:
        table = terminal.until(lambda at: re.search(r"two\s+2", at.text) is not None)
        assert "|---|" not in table
        assert "The end." not in table
        assert terminal.end() == 0
        shown = terminal.text
    assert "● A heading" in shown
    assert "Some bold words." in shown
    assert "```" not in shown
    assert [shown.count(words) for words in ("A heading", "Some bold", "for x in y:", "The end.")] == [1, 1, 1, 1]
    assert b"\x1b[1mbold" in terminal.written


@pytest.mark.parametrize("command", ["cast", "repl"])
def test_what_was_said_stays_above_a_question(tmp_path: Path, command: str) -> None:
    responses = """
crystal:
  provider: scripted
  responses:
    - {content: I write **one** file., tool_calls: [{gate: write_file, args: {path: one.txt, content: one}}]}
    - {content: Written.}
circle:
  gates: [done, write_file]
  wards: [{max_turns: 3}]
"""
    intent = ["go"] if command == "cast" else []
    with TerminalScreen(command, recipe(tmp_path, responses), *intent, "--ask", cwd=tmp_path) as terminal:
        if command == "repl":
            terminal.ready()
            terminal.type("go\r")
        shown = terminal.until("which?")
        assert "● I write one file." in shown
        assert shown.index("I write one file.") < shown.index("one.txt")
        settled(terminal.pid, 2)
        time.sleep(0.6)  # the input line takes a key for typing if it comes at once
        terminal.type("y")
        shown = terminal.until("Written.")
    assert shown.count("I write one file.") == 1
    assert (tmp_path / "one.txt").read_text() == "one"


@pytest.mark.parametrize("variable", ["TERM=dumb", "FORCE_COLOR=1"])
def test_markdown_stays_text_where_nothing_can_be_replaced(tmp_path: Path, variable: str) -> None:
    name, _, value = variable.partition("=")
    made = recipe(tmp_path, MARKDOWN)
    if name == "TERM":
        with Terminal("cast", made, "go", cwd=tmp_path, TERM=value) as terminal:
            assert terminal.end() == 0
            shown = terminal.seen
        assert "\x1b" not in shown
    else:
        shown = run("cast", made, "go", cwd=tmp_path, FORCE_COLOR=value).out
    assert "|---|" in shown
    assert "**bold**" in shown
    assert "\x1b[?7l" not in shown


def test_tab_completes_the_commands_of_the_editor(tmp_path: Path) -> None:
    from cantrip_acp.acp.sessions.commands.slash_commands import COMMANDS

    with TerminalScreen("repl", recipe(tmp_path, TALKER), cwd=tmp_path) as terminal:
        terminal.ready()
        terminal.type("/rew\t")
        terminal.until(lambda at: at.input == "❯ /reward")
        terminal.type("\x03")
        terminal.ready()
        terminal.type("/r\t")
        shown = terminal.until("/restore")
        assert all(f"/{name}" in shown for name in COMMANDS if name.startswith("r"))
        terminal.type("\x03\x03")
        terminal.ready()
        terminal.type("/help\r")
        shown = terminal.until("Ctrl-C cancels")
        assert all(f"/{name}" in shown for name in COMMANDS)


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        ("/loom", "1 turn in this thread"),
        ("/fork", "repl --session sess_"),
        ("/fold", "nothing to fold"),
        ("/reward 0.5", "has the reward 0.5"),
        ("/wards", "max_turns"),
        ("/context", "together"),
        ("/scope", "reads nothing from the substrate"),
        ("/remember x", "reads nothing from the substrate"),
        ("/cost", "5 tokens in, 2 out"),
        ("/usage", "5 tokens in, 2 out"),
        ("/recipe", "medium: conversation"),
        ("/export openai", "Wrote 1 row"),
        ("/changes", "no file was changed"),
        ("/undo", "nothing to undo"),
        ("/queue", "no prompt waits"),
        ("/etc/hosts second", "The second answer."),
    ],
)
def test_each_command_of_the_editor_works(tmp_path: Path, command: str, answer: str) -> None:
    state = ("--state-dir", str(tmp_path / "s"))
    made = recipe(tmp_path, TALKER)
    done = run("repl", made, *state, cwd=tmp_path, stdin=f"the first\n{command}\n")
    assert done.status == 0, done.err
    assert answer.lower() in (done.out.replace("`", "")).lower(), done.out
    if command == "/fork":
        session = re.findall(r"sess_\w+", done.out)[0]
        again = run("repl", "--session", session, *state, cwd=tmp_path, stdin="the second\n/loom\n")
        assert "2 turns in this thread" in again.out, again


@needs_sandbox
def test_text_typed_ahead_stays_on_the_line(tmp_path: Path) -> None:
    loom = tmp_path / "x.loom.jsonl"
    with TerminalScreen("repl", recipe(tmp_path, WAITER), "--loom", loom, cwd=tmp_path) as terminal:
        terminal.ready()
        terminal.type("the first\r")
        terminal.until("waiting")
        terminal.type("the sec")
        terminal.until(lambda at: at.input == "❯ the sec")
        (tmp_path / "go").touch()
        terminal.until("waiting again")
        terminal.until(lambda at: at.input == "❯ the sec")
        terminal.type("ond\r")
        terminal.until("waits as 1: the second")
        terminal.type("/now use tabs\r")
        terminal.type("and th")
        terminal.until(lambda at: at.input == "❯ and th")
        (tmp_path / "on").touch()
        terminal.until("Second answer.")
        terminal.until(lambda at: at.input == "❯ and th" and " working " not in at.text)
        terminal.type("en\r")
        terminal.until("waiting more")
        terminal.type("\x03")
        terminal.until("cancelled")
        terminal.ready()
        terminal.type("/quit\r")
        assert terminal.end() == 0
    assert intents(loom) == ["the first", "the second", "and then"]


def test_a_permission_question_shows_the_change_and_takes_one_key(tmp_path: Path) -> None:
    with TerminalScreen("repl", recipe(tmp_path, WRITER), "--ask", cwd=tmp_path) as terminal:
        terminal.ready()
        terminal.type("go\r")
        asked(terminal, "one.txt")
        assert "+first" in terminal.text
        assert "+++ b/one.txt" in terminal.text, "the path in the folder"
        assert not (tmp_path / "one.txt").exists()
        # A paste is no answer. It stays on the line.
        terminal.type("\x1b[200~yes\x1b[201~")
        terminal.until(lambda at: "yes" in at.input)
        assert not (tmp_path / "one.txt").exists()
        terminal.type("y")
        terminal.until("+second")
        terminal.until(lambda at: (tmp_path / "one.txt").exists())
        asked(terminal, "two.txt")
        terminal.type("r")
        terminal.until("reason:")
        terminal.type("use Docs/\r")
        asked(terminal, "three.txt")
        terminal.type("a")
        terminal.until("Done.")
        terminal.until(lambda at: at.input == "❯ yes")
        terminal.type("\x03")
        terminal.ready()
        terminal.type("\x04")
        assert terminal.end() == 0
    assert not (tmp_path / "two.txt").exists()
    assert (tmp_path / "sub" / "three.txt").read_text() == "third\n"


def test_keys_of_a_word_that_is_being_typed_answer_nothing(tmp_path: Path) -> None:
    text = WRITER.replace("  responses:\n    - tool_calls", "  responses:\n    - delay_ms: 700\n      tool_calls")
    with TerminalScreen("repl", recipe(tmp_path, text), "--ask", cwd=tmp_path) as terminal:
        terminal.ready()
        terminal.type("go\r")
        terminal.until(" working ")
        while "which?" not in terminal.text:
            terminal.type("y")
            terminal.until(lambda at: True)
            terminal._read(0.1)
        terminal.type("yy")
        terminal.until(lambda at: at.input.endswith("yy"))
        assert not (tmp_path / "one.txt").exists()


def test_the_duration_is_without_the_wait_for_the_user(tmp_path: Path) -> None:
    with TerminalScreen("repl", recipe(tmp_path, WRITER), "--ask", cwd=tmp_path) as terminal:
        terminal.ready()
        terminal._read(1)
        began = time.monotonic()
        terminal.type("go\r")
        for name in ("one", "two", "three"):
            asked(terminal, f"{name}.txt")
            time.sleep(1.5)
            terminal.type("n")
        terminal.until("■ text")
        took = time.monotonic() - began
        terminal.ready()
    (last,) = re.findall(r"■ text.* · ([\d.]+) (ms|s|min)", terminal.text)
    assert last[1] == "ms" or (last[1] == "s" and float(last[0]) < took - 4), last


def test_a_person_in_the_place_of_the_model(tmp_path: Path) -> None:
    with TerminalScreen("repl", recipe(tmp_path, HUMAN), cwd=tmp_path) as terminal:
        terminal.ready()
        terminal.type("Say hi.\r")
        terminal.until(lambda at: at.input == "you ❯")
        assert "Be a good model." in terminal.text
        terminal.type("/echo one\r")
        terminal.until(lambda at: "── echo" in at.text and at.input == "you ❯")
        terminal.type("Hi.\r")
        terminal.until("■ text")
        terminal.ready()
        terminal.type("Again.\r")
        terminal.until(lambda at: at.input == "you ❯")
        terminal.type("\x03")
        terminal.until("cancelled")
        terminal.ready()


def test_a_plan_is_edited_and_approved(tmp_path: Path) -> None:
    editor = tmp_path / "editor"
    editor.write_text("#!/bin/sh\nprintf '# Plan\\n\\nEdited.' > \"$1\"\n")
    editor.chmod(0o755)
    with TerminalScreen("repl", recipe(tmp_path, PLANS), "--plan", cwd=tmp_path, VISUAL=str(editor)) as terminal:
        terminal.ready()
        terminal.type("go\r")
        terminal.until(lambda at: at.input == "plan?")
        terminal.type("n shorter\r")
        terminal.until("Second.")
        terminal.until(lambda at: at.input == "plan?")
        terminal.type("e\r")
        terminal.until("Edited.")
        terminal.until(lambda at: at.input == "plan?")
        terminal.type("2\r")
        terminal.until("Done.")
        terminal.ready()
    assert (tmp_path / "one.txt").read_text() == "first"


@pytest.mark.parametrize("env", [{}, {"NO_COLOR": "1"}], ids=["colour", "without colour"])
def test_44_columns(tmp_path: Path, env: dict[str, str]) -> None:
    with TerminalScreen("repl", recipe(tmp_path, MARKDOWN), cwd=tmp_path, columns=44, **env) as terminal:
        terminal.ready()
        terminal.type("go\r")
        terminal.until("The end.")
        terminal.ready()
        terminal.type("/help\r")
        shown = terminal.until("Ctrl-C cancels")
        terminal.ready()
    # Words are not cut at the edge.
    assert re.search(r"\bedit|remove|now NUMBER\b", shown)
    assert re.search(r"two\s+2", shown)
    coloured = re.search(rb"\x1b\[[\d;]*(?:3[1-7]|38|9[1-7])[;m]", terminal.written)
    assert (coloured is None) is bool(env)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_polite_signal_at_the_prompt_leaves(tmp_path: Path, number: int) -> None:
    with TerminalScreen("repl", recipe(tmp_path, TALKER), cwd=tmp_path) as terminal:
        terminal.until("allows nothing")
        terminal.ready()
        os.kill(terminal.pid, number)
        assert terminal.end() == 128 + number


def test_a_signal_during_a_cast_ends_it_first(tmp_path: Path) -> None:
    loom = tmp_path / "x.loom.jsonl"
    text = MARKDOWN.replace("delay_ms: 400", "delay_ms: 5000")
    with TerminalScreen("repl", recipe(tmp_path, text), "--loom", loom, cwd=tmp_path) as terminal:
        terminal.ready()
        terminal.type("go\r")
        terminal.until(" working ")
        os.kill(terminal.pid, signal.SIGTERM)
        assert terminal.end() in (130, 128 + signal.SIGTERM)
    with Loom.open(loom, readonly=True) as held:
        assert [end.reason for _, end in held.casts() if end] == ["cancelled"]


def test_one_key_switches_to_ask_and_back(tmp_path: Path) -> None:
    text = WRITER.replace("  responses:\n", "  responses:\n    - {content: First.}\n")
    with TerminalScreen("repl", recipe(tmp_path, text), cwd=tmp_path) as terminal:
        assert "Shift-Tab asks before each change" in terminal.until("allows without asking calls of its gates")
        terminal.ready()
        terminal.type("half\x1b[Z")
        terminal.until("mode ask: Asks before each write and each command.")
        # What was typed stays.
        terminal.until(lambda at: at.input == "❯ half")
        terminal.type("\r")
        terminal.until("First.")
        terminal.ready()
        terminal.type("go\r")
        asked(terminal, "one.txt")
        terminal.type("n")
        asked(terminal, "two.txt")
        # Back, while the question is open: it is withdrawn, and nothing more is asked.
        terminal.type("\x1b[Z")
        terminal.until("mode trusted")
        terminal.until("Done.")
        terminal.ready()
        assert [(tmp_path / name).exists() for name in ("one.txt", "two.txt", "sub/three.txt")] == [False, True, True]
        terminal.type("/ask\r")
        terminal.until(lambda at: "mode ask" in at.text.rpartition("/ask")[2])
        terminal.ready()
        terminal.type("\x04")
        assert terminal.end() == 0


LONG = (
    """
crystal:
  provider: scripted
  responses:
    - content: "FIRST\\n\\n| name | about |\\n|---|---|\\n| one | TEXT |"
    - delay_ms: 300
      chunks: ["Now ", "it ", "comes: ", "WORDS", " to ", "the ", "very ", "end."]
    - content: "THIRD"
circle:
  gates: [done]
  wards: [{max_turns: 3}]
""".replace("FIRST", " ".join(f"first{n}" for n in range(40)))
    .replace("WORDS", " ".join(f"word{n}" for n in range(40)))
    .replace("THIRD", " ".join(f"third{n}" for n in range(40)))
    .replace("TEXT", " ".join(f"cell{n}" for n in range(12)))
)


def test_new_text_is_wrapped_at_the_width_that_the_terminal_has(tmp_path: Path) -> None:
    started = {"columns": 100, "COLUMNS": "", "LINES": ""}
    with TerminalScreen("repl", recipe(tmp_path, LONG), cwd=tmp_path, **started) as terminal:  # type: ignore[arg-type]
        terminal.ready()
        # Narrow before the first answer, which has a table.
        terminal.resize(44)
        terminal.type("go\r")
        terminal.until("cell11")
        shown = [line for line in terminal.ready().splitlines() if re.search(r"first\d|cell\d", line)]
        assert all(len(line) <= 44 for line in shown), shown
        words = re.findall(r"(?:first|cell)\d+", "\n".join(shown))
        assert words == [f"first{n}" for n in range(40)] + [f"cell{n}" for n in range(12)], "no word is cut"
        assert re.search(rb"\x1b\[36m\xe2\x97\x8f \x1b\[0mfirst0", terminal.written), "only the mark has its colour"
        # Wider while the second one comes, and something is being typed.
        terminal.type("go\r")
        terminal.until("Now ")
        terminal.type("typed ah")
        terminal.resize(90)
        terminal.until("very end.")
        terminal.until(lambda at: at.input == "❯ typed ah" and " working " not in at.text)
        shown = [line for line in terminal.lines if "word" in line]
        assert max(map(len, shown)) > 60
        assert re.findall(r"word\d+", "\n".join(shown)) == [f"word{n}" for n in range(40)]
        terminal.resize(60)
        terminal.type("ead\r")
        terminal.until("third39")
        terminal.ready()
        assert "❯ typed ahead" in terminal.text
        assert all(len(line) <= 60 for line in terminal.lines if "third" in line)


def test_what_is_typed_while_the_command_starts_is_sent(tmp_path: Path) -> None:
    loom = tmp_path / "x.loom.jsonl"
    with TerminalScreen("repl", recipe(tmp_path, TALKER), "--loom", loom, cwd=tmp_path) as terminal:
        # At once: the terminal still edits lines itself.
        terminal.type("the first\r/hlp\rtw")
        terminal.until("The first answer.")
        terminal.until("/hlp")
        terminal.until(lambda at: at.input == "❯ tw" and " working " not in at.text)
        terminal.type("o\x1b\rlines\r")
        terminal.until("Both lines came.")
        terminal.ready()
        terminal.type("\x04")
        assert terminal.end() == 0
    assert intents(loom) == ["the first", "two\nlines"]
