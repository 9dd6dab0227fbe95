"""Repositories for tests: an ordinary one, and one whose settings would run a program wherever git lets them."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

_ENV = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "Ada",
    "GIT_AUTHOR_EMAIL": "ada@example.org",
    "GIT_COMMITTER_NAME": "Ada",
    "GIT_COMMITTER_EMAIL": "ada@example.org",
}


def git(where: Path, *args: str, check: bool = True) -> str:
    """The user's own git."""
    ran = subprocess.run(["git", *args], cwd=where, env=_ENV, capture_output=True, text=True, check=False)
    if check:
        assert ran.returncode == 0, f"git {args}: {ran.stderr}"
    return ran.stdout.strip()


def repository(where: Path, files: dict[str, str] | None = None) -> Path:
    """A repository with one commit on ``main``."""
    where.mkdir(parents=True, exist_ok=True)
    git(where, "init", "-q", "-b", "main")
    git(where, "config", "gc.auto", "0")
    for name, text in (files or {"kept.txt": "kept\n", "src/app.py": "print('one')\n"}).items():
        path = where / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    git(where, "add", "-A")
    git(where, "commit", "-qm", "the first")
    return where


@dataclass(frozen=True)
class Pin:
    """The files of a repository as an earlier version kept them: a commit on no branch."""

    top: str
    commit: str
    tree: str
    ref: str
    head: str | None


def pinned(where: Path, loom_id: str = "loom_1", entity_id: str = "e_1") -> Pin:
    """Keep the files of a repository as an earlier version did, without touching the user's index."""
    index = where / ".git" / "pin-index"
    head = git(where, "rev-parse", "--verify", "--quiet", "HEAD", check=False) or None
    env = {**_ENV, "GIT_INDEX_FILE": str(index)}

    def with_index(*args: str) -> str:
        ran = subprocess.run(["git", *args], cwd=where, env=env, capture_output=True, text=True, check=True)
        return ran.stdout.strip()

    with_index("-c", "core.attributesFile=/dev/null", "-c", "core.autocrlf=false", "add", "-A")
    for name in with_index("ls-files").splitlines():
        raw = with_index("hash-object", "-w", "--no-filters", "--", name) if not (where / name).is_symlink() else ""
        if raw:
            mode = with_index("ls-files", "--stage", "--", name).split()[0]
            with_index("update-index", "--cacheinfo", f"{mode},{raw},{name}")
    tree = with_index("write-tree")
    commit = with_index("commit-tree", tree, "-m", "files after a turn", *(("-p", head) if head else ()))
    ref = f"refs/cantrip/{loom_id}/{entity_id}"
    git(where, "update-ref", ref, commit)
    index.unlink()
    return Pin(str(where), commit, tree, ref, head)


def users_state(where: Path) -> dict[str, object]:
    """All that is the user's and may not change: index, HEAD, branches, stash, logs, settings, and what status says."""
    folder = where / ".git"
    status = subprocess.run(
        ["git", "--no-optional-locks", "status", "--porcelain=v2", "--untracked-files=all"],
        cwd=where, env=_ENV, capture_output=True, text=True, check=False,
    ).stdout  # fmt: skip
    logs = {str(p.relative_to(folder)): p.read_bytes() for p in sorted((folder / "logs").rglob("*")) if p.is_file()}
    index = folder / "index"
    return {
        "status": status,
        "index": index.read_bytes() if index.exists() else None,
        "HEAD": (folder / "HEAD").read_bytes(),
        "config": (folder / "config").read_bytes(),
        "logs": logs,
        "branches": git(where, "for-each-ref", "refs/heads", "refs/tags", "refs/stash"),
        "stash": git(where, "stash", "list"),
    }


def plant(where: Path, marker: Path) -> None:
    """Have the repository name a program that leaves ``marker`` behind, for everything that git may run."""
    bad = where / ".git" / "bad.sh"
    bad.write_text(f'#!/bin/sh\necho "$0 $@" >> {marker}\ncat 2>/dev/null\nexit 0\n')
    bad.chmod(0o755)
    hooks = where / ".git" / "hooks"
    hooks.mkdir(exist_ok=True)
    for name in (
        "pre-commit",
        "post-checkout",
        "post-index-change",
        "reference-transaction",
        "post-commit",
        "fsmonitor",
    ):
        (hooks / name).write_text(bad.read_text())
        (hooks / name).chmod(0o755)
    included = where / "more.config"
    included.write_text(
        f'[filter "evil"]\n\tclean = {bad}\n\tsmudge = {bad}\n\trequired = true\n[core]\n\tfsmonitor = {bad}\n'
    )
    with open(where / ".git" / "config", "a") as config:
        config.write(
            f"""
[core]
	fsmonitor = {bad}
	hooksPath = {hooks}
	sshCommand = {bad}
	editor = {bad}
	pager = {bad}
	askPass = {bad}
	gitProxy = {bad}
	alternateRefsCommand = {bad}
	untrackedCache = true
[filter "lfs"]
	clean = {bad}
	smudge = {bad}
	process = {bad}
	required = true
[diff]
	external = {bad}
[diff "evil"]
	textconv = {bad}
	command = {bad}
[merge "evil"]
	driver = {bad}
[credential]
	helper = {bad}
[commit]
	gpgSign = true
[gpg]
	program = {bad}
[log]
	showSignature = true
[alias]
	ls-files = !{bad}
	write-tree = !{bad}
[protocol]
	allow = always
[remote "origin"]
	url = ext::{bad}
	promisor = true
	uploadpack = {bad}
[include]
	path = ../more.config
"""
        )
    (where / ".gitattributes").write_text(
        "*.txt filter=evil diff=evil merge=evil\n*.py filter=lfs diff=evil text eol=crlf\n"
    )
