"""A client that never answers: each service has a time limit, and what it ends with is an observation."""

import json
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import pytest

from cantrip_acp import Cantrip, Circle, ScriptedCrystal
from cantrip_acp.acp import serve
from cantrip_acp.acp.client_services import editor_files, terminals

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("gate", "args", "expected"),
    [
        ("read_file", {"path": "a.txt"}, "the editor did not answer within 0.2 seconds, reading 'a.txt'"),
        ("edit_file", {"path": "a.txt", "old_text": "saved", "new_text": "x"}, "within 0.2 seconds, reading 'a.txt'"),
        ("write_file", {"path": "b.txt", "content": "x"}, "within 0.2 seconds, reading 'b.txt'"),
        ("client_terminal", {"command": "true"}, "the editor did not answer terminal/create within 0.2 seconds"),
    ],
)
async def test_a_client_that_never_answers(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gate: str, args: Mapping[str, Any], expected: str
) -> None:
    for module, name in ((editor_files, "READ_SECONDS"), (editor_files, "WRITE_SECONDS")):
        monkeypatch.setattr(module, name, 0.2)
    monkeypatch.setattr(terminals.ClientTerminals._request, "__defaults__", (0.2,))
    (folder / "a.txt").write_text("saved\n")

    def cantrip(workspace: Path) -> Cantrip:
        steps = [{"tool_calls": [{"gate": gate, "args": dict(args)}]}, {"content": "Done."}]
        return Cantrip(
            ScriptedCrystal(steps),
            circle=Circle("conversation", ["done", gate], [{"max_turns": 5}], workspace=workspace),
        )

    ours, theirs = socket.socketpair()
    async with (
        await anyio.abc.SocketStream.from_socket(ours) as a,
        await anyio.abc.SocketStream.from_socket(theirs) as b,
    ):
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(lambda: serve(b, b, cantrips=cantrip, state_dir=tmp_path / "state"))
                updates = await _talk(a, folder)
                tasks.cancel_scope.cancel()
    result = next(update for update in updates if update.get("rawOutput") is not None)
    assert expected in result["rawOutput"]["output"]
    assert result["status"] == "failed"
    assert (folder / "a.txt").read_text() == "saved\n"


async def _talk(stream: anyio.abc.SocketStream, folder: Path) -> list[dict[str, Any]]:
    """A prompt in a session that allows everything; the updates of the tool call."""
    updates: list[dict[str, Any]] = []
    buffer = b""

    async def ask(number: int, method: str, params: Any) -> Any:
        nonlocal buffer
        await stream.send(
            json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}).encode() + b"\n"
        )
        while True:
            while b"\n" not in buffer:
                buffer += await stream.receive()
            line, _, buffer = buffer.partition(b"\n")
            message = json.loads(line)
            if message.get("method") == "session/update":
                updates.append(message["params"]["update"])
            elif "method" not in message and message.get("id") == number:
                return message["result"]

    lends = {"fs": {"readTextFile": True, "writeTextFile": True}, "terminal": True}
    await ask(0, "initialize", {"protocolVersion": 1, "clientCapabilities": lends})
    session = (await ask(1, "session/new", {"cwd": str(folder), "mcpServers": []}))["sessionId"]
    await ask(2, "session/set_mode", {"sessionId": session, "modeId": "trusted"})
    text = [{"type": "text", "text": "go"}]
    assert (await ask(3, "session/prompt", {"sessionId": session, "prompt": text}))["stopReason"] == "end_turn"
    return updates
