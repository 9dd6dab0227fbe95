"""The tests of `tests/training/unit/test_import_looms.py` that start processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from cantrip_acp.training.importing.import_file import merge
from tests.support.export_looms import forked, lived
from tests.support.loom_stores import Place

pytestmark = pytest.mark.anyio


async def test_a_whole_loom_into_an_empty_one_and_into_one_that_has_another(place: Place, tmp_path: Path) -> None:
    first, _ = await lived()
    second = await forked()
    into = place.open()
    report = merge(first, into)
    assert (report.turns, report.casts) == (len(first), 4)
    assert list(into.records()) == list(first.records())
    into = place.again(into)
    more = merge(second, into)
    assert (more.turns, more.rewards, more.known) == (len(second), 3, 0)
    assert {t.id for t in into.turns()} == {t.id for t in first.turns()} | {t.id for t in second.turns()}
    count = len(list(into.records()))
    for source in (first, second):
        again = merge(source, into)
        assert (again.turns, again.casts, again.rewards, again.known) == (0, 0, 0, len(source))
    assert len(list(into.records())) == count
    for leaf in second.leaves():
        assert into.thread(leaf) == second.thread(leaf)
