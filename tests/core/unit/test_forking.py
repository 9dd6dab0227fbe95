"""Forks of threads: a new entity goes on from any turn, and the original stays as it is (LOOM-4)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from cantrip_acp import Call, Cantrip, Circle, Loom, ScriptedCrystal
from cantrip_acp.types.context_block import ContextBlock
from cantrip_acp.types.errors import DefinitionError, LoomError, TurnNotFound
from cantrip_acp.types.messages import Attachment
from cantrip_acp.types.records import ForkRecord
from tests.support.fixtures.core import INSTANT, done, echo, make


def forks(loom: Loom) -> list[ForkRecord]:
    return [r for r in loom.records() if isinstance(r, ForkRecord)]


def acted(loom: Loom) -> list[Any]:
    return [t for t in loom.turns() if t.role == "crystal"]


async def test_a_fork_sees_the_path_to_its_turn_and_nothing_after() -> None:
    cantrip = make(echo("ALPHA"), echo("BRAVO"), done("first"))
    await cantrip.cast("set out", context=[ContextBlock("a map", title="map")])
    before = [bytes(str(r), "utf-8") for r in cantrip.loom.records()]
    origin = acted(cantrip.loom)[0]

    other = ScriptedCrystal([done("second")], record_inputs=True)
    entity = await cantrip.with_crystal(other).fork(origin.id)
    async with entity:
        result = await entity.cast("another way")
    assert result.result == "second"
    seen = other.invocations[0].messages
    text = "\n".join(m.content or "" for m in seen)
    assert "ALPHA" in text
    assert "a map" in text
    assert "BRAVO" not in text
    assert [m.content for m in seen if m.kind == "intent"] == ["set out", "another way"]
    # The new thread hangs on the turn, the old one is there word for word.
    new = acted(cantrip.loom)[-1]
    assert (new.parent_id, new.entity_id, new.sequence) == (origin.id, entity.id, 1)
    assert [bytes(str(r), "utf-8") for r in cantrip.loom.records()][: len(before)] == before
    assert [t.result for t in cantrip.loom.threads()] == ["first", "second"]
    (record,) = forks(cantrip.loom)
    assert (record.from_turn, record.entity_id, record.strategy) == (origin.id, entity.id, "none")


async def test_a_fork_sees_exactly_what_the_original_saw(tmp_path: Path) -> None:
    """From a file, by another process's objects: the messages of the next query are the same, byte for byte."""
    path = tmp_path / "x.loom.jsonl"
    script = [
        echo("one", thinking="hm"),
        {"content": "no gate"},
        {"tool_calls": [{"gate": "nope", "args": {}}]},
        echo("two"),
        done(),
    ]
    picture = ContextBlock(title="p.png", attachment=Attachment.of("image/png", "iVBORw0KGgo=", None, "p.png"))
    with Loom.open(path) as loom:
        cantrip = make(*script, loom=loom, call=Call(system_prompt="You are.", require_done_tool=True))
        await cantrip.cast("go", context=[ContextBlock("pinned"), picture])
        original: Any = cantrip.crystal
    for place in range(4):
        with Loom.open(path) as loom:
            again = make(done(), loom=loom, call=Call(system_prompt="You are.", require_done_tool=True))
            origin = acted(loom)[place]
            async with await again.fork(origin.id) as entity:
                await entity.cast("next")
            crystal: Any = again.crystal
            assert list(crystal.invocations[0].messages)[:-1] == list(original.invocations[place + 1].messages)


async def test_a_fork_of_a_fork_and_many_at_once() -> None:
    cantrip = make(echo("root"), done("trunk"), loom=Loom.memory())
    await cantrip.cast("go")
    origin = acted(cantrip.loom)[0].id
    results: dict[int, Any] = {}

    async def branch(number: int) -> None:
        crystal = ScriptedCrystal([echo(f"branch {number}"), done(number)])
        async with await cantrip.with_crystal(crystal).fork(origin) as entity:
            results[number] = (await entity.cast(f"branch {number}")).result

    async with anyio.create_task_group() as group:
        for number in range(12):
            group.start_soon(branch, number)
    assert results == {n: n for n in range(12)}
    assert len(cantrip.loom.children(origin)) == 13
    twig = next(t for t in acted(cantrip.loom) if "branch 7" in str(t.observation))
    crystal = ScriptedCrystal([done("twig")], record_inputs=True)
    async with await cantrip.with_crystal(crystal).fork(twig.id) as entity:
        assert (await entity.cast("on")).result == "twig"
    text = str(crystal.invocations[0].messages)
    assert "root" in text
    assert "branch 7" in text
    assert "branch 8" not in text


async def test_a_fork_of_a_living_entity_leaves_it_alone() -> None:
    cantrip = make(echo("one"), done(1), done("forked"), done("original"))
    async with cantrip.invoke() as entity:
        await entity.cast("first")
        async with await entity.fork() as twin:
            assert (await twin.cast("second")).result == "forked"
        assert (await entity.cast("second")).result == "original"
    assert len(cantrip.loom.threads()) == 2


async def test_another_call_and_circle() -> None:
    cantrip = make(echo("one"), done(1))
    await cantrip.cast("first")
    other = Cantrip(
        ScriptedCrystal([done("x")], record_inputs=True),
        {"system_prompt": "Somebody else."},
        Circle(gates=["done"], wards=[{"max_turns": 1}]),
        loom=cantrip.loom,
        retry=INSTANT,
    )
    async with await other.fork(acted(cantrip.loom)[0].id) as entity:
        assert (await entity.cast("on")).result == "x"
    crystal: Any = other.crystal
    assert crystal.invocations[0].messages[0].content == "Somebody else."
    last = acted(cantrip.loom)[-1]
    record = cantrip.loom.cantrip(last.cantrip_id)
    assert record is not None
    assert record.call["system_prompt"] == "Somebody else."


async def test_a_folded_session_forks_as_it_was_seen() -> None:
    cantrip = make(*(echo(f"word {n}") for n in range(8)), done(), folding={"trigger_after_turns": 3, "keep_turns": 1},
                   wards=[{"max_turns": 20}])  # fmt: skip
    await cantrip.cast("go")
    original: Any = cantrip.crystal
    turns = acted(cantrip.loom)
    for place in (0, 2, 3, 5, 7):
        crystal = ScriptedCrystal([done()], record_inputs=True)
        async with await cantrip.with_crystal(crystal).fork(turns[place].id) as entity:
            # What folds before the next query is the same, since the fork counts what it remembers.
            await entity.cast("next")
        mine = [m for m in crystal.invocations[0].messages if m.content != "next"]
        assert mine == list(original.invocations[place + 1].messages)


async def test_what_is_not_there_cannot_be_forked(tmp_path: Path) -> None:
    cantrip = make(echo("one"), echo("two"), done(1))
    await cantrip.cast("first")
    with pytest.raises(TurnNotFound):
        await cantrip.fork("t_nowhere")
    with pytest.raises(DefinitionError, match="auto, snapshot"):
        await cantrip.fork(acted(cantrip.loom)[0].id, state="magic")  # type: ignore[arg-type]
    path = tmp_path / "x.loom.jsonl"
    with Loom.open(path) as loom:
        await make(echo("one"), echo("two"), done(1), loom=loom).cast("go")
    lines = path.read_bytes().splitlines(keepends=True)
    lost = next(i for i, line in enumerate(lines) if b'"one"' in line and b'"turn"' in line)
    lines[lost] = b"garbage\n"
    path.write_bytes(b"".join(lines))
    with Loom.open(path) as loom:
        assert loom.problems
        with pytest.raises(LoomError, match="is not in this loom"):
            await make(done(), loom=loom).fork(acted(loom)[-1].id)
