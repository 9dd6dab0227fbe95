"""A circle's scoring function: when it is asked, what becomes of its answer, and that it never harms a cast (§6.4)."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

from cantrip_acp import Cantrip, Circle, Loom, Scorer, ScriptedCrystal, Thread
from cantrip_acp.loom import rewards
from cantrip_acp.types.errors import DefinitionError, LoomWriteError
from cantrip_acp.types.records import Turn
from tests.support.fixtures.core import done, echo

pytestmark = pytest.mark.anyio


def cantrip(score: Any, *responses: Any, turns: int = 5) -> Cantrip:
    circle = Circle(gates=["done", "echo"], wards=[{"max_turns": turns}], score=score)
    return Cantrip(ScriptedCrystal(list(responses) or [echo("a"), done("x")]), circle=circle)


async def test_a_plain_function_is_asked_after_each_turn() -> None:
    seen: list[Turn] = []

    def length(turn: Turn) -> float:
        seen.append(turn)
        return len(seen) / 2

    spell = cantrip(length)
    result = await spell.cast("go")
    assert result.result == "x"
    given = rewards.assignments(spell.loom)
    assert [(r.turn_id, r.reward, r.kind, r.note) for r in given] == [
        (seen[0].id, 0.5, "shaped", None),
        (seen[1].id, 1.0, "shaped", None),
    ]
    assert all("length" in r.by and r.timestamp for r in given)
    assert [t.reward for t in spell.loom.turns() if t.role == "crystal"] == [0.5, 1.0]
    # Steps add up.
    assert rewards.of_thread(spell.loom, seen[1].id) == 1.5


async def test_a_cast_is_graded_once_it_has_ended() -> None:
    async def rubric(thread: Thread) -> tuple[float, str]:
        return float(thread.state == "terminated"), f"{len(thread.acted)} turns"

    spell = cantrip(Scorer(rubric, name="rubric", at="cast"))
    await spell.cast("go")
    (given,) = rewards.assignments(spell.loom)
    assert (given.turn_id, given.reward, given.by, given.note) == (spell.loom.leaves()[0], 1.0, "rubric", "2 turns")
    assert given.grade is True
    assert rewards.of_thread(spell.loom, given.turn_id) == 1.0


async def test_a_truncated_cast_is_graded_too() -> None:
    spell = cantrip(Scorer(lambda thread: {"truncated": -1}.get(thread.state), at="cast"), echo("a"), turns=1)
    assert (await spell.cast("go")).reason == "max_turns"
    assert [r.reward for r in rewards.assignments(spell.loom)] == [-1.0]


async def test_no_answer_is_no_reward() -> None:
    spell = cantrip(lambda turn: None)
    await spell.cast("go")
    assert rewards.assignments(spell.loom) == []


def boom(subject: object) -> float:
    raise ValueError("no\x1b[31m rubric")


def leave(subject: object) -> float:
    raise SystemExit(3)


@pytest.mark.parametrize(
    ("score", "why"),
    [
        (boom, "ValueError: no"),
        (leave, "SystemExit: 3"),
        (lambda turn: math.nan, "a scoring function must return a finite number, not nan"),
        (lambda turn: -math.inf, "a scoring function must return a finite number, not -inf"),
        (lambda turn: True, "a scoring function must return a number, not bool"),
        (lambda turn: "1.0", "a scoring function must return a number, not str"),
        (lambda turn: {"reward": 1}, "a scoring function must return a number, not dict"),
        (lambda turn: 10**400, "OverflowError"),
        (lambda turn: 1 / 0, "ZeroDivisionError"),
    ],
)
async def test_a_scorer_that_fails_is_told_of_and_harms_nothing(
    score: Callable[[Any], Any], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    for at in ("turn", "cast"):
        spell = cantrip(Scorer(score, name="bad", at=at))
        with caplog.at_level(logging.WARNING, "cantrip_acp.core.scoring"):
            assert (await spell.cast("go")).result == "x"
        given = rewards.assignments(spell.loom)
        assert len(given) == (2 if at == "turn" else 1)
        assert all(r.reward is None and r.by == "bad" and why in (r.note or "") for r in given)
        assert all(t.reward is None for t in spell.loom.turns())
        assert why in caplog.text


async def test_numbers_of_other_kinds_are_taken() -> None:
    spell = cantrip(lambda turn: Decimal("0.25"))
    await spell.cast("go")
    assert {r.reward for r in rewards.assignments(spell.loom)} == {0.25}


async def test_a_slow_scorer_is_asked_no_more() -> None:
    asked: list[str] = []

    def slow(turn: Turn) -> float:
        asked.append(turn.id)
        time.sleep(1.5)
        return 1

    spell = cantrip(Scorer(slow, name="slow", timeout_s=0.1), echo("a"), echo("b"), done("x"))
    assert (await spell.cast("go")).result == "x"
    assert len(asked) == 1
    (given,) = rewards.assignments(spell.loom)
    assert given.reward is None
    assert "took longer than 0.1 s" in (given.note or "")


async def test_the_circle_says_who_scores_and_ids_without_one_stay() -> None:
    plain = Circle(gates=["done"], wards=[{"max_turns": 2}])
    scored = Circle(gates=["done"], wards=[{"max_turns": 2}], score=Scorer(boom, name="rubric", at="cast"))
    assert "score" not in plain.record()
    assert scored.record()["score"] == {"name": "rubric", "at": "cast"}
    crystal = ScriptedCrystal([])
    assert Cantrip(crystal, circle=plain).id != Cantrip(crystal, circle=scored).id


async def test_a_replay_asks_no_scorer() -> None:
    from cantrip_acp.core.forking.replay import replay

    asked: list[object] = []
    spell = cantrip(lambda turn: asked.append(turn))
    await spell.cast("go")
    before = len(asked)
    told = await replay(spell, spell.loom, spell.loom.leaves()[-1])
    assert told.divergence is None
    assert len(asked) == before == 2


async def test_a_loom_that_cannot_be_written_ends_the_cast() -> None:
    class Full(Loom):
        def append(self, record: Any, body: bytes | None = None) -> Any:
            if type(record).__name__ == "RewardRecord":
                raise LoomWriteError("no space left")
            return super().append(record, body)

    spell = cantrip(lambda turn: 1)
    full = Full(Loom.memory()._store)
    async with spell.invoke(loom=full) as entity:
        with pytest.raises(LoomWriteError):
            await entity.cast("go")


@pytest.mark.parametrize("score", ["score.py", 3, Circle])
def test_what_is_no_scorer(score: Any) -> None:
    if score is Circle:
        with pytest.raises(DefinitionError, match="at a turn or at a cast's end"):
            Scorer(score, at="never")  # type: ignore[arg-type]
        return
    with pytest.raises(DefinitionError, match="takes a function"):
        Circle(score=score)
