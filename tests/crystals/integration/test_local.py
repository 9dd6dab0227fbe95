"""The tests of `tests/crystals/unit/test_local.py` that start processes."""

from __future__ import annotations

import json

import pytest

from cantrip_acp import Cantrip, Circle
from cantrip_acp.crystals.catalog.types import ModelInfo
from tests.crystals.unit.test_local import BLOCK, crystal, streamed
from tests.support.openai_replies import (
    strict,
)
from tests.support.provider_server import Wire


@pytest.mark.parametrize(
    ("how", "runs"),
    [
        ({"tools": "text"}, True),
        ({"info": ModelInfo(tools=False)}, True),
        ({"tools": "native", "info": ModelInfo(tools=False)}, False),
        ({}, False),
        ({"tools": "native"}, False),
    ],
)
def test_a_code_block_is_a_program_in_text_call_mode_alone(tmp_path, how: dict, runs: bool) -> None:
    with Wire(strict(streamed(f"I make it.\n\n{BLOCK}"), streamed("It is made."))) as wire:
        circle = Circle("code", ["done"], {"max_turns": 4, "code_writable_paths": ["."]}, workspace=tmp_path)
        made = Cantrip(crystal(wire, **how), circle=circle)
        result = made.cast_sync("Make it.")
        asked_last = json.dumps(wire.requests[-1].json()["messages"])
    assert (tmp_path / "made").exists() is runs
    assert result.result == ("It is made." if runs else f"I make it.\n\n{BLOCK}")
    first = next(t for t in made.loom.turns() if t.role == "crystal")
    assert first.utterance.content == f"I make it.\n\n{BLOCK}"
    assert ("exactly one ```python block" in asked_last) is runs
    if runs:
        # The model reads what it wrote once, and no call that it did not write.
        assert asked_last.count("open('made'") == 1
        assert '<tool_result name=\\"python\\">' in asked_last
