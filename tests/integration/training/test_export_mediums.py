"""What was seen in a sandbox: programs, their outputs, and calls beside them, told as they were sent."""

from __future__ import annotations

from pathlib import Path

import pytest

from cantrip_acp import Call, Cantrip, Circle, Loom, ScriptedCrystal
from cantrip_acp.training.export.fine_tuning import TrlSft
from cantrip_acp.training.export.selection import Source
from tests.support.export_looms import asked, saw
from tests.support.fixtures.core import INSTANT

pytestmark = [pytest.mark.anyio, pytest.mark.sandbox]

BASH = [
    {"bash": "echo out; echo err >&2; exit 3"},
    {"tool_calls": [{"gate": "bash", "args": {"command": "true"}}, {"gate": "echo", "args": {"text": "beside"}}]},
    {"bash": "echo_gate x 2>/dev/null; cantrip_echo y"},
    {"bash": "cantrip_done ok; echo never"},
]
CODE = [
    {"code": "x = 6 * 7\nprint('x is', x)\nx"},
    {"content": "As words:\n```python\nx + 1\n```"},
    {"code": "1 / 0"},
    {"code": "echo('hi'); done({'x': x})"},
]


@pytest.mark.parametrize(("medium", "script"), [("bash", BASH), ("code", CODE)])
async def test_programs_and_their_outputs(medium: str, script: list[dict[str, str]], tmp_path: Path) -> None:
    loom = Loom.open(tmp_path / "x.loom.jsonl")
    circle = Circle(medium, ["done", "echo"], [{"max_turns": 8}], workspace=tmp_path)
    crystal = ScriptedCrystal(script, record_inputs=True, tools="text")
    cantrip = Cantrip(crystal, Call(system_prompt="Work."), circle, loom=loom, retry=INSTANT)
    result = await cantrip.cast("go")
    assert result.terminated
    loom.close()
    with Loom.open(tmp_path / "x.loom.jsonl", readonly=True) as again:
        leaf = again.leaves()[-1]
        assert [messages for _, messages, _ in saw(again, leaf)] == asked(cantrip)
        (row,) = TrlSft().rows(Source(again))
    # The capability block is the second message, as it was told.
    assert row["messages"][1]["content"] == circle.capabilities(text_calls=True)
    # A program that was given as text stands in its call alone.
    said = [m for m in row["messages"] if (m.get("content") or "").startswith("As words:")]
    assert [(m["content"], len(m["tool_calls"])) for m in said] == [("As words:", 1)] * (medium == "code")
    assert [t.name for t in circle.tools] == [medium if medium == "bash" else "python"]
