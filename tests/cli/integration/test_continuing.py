"""Continuing in `cantrip repl`: what leaving says, every id that `--session` takes, and the numbers of turns in a fork."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.support.command_line import Done, TerminalScreen, recipe, run

TALK = """
name: talk
crystal:
  provider: scripted
  responses: [{content: One.}, {content: Two.}, {content: Three.}, {content: Four.}]
circle:
  gates: [done]
  wards: [{max_turns: 3}]
"""


def repl(folder: Path, *arguments: str, typed: str) -> Done:
    return run("repl", "./r.cantrip.yaml", "--state-dir", folder / "s", *arguments, cwd=folder, stdin=typed)


def threads(folder: Path) -> list[dict[str, str]]:
    listed = run("loom", "list", "--json", "--state-dir", folder / "s", cwd=folder)
    found: list[dict[str, str]] = json.loads(listed.out)["threads"]
    return found


def session_of(done: Done) -> str:
    return re.findall(r"continue with: cantrip repl --session (sess_\w+)", done.out)[0]


def test_leaving_says_how_to_continue_and_continuing_shows_what_was(tmp_path: Path) -> None:
    recipe(tmp_path, TALK)
    with TerminalScreen("repl", "./r.cantrip.yaml", cwd=tmp_path) as terminal:
        terminal.ready()
        terminal.type("\x04")
        assert terminal.end() == 0
        assert "continue with" not in terminal.text, "there is nothing to continue"
    with TerminalScreen("repl", "./r.cantrip.yaml", cwd=tmp_path, columns=160) as terminal:
        terminal.ready()
        terminal.type("the first\r")
        terminal.until("One.")
        terminal.ready()
        terminal.type("\x04")
        assert terminal.end() == 0
        session = re.findall(r"continue with: cantrip repl --session (sess_\w+)", terminal.text)[0]
    again = run("repl", "--session", session, cwd=tmp_path, stdin="the second\n")
    assert again.status == 0, again.err
    order = [again.out.find(words) for words in ("❯ the first", "One.", "❯ the second", "Two.", "turn 2")]
    assert order == sorted(order)
    assert -1 not in order


def test_each_id_of_the_list_and_its_beginning_and_last(tmp_path: Path) -> None:
    recipe(tmp_path, TALK)
    cast = run("cast", "./r.cantrip.yaml", "the first", "--state-dir", tmp_path / "s", cwd=tmp_path)
    assert cast.status == 0, cast.err
    leaf = threads(tmp_path)[0]["leaf"]
    first = repl(tmp_path, "--session", leaf, typed="the second\n")
    assert "❯ the first" in first.out, first.err
    assert "Two." in first.out
    [thread] = threads(tmp_path)
    last = repl(tmp_path, "--session", "last", typed="the third\n")
    assert session_of(last) == session_of(first), "the cast has become one session"
    assert "Three." in last.out
    by_beginning = repl(tmp_path, "--session", threads(tmp_path)[0]["leaf"][:-2], typed="the fourth\n")
    assert "Four." in by_beginning.out, by_beginning.err
    wrong = repl(tmp_path, "--session", f"{thread['leaf']}x", typed="")
    assert (wrong.status, wrong.out) == (2, "")
    assert "the nearest: " in wrong.err
    assert wrong.err.count("\n") == 1


def test_last_is_of_this_folder(tmp_path: Path) -> None:
    recipe(tmp_path, TALK)
    repl(tmp_path, typed="the first\n")
    (tmp_path / "other").mkdir()
    none = run("repl", "--session", "last", "--state-dir", tmp_path / "s", cwd=tmp_path / "other")
    assert none.status == 2
    assert "there is no session of" in none.err


def test_a_session_that_clear_kept_is_in_the_list(tmp_path: Path) -> None:
    recipe(tmp_path, TALK)
    loom = tmp_path / "own.loom.jsonl"
    done = repl(tmp_path, "--loom", str(loom), typed="the first\n/clear\nthe second\n/sessions\n")
    kept = re.findall(r"is kept: cantrip repl --session (sess_\w+)", done.out)[0]
    assert kept in done.out.partition("/sessions")[2]
    again = repl(tmp_path, "--session", kept, typed="/loom\n")
    assert "1 turn in this thread" in again.out, again.err


def test_turns_of_a_fork_have_the_numbers_that_commands_take(tmp_path: Path) -> None:
    recipe(tmp_path, TALK)
    done = repl(tmp_path, typed="the first\nthe second\n/fork 1\n")
    fork = re.findall(r"repl --session (sess_\w+)", done.out.partition("/fork 1")[2])[0]
    again = repl(tmp_path, "--session", fork, typed="another second\n/loom\n")
    number, turn = re.findall(r"turn (\d+) · .*(t_\w+)", again.out)[0]
    assert number == "2", again.out
    assert re.search(rf"\| 2 \| `{turn}`", again.out)
    shown = run("loom", "thread", fork, turn, "--state-dir", tmp_path / "s", cwd=tmp_path)
    assert re.findall(r"^turn (\d+)  (t_\w+)", shown.out, re.MULTILINE)[-1] == ("2", turn), shown.out + shown.err


def test_ctrl_d_during_a_cast_says_when_it_quits(tmp_path: Path) -> None:
    recipe(tmp_path, TALK.replace("{content: One.}", "{delay_ms: 1500, chunks: [One.]}"))
    with TerminalScreen("repl", "./r.cantrip.yaml", cwd=tmp_path) as terminal:
        terminal.ready()
        terminal.type("the first\r")
        terminal.until(" working ")
        terminal.type("\x04")
        terminal.until("quits when this turn and what waits has ended; Ctrl-C stops it")
        terminal.until("One.")
        assert terminal.end() == 0


def test_a_lone_sign_and_an_unknown_model_are_explained(tmp_path: Path) -> None:
    recipe(tmp_path, TALK)
    done = repl(tmp_path, typed="!\n/model nosuch:x\n")
    assert "write a command after the !" in done.out
    assert "'nosuch:x' is not a crystal; write PROVIDER:MODEL" in done.out
    assert "refused session/set_config_option" not in done.out
    assert "turn 1" not in done.out
