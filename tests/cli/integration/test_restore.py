"""`cantrip loom restore`, and the commands of `cantrip repl` on changed files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from cantrip_acp.loom.loom import Loom
from cantrip_acp.types.records import FilesRecord
from tests.support.command_line import Terminal, run

LINES = "one\ntwo\nthree\nfour\n"


def write(path: str, content: str) -> dict[str, Any]:
    return {"tool_calls": [{"gate": "write_file", "args": {"path": path, "content": content}}]}


@pytest.fixture
def work(tmp_path: Path) -> tuple[Path, Path, Path]:
    """A project, a recipe that changes it in two casts, and a state folder."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "a.txt").write_text(LINES)
    script = [write("a.txt", LINES.upper()), write("new.txt", "new\n"), {"content": "One."}, write("new.txt", "newer\n"),
              {"content": "Two."}]  # fmt: skip
    recipe = {
        "name": "writes",
        "crystal": {"provider": "scripted", "responses": script},
        "circle": {"medium": "conversation", "gates": ["done", "write_file"], "wards": [{"max_turns": 9}]},
    }
    path = tmp_path / "writes.cantrip.yaml"
    path.write_text(json.dumps(recipe))
    return project, path, tmp_path / "state"


def test_loom_restore(work: tuple[Path, Path, Path], tmp_path: Path) -> None:
    project, recipe, state = work
    loom = tmp_path / "l.loom.jsonl"
    own = ("--state-dir", str(state))
    done = run("cast", str(recipe), "Write.", "--cwd", str(project), "--loom", str(loom), *own, cwd=tmp_path)
    assert done.status == 0, done.err
    with Loom.open(loom, readonly=True) as held:
        first, *turns = held.places
    seen = run("loom", "restore", str(loom), first, "--dry-run", cwd=tmp_path)
    assert (seen.status, seen.out.split()) == (
        0,
        ["would", "restore", "2", "files", "of", str(project), "write", "a.txt", "delete", "new.txt"],
    )
    assert (project / "a.txt").read_text() == LINES.upper()
    (project / "a.txt").write_text("ONE\nTWO\nTHREE\nmine\n")
    done = run("loom", "restore", str(loom), turns[0], "--json", cwd=tmp_path)
    assert json.loads(done.out)["restored"] == {"new.txt": "delete"}
    done = run("loom", "restore", str(loom), first, cwd=tmp_path)
    assert done.status == 1
    assert "a.txt: you changed it after the entity did" in done.out
    done = run("loom", "restore", str(loom), first, "--force", cwd=tmp_path)
    assert done.status == 0, done.out + done.err
    assert (project / "a.txt").read_text() == LINES
    with Loom.open(loom) as held:
        restored = [r for r in held.records() if isinstance(r, FilesRecord) and isinstance(r.restored, str)]
        assert [r.restored for r in restored] == [turns[0], first]
    # A later turn takes it back.
    done = run("loom", "restore", str(loom), "", cwd=tmp_path)
    assert (project / "new.txt").read_text() == "new\n"
    assert run("loom", "restore", str(loom), "t_none", cwd=tmp_path).status == 2


def test_in_the_repl(work: tuple[Path, Path, Path], tmp_path: Path) -> None:
    project, recipe, state = work
    lines = ["Write.", "/changes", "/changes -p", "Again.", "/undo", "/undo a.txt", "/redo", "/restore 0", "/undo none"]
    done = run(
        "repl",
        str(recipe),
        "--cwd",
        str(project),
        "--state-dir",
        str(state),
        cwd=tmp_path,
        stdin="\n".join(lines) + "\n",
    )
    assert done.status == 0, done.err
    assert "| `a.txt` | modified | +4 -4 |" in done.out
    assert "+ONE" in done.out
    assert "changed nothing in 'none'" in done.out
    assert (project / "a.txt").read_text() == LINES
    assert not (project / "new.txt").exists()


def test_changes_in_the_repl_are_shown_kept_and_undone_by_file_and_hunk(
    work: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    project, recipe, state = work
    words = ["diff a.txt", "undo a.txt 2", "keep a.txt 1", "undo a.txt", "undo new.txt 1", "lines"]
    lines = ["Write.", *(f"/changes {each}" for each in words)]
    own = ("--cwd", str(project), "--state-dir", str(state))
    done = run("repl", str(recipe), *own, cwd=tmp_path, stdin="\n".join(lines) + "\n")
    assert done.status == 0, done.err
    assert "+ONE" in done.out
    assert "a.txt has 1 hunk; there is no hunk 2" in done.out
    assert "Kept hunk 1 of `a.txt`" in done.out
    assert "changed nothing in 'a.txt' that you can still keep or undo" in done.out
    assert "`/changes lines` is not known; `/changes` takes -p, diff, keep, undo or the number of a prompt" in done.out
    assert (project / "a.txt").read_text() == LINES.upper()
    assert not (project / "new.txt").exists()


def test_conflicts_are_a_question_at_a_terminal(work: tuple[Path, Path, Path], tmp_path: Path) -> None:
    project, recipe, state = work
    loom = tmp_path / "l.loom.jsonl"
    own = ("--cwd", project, "--state-dir", state)
    question = "restore nothing (c)? "
    with Terminal("repl", recipe, "--loom", loom, *own, cwd=tmp_path, TERM="dumb") as terminal:
        terminal.wait_for("❯ ")
        terminal.type("Write.\r")
        terminal.wait_for("One.")
        terminal.wait_for("❯ ")
        (project / "a.txt").write_text("mine\n")
        # Ctrl-D answers nothing, so nothing is restored.
        for answer in ("c", "\x04"):
            terminal.type("/undo\r")
            assert "a.txt: you changed it after the entity did" in terminal.wait_for("which? ").replace("`", "")
            terminal.type(answer)
            terminal.wait_for("Nothing was restored")
            terminal.wait_for("❯ ")
            assert (project / "new.txt").exists()
        terminal.type("/undo\r")
        terminal.wait_for("which? ")
        # No key of an answer.
        terminal.type("xo")
        assert "a.txt" in terminal.wait_for("`/redo` takes this back")
        assert (project / "a.txt").read_text() == LINES
        assert not (project / "new.txt").exists()
        terminal.wait_for("❯ ")
        terminal.type("/redo\r")
        terminal.wait_for("`/undo` takes this back")
        assert (project / "a.txt").read_text() == "mine\n"
        terminal.wait_for("❯ ")
        terminal.type("/redo\r")
        terminal.wait_for("there is nothing to redo")
        assert (project / "a.txt").read_text() == "mine\n"
        terminal.wait_for("❯ ")
        terminal.type("/quit\r")
        assert terminal.end() == 0
    with Loom.open(loom, readonly=True) as held:
        first, *_ = held.places
    restore = ("loom", "restore", loom, first, "--state-dir", state)
    with Terminal(*restore, cwd=tmp_path) as terminal:
        terminal.wait_for(question)
        terminal.type("c\r")
        terminal.wait_for("nothing was restored, as you chose")
        assert terminal.end() == 1
    assert (project / "new.txt").exists()
    fork = ("loom", "fork", loom, first, "Again.", "--restore-files", "--recipe", recipe, *own)
    with Terminal(*fork, cwd=tmp_path) as terminal:
        terminal.wait_for(question)
        terminal.type("c\r")
        terminal.wait_for("nothing was restored, as you chose")
        assert terminal.end() == 1
    with Loom.open(loom, readonly=True) as held:
        assert len(held.leaves()) == 1, "no fork was made"
    with Terminal(*restore, cwd=tmp_path) as terminal:
        terminal.wait_for(question)
        terminal.type("k\r")
        assert "left    a.txt" in terminal.wait_for("restores it")
        assert terminal.end() == 1
    assert (project / "a.txt").read_text() == "mine\n"
    assert not (project / "new.txt").exists()


def test_a_fork_restores_the_files_first(work: tuple[Path, Path, Path], tmp_path: Path) -> None:
    project, recipe, state = work
    loom = tmp_path / "l.loom.jsonl"
    own = ("--cwd", project, "--state-dir", state)
    assert run("cast", recipe, "Write.", "--loom", loom, *own, cwd=tmp_path).status == 0
    with Loom.open(loom, readonly=True) as held:
        turns = [turn.id for turn in held.turns() if turn.role == "crystal"]
    reader = tmp_path / "reads.cantrip.yaml"
    script = [{"tool_calls": [{"gate": "read_file", "args": {"path": "a.txt"}}]}, {"content": "Read."}]
    circle = {"medium": "conversation", "gates": ["done", "read_file"], "wards": [{"max_turns": 9}]}
    crystal = {"provider": "scripted", "responses": script}
    reader.write_text(json.dumps({"name": "reads", "crystal": crystal, "circle": circle}))
    (project / "a.txt").write_text("ONE\nTWO\nTHREE\nmine\n")
    fork = ("loom", "fork", loom, turns[0], "Read.", "--recipe", reader, "--restore-files", *own)
    done = run(*fork, cwd=tmp_path)
    assert done.status == 0, done.err
    # Turn 1 wrote a.txt as it is but for the user's line, and new.txt came later.
    assert done.out.index("delete new.txt") < done.out.index("fork of")
    assert not (project / "new.txt").exists()
    assert (project / "a.txt").read_text() == "ONE\nTWO\nTHREE\nmine\n"
    with Loom.open(loom, readonly=True) as held:
        assert [r.restored for r in held.records() if isinstance(r, FilesRecord) and isinstance(r.restored, str)] == [
            turns[0]
        ]
        assert len(held.leaves()) == 2
    # Nobody can be asked: the conflict is named and left, and the fork goes on.
    with Loom.open(loom, readonly=True) as held:
        first, *_ = held.places
    done = run("loom", "fork", loom, first, "Read.", "--recipe", reader, "--restore-files", *own, cwd=tmp_path)
    assert "left    a.txt: you changed it after the entity did" in done.out
    assert (project / "a.txt").read_text() == "ONE\nTWO\nTHREE\nmine\n"


def test_changes_are_gone_through_at_a_terminal(tmp_path: Path) -> None:
    """Keep, undo, skip and quit; a part, or the whole file."""
    project = tmp_path / "project"
    project.mkdir()
    lines = [f"{number}\n" for number in range(60)]
    parts = [3, 20, 40, 56]
    changed = [f"new {number}\n" if number in parts else line for number, line in enumerate(lines)]
    for name in ("a.txt", "b.txt", "c.txt", "d.txt"):
        (project / name).write_text("".join(lines))
    (project / "e.bin").write_bytes(b"\0old")
    script = [*(write(name, "".join(changed)) for name in ("a.txt", "b.txt", "c.txt", "d.txt")),
              write("e.bin", "new\0"), {"content": "One."}]  # fmt: skip
    recipe = tmp_path / "writes.cantrip.yaml"
    circle = {"medium": "conversation", "gates": ["done", "write_file"], "wards": [{"max_turns": 9}]}
    crystal = {"provider": "scripted", "responses": script}
    recipe.write_text(json.dumps({"name": "writes", "crystal": crystal, "circle": circle}))

    def text(*new: int) -> str:
        return "".join(f"new {number}\n" if number in new else line for number, line in enumerate(lines))

    with Terminal(
        "repl", recipe, "--cwd", project, "--state-dir", tmp_path / "s", cwd=tmp_path, TERM="dumb"
    ) as terminal:
        terminal.wait_for("❯ ")

        def says(words: str) -> str:
            terminal.type(f"{words}\r")
            return terminal.wait_for("❯ ")

        def answers(*steps: tuple[str, str]) -> None:
            """What is shown before each question, and the answer to it."""
            for shown, answer in steps:
                assert shown in terminal.wait_for("which? ")
                terminal.type(answer)

        says("Write.")
        terminal.type("/changes -p\r")
        answers(
            # Of four parts: keep, skip, undo, and the last one is undone too.
            ("+new 3", "k"), ("+new 20", "s"), ("+new 40", "u"), ("+new 56", "u"),
            # A whole file, undone and kept.
            ("modified b.txt", "d"), ("modified c.txt", "a"), ("modified d.txt", "q"),
        )  # fmt: skip
        terminal.wait_for("❯ ")
        assert (project / "a.txt").read_text() == text(3, 20)
        assert (project / "b.txt").read_text() == text()
        assert (project / "c.txt").read_text() == (project / "d.txt").read_text() == text(*parts)
        # What was skipped, and what was not reached, is shown again. What was kept is not.
        shown = says("/changes")
        assert [bool(re.search(rf"{name}.*{lines}", shown)) for name, lines in (("a.txt", r"\+1 -1"), ("d.txt", r"\+4 -4"))] == [
            True, True,
        ]  # fmt: skip
        assert "b.txt" not in shown
        assert "c.txt" not in shown
        terminal.type("/changes -p\r")
        answers(("+new 20", "u"), ("+new 3", "s"), ("+new 20", "s"), ("+new 40", "s"), ("+new 56", "k"), ("e.bin", "u"))
        assert "These are all changes" in terminal.wait_for("❯ ")
        assert (project / "a.txt").read_text() == text(3)
        assert (project / "e.bin").read_bytes() == b"\0old"
        # Ctrl-D and Ctrl-C quit, and the talk goes on.
        for key in ("\x04", "\x03"):
            terminal.type("/changes -p\r")
            terminal.wait_for("which? ")
            terminal.type(key)
            terminal.wait_for("❯ ")
        # A file that is changed during the question: nothing of the user is lost.
        terminal.type("/changes -p\r")
        terminal.wait_for("which? ")
        (project / "d.txt").write_text("mine\n" + text(*parts).replace("new 3\n", "my 3\n"))
        terminal.type("u")
        assert "`d.txt`: " in terminal.wait_for("which? ")
        terminal.type("c")
        terminal.wait_for("which? ")
        terminal.type("q")
        terminal.wait_for("❯ ")
        assert (project / "d.txt").read_text().startswith("mine\n0\n1\n2\nmy 3\n")
        terminal.type("/quit\r")
        assert terminal.end() == 0
