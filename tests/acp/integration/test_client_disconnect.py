"""The end: a client that closes our input, stops reading, or dies. Turns are recorded, nothing is left, status 0."""

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.acp.unit.test_cancel import BUSY, running
from tests.support.acp_client import AGENT, SOON, RawClient, at_rest, still_alive
from tests.support.fixtures.acp import DONE, Start
from tests.support.waiting import in_a_loom, wait_for


def loom_of(state: Path) -> list[dict[str, Any]]:
    (path,) = (state / "looms").glob("*.loom.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


def test_hanging_up_when_nothing_runs(start: Start, folder: Path) -> None:
    agent = start()
    agent.prompt(agent.session(folder))
    assert agent.hang_up() < SOON


def test_hanging_up_while_the_model_thinks(start: Start, folder: Path, state: Path) -> None:
    agent = start([{"content": "late", "delay_ms": 60_000}], "--state-dir", str(state))
    prompt = agent.start_prompt(agent.session(folder))
    wait_for(lambda: in_a_loom(state, '"type":"cast"'))
    assert agent.hang_up() < SOON
    assert agent.answer(prompt)["result"]["stopReason"] == "cancelled"
    end = loom_of(state)[-1]
    assert (end["type"], end["reason"]) == ("cast", "cancelled")


def test_what_was_asked_just_before_is_still_answered(start: Start, folder: Path) -> None:
    agent = start()
    asked = [agent.ask("session/new", {"cwd": str(folder), "mcpServers": []}) for _ in range(3)]
    agent.hang_up()
    answered: set[int] = set()
    while answered != set(asked):
        message = agent.next()
        if "method" not in message:
            answered.add(message["id"])


@pytest.mark.sandbox
@pytest.mark.parametrize("how", ["close", "SIGTERM", "SIGINT", "SIGHUP", "deaf"])
def test_every_way_to_leave_a_busy_agent(start_process: Start, folder: Path, state: Path, how: str) -> None:
    agent = start_process([{"bash": BUSY}], "--state-dir", str(state), medium="bash", gates=["done"])
    agent.start_prompt(agent.session(folder))
    agent.until(running)
    family = agent.family()
    assert agent.children()
    began = time.monotonic()
    if how == "close":
        assert agent.hang_up() < SOON
    elif how == "deaf":
        # It still holds our input, but nobody reads our output any more.
        assert agent.process.stdout is not None
        agent.process.stdout.close()
        agent.tell("session/nothing")
        agent.ask("_ping")
        assert agent.gone(began) < SOON
    else:
        agent.process.send_signal(getattr(signal, how))
        assert agent.gone(began) < SOON
    assert not still_alive(family, 30)
    turns = [record for record in loom_of(state) if record["type"] == "turn"]
    assert turns[-1]["reason"] == "cancelled"
    assert "started" in turns[-1]["observation"]["output"]["stdout"]


@pytest.mark.sandbox
@pytest.mark.timing
@pytest.mark.parametrize("how", ["close", "SIGTERM"])
def test_how_long_it_takes_to_leave(start_process: Start, folder: Path, how: str) -> None:
    """Within one second, with a command that ignores every polite signal."""
    times = []
    for _ in range(3):
        agent = start_process([{"bash": BUSY}], medium="bash", gates=["done"])
        agent.start_prompt(agent.session(folder))
        agent.until(running)
        family = agent.family()
        began = time.monotonic()
        if how == "close":
            agent.hang_up()
        else:
            agent.process.send_signal(getattr(signal, how))
            agent.gone(began)
        assert not still_alive(family, 30)
        times.append(time.monotonic() - began)
    assert sorted(times)[1] < 1.0, times


@pytest.mark.sandbox
def test_a_client_that_is_killed(recipe: Callable[..., str], folder: Path, state: Path) -> None:
    """The client's death closes both pipes at once; the agent is nobody's child then, and ends all the same."""
    path = recipe([{"bash": BUSY}], medium="bash", gates=["done"])
    read, write = os.pipe()
    client = os.fork()
    if not client:
        try:
            agent = RawClient("--recipe", path, "--state-dir", str(state))
            agent.initialize()
            agent.start_prompt(agent.session(folder))
            agent.until(running)
            os.write(write, str(agent.process.pid).encode())
            time.sleep(60)
        finally:
            os._exit(1)
    os.close(write)
    agent = psutil.Process(int(os.read(read, 100)))
    os.close(read)
    family = [agent, *agent.children(recursive=True)]
    assert len(family) > 1
    os.kill(client, signal.SIGKILL)
    os.waitpid(client, 0)
    assert not still_alive(family, 30)
    assert loom_of(state)[-1]["reason"] == "cancelled"


@pytest.mark.sandbox
def test_an_agent_that_is_killed_leaves_no_process(start_process: Start, folder: Path) -> None:
    agent = start_process([{"bash": BUSY}], medium="bash", gates=["done"])
    agent.start_prompt(agent.session(folder))
    agent.until(running)
    family = agent.family()
    agent.process.kill()
    assert not still_alive(family, 30)


def test_a_client_that_stops_reading_in_a_flood_and_leaves(start_process: Start, folder: Path) -> None:
    echo = {"gate": "echo", "args": {"text": "x"}}
    flood = {"chunks": ["x" * 10_000] * 100, "tool_calls": [echo], "repeat": True}
    agent = start_process([flood], wards=[{"max_turns": 10_000}])
    agent.start_prompt(agent.session(folder))
    process = psutil.Process(agent.process.pid)
    at_rest(process)
    memory = process.memory_info().rss
    time.sleep(0.3)
    assert process.memory_info().rss - memory < 5_000_000
    assert agent.hang_up() < SOON


def test_a_file_that_ends_is_nobody_leaving(recipe: Callable[..., str], folder: Path, tmp_path: Path) -> None:
    """What a file asked for is done in its own time."""
    import subprocess

    hello = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": 1}}
    new = {"jsonrpc": "2.0", "id": 1, "method": "session/new", "params": {"cwd": str(folder), "mcpServers": []}}
    asked = tmp_path / "asked"
    asked.write_text(json.dumps(hello) + "\n" + json.dumps(new) + "\n")
    with asked.open("rb") as source:
        ended = subprocess.run(
            [AGENT, "--recipe", recipe([DONE])], stdin=source, capture_output=True, timeout=60, check=True
        )
    said = [json.loads(line) for line in ended.stdout.splitlines()]
    assert [message["id"] for message in said if "id" in message] == [0, 1]
