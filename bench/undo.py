"""Undo: what a turn that changed one file waits for its checkpoint, in a folder of 50,000 files.

The baselines keep the same files in the same run: git with a shadow git folder (`git add -A && git commit`), and only
writing the changed file.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench.measure import Table, row
from bench.options import Options
from cantrip_acp.checkpoints.store import Store
from cantrip_acp.checkpoints.watcher import Watcher

FILES = 50_000


def run(options: Options) -> Table:
    """The table."""
    turns = options.rounds(15)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        workspace = Path(folder, "project")
        for number in range(FILES):
            path = workspace / f"d{number // 50:04}" / f"f{number % 50}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"# file {number}\n" + "x = 1\n" * 20)
        written = _each(workspace, turns, lambda: None)
        first, again, kept, scanned = _ours(workspace, Path(folder, "state"), turns)
        git_first, git_turn = _git(workspace, Path(folder, "shadow.git"), turns)
    by_git = row("git: a turn that changed one file", git_turn, "ms")
    git_begin = row("git: the first commit", git_first, "ms")
    return Table(
        "undo",
        "the files of a turn, in a folder of 50,000 files",
        (
            row("writing the file alone", written, "ms"),
            by_git,
            row("a turn that changed one file, with writing it", kept, "ms", baseline=by_git),
            row("the same where the kernel reports no changes", scanned, "ms", baseline=by_git),
            git_begin,
            row("the first checkpoint of a workspace", first, "ms", baseline=git_begin),
            row("the first checkpoint of a later session", again, "ms", baseline=git_begin),
        ),
    )


def _ours(workspace: Path, state: Path, turns: int) -> tuple[list[float], ...]:
    began = time.perf_counter()
    with Store(workspace, state=state) as store:
        watcher = Watcher(store)
        last = store.save("loom", "entity", None, "start", {}, tree=watcher.tree())
        first = (time.perf_counter() - began) * 1000
        store.keep_cache(watcher.cache())
        assert watcher.cheap, "this machine has no inotify"

        def keep() -> None:
            nonlocal last
            watcher.changes()  # what the user changed, before the calls of a turn
            last = store.save("loom", "entity", last.id, "turn", watcher.changes(), turn="t", cast="c")

        kept = _each(workspace, turns, keep)
        watcher.close()
        began = time.perf_counter()
        Watcher(store).close()
        again = (time.perf_counter() - began) * 1000
        scanning = Watcher(store, watch=False)
        scanned = _each(workspace, turns, lambda: scanning.changes())
        scanning.close()
    return [first], [again], kept, scanned


def _git(workspace: Path, git_dir: Path, turns: int) -> tuple[list[float], list[float]]:
    env = {
        "PATH": os.environ["PATH"], "GIT_DIR": str(git_dir), "GIT_WORK_TREE": str(workspace), "HOME": "/nonexistent",
        "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b",
    }  # fmt: skip

    def git(*args: str) -> None:
        subprocess.run(["git", "-c", "gc.auto=0", *args], cwd=workspace, env=env, check=True, capture_output=True)

    def commit() -> None:
        git("add", "-A")
        git("commit", "-qm", "turn")

    git("init", "-q")
    began = time.perf_counter()
    commit()
    return [(time.perf_counter() - began) * 1000], _each(workspace, turns, commit)


def _each(workspace: Path, turns: int, keep: Callable[[], object]) -> list[float]:
    """The milliseconds of changing one file and keeping it, for each turn."""
    spent = []
    for number in range(turns):
        path = workspace / f"d{number * 7:04}" / "f3.py"
        began = time.perf_counter()
        path.write_text(f"turn {number} {time.time_ns()}\n")
        keep()
        spent.append((time.perf_counter() - began) * 1000)
    return spent
