"""`cantrip "do this"`: the default agent works, and nothing is cast by mistake."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cantrip_acp.loom.loom import Loom
from cantrip_acp.types.records import ContextRecord
from tests.support import processes
from tests.support.command_line import GREETER, recipe, run
from tests.support.processes import CANTRIP


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "hello.yaml").write_text("- {content: Hello from the script., repeat: true}\n")
    return tmp_path


def cast(folder: Path, *words: str, stdin: str = "") -> tuple[Any, list[str]]:
    """Run the command, and return also the intents in its loom."""
    loom = folder / "x.loom.jsonl"
    done = run(*words, "--loom", loom, cwd=folder, stdin=stdin, CANTRIP_CRYSTAL="scripted:hello.yaml")
    if not loom.exists():
        return done, []
    with Loom.open(loom, readonly=True) as held:
        return done, [start.intent or "" for start, _ in held.casts()]


@pytest.mark.parametrize(
    "words",
    [
        ("fix the bug",),
        ("cast", "fix the bug"),
        ("fix src/a.py please",),
        ("cast", "hello"),
        ("cast", "-"),
    ],
)
def test_one_argument_is_the_intent_of_the_default_recipe(folder: Path, words: tuple[str, ...]) -> None:
    done, intents = cast(folder, *words, stdin="from stdin" if words[-1] == "-" else "")
    assert done.status == 0, done.err
    assert "Hello from the script." in done.out
    assert intents == ["from stdin" if words[-1] == "-" else words[-1]]
    assert "Python in the sandbox" in done.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("rnu",), "unknown command 'rnu'; did you mean 'cast'?"),
        (("run",), "unknown command 'run'; did you mean 'cast'?"),
        (("repll",), "did you mean 'repl'?"),
        (("nonsense",), "unknown command 'nonsense' (known: "),
        (("cast",), 'say what to do: cantrip cast "fix the bug"'),
        (
            ("cast", "familiar"),
            "'familiar' is a recipe, so the intent is missing: cantrip cast familiar \"what to do\"",
        ),
        (("cast", "familiar"), "write: cantrip cast familiar familiar"),
        (("cast", "familar"), "did you mean 'familiar'?"),
        (("cast", "a b.cantrip.yaml"), "'a b.cantrip.yaml' is a recipe, so the intent is missing"),
        (("a b.cantrip.yaml",), "write: cantrip cast familiar 'a b.cantrip.yaml'"),
        (("cast", "no/such.yaml"), "there is no recipe file 'no/such.yaml'"),
        (("fix this", "and that"), "unexpected extra argument (and that)"),
        (("cast", "  "), "intent is required"),
    ],
)
def test_what_may_be_a_mistake_is_never_cast(folder: Path, words: tuple[str, ...], said: str) -> None:
    recipe(folder, GREETER, "a b.cantrip.yaml")
    done, intents = cast(folder, *words)
    assert (done.status, done.out, intents) == (2, "", [])
    assert said in done.err


def test_what_is_piped_in_is_given_to_the_agent(folder: Path) -> None:
    done, intents = cast(folder, "review this", stdin="the difference\n")
    assert (done.status, intents) == (0, ["review this"]), done.err
    with Loom.open(folder / "x.loom.jsonl", readonly=True) as held:
        found = [each for each in held.records() if isinstance(each, ContextRecord)]
    assert [(each.title, each.text) for each in found if each.title == "stdin"] == [("stdin", "the difference\n")]


def test_a_pipe_to_which_nobody_writes_does_not_hold_the_command_up(folder: Path) -> None:
    reading, writing = os.pipe()
    try:
        done = processes.run(
            [*CANTRIP, "review this"],
            cwd=folder,
            stdin=reading,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            env={**os.environ, "CANTRIP_CRYSTAL": "scripted:hello.yaml"},
        )
    finally:
        os.close(reading)
        os.close(writing)
    assert done.returncode == 0, done.stderr
    assert "nothing was written, so it is not read" in done.stderr


def test_a_script_that_names_recipe_and_intent_keeps_its_stdin(folder: Path) -> None:
    recipe(folder, GREETER)
    done, _ = cast(folder, "cast", "./r.cantrip.yaml", "Hi.", stdin="for others\n")
    assert done.status == 0, done.err
    with Loom.open(folder / "x.loom.jsonl", readonly=True) as held:
        assert not [each for each in held.records() if isinstance(each, ContextRecord) and each.title == "stdin"]
