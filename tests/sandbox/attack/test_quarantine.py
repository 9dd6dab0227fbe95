"""Protected names that were not there before: whatever makes them, and however, none is left when the command has ended.

The control takes away the watch alone: then each attack leaves its file in the workspace.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from unittest import mock

import anyio
import anyio.to_thread
import pytest

from cantrip_acp.files.quarantine import Quarantine
from cantrip_acp.git.project_identity import project_id
from cantrip_acp.sandbox import Outcome, Sandbox, SandboxOptions
from cantrip_acp.sandbox.launch.new_names import NewNames
from tests.support.waiting import wait_until

EVIL = "evil"

ATTACKS = {
    "write": "echo evil > .npmrc",
    "rename": "echo evil > n; mv n .npmrc",
    "hard link": "echo evil > n; ln n .npmrc",
    "link": "echo evil > n; ln -s n .npmrc",
    "folder by rename": "mkdir m; echo evil > m/tasks.json; mv -T m .vscode",
    "nested": "mkdir -p a/b/c; echo evil > a/b/c/.envrc",
    "in a folder that gets a name later": "mkdir -p node_modules/x; echo evil > node_modules/x/.npmrc; mv node_modules lib",
    "another case": "echo evil > .NPMRC; mkdir .VsCode; echo evil > .VsCode/tasks.json",
    "pipe": "mkfifo .envrc",
    "time of the folder set back": "mkdir d; touch -r d stamp; sleep 0.2; echo evil > d/.npmrc; touch -r stamp d",
    "folder without permissions": "mkdir -p d/e; echo evil > d/e/.npmrc; chmod 0 d/e d",
    "name in a read-only folder": "mkdir d; mkdir d/.vscode; echo evil > d/.vscode/x; chmod 500 d/.vscode d",
    "long path": "python3 -c \"import os\nfor _ in range(60): os.mkdir('d'*100); os.chdir('d'*100)\n"
    "open('.npmrc', 'w').write('evil')\"",
    "process that outlives the shell": "(setsid sh -c 'while :; do echo evil > .npmrc; sleep 0.001; done' &) ; sleep 0.1",
    "mapped memory": "python3 -c \"import mmap, os\nf = os.open('n', os.O_RDWR | os.O_CREAT); os.truncate(f, 10)\n"
    "m = mmap.mmap(f, 10); os.rename('n', '.npmrc'); m[:4] = b'evil'\"",
    "through /proc/self/fd": "exec 3<.; echo evil > /proc/self/fd/3/.npmrc",
    "many": "for i in $(seq 300); do mkdir f$i; echo evil > f$i/.npmrc; done",
    "folder swapped for a link": "mkdir a; echo evil > a/.npmrc; (setsid sh -c 'while :; do mv a b; ln -s /etc a; rm a; mv b a; "
    "done' >/dev/null 2>&1 &); sleep 0.3",
    "repository with a program": "git init -q g; git -C g config core.fsmonitor evil",
    "repository with a hook": "git init -q .; echo evil > .git/hooks/post-checkout; chmod +x .git/hooks/post-checkout",
    "repository that is swapped": "git init -q .; git init -q other; git -C other config core.pager evil; (setsid sh -c "
    "'while :; do mv .git t; mv other/.git .git; mv t other/.git; done' >/dev/null 2>&1 &); sleep 0.3; "
    "git config core.pager evil; git -C other config core.pager evil; true",
    "repository that is a link": "git init -q g; git -C g config core.pager evil; ln -s g/.git .git",
    "file that names a repository": "git init -q --separate-git-dir x .; git config core.pager evil",
}


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


def sandbox(workspace: Path) -> Sandbox:
    return Sandbox(SandboxOptions(bash_writable_paths=(str(workspace),), bash_timeout_ms=60_000), workspace)


def harmful(workspace: Path) -> list[str]:
    """The names that a program of the user would act on."""
    wanted = {".npmrc", ".vscode", ".envrc", ".git"}
    subprocess.run(["chmod", "-R", "u+rwX", "."], cwd=workspace, check=True)
    found = []
    for at, folders, files in os.walk(workspace):
        for name in (*folders, *files):
            path = os.path.join(at, name)
            if name.lower() not in wanted:
                continue
            if name == ".git" and os.path.isdir(path) and not os.path.islink(path):
                text = "".join(p.read_text(errors="replace") for p in Path(path).glob("config"))
                hooks = [each for each in os.listdir(f"{path}/hooks") if not each.endswith(".sample")]
                if EVIL not in text and not hooks:
                    continue
            found.append(path)
    deep = subprocess.run(["find", ".", "-name", ".npmrc"], cwd=workspace, capture_output=True, text=True, check=False)
    return [*found, *deep.stdout.split()]


@pytest.mark.parametrize("name", ATTACKS)
async def test_held(name: str, workspace: Path) -> None:
    outcome = await sandbox(workspace).run(ATTACKS[name])
    assert harmful(workspace) == [], outcome
    assert outcome.quarantined or name == "folder swapped for a link", outcome
    assert "cantrip: moved away" in outcome.stderr
    stored = Quarantine(workspace)
    for each in stored.entries():
        stored.drop(each.id)
    assert stored.entries() == []


@pytest.mark.parametrize("name", ATTACKS)
async def test_control(name: str, workspace: Path) -> None:
    with mock.patch.object(NewNames, "_move", return_value=False):
        # Where two names are swapped, the end may find neither.
        for _ in range(10):
            await sandbox(workspace).run(ATTACKS[name])
            if found := harmful(workspace):
                break
            shutil.rmtree(workspace)
            workspace.mkdir()
    assert found, name


async def test_what_is_harmless_is_as_on_the_host(workspace: Path) -> None:
    outcome = await sandbox(workspace).run(
        '[ -z "$(ls -A)" ] && git init -q . && git add -A && echo a > a && mkdir deep && git init -q deep/er && '
        "touch .bashrc .profile && tar cf /tmp/x.tar . && for f in *.json; do [ \"$f\" = '*.json' ] || exit 3; done"
    )
    assert (outcome.exit_code, outcome.quarantined) == (0, ()), outcome
    assert sorted(os.listdir(workspace)) == [".bashrc", ".git", ".profile", "a", "deep"]


async def test_a_name_that_is_made_again_and_again_ends_the_command(workspace: Path) -> None:
    outcome = await sandbox(workspace).run("while :; do echo evil > .npmrc; sleep 0.01; done")
    assert outcome.ended_because is not None
    assert "it made .npmrc again and again" in outcome.ended_because
    assert outcome.stderr.count("cantrip: moved away .npmrc") == 1
    assert os.listdir(workspace) == []


async def test_keep_puts_back_what_it_was_and_overwrites_nothing(workspace: Path) -> None:
    box = sandbox(workspace)
    outcome = await box.run(
        "mkdir -p s/.vscode; echo t > s/.vscode/tasks.json; echo a=b > .npmrc; ln -s x .cargo; chmod 600 .npmrc"
    )
    assert sorted(each.name for each in outcome.quarantined) == [".cargo", ".npmrc", "s/.vscode"]
    (workspace / ".npmrc").write_text("mine")
    stored = Quarantine(workspace)
    for each in stored.entries():
        if each.name == ".npmrc":
            with pytest.raises(Exception, match="exists, and nothing is overwritten"):
                stored.keep(each.id)
            (workspace / ".npmrc").unlink()
        stored.keep(each.id)
    assert (workspace / ".npmrc").read_text() == "a=b\n"
    assert (workspace / ".npmrc").stat().st_mode & 0o777 == 0o600
    assert (workspace / "s/.vscode/tasks.json").read_text() == "t\n"
    assert os.readlink(workspace / ".cargo") == "x"
    assert stored.entries() == []
    (workspace / ".cargo").unlink()
    # From now on it is protected like any other.
    later = await box.run("echo evil > s/.vscode/tasks.json; echo evil > .npmrc")
    assert (later.quarantined, (workspace / ".npmrc").read_text()) == ((), "a=b\n")


async def test_a_kill_leaves_its_names_to_the_next_command(workspace: Path) -> None:
    """Names that were there before stay; those that the killed command made are moved away before the next one starts."""
    (workspace / ".vscode").mkdir()
    program = (
        "import asyncio, sys\nfrom cantrip_acp.sandbox import Sandbox, SandboxOptions\n"
        "from cantrip_acp.sandbox.launch.new_names import NewNames\nNewNames.look = lambda self: None\n"
        "box = Sandbox(SandboxOptions(bash_writable_paths=(sys.argv[1],)), sys.argv[1])\n"
        "asyncio.run(box.run('echo evil > .npmrc; touch made; sleep 100'))"
    )
    child = subprocess.Popen([sys.executable, "-c", program, str(workspace)])
    try:
        await wait_until((workspace / "made").exists)
    finally:
        child.kill()
        child.wait(60)
    assert (workspace / ".npmrc").exists()
    outcome = await sandbox(workspace).run("ls -A")
    assert outcome.stdout.split() == [".vscode", "made"]
    assert [each.name for each in outcome.quarantined] == [".npmrc"]
    assert "cantrip: moved away .npmrc" in outcome.stderr


async def test_the_id_of_a_project_is_ours_and_not_the_commands(workspace: Path) -> None:
    async with anyio.create_task_group() as group:
        outcomes: list[Outcome] = []

        async def run() -> None:
            outcomes.append(await sandbox(workspace).run("touch began; until test -e go; do sleep 0.02; done"))

        group.start_soon(run)
        with anyio.fail_after(60):
            while not (workspace / "began").exists():
                await anyio.sleep(0.02)
        made = await anyio.to_thread.run_sync(project_id, workspace)
        # The control: a folder that somebody else makes while the command runs.
        (workspace / ".vscode").mkdir()
        with anyio.fail_after(60):
            while (workspace / ".vscode").exists():
                await anyio.sleep(0.02)
        (workspace / "go").touch()
    assert [each.name for each in outcomes[0].quarantined] == [".vscode"]
    assert project_id(workspace) == made
    assert made.startswith("id:")
    assert sorted(os.listdir(workspace)) == [".cantrip", "began", "go"]
