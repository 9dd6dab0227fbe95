"""Folds as the client can show them: a compaction, a notice or a thought, and on load again."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.acp.rawclient import RawClient

Start = Callable[..., RawClient]
STEPS = [{"content": f"Step {n}.", "tool_calls": [{"gate": "echo", "args": {"text": f"word {n}"}}]} for n in range(4)]
FOLDING: dict[str, Any] = {"folding": {"trigger_after_turns": 3, "keep_turns": 1}}


@pytest.mark.parametrize(
    ("session", "kind"),
    [
        ({"compaction": {}}, "compaction_update"),
        ({"compaction": {}, "notices": {}}, "compaction_update"),
        ({"notices": {}}, "notice"),
        ({"compaction": None, "notices": True}, "agent_thought_chunk"),
        ({}, "agent_thought_chunk"),
    ],
)
def test_a_fold_is_shown(start: Start, folder: Path, session: Any, kind: str) -> None:
    agent = start([*STEPS, {"content": "Done."}], capabilities={"session": session}, **FOLDING)
    opened = agent.session(folder)
    agent.prompt(opened)
    shown = agent.updates(kind)
    assert shown
    assert all(not agent.updates(other) for other in {"compaction_update", "notice"} - {kind})
    if kind != "compaction_update":
        assert "summary stands for turn" in str(shown[0])
        return
    assert shown[0]["status"] == "completed"
    assert "[Folded: turns 1-" in shown[0]["summary"][0]["text"]
    assert len({update["compactionId"] for update in shown}) == len(shown)
    agent.seen.clear()
    agent.call("session/close", {"sessionId": opened})
    agent.call("session/load", {"sessionId": opened, "cwd": str(folder), "mcpServers": []})
    assert [update["summary"] for update in agent.updates("compaction_update")] == [
        update["summary"] for update in shown
    ]
