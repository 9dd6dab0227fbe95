"""The Familiar as people meet it: by an editor's protocol, and on the command line."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.recipes.integration.familiar.conftest import git
from tests.recipes.integration.familiar.test_familiar_at_work import BUG
from tests.support import processes
from tests.support.acp_client import RawClient, still_alive

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(300)]

CANTRIP = str(Path(sys.executable).parent / "cantrip")


@pytest.fixture
def agent() -> Iterator[Callable[..., RawClient]]:
    running: list[RawClient] = []

    def begin(**env: str) -> RawClient:
        client = RawClient(env=env)
        running.append(client)
        client.initialize()
        return client

    yield begin
    for client in running:
        family = client.family()
        client.close()
        assert not still_alive(family, 30)


def allowed(client: RawClient, asked: Any) -> dict[str, Any]:
    """The reply to a prompt; whatever is asked on the way is allowed once."""
    while True:
        message = client.next(120)
        if message.get("method") == "session/request_permission":
            options = message["params"]["options"]
            chosen = next(o["optionId"] for o in options if o["kind"] == "allow_once")
            result = {"outcome": {"outcome": "selected", "optionId": chosen}}
            client.send({"jsonrpc": "2.0", "id": message["id"], "result": result})
        elif "method" not in message and message.get("id") == asked:
            return message


def test_a_bug_over_acp(agent: Callable[..., RawClient], project: Path, scripted: Callable[..., Path]) -> None:
    scripted(BUG)
    client = agent()
    session = client.session(project)
    reply = allowed(client, client.start_prompt(session, "One test fails. Mend it and commit."))
    assert reply["result"]["stopReason"] == "end_turn", reply
    calls = {call["name"]: call for call in client.updates("tool_call")}
    kinds = {name: call["kind"] for name, call in calls.items()}
    assert kinds["run_tests"] == "execute"
    assert kinds["edit_file"] == "edit"
    assert kinds["plan"] == "think"
    assert kinds["git_commit"] == "edit"
    plans = [[e["status"] for e in update["entries"]] for update in client.updates("plan")]
    assert plans == [["in_progress", "pending"], ["completed", "in_progress"], ["completed", "completed"]]
    ended = {
        u["toolCallId"]: u for u in client.updates("tool_call_update") if u.get("status") in ("completed", "failed")
    }
    assert {u["status"] for u in ended.values()} == {"completed"}
    (diff,) = (c for c in ended[calls["edit_file"]["toolCallId"]]["content"] if c["type"] == "diff")
    assert "discount // 100" in diff["newText"]
    words = "".join(u["content"]["text"] for u in client.updates("agent_message_chunk"))
    assert "All 3 tests pass now" in words
    assert git(project, "log", "-1", "--format=%s") == "Take the discount in per cent"


def test_without_a_key_it_says_how_to_set_one(agent: Callable[..., RawClient], project: Path) -> None:
    client = agent()
    reply = client.answer(client.ask("session/new", {"cwd": str(project), "mcpServers": []}))
    text = json.dumps(reply)
    if "error" not in reply:
        session = reply["result"]["sessionId"]
        text += json.dumps(client.answer(client.start_prompt(session, "Hello.")))
    assert "ANTHROPIC_API_KEY" in text
    assert "CANTRIP_CRYSTAL" in text


def test_on_the_command_line(project: Path, scripted: Callable[..., Path]) -> None:
    scripted(BUG)
    done = processes.run(
        [CANTRIP, "cast", "familiar", "One test fails."],
        cwd=project,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    shown = done.stdout + done.stderr
    assert "See what fails" in shown
    assert "Ran the tests, 3 passed (pytest)" in shown
    assert "All 3 tests pass now" in shown
    assert git(project, "status", "--porcelain") == ""


def test_in_conversation(project: Path, scripted: Callable[..., Path]) -> None:
    scripted([{"content": "Hello, I am here.", "when": "hello", "repeat": True}])
    done = processes.run(
        [CANTRIP, "repl"], cwd=project, input="hello\n", capture_output=True, text=True, timeout=200, check=False
    )
    assert "Hello, I am here." in done.stdout + done.stderr
