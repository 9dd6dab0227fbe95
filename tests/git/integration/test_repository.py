"""Which repository a folder lies in, and what only seems to be one."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from cantrip_acp.git.repository import Repository
from cantrip_acp.types.errors import GitError
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


def pointing_back(folder: Path, top: Path) -> None:
    git(top, f"--git-dir={folder}", "config", "core.worktree", str(top))


def test_a_git_folder_elsewhere_is_used_if_it_points_back(tmp_path: Path) -> None:
    top, elsewhere = repository(tmp_path / "my work"), tmp_path / "kept here.git"
    git(top, "init", "-q", f"--separate-git-dir={elsewhere}")
    with pytest.raises(GitError, match="does not point back") as raised:
        Repository.of(top)
    # The error has the command that helps.
    subprocess.run(str(raised.value).partition("run: ")[2], shell=True, check=True, cwd="/")
    found = Repository.of(top)
    assert found is not None
    assert (found.git_dir, found.common_dir) == (str(elsewhere), str(elsewhere))
    assert found.commit() is not None
    (top / "sub").mkdir()
    assert Repository.of(top / "sub") == found
    # Only for the folder that it names.
    stranger = tmp_path / "stranger"
    stranger.mkdir()
    (stranger / ".git").write_text(f"gitdir: {elsewhere}\n")
    with pytest.raises(GitError, match="does not point back"):
        Repository.of(stranger)


def test_a_link_becomes_a_file_by_the_command_of_the_error(tmp_path: Path) -> None:
    top, elsewhere = repository(tmp_path / "it's"), tmp_path / "projects" / "x.git"
    elsewhere.parent.mkdir()
    shutil.move(top / ".git", elsewhere)
    (top / ".git").symlink_to(elsewhere)
    with pytest.raises(GitError, match="symbolic link") as raised:
        Repository.of(top)
    subprocess.run(str(raised.value).partition("repository: ")[2], shell=True, check=True, cwd="/")
    found = Repository.of(top)
    assert found is not None
    assert found.git_dir == str(elsewhere)
    assert git(top, "status", "--short") == ""


def test_a_worktree_of_a_bare_clone(tmp_path: Path) -> None:
    main = repository(tmp_path / "main")
    git(tmp_path, "clone", "-q", "--bare", str(main), "bare.git")
    git(tmp_path / "bare.git", "worktree", "add", "-q", str(tmp_path / "tree"))
    found = Repository.of(tmp_path / "tree")
    assert found is not None
    assert found.common_dir == str(tmp_path / "bare.git")
    (tmp_path / "tree").rename(tmp_path / "moved")
    with pytest.raises(GitError, match="git worktree repair"):
        Repository.of(tmp_path / "moved")


def test_the_environment_names_no_other_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, other = repository(tmp_path / "own"), repository(tmp_path / "other")
    (own / "file").write_text("own\n")
    git(own, "add", "file")
    git(own, "commit", "-q", "-m", "second")
    for name, value in {
        "GIT_DIR": other / ".git", "GIT_WORK_TREE": other, "GIT_INDEX_FILE": other / ".git" / "index",
        "GIT_OBJECT_DIRECTORY": other / ".git" / "objects", "GIT_COMMON_DIR": other / ".git",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, str(value))
    found = Repository.of(own)
    assert found is not None
    assert found.git_dir == str(own / ".git")
    assert found.git("log", "-1", "--format=%s").text == "second"
    assert Repository.of(tmp_path) is None
