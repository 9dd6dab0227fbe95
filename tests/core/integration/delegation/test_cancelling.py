"""The tests of `tests/core/unit/delegation/test_cancelling.py` that start processes."""

from __future__ import annotations

from collections import Counter

import anyio
import psutil
import pytest

from cantrip_acp.types.events import ChildEvent, CommandOutput
from tests.core.unit.delegation.test_cancelling import SLOW
from tests.support.scripted_children import ends, parent


async def test_done_ends_children_that_still_run() -> None:
    spell = parent(
        {
            "code": "import threading, time\nthreading.Thread(target=lambda: call_agent('slow'), daemon=True).start()\n"
            "time.sleep(2)\ndone('first')"
        },
        medium="code",
        children=[[SLOW]],
    )
    assert (await spell.cast("go")).result == "first"
    assert [e.reason for e in ends(spell)] == ["parent_terminated", "done"]


@pytest.mark.parametrize("medium", ["code", "bash"])
async def test_processes_of_children_end_with_their_parent(medium: str) -> None:
    """Also those that no signal ends but the last. Nobody waits for them: they would run for ever."""
    stubborn = {
        "code": "print('begun')\n"
        "while True:\n    try:\n        sum(range(10**8))\n    except BaseException:\n        pass",
        "bash": "trap '' INT TERM HUP; echo begun; while :; do sleep 0.01; done",
    }[medium]
    batch = {"code": "call_agent_batch(['a', 'b'])", "bash": "call_agent_batch a b"}[medium]
    spell = parent({medium: batch}, medium=medium, children=[[{medium: stubborn}], [{medium: stubborn}]])
    before = set(psutil.Process().children(recursive=True))
    begun = set[str]()
    with anyio.fail_after(60):
        async with spell.invoke() as entity, entity.stream("go") as events:
            async for event in events:
                if isinstance(event, ChildEvent) and isinstance(event.inner, CommandOutput):
                    begun.add(event.entity_id)
                if len(begun) == 2:
                    entity.cancel()
    assert len(begun) == 2
    left = [p for p in psutil.Process().children(recursive=True) if p not in before and p.status() != "zombie"]
    assert not [p for p in left if "bwrap" in p.name()]
    assert Counter(e.reason for e in ends(spell)) == {"parent_terminated": 2, "cancelled": 1}
