"""The tests of `tests/gates/unit/test_list_dir.py` that start processes."""

from __future__ import annotations

from pathlib import Path

from cantrip_acp.gates.files.list_dir import LIST_DIR
from cantrip_acp.gates.files.read_file import READ_FILE
from cantrip_acp.gates.search.search import SEARCH
from tests.gates.unit.test_list_dir import Call


def test_names_that_would_be_lines_of_their_own(call: Call, workspace: Path) -> None:
    (workspace / "a\nfake.py:1:x\x1b[2J").write_text("needle\n")
    escaped = r"a\x0afake.py:1:x\x1b[2J"
    assert call(LIST_DIR, details=True).result == f"{escaped}  7 bytes"
    assert call(SEARCH, pattern="needle").result == f"{escaped}:1:needle"
    assert call(LIST_DIR).result == ["a\nfake.py:1:x\x1b[2J"]
    assert call(READ_FILE, path="a\nfake.py:1:x\x1b[2J").title == f"Read {escaped}"
