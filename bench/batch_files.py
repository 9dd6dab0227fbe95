"""Has the project changed? The digest of 20,000 files that a batch takes before its first cast, and again after its last one.

The baseline reads the same files by their known names and hashes them. The first look has read none of them before; a later
process knows the digests that the state folder keeps.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from pathlib import Path

from bench.measure import Row, Table, row
from bench.options import Options
from cantrip_acp.files.digests import FileDigests

FILES = 20_000


def run(options: Options) -> Table:
    rounds, rows = options.rounds(7), list[Row]()
    with tempfile.TemporaryDirectory(prefix="bench-") as place:
        folder, kept = Path(place) / "project", Path(place) / "state" / "kept"
        paths = _make(folder)
        plain, first, later = list[float](), list[float](), list[float]()
        FileDigests(kept).folder(folder, strict=False)
        for _ in range(rounds):
            plain.append(_timed(lambda: [hashlib.blake2b(path.read_bytes()).digest() for path in paths]))
            first.append(_timed(lambda: FileDigests().folder(folder, strict=False)))
            later.append(_timed(lambda: FileDigests(kept).folder(folder, strict=False)))
        base = row("read and hash 20,000 files", plain, "ms")
        rows.append(base)
        rows.append(row("the first look", first, "ms", baseline=base, goal="<= 1,000"))
        rows.append(row("a look in a later process", later, "ms", baseline=base))
    return Table("batch_files", "the files of a project, as a batch looks at them", tuple(rows))


def _timed(call: object) -> float:
    began = time.perf_counter()
    assert callable(call)
    assert call()
    return (time.perf_counter() - began) * 1000


def _make(folder: Path) -> list[Path]:
    """Files of 5 KB in 400 folders, of some time ago: a file that has just changed is read each time."""
    paths, at = [], time.time() - 100
    for number in range(FILES):
        path = folder / f"p{number // 1000}" / f"d{number // 50}" / f"f{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"x = {number:06}\n" * 450)
        os.utime(path, (at, at))
        paths.append(path)
    time.sleep(2.1)
    return paths
