"""The tests of `tests/unit/delegation/test_cancelling.py` that start processes."""

from __future__ import annotations

from tests.support.scripted_children import ends, parent
from tests.unit.delegation.test_cancelling import SLOW


async def test_done_ends_children_that_still_run() -> None:
    spell = parent(
        {
            "code": "import threading, time\nthreading.Thread(target=lambda: call_agent('slow'), daemon=True).start()\n"
            "time.sleep(0.3)\ndone('first')"
        },
        medium="code",
        children=[[SLOW]],
    )
    assert (await spell.cast("go")).result == "first"
    assert [e.reason for e in ends(spell)] == ["parent_terminated", "done"]
