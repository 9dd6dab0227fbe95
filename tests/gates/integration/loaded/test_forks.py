"""Loaded modules in a fork: there again where they may be, and said to be missing where not (LOOM-4)."""

from __future__ import annotations

from typing import Any

import pytest

from cantrip_acp import Cantrip, ScriptedCrystal
from cantrip_acp.types.records import Turn
from tests.gates.integration.loaded.conftest import KIT, cantrip

ALLOWED = {"allow_compile_modules": ["textkit", "other"]}
LOAD = {"tool_calls": [{"gate": "compile_and_load", "args": {"module": "textkit", "source": KIT}}]}
COUNT = {"tool_calls": [{"gate": "count_words", "args": {"text": "a b c"}}]}
DONE = {"tool_calls": [{"gate": "done", "args": {"answer": "over"}}]}
SECOND = "def count_words(text: str) -> int:\n    return -1\n"


async def forked(made: Cantrip, crystal: ScriptedCrystal, other: Cantrip | None = None, **options: Any) -> list[Turn]:
    """A cast in a fork of the last turn; its turns. ``other`` is the fork's cantrip."""
    loom = made.loom
    await made.cast("go")
    chosen = (other or made).with_crystal(crystal)
    async with await chosen.fork(loom.leaves()[-1], loom=loom, **options) as entity:
        await entity.cast("go on")
        return [t for t in loom.turns() if t.entity_id == entity.id and t.role == "crystal"]


def missing(made: Cantrip, turn: Turn) -> tuple[str, ...]:
    record = made.loom.fork_of(turn.entity_id)
    assert record is not None
    return record.missing


async def test_in_conversation() -> None:
    made = cantrip([LOAD, COUNT, DONE], **ALLOWED)
    turns = await forked(made, ScriptedCrystal([COUNT, DONE]))
    # What the module counted in a variable begins anew.
    assert turns[0].observation.results[0].result == {"words": 3, "calls": 1}
    assert missing(made, turns[0]) == (
        "module cantrip_acp.hot.textkit: loaded again; the values of its variables are lost",
    )
    assert turns[0].gate_calls == ("count_words",)


@pytest.mark.parametrize("state", ["replay", "auto"])
async def test_in_code(state: str) -> None:
    first = {"code": f"compile_and_load('textkit', source={KIT!r})\nn = count_words('a b')['words']"}
    made = cantrip([first, {"code": "done(n)"}], medium="code", **ALLOWED)
    turns = await forked(made, ScriptedCrystal([{"code": "done([n, count_words('a b c')['words']])"}]), state=state)
    assert turns[-1].observation.results[-1].result == [2, 3]


async def test_in_bash() -> None:
    made = cantrip([LOAD, DONE], medium="bash", **ALLOWED)
    turns = await forked(made, ScriptedCrystal([{"bash": "count_words 'a b c'; cantrip_done ok"}]))
    assert turns[0].observation.output is not None
    assert '"words":3' in turns[0].observation.output.stdout.replace(" ", "")


async def test_the_last_one_of_a_name_counts() -> None:
    again = {"tool_calls": [{"gate": "compile_and_load", "args": {"module": "textkit", "source": SECOND}}]}
    made = cantrip([LOAD, again, DONE], **ALLOWED)
    turns = await forked(made, ScriptedCrystal([COUNT, DONE]))
    assert turns[0].observation.results[0].result == -1


async def test_what_the_forks_own_wards_do_not_admit_is_missing() -> None:
    made = cantrip([LOAD, DONE], **ALLOWED)
    turns = await forked(made, ScriptedCrystal([COUNT, DONE]), cantrip(allow_compile_modules=["other"]))
    assert turns[0].observation.results[0].is_error
    (told,) = missing(made, turns[0])
    assert told.startswith("module cantrip_acp.hot.textkit and its gates: ")
    assert "allow_compile_modules" in told


async def test_without_the_gate_or_the_state_it_is_missing() -> None:
    made = cantrip([LOAD, DONE], **ALLOWED)
    turns = await forked(made, ScriptedCrystal([DONE]), cantrip(gates=("done",)))
    assert missing(made, turns[0]) == (
        "module cantrip_acp.hot.textkit and its gates: this circle has no compile_and_load",
    )
    made = cantrip([LOAD, DONE], **ALLOWED)
    turns = await forked(made, ScriptedCrystal([DONE]), state="none")
    assert missing(made, turns[0]) == ("module cantrip_acp.hot.textkit and its gates: not loaded again",)


async def test_a_file_that_is_another_one_now_is_not_loaded(tmp_path: Any) -> None:
    file = tmp_path / "textkit.py"
    file.write_text(KIT)
    load = {"tool_calls": [{"gate": "compile_and_load", "args": {"module": "textkit", "path": str(file)}}]}
    made = cantrip([load, DONE], workspace=tmp_path, allow_compile_paths=[str(tmp_path)])
    loom = made.loom
    await made.cast("go")
    file.write_text(SECOND)
    async with await made.with_crystal(ScriptedCrystal([DONE])).fork(loom.leaves()[-1]) as entity:
        record = loom.fork_of(entity.id)
    assert record is not None
    assert "SHA-256" in record.missing[0]
