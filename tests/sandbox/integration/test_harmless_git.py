"""`why_harmful`: what real git makes is harmless, and each way to make the user's git run or write something is not."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from cantrip_acp.sandbox.policy.git_repositories import why_harmful

_ENV = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_NOSYSTEM": "1",
    **{f"GIT_{who}_{what}": "a@b.c" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
}


def git(at: Path, *args: str) -> None:
    subprocess.run(
        ["git", "-c", "protocol.file.allow=always", *args],
        cwd=at,
        env=_ENV,
        check=True,
        capture_output=True,
        timeout=60,
    )


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    top = tmp_path / "top"
    top.mkdir()
    git(top, "init", "-b", "main")
    (top / "a.txt").write_text("a\n")
    (top / ".gitignore").write_text("x\n")
    git(top, "add", ".")
    git(top, "commit", "-m", "one")
    return top


def test_what_git_makes_is_harmless(repository: Path, tmp_path: Path) -> None:
    assert why_harmful(str(repository / ".git")) is None
    git(repository, "config", "user.name", 'A "quoted" # name')
    git(repository, "remote", "add", "origin", "https://git.example/a.git")
    git(repository, "remote", "add", "other", "git@git.example:a/b.git")
    git(repository, "config", "branch.main.remote", "origin")
    git(repository, "branch", "topic")
    git(repository, "stash", "list")
    git(repository, "tag", "-a", "v1", "-m", "one")
    (repository / "a.txt").write_text("b\n")
    git(repository, "stash")
    git(repository, "gc")
    git(repository, "worktree", "add", "wt")
    git(repository, "bisect", "start", "--term-new", "slow", "--term-old", "fast", "--", "a.txt")
    assert why_harmful(str(repository / ".git")) is None
    assert why_harmful(str(repository / "wt/.git")) is None
    git(tmp_path, "clone", str(repository), "clone")
    assert why_harmful(str(tmp_path / "clone/.git")) is None
    assert "hooks that a push would run" in str(why_harmful(str(tmp_path / "clone/.git"), writable=[str(repository)]))
    git(repository, "submodule", "add", str(tmp_path / "clone"), "sub")
    assert why_harmful(str(repository / ".git")) is None
    assert why_harmful(str(repository / "sub/.git")) is None


def test_a_stopped_rebase_is_harmless_without_commands(repository: Path) -> None:
    git(repository, "checkout", "-b", "topic")
    (repository / "a.txt").write_text("topic\n")
    git(repository, "commit", "-am", "topic")
    git(repository, "checkout", "main")
    (repository / "a.txt").write_text("main\n")
    git(repository, "commit", "-am", "main")
    for how in ("--merge", "--apply"):
        with pytest.raises(subprocess.CalledProcessError):
            git(repository, "rebase", how, "main", "topic")
        assert why_harmful(str(repository / ".git")) is None, how
        git(repository, "rebase", "--abort")
    with pytest.raises(subprocess.CalledProcessError):
        git(repository, "rebase", "--exec", "true", "main", "topic")
    assert "exec" in str(why_harmful(str(repository / ".git")))


def _append(name: str, text: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write(text)

    return change


def _link(name: str, target: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            path.unlink() if not path.is_dir() else path.rename(path.with_name("old"))
        path.symlink_to(target)

    return change


def _socket(folder: Path) -> None:
    here = os.getcwd()
    os.chdir(folder)
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind("fsmonitor--daemon.ipc")
    finally:
        os.chdir(here)


def _index(name: bytes) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "index"
        data = path.read_bytes()
        assert b".gitignore" in data
        path.write_bytes(data.replace(b".gitignore", name))

    return change


def _submodule(name: str, text: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        git(folder, "init", "modules/x")
        (folder / "modules/x/.git").rename(folder / "modules/y")
        _append(f"modules/y/{name}", text)(folder)

    return change


HARMFUL = {
    "fsmonitor": _append("config", "[core]\nfsmonitor = ./x\n"),
    "fsmonitor in one line": _append("config", "[core] fsmonitor = ./x\n"),
    "old section": _append("config", "[filter.lfs]\nclean = ./x\n"),
    "quoted section": _append("config", '[filter "lfs"]\nsmudge = git-lfs smudge -- %f\n'),
    "upper case": _append("config", "[CORE]\nFSMonitor = ./x\n"),
    "continued": _append("config", "[core]\nfsmon\\\nitor = x\n"),
    "byte order mark": _append("config", "\ufeff[core]\nfsmonitor = x\n"),
    "carriage return": _append("config", "# a\r[core]\nfsmonitor = x\n"),
    "hooks path": _append("config", "[core]\nhooksPath = .\n"),
    "ssh": _append("config", "[core]\nsshCommand = ./x\n"),
    "include": _append("config", "[include]\npath = ../x\n"),
    "include if": _append("config", '[includeIf "gitdir:/"]\npath = ../x\n'),
    "alias": _append("config", "[alias]\nst = !./x\n"),
    "other work tree": _append("config", "[core]\nworktree = /\n"),
    "transport": _append("config", '[remote "o"]\nurl = ext::sh -c x\n'),
    "transport name": _append("config", '[remote "o"]\nvcs = x\n'),
    "address with options": _append("config", '[remote "o"]\nurl = ssh://-oProxyCommand=x/y\n'),
    "remote beside it": _append("config", '[remote "o"]\nurl = ./evil.git\n'),
    "upload-pack": _append("config", '[remote "o"]\nuploadpack = ./x\n'),
    "instead of": _append("config", '[url "ext::x"]\ninsteadOf = https://\n'),
    "credentials": _append("config", "[credential]\nhelper = !./x\n"),
    "submodule update": _append("config", '[submodule "s"]\nupdate = !./x\n'),
    "merge options": _append("config", '[branch "main"]\nmergeoptions = -s ../x\n'),
    "external diff": _append("config", "[diff]\nexternal = ./x\n"),
    "pager": _append("config", "[pager]\nlog = ./x\n"),
    "gpg": _append("config", "[gpg]\nprogram = ./x\n"),
    "worktree settings": _append("config.worktree", "[core]\nfsmonitor = ./x\n"),
    "huge settings": _append("config", "#" * 2_000_000),
    "hook": _append("hooks/pre-commit", "#!/bin/sh\n"),
    "linked hooks": _link("hooks", "/tmp"),
    "linked index": _link("index", "../index"),
    "linked message": _link("COMMIT_EDITMSG", "../.profile"),
    "linked log": _link("logs/HEAD", "../../.profile"),
    "linked branch": _link("refs/heads/x", "main"),
    "attributes": _append("info/attributes", "* filter=evil\n"),
    "alternates": _append("objects/info/alternates", "/tmp\n"),
    "http alternates": _append("objects/info/http-alternates", "http://x/\n"),
    "common folder": _append("commondir", "../x\n"),
    "gitdir": _append("gitdir", "../x\n"),
    "unknown file": _append("unknown", ""),
    "unknown folder": _append("unknown/x", ""),
    "todo": _append("rebase-merge/git-rebase-todo", "pick 1234567 x\nexec ./x\n"),
    "todo, short": _append("rebase-merge/git-rebase-todo", "  x ./x\n"),
    "todo of a cherry-pick": _append("sequencer/todo", "exec ./x\n"),
    "strategy": _append("rebase-merge/strategy", "../../x\n"),
    "strategy of a cherry-pick": _append("sequencer/opts", "[options]\nstrategy = ../../x\n"),
    "author script": _append("rebase-merge/author-script", "GIT_AUTHOR_NAME='x'; ./x\n"),
    "apply options": _append("rebase-apply/apply-opt", " '--build-fake-ancestor=../.profile'"),
    "bisect": _append("BISECT_LOG", "git bisect start; ./x\n"),
    "bisect names": _append("BISECT_NAMES", " $(./x)\n"),
    "index with .git": _index(b".git/hooks"),
    "index with a way out": _index(b"../profile"),
    "index with GIT~1": _index(b"GIT~1/abcd"),
    "index that is none": _append("sharedindex." + "a" * 40, "x"),
    "ref that is none": _append("refs/heads/x", "; ./x\n"),
    "socket": _socket,
    "pipe": lambda folder: os.mkfifo(folder / "FETCH_HEAD"),
    "settings as folder": lambda folder: (folder / "config").unlink() or (folder / "config").mkdir(),  # type: ignore[func-returns-value]
    "settings of a submodule": _submodule("config", "[core]\nfsmonitor = ./x\n"),
    "hooks of a submodule": _submodule("hooks/post-checkout", "#!/bin/sh\n"),
    "worktree of another": _append("worktrees/x/HEAD", "ref: refs/heads/main\n"),
}  # fmt: skip


@pytest.mark.parametrize("change", HARMFUL.values(), ids=HARMFUL.keys())
def test_what_makes_git_run_or_write_something_is_harmful(repository: Path, change: Callable[[Path], None]) -> None:
    assert why_harmful(str(repository / ".git")) is None
    change(repository / ".git")
    assert why_harmful(str(repository / ".git"))


def test_a_file_that_names_another_repository(repository: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for text in ("x", f"gitdir: {repository}/.git", "gitdir: ../nothing/.git/worktrees/x", "gitdir: a\ngitdir: b"):
        (other / ".git").write_text(text)
        assert why_harmful(str(other / ".git")), text
    (other / ".git").unlink()
    assert why_harmful(str(other / ".git"))
    (other / ".git").symlink_to(repository / ".git")
    assert why_harmful(str(other / ".git"))
