"""Commands that may use git (``git_writes``) leave something in `.git` that the user's own git would run.

After each attack the user works with git on the host: nothing of the command runs there. The control does the same to a
repository without a sandbox, and there it runs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cantrip_acp.sandbox import Outcome, Sandbox, SandboxOptions

USER = (
    "git status", "git worktree list", "git -C ../tree status", "git stash list", "git add a.txt",
    "git commit -m mine --allow-empty",
    "git rebase --continue", "git cherry-pick --continue", "git am --continue", "git fetch",
    "git submodule update --init", "git push",
    "git checkout -f topic", "git checkout -f main", "git checkout -f -- .", "git merge topic", "git branch -a", "git log -1",
    "git gc --auto", "git -C sub status", "git bisect log",
)  # fmt: skip
"""What the user does with git after a command."""


class Place:
    """A repository of a user, and a file outside of it that only a payload makes."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.top = base / "work"
        self.marker = base / "owned"
        self.home = base / "home"
        self.home.mkdir()
        (self.home / ".gitconfig").write_text('[user]\nname = U\nemail = u@x\n[protocol "file"]\nallow = always\n')
        (self.home / "profile").write_text("mine\n")
        origin = base / "origin"
        for folder in (origin, self.top):
            folder.mkdir()
            self.git("git init -q -b main .", folder)
        for name in ("a.txt", "pwn"):
            (origin / name).write_text("#!/bin/sh\n" if name == "pwn" else "a\n")
            (self.top / name).write_text("a\n" if name == "a.txt" else f"#!/bin/sh\necho owned > {self.marker}\n")
        (self.top / "pwn").chmod(0o755)
        self.git("git add . && git commit -qm one && git branch -m main", origin)
        self.git(
            f"git add . && git commit -qm one && git submodule --quiet add {origin} sub && git commit -qm sub"
            " && git checkout -q -b topic && echo t > a.txt && git commit -qam topic && git checkout -q main"
            " && echo m > a.txt && git commit -qam main2 && git worktree add -q ../tree -b tree"
            f" && git remote add origin {origin}"
        )

    def git(self, line: str, at: Path | None = None) -> subprocess.CompletedProcess[str]:
        env = {
            "PATH": os.environ["PATH"], "HOME": str(self.home), "GIT_CONFIG_NOSYSTEM": "1", "GIT_EDITOR": "true",
            "GIT_TERMINAL_PROMPT": "0", "GIT_MERGE_AUTOEDIT": "no",
        }  # fmt: skip
        return subprocess.run(
            ["/bin/sh", "-c", line],
            cwd=at or self.top,
            env=env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def user_works(self) -> None:
        for line in USER:
            self.git(line)

    async def attack(self, command: str) -> Outcome:
        sandbox = Sandbox(SandboxOptions(bash_writable_paths=(str(self.top),), git_writes=True), self.top)
        return await sandbox.run(command)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    base = tmp_path / "p"
    base.mkdir()
    yield Place(base)
    shutil.rmtree(base, ignore_errors=True)


CONFLICT = "git rebase main topic; echo r > a.txt; git add a.txt;"
ATTACKS = {
    "fsmonitor": "git config core.fsmonitor ./pwn",
    "fsmonitor, written": "printf '[core]\\n\\tfsmonitor = ./pwn\\n' >> .git/config",
    "settings replaced": "cp .git/config c; printf '[core]\\nfsmonitor = ./pwn\\n' >> c; mv c .git/config",
    "included settings": "printf '[core]\\nfsmonitor = ./pwn\\n' > x; git config include.path ../x",
    "hooks path": "mkdir h; cp pwn h/post-checkout; cp pwn h/pre-commit; git config core.hooksPath h",
    "hook": "mkdir -p .git/hooks; cp pwn .git/hooks/pre-commit; cp pwn .git/hooks/post-checkout",
    "hooks as link": "rm -rf .git/hooks; mkdir h; cp pwn h/pre-commit; ln -s ../h .git/hooks",
    "hooks of a submodule": "mkdir -p .git/modules/sub/hooks; cp pwn .git/modules/sub/hooks/post-checkout;"
    " git rev-parse HEAD > .git/modules/sub/HEAD; git config submodule.sub.update checkout; rm -f sub/a.txt .git/modules/sub/index",
    "settings of a submodule": "git config -f .git/modules/sub/config core.fsmonitor \"$PWD/pwn\"",
    "settings of a worktree": "git config extensions.worktreeConfig true;"
    " printf '[core]\\nfsmonitor = ./pwn\\n' > .git/config.worktree",
    "common folder": "cp -r .git x; printf '[core]\\nfsmonitor = ./pwn\\n' >> x/config; echo \"$PWD/x\" > .git/commondir",
    "common folder of a worktree": "cp -r .git x; printf '[core]\\nfsmonitor = '$PWD'/pwn\\n' >> x/config;"
    " echo \"$PWD/x\" > .git/worktrees/tree/commondir",
    "todo of a rebase": CONFLICT + "echo 'exec ./pwn' >> .git/rebase-merge/git-rebase-todo",
    "rebase --exec": "git rebase --exec ./pwn main topic; rm -f \"$M\"; echo r > a.txt; git add a.txt",
    "strategy of a rebase": "git rebase -s ort main topic; echo r > a.txt; git add a.txt; mkdir -p git-merge-x;"
    " cp pwn git-merge-x/y; echo x/y > .git/rebase-merge/strategy; git rev-parse topic | sed 's/^/pick /' >>"
    " .git/rebase-merge/git-rebase-todo",
    "another .git": "cp -r .git x; printf '[core]\\nfsmonitor = ./pwn\\n' >> x/config; mv .git y; mv x .git",
    ".git as file": "cp -r .git x; printf '[core]\\nfsmonitor = ./pwn\\n' >> x/config; rm -rf .git; echo 'gitdir: x' > .git",
    "update of a submodule": "git config submodule.sub.update '!./pwn'; git -C sub commit --allow-empty -qm x;"
    " git submodule update; rm -f \"$M\"; rm -rf sub/a.txt; git update-index --cacheinfo 160000,$(git -C sub rev-parse HEAD^),sub",
    "transport": "git config remote.origin.url 'ext::sh -c ./pwn'; git config protocol.ext.allow always",
    "upload-pack": "git config remote.origin.uploadpack ./pwn",
    "pager": "git config alias.status '!./pwn'; git config filter.x.smudge ./pwn; git config filter.x.clean ./pwn;"
    " echo '* filter=x' > .git/info/attributes",
    "hook by the index": "O=$(git hash-object -w pwn); I=$(mktemp -u); git update-index --index-version 2;"
    " printf '100755 %s\\tXgit/hooks/pre-commit\\n' $O | git update-index --index-info;"
    " python3 - <<'P'\nimport hashlib\nd=open('.git/index','rb').read()[:-20].replace(b'Xgit/hooks',b'.git/hooks')\n"
    "open('.git/index','wb').write(d+hashlib.sha1(d).digest())\nP",
}  # fmt: skip
UNCONTROLLED = {"hook by the index", "update of a submodule", "hooks of a submodule", "strategy of a rebase"}
"""Attacks that the git of this machine may refuse itself."""


@pytest.mark.parametrize("name", ATTACKS)
async def test_what_a_command_leaves_is_not_run_by_the_users_git(place: Place, name: str) -> None:
    place.user_works()
    assert not place.marker.exists()
    place.git("git reset -q --hard; git checkout -q main")
    await place.attack(f"M={place.marker}; {ATTACKS[name]}")
    place.user_works()
    assert not place.marker.exists()
    assert place.git("git log --oneline main").stdout.count("\n") >= 3
    assert place.git("git fsck --connectivity-only").returncode == 0


@pytest.mark.parametrize("name", sorted(ATTACKS.keys() - UNCONTROLLED))
def test_control_without_a_sandbox_it_runs(place: Place, name: str) -> None:
    place.git(f"M={place.marker}; {ATTACKS[name]}; rm -f {place.marker}")
    place.user_works()
    assert place.marker.exists()


WRITES = {
    "log of HEAD": "rm -f .git/logs/HEAD; ln -s {home}/profile .git/logs/HEAD",
}


@pytest.mark.parametrize("name", WRITES)
async def test_the_users_git_writes_by_no_link_of_a_command(place: Place, name: str) -> None:
    profile = place.home / "profile"
    await place.attack(WRITES[name].format(home=place.home))
    place.user_works()
    assert profile.read_text() == "mine\n"
    # The control.
    place.git(WRITES[name].format(home=place.home))
    place.user_works()
    assert profile.read_text() != "mine\n"


async def test_the_users_git_beside_a_command_sees_nothing_of_it(place: Place) -> None:
    over = threading.Event()
    runs = []

    def user() -> None:
        while not over.is_set():
            runs.append(place.git("git status").returncode)

    thread = threading.Thread(target=user)
    thread.start()
    try:
        await place.attack(
            "cp .git/config c; for i in $(seq 40); do printf '[core]\\nfsmonitor = ./pwn\\n' >> .git/config;"
            " cp pwn .git/hooks/post-index-change; echo /x > .git/commondir; sleep 0.05; rm .git/commondir; cp c .git/config; done"
        )
    finally:
        over.set()
        thread.join()
    assert runs
    assert not any(runs)
    assert not place.marker.exists()


async def test_history_is_neither_deleted_nor_damaged(place: Place) -> None:
    before = place.git("git rev-parse HEAD topic").stdout
    commit = before.split()[0]
    wrong = f"aa/{'b' * 38}"
    outcome = await place.attack(
        f"rm -rf .git/objects/*; mkdir -p .git/objects/aa .git/objects/{commit[:2]};"
        f" echo x > .git/objects/{commit[:2]}/{commit[2:]};"
        " python3 -c 'import zlib,sys; sys.stdout.buffer.write(zlib.compress(b\"blob 1\\0x\"))' > .git/objects/"
        + wrong
        + ";"
        f" echo {commit} > .git/refs/heads/new; for i in /run/objects/*; do rm -rf $i/* $i; touch $i/x; done"
    )
    assert "Read-only file system" in outcome.stderr
    assert f"the object aa{'b' * 38} is damaged" in outcome.stderr
    assert place.git("git rev-parse HEAD topic").stdout == before
    assert place.git("git fsck").returncode == 0
    assert not (place.top / ".git/objects" / wrong).exists()


async def test_a_deleted_git_folder_stays(place: Place) -> None:
    before = place.git("git rev-parse HEAD topic; git status").stdout
    outcome = await place.attack("rm -rf .git .git/*; ls -A .git")
    assert "it stays as it was" in outcome.stderr
    assert place.git("git rev-parse HEAD topic; git status").stdout == before
    assert (await place.attack("git log --oneline main")).exit_code == 0


async def test_what_the_user_does_meanwhile_stays(place: Place) -> None:
    task = threading.Thread(target=lambda: (time.sleep(0.5), place.git("git commit -q --allow-empty -m users")))
    task.start()
    outcome = await place.attack("sleep 1.5; git -c user.name=x -c user.email=y commit -q --allow-empty -m commands")
    task.join()
    assert "changed meanwhile" in outcome.stderr
    assert "users" in place.git("git log -1 --format=%s").stdout
    assert place.git("git fsck --connectivity-only").returncode == 0


async def test_real_work_is_kept(place: Place) -> None:
    outcome = await place.attack(
        # The machine's user may have no name in git.
        "set -e; export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b.example GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b.example;"
        " git status --short; echo n > n.txt; git add n.txt; git commit -qm new; git checkout -q -b more; echo z > n.txt;"
        " git stash -q; git stash pop -q; git commit -qam z; git checkout -q main; git merge -q more; git tag -a v1 -m v1;"
        " git branch -d more; git worktree add -q wt; git config user.name Someone; git log --format=%an -1"
    )
    assert outcome.exit_code == 0, outcome.stderr
    assert place.git("git log -1 --format=%s main").stdout == "z\n"
    assert place.git("git tag").stdout == "v1\n"
    assert "more" not in place.git("git branch").stdout
    assert str(place.top / "wt") in place.git("git worktree list").stdout
    assert place.git("git config --local user.name").stdout == "Someone\n"
    assert place.git("git status --short").stdout == "?? wt/\n"
    assert place.git("git fsck").returncode == 0


async def test_without_the_ward_git_is_read_only(place: Place) -> None:
    sandbox = Sandbox(SandboxOptions(bash_writable_paths=(str(place.top),)), place.top)
    outcome = await sandbox.run("git commit --allow-empty -m x")
    assert outcome.exit_code != 0
    assert "Read-only file system" in outcome.stderr


async def test_passwords_in_settings_are_not_seen_and_stay(place: Place) -> None:
    place.git("git remote add secret https://me:hunter2@git.example/a")
    outcome = await place.attack(
        "cat .git/config; git config user.name Someone; git remote add other https://git.example/b"
    )
    assert "hunter2" not in outcome.stdout
    settings = (place.top / ".git/config").read_text()
    assert "hunter2" in settings
    assert "Someone" in settings
    assert "git.example/b" in settings
    assert "gpgSign" not in settings
