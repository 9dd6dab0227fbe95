"""MCP servers that a client names for a session, in a real agent: every transport, modes, permissions, trust, failures."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cantrip_acp.acp.initialize import initialize_result
from cantrip_acp.acp.v2.initialize import result_of_v1
from cantrip_acp.recipes.trust import Ledger
from tests.support.acp_client import RawClient, still_alive
from tests.support.fixtures.mcp import listening  # noqa: F401 - a fixture

SERVER = Path(__file__).parents[2] / "support" / "plain_mcp_server.py"
ADD: list[dict[str, Any]] = [
    {"tool_calls": [{"gate": "tools.add", "args": {"a": 2, "b": 3}}]},
    {"tool_calls": [{"gate": "done", "args": {"answer": "added"}}]},
]


def stdio(folder: Path, name: str = "tools", **env: str) -> dict[str, Any]:
    program = shutil.copy(SERVER, folder / "toolserver.py")
    variables = [{"name": key, "value": value} for key, value in env.items()]
    return {"name": name, "command": sys.executable, "args": [str(program)], "env": variables}


@pytest.fixture
def opened(recipe: Callable[..., str], tmp_path: Path) -> Any:
    clients: list[RawClient] = []

    def begin(responses: list[dict[str, Any]], **options: Any) -> RawClient:
        path = recipe(responses, gates=["done"])
        client = RawClient("--recipe", path, "--state-dir", str(tmp_path / "state"), **options)
        clients.append(client)
        result = client.initialize()
        assert result["agentCapabilities"]["mcpCapabilities"] == {"http": True, "sse": True}
        return client

    yield begin
    for client in clients:
        client.close()


def results(agent: RawClient, title: str) -> list[dict[str, Any]]:
    ids = {u["toolCallId"] for u in agent.updates("tool_call") if title in u["title"]}
    return [
        u
        for u in agent.updates("tool_call_update")
        if u["toolCallId"] in ids and u.get("status") in ("completed", "failed")
    ]


def test_a_tool_of_a_named_server_is_a_tool_call(opened: Any, folder: Path) -> None:
    agent = opened(ADD)
    session = agent.session(folder, mcpServers=[stdio(folder)])
    assert agent.prompt(session)["stopReason"] == "end_turn"
    shown = results(agent, "Add numbers (tools)")
    assert [(u["status"], u["rawOutput"]["output"]) for u in shown] == [("completed", 5)]
    servers = agent.children()
    assert servers
    agent.call("session/close", {"sessionId": session})
    assert still_alive(servers, 30) == []


@pytest.mark.parametrize("transport", ["http", "sse"])
def test_one_that_is_reached_over_http(
    opened: Any,
    folder: Path,
    transport: str,
    listening: Callable[[str], str],  # noqa: F811
) -> None:
    agent = opened(ADD)
    headers = [{"name": "Authorization", "value": "Bearer of-nobody-in-particular"}]
    server = {"name": "tools", "type": transport, "url": listening(transport), "headers": headers}
    assert agent.prompt(agent.session(folder, mcpServers=[server]))["stopReason"] == "end_turn"
    assert [(u["status"], u["rawOutput"]["output"]) for u in results(agent, "Add numbers (tools)")] == [
        ("completed", 5)
    ]
    assert "of-nobody-in-particular" not in agent.stderr() + str(agent.seen)


def test_a_session_that_is_loaded_again_has_them_again(opened: Any, folder: Path) -> None:
    first = opened([*ADD, *ADD])
    session = first.session(folder, mcpServers=[stdio(folder)])
    first.prompt(session)
    first.hang_up()
    second = opened([*ADD, *ADD])
    second.call("session/load", {"sessionId": session, "cwd": str(folder), "mcpServers": [stdio(folder)]})
    second.prompt(session, "again")
    assert [u["rawOutput"]["output"] for u in results(second, "Add numbers (tools)")][-1] == 5


def test_a_server_that_cannot_start_is_told_and_the_session_works(opened: Any, folder: Path) -> None:
    agent = opened([{"content": "Here I am."}])
    broken = {"name": "broken", "command": "no-such-program-here", "args": [], "env": []}
    session = agent.session(
        folder, mcpServers=[broken, {"name": "gone", "type": "http", "url": "http://127.0.0.1:1/", "headers": []}]
    )
    assert agent.prompt(session)["stopReason"] == "end_turn"
    said = agent.said()
    assert "2 MCP servers from your settings do not run" in said
    assert "broken cannot be reached" in said
    assert "gone cannot be reached" in said
    assert "Here I am." in said


def test_it_runs_in_the_sandbox_until_its_command_is_trusted(opened: Any, folder: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("the word")
    read = [{"tool_calls": [{"gate": "tools.read", "args": {"path": str(secret)}}]}, {"content": "Done."}]
    server = stdio(folder)
    agent = opened(read)
    agent.prompt(agent.session(folder, mcpServers=[server]))
    assert [u["status"] for u in results(agent, "read (tools)")] == ["failed"]
    Ledger(tmp_path / "state").grant_command([server["command"], *server["args"]])
    agent = opened(read)
    agent.prompt(agent.session(folder, mcpServers=[server]))
    assert [(u["status"], u["rawOutput"]["output"]) for u in results(agent, "read (tools)")] == [
        ("completed", "the word")
    ]


def test_it_is_asked_about_and_read_only_takes_it_away(opened: Any, folder: Path) -> None:
    asked: list[Any] = []

    def refuse(params: Any) -> Any:
        asked.append(params["toolCall"]["title"])
        chosen = next(o["optionId"] for o in params["options"] if o["kind"] == "reject_once")
        return {"outcome": {"outcome": "selected", "optionId": chosen}}

    agent = opened([*ADD, *ADD], permit=None)
    agent.services["session/request_permission"] = refuse
    session = agent.session(folder, mcpServers=[stdio(folder)])
    agent.prompt(session)
    assert asked
    assert "Add numbers" in asked[0]
    assert results(agent, "Add numbers (tools)")[-1]["status"] == "failed"
    agent.call("session/set_mode", {"sessionId": session, "modeId": "read-only"})
    before = len(asked)
    agent.prompt(session, "again")
    assert len(asked) == before
    assert "gate not available: 'tools.add'" in str(agent.updates("tool_call_update"))


def test_read_only_before_the_servers_came_binds_them_as_well(opened: Any, folder: Path) -> None:
    agent = opened(ADD)
    session = agent.session(folder, mcpServers=[stdio(folder)])
    agent.call("session/set_mode", {"sessionId": session, "modeId": "read-only"})
    agent.prompt(session)
    assert "gate not available: 'tools.add'" in str(agent.updates("tool_call_update"))


def test_secrets_of_a_server_reach_nobody(opened: Any, folder: Path, tmp_path: Path) -> None:
    value = "a-secret-of-the-server-19"
    show = [{"tool_calls": [{"gate": "tools.variable", "args": {"name": "MY_TOKEN"}}]}, {"content": "Done."}]
    agent = opened(show)
    session = agent.session(folder, mcpServers=[stdio(folder, MY_TOKEN=value)])
    agent.prompt(session)
    assert results(agent, "variable (tools)")[-1]["rawOutput"]["output"] == "[redacted]"
    agent.hang_up()
    assert value not in agent.stderr()
    kept = subprocess.run(["grep", "-rl", value, str(tmp_path / "state")], capture_output=True, text=True, check=False)
    assert kept.stdout == ""


@pytest.mark.parametrize(
    ("server", "place"),
    [
        ({"name": "a", "type": "carrier pigeon", "url": "x"}, "type"),
        ({"name": "a", "args": []}, "mcpServers"),
        ({"name": "a", "type": "http", "url": "file:///etc/passwd", "headers": []}, "mcpServers"),
        ({"name": "", "command": "x", "args": [], "env": []}, "mcpServers"),
        ({"name": "a", "command": "x", "args": "x"}, "args"),
        ({"name": "a", "command": "x", "args": [], "env": [{"name": "A=B", "value": "c"}]}, "mcpServers"),
    ],
)
def test_a_wrong_server_is_refused_with_its_place(opened: Any, folder: Path, server: Any, place: str) -> None:
    agent = opened([{"content": "x"}])
    error = agent.error("session/new", {"cwd": str(folder), "mcpServers": [server]})
    assert error["code"] == -32602
    assert place in str(error)
    agent.session(folder)


def test_a_cancel_does_not_wait_for_a_slow_server(opened: Any, folder: Path) -> None:
    agent = opened([{"content": "x"}])
    slow = {"name": "slow", "command": "sleep", "args": ["1000"], "env": []}
    session = agent.session(folder, mcpServers=[slow])
    prompt = agent.start_prompt(session)
    agent.tell("session/cancel", {"sessionId": session})
    assert agent.answer(prompt)["result"]["stopReason"] == "cancelled"


def test_nothing_is_left_when_the_client_goes(opened: Any, folder: Path) -> None:
    agent = opened(ADD)
    agent.prompt(agent.session(folder, mcpServers=[stdio(folder)]))
    family = agent.children()
    assert family
    agent.hang_up()
    assert still_alive(family, 30) == []


def test_servers_of_the_settings_are_called_so_and_their_failure_is_told_once(
    recipe: Callable[..., str], tmp_path: Path, folder: Path
) -> None:
    path = recipe([{"content": "Well.", "repeat": True}], gates=["done"])
    agent = RawClient("--recipe", path, "--state-dir", str(tmp_path / "state"))
    try:
        # A client that can show questions of servers.
        agent.initialize(elicitation={"form": {}, "url": {}}, session={"notices": {}})
        named = [stdio(folder), *({"name": name, "command": "/no/such", "args": [], "env": []} for name in ("a", "b"))]
        for _ in range(2):
            session = agent.session(folder, mcpServers=named)
            agent.prompt(session)
            servers = agent.call("_cantrip/mcp/list", {"sessionId": session})["servers"]
            assert [(each["origin"], each["state"]) for each in servers] == [
                ("client", "running"), ("client", "failed"), ("client", "failed")
            ]  # fmt: skip
        [note] = agent.updates("notice")
        assert "2 MCP servers from your settings do not run, so the tools are missing: a cannot be" in str(note)
    finally:
        agent.close()


def test_a_client_lists_and_restarts_servers(opened: Any, folder: Path) -> None:
    late = folder / "late.py"
    agent = opened(
        [{"tool_calls": [{"gate": "tools.leave", "args": {"status": 3}}]}, {"content": "Well.", "repeat": True}]
    )
    missing = {"name": "late", "command": sys.executable, "args": [str(late), "--token", "hidden-1234567"], "env": []}
    session = agent.session(folder, mcpServers=[stdio(folder, SECRET_KEY="hidden-7654321"), missing])
    names = {"sessionId": session}
    agent.prompt(session)

    tools, failed = agent.call("_cantrip/mcp/list", names)["servers"]
    assert (tools["name"], tools["origin"], tools["transport"], tools["state"]) == (
        "tools",
        "client",
        "stdio",
        "failed",
    )
    assert "ended during leave: it left with exit status 3" in tools["error"]
    assert tools["output"] == "I am leaving"
    assert {"gate": "tools.add", "description": "Adds two numbers.", "usable": True} in tools["tools"]
    assert (failed["state"], failed["tools"]) == ("failed", [])
    assert "MCP server 'late' cannot be reached" in failed["error"]
    assert "No such file" in failed["output"]
    assert "hidden-" not in str([tools, failed])

    shutil.copy(SERVER, late)
    for place in (0, 1):
        servers = agent.call("_cantrip/mcp/restart", {**names, "server": place})["servers"]
        assert (servers[place]["state"], servers[place]["error"]) == ("running", "")
    # Its gates come when the session is opened again.
    assert {tool["usable"] for tool in servers[0]["tools"]} == {True}
    assert {tool["usable"] for tool in servers[1]["tools"]} == {False}
    # One that runs is ended first.
    before = agent.children()
    agent.call("_cantrip/mcp/restart", {**names, "server": 0})
    assert len(still_alive(before, 0)) < len(before)
    assert agent.prompt(session)["stopReason"] == "end_turn"
    agent.call("session/close", names)
    agent.call("session/load", {**names, "cwd": str(folder), "mcpServers": [stdio(folder), missing]})
    agent.prompt(session)
    assert {tool["usable"] for tool in agent.call("_cantrip/mcp/list", names)["servers"][1]["tools"]} == {True}
    for wrong in ({**names, "server": 2}, {**names, "server": -1}, {**names, "server": "tools"}, names):
        assert agent.error("_cantrip/mcp/restart", wrong)["code"] == -32602
    assert agent.error("_cantrip/mcp/list", {"sessionId": "none"})["code"] == -32002


# --- questions of servers

ASKING = """
import json, sys
import toolserver

def ask(params):
    print(json.dumps({"jsonrpc": "2.0", "id": "q1", "method": "elicitation/create", "params": params}), flush=True)
    while True:
        message = json.loads(sys.stdin.readline())
        if message.get("id") == "q1":
            return message

def tell(id):
    told = {"jsonrpc": "2.0", "method": "notifications/elicitation/complete", "params": {"elicitationId": id}}
    print(json.dumps(told), flush=True)

def visit(tells):
    page = {"mode": "url", "message": "Sign in", "url": "https://example.com/in", "elicitationId": "mine"}
    answer = ask(page)
    if tells:
        tell("mine")
    return toolserver.result(json.dumps(answer.get("result") or answer["error"]["message"]))

def fill():
    field = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    answer = ask({"mode": "form", "message": "Who?", "requestedSchema": field})
    return toolserver.result(json.dumps(answer.get("result") or answer["error"]["message"]))

toolserver.TOOLS["visit"] = (visit, "Asks to open a page.", {"tells": "boolean"})
toolserver.TOOLS["fill"] = (fill, "Asks for a name.", {})
answer, visited = toolserver.call, []

def call(name, arguments):
    if name == "echo" and not visited:
        page = {"mode": "url", "message": "Pay", "url": "https://example.com/pay", "elicitationId": "pay"}
        visited.append(page)
        toolserver.after_answer.append(lambda: tell("pay"))
        raise toolserver.Refused(-32042, "This needs a page", {"elicitations": [page]})
    if name == "echo":
        return toolserver.result("paid")
    return answer(name, arguments)

toolserver.call = call
toolserver.main()
"""


def asking(folder: Path) -> dict[str, Any]:
    server = stdio(folder)
    (folder / "asking.py").write_text(ASKING)
    return {**server, "args": [str(folder / "asking.py")]}


def one_call(gate: str, **args: Any) -> list[dict[str, Any]]:
    return [{"tool_calls": [{"gate": gate, "args": args}]}, {"tool_calls": [{"gate": "done", "args": {"answer": "x"}}]}]


@pytest.mark.parametrize("tells", [True, False])
@pytest.mark.parametrize("action", ["accept", "decline"])
def test_a_server_asks_to_open_a_page(opened: Any, folder: Path, action: str, tells: bool) -> None:
    agent = opened(one_call("tools.visit", tells=tells))
    agent.initialize(elicitation={"url": {}})
    asked: list[dict[str, Any]] = []
    agent.services["elicitation/create"] = lambda params: asked.append(params) or {"action": action}
    session = agent.session(folder, mcpServers=[asking(folder)])
    agent.prompt(session)
    (page,) = asked
    assert (page["mode"], page["url"], page["message"]) == ("url", "https://example.com/in", "tools: Sign in")
    assert (page["sessionId"], page["toolCallId"]) == (session, agent.updates("tool_call")[0]["toolCallId"])
    told = [m["params"]["elicitationId"] for m in agent.seen if m.get("method") == "elicitation/complete"]
    assert told == ([page["elicitationId"]] if action == "accept" else [])
    (result,) = results(agent, "visit (tools)")
    assert json.loads(result["rawOutput"]["output"])["action"] == action


def test_a_server_asks_with_a_form(opened: Any, folder: Path) -> None:
    agent = opened(one_call("tools.fill"))
    agent.initialize(elicitation={"form": {}})
    agent.services["elicitation/create"] = lambda params: {"action": "accept", "content": {"name": params["message"]}}
    agent.prompt(agent.session(folder, mcpServers=[asking(folder)]))
    (result,) = results(agent, "fill (tools)")
    assert json.loads(result["rawOutput"]["output"]) == {"action": "accept", "content": {"name": "tools: Who?"}}


def test_a_call_that_needs_a_page_is_made_again_after_it(opened: Any, folder: Path) -> None:
    agent = opened(one_call("tools.echo", text="x"))
    agent.initialize(elicitation={"url": {}})
    asked: list[str] = []
    agent.services["elicitation/create"] = lambda params: asked.append(params["url"]) or {"action": "accept"}
    agent.prompt(agent.session(folder, mcpServers=[asking(folder)]))
    assert asked == ["https://example.com/pay"]
    (result,) = results(agent, "echo (tools)")
    assert (result["status"], result["rawOutput"]["output"]) == ("completed", "paid")
    assert [m["method"] for m in agent.seen if str(m.get("method")).startswith("elicitation")] == [
        "elicitation/create", "elicitation/complete",
    ]  # fmt: skip


def test_a_server_is_told_that_nobody_can_be_asked(opened: Any, folder: Path) -> None:
    agent = opened(one_call("tools.visit", tells=False))
    agent.prompt(agent.session(folder, mcpServers=[asking(folder)]))
    (result,) = results(agent, "visit (tools)")
    assert "not supported" in result["rawOutput"]["output"]


def test_servers_are_promised_only_where_the_sdk_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert initialize_result()["agentCapabilities"]["mcpCapabilities"] == {"http": True, "sse": True}
    # As `uvx cantrip-acp` installs it.
    monkeypatch.setattr(sys, "path", [])
    told = initialize_result()
    assert told["agentCapabilities"]["mcpCapabilities"] == {"http": False, "sse": False}
    assert "mcp" not in result_of_v1(told)["capabilities"]["session"]
