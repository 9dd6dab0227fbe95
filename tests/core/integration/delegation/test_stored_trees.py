"""A tree of entities in every kind of store, opened again; and after a crash in the middle of a child."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from cantrip_acp import Loom
from cantrip_acp.core.forking.resume import resume_entity
from cantrip_acp.types.records import Turn
from tests.support import processes
from tests.support.scripted_children import call, calls, done, parent

TWO = calls(("echo", {"text": "a"}), ("call_agent", {"intent": "one"}), ("call_agent", {"intent": "two"}))


@pytest.mark.parametrize("address", ["{}/a.loom.jsonl", "sqlite:{}/a.db"])
async def test_a_tree_is_the_same_when_it_is_opened_again(tmp_path: Path, address: str) -> None:
    where = address.format(tmp_path)
    with Loom.open(where) as loom:
        spell = parent(TWO, done(), loom=loom, children=[[call("echo", text="b"), done()], [done()]])
        await spell.cast("go")
        turns = list(loom.turns())
        views = [(loom.path(t.id), loom.own_path(t.id), loom.utterance_ids(t.id), loom.children(t.id)) for t in turns]
        leaves = loom.leaves()
    with Loom.open(where) as loom:
        assert list(loom.turns()) == turns
        assert [
            (loom.path(t.id), loom.own_path(t.id), loom.utterance_ids(t.id), loom.children(t.id)) for t in turns
        ] == views
        assert loom.leaves() == leaves
        assert loom.children_until(turns[-1].id)[0] == 2
        assert loom.utterance_ids(turns[-1].id)[0] == tuple(
            t.id for t in turns if t.id in loom.utterance_ids(turns[-1].id)[0]
        )
        # A second cast of the same cantrip begins at the root, and not at a child's.
        again = parent(done(), loom=loom)
        await again.cast("once more")
        assert [t.role for t in loom.thread(loom.leaves()[-1])] == ["call", "crystal"]


CRASHING = """
import sys, anyio
sys.path.insert(0, {root!r})
from cantrip_acp import Loom
from tests.support.scripted_children import call, calls, done, parent
child = {{"responses": [call("echo", text="b"), {{"delay_ms": 60000, "content": "never"}}]}}
spell = parent(calls(("echo", {{"text": "a"}}), ("call_agent", {{"intent": "one"}})), done(),
               loom=Loom.open({path!r}), children=[child])
anyio.run(spell.cast, "go")
"""


async def test_a_crash_leaves_no_reference_to_a_turn_that_was_never_written(tmp_path: Path) -> None:
    path = tmp_path / "a.loom.jsonl"
    program = CRASHING.format(root=os.getcwd(), path=str(path))
    with processes.Popen([sys.executable, "-c", program]) as process:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and (not path.exists() or path.read_text().count('"type":"turn"') < 4):
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    with Loom.open(path) as loom:
        turns = list(loom.turns())
        assert not loom.problems
        assert [(t.role, t.gate_calls) for t in turns] == [
            ("call", ()),
            ("crystal", ("echo", "call_agent")),
            ("call", ()),
            ("crystal", ("echo",)),
            ("crystal", ()),
        ]
        assert (turns[4].continues, turns[4].parent_id, turns[4].truncated) == (turns[1].id, turns[1].id, True)
        known: set[str] = set()
        for record in loom.records():
            if isinstance(record, Turn):
                assert record.parent_id is None or record.parent_id in known
                known.add(record.id)
        # The entity goes on from where it was, and is told what is not known.
        spell = parent(done(), done("on"), loom=loom)
        again = resume_entity(spell, loom, turns[1].entity_id).entity
        async with again:
            shown = [m.content or "" for m in again.context.messages]
            assert (
                shown[-1]
                == "interrupted: the process ended while the child was at work; what it had done is in the loom"
            )
            assert (await again.cast("go on")).result == "on"
