"""Worktrees at files that an earlier version pinned: as they were, HEAD where the user stood, nothing touched (LOOM-4)."""

from __future__ import annotations

from pathlib import Path

import pytest

from cantrip_acp.git import worktrees
from cantrip_acp.git.repository import Repository
from cantrip_acp.types.errors import GitError
from tests.support.git_repositories import git, pinned, plant, repository, users_state


def found(where: Path) -> Repository:
    repo = Repository.of(where)
    assert repo is not None
    return repo


def test_the_files_of_then_and_nothing_of_the_users(tmp_path: Path) -> None:
    where = repository(tmp_path / "r")
    (where / "kept.txt").write_text("changed\r\n")
    (where / "new.txt").write_text("new\n")
    (where / "src" / "app.py").unlink()
    (where / "link").symlink_to("kept.txt")
    (where / ".gitattributes").write_text("*.txt text eol=lf\n")
    pin = pinned(where)
    (where / "kept.txt").write_text("later\n")
    before = users_state(where)
    side = worktrees.make(found(where), pin.commit, pin.head, tmp_path / "side", why="a test")
    assert users_state(where) == before
    assert (tmp_path / "side" / "kept.txt").read_bytes() == b"changed\r\n"
    assert (tmp_path / "side" / "new.txt").read_text() == "new\n"
    assert not (tmp_path / "side" / "src" / "app.py").exists()
    assert (tmp_path / "side" / "link").is_symlink()
    assert git(tmp_path / "side", "rev-parse", "HEAD") == git(where, "rev-parse", "main")
    assert git(tmp_path / "side", "branch", "--show-current") == ""
    status = git(tmp_path / "side", "status", "--porcelain").splitlines()
    assert sorted(line.split()[-1] for line in status) == [
        ".gitattributes",
        "kept.txt",
        "link",
        "new.txt",
        "src/app.py",
    ]
    (tmp_path / "side" / "kept.txt").write_text("again\n")
    (tmp_path / "side" / "more" / "deep").mkdir(parents=True)
    (tmp_path / "side" / "more" / "deep" / "file").write_text("x")
    side.settle()
    assert (tmp_path / "side" / "kept.txt").read_bytes() == b"changed\r\n"
    assert not (tmp_path / "side" / "more").exists()
    assert worktrees.linked(found(where)) == [str(tmp_path / "side")]
    assert worktrees.unfinished(found(where)) == {str(tmp_path / "side"): "a test"}
    side.finish()
    assert worktrees.unfinished(found(where)) == {}
    side.remove()
    assert worktrees.linked(found(where)) == []
    assert not (tmp_path / "side").exists()
    assert users_state(where) == before


def test_several_of_one_pin_and_one_of_a_worktree(tmp_path: Path) -> None:
    where = repository(tmp_path / "r")
    pin = pinned(where)
    for number in range(3):
        worktrees.make(found(where), pin.commit, pin.head, tmp_path / f"side{number}", why="a test")
    inner = worktrees.make(found(tmp_path / "side0"), pin.commit, pin.head, tmp_path / "inner", why="a test")
    assert len(worktrees.linked(found(where))) == 4
    inner.remove()
    assert len(worktrees.linked(found(tmp_path / "side1"))) == 3


def test_without_a_commit_head_stands_on_the_pin(tmp_path: Path) -> None:
    where = tmp_path / "r"
    where.mkdir()
    git(where, "init", "-q")
    (where / "a").write_text("a\n")
    pin = pinned(where)
    worktrees.make(found(where), pin.commit, pin.head, tmp_path / "side", why="a test")
    assert git(tmp_path / "side", "rev-parse", "HEAD") == pin.commit
    assert git(tmp_path / "side", "status", "--porcelain") == ""


def test_nothing_that_a_hostile_repository_names_is_run(tmp_path: Path) -> None:
    where = repository(tmp_path / "r")
    pin = pinned(where)
    plant(where, marker := tmp_path / "ran")
    side = worktrees.make(found(where), pin.commit, pin.head, tmp_path / "side", why="a test")
    side.settle()
    assert (tmp_path / "side" / "kept.txt").read_text() == "kept\n"
    side.remove()
    assert not marker.exists(), marker.read_text()


def test_what_cannot_be_had_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where = repository(tmp_path / "r")
    pin = pinned(where)
    full = tmp_path / "full"
    full.mkdir()
    (full / "mine").write_text("mine\n")
    with pytest.raises(GitError, match="not empty"):
        worktrees.make(found(where), pin.commit, pin.head, full, why="a test")
    for strange in ("1" * 40, "--help", "main", "1" * 4000):
        with pytest.raises(GitError, match="has no commit"):
            worktrees.make(found(where), strange, None, tmp_path / "side", why="a test")
    monkeypatch.setattr(worktrees, "_fill", _fails)
    before = users_state(where)
    with pytest.raises(GitError, match="the disk is full"):
        worktrees.make(found(where), pin.commit, pin.head, tmp_path / "side", why="a test")
    assert users_state(where) == before
    assert not (tmp_path / "side").exists()
    assert worktrees.linked(found(where)) == []
    with pytest.raises(GitError, match="not a worktree of"):
        worktrees.remove(found(where), full)
    assert (full / "mine").exists()


def _fails(*args: object) -> None:
    raise GitError("the disk is full")
