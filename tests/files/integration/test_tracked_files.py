"""Which files git tracks with their present content, held against what git itself wrote."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from cantrip_acp.files import tracked_files
from cantrip_acp.files.tracked_files import is_tracked
from tests.support.git_repositories import git, repository

TEXT = "TOKEN=of-a-test\n"


@pytest.mark.parametrize("version", ["2", "3", "4"])
@pytest.mark.parametrize("objects", ["sha1", "sha256"])
@pytest.mark.parametrize("split", [False, True])
def test_every_form_of_an_index(version: str, objects: str, split: bool, tmp_path: Path) -> None:
    top = tmp_path / "r"
    top.mkdir()
    made = subprocess.run(
        ["git", "init", "-q", f"--object-format={objects}", str(top)], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("this git has no SHA-256")
    for name in (".env", "a/.env", "a/.env.test", "z/.env"):
        (top / name).parent.mkdir(exist_ok=True)
        (top / name).write_text(f"{TEXT}# {name}\n")
    git(top, "add", ".env", "a")
    git(top, "update-index", "--index-version", version)
    if split:
        git(top, "update-index", "--split-index")
    assert [n for n in (".env", "a/.env", "a/.env.test", "z/.env") if is_tracked(str(top / n))] == [
        ".env",
        "a/.env",
        "a/.env.test",
    ]


def test_only_the_present_content_counts(tmp_path: Path) -> None:
    top = repository(tmp_path / "r", {".env": TEXT, "crlf/.env": TEXT})
    path = str(top / ".env")
    assert is_tracked(path)
    (top / ".env").write_text(TEXT + "REAL=1\n")
    assert not is_tracked(path)
    (top / ".env").write_text(TEXT)
    assert is_tracked(path)
    (top / "crlf/.env").write_bytes(TEXT.replace("\n", "\r\n").encode())
    assert not is_tracked(str(top / "crlf/.env"))


def test_edits_with_an_old_time_are_seen(tmp_path: Path) -> None:
    top = repository(tmp_path / "r", {".env": TEXT})
    file = top / ".env"
    before = file.stat()
    assert is_tracked(str(file))
    file.write_text(TEXT.replace("test", "host"))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert not is_tracked(str(file))


def test_links_pipes_and_folders_are_not_tracked(tmp_path: Path) -> None:
    top = repository(tmp_path / "r", {"plain": TEXT, "d/.env": TEXT})
    (top / ".env").symlink_to("plain")
    os.mkfifo(top / ".env.pipe")
    git(top, "add", ".env")
    assert not is_tracked(str(top / ".env"))
    assert not is_tracked(str(top / ".env.pipe"))
    assert not is_tracked(str(top / "d"))
    assert not is_tracked(str(top / "missing/.env"))


def test_worktrees_and_submodules(tmp_path: Path) -> None:
    top = repository(tmp_path / "r", {".env": TEXT})
    git(top, "worktree", "add", "-q", str(tmp_path / "second"))
    assert is_tracked(str(tmp_path / "second/.env"))
    git(top, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(top), "sub")
    assert is_tracked(str(top / "sub/.env"))


def test_an_index_that_changes_is_read_again_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who can write an index could otherwise guess at a content again and again."""
    top = repository(tmp_path / "r", {".env.a": TEXT})
    (top / ".env").write_text(TEXT)
    assert not is_tracked(str(top / ".env"))
    git(top, "add", ".env")
    assert not is_tracked(str(top / ".env"))
    monkeypatch.setattr(tracked_files, "_AGAIN_S", 0.0)
    assert is_tracked(str(top / ".env"))


def test_the_search_for_a_repository_ends(tmp_path: Path) -> None:
    (secret := tmp_path / ".env").write_text("A=1\n")
    assert not is_tracked(f"/{secret}"), "a path with two slashes, as below the folder /"
