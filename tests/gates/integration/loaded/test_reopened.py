"""Loaded modules in an entity that is opened again under its own id, as `session/load` does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from cantrip_acp import Cantrip, Loom, ScriptedCrystal
from cantrip_acp.core.entity import Entity
from cantrip_acp.core.forking.resume import resume_entity
from cantrip_acp.types import events
from cantrip_acp.types.records import Turn
from tests.gates.integration.loaded.conftest import KIT, cantrip
from tests.gates.integration.loaded.test_forks import COUNT, DONE, LOAD

ALLOWED: dict[str, Any] = {"allow_compile_modules": ["textkit"]}
TEACH = f"compile_and_load('textkit', source={KIT!r})\nn = count_words('a b')['words']"


async def reopened(
    made: Cantrip, responses: Sequence[Mapping[str, Any]], other: Cantrip | None = None
) -> tuple[Entity, ScriptedCrystal]:
    """The entity of a finished cast, as another process opens it. ``other`` is its cantrip there.

    A scripted crystal begins behind the queries of the history, so the responses come after as many others.
    """
    result = await made.cast("go")
    crystal = ScriptedCrystal([DONE] * result.turns + list(responses), record_inputs=True)
    return resume_entity((other or made).with_crystal(crystal), made.loom, result.entity_id).entity, crystal


def own(loom: Loom, entity: Entity, cast_id: str) -> list[Turn]:
    return [t for t in loom.turns() if t.entity_id == entity.id and t.role == "crystal" and t.cast_id == cast_id]


async def test_in_conversation_the_gates_are_tools_of_the_first_query() -> None:
    made = cantrip([LOAD, COUNT, DONE], **ALLOWED)
    opened, crystal = await reopened(made, [COUNT, DONE])
    async with opened as entity:
        result = await entity.cast("go on")
        (first, _) = own(made.loom, entity, result.cast_id)
    assert first.observation.results[0].result == {"words": 3, "calls": 1}
    asked = crystal.invocations[0]
    assert "count_words" in [tool.name for tool in asked.tools]
    assert any("the values of its variables are lost" in (m.content or "") for m in asked.messages)


async def test_in_bash() -> None:
    made = cantrip([LOAD, DONE], medium="bash", **ALLOWED)
    opened, _ = await reopened(made, [{"bash": "count_words 'a b c'; cantrip_done ok"}])
    async with opened as entity:
        result = await entity.cast("go on")
        (turn,) = own(made.loom, entity, result.cast_id)
    assert turn.observation.output is not None
    assert '"words":3' in turn.observation.output.stdout.replace(" ", "")


async def test_in_code_whose_variables_are_lost(tmp_path: Path) -> None:
    wards = {**ALLOWED, "code_writable_paths": [str(tmp_path)]}
    made = cantrip([{"code": TEACH}, {"code": "done(n)"}], medium="code", workspace=tmp_path, **wards)
    opened, _ = await reopened(made, [{"code": "done([count_words('a b c')['words'], 'n' in globals()])"}])
    async with opened as entity:
        result = await entity.cast("go on")
    assert result.result == [3, False]


async def test_in_code_whose_cells_run_again_it_is_loaded_once() -> None:
    made = cantrip([{"code": TEACH}, {"code": "done(n)"}], medium="code", **ALLOWED)
    loads = []
    opened, _ = await reopened(made, [{"code": "done([n, count_words('a b c')['words']])"}])
    async with opened as entity:
        with entity.subscribe(lossy=True) as subscription:
            result = await entity.cast("go on")
            subscription.finish()
            async for event in subscription:
                if isinstance(event, events.GateCalled) and event.gate == "compile_and_load":
                    loads.append(event)
    assert result.result == [2, 3]
    assert len(loads) == 1


@pytest.mark.parametrize("resumed", [False, True])
async def test_what_cannot_be_loaded_is_told_to_the_entity_and_to_the_user(resumed: bool) -> None:
    made = cantrip([LOAD], max_turns=1, **ALLOWED) if resumed else cantrip([LOAD, DONE], **ALLOWED)
    noticed = []
    opened, crystal = await reopened(made, [COUNT, DONE], cantrip(allow_compile_modules=["other"]))
    async with opened as entity:
        stream = entity.stream(None if resumed else "go on")
        async with stream as running:
            async for event in running:
                if isinstance(event, events.Noticed):
                    noticed.append(event.text)
        assert running.result.terminated
    said = [m.content or "" for m in crystal.invocations[0].messages]
    assert any("allow_compile_modules" in text and "textkit" in text for text in said)
    assert any("allow_compile_modules" in text and "textkit" in text for text in noticed)
