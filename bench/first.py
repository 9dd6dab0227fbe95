"""The first minutes: `make demo` in a fresh clone, to its end, beside `pip install .` into a new environment.

Both download from the package index and use pip's cache, so the first of them is not slower: the baseline runs before and after.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.measure import Table, row
from bench.options import Options

ROOT = Path(__file__).resolve().parents[1]


def _seconds(*command: str | Path, cwd: Path) -> float:
    begun = time.perf_counter()
    subprocess.run(command, cwd=cwd, check=True, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    return time.perf_counter() - begun


def _pip_install(folder: Path) -> float:
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    return time.perf_counter() - begun + _seconds(folder / "bin/pip", "install", "--quiet", ".", cwd=ROOT)


def run(options: Options) -> Table:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        clone = folder / "clone"
        subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
        before = _pip_install(folder / "before")
        demo = _seconds("make", f"PYTHON={sys.executable}", "demo", cwd=clone)
        after = _pip_install(folder / "after")
        size = sum(file.lstat().st_blocks * 512 for file in (clone / ".venv").rglob("*")) / 2**20
    baseline = row("pip install .", [before, after], "s")
    return Table(
        "first",
        "`make demo` in a fresh clone, to its end",
        (
            baseline,
            row(
                "make demo",
                [demo],
                "s",
                baseline=baseline,
                goal="<= 1.3 x and 60 s",
                reached=lambda made: made.median <= 60 and demo <= 1.3 * max(before, after),
            ),
            row("make demo: size of .venv", [size], "MB"),
        ),
    )
