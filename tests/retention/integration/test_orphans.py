"""Temporary folders that a killed process left behind: the next start removes them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from cantrip_acp.files import temporary
from cantrip_acp.retention.rules import DAY, Rules
from tests.retention.integration.test_worktrees import workspace as workspace
from tests.support import processes

OLD = Rules(older_than=90 * DAY)


HOLDER = """
import sys, time
from cantrip_acp.git.repository import SafeGitFolder
from cantrip_acp.git.repository import Repository
from cantrip_acp.sandbox.launch.self_test import _Bait
bait = _Bait()
with SafeGitFolder(Repository.of(sys.argv[1])):
    print("made", flush=True)
    time.sleep(600)
"""


STARTER = """
from cantrip_acp.git.repository import SafeGitFolder
from cantrip_acp.git.repository import Repository
"""


def left(temp: Path) -> list[str]:
    return sorted(p.name.rpartition("-")[0].rstrip("0123456789-") for p in temp.glob("cantrip-[gc]*"))


def test_temporary_folders_of_a_killed_process_go_and_of_a_live_one_stay(temp: Path, workspace: Path) -> None:
    held = [processes.Popen([sys.executable, "-c", HOLDER, str(workspace)], stdout=subprocess.PIPE) for _ in range(2)]
    try:
        for each in held:
            assert each.stdout is not None
            assert each.stdout.readline() == b"made\n"
        assert left(temp) == ["cantrip-canary"] * 2 + ["cantrip-git"] * 2
        held[0].send_signal(signal.SIGKILL)
        held[0].wait()
        (temp / "cantrip-git-mine").mkdir()
        code = f"{STARTER}SafeGitFolder(Repository.of({str(workspace)!r})).close()"
        processes.run([sys.executable, "-c", code], check=True)
        assert left(temp) == ["cantrip-canary", "cantrip-git", "cantrip-git"]
        assert (temp / "cantrip-git-mine").is_dir(), "nothing says whose it is, and it is new"
    finally:
        for each in held:
            each.kill()
            each.wait()
            if each.stdout is not None:
                each.stdout.close()


def test_what_is_not_ours_stays(temp: Path) -> None:
    (temp / "elsewhere").mkdir()
    (temp / "cantrip-git-1-1-link").symlink_to(temp / "elsewhere")
    (temp / "cantrip-git-99999999-1-open").mkdir(mode=0o755)
    (temp / "cantrip-git-99999999-1-file").write_text("")
    assert list(temporary.leftovers()) == []
    gone = temp / "cantrip-git-99999999-1-gone"
    gone.mkdir(mode=0o700)
    assert list(temporary.leftovers()) == [str(gone)]


def test_a_folder_is_never_removed_under_a_process_that_cannot_be_seen(
    temp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In another container no process of ours is to be seen, and there is a moment before a new folder is locked."""
    made: list[temporary.TemporaryFolder] = []
    lost: list[str] = []
    seen = temporary.process_start_time
    ended = threading.Event()

    def make() -> None:
        while not ended.is_set():
            folder = temporary.TemporaryFolder("cantrip-git-")
            made.append(folder)
            if not os.path.isdir(folder.path):
                lost.append(folder.path)
            folder.close()

    temporary.TemporaryFolder("cantrip-git-").close()  # the first one of a process looks for leftovers itself
    # Whoever makes one knows itself; who looks sees nobody.
    monkeypatch.setattr(
        temporary,
        "process_start_time",
        lambda pid: None if threading.current_thread() is threading.main_thread() else seen(pid),
    )
    makers = [threading.Thread(target=make) for _ in range(3)]
    for each in makers:
        each.start()
    removed = 0
    until = time.monotonic() + 3
    while time.monotonic() < until:
        removed += sum(temporary.remove(path) for path in temporary.leftovers())
    ended.set()
    for each in makers:
        each.join()
    assert lost == []
    assert len(made) > 100
    held = temporary.TemporaryFolder("cantrip-git-")
    assert temporary.remove(held.path) is False
    assert list(temporary.leftovers()) == []
    held.close()
