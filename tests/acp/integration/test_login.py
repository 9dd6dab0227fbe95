"""Signing in and out: which ways are offered to whom, a key entered at a terminal, and a form where a key is missing."""

import json
import os
import re
import stat
import subprocess
import termios
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support import processes
from tests.support.acp_client import AGENT, RawClient
from tests.support.waiting import wait_for

NEW = "session/new"
KEYS = ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY", "OPENROUTER_API_KEY")
SECRET = "sk-test-0123456789abcdef"


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """An environment of its own, without a key."""
    bare = dict.fromkeys((*KEYS, "CANTRIP_CRYSTAL"), "")
    return {**bare, "XDG_CONFIG_HOME": str(tmp_path / "config"), "CANTRIP_CONFIG_DIR": str(tmp_path / "config/cantrip")}


@pytest.fixture
def agent(home: dict[str, str]) -> Iterator[RawClient]:
    client = RawClient(env=home)
    yield client
    client.close()


def dotenv(home: dict[str, str]) -> Path:
    code = "from cantrip_acp.crystals import keys; print(keys.dotenv_file())"
    python = Path(AGENT).parent / "python"
    return Path(subprocess.check_output([python, "-c", code], text=True, env={**os.environ, **home}).strip())


@pytest.mark.parametrize(
    ("capabilities", "types"),
    [
        ({}, ["agent"]),
        ({"auth": {"terminal": True}}, ["terminal", "agent"]),
        ({"auth": {"terminal": "yes"}}, ["agent"]),
        ({"auth": None, "_meta": {"terminal-auth": True}}, ["terminal", "agent"]),
        ({"auth": {"terminal": False}, "_meta": {"terminal-auth": False}}, ["agent"]),
    ],
)
def test_the_ways_that_are_offered(agent: RawClient, capabilities: dict[str, Any], types: list[str]) -> None:
    result = agent.initialize(**capabilities)
    assert [method.get("type", "agent") for method in result["authMethods"]] == types
    assert result["agentCapabilities"]["auth"] == {"logout": {}}
    if len(types) > 1:
        # Without a key the environment cannot succeed, so it is not the first.
        assert result["authMethods"][0]["args"] == ["--sign-in"]
    if "_meta" in capabilities and len(types) > 1:
        flagged = result["authMethods"][0]["_meta"]["terminal-auth"]
        shown = subprocess.run(
            [flagged["command"], *flagged["args"]], input="", capture_output=True, text=True, timeout=60, check=False
        )
        assert "Nothing was changed" in shown.stderr
    # A second handshake goes by the wire, and says the same.
    assert agent.initialize(**capabilities) == result


@pytest.mark.parametrize("where", ["variable", "file", "nowhere", "comment"])
@pytest.mark.parametrize("shows", [{"auth": {"terminal": True}}, {"elicitation": {"url": {}}}])
def test_the_first_way_can_succeed(home: dict[str, str], shows: dict[str, Any], where: str) -> None:
    path = dotenv(home)
    path.parent.mkdir(parents=True)
    path.write_text({"file": f"export OPENAI_API_KEY = {SECRET}\n", "comment": "# OPENAI_API_KEY=x\n"}.get(where, ""))
    client = RawClient(env={**home, "OPENAI_API_KEY": SECRET if where == "variable" else ""})
    try:
        ways = [method["id"] for method in client.initialize(**shows)["authMethods"]]
        other = "terminal" if "auth" in shows else "page"
        found = where in ("variable", "file")
        assert ways == (["environment", other] if found else [other, "environment"])
        if found:
            assert client.call("authenticate", {"methodId": ways[0]}) == {}
    finally:
        client.close()


def post(url: str, fields: dict[str, str], **headers: str) -> tuple[int, str]:
    """Send the form of the page; status and text."""
    request = urllib.request.Request(url, urllib.parse.urlencode(fields).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_a_key_is_entered_on_a_page(agent: RawClient, home: dict[str, str], folder: Path) -> None:
    assert agent.initialize(elicitation={"url": {}})["authMethods"][0]["id"] == "page"
    assert agent.error(NEW, {"cwd": str(folder), "mcpServers": []})["code"] == -32000
    pages: list[dict[str, Any]] = []

    def opened(params: dict[str, Any]) -> dict[str, Any]:
        pages.append(params)
        return {"action": "accept"}

    agent.services["elicitation/create"] = opened
    asked = agent.ask("authenticate", {"methodId": "page"})
    agent.until_served("elicitation/create")
    (page,) = pages
    url = page["url"]
    assert (page["mode"], page["requestId"]) == ("url", asked)
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{32}", url)
    with urllib.request.urlopen(url, timeout=60) as shown:
        assert "type=password" in shown.read().decode()
    good = {"variable": "ANTHROPIC_API_KEY", "key": SECRET}
    assert post(url[:-1], good)[0] == 404
    assert post(url, good, Host="example.com")[0] == 404
    assert post(url, good, Origin="http://example.com")[0] == 404
    assert post(url, {**good, "key": "short"})[0] == 400
    assert post(url, {**good, "variable": "PATH"})[0] == 400
    assert not dotenv(home).exists()
    status, text = post(url, good)
    assert (status, SECRET in text) == (200, False)
    done = agent.until(lambda m: m.get("method") == "elicitation/complete")
    assert done["params"] == {"elicitationId": page["elicitationId"]}
    assert agent.answer(asked)["result"] == {}
    assert dotenv(home).read_text().endswith(f"ANTHROPIC_API_KEY={SECRET}\n")
    assert stat.S_IMODE(dotenv(home).stat().st_mode) == 0o600
    agent.session(folder)
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(url, timeout=60)
    assert SECRET not in json.dumps(agent.seen) + agent.stderr()


@pytest.mark.parametrize("end", ["decline", "cancel", "$/cancel_request"])
def test_a_page_that_is_not_opened(agent: RawClient, home: dict[str, str], end: str) -> None:
    agent.initialize(elicitation={"url": {}})
    pages: list[str] = []

    def answer(params: dict[str, Any]) -> dict[str, Any]:
        pages.append(params["url"])
        return {"action": "accept" if end.startswith("$") else end}

    agent.services["elicitation/create"] = answer
    asked = agent.ask("authenticate", {"methodId": "page"})
    agent.until_served("elicitation/create")
    if end.startswith("$"):
        agent.tell(end, {"requestId": asked})
    assert agent.answer(asked)["error"]["code"] == (-32800 if end.startswith("$") else -32000)
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(pages[0], timeout=60)
    assert not dotenv(home).exists()


def test_the_page_is_for_clients_that_show_addresses(agent: RawClient) -> None:
    assert [m["id"] for m in agent.initialize(elicitation={"form": {}})["authMethods"]] == ["environment"]
    assert agent.error("authenticate", {"methodId": "page"})["code"] == -32602


def test_the_quick_look_for_a_key_knows_every_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from cantrip_acp.acp import initialize
    from cantrip_acp.crystals import keys
    from cantrip_acp.recipes.build.crystal_factory import KEYS as VARIABLES

    assert {name for names in VARIABLES.values() for name in names} < set(initialize.KEY_VARIABLES)
    for given in ({"CANTRIP_CONFIG_DIR": "~/here"}, {"XDG_CONFIG_HOME": str(tmp_path)}, {"XDG_CONFIG_HOME": "x"}, {}):
        with monkeypatch.context() as patch:
            for name in ("CANTRIP_CONFIG_DIR", "XDG_CONFIG_HOME"):
                patch.delenv(name, raising=False)
            for name, value in given.items():
                patch.setenv(name, value)
            assert initialize.dotenv_path() == str(keys.dotenv_file())


def at_a_terminal(home: dict[str, str], *answers: str) -> tuple[int, str]:
    """Run the sign-in in a terminal; its status and what was to be seen."""
    process, terminal = processes.on_terminal([AGENT, "--recipe", "coding", "--sign-in"], env={**os.environ, **home})
    seen = b""
    left = list(answers)
    deadline = time.monotonic() + 60
    with suppress(OSError):
        while time.monotonic() < deadline:
            piece = os.read(terminal, 4096)
            if not piece:
                break
            seen += piece
            if left and re.search(rb": ?\Z", seen):
                if len(left) < len(answers):  # a key is asked for without an echo
                    wait_for(lambda: not termios.tcgetattr(terminal)[3] & termios.ECHO)
                os.write(terminal, left.pop(0).encode() + b"\n")
    os.close(terminal)
    return process.wait(60), seen.decode()


def test_a_key_is_entered_at_a_terminal_and_forgotten_at_logout(home: dict[str, str], folder: Path) -> None:
    path = dotenv(home)
    path.parent.mkdir(parents=True)
    path.write_text("# mine\nOPENAI_API_KEY=by-hand-0123456789\nOTHER=1\n")
    status, seen = at_a_terminal(home, "anthropic", SECRET)
    assert (status, SECRET in seen) == (0, False), seen
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_text().endswith(f"OTHER=1\n# set by cantrip-acp --sign-in\nANTHROPIC_API_KEY={SECRET}\n")
    assert at_a_terminal(home, "anthropic", SECRET + "2")[0] == 0
    assert path.read_text().count("ANTHROPIC_API_KEY") == path.read_text().count("# set by") == 1
    client = RawClient(env=home)
    try:
        client.initialize()
        client.session(folder)
        assert client.call("logout") == {}
        assert path.read_text() == "# mine\nOPENAI_API_KEY=by-hand-0123456789\nOTHER=1\n"
        for method in (NEW, "session/load", "session/fork"):
            params = {"cwd": str(folder), "mcpServers": [], "sessionId": "x"}
            assert client.error(method, params)["code"] == -32000
        assert client.call("logout", {}) == {}
        assert client.call("authenticate", {"methodId": "environment"}) == {}
        client.session(folder)
        assert SECRET not in json.dumps(client.seen) + client.stderr()
    finally:
        client.close()


@pytest.mark.parametrize(
    "answers", [("nobody",), ("anthropic", "short"), ("anthropic", "with blank in it"), ("anthropic", "quoted\"'key")]
)
def test_what_is_no_key_changes_nothing(home: dict[str, str], answers: tuple[str, ...]) -> None:
    status, seen = at_a_terminal(home, *answers)
    assert (status, "changed" in seen) == (1, True), seen
    assert not dotenv(home).exists()


def test_the_terminal_method_is_for_those_who_have_it(agent: RawClient, folder: Path) -> None:
    agent.initialize()
    assert agent.error("authenticate", {"methodId": "terminal"})["code"] == -32602
    agent.initialize(auth={"terminal": True})
    assert agent.error("authenticate", {"methodId": "terminal"})["code"] == -32000


def test_a_missing_key_is_asked_about_by_a_form(agent: RawClient, home: dict[str, str], folder: Path) -> None:
    agent.initialize(elicitation={"form": {}})
    forms: list[dict[str, Any]] = []

    def fill(params: dict[str, Any]) -> Any:
        forms.append(params)
        if len(forms) == 2:
            path = dotenv(home)
            path.parent.mkdir(parents=True)
            path.write_text(f"ANTHROPIC_API_KEY={SECRET}\n")
        return {"action": "accept", "content": {"answer": "again"}}

    agent.services = {"elicitation/create": fill}
    asked = agent.ask(NEW, {"cwd": str(folder), "mcpServers": []}, id="new-1")
    assert "sessionId" in agent.answer(asked)["result"]
    assert len(forms) == 2
    assert (forms[0]["mode"], forms[0]["requestId"]) == ("form", "new-1")
    assert "ANTHROPIC_API_KEY" in forms[0]["message"]
    assert [choice["const"] for choice in forms[0]["requestedSchema"]["properties"]["answer"]["oneOf"]] == [
        "again",
        "stop",
    ]


@pytest.mark.parametrize(
    "answer",
    [{"action": "decline"}, {"action": "cancel"}, {"action": "_later"}, {"action": "accept"}, None, [], {"action": 5},
     {"action": "accept", "content": {"answer": "stop"}}, {"action": "accept", "content": {"answer": ["again"]}}],
)  # fmt: skip
def test_whoever_gives_up_is_told_what_to_set(agent: RawClient, folder: Path, answer: Any) -> None:
    agent.initialize(elicitation={"form": {}, "url": {}})
    agent.services = {"elicitation/create": lambda params: answer}
    error = agent.error(NEW, {"cwd": str(folder), "mcpServers": []})
    assert (error["code"], "ANTHROPIC_API_KEY" in error["message"]) == (-32000, True)


@pytest.mark.parametrize("offer", [{}, {"form": None}, {"url": {}}, {"form": True}])
def test_no_form_without_the_capability(agent: RawClient, folder: Path, offer: dict[str, Any]) -> None:
    agent.initialize(elicitation=offer)
    assert agent.error(NEW, {"cwd": str(folder), "mcpServers": []})["code"] == -32000


def test_no_form_where_a_terminal_takes_the_key(agent: RawClient, folder: Path) -> None:
    agent.initialize(elicitation={"form": {}}, auth={"terminal": True})
    assert agent.error(NEW, {"cwd": str(folder), "mcpServers": []})["code"] == -32000


def test_signing_out_of_what_needs_no_key(home: dict[str, str], folder: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "free.cantrip.yaml"
    recipe.write_text(
        json.dumps(
            {
                "name": "free",
                "crystal": {"provider": "scripted", "responses": [{"content": "Here."}]},
                "circle": {"medium": "conversation", "gates": ["done"], "wards": [{"max_turns": 3}]},
            }
        )
    )
    client = RawClient("--recipe", str(recipe), env={**home, "OPENAI_API_KEY": SECRET})
    try:
        client.initialize(elicitation={"form": {}})
        assert client.call("logout") == {}
        session = client.session(folder)
        assert client.prompt(session)["stopReason"] == "end_turn"
        # A crystal that has a key is not to be had by another way.
        chosen = {"sessionId": session, "configId": "model", "value": "openai:gpt-5"}
        assert "signed out" in client.error("session/set_config_option", chosen)["message"]
        assert client.call("authenticate", {"methodId": "environment"}) == {}
        client.call("session/set_config_option", chosen)
    finally:
        client.close()


def test_a_form_does_not_sign_in_again(home: dict[str, str], folder: Path) -> None:
    client = RawClient(env={**home, "ANTHROPIC_API_KEY": SECRET})
    client.services = {"elicitation/create": lambda params: {"action": "accept", "content": {"answer": "again"}}}
    try:
        client.initialize(elicitation={"form": {}})
        session = client.session(folder)
        client.call("logout")
        assert client.error(NEW, {"cwd": str(folder), "mcpServers": []})["code"] == -32000
        assert not [message for message in client.seen if message.get("method") == "elicitation/create"]
        # What lives goes on.
        assert client.call("session/set_mode", {"sessionId": session, "modeId": "trusted"}) == {}
    finally:
        client.close()
