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
    child.send_signal(how)
    child.wait(60)
    assert until(lambda: not pause_timeout(marker)), pause_timeout(marker)
    assert until(lambda: not list(workspace.iterdir())), list(workspace.iterdir())
    assert until(lambda: not folder.exists())
    assert until(lambda: not pause_timeout(str(folder)))
    parent = control_groups()
    assert parent is None or until(lambda: not list(Path(parent).glob(f"{folder.name}-*")))


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


def test_a_users_own_empty_folder_is_never_removed(workspace: Path) -> None:
    (workspace / ".idea").mkdir(mode=0o755)
    child, _ = start(workspace, "true")
    assert child.wait(60) == 0
    assert [p.name for p in workspace.iterdir()] == [".idea"]
    assert (workspace / ".idea").stat().st_mode & 0o7777 == 0o755


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
