"""Providers of models as the client sets them: where queries go, which keys go there, and what the client is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.acp_client import InProcessClient
from tests.support.anthropic_replies import calls, says
from tests.support.provider_server import Wire

OWN_KEY = "sk-ant-of-the-environment-0123456789"
CLIENT_KEY = "Bearer of-the-client-0123456789"


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    for name in ("OPENAI_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY", "OPENROUTER_API_KEY", "CANTRIP_CRYSTAL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("ANTHROPIC_BASE_URL", raising=False)
    monkeypatch.setenv("ANTHROPIC_API_KEY", OWN_KEY)
    monkeypatch.setenv("CANTRIP_HEADERS", "X-Mine: of-the-environment")
    recipe = tmp_path / "r.yaml"
    recipe.write_text("circle: {gates: [done, write_file], wards: [{max_turns: 3}]}\n")
    client = InProcessClient("--recipe", str(recipe), "--state-dir", str(tmp_path / "state"))
    assert client.initialize()["agentCapabilities"]["providers"] == {}
    yield client
    client.close()


def providers(agent: Any) -> dict[str, Any]:
    found = agent.call("providers/list")["providers"]
    assert not any(each["required"] for each in found)
    return {each["providerId"]: each.get("current") for each in found}


def test_queries_go_where_the_client_says_with_its_headers_only(agent: Any, folder: Path) -> None:
    assert providers(agent) == {
        "anthropic": {"apiType": "anthropic", "baseUrl": "https://api.anthropic.com"},
        "openai": None,
        "google": None,
        "openrouter": None,
    }
    with Wire([says("Hello."), says("Again.")]) as wire:
        given = {"providerId": "anthropic", "apiType": "anthropic", "baseUrl": wire.url}
        assert agent.call("providers/set", {**given, "headers": {"Authorization": CLIENT_KEY, "X-Team": "blue"}}) == {}
        assert providers(agent)["anthropic"] == {"apiType": "anthropic", "baseUrl": wire.url}
        session = agent.session(folder)
        assert agent.prompt(session)["stopReason"] == "end_turn"
        (request,) = wire.requests
        assert (request.headers["authorization"], request.headers["x-team"]) == (CLIENT_KEY, "blue")
        assert OWN_KEY not in json.dumps(dict(request.headers))
        assert "x-mine" not in request.headers
    assert CLIENT_KEY not in json.dumps(agent.seen)
    assert OWN_KEY not in json.dumps(agent.seen)


def test_open_sessions_follow_from_the_next_query_on(agent: Any, folder: Path) -> None:
    agent.permit = None

    def route(wire: Wire, token: str) -> None:
        given = {"providerId": "anthropic", "apiType": "anthropic", "baseUrl": wire.url}
        assert agent.call("providers/set", {**given, "headers": {"Authorization": token}}) == {}

    write = calls("write_file", {"path": "a.txt", "content": "new"})
    with Wire([write]) as old, Wire([says("Written."), says("Again."), says("Back.")]) as new:
        route(old, "Bearer first-token-0123456789")
        session = agent.session(folder, mode="ask")
        prompt = agent.start_prompt(session)
        asked = agent.until(lambda message: message.get("method") == "session/request_permission")
        # In the middle of a prompt.
        route(new, "Bearer second-token-0123456789")
        agent.decide(asked, "allow_once")
        assert agent.answer(prompt)["result"]["stopReason"] == "end_turn"
        route(new, "Bearer third-token-0123456789")
        assert agent.prompt(session)["stopReason"] == "end_turn"
        assert [each.headers["authorization"].split()[1] for each in (*old.requests, *new.requests)] == [
            "first-token-0123456789", "second-token-0123456789", "third-token-0123456789",
        ]  # fmt: skip
        # The whole conversation goes there.
        assert "a.txt" in json.dumps(new.requests[1].json())
        agent.call("providers/disable", {"providerId": "anthropic"})
        failed = agent.answer(agent.start_prompt(session))["error"]
        assert "the client has disabled anthropic" in failed["message"]
        assert len(new.requests) == 2
        # Nothing else is lost: it goes on when the provider is there again.
        route(new, "Bearer fourth-token-0123456789")
        assert agent.prompt(session)["stopReason"] == "end_turn"
    assert "-token-0123456789" not in json.dumps(agent.seen)


def test_a_disabled_provider_is_not_used(agent: Any, folder: Path) -> None:
    for _ in range(2):
        assert agent.call("providers/disable", {"providerId": "anthropic"}) == {}
    assert agent.call("providers/disable", {"providerId": "nobody"}) == {}
    assert providers(agent)["anthropic"] is None
    assert agent.error("session/new", {"cwd": str(folder), "mcpServers": []})["code"] == -32000
    with Wire([says("Hello.")]) as wire:
        agent.call("providers/set", {"providerId": "anthropic", "apiType": "anthropic", "baseUrl": wire.url})
        assert agent.prompt(agent.session(folder))["stopReason"] == "end_turn"


def test_a_provider_without_a_key_here_can_be_the_clients(agent: Any, folder: Path) -> None:
    with Wire([]) as wire:
        agent.call("providers/disable", {"providerId": "anthropic"})
        agent.call("providers/set", {"providerId": "openai", "apiType": "openai", "baseUrl": f"{wire.url}/v1"})
        opened = agent.call("session/new", {"cwd": str(folder), "mcpServers": []})
        model = next(each for each in opened["configOptions"] if each["id"] == "model")
        assert model["currentValue"].startswith("openai:")
        assert not any(value["value"].startswith("anthropic:") for value in model["options"])


def test_routes_are_those_of_one_connection(agent: Any, tmp_path: Path) -> None:
    agent.call("providers/disable", {"providerId": "anthropic"})
    other = InProcessClient("--recipe", str(tmp_path / "r.yaml"), "--state-dir", str(tmp_path / "other"))
    try:
        other.initialize()
        assert providers(other)["anthropic"] is not None
        assert providers(agent)["anthropic"] is None
    finally:
        other.close()


@pytest.mark.parametrize(
    "wrong",
    [
        {"providerId": "nobody"}, {"apiType": "openai"}, {"baseUrl": "ftp://x"}, {"baseUrl": "https://x/?key=1"},
        {"baseUrl": ""}, {"headers": {"A b": "x"}}, {"headers": {"X-A": "s3cret-value\nX-B: y"}}, {"headers": {"A": 1}},
    ],
)  # fmt: skip
def test_what_cannot_be_set(agent: Any, wrong: dict[str, Any]) -> None:
    before = providers(agent)
    given = {"providerId": "anthropic", "apiType": "anthropic", "baseUrl": "https://gateway.example", **wrong}
    error = agent.error("providers/set", given)
    assert error["code"] == -32602
    assert "s3cret" not in json.dumps(error)
    assert providers(agent) == before
