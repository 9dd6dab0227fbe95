"""Folds as the client can show them: a compaction, a notice or a thought, and on load again."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.fixtures.acp import Start

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
        assert "summary now replaces turn" in str(shown[0])
        return
    assert shown[0]["status"] == "completed"
    assert "[Folded: turns 1-" in shown[0]["summary"][0]["text"]
    assert len({update["compactionId"] for update in shown}) == len(shown)
    agent.seen.clear()
    agent.call("session/close", {"sessionId": opened})
    agent.call("session/load", {"sessionId": opened, "cwd": str(folder), "mcpServers": []})
    assert agent.updates("compaction_update") == shown


def test_a_fork_from_a_fold_and_from_another_sessions_turn(start: Start, folder: Path) -> None:
    agent = start(
        [{"content": f"Step {n}."} for n in range(12)], capabilities={"session": {"compaction": {}}}, **FOLDING
    )
    opened, other = agent.session(folder), agent.session(folder)
    turns = [agent.prompt(opened, f"Number {n}")["_meta"]["cantrip"]["turn"] for n in range(7)]
    strange = agent.prompt(other, "Another")["_meta"]["cantrip"]["turn"]
    folds = [update["compactionId"] for update in agent.updates("compaction_update", opened)]

    def fork(turn: Any) -> dict[str, Any]:
        params = {"sessionId": opened, "cwd": str(folder), "mcpServers": [], "_meta": {"cantrip": {"turn": turn}}}
        return agent.answer(agent.ask("session/fork", params))

    assert len(folds) >= 2
    for at in (folds[0], folds[-1], turns[0], turns[-1]):
        forked = fork(at)["result"]["sessionId"]
        agent.prompt(forked, "On.")
        assert agent.updates("session_info_update", forked)[0]["title"] == "Number 0 (fork)"
        agent.call("session/close", {"sessionId": forked})
        agent.seen.clear()
        agent.call("session/load", {"sessionId": forked, "cwd": str(folder), "mcpServers": []})
        asked = [update["content"]["text"] for update in agent.updates("user_message_chunk", forked)]
        assert asked[0] == "Number 0"
        assert asked[-1] == "On."
        assert asked[1:-1] == [f"Number {n}" for n in range(1, len(asked) - 1)]
    for wrong in (strange, "t_none", 8, -1, True, 1.0, [], {}):
        assert fork(wrong)["error"]["code"] == -32602, wrong
