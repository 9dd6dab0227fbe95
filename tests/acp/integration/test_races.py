"""Requests about one session that race each other: each has an answer, and what is left is a whole session or none."""

import itertools
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.acp_client import RawClient

GONE, BUSY = -32002, -32600


@pytest.fixture
def path(recipe: Callable[..., str]) -> str:
    return recipe([{"repeat": True, "delay_ms": 30, "chunks": ["A ", "word."]}])


@pytest.fixture
def begin(path: str, tmp_path: Path) -> Iterator[Callable[[], RawClient]]:
    """Starts agents that share a state folder."""
    running: list[RawClient] = []

    def start() -> RawClient:
        client = RawClient("--recipe", path, "--state-dir", str(tmp_path / "state"))
        running.append(client)
        client.initialize()
        return client

    yield start
    for client in running:
        client.close()


def params(method: str, session: str, folder: Path) -> dict[str, Any]:
    match method:
        case "session/load" | "session/resume" | "session/fork":
            return {"sessionId": session, "cwd": str(folder), "mcpServers": []}
        case "session/prompt":
            return {"sessionId": session, "prompt": [{"type": "text", "text": "Go."}]}
        case "session/list":
            return {}
        case _:
            return {"sessionId": session}


def race(agent: RawClient, session: str, folder: Path, methods: tuple[str, ...]) -> list[dict[str, Any]]:
    """All of these at once, in one write; their answers in this order."""
    lines = []
    ids = []
    for method in methods:
        agent._next_id += 1
        ids.append(agent._next_id)
        agent._asked[json.dumps(ids[-1])] = method
        request = {"jsonrpc": "2.0", "id": ids[-1], "method": method, "params": params(method, session, folder)}
        lines.append(json.dumps(request).encode() + b"\n")
    agent.raw(b"".join(lines))
    answers: dict[Any, dict[str, Any]] = {}
    while len(answers) < len(ids):
        message = agent.next()
        if "method" not in message and message.get("id") in ids:
            answers[message["id"]] = message
    return [answers[each] for each in ids]


def left(tmp_path: Path, session: str) -> list[str]:
    return sorted(each.name for each in (tmp_path / "state" / "looms").iterdir() if session in each.name)


DELETING = [
    ("session/load", "session/load", "session/delete"),
    ("session/load", "session/close", "session/delete"),
    ("session/prompt", "session/delete"),
    ("session/delete", "session/load", "session/delete"),
    ("session/fork", "session/load", "session/delete"),
    ("session/load", "session/list", "session/delete", "session/list"),
    ("session/close", "session/load", "session/prompt", "session/delete"),
    ("session/resume", "session/prompt", "session/close", "session/resume", "session/delete"),
]


@pytest.mark.parametrize("open_before", [False, True])
def test_what_is_deleted_is_gone(
    begin: Callable[[], RawClient], folder: Path, tmp_path: Path, open_before: bool
) -> None:
    agent, other = begin(), begin()
    for methods in DELETING * 3:
        session = agent.session(folder)
        agent.prompt(session)
        if not open_before:
            agent.call("session/close", {"sessionId": session})
        answers = race(agent, session, folder, methods)
        assert "result" in answers[methods.index("session/delete")], (methods, answers)
        for method, answer in zip(methods, answers, strict=True):
            if "error" in answer:
                assert answer["error"]["code"] in (GONE, BUSY), (methods, method, answer)
        if methods[-1] == "session/load":
            continue
        # Whatever was opened behind the deletion, a deletion ends it; then nothing is left here, and nothing is half open.
        assert agent.call("session/delete", {"sessionId": session}) == {}
        assert left(tmp_path, session) == [], methods
        for method in ("session/load", "session/prompt", "session/close"):
            assert agent.error(method, params(method, session, folder))["code"] == GONE, (methods, method)
        assert other.error("session/load", params("session/load", session, folder))["code"] == GONE
    for each in agent.call("session/list")["sessions"]:
        # Forks alone, and each can be opened.
        agent.call("session/load", params("session/load", each["sessionId"], folder))


def test_any_order_leaves_a_whole_session(begin: Callable[[], RawClient], folder: Path, tmp_path: Path) -> None:
    agent = begin()
    kinds = ["session/load", "session/resume", "session/close", "session/prompt", "session/fork", "session/list"]
    chance = random.Random(7)
    session = agent.session(folder)
    agent.prompt(session)
    for _ in range(30):
        race(agent, session, folder, tuple(chance.choices(kinds, k=5)))
        # Whatever came of these, it goes on.
        agent.call("session/load", params("session/load", session, folder))
        assert agent.prompt(session)["stopReason"] == "end_turn"
    assert len([name for name in left(tmp_path, session) if name.endswith(".loom.jsonl")]) == 1


def test_two_processes_race(begin: Callable[[], RawClient], folder: Path, tmp_path: Path) -> None:
    agents = [begin(), begin()]
    kinds = ("session/load", "session/delete", "session/list", "session/close")
    for methods in itertools.product(kinds, repeat=2):
        session = agents[0].session(folder)
        agents[0].prompt(session)
        agents[0].call("session/close", {"sessionId": session})
        asked = [
            agent.ask(method, params(method, session, folder)) for agent, method in zip(agents, methods, strict=True)
        ]
        for agent, each in zip(agents, asked, strict=True):
            agent.answer(each)
        for agent in agents:
            agent.answer(agent.ask("session/close", {"sessionId": session}))
        assert agents[0].call("session/delete", {"sessionId": session}) == {}
        assert left(tmp_path, session) == [], methods
