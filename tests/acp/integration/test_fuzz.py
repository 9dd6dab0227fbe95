"""Anything at all on the wire: the agent answers every request once, answers nothing else, and goes on.

One agent process takes thousands of messages, so what one of them broke would show in the next.
"""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.acp_client import SOON, RawClient

SCHEMA = json.loads((Path(__file__).parents[2] / "support" / "acp_schema" / "v1.json").read_text())["$defs"]

METHODS = [
    "initialize", "authenticate", "logout", "session/new", "session/prompt", "session/cancel", "session/load",
    "session/list", "session/set_mode", "session/resume", "session/close", "session/delete", "session/fork",
    "session/set_config_option", "session/update", "fs/read_text_file", "$/cancel_request", "_x/y", "", "é",
]  # fmt: skip

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
values = st.recursive(scalars, lambda v: st.lists(v, max_size=4) | st.dictionaries(st.text(max_size=8), v, max_size=4))
SETTINGS = settings(max_examples=300, deadline=None)


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RawClient]:
    base = tmp_path_factory.mktemp("fuzz")
    recipe = base / "r.cantrip.yaml"
    recipe.write_text(
        json.dumps(
            {
                "name": "fuzz",
                "crystal": {"provider": "scripted", "responses": [{"content": "hi", "repeat": True}]},
                "circle": {"medium": "conversation", "gates": ["done"], "wards": [{"max_turns": 2}]},
            }
        )
    )
    client = RawClient("--recipe", str(recipe), "--state-dir", str(base / "state"), "--log-file", str(base / "log"))
    client.initialize()
    client.folder = str(base)  # type: ignore[attr-defined]
    client.session_id = client.session(base)  # type: ignore[attr-defined]
    sync(client)
    yield client
    try:
        assert client.hang_up() < SOON
        log = (base / "log").read_text()
        assert "Traceback" not in log, log[-3000:]
    finally:
        client.close()


count = 0


def sync(agent: RawClient) -> list[dict[str, Any]]:
    """Everything that came up to now."""
    global count
    count += 1
    marker = f"sync {count}"
    agent.seen.clear()
    agent.ask("_sync", id=marker)
    agent.answer(marker)
    return agent.seen[:-1]


def is_id(value: Any) -> bool:
    """Whether a request may have this id: null, a string, or an integer of 64 bits."""
    return value is None or isinstance(value, str) or (type(value) is int and -(2**63) <= value < 2**63)


@SETTINGS
@given(st.binary(max_size=300))
def test_any_bytes(agent: RawClient, data: bytes) -> None:
    agent.raw(data.replace(b"\n", b" ") + b"\n")
    for message in sync(agent):
        assert message["id"] is None
        assert message["error"]["code"] in (-32700, -32600)


@SETTINGS
@given(st.data())
def test_a_damaged_message(agent: RawClient, data: st.DataObject) -> None:
    line = json.dumps({"jsonrpc": "2.0", "id": "hurt", "method": "session/prompt", "params": {"prompt": [], "x": "é"}})
    damaged = bytearray(line.encode())
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(damaged) - 1))
        damaged[place : place + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=2)).replace(b"\n", b"")
        if not damaged:
            return
    agent.raw(bytes(damaged) + b"\n")
    agent._checked = False
    try:
        answers = [message for message in sync(agent) if "method" not in message]
    finally:
        agent._checked = True
    assert len(answers) <= 1
    for message in answers:
        assert "error" in message


def is_json(message: dict[str, Any]) -> bool:
    """Infinity is no JSON, so the agent cannot know that the line was a notification."""
    try:
        json.dumps(message, allow_nan=False)
    except ValueError:
        return False
    return True


@SETTINGS
@example({"jsonrpc": "2.0", "method": "initialize", "error": float("inf")})
@given(
    st.fixed_dictionaries(
        {},
        optional={
            "jsonrpc": st.just("2.0") | values,
            "id": values,
            "method": st.sampled_from(METHODS) | values,
            "params": values,
            "result": values,
            "error": values,
        },
    )
)
def test_any_envelope(agent: RawClient, message: dict[str, Any]) -> None:
    called = message.get("jsonrpc") == "2.0" and isinstance(message.get("method"), str)
    if called and message["method"] in METHODS and "id" in message and is_id(message["id"]) and is_json(message):
        # A request, by chance sometimes one that succeeds (`session/list` needs no parameters). Some answer only later.
        agent._asked[json.dumps(message["id"])] = message["method"]
        agent.raw(json.dumps(message).encode() + b"\n")
        agent.answer(message["id"])
        assert sync(agent) == []
        return
    agent.raw(json.dumps(message).encode() + b"\n")
    answers = sync(agent)
    assert len(answers) <= 1
    if called and "id" not in message and is_json(message):
        assert answers == []
    for answer in answers:
        assert "error" in answer


def an_instance(node: Any, rng: random.Random, depth: int = 0) -> Any:
    """A value for a schema: mostly right, sometimes not."""
    if rng.random() < 0.06 or depth > 12:
        return rng.choice([None, 5, -1, 1e300, True, "x", "", [], {}, [None], {"a": 1}, "é☃\u0000", 2**80])
    if "$ref" in node:
        return an_instance(SCHEMA[node["$ref"].rpartition("/")[2]], rng, depth + 1)
    if "const" in node:
        return node["const"]
    out: Any = {}
    for part in node.get("allOf", []):
        made = an_instance(part, rng, depth + 1)
        if not isinstance(made, dict):
            return made
        out.update(made)
    for union in ("oneOf", "anyOf"):
        if node.get(union):
            made = an_instance(rng.choice(node[union]), rng, depth + 1)
            if not isinstance(made, dict):
                return made
            out.update(made)
    kind = node.get("type")
    if isinstance(kind, list):
        kind = rng.choice(kind)
    if kind == "string":
        return rng.choice(["", "x", "file:///x", "/", "é" * 100])
    if kind in ("integer", "number"):
        return rng.randrange(-2, 70000)
    if kind == "boolean":
        return rng.random() < 0.5
    if kind == "null":
        return None
    if kind == "array":
        return [an_instance(node.get("items", {}), rng, depth + 1) for _ in range(rng.randrange(3))]
    for name, property in node.get("properties", {}).items():
        if name in node.get("required", ()) or rng.random() < 0.4:
            out[name] = an_instance(property, rng, depth + 1)
    return out


REQUESTS = {
    "initialize": "InitializeRequest",
    "authenticate": "AuthenticateRequest",
    "session/new": "NewSessionRequest",
    "session/prompt": "PromptRequest",
    "session/load": "LoadSessionRequest",
    "session/resume": "ResumeSessionRequest",
    "session/fork": "LoadSessionRequest",
    "session/list": "ListSessionsRequest",
    "session/close": "CloseSessionRequest",
    "session/delete": "DeleteSessionRequest",
    "session/set_mode": "SetSessionModeRequest",
    "session/set_config_option": "SetSessionConfigOptionRequest",
    "session/cancel": "CancelNotification",
    "$/cancel_request": "CancelRequestNotification",
}


@SETTINGS
@given(st.randoms(use_true_random=False), st.sampled_from(sorted(REQUESTS)), st.booleans(), st.booleans())
def test_messages_made_from_the_schema(
    agent: RawClient, rng: random.Random, method: str, real: bool, as_request: bool
) -> None:
    params = an_instance(SCHEMA[REQUESTS[method]], rng)
    if real and isinstance(params, dict) and method not in ("session/close", "session/delete"):
        for name, value in (("sessionId", agent.session_id), ("cwd", agent.folder)):  # type: ignore[attr-defined]
            if name in params:
                params[name] = value
    if not as_request:
        agent.tell(method, params)
        assert [message for message in sync(agent) if "method" not in message] == []
        return
    request = agent.ask(method, params)
    agent.seen.clear()
    reply = agent.answer(request)
    if "error" in reply:
        assert reply["error"]["code"] in (-32600, -32601, -32602, -32002, -32800), (params, reply)
    for message in agent.seen:
        if "method" in message and method == "session/prompt":
            assert message["params"]["sessionId"] == params["sessionId"]
    # A session that was just opened may be told what it does not have.
    extra = [message for message in sync(agent) if "method" not in message]
    assert extra == []


def test_nothing_grew(agent: RawClient) -> None:
    """Ten thousand bad lines, and as many prompts as a long day: the memory of the agent stays."""
    process = psutil.Process(agent.process.pid)
    sync(agent)

    def burden(times: int) -> int:
        for _ in range(times):
            agent.raw(b"{nonsense}\n" * 50)
            agent.raw(b'{"jsonrpc":"2.0","method":"session/cancel","params":{"sessionId":"x"}}\n' * 10)
            agent.prompt(agent.session_id)  # type: ignore[attr-defined]
            agent.seen.clear()
        return process.memory_info().rss

    before = burden(100)
    after = burden(200)
    assert after - before < 6_000_000, (before, after)


def test_one_agent_took_it_all(agent: RawClient, folder: Path) -> None:
    assert agent.process.poll() is None
    assert agent.prompt(agent.session(folder))["stopReason"] == "end_turn"
