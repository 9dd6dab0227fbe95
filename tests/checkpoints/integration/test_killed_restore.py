"""kill -9 in the middle of a restore: each file is whole, running it again completes it, and the state before can be had."""

from __future__ import annotations

import fcntl
import os
import signal
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cantrip_acp.checkpoints.history import FileHistory
from cantrip_acp.checkpoints.restore import finish_restores, make_plan, run_plan
from cantrip_acp.checkpoints.store import Entry, Store, content_hash
from cantrip_acp.checkpoints.watcher import Watcher
from tests.support import processes
from tests.support.waiting import wait_for

KEY = ("loom", "entity")
COUNT = 40

RESTORE = """
import os, signal, sys
from cantrip_acp.checkpoints import restore
from cantrip_acp.checkpoints.history import FileHistory
from cantrip_acp.checkpoints.store import Store
left = int(sys.argv[2])
real = getattr(os, sys.argv[3])
def dies(*args, **options):
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*args, **options)
with Store(sys.argv[1]) as store:
    target = FileHistory(store, "loom", "entity").undo()
    plan = restore.make_plan(store, target.undone, to=target.to)
    setattr(os, sys.argv[3], dies)
    restore.run_plan(store, "loom", "entity", plan)
"""


def contents(workspace: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in workspace.iterdir()}


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "w"
    folder.mkdir()
    return folder


@pytest.mark.parametrize(("call", "after"), [("rename", 0), ("rename", 7), ("rename", 18), ("fsync", 3), ("unlink", 2)])
def test_it_is_completed_and_can_be_taken_back(workspace: Path, call: str, after: int) -> None:
    for number in range(0, COUNT, 2):
        (workspace / f"f{number}").write_text(f"old {number}\n")
    old = contents(workspace)
    with Store(workspace) as store:
        watcher = Watcher(store)
        store.save(*KEY, None, "start", {}, tree=watcher.tree())
        for number in range(COUNT):
            (workspace / f"f{number}").write_text(f"new {number}\n")
        new = contents(workspace)
        store.save(*KEY, store.last(*KEY), "turn", watcher.changes(), turn="t", cast="c")
        watcher.close()
    ran = processes.run([sys.executable, "-c", RESTORE, str(workspace), str(after), call], stdout=subprocess.DEVNULL)
    assert ran.returncode == -signal.SIGKILL
    now = contents(workspace)
    for name, text in now.items():
        # No file is half: what is not yet restored is as it was, apart from a temporary file.
        assert text in (old.get(name), new.get(name)) or name.startswith(".cantrip-restore-")
    with Store(workspace) as store:
        (outcome,) = finish_restores(store, *KEY)
        assert outcome.skipped == {}
        assert contents(workspace) == old
        assert finish_restores(store, *KEY) == []
        target = FileHistory(store, *KEY).redo()
        run_plan(store, *KEY, make_plan(store, target.undone, to=target.to))
        assert contents(workspace) == new


def test_a_file_that_cannot_be_restored_does_not_stop_the_others(workspace: Path) -> None:
    with Store(workspace) as store:
        lost = Entry(stat.S_IFREG | 0o644, content_hash(b"lost"), 4)
        there = Entry(stat.S_IFREG | 0o644, store.add(b"there"), 5)
        store.begin_restore(*KEY, "", {"lost": (None, lost), "there": (None, there)})
        (outcome,) = finish_restores(store, *KEY)
        assert "was removed" in outcome.skipped["lost"]
        assert finish_restores(store, *KEY) == []
    assert contents(workspace) == {"there": "there"}


def test_removing_another_chain_keeps_what_a_review_and_an_unfinished_restore_need(workspace: Path) -> None:
    file = workspace / "f"
    file.write_text("".join(f"{number}\n" for number in range(40)))
    with Store(workspace) as store:
        watcher = Watcher(store)
        store.save(*KEY, None, "start", {}, tree=watcher.tree())
        store.save("other", "entity", None, "start", {}, tree={})
        file.write_text(file.read_text().replace("3\n", "three\n", 1).replace("35\n", "thirty-five\n"))
        store.save(*KEY, store.last(*KEY), "turn", watcher.changes(), turn="t", cast="c")
        watcher.close()
        history = FileHistory(store, *KEY)
        (review,) = history.review()
        assert len(review.hunks()) == 2
        history.keep_hunk(review, 1)
        merged = Entry(stat.S_IFREG | 0o644, store.add(b"merged"), 6)
        store.begin_restore(*KEY, "", {"g": (None, merged)})
        store.forget(["other"])
        store.sweep()
    with Store(workspace) as store:
        (review,) = FileHistory(store, *KEY).review()
        assert len(review.hunks()) == 1
        (outcome,) = finish_restores(store, *KEY)
        assert outcome.skipped == {}
    assert (workspace / "g").read_text() == "merged"


def test_who_waits_for_a_store_that_is_deleted_opens_a_new_one(workspace: Path) -> None:
    with Store(workspace) as store:
        lock = store.path.with_suffix(".lock")
    with lock.open() as held, ThreadPoolExecutor(1) as pool:
        fcntl.flock(held, fcntl.LOCK_EX)
        opening = pool.submit(Store, workspace)
        waits = f":{os.fstat(held.fileno()).st_ino} "
        wait_for(lambda: any("->" in line and waits in line for line in Path("/proc/locks").read_text().splitlines()))
        lock.unlink()
        fcntl.flock(held, fcntl.LOCK_UN)
        opened = opening.result()
    with opened:
        # Nobody may delete what is open.
        Store(workspace).sweep()
        assert opened.path.exists()
