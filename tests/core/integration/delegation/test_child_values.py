"""Children from values inside a cell: `Cantrip(...)`, `cast`, `cast_batch`, `summon` and `send` (§5.3, COMP-1..9)."""

from __future__ import annotations

import pytest

from cantrip_acp import Gate, ScriptedCrystal
from tests.support.scripted_children import GATES, call, done, of_root, parent, results, turns

MEDIUMS = ("code", "monty")


def code(text: str) -> dict[str, str]:
    return {"code": text}


@pytest.mark.parametrize("medium", MEDIUMS)
async def test_a_child_is_a_value_that_is_cast(medium: str) -> None:
    spell = parent(
        code(
            "reader = Cantrip(system_prompt='You read.', medium='conversation', gates=['echo'], wards={'max_turns': 3})\n"
            "r = reader.cast('read it', context='the data')\n"
            "print(r)\n"
            "done([r.result, r.reason, r.turns, r.usage['prompt_tokens'], r['result'], r.is_error])"
        ),
        medium=medium,
        children=[{"responses": [call("read_context"), done("read")], "usage": {"prompt_tokens": 7}}],
    )
    assert (await spell.cast("go")).result == ["read", "done", 2, 14, "read", False]
    assert "the data" in results(spell)
    first, rest = of_root(spell)
    assert (first.gate_calls, rest.gate_calls) == (("cantrip.cast",), ("done",))
    record = rest.observation.results[0]
    assert record.args["system_prompt"] == "You read."
    child = next(t for t in turns(spell) if t.entity_id != first.entity_id)
    assert spell.loom.turn(spell.loom.turn(child.parent_id).parent_id).id == first.id


@pytest.mark.parametrize("medium", MEDIUMS)
async def test_a_batch_keeps_order_and_each_failure_in_its_place(medium: str) -> None:
    spell = parent(
        code(
            "a = Cantrip(medium='conversation')\n"
            "rs = cast_batch(['one', (a, 'two'), (a, 'three', [3]), {'cantrip': a, 'intent': 'four'},"
            " {'medium': 'conversation', 'intent': 'five'}])\n"
            "rs += a.cast_batch(['six', ('seven', 'data')]) + cast_batch(a, ['eight'])\n"
            "done([[r.result, r.is_error, r.reason, r.error] for r in rs])"
        ),
        medium=medium,
        children=[
            [{"delay_ms": 80, "content": "1"}],
            [{"error": {"status": 400, "message": "boom"}}],
            *[[{"content": str(n)}] for n in (3, 4)],
            [call("echo", text="x")] * 10,
            *[[{"content": str(n)}] for n in (6, 7, 8)],
        ],
    )
    found = (await spell.cast("go")).result
    assert [r[0] for r in found] == ["1", None, "3", "4", None, "6", "7", "8"]
    assert found[1] == [None, True, None, "the child failed: boom"]
    assert found[4][1:3] == [True, "max_turns"]
    assert found[4][3].startswith("the child was cut off by max_turns.")
    assert [n for t in of_root(spell) for n in t.gate_calls] == ["cantrip.cast_batch"] * 3 + ["done"]


@pytest.mark.parametrize("medium", MEDIUMS)
async def test_a_summoned_child_keeps_its_state_from_send_to_send(medium: str) -> None:
    spell = parent(
        code(
            "kid = summon(Cantrip(medium='code'), context=[1, 2])\n"
            "first = send(kid, 'add').result\n"
            "second = kid.send('add again').result\n"
            "dismiss(kid)\n"
            "try:\n    kid.cast('more')\nexcept GateError as error:\n    done([first, second, str(error)])"
        ),
        medium=medium,
        children=[[code("n = sum(context)\ndone(n)"), code("n += 10\ndone(n)")]],
    )
    first, second, error = (await spell.cast("go")).result
    assert (first, second) == (3, 13)
    assert error.startswith("there is no child 'e_")
    assert "dismissed" in error
    assert "open: none" in error
    kids = [t for t in turns(spell) if t.entity_id != of_root(spell)[0].entity_id]
    assert len({t.entity_id for t in kids}) == 1
    assert [t.sequence for t in kids] == [1, 2]
    starts = [start for start, _ in spell.loom.casts() if start.parent_turn_id]
    assert len(starts) == 2
    assert starts[0].parent_turn_id != starts[1].parent_turn_id


async def test_a_child_lives_on_from_cast_to_cast_of_its_parent_and_ends_with_it() -> None:
    spell = parent(
        code("kid = Cantrip(medium='code').summon()\ndone(kid.send('one').result)"),
        code("done([kid.send('two').result, repr(kid)[:7]])"),
        medium="code",
        children=[[code("x = 1\ndone(x)"), code("done(x + 1)")]],
    )
    async with spell.invoke() as entity:
        assert (await entity.cast("go")).result == 1
        assert (await entity.cast("on")).result == [2, "Child('"]
        (child,) = entity.children.persistent.values()
        assert child.usage.total_tokens == 0
        assert not child.closed
    assert child.closed
    assert not child.medium_session.is_open


async def test_what_is_cut_off_ends_those_who_wait_too() -> None:
    spell = parent(
        code("kid = summon()\nsend(kid, 'one').result"),
        code("try:\n    send(kid, 'two')\nexcept GateError as e:\n    done(str(e))"),
        medium="code",
        wards=[{"max_turns": 1}],
        children=[[done("a"), done("b")]],
    )
    async with spell.invoke() as entity:
        assert (await entity.cast("go")).reason == "max_turns"
        assert entity.children.persistent == {}
        assert (await entity.cast("on")).result.startswith("there is no child")


async def test_refusals_are_errors_and_observations() -> None:
    spell = parent(
        code(
            "said = []\ndef C(*args, **named):\n    return Cantrip(*args, wards={'max_turns': 3}, **named)\n"
            "for make in (lambda: C('gpt').cast('x'), lambda: C(gates=['read_file']).cast('x'),\n"
            "             lambda: C(medium='bash').cast('x'), lambda: cast_batch([(C(medium='bash'), 'x'), 'y']),\n"
            "             lambda: summon(Cantrip(wards={'max_turns': 9})),\n"
            "             lambda: cast({'max_depth': 9, 'wards': {'max_turns': 3}}, 'x'),\n"
            "             lambda: C(call={'temperature': 'hot'}).cast('x'), lambda: cast(C(), ' '),\n"
            "             lambda: cast(C(), 'x', context={1, object()})):\n"
            "    try:\n        make()\n    except GateError as error:\n        said.append(str(error))\n"
            "done(said)"
        ),
        medium="code",
        wards=[
            {"child_medium_allowlist": ["code", "conversation"]},
            {"child_max_turns_ceiling": 5},
            {"child_max_depth_ceiling": 1},
        ],
    )
    said = (await spell.cast("go")).result
    for text, part in zip(
        said,
        (
            "there is no crystal 'gpt' for children",
            "cannot grant gate 'read_file'",
            "child refused by child_medium_allowlist",
            "child refused by child_medium_allowlist",
            "child refused by child_max_turns_ceiling",
            "child refused by child_max_depth_ceiling",
            "arguments do not fit gate",
            "intent is required",
            "arguments of cantrip.cast are not JSON data",
        ),
        strict=True,
    ):
        assert part in text
    refused = [(r.annotations or {}).get("child_refused") for t in turns(spell) for r in t.observation.results]  # type: ignore[union-attr]
    assert refused[:5] == [
        "crystal",
        "gate",
        "child_medium_allowlist",
        "child_medium_allowlist",
        "child_max_turns_ceiling",
    ]
    assert len(turns(spell)) == 1


async def test_only_so_many_children_live_at_once_and_each_cast_counts() -> None:
    spell = parent(
        code(
            "kids = [summon() for _ in range(2)]\nsaid = []\n"
            "for act in (summon, lambda: [send(kids[0], str(n)) for n in range(9)]):\n"
            "    try:\n        act()\n    except GateError as error:\n        said.append(str(error))\n"
            "done(said)"
        ),
        medium="code",
        wards=[{"max_concurrent_children": 2}, {"max_children_total": 5}],
        children=[[{"content": "ok", "repeat": True}]] * 2,
    )
    full, spent = (await spell.cast("go")).result
    assert full.startswith("child refused by max_concurrent_children: 2 summoned children live already")
    assert spent.startswith("child refused by max_children_total")
    assert sum(1 for start, _ in spell.loom.casts() if start.parent_turn_id) == 4


async def test_without_the_gate_there_is_nothing_of_it() -> None:
    names = "[n for n in ('Cantrip', 'cast', 'cast_batch', 'summon', 'send', 'dismiss') if n in globals()]"
    for gates, wards, there in (
        (("done",), [], []),
        (GATES, [{"remove_gate": "call_agent"}], []),
        (("done", "call_agent"), [], ["Cantrip", "cast", "cast_batch", "summon", "send", "dismiss"]),
    ):
        spell = parent(code(f"done({names})"), medium="code", gates=gates, wards=wards)
        assert (await spell.cast("go")).result == there
        assert ("Cantrip(" in (spell.circle.presentation or "")) is bool(there)
    for medium in ("code", "monty"):
        for asks in ("Cantrip().cast('x')", "cast_batch(['x'])", "Cantrip(system_prompt='A').summon()"):
            none = parent(
                code(f"try:\n    {asks}\nexcept GateError as e:\n    done(str(e))"),
                medium=medium,
                gates=GATES,
                wards=[{"max_depth": 0}],
            )
            assert "max_depth is 0 here, so no child can be spawned" in (await none.cast("go")).result
            assert "Cantrip(" not in (none.circle.presentation or "")
    alone = parent(
        code("try:\n    cast_batch(['x'])\nexcept GateError as e:\n    done(str(e))"),
        medium="code",
        gates=("done", "call_agent"),
    )
    assert (await alone.cast("go")).result.startswith("gate not available: 'cantrip.cast_batch'")


async def test_other_mediums_cannot_ask_for_it_by_name() -> None:
    spell = parent(call("cantrip.cast", intent="x"), done(), medium="conversation")
    await spell.cast("go")
    assert results(spell)[0].startswith("gate not available: 'cantrip.cast'")


async def test_crystals_are_those_of_the_recipe_by_name() -> None:
    small = ScriptedCrystal([done("small")], model="small")
    spell = parent(code("done(Cantrip('small').cast('x').result)"), medium="code", crystals={"small": small})
    assert (await spell.cast("go")).result == "small"
    assert small.queries == 1


async def test_results_are_data_and_values_survive_a_snapshot() -> None:
    spell = parent(
        code("kind = Cantrip(medium='conversation', gates=[])\nr = kind.cast('x')\ncast_again = cast\ndone(r)"),
        code("done([repr(kind), dict(r), cast_again is cast])"),
        medium="code",
        children=[[done({"a": 1})]],
        loom_settings={"snapshots": True},
    )
    entity = spell.invoke()
    first = (await entity.cast("go")).result
    assert first["result"] == {"a": 1}
    assert first["reason"] == "done"
    assert first["is_error"] is False
    fork = await entity.fork()
    async with entity, fork:
        shown, again, same = (await fork.cast("on")).result
    assert shown == "Cantrip(medium='conversation', gates=[])"
    assert again == first
    assert same is True


async def test_a_gate_of_ones_own_is_never_taken_for_it() -> None:
    def send(text: str) -> str:
        """Somebody's own."""
        return f"sent {text}"

    spell = parent(code("done([send('x'), cast.__doc__[:5]])"), medium="code", gates=(*GATES, Gate.of(send)))
    assert (await spell.cast("go")).result == ["sent x", "Run a"]
    dotted = parent(
        code("done([cantrip_send('x'), 'cast' in globals()])"),
        medium="code",
        gates=(*GATES, Gate.of(send, name="cantrip.send")),
    )
    assert (await dotted.cast("go")).result == ["sent x", False]
