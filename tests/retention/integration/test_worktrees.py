"""Pins and worktrees go with their loom: nothing of the user's does, and nothing in which somebody worked since."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from cantrip_acp import Cantrip, Circle, Loom, ScriptedCrystal
from cantrip_acp.checkpoints.store import Store
from cantrip_acp.git import worktrees
from cantrip_acp.git.repository import Repository
from cantrip_acp.retention.rules import DAY, Rules
from cantrip_acp.training.importing.import_file import import_file
from cantrip_acp.types.records import FilesRecord, ForkRecord
from tests.retention.unit.test_plan import planned, swept
from tests.support.aged_looms import age, keep, names
from tests.support.git_repositories import pinned

OLD = Rules(older_than=90 * DAY)


def git(folder: Path, *words: str) -> str:
    who = ("-c", "user.name=x", "-c", "user.email=x@localhost", "-c", "init.defaultBranch=main")
    return subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / "a.txt").write_text("committed")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "first")
    (folder / "a.txt").write_text("changed")
    return folder


def forked(state: Path, workspace: Path, name: str, where: Path, *, days: float) -> Path:
    """An old loom of an earlier version, with pinned files and a fork that was given a worktree."""
    path = keep(state, name, days=days)
    with Loom.open(path) as loom:
        assert loom.header is not None
        made = pinned(workspace, loom.header.id, "e")
        loom.append(FilesRecord("w", f"t_{name}_1", "e", made.top, made.commit, made.tree, made.ref, made.head))
        worktrees.make(Repository.of(str(workspace)), made.commit, made.head, where, why="a fork").finish()  # type: ignore[arg-type]
        loom.append(ForkRecord("k", f"t_{name}_1", "e2", worktree=str(where)))
    aged(where, days)
    return age(path, days)


def aged(folder: Path, days: float) -> None:
    for each in (*folder.rglob("*"), folder):
        age(each, days)


def refs(workspace: Path) -> list[str]:
    return git(workspace, "for-each-ref", "--format=%(refname)").split()


def linked(workspace: Path) -> list[str]:
    return [line.split()[0] for line in git(workspace, "worktree", "list").splitlines()[1:]]


def test_they_go_with_the_loom(tmp_path: Path, workspace: Path) -> None:
    state = tmp_path / "state"
    mine, other = state / "worktrees" / "one", tmp_path / "elsewhere"
    forked(state, workspace, "a", mine, days=100)
    forked(state, workspace, "b", other, days=100)
    forked(state, workspace, "c", state / "worktrees" / "three", days=1)
    assert len(refs(workspace)) == 4
    before = git(workspace, "status", "--porcelain"), git(workspace, "log", "--all", "--oneline", "refs/heads/main")
    assert planned(state) == (["a", "b"], {})
    assert [why for _, why, _ in swept(state)] == [None, None]
    assert names(state) == ["c"]
    assert not mine.exists()
    assert (other / "a.txt").read_text() == "changed", "a folder that the user chose is the user's"
    assert linked(workspace) == [str(other), str(state / "worktrees" / "three")]
    assert len(refs(workspace)) == 2
    assert git(workspace, "status", "--porcelain") == before[0]
    assert (workspace / "a.txt").read_text() == "changed"


def test_one_in_whose_worktree_somebody_worked_stays(tmp_path: Path, workspace: Path) -> None:
    state = tmp_path / "state"
    forked(state, workspace, "a", state / "worktrees" / "one", days=200)
    (state / "worktrees" / "one" / "a.txt").write_text("by hand")
    assert planned(state) == ([], {"a": "worktrees/one, of its fork, was changed since"})
    assert swept(state) == []
    aged(state / "worktrees" / "one", 200)
    assert len(swept(state)) == 1


def test_a_repository_that_is_gone(tmp_path: Path, workspace: Path) -> None:
    state = tmp_path / "state"
    forked(state, workspace, "a", state / "worktrees" / "one", days=100)
    os.rename(workspace, tmp_path / "moved")
    assert ("looms/a.loom.jsonl", None, False) in swept(state)
    assert names(state) == []
    assert not (state / "worktrees" / "one").exists()
    assert time.time() - (tmp_path / "moved" / "a.txt").stat().st_mtime < DAY


@pytest.mark.parametrize("into", ["copy.loom.jsonl", "all.db"])
def test_pins_stay_as_long_as_a_copy_tells_of_them(tmp_path: Path, workspace: Path, into: str) -> None:
    """A copy's pins are those of the loom that it was made of."""
    state = tmp_path / "state"
    forked(state, workspace, "first", state / "worktrees" / "w", days=200)
    held = refs(workspace)
    target = state / "looms" / into
    with Loom.open(f"sqlite:{target}" if into.endswith(".db") else target) as loom:
        import_file(str(state / "looms" / "first.loom.jsonl"), loom, "loom")
    assert planned(state, OLD) == ([], {"first": f"{into} goes on from it"})
    swept(state, OLD)
    assert refs(workspace) == held
    age(target, 200)
    swept(state, OLD)
    assert [ref for ref in refs(workspace) if ref.startswith("refs/cantrip")] == []


def test_a_database_that_was_only_read_grows_old_all_the_same(tmp_path: Path) -> None:
    """A reader of SQLite leaves an empty log behind, as new as its reading."""
    state = tmp_path / "state"
    keep(state, "first", days=200)
    target = state / "looms" / "all.db"
    with Loom.open(f"sqlite:{target}") as loom:
        import_file(str(state / "looms" / "first.loom.jsonl"), loom, "loom")
    (state / "looms" / "first.loom.jsonl").unlink()
    age(target, 200)
    for _ in range(2):
        with Loom.open(f"sqlite:{target}", readonly=True) as loom:
            assert len(loom)
        assert planned(state, OLD)[0] == ["all"]


async def test_checkpoints_in_the_state_folder_go_with_their_loom(tmp_path: Path, workspace: Path) -> None:
    state = tmp_path / "state"
    (state / "looms").mkdir(parents=True)
    for name in ("old", "new"):
        script = [
            {"tool_calls": [{"gate": "write_file", "args": {"path": "b.txt", "content": name}}]},
            {"content": "Done."},
        ]
        circle = Circle("conversation", ["done", "write_file"], [{"max_turns": 9}], workspace=workspace)
        with Loom.open(state / "looms" / f"{name}.loom.jsonl") as loom:
            async with Cantrip(ScriptedCrystal(script), circle=circle).invoke(loom=loom) as entity:
                await entity.cast("Write.")
    with Store(workspace, state=state) as store:
        before = len(store.hashes())
    age(state / "looms" / "old.loom.jsonl", 200)
    assert [why for _, why, _ in swept(state, OLD)] == [None]
    with Store(workspace, state=state) as store:
        assert len(store.hashes()) < before
    age(state / "looms" / "new.loom.jsonl", 200)
    swept(state, OLD)
    assert list((state / "checkpoints").iterdir()) == []
