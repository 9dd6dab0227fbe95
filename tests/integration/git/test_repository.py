"""Which repository a folder lies in, and what only seems to be one."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from cantrip_acp.core.errors import GitError
from cantrip_acp.git.repository import Repository
from tests.support.git_repositories import git, repository


def test_the_innermost_one_is_found(tmp_path: Path) -> None:
    outer = repository(tmp_path / "outer")
    inner = repository(outer / "nested")
    below = outer / "src"
    assert Repository.of(below) == Repository(str(outer), str(outer / ".git"), str(outer / ".git"))
    found = Repository.of(inner)
    assert found is not None
    assert found.top == str(inner)
    assert found.commit() == git(inner, "rev-parse", "HEAD")
    assert found.branch() == "main"
    assert found.object_format() == "sha1"


def test_none_is_none(tmp_path: Path) -> None:
    assert Repository.of(tmp_path) is None


def test_a_repository_without_commits(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "-b", "main")
    found = Repository.of(tmp_path)
    assert found is not None
    assert found.commit() is None
    assert found.branch() == "main"


def test_worktrees_and_submodules(tmp_path: Path) -> None:
    main = repository(tmp_path / "main")
    git(main, "worktree", "add", "-q", "--detach", str(tmp_path / "side"))
    found = Repository.of(tmp_path / "side")
    assert found is not None
    assert found.common_dir == str(main / ".git")
    assert found.git_dir == str(main / ".git" / "worktrees" / "side")
    assert found.branch() is None
    library = repository(tmp_path / "library")
    git(main, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(library), "libs/x")
    found = Repository.of(main / "libs" / "x")
    assert found is not None
    assert found.common_dir == str(main / ".git" / "modules" / "libs" / "x")


def test_what_leads_to_somebody_elses_is_refused(tmp_path: Path) -> None:
    private = repository(tmp_path / "private")
    git(private, "worktree", "add", "-q", "--detach", str(tmp_path / "side"))
    for name, content in {
        "file": f"gitdir: {private}/.git\n",
        "worktree": f"gitdir: {private}/.git/worktrees/side\n",
        "nowhere": "gitdir: /nonexistent\n",
        "text": "hello\n",
    }.items():
        folder = tmp_path / f"stranger-{name}"
        folder.mkdir()
        (folder / ".git").write_text(content)
        with pytest.raises(GitError):
            Repository.of(folder)
    link = tmp_path / "stranger-link"
    link.mkdir()
    (link / ".git").symlink_to(private / ".git")
    with pytest.raises(GitError, match="symbolic link"):
        Repository.of(link)
    common = repository(tmp_path / "stranger-common")
    (common / ".git" / "commondir").write_text(f"{private}/.git\n")
    with pytest.raises(GitError, match="names another"):
        Repository.of(common)
    broken = repository(tmp_path / "stranger-broken")
    shutil.rmtree(broken / ".git" / "objects")
    with pytest.raises(GitError, match="damaged"):
        Repository.of(broken)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_another_users_is_refused(tmp_path: Path) -> None:
    where = repository(tmp_path / "r")
    os.chown(where / ".git", 12345, 12345)
    with pytest.raises(GitError, match="another user"):
        Repository.of(where)
