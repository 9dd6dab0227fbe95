"""The expected answer of a cast: scorers, verifiers and the loom have it, and nothing that the crystal reads does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cantrip_acp import Call, Cantrip, Circle, DefinitionError, Loom, RetryPolicy, Scorer, ScriptedCrystal, Thread, Turn
from cantrip_acp.loom import rewards
from cantrip_acp.training.judge import rendered
from tests.crystals.unit.test_usage import KINDS, crystal, whole
from tests.support.export_looms import asked
from tests.support.fixtures.core import INSTANT, done, echo
from tests.support.provider_server import Wire

pytestmark = pytest.mark.anyio

HIDDEN = "the expected answer is 391"


def scored(score: Any, *responses: Any, loom: Loom | None = None) -> Cantrip:
    circle = Circle(gates=["done", "echo"], wards=[{"max_turns": 5}], score=score)
    script = ScriptedCrystal(list(responses) or [echo("a"), done("391")], record_inputs=True)
    return Cantrip(script, circle=circle, loom=loom, retry=INSTANT)


async def test_a_scorer_gets_what_its_parameters_name() -> None:
    def both(turn: Turn, intent: str, reference: Any) -> tuple[float, str]:
        return float(reference == {"value": 391}), intent

    async def one(thread: Thread, *, reference: Any = "none") -> float:
        return float(thread.result == str(reference["value"]))

    for scorer, expected in (
        (Scorer(both), [(1.0, "17 × 23?"), (1.0, "17 × 23?")]),
        (Scorer(one, at="cast"), [(1.0, None)]),
        (Scorer(lambda intent: intent.sequence), [(1.0, None), (2.0, None)]),
    ):
        cantrip = scored(scorer)
        await cantrip.cast("17 × 23?", reference={"value": 391})
        assert [(r.reward, r.note) for r in rewards.assignments(cantrip.loom)] == expected


async def test_without_a_reference_it_is_none_and_the_record_has_no_key() -> None:
    seen: list[Any] = []

    def look(turn: Turn, reference: Any) -> float:
        seen.append(reference)
        return 0

    cantrip = scored(look)
    await cantrip.cast("go")
    assert seen == [None, None]
    ((start, _),) = cantrip.loom.casts()
    assert b"reference" not in msgspec.json.encode(start)


async def test_the_loom_keeps_it_and_a_cast_that_goes_on_has_it_again(tmp_path: Path) -> None:
    path = tmp_path / "x.loom.jsonl"
    given: list[Any] = []

    def look(thread: Thread, reference: Any) -> float:
        given.append(reference)
        return 0

    with Loom.open(path) as loom:
        cantrip = scored(
            Scorer(look, at="cast"), echo("a"), {"error": {"status": 401, "message": "no"}}, done(), loom=loom
        )
        async with cantrip.invoke() as entity:
            with pytest.raises(Exception, match="no"):
                await entity.cast("go", reference=[1, "b"])
            await entity.resume()
        assert [start.reference for start, _ in loom.casts()] == [[1, "b"]] * 2
    assert given == [[1, "b"]] * 2
    starts = [line for line in map(json.loads, path.read_text().splitlines()) if line.get("event") == "start"]
    assert [line["reference"] for line in starts] == [[1, "b"]] * 2


@pytest.mark.parametrize("kind", KINDS)
async def test_no_request_contains_it(kind: str) -> None:
    with Wire([whole(kind)]) as wire:
        circle = Circle(gates=["done"], wards=[{"max_turns": 3}])
        cantrip = Cantrip(crystal(kind, wire.url), Call(), circle, retry=RetryPolicy(base_s=0.01))
        await cantrip.cast("Hi", reference=HIDDEN)
        assert wire.requests
        for request in wire.requests:
            assert b"expected answer" not in request.body
            assert HIDDEN not in str(request.headers)
    assert cantrip.loom.casts()[0][0].reference == HIDDEN


async def test_children_folds_and_forks_do_not_read_it() -> None:
    script = ScriptedCrystal(
        [
            {"tool_calls": [{"gate": "call_agent", "args": {"intent": "part"}}]},
            *(echo(str(n)) for n in range(4)),
            done("end"),
            done("again"),
        ],
        children=[{"responses": [echo("child"), done("part")]}],
        record_inputs=True,
    )
    loom = Loom.memory()
    circle = Circle(gates=["done", "echo", "call_agent"], wards=[{"max_turns": 9}, {"max_depth": 1}])
    cantrip = Cantrip(
        script, Call(), circle, loom=loom, retry=INSTANT, folding={"trigger_after_turns": 3, "keep_turns": 1}
    )
    await cantrip.cast("whole", reference=HIDDEN)
    await cantrip.fork_group(loom.leaves()[0], "once more", samples=1, reference=HIDDEN)
    assert [t.role for t in loom.turns()].count("fold") >= 1
    assert HIDDEN not in repr(asked(cantrip))
    known = [start.reference for start, _ in loom.casts() if start.reference]
    assert known == [HIDDEN] * 2


async def test_a_loom_that_the_entity_could_read_is_refused(tmp_path: Path) -> None:
    inside, outside = tmp_path / "ws", tmp_path / "looms"
    inside.mkdir()
    outside.mkdir()

    async def cast(circle: Circle, place: Path) -> None:
        with Loom.open(place / "x.loom.jsonl") as loom:
            await Cantrip(ScriptedCrystal([done()]), circle=circle, loom=loom).cast("go", reference="r")

    wards = [{"max_turns": 2}]
    reads = {"name": "read_file", "root": "."}
    for circle in (
        Circle("bash", gates=["done"], wards=wards, workspace=inside),
        Circle(gates=["done", reads], wards=wards, workspace=inside),
        Circle(gates=["done", {**reads, "root": str(tmp_path)}], wards=wards, workspace=outside / "ws"),
    ):
        with pytest.raises(
            DefinitionError, match=r"x\.loom\.jsonl holds the expected answer .* keep that file in another"
        ):
            await cast(circle, inside)
    # Here nothing is read, or nothing of that folder.
    await cast(Circle(gates=["done"], wards=wards, workspace=inside), inside)
    await cast(Circle(gates=["done", reads], wards=wards, workspace=inside), outside)


async def test_it_is_json_and_one_for_each_intent() -> None:
    with pytest.raises(DefinitionError, match="a reference is JSON data"):
        await scored(None).cast("go", reference=object())
    with pytest.raises(DefinitionError, match="2 references for 1 intents"):
        await scored(None).cast_batch(["a"], references=["x", "y"])
    cantrip = scored(None, done(), done())
    await cantrip.cast_batch(["a", "b"], references=["x", None], concurrency=1)
    assert [start.reference or None for start, _ in cantrip.loom.casts()] == ["x", None]


async def test_a_verifier_reads_it_as_data() -> None:
    cantrip = scored(None)
    await cantrip.cast("17 × 23?", reference="<391>")
    shown = rendered(cantrip.loom, cantrip.loom.thread(cantrip.loom.leaves()[0]))
    assert json.loads(shown)["references"] == ["<391>"]
    assert "<" not in shown
    plain = scored(None)
    await plain.cast("go")
    assert "references" not in json.loads(rendered(plain.loom, plain.loom.thread(plain.loom.leaves()[0])))
