"""The tests of `tests/unit/delegation/test_cancelling.py` that start processes."""

from __future__ import annotations

from collections import Counter

import psutil
import pytest

from tests.support.scripted_children import ends, parent
from tests.unit.delegation.test_cancelling import SLOW, cancelled_after


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


@pytest.mark.timing
@pytest.mark.parametrize("medium", ["code", "bash"])
async def test_processes_of_children_end_at_once(medium: str) -> None:
    stubborn = {
        "code": "while True:\n    try:\n        sum(range(10**8))\n    except BaseException:\n        pass",
        "bash": "trap '' INT TERM HUP; while :; do sleep 0.01; done",
    }[medium]
    batch = {"code": "call_agent_batch(['a', 'b'])", "bash": "call_agent_batch a b"}[medium]
    spell = parent({medium: batch}, medium=medium, children=[[{medium: stubborn}], [{medium: stubborn}]])
    before = set(psutil.Process().children(recursive=True))
    took = await cancelled_after(spell, 2.0)
    left = [p for p in psutil.Process().children(recursive=True) if p not in before and p.status() != "zombie"]
    assert not [p for p in left if "bwrap" in p.name()]
    assert Counter(e.reason for e in ends(spell)) == {"parent_terminated": 2, "cancelled": 1}
    assert took < 0.3
