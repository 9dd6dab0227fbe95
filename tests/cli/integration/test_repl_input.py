"""What a user can type in `cantrip repl` besides intents: `@file`, `!command`, `/model`, `/clear`, and words that are none."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from cantrip_acp.cli.session.completions import completions
from cantrip_acp.cli.session.mentions import mentioned, prompt_blocks
from cantrip_acp.loom.loom import Loom
from cantrip_acp.types.records import ConfigRecord, ContextRecord
from tests.support.command_line import Done, TerminalScreen, recipe, run

needs_sandbox = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed here")

TALKER = """
name: talker
crystal: {provider: scripted, responses: [{content: An answer., repeat: true}]}
circle:
  gates: [done]
  wards: [{max_turns: 3}, {bash_writable_paths: [out]}]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    recipe(tmp_path, TALKER)
    (tmp_path / "out").mkdir()
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a b.py").write_text("one\ntwo\nthree\n")
    (tmp_path / "src" / "app.py").write_text("one\ntwo\nthree\n")
    (tmp_path / "latin.txt").write_bytes("caf\xe9\n".encode("latin-1"))
    (tmp_path / "large.txt").write_text("x" * 79 + "\n")
    with (tmp_path / "large.txt").open("a") as file:
        file.writelines("y" * 79 + "\n" for _ in range(5_000))
    for name in ("hello", "other"):
        (tmp_path / f"{name}.yaml").write_text(f"- {{content: From {name}., repeat: true}}\n")
    return tmp_path


def talk(folder: Path, *lines: str, options: tuple[str | Path, ...] = ()) -> tuple[Done, list[Any]]:
    """Type lines, and return also the records of the loom."""
    loom = folder / "x.loom.jsonl"
    done = run("repl", "./r.cantrip.yaml", "--loom", loom, *options, cwd=folder, stdin="".join(f"{x}\n" for x in lines))
    with Loom.open(loom, readonly=True) as held:
        return done, list(held.records())


def given(records: list[Any]) -> list[tuple[str, str]]:
    return [(each.title, each.text) for each in records if isinstance(each, ContextRecord) and each.title]


# --- @file


def test_files_folders_and_lines_are_attached(folder: Path) -> None:
    done, records = talk(folder, 'See @src/app.py, @"src/a b.py"#, @src/app.py#L2-3 and @src/ please.')
    assert done.status == 0, done.err
    assert "attached src/app.py, src/a b.py, src/app.py#L2-3, src/" in done.out
    titles = [title for title, _ in given(records)]
    assert titles == ["src/app.py", "src/a b.py", "src/app.py#L2-3: lines 2 to 3", "src/"]
    texts = [text for _, text in given(records)]
    assert "three" in texts[0]
    assert "two" in texts[2]
    assert "one" not in texts[2]
    assert "app.py" in texts[3]


def test_what_cannot_be_attached_is_told(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = tmp_path_factory.mktemp("outside") / "secret.txt"
    outside.write_text("secret")
    done, records = talk(
        folder, f"@no/such.py and @{outside} and @large.txt and @latin.txt, not @property or me@example.org."
    )
    assert done.status == 0, done.err
    assert "there is no file 'no/such.py'" in done.out
    assert f"{outside}: " in done.out
    assert "property" not in done.out.replace("@property", "")
    found = dict(given(records))
    assert "secret" not in json.dumps(found).replace(str(outside), "").replace("secret.txt", "")
    assert 60_000 < len(found["large.txt"]) < 70_000
    assert "caf" in found["latin.txt"]


def test_a_word_with_an_at_is_no_mention(folder: Path) -> None:
    assert mentioned("@property @src me@src/app.py", folder)[0] == mentioned("@src", folder)[0]
    assert mentioned("@property and me@src/app.py and @ alone", folder) == ([], [])


def test_a_prompt_has_links_in_the_place_of_its_mentions(folder: Path) -> None:
    blocks, notes = prompt_blocks('See @src/app.py, @"src/a b.py" and @no/such.py.', folder)
    uri = folder.as_uri()
    assert blocks == [
        {"type": "text", "text": "See "},
        {"type": "resource_link", "name": "src/app.py", "uri": f"{uri}/src/app.py"},
        {"type": "text", "text": ", "},
        {"type": "resource_link", "name": "src/a b.py", "uri": f"{uri}/src/a%20b.py"},
        {"type": "text", "text": " and @no/such.py."},
    ]
    assert len(notes) == 1
    assert prompt_blocks("nothing", folder) == ([{"type": "text", "text": "nothing"}], [])


# --- !command


@needs_sandbox
def test_a_command_runs_in_the_sandbox_and_the_agent_reads_its_output(folder: Path) -> None:
    done, records = talk(
        folder,
        "!echo shown; touch out/made; touch not-allowed; cat /root/.bashrc",
        "!exit 3",
        "What happened?",
        "And now?",
    )
    assert done.status == 0, done.err
    assert "shown" in done.out
    assert "exit 3" in done.out
    assert (folder / "out" / "made").exists()
    assert not (folder / "not-allowed").exists()
    first, second = (text for title, text in given(records) if "the user ran" in title)
    assert first.startswith("$ echo shown;")
    assert "\nshown\n" in first
    assert "not-allowed" in first
    assert second.startswith("$ exit 3")
    assert "[exit status 3]" in second
    intents = [each.intent for each in records if getattr(each, "event", "") == "start"]
    assert intents == ["What happened?", "And now?"]


@needs_sandbox
def test_ctrl_c_stops_the_command_and_not_the_session(folder: Path) -> None:
    with TerminalScreen("repl", "./r.cantrip.yaml", cwd=folder) as terminal:
        terminal.ready()
        # As soon as it is known to begin, and while it runs.
        terminal.type("!sleep 61\r")
        terminal.until(" working ")
        terminal.type("\x03")
        terminal.until("the user stopped the command")
        terminal.ready()
        terminal.type("!echo be''gun; sleep 60\r")
        terminal.until("begun")
        terminal.type("typed ahead\x03")
        terminal.until(lambda at: at.text.count("the user stopped the command") == 2)
        terminal.until(lambda at: at.input == "❯ typed ahead" and " working " not in at.text)
        terminal.type("\r")
        terminal.until("An answer.")
        terminal.ready()
        terminal.type("\x04")
        assert terminal.end() == 0


# --- /model


def test_the_model_is_shown_and_switched(folder: Path) -> None:
    lines = (
        "Hi.",
        "/model",
        "/model scripted:hello.yaml",
        "Hi.",
        "/model nobody:x",
        "/model scripted:other.yaml",
        "Hi.",
    )
    done, records = talk(folder, *lines)
    assert done.status == 0, done.err
    assert "model: scripted:scripted" in done.out
    order = [
        done.out.find(words) for words in ("An answer.", "From hello.", "'nobody:x' is not a crystal", "From other.")
    ]
    assert order == sorted(order)
    assert -1 not in order
    changes = [each.changes["crystal"] for each in records if isinstance(each, ConfigRecord)]
    assert changes == ["scripted:hello.yaml", "scripted:other.yaml"]


# --- /clear


def test_a_new_conversation_knows_nothing_of_the_old_one_which_is_kept(folder: Path) -> None:
    state = folder / "state"
    own = ("./r.cantrip.yaml", "--state-dir", state)
    lines = "Hi.\n/model scripted:hello.yaml\nAgain.\n/clear\nAfresh.\n"
    done = run("repl", *own, cwd=folder, stdin=lines)
    assert done.status == 0, done.err
    kept = done.out.partition("cantrip repl --session ")[2].split()[0]
    assert done.out.rindex("From hello.") > done.out.index("a new conversation begins")
    intents, models = [], []
    for loom in sorted((state / "looms").glob("*.jsonl"), key=lambda path: path.stat().st_mtime_ns):
        with Loom.open(loom, readonly=True) as held:
            intents.append([start.intent for start, _ in held.casts()])
            models.append([each.changes["crystal"] for each in held.records() if isinstance(each, ConfigRecord)])
    assert intents == [["Hi.", "Again."], ["Afresh."]]
    assert models == [["scripted:hello.yaml"]] * 2
    again = run("repl", "--session", kept, "--state-dir", state, cwd=folder, stdin="/loom\nOnce more.\n")
    assert again.status == 0, again.err
    assert "2 turns in this thread" in again.out


def test_clear_at_a_terminal_keeps_mode_and_lines_that_wait(folder: Path) -> None:
    slow = TALKER.replace("content: An answer.", "delay_ms: 700, chunks: [An, ' answer.']")
    recipe(folder, slow, "slow.cantrip.yaml")
    with TerminalScreen("repl", "./slow.cantrip.yaml", cwd=folder) as terminal:
        terminal.ready()
        terminal.type("\x1b[Z")
        terminal.until("mode ask")
        terminal.type("the first\r")
        terminal.until(" working ")
        terminal.type("/clear\r")
        terminal.until("waits as 1: /clear")
        terminal.type("the second\r")
        terminal.until("waits as 2: the second")
        terminal.until("a new conversation begins")
        terminal.until(lambda at: "❯ the second" in at.text and at.text.count("An answer.") == 2)
        terminal.ready()
        terminal.type("/wards\r")
        terminal.until(lambda at: "Mode: ask" in at.text)
        terminal.type("\x1b[Z")
        terminal.until("mode trusted")
        terminal.type("\x04")
        assert terminal.end() == 0


# --- words that are no command


def test_a_misspelled_command_is_told_and_no_path_is(folder: Path) -> None:
    done, records = talk(folder, "/modle gpt-5", "/hlp", "/cleer", "/tmp is full")
    assert "unknown command /modle; did you mean /model?" in done.out
    assert "did you mean `/help`?" in done.out
    assert "unknown command /cleer; did you mean /clear?" in done.out
    assert [each.intent for each in records if getattr(each, "event", "") == "start"] == ["/tmp is full"]


# --- the Tab key


def test_completion_of_commands_models_and_paths(folder: Path) -> None:
    commands = [("/model", "about"), ("/mode", ""), ("/help", "")]
    arguments = {"/model": lambda: [("ollama:qwen3", "here"), ("fast", "")]}

    def offered(typed: str) -> list[str]:
        return [
            typed[: len(typed) - replaced] + text
            for text, replaced, _ in completions(typed, commands, folder, arguments)
        ]

    assert offered("/mo") == ["/model", "/mode"]
    assert offered("/model o") == ["/model ollama:qwen3"]
    assert offered("see @sr") == ["see @src/"]
    assert offered("see @src/a") == ['see @"src/a b.py"', "see @src/app.py"]
    assert offered("see @../") == []
    assert offered("see sr") == []


def test_tab_completes_a_path(folder: Path) -> None:
    with TerminalScreen("repl", "./r.cantrip.yaml", cwd=folder) as terminal:
        terminal.ready()
        terminal.type("see @src/ap\t")
        terminal.until(lambda at: at.input.startswith("❯ see @src/app.py"))
        terminal.type("\r")
        terminal.until("attached src/app.py")
        terminal.until("An answer.")
