"""The tests of `tests/training/unit/test_import_verifiers.py` that start processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.export_looms import lived, saw
from tests.support.loom_stores import Place
from tests.training.unit.test_export_formats import rows
from tests.training.unit.test_import_verifiers import imported, written

pytestmark = pytest.mark.anyio


async def test_every_store(tmp_path: Path, place: Place) -> None:
    loom, _ = await lived()
    path = written(tmp_path / "traces.jsonl", rows(loom, "verifiers"))
    into = place.open()
    first = imported(path, into)
    into = place.again(into)
    second = imported(path, into)
    assert first.turns == 10
    assert (second.turns, second.known) == (0, 10)
    leaf = into.leaves()[-1]
    told = [[m.content for m in messages] for _, messages, _ in saw(into, leaf)]
    assert told == [[m.content for m in messages] for _, messages, _ in saw(loom, loom.leaves()[-1])]
