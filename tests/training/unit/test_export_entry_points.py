"""Formats of other packages, found by their entry point."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cantrip_acp.core import exports
from cantrip_acp.training.export.selection import Source
from tests.support.export_looms import forked

pytestmark = pytest.mark.anyio

MODULE = """
class Lengths:
    name = "export-lengths"
    summary = "How long each thread is"
    marks_truncated = True

    def rows(self, source):
        for episode in source.episodes(marked=True):
            source.count_exported(episode.leaf)
            yield {"thread": episode.leaf, "messages": sum(len(w.messages) for w in episode.windows())}
"""


async def test_a_format_of_another_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "export_lengths_of_a_test.py").write_text(MODULE)
    about = tmp_path / "export_lengths_of_a_test-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: export-lengths-of-a-test\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        "[cantrip_acp.exports]\nexport-lengths = export_lengths_of_a_test:Lengths\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        assert "export-lengths" in exports.names()
        rows = list(exports.find("export-lengths").rows(Source(await forked())))
    finally:
        sys.modules.pop("export_lengths_of_a_test", None)
    assert [r["messages"] for r in rows] == [5, 8, 8, 8]
