"""The tests of `tests/gates/unit/test_confinement.py` that start processes."""

from __future__ import annotations

import os
import time
from pathlib import Path

from cantrip_acp.gates.files.list_dir import LIST_DIR
from cantrip_acp.gates.files.write_file import WRITE_FILE
from cantrip_acp.gates.search.search import SEARCH
from cantrip_acp.types.errors import GateError
from tests.gates.unit.test_confinement import EACH, Call


def test_special_files_on_the_way_of_a_search_or_a_list(call: Call, workspace: Path) -> None:
    os.mkfifo(workspace / "pipe")
    (workspace / "a.txt").write_text("needle\n")
    assert call(SEARCH, pattern="needle").result == "a.txt:1:needle"
    assert "pipe  pipe" in call(LIST_DIR, details=True).result


def test_descriptors_do_not_pile_up(call: Call, workspace: Path) -> None:
    (workspace / "a").mkdir()
    (workspace / "a" / "f.txt").write_text("x\n")
    (workspace / "out").symlink_to("/etc")

    def every_way() -> None:
        for gate, args in EACH:
            for path in ("a/f.txt", "a", "missing/x", "../x", "out/passwd", "a/f.txt/x", ".git/x", ".env", "a/.."):
                try:
                    call(
                        gate, path=path, **{**args, "content": f"{time.monotonic_ns()}"} if gate is WRITE_FILE else args
                    )
                except GateError:
                    pass

    every_way()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        every_way()
    assert len(os.listdir("/proc/self/fd")) <= before
