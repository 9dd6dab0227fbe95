"""Pinning the files of a turn in a git repository of 5,000 files, and a worktree at such a pin.

The baselines are git's own commands by hand: its status, and a worktree of the same commit.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from pathlib import Path

from bench.measure import Table, row
from bench.options import Options
from cantrip_acp.git import worktrees
from cantrip_acp.git.file_snapshots import Pinner

FILES = 5_000


def _git(where: Path, *args: str) -> None:
    who = ["-c", "user.name=bench", "-c", "user.email=bench@example.org"]
    subprocess.run(["git", *who, *args], cwd=where, check=True, capture_output=True)


def run(options: Options) -> Table:
    """The table."""
    samples: dict[str, list[float]] = {}

    def took(name: str, began: float) -> None:
        samples.setdefault(name, []).append((time.perf_counter() - began) * 1000)

    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        where = Path(folder) / "project"
        for number in range(FILES):
            path = where / f"d{number % 100}" / f"f{number}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"print({number})\n" * 40)
        _git(where, "init", "-q")
        _git(where, "add", "-A")
        _git(where, "commit", "-qm", "all")
        # Files of the second in which git looked are looked at again, by git as by us.
        time.sleep(1.1)
        began = time.perf_counter()
        pinner = Pinner(str(where), "refs/cantrip/bench/e")
        pin = pinner.pin("first")
        took("first", began)
        assert pin is not None
        (where / "d0" / "f0.py").write_text("settled\n")
        pinner.pin("settled")
        time.sleep(1.1)
        for number in range(options.rounds(20)):
            began = time.perf_counter()
            _git(where, "status", "--porcelain")
            took("status", began)
            began = time.perf_counter()
            pinner.pin("nothing")
            took("nothing", began)
            (where / "d1" / "f1.py").write_text(f"changed {number}\n")
            began = time.perf_counter()
            pinner.pin("one")
            took("one", began)
        for number in range(options.rounds(5)):
            began = time.perf_counter()
            _git(where, "worktree", "add", "-q", "--detach", str(Path(folder) / f"git{number}"), "HEAD")
            took("worktree add", began)
            began = time.perf_counter()
            worktrees.make(
                pinner.repository, pin.commit, pin.head, Path(folder) / f"ours{number}", why="bench"
            ).finish()
            took("worktree", began)
        pinner.close()
    status = row("git status", samples["status"], "ms")
    added = row("git worktree add", samples["worktree add"], "ms")
    return Table(
        "pins",
        "the files of a turn, in a repository of 5,000 files",
        (
            status,
            row("a turn that changed nothing", samples["nothing"], "ms", baseline=status),
            row("a turn that changed one file", samples["one"], "ms", baseline=status),
            row("the first turn of an entity", samples["first"], "ms", baseline=status),
            added,
            row("a fork's worktree at a pin", samples["worktree"], "ms", baseline=added),
        ),
    )
