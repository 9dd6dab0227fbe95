"""A database that is open here, in a folder whose files are kept, compared or copied.

POSIX gives up all locks that a process has on a file when it closes any descriptor of it. SQLite's are such locks: whoever reads
and closes its files takes the database from under it, and two processes write at once (sqlite.org/howtocorrupt, 2.2).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cantrip_acp.checkpoints.store import Store
from cantrip_acp.checkpoints.watcher import Watcher
from cantrip_acp.db import sqlite as db
from cantrip_acp.files import scratch_copy
from cantrip_acp.files.digests import FileDigests
from tests.support import processes

WRITE = "import sqlite3, sys; sqlite3.connect(sys.argv[1], timeout=0, isolation_level=None).execute('BEGIN IMMEDIATE')"


def keep(workspace: Path, beside: Path) -> None:
    with Store(workspace) as store:
        watcher = Watcher(store)
        watcher.close()


def compare(workspace: Path, beside: Path) -> None:
    assert FileDigests().folder(workspace) is not None


def copy(workspace: Path, beside: Path) -> None:
    scratch_copy.copy_folders([str(workspace)], str(beside))


@pytest.mark.parametrize("read", [keep, compare, copy])
@pytest.mark.parametrize("held", [True, False])
def test_its_locks_stay(tmp_path: Path, read: Callable[[Path, Path], None], held: bool) -> None:
    workspace, beside = tmp_path / "project", tmp_path / "beside"
    workspace.mkdir()
    beside.mkdir()
    path = workspace / "space.db"
    base = db.connect(f"file:{path}", 1)
    db.use_write_ahead_log(base, 1)
    base.execute("CREATE TABLE one (x)")
    guard = db.held(path) if held else None
    base.execute("BEGIN IMMEDIATE")
    read(workspace, beside)
    other = processes.run([sys.executable, "-c", WRITE, str(path)], capture_output=True, text=True, timeout=60)
    # Without the guard the lock is gone: the test would see it.
    assert ("database is locked" in other.stderr) is held, other.stderr
    base.close()
    if guard is not None:
        guard.release()
