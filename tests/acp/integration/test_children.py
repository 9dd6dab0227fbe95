"""The tests of `tests/acp/unit/test_children.py` that start processes."""

import json
from pathlib import Path

import pytest

from tests.acp.unit.test_children import ASK, FAMILY, done, say
from tests.support.fixtures.acp import Start


@pytest.mark.sandbox
def test_a_childs_command_asks_once_and_ends(start: Start, folder: Path) -> None:
    agent = start(
        [say("call_agent", intent="List", medium="bash"), done("all")],
        crystal={"children": [[{"bash": "echo seen; touch made"}, {"bash": "cantrip_done ok"}]]},
        capabilities={"clientCapabilities": {"_meta": {"terminal_output": True}}},
        **FAMILY,
    )
    agent.permit = None
    prompt = agent.start_prompt(agent.session(folder, mode="ask"))
    message = agent.until(lambda m: m.get("method") == ASK)
    assert message["params"]["toolCall"]["title"] == "echo seen; touch made (child)"
    assert not (folder / "made").exists()
    agent.decide(message, "allow_once")
    assert agent.answer(prompt)["result"]["stopReason"] == "end_turn"
    assert (folder / "made").exists()
    asked = message["params"]["toolCall"]["toolCallId"]
    own = [u for u in agent.updates("tool_call_update") if u["toolCallId"] == asked]
    assert [u["status"] for u in own if "status" in u] == ["in_progress", "completed"]
    assert "seen" in json.dumps(own)
    ended = {u["toolCallId"] for u in agent.updates("tool_call_update") if u.get("status") in ("completed", "failed")}
    assert ended == {c["toolCallId"] for c in agent.updates("tool_call")}
