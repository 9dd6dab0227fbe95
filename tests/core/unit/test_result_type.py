"""Results with a type: the schema of done, what happens to a wrong answer, and what the caller gets."""

from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass
from datetime import date
from typing import Any, Literal, TypedDict

import pytest
from pydantic import BaseModel, Field, field_validator

from cantrip_acp import Cantrip, DefinitionError, NoResult, ScriptedCrystal, events
from tests.support.fixtures.core import done, make


class Finding(BaseModel):
    file: str
    line: int = Field(ge=1)


class Review(BaseModel):
    """What a reviewer says."""

    verdict: Literal["accept", "reject"]
    findings: list[Finding] = []

    @field_validator("findings")
    @classmethod
    def check(cls, findings: list[Finding]) -> list[Finding]:
        if len(findings) > 2:
            raise ValueError("name at most two findings")
        return findings


class Tree(BaseModel):
    name: str
    parts: list[Tree] = []


@dataclass
class Day:
    day: date
    hours: float


class Town(TypedDict):
    name: str
    people: int


GOOD = {"verdict": "reject", "findings": [{"file": "a.py", "line": 3}]}


def observed(cantrip: Cantrip[Any]) -> list[Any]:
    return [record.result for turn in cantrip.loom.turns() for record in turn.observation.results]


def test_a_wrong_answer_is_asked_for_again_and_the_right_one_has_the_type() -> None:
    three = [{"file": "a.py", "line": n} for n in (1, 2, 3)]
    script = [
        done("reject"),
        {"content": "I reject it."},
        done({"verdict": "maybe"}),
        done({"verdict": "reject", "findings": three}),
        done(GOOD),
    ]
    cantrip = make(*script, result_type=Review)
    result = cantrip.cast_sync("Review it.")
    assert result.result == Review(verdict="reject", findings=[Finding(file="a.py", line=3)])
    assert (result.turns, result.reason) == (5, "done")
    first, second, third, last = observed(cantrip)
    assert "answer: 'reject' is not of type 'object'" in first
    assert "answer.verdict" in second
    assert third == "the answer is not a valid Review: findings: Value error, name at most two findings"
    assert last == GOOD


def test_an_answer_in_a_text_of_json_is_taken() -> None:
    cantrip = make(done('{"verdict": "accept"}'), result_type=Review)
    assert cantrip.cast_sync("Review it.").result == Review(verdict="accept")
    assert observed(cantrip) == [{"verdict": "accept"}]


def test_the_crystal_sees_the_schema_and_the_loom_has_the_data() -> None:
    cantrip = make(done(GOOD), result_type=Review)
    assert cantrip.cast_sync("Review it.").record()["result"] == GOOD
    crystal = cantrip.crystal
    assert isinstance(crystal, ScriptedCrystal)
    [tool] = [tool for tool in crystal.invocations[0].tools if tool.name == "done"]
    answer = tool.parameters["properties"]["answer"]
    assert answer["properties"]["findings"]["items"] == {"$ref": "#/$defs/Finding"}
    assert tool.parameters["$defs"]["Finding"]["properties"]["line"]["minimum"] == 1
    assert "JSON Schema" not in tool.description
    [(_, end)] = cantrip.loom.casts()
    assert end is not None
    assert end.result == GOOD


def test_a_cast_that_ends_without_a_result_says_why() -> None:
    cantrip = make(done(1), done(2), result_type=Review, wards=[{"max_turns": 2}])
    with pytest.raises(
        NoResult, match=r"ended without a Review \(max_turns, 2 turns\): Stopped by max_turns"
    ) as caught:
        cantrip.cast_sync("Review it.")
    assert (caught.value.cast.reason, caught.value.cast.result) == ("max_turns", None)


@pytest.mark.parametrize(
    ("kind", "answer", "value"),
    [
        (int, 4, 4),
        (bool, True, True),
        (list[Finding], [{"file": "a", "line": 1}], [Finding(file="a", line=1)]),
        (dict[str, float], {"a": 1}, {"a": 1.0}),
        (Day, {"day": "2026-01-02", "hours": 1}, Day(date(2026, 1, 2), 1.0)),
        (Town, {"name": "Turin", "people": 3}, {"name": "Turin", "people": 3}),
        (Tree, {"name": "a", "parts": [{"name": "b"}]}, Tree(name="a", parts=[Tree(name="b")])),
        (int | None, None, None),
        (tuple[int, str], [1, "a"], (1, "a")),
        (str, "words", "words"),
    ],
)
def test_any_type_with_a_schema_will_do(kind: Any, answer: Any, value: Any) -> None:
    result = make(done(answer), result_type=kind).cast_sync("Answer.")
    assert result.result == value
    assert type(result.result) is type(value)


def test_words_end_a_cast_only_where_a_text_is_wanted() -> None:
    assert make({"content": "hello"}, result_type=str).cast_sync("Greet.").result == "hello"
    assert make({"content": "4"}, done(4), result_type=int).cast_sync("Count.").turns == 2


def test_a_cast_may_have_a_type_of_its_own() -> None:
    cantrip = make(done(4), done("four"), done(GOOD))
    assert cantrip.cast_sync("Count.", result_type=int).result == 4
    assert cantrip.cast_sync("Say.").result == "four"
    assert cantrip.with_result_type(Review).cast_sync("Review.").result.verdict == "reject"
    assert cantrip.result_type is None


def test_a_type_can_be_changed_and_removed() -> None:
    plain = make(done(4))
    typed = plain.replace(result_type=Review)
    assert typed.id != plain.id
    assert typed.replace(name="x").id == typed.id
    assert typed.replace(result_type=int).circle.gates["done"].properties["answer"]["type"] == "integer"
    assert typed.replace(result_type=None).id == plain.id
    assert not typed.replace(result_type=None).require_done
    assert pickle.loads(pickle.dumps(typed.circle)).record() == typed.circle.record()
    assert copy.deepcopy(typed) is typed


def test_in_a_medium_that_describes_its_gates_in_words_the_schema_is_there() -> None:
    for medium in ("bash", "code"):
        cantrip = Cantrip(make().crystal, medium=medium, max_turns=3, result_type=Review)
        assert '"enum": ["accept", "reject"]' in str(cantrip.circle.presentation)
    assert "with a value that fits its schema" in str(cantrip.circle.presentation)
    assert "with any JSON value" in str(cantrip.replace(result_type=None).circle.presentation)


async def test_the_type_is_that_of_the_parent_and_not_of_its_children(anyio_backend: str) -> None:
    crystal = ScriptedCrystal(
        [{"tool_calls": [{"gate": "call_agent", "args": {"intent": "Look."}}]}, done(GOOD)],
        children=[[done("free words")]],
    )
    cantrip = Cantrip(crystal, gates=["call_agent"], max_turns=5, result_type=Review)
    assert (await cantrip.cast("Review it.")).result.verdict == "reject"
    assert "free words" in observed(cantrip)


async def test_an_entity_a_fork_and_a_stream_give_values_too(anyio_backend: str) -> None:
    cantrip = make(done(GOOD), done(GOOD), done(GOOD), done(GOOD), result_type=Review)
    async with cantrip.invoke() as entity:
        assert (await entity.cast("Review it.")).result.verdict == "reject"
        async with await entity.fork() as fork:
            assert (await fork.cast("Again.")).result.findings[0].line == 3
    async with cantrip.cast_stream("Review it.") as stream:
        ended = [event async for event in stream if isinstance(event, events.CastEnded)]
    assert ended[0].record.result == GOOD
    assert stream.result.result.verdict == "reject"
    group = await cantrip.fork_group(next(cantrip.loom.turns()).id, "Once more.", samples=1)
    assert group.samples[0].result is not None
    assert group.samples[0].result.result.verdict == "reject"


async def test_leaving_a_stream_early_raises_nothing(anyio_backend: str) -> None:
    cantrip = make(done(GOOD), result_type=Review)
    async with cantrip.cast_stream("Review it.") as stream:
        async for _ in stream:
            break


def test_a_type_without_a_schema_is_refused() -> None:
    class Opaque:
        pass

    with pytest.raises(DefinitionError, match=r"result_type: .*Opaque.* has no JSON Schema"):
        make(done(1), result_type=Opaque)
