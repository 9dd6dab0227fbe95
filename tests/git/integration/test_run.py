"""git on a repository that nobody vouches for: nothing that its settings name is run (sandbox/repositories for commands)."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from cantrip_acp.git.repository import Repository, SafeGitFolder
from cantrip_acp.git.run import environment, run
from cantrip_acp.types.errors import GitError
from tests.support.git_repositories import git, plant, repository


@pytest.fixture
def hostile(tmp_path: Path) -> tuple[Path, Path]:
    where, marker = repository(tmp_path / "hostile"), tmp_path / "ran"
    plant(where, marker)
    return where, marker


def test_the_planted_programs_do_run_in_an_ordinary_git(hostile: tuple[Path, Path]) -> None:
    where, marker = hostile
    git(where, "status", check=False)
    git(where, "add", "-A", check=False)
    assert marker.exists()


def test_nothing_planted_runs(hostile: tuple[Path, Path]) -> None:
    where, marker = hostile
    (where / "kept.txt").write_text("changed\n")
    (where / "new.py").write_text("new\r\n")
    found = Repository.of(where)
    assert found is not None
    head = found.commit()
    with SafeGitFolder(found) as plain:
        plain.git("read-tree", str(head))
        names = plain.git("ls-files", "-z", "-m", "-o", "--exclude-standard").out
        assert b"kept.txt" in names
        plain.git("update-index", "-z", "--add", "--remove", "--stdin", stdin=names)
        tree = plain.git("write-tree").text
        assert plain.git("cat-file", "blob", f"{tree}:new.py").out == b"new\r\n"
    made = found.git("commit-tree", tree, "-p", str(head), "-m", "x", env=_AUTHOR).text
    found.git("update-ref", "refs/cantrip/test", made)
    for command in (["log", "-p", "--all"], ["diff", str(head), made], ["show", made], ["for-each-ref"], ["reflog"]):
        found.git(*command)
    found.git("worktree", "add", "--detach", "--no-checkout", str(where.parent / "tree"), made)
    assert not marker.exists(), marker.read_text()


def test_objects_that_are_missing_are_not_fetched(hostile: tuple[Path, Path]) -> None:
    where, marker = hostile
    found = Repository.of(where)
    assert found is not None
    with pytest.raises(GitError):
        found.git("cat-file", "blob", "1" * 40)
    assert not marker.exists()


def test_secrets_of_the_environment_stay_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-secret")
    monkeypatch.setenv("GIT_DIR", "/elsewhere")
    monkeypatch.setenv("GIT_EXTERNAL_DIFF", "/bin/evil")
    for users in (False, True):
        env = environment(users=users)
        assert not {"ANTHROPIC_API_KEY", "GIT_DIR", "GIT_EXTERNAL_DIFF"} & set(env)


def test_a_command_that_could_be_an_alias_is_refused() -> None:
    with pytest.raises(ValueError, match="not an allowed git command"):
        run(["evil"])
    with pytest.raises(ValueError, match="not an allowed git command"):
        run(["fetch"])


def test_a_run_that_takes_too_long_is_stopped(tmp_path: Path) -> None:
    where = repository(tmp_path / "r")
    os.mkfifo(where / "pipe")
    began = time.monotonic()
    with pytest.raises(GitError, match="took longer"):
        run(["hash-object", "pipe"], cwd=str(where), timeout=0.5)
    assert time.monotonic() - began < 30


def test_a_failure_says_what_git_said(tmp_path: Path) -> None:
    found = Repository.of(repository(tmp_path / "r"))
    assert found is not None
    with pytest.raises(GitError, match=r"git cat-file failed: .*nothing-here"):
        found.git("cat-file", "blob", "nothing-here")
    with pytest.raises(GitError, match="could not be started in"):
        run(["version"], cwd=str(tmp_path / "gone"))


def test_settings_of_the_user_are_read_where_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / ".gitconfig").write_text("[user]\n\tname = Grace\n[core]\n\texcludesFile = ~/ignored\n")
    (home / "ignored").write_text("*.mine\n")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("GIT_CONFIG_GLOBAL", raising=False)
    where = repository(tmp_path / "r")
    (where / "a.mine").write_text("")
    (where / "b.yours").write_text("")
    found = Repository.of(where)
    assert found is not None
    assert found.setting("user.name") == "Grace"
    assert found.setting("user.nothing") is None
    with SafeGitFolder(found) as plain:
        assert plain.git("ls-files", "-o", "--exclude-standard").text.split() == ["b.yours", "kept.txt", "src/app.py"]


_AUTHOR = {
    "GIT_AUTHOR_NAME": "x",
    "GIT_AUTHOR_EMAIL": "x@example.org",
    "GIT_COMMITTER_NAME": "x",
    "GIT_COMMITTER_EMAIL": "x@example.org",
}
