"""What a process leaves when it ends as it should, and when it is killed in the middle of a command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cantrip_acp.sandbox.launch import runtime_dir
from cantrip_acp.sandbox.launch.sandbox import control_groups
from cantrip_acp.sandbox.policy.placeholders import Placeholders, Pool, is_placeholder

PROGRAM = """
import asyncio, sys
from pathlib import Path
from cantrip_acp.sandbox import Sandbox
from cantrip_acp.sandbox import runtime
from cantrip_acp.sandbox import SandboxOptions
workspace = Path(sys.argv[1])
box = Sandbox(SandboxOptions(bash_writable_paths=(str(workspace),)), workspace)
print(runtime().folder, flush=True)
for command in sys.argv[2:]:
    asyncio.run(box.run(command))
"""


def start(workspace: Path, *commands: str) -> tuple[subprocess.Popen[str], Path]:
    child = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(workspace), *commands],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert child.stdout is not None
    return child, Path(child.stdout.readline().strip())


def pause_timeout(text: str) -> list[str]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                line = Path(f"/proc/{name}/cmdline").read_bytes()
                state = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if text.encode() in line and state != "Z":
                found.append(line.replace(b"\0", b" ").decode("utf-8", "replace"))
    return found


def until(true: object, seconds: float = 30.0) -> bool:
    assert callable(true)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if true():
            return True
        time.sleep(0.02)
    return False


def test_nothing_is_left_after_an_ordinary_end(workspace: Path) -> None:
    child, folder = start(workspace, "echo hi > file")
    assert child.wait(60) == 0
    assert not folder.exists()
    assert pause_timeout(str(folder)) == []
    assert [p.name for p in workspace.iterdir()] == ["file"]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_is_left_after_a_kill_in_the_middle(workspace: Path, how: signal.Signals) -> None:
    marker = f"85.{os.getpid() % 1000:03d}{how:d}"
    child, folder = start(workspace, f"setsid sleep {marker} & (trap '' TERM; sleep {marker}) & sleep {marker}")
    assert until(lambda: len(pause_timeout(f"sleep\0{marker}")) == 3)
    assert (workspace / ".vscode").is_dir()
    child.send_signal(how)
    child.wait(60)
    assert until(lambda: not pause_timeout(marker)), pause_timeout(marker)
    assert until(lambda: not list(workspace.iterdir())), list(workspace.iterdir())
    assert until(lambda: not folder.exists())
    assert until(lambda: not pause_timeout(str(folder)))
    parent = control_groups()
    assert parent is None or until(lambda: not list(Path(parent).glob(f"{folder.name}-*")))


def test_a_folder_that_a_starting_sandbox_made_is_removed_and_one_of_the_user_stays(workspace: Path) -> None:
    """When a process is killed, the sentinel of another one may remove its placeholders while its sandbox is starting."""
    (workspace / ".vscode").mkdir()
    child, folder = start(workspace, "touch begun; sleep 100")
    assert until((workspace / "begun").exists)
    assert is_placeholder(str(workspace / ".nvim.lua"))
    (workspace / ".nvim.lua").rmdir()
    (workspace / ".nvim.lua").mkdir(0o755)
    child.kill()
    child.wait(60)
    assert until(lambda: not folder.with_name(f"{folder.name}.ended").exists() and not folder.exists())
    assert sorted(each.name for each in workspace.iterdir()) == [".vscode", "begun"]


@pytest.mark.slow
def test_nothing_is_left_after_kills_at_any_instant(workspace: Path) -> None:
    """Among them the few milliseconds in which bubblewrap is not yet tied to its parent's life."""
    folders, marker = [], f"86.{os.getpid()}"
    for step in range(12):
        child, folder = start(workspace, *[f"sleep {marker}"] * 3)
        folders.append(folder)
        time.sleep(0.004 * step)
        child.kill()
        child.wait(60)
    assert until(lambda: not pause_timeout(marker)), pause_timeout(marker)
    assert until(lambda: not any(f.exists() for f in folders)), [f for f in folders if f.exists()]
    assert until(lambda: not any(pause_timeout(str(f)) for f in folders)), [pause_timeout(str(f)) for f in folders]
    parent = control_groups()
    assert parent is None or until(lambda: not any(list(Path(parent).glob(f"{f.name}-*")) for f in folders)), parent
    assert until(lambda: not list(workspace.iterdir())), list(workspace.iterdir())


def test_what_a_crash_left_is_taken_over(workspace: Path) -> None:
    (workspace / ".vscode").mkdir()
    (workspace / ".vscode").chmod(0o1700)
    assert is_placeholder(str(workspace / ".vscode"))
    child, _ = start(workspace, "echo x > .vscode/settings.json; echo ok > file")
    assert child.wait(60) == 0
    assert [p.name for p in workspace.iterdir()] == ["file"]


def test_a_users_own_empty_folder_is_never_removed(workspace: Path) -> None:
    (workspace / ".idea").mkdir(mode=0o755)
    child, _ = start(workspace, "true")
    assert child.wait(60) == 0
    assert [p.name for p in workspace.iterdir()] == [".idea"]
    assert (workspace / ".idea").stat().st_mode & 0o7777 == 0o755


def test_stand_ins_come_from_the_pool_and_go_back(tmp_path: Path) -> None:
    (tmp_path / "pool").mkdir()
    (tmp_path / "work").mkdir()
    pool = Pool(str(tmp_path / "pool"))
    first = Placeholders(str(tmp_path / "work"), ("a", "b"), pool)
    second = Placeholders(str(tmp_path / "work"), ("a", "b"), pool)
    assert first.make(["a", "b"]) == ["a", "b"]
    assert second.make(["a", "b"]) == ["a", "b"]
    first.remove()
    assert sorted(os.listdir(tmp_path / "work")) == ["a", "b"]
    second.remove()
    second.remove()
    assert os.listdir(tmp_path / "work") == []
    assert len(os.listdir(tmp_path / "pool")) == 2
    pool.close()


def test_what_somebody_puts_into_a_stand_in_is_never_taken_away(tmp_path: Path) -> None:
    """Not even when it was known to be empty from earlier commands."""
    (tmp_path / "pool").mkdir()
    (tmp_path / "work").mkdir()
    pool = Pool(str(tmp_path / "pool"))
    for number in range(4):
        standing = Placeholders(str(tmp_path / "work"), ("a", "b"), pool)
        standing.make(["a", "b"])
        if number == 3:
            (tmp_path / "work/a/kept").write_text("theirs")
        standing.remove()
        time.sleep(0.06)
    assert os.listdir(tmp_path / "work") == ["a"]
    assert (tmp_path / "work/a/kept").read_text() == "theirs"
    pool.close()


def test_a_folder_of_another_program_that_locks_it_is_an_error(tmp_path: Path) -> None:
    import fcntl

    from cantrip_acp.types.errors import SandboxError

    fd = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    with pytest.raises(SandboxError, match="locked by another program"):
        Placeholders(str(tmp_path), ("a",)).make(["a"])
    os.close(fd)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_etc_is_mounted_only_if_everybody_may_read_all_of_it(tmp_path: Path) -> None:
    folder = tmp_path / "certs"
    (folder / "java").mkdir(parents=True)
    (folder / "java" / "cacerts").touch(0o644)
    (folder / "a.pem").symlink_to("/usr/share/ca-certificates/a.crt")
    (folder / "b.0").symlink_to("a.pem")
    assert runtime_dir._is_public(str(folder))
    (folder / "java" / "private.key").touch(0o600)
    assert not runtime_dir._is_public(str(folder))
    (folder / "java" / "private.key").unlink()
    (folder / "up").symlink_to("../private")
    assert not runtime_dir._is_public(str(folder))
    assert not runtime_dir._is_public(str(tmp_path / "missing"))
