"""Delegation as a function call inside the entity's own code (§5.3)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.scripted_children import call, done, of_root, parent, results, turns


def code(text: str) -> dict[str, str]:
    return {"code": text}


async def test_a_child_is_a_function_call() -> None:
    spell = parent(
        code("a = call_agent('one', context={'n': [1, 2, 3]})\nprint('got', a)\ndone(a + call_agent(intent='two'))"),
        medium="code",
        children=[[code("done(sum(context['n']))")], [code("done(10)")]],
    )
    assert (await spell.cast("go")).result == 16
    assert spell.crystal.queries == 1
    assert [t.continues is None for t in of_root(spell)] == [True, False, False]


async def test_loops_and_conditions_compose_with_it() -> None:
    spell = parent(
        code(
            "parts = [list(range(n, n + 5)) for n in (0, 5, 10)]\n"
            "sums = call_agent_batch([{'intent': 'sum', 'context': p} for p in parts])\n"
            "total = sum(sums)\n"
            "while total < 200: total += call_agent('more')\n"
            "total"
        ),
        code("done(total)"),
        medium="code",
        children=[*[[code("done(sum(context))")] for _ in range(3)], *[[code("done(60)")] for _ in range(2)]],
    )
    assert (await spell.cast("go")).result == 225
    shown = spell.crystal.invocations[1].messages[-1]
    assert (shown.role, shown.content) == ("tool", "225")


async def test_output_is_divided_as_it_came_and_shown_as_one() -> None:
    spell = parent(
        code("print('one')\ncall_agent('x')\nprint('two')\ncall_agent('y')\nprint('three')\n1 / 0"),
        done(),
        medium="code",
        children=[[done()], [done()]],
    )
    await spell.cast("go")
    parts = [t.observation.output for t in of_root(spell)[:3]]
    assert [p.stdout for p in parts if p] == ["one\n", "two\n", "three\n"]
    assert [p.unfinished is True for p in parts if p] == [True, True, False]
    shown = spell.crystal.invocations[1].messages[-1].content or ""
    assert shown.startswith("one\ntwo\nthree\n")
    assert shown.endswith("ZeroDivisionError: division by zero")


async def test_what_a_child_fails_with_is_a_gate_error() -> None:
    spell = parent(
        code("try:\n    call_agent('fail')\nexcept GateError as error:\n    done('caught: ' + str(error))"),
        medium="code",
        children=[[{"error": {"status": 400, "message": "boom"}}]],
    )
    assert (await spell.cast("go")).result == "caught: the child failed: boom"


async def test_the_older_names_are_understood() -> None:
    spell = parent(
        code("done(call_entity_batch([{'intent': 'a'}, {'intent': 'b'}]) + [call_entity({'intent': 'c'})])"),
        medium="code",
        children=[[done(n)] for n in range(3)],
    )
    assert (await spell.cast("go")).result == [0, 1, 2]
    assert [t.gate_calls for t in of_root(spell)] == [("call_agent_batch",), ("call_agent",), ("done",)]


async def test_overlapping_spawns_hang_on_the_turn_that_the_first_closed() -> None:
    spell = parent(
        code(
            "from concurrent.futures import ThreadPoolExecutor\n"
            "with ThreadPoolExecutor(3) as pool:\n"
            "    found = sorted(pool.map(call_agent, 'abc'))\n"
            "done(found)"
        ),
        medium="code",
        children=[[{"delay_ms": 60, "content": str(n)}] for n in range(3)],
    )
    assert (await spell.cast("go")).result == ["0", "1", "2"]
    spawning, rest = of_root(spell)
    assert [spell.loom.turn(i).role for i in spell.loom.children(spawning.id)] == ["call"] * 3 + ["crystal"]
    assert [r.gate for r in rest.observation.results] == ["call_agent"] * 3 + ["done"]


async def test_a_childs_time_is_the_childs() -> None:
    spell = parent(
        code("call_agent('slow')\ndone('in time')"),
        medium="code",
        wards=[{"code_timeout_ms": 2500}],
        children=[[{"delay_ms": 3500, "content": "at last"}]],
    )
    assert (await spell.cast("go")).result == "in time"


async def test_mediums_can_be_mixed(tmp_path: Path) -> None:
    spell = parent(
        code(
            "shell = call_agent('count', medium='bash', context='a\\nb\\nc\\n')\n"
            "talk = call_agent('read', medium='conversation', context='words')\n"
            "done([shell, talk])"
        ),
        medium="code",
        workspace=tmp_path,
        children=[[{"bash": 'cantrip_done "$(wc -l <"$CANTRIP_CONTEXT")"'}], [call("read_context"), done("read it")]],
    )
    assert (await spell.cast("go")).result == ["3", "read it"]
    assert results(spell)[2] == "words"


async def test_a_child_of_a_child() -> None:
    spell = parent(
        code("done(call_agent('down') + 1)"),
        medium="code",
        wards=[{"max_depth": 2}],
        children=[
            {
                "responses": [code("done(call_agent('deeper') * 2)")],
                "children": [[code("try:\n    call_agent('x')\nexcept Exception as e:\n    done(20)")]],
            }
        ],
    )
    assert (await spell.cast("go")).result == 41
    assert [t.entity_id for t in turns(spell)].count(turns(spell)[0].entity_id) == 2


async def test_at_depth_0_a_call_says_why_it_cannot_be() -> None:
    spell = parent(
        code("try:\n    call_agent('x')\nexcept GateError as error:\n    done(str(error))"),
        medium="code",
        wards=[{"max_depth": 0}],
    )
    said = (await spell.cast("go")).result
    assert said.startswith("gate not available: 'call_agent'. max_depth is 0 here")
    assert "call_agent" not in (spell.circle.presentation or "")
    assert len(turns(spell)) == 1


async def test_history_has_utterances_and_not_their_parts() -> None:
    from cantrip_acp.mediums.code.medium import CodeMedium

    spell = parent(
        code("call_agent('x')\ninside = len(loom)"),
        code("done([inside, len(loom), len(loom[0]['observation']['results'])])"),
        medium=CodeMedium(loom=True),  # type: ignore[arg-type]
        children=[[done()]],
    )
    assert (await spell.cast("go")).result == [0, 1, 1]


async def test_restricted_python_delegates_too() -> None:
    pytest.importorskip("pydantic_monty", reason="the optional extra monty is not installed")
    spell = parent(
        code("a = call_agent('one', context=[1, 2], medium='conversation')\ndone([a, call_agent('two')])"),
        medium="monty",
        children=[[call("read_context"), done("read")], [code("done(2)")]],
    )
    assert (await spell.cast("go")).result == ["read", 2]


async def test_a_tool_call_that_names_the_gate_delegates_too() -> None:
    spell = parent(
        {"tool_calls": [{"gate": "python", "args": {"code": "x = 1"}}, *call("call_agent", intent="a")["tool_calls"]]},
        code("done(x)"),
        medium="code",
        children=[[done("A")]],
    )
    assert (await spell.cast("go")).result == 1
    shown = [m.content for m in spell.crystal.invocations[1].messages[-2:]]
    assert shown == ["(no output)", "A"]


def test_the_capability_block_tells_what_children_may_be() -> None:
    spell = parent(
        medium="code",
        wards=[{"max_depth": 2}, {"child_medium_allowlist": ["bash", "conversation"]}, {"child_max_turns_ceiling": 5}],
    )
    shown = spell.circle.presentation or ""
    line = next(x for x in shown.splitlines() if x.startswith("- `call_agent("))
    assert line.startswith(
        "- `call_agent(intent: str, context = ..., system_prompt: str = ..., gates: list = ..., wards:"
    )
    assert "Children may nest 2 deep" in line
    assert "their medium may be bash, conversation" in line
    assert "declare max_turns of at most 5" in line
