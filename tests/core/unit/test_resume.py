"""Going on without a new message: forks see byte for byte what the original saw, and cut casts go on where they were cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from cantrip_acp import Call, Cantrip, Circle, Loom, ScriptedCrystal
from cantrip_acp.acp.protocol import ClientAbilities
from cantrip_acp.acp.render.loaded_session import loaded_updates
from cantrip_acp.core.exports import ThreadSelection
from cantrip_acp.core.forking.replay import replay
from cantrip_acp.core.forking.resume import resume_entity
from cantrip_acp.core.history.continuation import find_point
from cantrip_acp.loom import rewards
from cantrip_acp.training.export.selection import Source
from cantrip_acp.types.errors import CrystalError, IntentRequired, LoomError
from cantrip_acp.types.records import Turn
from tests.support.export_looms import GATES, asked, lived, saw
from tests.support.fixtures.core import INSTANT, done, echo, make
from tests.training.unit.test_export_children import delegated
from tests.training.unit.test_export_formats import rows

pytestmark = pytest.mark.anyio


def sent(cantrip: Cantrip) -> list[bytes]:
    return [msgspec.json.encode(messages) for messages in asked(cantrip)]


def queries(loom: Loom, entity_id: str) -> list[Turn]:
    """The turn that each query of an entity led to, in order: of an utterance in parts the first one."""
    return [t for t in loom.turns() if t.entity_id == entity_id and t.role == "crystal" and t.continues is None]


async def check_every_turn(loom: Loom, original: Cantrip, entity_id: str, again: Any) -> int:
    """Resume every turn above a query of an entity's, and compare what is sent; ``again`` makes the cantrip for it."""
    told = dict(zip([t.id for t in queries(loom, entity_id)], sent(original), strict=True))
    checked = 0
    for turn_id, messages in told.items():
        # Each turn from which this query could be made: folds and the call among them.
        above = loom.turn(turn_id).parent_id
        while above is not None:
            turn = loom.turn(above)
            other: Cantrip = again()
            cast = loom.turn(turn_id).cast_id if turn.role == "call" else None
            await other.resume(above, loom=loom, state="none", cast=cast)
            assert sent(other)[0] == messages, f"after {turn.role} {above}"
            checked += 1
            above = turn.parent_id if turn.role == "fold" or turn.continues is not None else None
    return checked


@pytest.mark.parametrize("status", [400, 401])
async def test_every_turn_of_a_long_life(status: int) -> None:
    """Folds, casts that fail, pinned context, pictures, ephemeral gates; the last turns of casts and the call."""
    loom, cantrip = await lived(status)
    entity_id = next(t.entity_id for t in loom.turns() if t.role == "crystal")
    told = {t.id: m for t, m in zip(queries(loom, entity_id), _without_failed(loom, cantrip), strict=True)}

    def again() -> Cantrip:
        return make(
            done("again"),
            gates=GATES,
            call={"system_prompt": "You echo."},
            folding={"trigger_after_turns": 5, "keep_turns": 2},
        )

    checked = 0
    for turn_id, messages in told.items():
        above = loom.turn(turn_id).parent_id
        assert above is not None
        cast = loom.turn(turn_id).cast_id if loom.turn(above).role == "call" else None
        other = again()
        result = await other.resume(above, loom=loom, cast=cast)
        assert result.terminated
        assert sent(other)[0] == messages
        # What an export says that this fork saw is what it saw.
        leaf = loom.leaves()[-1]
        assert msgspec.json.encode([m for _, m, _ in saw(loom, leaf)][-1]) == messages
        checked += 1
    assert checked == len(told) >= 8


def _without_failed(loom: Loom, cantrip: Cantrip) -> list[bytes]:
    """What was sent with each query that came to a turn."""
    failed = {s.intent for s, e in loom.casts() if e is not None and e.error}
    return [m for m, q in zip(sent(cantrip), cantrip.crystal.invocations, strict=True) if q.intent not in failed]  # type: ignore[attr-defined]


async def test_a_delegation_stands_for_its_whole_utterance() -> None:
    loom, crystal = await delegated()
    original: Any = type("Original", (), {"crystal": crystal})
    parent = next(t.entity_id for t in loom.turns() if t.role == "crystal")

    def again() -> Cantrip:
        circle = Circle(gates=["done", "echo", "call_agent"], wards=[{"max_turns": 5}, {"max_depth": 1}])
        again = ScriptedCrystal([done("again")], record_inputs=True)
        return Cantrip(again, Call(system_prompt="You lead."), circle, loom=loom, retry=INSTANT)

    parts = [t for t in loom.turns() if t.entity_id == parent and t.role == "crystal"]
    assert sum(t.continues is not None for t in parts) >= 2
    assert await check_every_turn(loom, original, parent, again) > 3


async def test_a_delegations_child_can_be_resumed() -> None:
    loom, _ = await delegated()
    child = next(t for t in loom.turns() if t.utterance.tool_calls and "child 0" in t.utterance.tool_calls[0].args)
    circle = Circle(gates=["done", "echo"], wards=[{"max_turns": 5}])
    cantrip = Cantrip(ScriptedCrystal([done("x")], record_inputs=True), Call(), circle, loom=loom, retry=INSTANT)
    await cantrip.resume(child.id)
    assert [m.content for m in asked(cantrip)[0] if m.role == "user"] == ["first part"]


async def test_samples_of_one_state_are_a_group() -> None:
    loom = Loom.memory()
    cantrip = make(echo("one"), echo("two"), done("original"), loom=loom, call={"system_prompt": "You echo."})
    result = await cantrip.cast("the task")
    first = queries(loom, result.entity_id)[0]
    cantrips = make(*(done(f"sample {n}") for n in range(3)), loom=loom, call={"system_prompt": "You echo."})
    made = await cantrips.resample(first.id, 3, concurrency=1)
    assert [s.result.result for s in made.samples if s.result] == ["sample 0", "sample 1", "sample 2"]
    assert set(sent(cantrips)) == {sent(cantrip)[1]}
    starts = [start for start, _ in loom.casts()]
    assert [s.intent for s in starts] == ["the task"] * 4
    assert [s.resumes for s in starts] == [msgspec.UNSET, *[result.cast_id] * 3]
    # Nobody said the intent again: not in a transcript, not in an export.
    for sample in made.samples:
        fork = loom.fork_of(sample.entity_id)
        assert fork is not None
        assert (fork.group, fork.resumes) == (made.id, result.cast_id)
    for row in rows(loom, "trl-sft"):
        assert [m["content"] for m in row["messages"] if m["role"] == "user"] == ["the task"]
    (group,) = rewards.groups(loom, alike=True)
    assert (group.id, len(group.leaves), group.intent) == (made.id, 3, "the task")
    for leaf, reward in zip(group.leaves, (1.0, 0.0, 0.5), strict=True):
        loom.annotate_reward(leaf, reward)
    assert [s.rank for s in rewards.ranked(loom, group)[1]] == [1, 3, 2]
    grouped = next(r for r in rows(loom, "art") if r["metadata"]["group"] == made.id)
    assert [t["reward"] for t in grouped["trajectories"]] == [1.0, 0.0, 0.5]
    assert [r["group"] for r in rows(loom, "verifiers") if "group" in r] == [{"id": made.id}] * 3
    assert len(rows(loom, "trl-preference")) == 2
    # Samples go on in the turns that the original had left.
    assert find_point(loom, first.id).spent == 1
    replayed = await replay(cantrip, loom, group.leaves[0])
    assert replayed.divergence is None


async def test_samples_of_the_call_are_first_answers() -> None:
    loom = Loom.memory()
    cantrip = make(done("original"), loom=loom)
    result = await cantrip.cast("the task")
    root = queries(loom, result.entity_id)[0].parent_id
    again = make(done("a"), done("b"), loom=loom)
    made = await again.resample(root, 2, concurrency=1)
    assert set(sent(again)) == {sent(cantrip)[0]}
    (group,) = rewards.groups(loom, alike=True)
    assert (group.id, len(group.leaves)) == (made.id, 2)
    await make(done("x"), loom=loom).cast("another task")
    with pytest.raises(IntentRequired, match=r"casts on different intents begin at turn .*: name the one to continue"):
        await again.resume(root)
    chosen = make(done("x"), loom=loom)
    await chosen.resume(root, cast=result.cast_id)
    assert sent(chosen) == [sent(cantrip)[0]]
    with pytest.raises(LoomError, match="does not contain turn"):
        await again.resume(root, cast="c_nowhere")


async def test_a_cast_that_was_cut_goes_on() -> None:
    loom = Loom.memory()
    cantrip = make(echo("one"), echo("two"), done("whole"), loom=loom, wards=[{"max_turns": 2}])
    async with cantrip.invoke() as entity:
        with pytest.raises(IntentRequired, match="no cast yet that could continue"):
            await entity.resume()
        cut = await entity.cast("the task")
        assert cut.reason == "max_turns"
        result = await entity.resume()
        assert (result.result, result.turns) == ("whole", 1)
        told = asked(cantrip)
        # The messages only grew: nobody said anything in between.
        assert told[2][: len(told[1])] == told[1]
        assert [m.role for m in told[2] if m.role == "user"] == ["user"]
        with pytest.raises(IntentRequired, match=r"ended by itself \(done\)"):
            await entity.resume()
        shown = [u for u in loaded_updates(entity, ClientAbilities()) if "UserMessage" in type(u).__name__]
        assert len(shown) == 1
    assert [messages for _, messages, _ in saw(loom, loom.leaves()[-1])] == told


@pytest.mark.parametrize("status", [400, 401])
async def test_a_query_that_failed_is_made_again(status: int) -> None:
    loom = Loom.memory()
    cantrip = make(done("first"), {"error": {"status": status, "message": "no"}}, done("second"), echo("x"), loom=loom)
    async with cantrip.invoke() as entity:
        await entity.cast("one")
        with pytest.raises(CrystalError):
            await entity.cast("two")
        assert (await entity.resume()).result == "second"
        assert sent(cantrip)[2] == sent(cantrip)[1]
    assert [messages for _, messages, _ in saw(loom, loom.leaves()[-1])] == [asked(cantrip)[0], asked(cantrip)[2]]


@pytest.mark.parametrize("after", [0, 2])
async def test_an_entity_whose_process_ended_goes_on(after: int, tmp_path: Path) -> None:
    path = tmp_path / "x.loom.jsonl"
    with Loom.open(path) as loom:
        cantrip = make(*[echo(str(n)) for n in range(after)], echo("lost"), done("x"), loom=loom)
        result = await cantrip.cast("the task")
        lines = path.read_bytes().splitlines(keepends=True)
    # As if the process had ended after so many turns, before the cast's end.
    kept, turns = [], 0
    for line in lines:
        record = msgspec.json.decode(line)
        if record["type"] in ("turn", "utterance") and record.get("role", "crystal") == "crystal":
            turns += record["type"] == "turn"
            if turns > after or (record["type"] == "utterance" and turns >= after):
                break
        kept.append(line)
    path.write_bytes(b"".join(kept))
    with Loom.open(path) as loom:
        again = make(*[echo()] * after, done("after all"), loom=loom)
        entity = resume_entity(again, loom, result.entity_id).entity
        async with entity:
            assert (await entity.resume()).result == "after all"
        assert sent(again)[0] == sent(cantrip)[after]


async def test_a_resumed_thread_lives_on() -> None:
    """Forks and later casts of a sample see it as it was."""
    loom = Loom.memory()
    cantrip = make(echo("one"), echo("two"), done("x"), loom=loom)
    result = await cantrip.cast("the task")
    turn = queries(loom, result.entity_id)[0]
    again = make(echo("three"), done("y"), done("z"), echo("w"), loom=loom)
    async with await again.fork(turn.id) as entity:
        await entity.resume()
        await entity.cast("and then")
        last = asked(again)[-1]
        assert [m.content for m in last if m.role == "user"] == ["the task", "and then"]
        other = make(done("v"), loom=loom)
        async with await other.fork(entity.last_turn) as fork:
            await fork.cast("more")
            assert asked(other)[0][: len(last)] == last
    for leaf in loom.leaves():
        source = Source(loom, ThreadSelection())
        assert list(source.seen.windows(leaf))
