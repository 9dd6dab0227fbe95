"""What an export tells is what the crystal was sent: compared with the queries that a crystal kept, message by message."""

from __future__ import annotations

from contextlib import suppress

import pytest

from cantrip_acp import Loom
from cantrip_acp.core.forking.resume import resume_entity
from cantrip_acp.core.history.recorded_circle import RecordedCircle
from cantrip_acp.loom.stores.rows import encoded
from cantrip_acp.training.export.selection import Source
from cantrip_acp.types.errors import CrystalError
from cantrip_acp.types.records import CantripRecord, Turn
from tests.support.export_looms import GATES, asked, gate, lived, saw
from tests.support.fixtures.core import done, echo, make

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("status", [400, 401])
async def test_every_query_of_a_long_life_is_told_as_it_was(status: int) -> None:
    loom, cantrip = await lived(status)
    queries = asked(cantrip)
    told = [messages for _, messages, _ in saw(loom, loom.leaves()[-1])]
    # The query that failed left no turn; its intent stood in the context of those that came after it, unless it was the
    # intent that the provider did not take.
    del queries[4]
    assert told == queries
    assert any(m.content == "an intent that fails" for m in told[-1] + told[4]) is (status == 401)
    assert any("[ephemeral:passing]" in (m.content or "") for messages in told for m in messages)


async def test_windows_part_at_folds_and_every_turn_is_said_once() -> None:
    loom, _ = await lived()
    windows = list(Source(loom).seen.windows(loom.leaves()[-1]))
    assert windows[0].begun == "start"
    assert {w.begun for w in windows[1:]} == {"fold"}
    said = [u.turn.id for w in windows for u in w.uttered]
    assert said == [t.id for t in loom.turns() if t.role == "crystal"]
    for window in windows:
        assert window.messages[-1].role == "assistant"
        assert [t.name for t in window.tools] == ["done", "echo", "note", "passing"]


@pytest.mark.parametrize("window", [9_000, 12_000])
async def test_what_was_cut_to_fit_is_told_as_it_was_cut(window: int) -> None:
    loom = Loom.memory()
    cantrip = make(
        *(echo("x" * 12_000) for _ in range(6)),
        *(done() for _ in range(6)),
        loom=loom,
        context_window=window,
        folding={"keep_turns": 3},
        usage={"prompt_tokens": 50, "completion_tokens": 3_000},
    )
    await cantrip.cast("go")
    told = list(saw(loom, loom.leaves()[-1]))
    # A query that was refused as too long was asked again with less, and has its response used up.
    queries = iter(asked(cantrip))
    assert all(any(messages == query for query in queries) for _, messages, _ in told)
    assert len(told) > 3
    assert "cut" in {w.begun for _, _, w in told}


async def test_a_fork_with_another_call_saw_another_head() -> None:
    loom = Loom.memory()
    first = make(echo("a"), done("b"), loom=loom, gates=GATES, call={"system_prompt": "One."})
    await first.cast("go")
    origin = next(t.id for t in loom.turns() if t.role == "crystal")
    second = make(gate("note", text="n"), done("c"), gates=GATES, call={"system_prompt": "Two."})
    async with await second.fork(origin, loom=loom, state="none") as entity:
        await entity.cast("and on")
        leaf = entity.last_turn
    told = list(saw(loom, leaf))
    assert [m for _, m, _ in told][1:] == asked(second)
    assert [w.begun for _, _, w in told] == ["start", "fork", "fork"]


@pytest.mark.parametrize("stopped", [False, True])
async def test_an_entity_whose_recipe_was_edited_saw_another_head(stopped: bool) -> None:
    loom = Loom.memory()
    first = make(
        *(echo(str(n)) for n in range(4)),
        *([{"error": {"status": 500, "message": "no"}}] * 9 if stopped else [done("b")]),
        loom=loom,
        gates=GATES,
        call={"system_prompt": "French."},
        folding={"trigger_after_turns": 3, "keep_turns": 1},
    )
    async with first.invoke(entity_id="e_one") as entity:
        with suppress(CrystalError):
            await entity.cast("go")
    script = [{}] * 5
    second = make(
        *script, gate("note", text="n"), done("c"), gates=GATES[:3], call={"system_prompt": "German."}, loom=loom
    )
    async with resume_entity(second, loom, "e_one").entity as entity:
        await entity.cast("and on")
        leaf = entity.last_turn
    told = [each for each in saw(loom, leaf) if each[2].cantrip_id == second.id]
    assert [messages for _, messages, _ in told] == asked(second)
    assert [messages[0].content for _, messages, _ in told] == ["German."] * 2
    assert [w.begun for _, _, w in told] == ["cantrip"] * 2
    assert [t.name for t in told[0][2].tools] == ["done", "echo", "note"]
    assert [messages for _, messages, _ in saw(loom, leaf)][: -len(told)] == asked(first)[: 4 if stopped else 5]


async def test_a_fork_of_a_fork_of_the_same_cantrip_goes_on_in_one_window() -> None:
    loom = Loom.memory()
    cantrip = make(*(echo(str(n)) for n in range(2)), done(0), done(1), loom=loom, gates=GATES)
    await cantrip.cast("go")
    for n in range(2):
        again = make(echo(f"again {n}"), done(n), gates=GATES)
        async with await again.fork(loom.leaves()[-1], loom=loom, state="none") as entity:
            await entity.cast(f"more {n}")
    windows = list(Source(loom).seen.windows(loom.leaves()[-1]))
    assert len(windows) == 1
    assert len(windows[0].uttered) == 7
    assert windows[0].messages[: windows[0].uttered[-1].at] == asked(again)[-1]


async def test_an_older_loom_is_told_in_this_versions_words() -> None:
    loom, cantrip = await lived()
    old = Loom.memory()
    for record in loom.records():
        old.append(
            CantripRecord(record.id, record.call, record.circle) if isinstance(record, CantripRecord) else record
        )
    source = Source(old)
    window = next(source.seen.windows(old.leaves()[-1]))
    assert window.tools == cantrip.circle.tools
    assert source.seen.rebuilt == {cantrip.id}


async def test_damage_and_foreign_mediums_leave_a_thread_out_and_say_why() -> None:
    loom, _ = await lived()
    broken = Loom.memory()
    records = list(loom.records())
    gone = next(r.id for r in records if isinstance(r, Turn) and r.role == "crystal")
    for record in records:
        if isinstance(record, Turn) and record.id == gone:
            continue
        with suppress(Exception):
            broken._tree.add(broken._store.append(record, encoded(record)), record)
    source = Source(broken)
    assert list(source.episodes(marked=True)) == []
    assert source.report.left_out == {"an earlier turn is not in this loom (is the loom damaged?)": 1}
    record = CantripRecord("c", {}, {"medium": "never-heard-of"})
    with pytest.raises(Exception, match="'never-heard-of' belongs to a package that is not installed"):
        RecordedCircle(record)


async def test_a_cast_that_never_came_to_a_turn_alone() -> None:
    loom = Loom.memory()
    cantrip = make({"error": {"status": 400, "message": "no"}}, loom=loom)
    with suppress(CrystalError):
        await cantrip.cast("go")
    assert list(Source(loom).episodes(marked=True)) == []
