"""Pinned files: what is in a pin and what is not, and that nothing of the user's changes by it (LOOM-4)."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cantrip_acp.core.errors import GitError
from cantrip_acp.files.protected_paths import why_hidden
from cantrip_acp.git import file_snapshots
from cantrip_acp.git.file_snapshots import Pinner, ref_of
from cantrip_acp.git.repository import Repository
from tests.support.git_repositories import git, plant, repository, users_state

REF = ref_of("loom_1", "e_1")


@pytest.fixture
def where(tmp_path: Path) -> Path:
    return repository(tmp_path / "project")


@pytest.fixture
def pinner(where: Path) -> Iterator[Pinner]:
    made = Pinner(str(where), REF, hidden=why_hidden)
    yield made
    made.close()


def files(where: Path, commit: str) -> dict[str, str]:
    listed = git(where, "ls-tree", "-r", commit).splitlines()
    return {line.split("\t")[1]: line.split()[0] for line in listed}


def test_what_the_user_has_stays_as_it_is(where: Path, pinner: Pinner) -> None:
    (where / "stashed.txt").write_text("stashed\n")
    git(where, "stash", "-qu")
    (where / "src" / "app.py").write_text("print('two')\n")
    git(where, "add", "src/app.py")
    (where / "src" / "app.py").write_text("print('three')\n")
    (where / "new.txt").write_text("new\n")
    before = users_state(where)
    made = pinner.pin("files after turn t_1")
    (where / "new.txt").unlink()
    pinner.pin("files after turn t_2")
    (where / "new.txt").write_text("new\n")
    assert users_state(where) == before
    assert made is not None
    assert git(where, "show", f"{made.commit}:src/app.py") == "print('three')"
    assert git(where, "show", f"{made.commit}:new.txt") == "new"
    assert git(where, "branch", "--contains", made.commit) == ""


def test_a_pin_is_made_where_something_changed(where: Path, pinner: Pinner) -> None:
    first = pinner.pin("one")
    assert first is not None
    assert first.head == git(where, "rev-parse", "main")
    assert pinner.pin("two") is None
    (where / "kept.txt").touch()
    assert pinner.pin("two") is None
    (where / "kept.txt").write_text("KEPT\n")
    second = pinner.pin("three")
    assert second is not None
    assert git(where, "rev-parse", f"{second.commit}^") == first.commit
    (where / "kept.txt").unlink()
    third = pinner.pin("four")
    assert third is not None
    assert "kept.txt" not in files(where, third.commit)
    assert git(where, "rev-parse", REF) == third.commit
    git(where, "gc", "-q", "--prune=now")
    assert git(where, "show", f"{second.commit}:kept.txt") == "KEPT"


def test_what_is_kept_and_what_is_not(where: Path, pinner: Pinner) -> None:
    (where / ".gitignore").write_text("build/\n*.log\n")
    (where / "build").mkdir()
    (where / "build" / "out.o").write_text("x")
    (where / "a.log").write_text("x")
    (where / "link").symlink_to("/etc/passwd")
    (where / "run.sh").write_text("#!/bin/sh\n")
    (where / "run.sh").chmod(0o755)
    (where / ".env").write_text("KEY=1\n")
    (where / "größe \n.txt").write_text("odd name\n")
    (where / "crlf.txt").write_bytes(b"a\r\nb\r\n")
    (where / ".gitattributes").write_text("*.txt text eol=lf\n*.py ident\n")
    os.mkfifo(where / "pipe")
    repository(where / "nested")
    with open(where / "huge.bin", "wb") as huge:
        huge.truncate(file_snapshots.LARGEST + 1)
    made = pinner.pin("one")
    assert made is not None
    kept = files(where, made.commit)
    assert kept["link"] == "120000"
    assert kept["run.sh"] == "100755"
    assert {".gitignore", "kept.txt", "src/app.py", "crlf.txt"} <= set(kept)
    assert not {"build/out.o", "a.log", ".env", "huge.bin", "pipe", "nested"} & set(kept)
    assert len(kept) == 8
    raw = subprocess.run(
        ["git", "cat-file", "blob", f"{made.commit}:crlf.txt"], cwd=where, capture_output=True, check=True
    )
    assert raw.stdout == b"a\r\nb\r\n"
    told = "\n".join(made.left_out)
    assert "nested/: a repository of its own" in told
    assert "huge.bin: larger than 20 MiB" in told
    assert ".env: hidden" in told
    assert pinner.pin("two") is None


def test_a_tracked_file_that_is_hidden_stays_as_git_has_it(tmp_path: Path) -> None:
    where = repository(tmp_path / "r", {".env": "OLD=1\n", "a": "a\n"})
    (where / ".env").write_text("SECRET=1\n")
    pinner = Pinner(str(where), REF, hidden=why_hidden)
    made = pinner.pin("one")
    pinner.close()
    assert made is not None
    assert git(where, "show", f"{made.commit}:.env") == "OLD=1"


def test_submodules_conflicts_and_sparse_files(tmp_path: Path) -> None:
    library = repository(tmp_path / "library")
    where = repository(tmp_path / "r", {"a/one": "1\n", "b/two": "2\n", "c": "c\n"})
    git(where, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(library), "libs/x")
    git(where, "commit", "-qm", "library")
    git(where, "checkout", "-qb", "other")
    (where / "c").write_text("other\n")
    git(where, "commit", "-qam", "other")
    git(where, "checkout", "-q", "main")
    (where / "c").write_text("main\n")
    git(where, "commit", "-qam", "main")
    git(where, "merge", "other", check=False)
    git(where, "update-index", "--skip-worktree", "b/two")
    (where / "b" / "two").unlink()
    (where / "libs" / "x" / "kept.txt").write_text("changed inside\n")
    before = users_state(where)
    pinner = Pinner(str(where), REF)
    made = pinner.pin("one")
    pinner.close()
    assert made is not None
    assert users_state(where) == before
    kept = files(where, made.commit)
    assert kept["libs/x"] == "160000"
    assert kept["b/two"] == "100644"
    assert "<<<<<<<" in git(where, "show", f"{made.commit}:c")
    assert made.left_out[0].startswith("libs/x: a submodule")


def test_a_workspace_below_the_top_is_pinned_alone(where: Path) -> None:
    (where / "kept.txt").write_text("of somebody else\n")
    (where / "src" / "new.py").write_text("new\n")
    pinner = Pinner(str(where / "src"), REF)
    made = pinner.pin("one")
    pinner.close()
    assert made is not None
    assert "src/new.py" in files(where, made.commit)
    assert git(where, "show", f"{made.commit}:kept.txt") == "kept"


def test_a_repository_without_commits(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / "a").write_text("a\n")
    pinner = Pinner(str(tmp_path), REF)
    made = pinner.pin("one")
    pinner.close()
    assert made is not None
    assert made.head is None
    assert set(files(tmp_path, made.commit)) == {"a"}


def test_where_nothing_can_be_pinned(tmp_path: Path, where: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(GitError, match="not in a git repository"):
        Pinner(str(tmp_path), REF)
    (where / ".gitignore").write_text("ignored/\n")
    (where / "ignored").mkdir()
    with pytest.raises(GitError, match="is ignored by"):
        Pinner(str(where / "ignored"), REF)
    monkeypatch.setattr(file_snapshots, "MOST_FILES", 3)
    for number in range(4):
        (where / f"many{number}").write_text("")
    pinner = Pinner(str(where), REF)
    with pytest.raises(GitError, match="too much to store"):
        pinner.pin("one")
    (where / "many0").unlink()
    (where / "many1").unlink()
    assert pinner.pin("two") is not None
    pinner.close()


def test_nothing_that_a_hostile_repository_names_is_run(tmp_path: Path, where: Path) -> None:
    plant(where, marker := tmp_path / "ran")
    (where / "kept.txt").write_text("changed\n")
    pinner = Pinner(str(where), REF)
    assert pinner.pin("one") is not None
    pinner.close()
    assert not marker.exists()


def test_two_pinners_of_one_entity_lose_nothing(where: Path, pinner: Pinner) -> None:
    other = Pinner(str(where), REF)
    first = pinner.pin("one")
    second = other.pin("two")
    (where / "kept.txt").write_text("x\n")
    third = pinner.pin("three")
    other.close()
    assert first is not None
    assert second is not None
    assert third is not None
    assert git(where, "rev-list", "--first-parent", REF).split()[:3] == [third.commit, second.commit, first.commit]


def test_pins_are_listed_and_dropped(where: Path) -> None:
    for loom, entity in (("loom_1", "e_1"), ("loom_1", "session/äö"), ("loom_2", "e_1")):
        pinner = Pinner(str(where), ref_of(loom, entity))
        assert pinner.pin("one") is not None
        pinner.close()
    found = Repository.of(where)
    assert found is not None
    assert len(file_snapshots.pins(found)) == 3
    assert len(file_snapshots.pins(found, "loom_1")) == 2
    assert file_snapshots.drop(found, "loom_1", "e_1") == [REF]
    assert len(file_snapshots.drop(found, "loom_1")) == 1
    assert file_snapshots.drop(found, "loom_1") == []
    assert list(file_snapshots.pins(found)) == [ref_of("loom_2", "e_1")]
