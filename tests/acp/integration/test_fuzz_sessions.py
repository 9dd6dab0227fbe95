"""Whole conversations at random: the wrong thing at the wrong time in many sessions at once, and hostile answers.

`FUZZ=20 pytest tests/acp/integration/test_fuzz_sessions.py` runs twenty times as many.
"""

import copy
import json
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.support.acp_client import SOON, Silence
from tests.support.acp_scenarios import EVERYTHING, WRONG, Hostile, mark_of, nested

TIMES = int(os.environ.get("FUZZ", "1"))
PLACES = 4

SCRIPT: list[dict[str, Any]] = [
    {"when": "READ", "repeat": True, "tool_calls": [{"gate": "read_file", "args": {"path": "who.txt"}}]},
    {"when": "WRITE", "repeat": True, "tool_calls": [{"gate": "write_file", "args": {"path": "out.txt", "content": "x\n"}}]},
    {"when": "EDIT", "repeat": True, "content": "Now.",
     "tool_calls": [{"gate": "edit_file", "args": {"path": "out.txt", "old_text": "x", "new_text": "y"}}]},
    {"when": "CHILD", "repeat": True, "tool_calls": [{"gate": "call_agent_batch", "args": {"requests": ["READ it", "WRITE it"]}}]},
    {"when": "TERMINAL", "repeat": True, "tool_calls": [{"gate": "client_terminal", "args": {"command": "make", "seconds": 1}}]},
    {"when": "ASK", "repeat": True, "tool_calls": [{"gate": "ask_user", "args": {"question": "Which?", "choices": ["a", "b"]}}]},
    {"when": "TRICKLE", "repeat": True, "chunks": ["one ", "two ", "three "] * 5, "delay_ms": 4},
    {"when": "HANG", "repeat": True, "content": "late", "delay_ms": 600_000},
    {"when": "FAIL", "repeat": True, "error": {"status": 400, "message": "bad"}},
    {"repeat": True, "thinking": "Hm.", "content": "hi", "usage": {"prompt_tokens": 3, "completion_tokens": 2}},
]  # fmt: skip
INTENTS = [
    "READ",
    "READ",
    "WRITE",
    "EDIT",
    "CHILD",
    "TERMINAL",
    "TERMINAL",
    "ASK",
    "TRICKLE",
    "HANG",
    "FAIL",
    "hello",
    "/help",
    "/compact",
    "/fork",
    "/no",
    "",
]


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hostile]:
    base = tmp_path_factory.mktemp("fuzz-sessions")
    recipe = base / "r.cantrip.yaml"
    circle = {
        "medium": "conversation",
        "gates": [
            *("done", "read_file", "write_file", "edit_file", "call_agent", "call_agent_batch"),
            *("client_terminal", "ask_user"),
        ],
        "wards": [{"max_turns": 3}, {"max_depth": 1}],
    }
    recipe.write_text(
        json.dumps({"name": "f", "crystal": {"provider": "scripted", "responses": SCRIPT}, "circle": circle})
    )
    client = Hostile("--recipe", str(recipe), "--state-dir", str(base / "state"), "--log-file", str(base / "log"))
    client.base = base  # type: ignore[attr-defined]
    client.request("initialize", {"protocolVersion": 1, "clientCapabilities": EVERYTHING})
    client.add_from_text()
    client.places = [client.place(base, number) for number in range(PLACES)]  # type: ignore[attr-defined]
    yield client
    try:
        assert client.hang_up() < SOON
        log = (base / "log").read_text()
        assert "Traceback" not in log, log[log.index("Traceback") - 500 :][:4000]
    finally:
        client.close()


def spoiled(params: Any, rng: random.Random) -> Any:
    """The same parameters with one value anywhere in them replaced, taken away or added to."""
    params = copy.deepcopy(params)
    places: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        for key in list(node) if isinstance(node, dict) else range(len(node)):
            places.append((node, key))
            if isinstance(node[key], dict | list):
                walk(node[key])

    walk(params)
    if not places or rng.random() < 0.05:
        return rng.choice(WRONG)
    node, key = rng.choice(places)
    if isinstance(node, dict) and rng.random() < 0.2:
        del node[key]
    else:
        node[key] = rng.choice(WRONG)
    return params


def right(agent: Hostile, method: str, session: str, folder: Path, rng: random.Random) -> dict[str, Any]:
    """Parameters that are as they should be."""
    one: dict[str, Any] = {"sessionId": session}
    match method:
        case "initialize":
            return {"protocolVersion": 1, "clientCapabilities": EVERYTHING, "clientInfo": {"name": "x", "version": "1"}}
        case "authenticate":
            return {"methodId": "environment"}
        case "logout":
            return {}
        case "session/new":
            return {"cwd": str(folder), "mcpServers": [], "additionalDirectories": []}
        case "session/load" | "session/resume" | "session/fork":
            return {**one, "cwd": str(folder), "mcpServers": []}
        case "session/list":
            return rng.choice([{}, {"cwd": str(folder)}, {"cwd": "/nowhere"}, {"cursor": "MTA6c2Vzc19h"}])
        case "session/set_mode":
            return {**one, "modeId": rng.choice(["ask", "sandboxed", "trusted", "read-only", "no"])}
        case "session/set_config_option":
            option, value = (
                rng.choice(["mode", "model", "effort", "recipe"]),
                rng.choice(["ask", "trusted", "high", "x"]),
            )
            return {**one, "configId": option, "value": value}
        case "session/prompt":
            text = f"{rng.choice(INTENTS)} {mark_of(folder)}"
            blocks: list[Any] = [{"type": "text", "text": text}]
            if rng.random() < 0.2:
                blocks.append(rng.choice([
                    {"type": "resource_link", "name": "w", "uri": f"file://{folder}/who.txt"},
                    {"type": "resource", "resource": {"uri": "file:///x", "text": "t", "mimeType": "text/plain"}},
                    {"type": "image", "data": "aGk=", "mimeType": "image/png"},
                    {"type": "audio", "data": "!", "mimeType": "audio/wav"},
                ]))  # fmt: skip
            return {**one, "prompt": blocks}
        case _:
            return one


METHODS = [
    "initialize", "authenticate", "logout", "session/new", "session/load", "session/resume", "session/fork",
    "session/list", "session/close", "session/delete", "session/set_mode", "session/set_config_option", "session/prompt",
]  # fmt: skip
OFTEN = [*METHODS, *["session/prompt"] * 8, "session/new", "session/load"]


def step(agent: Hostile, rng: random.Random) -> None:
    """One thing that a client may do."""
    places: list[Path] = agent.places  # type: ignore[attr-defined]
    chance = rng.random()
    known = list(agent.kept)
    session = rng.choice(known) if known and rng.random() < 0.95 else rng.choice(["sess_x", "", "../x"])
    folder = agent.kept.get(session) or rng.choice(places)
    if chance < 0.62:
        method = rng.choice(OFTEN)
        params: Any = right(agent, method, session, folder if method != "session/new" else rng.choice(places), rng)
        if rng.random() < 0.25:
            params = spoiled(params, rng)
            if method in ("session/new", "session/fork") and isinstance(params, dict) and "cwd" in params:
                params["cwd"] = str(rng.choice(places))
            if method == "initialize":
                params = {"protocolVersion": rng.choice(WRONG)}
                if isinstance(params["protocolVersion"], int) and params["protocolVersion"] >= 0:
                    params["clientCapabilities"] = EVERYTHING
        id: Any = None
        if agent.owed and rng.random() < 0.1:
            id = json.loads(rng.choice(list(agent.owed)))
        agent.request(method, params, id=id)
    elif chance < 0.76:
        agent.tell(
            "session/cancel", spoiled({"sessionId": session}, rng) if rng.random() < 0.2 else {"sessionId": session}
        )
    elif chance < 0.84:
        wanted = json.loads(rng.choice(list(agent.owed))) if agent.owed else 5
        agent.tell(
            "$/cancel_request",
            rng.choice([{"requestId": wanted}, {"requestId": wanted}, spoiled({"requestId": wanted}, rng)]),
        )
    elif chance < 0.9:
        method = rng.choice(METHODS)
        # As a notification, which is not what it is.
        agent.tell(method, right(agent, method, session, folder, rng))
    elif chance < 0.95:
        batch = [{"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": session}}] * rng.randrange(3)
        agent.raw(rng.choice([
            json.dumps(batch).encode(), b"{", b"\xff\xfe", b"\x00" * 10, nested(rng.choice([50, 5000])), b'"x"', b"\r",
            b"[" * 5000, b'{"jsonrpc":"2.0","id":{},"method":"initialize"}', b'{"a":"' + b"x" * 200_000 + b'"}',
        ]) + b"\n")  # fmt: skip
    else:
        id = rng.choice([1, 0, -5, 2**70, "1", None, 1.0])
        agent.send({"jsonrpc": "2.0", "id": id, rng.choice(["result", "error"]): rng.choice(WRONG)})
    if rng.random() < 0.06:
        listen(agent, 0.05, 40)
    else:
        while rng.random() < 0.6 and listen(agent, rng.choice([0, 0.001, 0.01]), 1):
            pass


def listen(agent: Hostile, silence: float, most: int) -> bool:
    """Hear, and answer what is asked, until so many messages came; False where nothing did for so long."""
    for _ in range(most):
        try:
            agent.add_from_text(silence)
        except Silence:
            return False
    return True


@settings(
    max_examples=60 * TIMES,
    deadline=None,
    database=None,
    # What one example did is still there in the next, so none can be made smaller: the seed and the last lines are told.
    phases=[Phase.generate],
    report_multiple_bugs=False,
)
@given(st.integers(0, 2**32))
def test_conversations(agent: Hostile, seed: int) -> None:
    rng = agent.rng = random.Random(seed)
    for _ in range(rng.randrange(5, 40)):
        step(agent, rng)
    agent.settle()
    # Few enough to meet again.
    for session in list(agent.kept)[6:]:
        agent.request(rng.choice(["session/delete", "session/close"]), {"sessionId": session})
        agent.kept.pop(session)
    agent.settle()


def test_every_field_of_every_method(agent: Hostile) -> None:
    """Each value of each method's parameters in turn is of every wrong kind: each gets one answer, and nothing breaks."""
    folder: Path = agent.places[0]  # type: ignore[attr-defined]
    agent.rng = random.Random(1)
    agent.request("session/new", {"cwd": str(folder), "mcpServers": []})
    agent.settle()
    session = list(agent.kept)[-1]
    whole: dict[str, Any] = {
        "session/new": {
            "cwd": str(folder), "additionalDirectories": [str(folder)], "_meta": {"traceparent": "x", "cantrip": {}},
            "mcpServers": [{"name": "n", "command": "/x", "args": ["a"], "env": [{"name": "A", "value": "b"}]}],
        },
        "session/prompt": {
            "sessionId": session, "_meta": {"traceparent": "00-x", "baggage": "a=b", "trace_id": "x"},
            "prompt": [
                {"type": "text", "text": "hi", "annotations": {"audience": ["user"]}},
                {"type": "image", "data": "aGk=", "mimeType": "image/png", "uri": "file:///x"},
                {"type": "audio", "data": "aGk=", "mimeType": "audio/wav"},
                {"type": "resource_link", "uri": "file:///x", "name": "x", "mimeType": "text/plain", "size": 5},
                {"type": "resource", "resource": {"uri": "file:///x", "text": "t", "blob": "aGk=", "mimeType": "a/b"}},
            ],
        },
    }  # fmt: skip
    whole["session/fork"] = {**whole["session/new"], "sessionId": session, "_meta": {"cantrip": {"turn": 1}}}
    sent = 0
    for method in METHODS:
        params = whole.get(method) or right(agent, method, session, folder, agent.rng)
        for path in _paths(params):
            for value in WRONG:
                changed = copy.deepcopy(params)
                node: Any = changed
                for part in path[:-1]:
                    node = node[part]
                node[path[-1]] = value
                if method == "initialize" and path[0] == "clientCapabilities":
                    continue  # what is not offered any more may not be asked for, and that is another test's
                if method in ("session/new", "session/load", "session/resume", "session/fork") and path[0] == "cwd":
                    if value == "/":
                        continue
                agent.request(method, changed)
                sent += 1
        agent.settle()
        for other in [each for each in agent.kept if each != session]:
            agent.request("session/delete", {"sessionId": other})
        agent.settle()
    assert sent > 1000
    assert session in agent.kept


def _paths(node: Any, *before: Any) -> Iterator[tuple[Any, ...]]:
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in items:
        yield (*before, key)
        yield from _paths(value, *before, key)


def test_nothing_is_left(agent: Hostile) -> None:
    """After all of it: no process, few descriptors, and another two hundred sessions cost nothing that stays."""
    process = psutil.Process(agent.process.pid)

    def round_of(times: int) -> tuple[int, int]:
        for _ in range(times):
            for session in list(agent.kept):
                agent.request("session/delete", {"sessionId": session})
            agent.settle()
            for folder in agent.places:  # type: ignore[attr-defined]
                agent.request("session/new", {"cwd": str(folder), "mcpServers": []})
            agent.settle()
            for session, folder in agent.kept.items():
                for text in ("READ", "CHILD", "HANG"):
                    prompt = {"sessionId": session, "prompt": [{"type": "text", "text": f"{text} {mark_of(folder)}"}]}
                    agent.request("session/prompt", prompt)
            agent.settle()
        for session in list(agent.kept):
            agent.request("session/delete", {"sessionId": session})
        agent.settle()
        time.sleep(0.2)
        memory = process.memory_info()
        # Its own memory alone: how much of a library's file is mapped is up to the kernel.
        return process.num_fds(), memory.rss - memory.shared

    agent.rng = random.Random(2)
    agent.marks = dict(list(agent.marks.items())[-1:])
    # In a process of its own (`-k`, or a worker of xdist) ten rounds were too few to have loaded and allocated what stays.
    descriptors, memory = round_of(20)
    after, grown = round_of(40)
    assert after <= descriptors + 3, (descriptors, after)
    assert grown - memory < 8_000_000, (memory, grown)
    assert not agent.children()
    assert process.num_threads() < 60
    assert agent.counts["answered"] == agent.counts["asked"]
