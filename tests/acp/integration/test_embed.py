"""The tests of `tests/acp/unit/test_embed.py` that start processes."""

import json
import sys

import anyio
import pytest

pytestmark = pytest.mark.anyio


PROGRAM = """
import asyncio, json, sys, tempfile
from pathlib import Path
from cantrip_acp import Cantrip, Circle, ScriptedCrystal
from cantrip_acp.acp import serve

def cantrip(workspace):
    crystal = ScriptedCrystal([{"content": f"in {workspace.name}", "delay_ms": 50}])
    return Cantrip(crystal, circle=Circle("conversation", ["done"], [{"max_turns": 2}], workspace=workspace))

async def client(port, folder):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    said = ""
    async def ask(number, method, params):
        nonlocal said
        writer.write(json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}).encode() + b"\\n")
        while True:
            message = json.loads(await reader.readline())
            update = message.get("params", {}).get("update", {})
            if update.get("sessionUpdate") == "agent_message_chunk":
                said += update["content"]["text"]
            if message.get("id") == number:
                return message["result"]
    await ask(0, "initialize", {"protocolVersion": 1})
    session = await ask(1, "session/new", {"cwd": str(folder), "mcpServers": []})
    prompt = {"sessionId": session["sessionId"], "prompt": [{"type": "text", "text": "where?"}]}
    stopped = await ask(2, "session/prompt", prompt)
    writer.close()
    return stopped["stopReason"], said

async def main():
    with tempfile.TemporaryDirectory() as base:
        agents = []
        async def connected(reader, writer):
            agents.append(asyncio.current_task())
            await serve(reader, writer, cantrips=cantrip, state_dir=Path(base) / "state")
            writer.close()
        server = await asyncio.start_server(connected, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        folders = [Path(base) / name for name in ("a", "b", "c")]
        for folder in folders:
            folder.mkdir()
        print(json.dumps(await asyncio.gather(*(client(port, folder) for folder in folders))))
        await asyncio.wait_for(asyncio.gather(*agents), 20)
        server.close()
        print(len(asyncio.all_tasks()))

asyncio.run(main())
"""


async def test_in_somebodys_asyncio_server_with_several_clients() -> None:
    done = await anyio.run_process([sys.executable, "-c", PROGRAM], check=False)
    assert done.returncode == 0, done.stderr.decode()
    replies, tasks = done.stdout.decode().splitlines()
    assert json.loads(replies) == [["end_turn", f"in {name}"] for name in "abc"]
    # Nothing of the agents is left but the program's own task.
    assert tasks == "1"
    assert done.stderr == b""
