"""What binds a parent binds all below it, when it begins to and by whatever name; children are no way around it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import anyio
import pytest

from cantrip_acp import Cantrip, Circle, ScriptedCrystal
from cantrip_acp.gates.registry import child_functions
from cantrip_acp.gates.wards import Wards
from tests.support.scripted_children import GATES, call, done, ends, first_result, parent, results, turns

TIGHTER = Wards.of([{"max_turns": 10}, {"remove_gate": ["echo"]}])


class Tightening(ScriptedCrystal):
    """Tightens its parent's wards before it says its second word."""

    def __init__(self, responses: Any, holds: Any) -> None:
        super().__init__(responses)
        self.holds = holds

    def child(self, number: int, depth: int) -> Tightening:
        return self

    async def query(self, query: Any, emit: Any) -> Any:
        if "tighten" in query.intent:
            self.holds()
        return await super().query(query, emit)


async def test_a_child_that_runs_is_held_to_what_its_parent_is_held_to() -> None:
    held: list[Any] = []
    crystal = Tightening(
        [call("call_agent", intent="tighten"), call("echo", text="still there?"), done(), done()],
        lambda: held[0].set_wards(TIGHTER),
    )
    spell = Cantrip(crystal, circle=Circle(gates=GATES, wards=[{"max_turns": 10}]))
    async with spell.invoke() as entity:
        held.append(entity)
        await entity.cast("go")
    assert results(spell)[0].startswith("gate not available: 'echo'")


async def test_so_is_one_that_waits_for_its_turn_or_for_its_next_intent() -> None:
    held: list[Any] = []
    crystal = Tightening(
        [
            {
                "code": "kid = summon(Cantrip(medium='conversation'))\nkid.send('first')\n"
                "cast_batch(Cantrip(medium='conversation'), ['tighten', 'second'])\nkid.send('third')\ndone(1)",
                "when": "go",
            },
            {"tool_calls": [{"gate": "echo", "args": {"text": "a"}}], "when": "first"},
            {**done(), "when": "first"},
            {**done(), "when": "tighten"},
            {"tool_calls": [{"gate": "echo", "args": {"text": "b"}}], "when": "second"},
            {**done(), "when": "second"},
            {"tool_calls": [{"gate": "echo", "args": {"text": "c"}}], "when": "third"},
            {**done(), "when": "third"},
        ],
        lambda: held[0].set_wards(TIGHTER),
    )
    circle = Circle("code", GATES, [{"max_turns": 10}, {"max_concurrent_children": 1}])
    spell = Cantrip(crystal, circle=circle)
    async with spell.invoke() as entity:
        held.append(entity)
        assert (await entity.cast("go")).result == 1
    said = [r.result for t in turns(spell) for r in t.observation.results if r.gate == "echo"]
    assert said[0] == "a"
    assert all(each.startswith("gate not available: 'echo'") for each in said[1:])
    assert len(said) == 3


def test_a_gate_is_removed_by_its_older_name_too() -> None:
    circle = Circle("code", GATES, [{"max_turns": 1}, {"remove_gate": "call_entity"}])
    assert "call_agent" not in circle.gates
    assert child_functions(circle) == set()


async def test_a_medium_of_another_package_is_no_childs_unless_admitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wildmedium.py").write_text(
        "from cantrip_acp.mediums.conversation import ConversationMedium\n"
        "class Wild(ConversationMedium):\n    name = 'wild'\n"
    )
    (tmp_path / "wildmedium-1.dist-info").mkdir()
    (tmp_path / "wildmedium-1.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: wildmedium\nVersion: 1\n"
    )
    (tmp_path / "wildmedium-1.dist-info" / "entry_points.txt").write_text(
        "[cantrip_acp.mediums]\nwild = wildmedium:Wild\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    asks = call("call_agent", intent="x", medium="wild")
    spell = parent(asks, done(), children=[[done("wild")]])
    await spell.cast("go")
    assert first_result(spell).result.startswith("cannot grant medium 'wild'")
    admitted = parent(asks, done(), children=[[done("wild")]], wards=[{"child_medium_allowlist": ["wild"]}])
    await admitted.cast("go")
    assert first_result(admitted).result == "wild"


async def test_an_intent_is_no_place_for_data() -> None:
    spell = parent(call("call_agent", intent="x" * 1_000_001), done())
    await spell.cast("go")
    assert "intent has 1,000,001 characters" in results(spell)[0]


async def test_whoever_has_spent_its_calls_can_still_end() -> None:
    spell = parent(
        {
            "code": "import concurrent.futures as f\n"
            "with f.ThreadPoolExecutor(16) as pool:\n    list(pool.map(lambda n: echo('x'), range(5000)))\n"
            "try:\n    echo('x')\nexcept GateError as error:\n    done(str(error))"
        },
        medium="code",
    )
    assert (await spell.cast("go")).result.startswith("no more than 5000 gate calls")


STORM = """
import threading
def spawn(act):
    while True:
        try:
            act()
        except GateError:
            pass
talk = Cantrip(medium="conversation")
kid = summon(talk)
acts = [lambda: cast(talk, "x"), lambda: cast_batch(talk, ["x"] * 20), lambda: summon(talk), lambda: kid.send("x"),
        lambda: dismiss(summon(talk)), lambda: call_agent("x", medium="conversation")]
for act in acts * 4:
    threading.Thread(target=spawn, args=(act,), daemon=True).start()
import time
time.sleep(1.5)
done("end")
"""


@pytest.mark.timing
async def test_a_storm_of_values_leaves_the_host_its_time_and_the_account_whole() -> None:
    crystal = ScriptedCrystal(
        [{"code": STORM}, done()],
        children=[{"responses": [{"content": "x", "repeat": True}], "usage": {"prompt_tokens": 1}}] * 200,
        usage={"prompt_tokens": 1},
    )
    spell = Cantrip(crystal, circle=Circle("code", GATES, [{"max_turns": 2}, {"max_children_total": 150}]))
    lags = []
    async with anyio.create_task_group() as group:

        async def tick() -> None:
            while True:
                began = time.perf_counter()
                await anyio.sleep(0.01)
                lags.append(time.perf_counter() - began)

        group.start_soon(tick)
        with anyio.fail_after(90):
            async with spell.invoke() as entity:
                result = await entity.cast("go")
        group.cancel_scope.cancel()
    assert result.result in ("end", "ok")
    # A slow machine is allowed for.
    assert max(lags) < 2
    born = [start for start, _ in spell.loom.casts() if start.parent_turn_id is not None]
    assert 20 <= len(born) <= 150
    assert len(ends(spell)) == len(born) + 1
    assert result.usage.total_tokens == sum(t.metadata.tokens_prompt for t in turns(spell))


@pytest.mark.timing
async def test_summoned_children_end_with_a_cancel_at_every_level() -> None:
    deep = "kid = summon()\nkid.send('down')"
    spell = parent(
        {"code": "idle = summon()\nidle.send('wait')\n" + deep},
        medium="code",
        wards=[{"max_depth": 3}],
        children=[
            [{"code": "x = 1\ndone(x)"}],
            {
                "responses": [{"code": deep}],
                "children": [{"responses": [{"code": deep}], "children": [[{"code": "import time\ntime.sleep(60)"}]]}],
            },
        ],
    )
    async with spell.invoke() as entity, anyio.create_task_group() as group:
        group.start_soon(entity.cast, "go")
        with anyio.fail_after(60):
            while len(spell.loom.casts()) < 5 or spell.loom.casts()[-1][0].parent_turn_id is None:
                await anyio.sleep(0.02)
            await anyio.sleep(1)
        # The idle child, and those in a line below.
        living, line = list(entity.children.persistent.values()), [entity]
        while line[-1].children.persistent:
            line.append(list(line[-1].children.persistent.values())[-1])
        workers = [e.medium_session._session._worker for e in {*living, *line[1:]}]  # type: ignore[union-attr]
        assert len(workers) == 4
        began = time.perf_counter()
        entity.cancel()
        while entity.busy or any(worker is not None and not worker.tree.exited for worker in workers):
            await anyio.sleep(0.005)
        took = time.perf_counter() - began
    assert took < 1
    assert [record.reason for record in ends(spell)].count("parent_terminated") == 3
