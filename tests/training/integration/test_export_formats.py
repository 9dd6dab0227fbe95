"""The tests of `tests/training/unit/test_export_formats.py` that start processes."""

from __future__ import annotations

import pytest

from cantrip_acp import Loom
from tests.support.export_looms import GATES
from tests.support.fixtures.core import done, echo, make
from tests.support.loom_stores import Place
from tests.training.unit.test_export_formats import ALL, rows

pytestmark = pytest.mark.anyio


async def test_every_store_gives_the_same_rows(place: Place) -> None:
    loom = place.open()
    cantrip = make(echo("a"), done("b"), echo("c"), done("d"), loom=loom, gates=GATES)
    for intent in ("one", "two"):
        await cantrip.cast(intent)
        loom.annotate_reward(loom.leaves()[-1], float(len(intent)))
    before = {name: rows(loom, name) for name in ALL}
    loom = place.again(loom)
    assert {name: rows(loom, name) for name in ALL} == before
    assert all(before[name] for name in ALL if name != "trl-preference")
    copy = loom.copy_to(Loom.memory()._store)
    assert {name: rows(copy, name) for name in ALL} == before
