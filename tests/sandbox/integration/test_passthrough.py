"""The back end without a sandbox works in tests, and cannot be reached from anywhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

import cantrip_acp
from cantrip_acp import Call, Cantrip, Circle, ScriptedCrystal
from cantrip_acp.mediums import registry
from cantrip_acp.types.errors import DefinitionError
from tests.sandbox.integration.passthrough_sandbox import PassThroughMedium


async def test_a_cast_without_a_sandbox(workspace: Path) -> None:
    responses = [
        {"tool_calls": [{"gate": "bash", "args": {"command": "echo hi > file; exit 3"}}]},
        {"tool_calls": [{"gate": "done", "args": {"answer": "ok"}}]},
    ]
    circle = Circle(PassThroughMedium(), ["done"], {"max_turns": 5}, workspace=workspace)
    result = await Cantrip(ScriptedCrystal(responses), Call(), circle).cast("work")
    assert result.result == "ok"
    assert (workspace / "file").read_text() == "hi\n"


def test_nothing_in_the_package_knows_of_it() -> None:
    root = Path(cantrip_acp.__file__).parent
    for path in root.rglob("*.py"):
        text = path.read_text("utf-8").lower()
        for word in ("passthrough", "pass_through", "no_sandbox=", "unsandboxed=", "--unsafe", "unrestricted"):
            assert word not in text, (path, word)


@pytest.mark.parametrize("name", ["passthrough", "none", "unrestricted", "port_unrestricted", "host"])
def test_no_name_leads_to_it(name: str) -> None:
    assert name not in registry.names()
    with pytest.raises(DefinitionError):
        Circle(name, ["done"], {"max_turns": 1})
