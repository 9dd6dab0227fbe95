"""What a kill leaves behind outside of looms: temporary folders, and worktrees of forks that were being made."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from cantrip_acp import Loom, Turn
from cantrip_acp.files import temporary
from cantrip_acp.git import file_snapshots, worktrees
from cantrip_acp.git.repository import Repository
from cantrip_acp.git.safe_config import Plain
from cantrip_acp.loom.records.turn import FilesRecord
from cantrip_acp.retention.plan import make
from cantrip_acp.retention.rules import DAY, Rules
from tests.cli.command import run
from tests.retention.shelf import keep
from tests.retention.test_worktrees import aged, git
from tests.retention.test_worktrees import workspace as workspace

OLD = Rules(older_than=90 * DAY)


HOLDER = """
import sys, time
from cantrip_acp.git.safe_config import Plain
from cantrip_acp.git.repository import Repository
from cantrip_acp.sandbox.launch.self_test import _Bait
bait = _Bait()
with Plain(Repository.of(sys.argv[1])):
    print("made", flush=True)
    time.sleep(600)
"""


STARTER = """
from cantrip_acp.git.safe_config import Plain
from cantrip_acp.git.repository import Repository
"""


def left(temp: Path) -> list[str]:
    return sorted(p.name.rpartition("-")[0].rstrip("0123456789-") for p in temp.glob("cantrip-[gc]*"))


@pytest.mark.parametrize("way", ["gc", "start"])
def test_temporary_folders_of_a_killed_process_go_and_of_a_live_one_stay(
    temp: Path, tmp_path: Path, workspace: Path, way: str
) -> None:
    held = [subprocess.Popen([sys.executable, "-c", HOLDER, str(workspace)], stdout=subprocess.PIPE) for _ in range(2)]
    try:
        for each in held:
            assert each.stdout is not None
            assert each.stdout.readline() == b"made\n"
        assert left(temp) == ["cantrip-canary"] * 2 + ["cantrip-git"] * 2
        held[0].send_signal(signal.SIGKILL)
        held[0].wait()
        (temp / "cantrip-git-mine").mkdir()
        if way == "gc":
            (tmp_path / "state").mkdir()
            shown = run("gc", "--state-dir", tmp_path / "state", cwd=tmp_path)
            assert shown.out.count("its process was killed") == 2
            assert run("gc", "--yes", "--state-dir", tmp_path / "state", cwd=tmp_path).status == 0
        else:
            code = f"{STARTER}Plain(Repository.of({str(workspace)!r})).close()"
            subprocess.run([sys.executable, "-c", code], check=True)
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


MAKER = """
import os, signal, sys
from cantrip_acp.core.forking.worktree import making
from cantrip_acp.git import worktrees
from cantrip_acp.git.repository import Repository
worktrees._fill = lambda *a: os.kill(os.getpid(), signal.SIGKILL)
worktrees.make(Repository.of(sys.argv[1]), sys.argv[2], None, sys.argv[3], why=making("loom_1", "e"))
"""


def test_a_locked_worktree_of_a_killed_fork_goes(tmp_path: Path, workspace: Path) -> None:
    state = tmp_path / "state"
    path = keep(state, "a")
    with Loom.open(path) as loom:
        assert loom.header is not None
        pinner = file_snapshots.Pinner(str(workspace), file_snapshots.ref_of(loom.header.id, "e"))
        made = pinner.pin("after a turn")
        pinner.close()
        assert made is not None
        loom.append(FilesRecord("w", "t_a_1", "e", made.top, made.commit, made.tree, made.ref, made.head))
    (state / "worktrees").mkdir()
    for where in (state / "worktrees" / "fork", tmp_path / "chosen"):
        done = subprocess.run([sys.executable, "-c", MAKER, str(workspace), str(made.commit), str(where)])
        assert done.returncode == -signal.SIGKILL
    alive = tmp_path / "alive"
    git(
        workspace,
        "worktree",
        "add",
        "--detach",
        "--lock",
        "--reason",
        worktrees.reason("cantrip l e is being made"),
        str(alive),
    )
    users = tmp_path / "users"
    git(workspace, "worktree", "add", "--detach", "--lock", "--reason", "on a stick", str(users))
    assert run("gc", "--yes", "--state-dir", state, cwd=tmp_path).status == 0
    repository = Repository.of(str(workspace))
    assert repository is not None
    assert sorted(worktrees.linked(repository)) == [str(alive), str(users)]
    assert not (tmp_path / "chosen").exists()
    assert path.exists()


def test_a_worktree_of_a_loom_outside_of_the_state_folder_stays(tmp_path: Path, workspace: Path) -> None:
    state = tmp_path / "state"
    (state / "looms").mkdir(parents=True)
    (state / "worktrees").mkdir()
    outside = tmp_path / "kept.loom.jsonl"
    with Loom.open(outside) as loom:
        loom.append(Turn("t", None, "c", "e", None, role="call"))
    repository = Repository.of(str(workspace))
    assert repository is not None
    with Plain(repository):
        pass
    head = git(workspace, "rev-parse", "HEAD").strip()
    for name, loom_at in (("named", str(outside)), ("gone", str(tmp_path / "gone.loom.jsonl"))):
        where = state / "worktrees" / name
        worktrees.make(repository, head, head, where, why="a fork").finish()
        worktrees.name_loom(str(where), loom_at)
        aged(where, 200)
    plan = make(state, OLD)
    items = {item.name: item.stays for item in plan.items if item.kind == "worktree"}
    plan.close()
    assert items == {"worktrees/named": f"{outside} names it", "worktrees/gone": None}
    assert os.path.isdir(state / "worktrees" / "named")


def test_a_folder_is_never_removed_under_a_process_that_cannot_be_seen(
    temp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In another container no process of ours is to be seen, and there is a moment before a new folder is locked."""
    made: list[temporary.TemporaryFolder] = []
    lost: list[str] = []
    seen = temporary.started
    ended = threading.Event()

    def make() -> None:
        while not ended.is_set():
            folder = temporary.TemporaryFolder("cantrip-git-")
            made.append(folder)
            if not os.path.isdir(folder.path):
                lost.append(folder.path)
            folder.close()

    monkeypatch.setattr(temporary, "_cleaned", True)
    # Whoever makes one knows itself; who looks sees nobody.
    monkeypatch.setattr(
        temporary, "started", lambda pid: None if threading.current_thread() is threading.main_thread() else seen(pid)
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
