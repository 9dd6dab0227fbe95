"""Every way to die at every stage: nothing outlives it, the loom opens, and the session loads again."""

import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.acp.unit.test_cancel import BUSY, running
from tests.support.acp_client import AGENT, SOON, RawClient, still_alive
from tests.support.fixtures.acp import DONE

STAGES = ["greeted", "opened", "streaming", "asked", "command", "cell", "server", "children"]
BUSIEST = ["asked", "cell", "server", "children"]
WAYS = ["kill client", "kill agent", "SIGTERM", "stdin", "stdout"]

SERVER = """
import sys, json
for line in sys.stdin:
    m = json.loads(line)
    r = {}
    if m.get("method") == "initialize":
        r = {"protocolVersion": m["params"]["protocolVersion"], "capabilities": {"tools": {}},
             "serverInfo": {"name": "s", "version": "1"}}
    elif m.get("method") == "tools/list":
        r = {"tools": []}
    if "id" in m:
        print(json.dumps({"jsonrpc": "2.0", "id": m["id"], "result": r}), flush=True)
"""

CLIENT = """
import os, subprocess, sys, threading
# Passes bytes between the test and the agent, so that it can be killed as a client is.
agent = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
def carry(source, sink):
    while data := os.read(source, 65536):
        os.write(sink, data)
threading.Thread(target=carry, args=(0, agent.stdin.fileno()), daemon=True).start()
carry(agent.stdout.fileno(), 1)
"""

CELL = {"code": "print('started', flush=True)\nimport time\nwhile True: time.sleep(0.01)"}


def script(stage: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The crystal's responses at a stage, and what the recipe is."""
    match stage:
        case "asked":
            write = {"gate": "write_file", "args": {"path": "a", "content": "b"}}
            return [{"tool_calls": [write]}, DONE], {"gates": ["done", "write_file"]}
        case "streaming":
            return [{"chunks": ["word "] * 10_000, "delay_ms": 2}, DONE], {}
        case "cell":
            return [CELL, DONE], {"medium": "code", "gates": ["done"]}
        case "children":
            wards = [{"max_turns": 9}, {"max_depth": 1}]
            responses = [{"bash": "call_agent_batch one two", "when": "go"}, {"bash": BUSY}, {"bash": BUSY}, DONE]
            return responses, {"medium": "bash", "gates": ["done", "call_agent_batch"], "wards": wards}
        case _:
            return [{"bash": BUSY}, DONE], {"medium": "bash", "gates": ["done"]}


def bring(agent: RawClient, stage: str, folder: Path) -> str | None:
    """Bring an agent to a stage; the session's id."""
    agent.permit = None if stage == "asked" else "allow_once"
    if stage == "greeted":
        return None
    servers: list[Any] = []
    if stage == "server":
        servers = [{"name": "s", "command": sys.executable, "args": ["-c", SERVER], "env": []}]
    session = agent.session(folder, mode="ask" if stage == "asked" else None, mcpServers=servers)
    if stage == "opened":
        return session
    agent.start_prompt(session)
    if stage == "asked":
        agent.until(lambda message: message.get("method") == "session/request_permission")
    elif stage == "streaming":
        agent.until(lambda message: "agent_message_chunk" in json.dumps(message))
    else:
        agent.until(running)
    return session


@pytest.mark.sandbox
@pytest.mark.parametrize(
    ("stage", "way"), [(s, w) for s in STAGES for w in WAYS if w.startswith("kill") or s in BUSIEST]
)
def test_nothing_outlives_it(stage: str, way: str, recipe: Callable[..., str], folder: Path, tmp_path: Path) -> None:
    responses, options = script(stage)
    arguments = ["--recipe", recipe(responses, **options), "--state-dir", str(tmp_path / "state")]
    agent = RawClient(*arguments, argv=[sys.executable, "-c", CLIENT, AGENT] if way == "kill client" else None)
    try:
        agent.initialize()
        session = bring(agent, stage, folder)
        family = agent.family()
        assert agent.process.stdin is not None
        assert agent.process.stdout is not None
        match way:
            case "kill client" | "kill agent":
                agent.process.kill()
            case "SIGTERM":
                agent.process.send_signal(signal.SIGTERM)
            case "stdin":
                agent.process.stdin.close()
            case "stdout":
                agent.process.stdout.close()
                # It learns so when it speaks.
                agent.ask("_ping")
        agent.process.wait(60)
        alive = still_alive(family, 30)
        assert not alive, alive
    finally:
        agent.close()
    if session is None or stage == "opened":
        return
    again = RawClient(*arguments)
    try:
        again.initialize()
        loaded = again.call("session/load", {"sessionId": session, "cwd": str(folder), "mcpServers": []})
        assert loaded["modes"]["currentModeId"] == ("ask" if stage == "asked" else "sandboxed")
        assert again.hang_up() < SOON
    finally:
        again.close()
