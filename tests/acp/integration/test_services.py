"""Services as a client sees them: the command ``/services`` and the requests of the editor."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.acp_client import RawClient
from tests.support.fixtures.acp import Start

pytestmark = pytest.mark.sandbox


def said(agent: RawClient, session: str, text: str) -> str:
    agent.seen.clear()
    assert agent.prompt(session, text)["stopReason"] == "end_turn"
    return agent.said()


def test_services_are_listed_shown_and_stopped(start: Start, folder: Path) -> None:
    script = [
        {"tool_calls": [{"gate": "start", "args": {"command": "echo here; sleep 1000", "name": "web"}}]},
        {"content": "Started."},
        {"content": "Again."},
    ]
    agent = start(script, gates=["done", "start", "output", "stop"])
    agent.permit = "allow_once"
    session = agent.session(folder)
    assert said(agent, session, "/services") == "- no services"
    agent.prompt(session, "Start it.")
    assert "- web (echo here; sleep 1000): running for" in said(agent, session, "/services")
    names = {"sessionId": session, "service": "web"}
    (listed,) = agent.call("_cantrip/services/list", {"sessionId": session})["services"]
    assert (listed["id"], listed["command"], listed["running"]) == ("web", "echo here; sleep 1000", True)
    assert agent.call("_cantrip/services/output", names) == {"output": "here"}
    assert "here" in said(agent, session, "/services output web")
    (stopped,) = agent.call("_cantrip/services/stop", names)["services"]
    assert not stopped["running"]
    assert "the user stopped it" in stopped["state"]
    assert agent.error("_cantrip/services/stop", {**names, "service": "x"})["code"] == -32602
    assert "there is no service 'x'" in said(agent, session, "/services stop x")
    assert "/services output ID" in said(agent, session, "/services dance")
