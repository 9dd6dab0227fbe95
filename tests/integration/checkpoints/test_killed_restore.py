"""kill -9 in the middle of a restore: each file is whole, running it again completes it, and the state before can be had."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cantrip_acp.checkpoints.history import FileHistory
from cantrip_acp.checkpoints.restore import finish_restores, make_plan, run_plan
from cantrip_acp.checkpoints.store import Store
from cantrip_acp.checkpoints.watcher import Watcher
from tests.support import processes

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


@pytest.mark.parametrize(("call", "after"), [("rename", 0), ("rename", 7), ("rename", 18), ("fsync", 3), ("unlink", 2)])
def test_it_is_completed_and_can_be_taken_back(tmp_path: Path, call: str, after: int) -> None:
    workspace = tmp_path / "w"
    workspace.mkdir()
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
