"""Threads that loaded a module, run again: the load really happens, and nothing differs (LOOM-10)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cantrip_acp.core.forking.replay import replay
from tests.gates.integration.loaded.conftest import KIT, cantrip
from tests.gates.integration.loaded.test_forks import COUNT, DONE, LOAD, SECOND

SCRIPTS: dict[str, list[dict[str, Any]]] = {
    "conversation": [LOAD, COUNT, DONE],
    "bash": [LOAD, {"bash": "count_words 'a b c'"}, {"bash": "cantrip_done ok"}],
    "code": [
        {"code": f"compile_and_load('textkit', source={KIT!r})"},
        {"code": "n = count_words('a b', least=1)"},
        {"code": "done(n)"},
    ],
}


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("medium", list(SCRIPTS))
async def test_nothing_differs(medium: str, recorded: bool) -> None:
    made = cantrip(SCRIPTS[medium], medium=medium, allow_compile_modules=["textkit"])
    result = await made.cast("go")
    assert result.terminated
    again = await replay(made, made.loom, made.loom.leaves()[-1], recorded_gates=recorded)
    assert (again.turns, again.divergence) == (3, None)


@pytest.mark.parametrize("recorded", [False, True])
async def test_a_module_that_is_another_one_now_is_a_difference(tmp_path: Path, recorded: bool) -> None:
    file = tmp_path / "textkit.py"
    file.write_text(KIT)
    load = {"tool_calls": [{"gate": "compile_and_load", "args": {"module": "textkit", "path": str(file)}}]}
    made = cantrip([load, COUNT, DONE], workspace=tmp_path, allow_compile_paths=[str(tmp_path)])
    await made.cast("go")
    file.write_text(SECOND)
    again = await replay(made, made.loom, made.loom.leaves()[-1], recorded_gates=recorded)
    assert again.divergence is not None
    assert again.divergence.number == 1
    assert again.divergence.how.startswith("gate compile_and_load answered ")
