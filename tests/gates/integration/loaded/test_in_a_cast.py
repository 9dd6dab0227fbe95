"""Loading within a cast: what each medium sees at once, what the crystal is shown, what the loom keeps."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from cantrip_acp import Cantrip, ScriptedCrystal
from cantrip_acp.crystals.contract import Query, Response
from cantrip_acp.mediums.monty.medium import MontyMedium
from cantrip_acp.telemetry.tracing import trace_from
from cantrip_acp.types.records import Turn
from tests.gates.integration.loaded.conftest import KIT, cantrip

ALLOWED = {"allow_compile_modules": ["textkit", "other"]}
SECOND = "def count_words(text: str) -> int:\n    return -1\n"


class Watching(ScriptedCrystal):
    """Keeps what it was asked with."""

    def __init__(self, responses: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(responses)
        self.tools: list[list[str]] = []
        self.told: list[list[str]] = []

    async def query(self, query: Query, emit: Any = None) -> Response:
        self.tools.append([tool.name for tool in query.tools])
        self.told.append([m.content or "" for m in query.messages])
        return await super().query(query, emit)


async def run(medium: str, *responses: Mapping[str, Any], **wards: Any) -> tuple[list[Turn], Watching]:
    crystal = Watching(responses)
    made: Cantrip = cantrip([], medium=medium, **ALLOWED, **wards).with_crystal(crystal)
    await made.cast("go")
    return [t for t in made.loom.turns() if t.role == "crystal"], crystal


def calls(*pairs: tuple[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {"tool_calls": [{"gate": gate, "args": args} for gate, args in pairs]}


LOAD = ("compile_and_load", {"module": "textkit", "source": KIT})
DONE = ("done", {"answer": "over"})


async def test_in_conversation_the_gates_are_tools_from_the_next_query_on() -> None:
    turns, crystal = await run(
        "conversation",
        calls(LOAD, ("count_words", {"text": "at once"})),
        calls(("count_words", {"text": "a b c"})),
        calls(("compile_and_load", {"module": "textkit", "source": SECOND})),
        calls(("fail", {"why": "gone"}), DONE),
    )
    before, after = ["done", "compile_and_load"], ["done", "compile_and_load", "count_words", "fail"]
    assert crystal.tools == [before, after, after, ["done", "compile_and_load", "count_words"]]
    # What was said before stays as it was, byte for byte.
    for earlier, later in zip(crystal.told, crystal.told[1:], strict=False):
        assert later[: len(earlier)] == earlier
    assert [r.result for r in turns[0].observation.results][1] == {"words": 2, "calls": 1}
    assert turns[1].observation.results[0].result == {"words": 3, "calls": 2}
    assert turns[3].observation.results[0].is_error
    assert turns[3].reason == "done"


async def test_the_loom_keeps_what_was_loaded() -> None:
    turns, _ = await run("conversation", calls(LOAD, ("count_words", {"text": "a"}), DONE))
    loaded, called, _ = turns[0].observation.results
    digest = hashlib.sha256(KIT.encode()).hexdigest()
    assert loaded.args == {"module": "textkit", "source": KIT}
    assert loaded.result["module"] == "cantrip_acp.hot.textkit"
    assert loaded.result["sha256"] == digest
    assert [g["name"] for g in loaded.result["gates"]] == ["count_words", "fail"]
    assert called.annotations == {"module": "cantrip_acp.hot.textkit", "sha256": digest}


async def test_in_code_they_are_functions_in_the_same_cell() -> None:
    first = (
        f"r = compile_and_load('textkit', {KIT!r})\n"
        "import inspect\n"
        "print(count_words('a b'), inspect.signature(count_words), count_words.__doc__[:11])\n"
        "try: fail('x')\n"
        "except GateError as e: print(str(e).splitlines()[-2:])\n"
        "import subprocess\n"
        "print(subprocess.run(['count_words', 'a b c'], capture_output=True, text=True).stdout)"
    )
    second = (
        "print(count_words('x'))\nkept = count_words\n"
        f"compile_and_load('textkit', {SECOND!r})\nprint(count_words('x'), kept('x'), 'fail' in globals())"
    )
    turns, crystal = await run("code", {"code": first}, {"code": second}, {"code": "done(count_words('x'))"})
    output = turns[0].observation.output
    assert output is not None
    assert output.error is None
    assert output.stdout == (
        "{'words': 2, 'calls': 1} (text: str, least: int = 1, how='all') Count the w\n"
        "['[printed]', 'on the way']\n"
        '{"words": 3, "calls": 2}\n\n'
    )
    output = turns[1].observation.output
    assert output is not None
    assert output.stdout == "{'words': 1, 'calls': 3}\n-1 -1 False\n"
    assert turns[2].observation.results[-1].result == -1
    assert len({tuple(t) for t in crystal.tools}) == 1
    assert len({told[0] for told in crystal.told}) == 1


async def test_in_code_they_outlive_the_cells_own_worker_and_leave_its_names_alone() -> None:
    turns, _ = await run(
        "code",
        {"code": f"compile_and_load('textkit', {KIT!r})\nfail = 'mine'"},
        {"code": "compile_and_load('other', 'def more(): return 1')\nprint(fail, more())\nimport os; os._exit(1)"},
        {"code": "print(count_words('x'), more(), callable(fail))\ndone(1)"},
    )
    outputs = [t.observation.output for t in turns]
    assert outputs[1] is not None
    assert outputs[1].stdout == "mine 1\n"
    assert outputs[2] is not None
    assert outputs[2].stdout == "{'words': 1, 'calls': 1} 1 True\n"


async def test_loaded_by_a_command_of_a_cell_they_are_functions_of_the_next() -> None:
    source = "def more(): return 'more'"
    command = f"import subprocess\nsubprocess.run(['compile_and_load', 'other', {source!r}], check=True)\n"
    turns, _ = await run("code", {"code": command}, {"code": "done(more())"})
    assert turns[-1].observation.results[-1].result == "more"


async def test_in_bash_they_are_commands_in_the_same_command() -> None:
    load = f"compile_and_load textkit - <<'END' >/dev/null\n{KIT}\nEND\n"
    turns, _ = await run(
        "bash",
        {
            "bash": load
            + "count_words 'a b' --least 1; cantrip_count_words <<<'x'; count_words --help | head -1; fail no"
        },
        {"bash": f"compile_and_load textkit - <<'END' >/dev/null\n{SECOND}\nEND\ncount_words x; fail no"},
        {"bash": 'cantrip_done "$(count_words x)"'},
    )
    outputs = [t.observation.output for t in turns]
    assert outputs[0] is not None
    assert outputs[0].stdout == (
        '{"words": 2, "calls": 1}\n{"words": 1, "calls": 2}\nUsage: count_words TEXT [--least N] [--how TEXT]\n'
    )
    assert "ValueError: no" in outputs[0].stderr
    assert outputs[1] is not None
    assert outputs[1].stdout.strip() == "-1"
    assert outputs[1].exit_code == 127
    assert turns[2].observation.results[-1].result.strip() == "-1"


@pytest.mark.skipif(not getattr(MontyMedium, "name", None), reason="no monty")
async def test_in_monty_they_are_functions_in_the_same_cell() -> None:
    pytest.importorskip("pydantic_monty")
    turns, _ = await run(
        "monty",
        {"code": f"compile_and_load('textkit', {KIT!r})\nprint(count_words('a b'))"},
        {"code": f"compile_and_load('textkit', {SECOND!r})\nprint(count_words('a b'))\nfail('x')"},
        {"code": "done(count_words('x'))"},
    )
    outputs = [t.observation.output for t in turns]
    assert outputs[0] is not None
    assert outputs[0].stdout == "{'words': 2, 'calls': 1}\n"
    assert outputs[1] is not None
    assert outputs[1].stdout == "-1\n"
    assert "NameError" in (outputs[1].error or "")
    assert turns[2].observation.results[-1].result == -1


@pytest.mark.parametrize("medium", ["conversation", "code", "bash"])
async def test_off_without_a_ward(medium: str) -> None:
    made = cantrip([], medium=medium)
    say = {
        "conversation": calls(LOAD, DONE),
        "code": {"code": f"try: compile_and_load('textkit', {KIT!r})\nexcept GateError as e: done(str(e))"},
        "bash": {"bash": 'cantrip_done "$(compile_and_load textkit "def f(): pass" 2>&1)"'},
    }[medium]
    made = made.with_crystal(ScriptedCrystal([say]))
    await made.cast("go")
    (turn,) = [t for t in made.loom.turns() if t.role == "crystal"]
    refused = turn.observation.results[0]
    assert refused.gate == "compile_and_load"
    assert refused.is_error
    assert "no module may be compiled here" in refused.result


async def test_casts_of_one_entity_keep_what_was_loaded_and_entities_do_not_share_it() -> None:
    made = cantrip([calls(LOAD, DONE), calls(("count_words", {"text": "a"}), DONE)], **ALLOWED)
    async with made.invoke() as entity:
        await entity.cast("load")
        await entity.cast("use")
    turns = [t for t in made.loom.turns() if t.role == "crystal"]
    assert turns[1].observation.results[0].result == {"words": 1, "calls": 1}
    again = made.with_crystal(ScriptedCrystal([calls(("count_words", {"text": "a"}), DONE)]))
    await again.cast("use")
    last = [t for t in again.loom.turns() if t.role == "crystal"][-1]
    assert last.observation.results[0].result.startswith("gate not available")


@pytest.mark.parametrize("medium", ["code", "bash"])
async def test_a_fresh_session_of_the_medium_has_them_too(medium: str) -> None:
    use = {"code": {"code": "done(more())"}, "bash": {"bash": "cantrip_done $(more)"}}[medium]
    more = ("compile_and_load", {"module": "other", "source": "def more(): return 'more'"})
    made = cantrip([use, calls(more), use], medium=medium, **ALLOWED)
    async with made.invoke() as entity:
        await entity.session()
        await entity.medium_session.discard()
        await entity.executor.execute(*LOAD, call_id="x", entity_id=entity.id, cast_id="c", trace=trace_from(None))
        await entity.medium_session.discard()
        await entity.cast("go")
    turns = [t for t in made.loom.turns() if t.role == "crystal"]
    assert turns[-1].observation.results[-1].result == "more"


async def test_a_state_that_holds_them_says_so_where_they_are_not() -> None:
    load = {"code": f"compile_and_load('textkit', {KIT!r})\nkept = count_words\nx = 3"}
    use = {"code": "try: kept('a')\nexcept GateError as error: print(error, x, 'count_words' in globals())\ndone(1)"}
    one, two = cantrip([load, {"code": "done(1)"}], medium="code", **ALLOWED), cantrip([use], medium="code", **ALLOWED)
    async with one.invoke() as first, two.invoke() as second:
        await first.cast("go")
        here: Any = await first.session()
        there: Any = await second.session()
        snapshot = await here.snapshot()
        assert snapshot.missing == ()
        await there.restore(snapshot, here.chunks)
        await second.cast("go")
    output = next(t for t in two.loom.turns() if t.role == "crystal").observation.output
    assert output is not None
    assert output.stdout.startswith("gate not available: 'count_words' was loaded before this state was restored")
    assert output.stdout.endswith(" 3 False\n")


def test_the_description_says_what_the_wards_admit() -> None:
    made = cantrip(allow_compile_modules=["textkit"], allow_compile_sha256=["0" * 64])
    described = made.circle.gates["compile_and_load"].description
    assert described.endswith(
        f"A module is admitted if its name is one of: textkit; and the SHA-256 of its source is one of: {'0' * 64}."
    )
    assert made.circle.definitions[1].description == described
