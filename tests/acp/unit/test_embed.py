"""`serve`: the agent inside somebody's program, over whatever streams it has."""

import asyncio
import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from cantrip_acp import Cantrip, Circle, ScriptedCrystal
from cantrip_acp.acp import serve
from tests.support.acp_schema_check import V1_UNSTABLE, check

pytestmark = pytest.mark.anyio


def cantrip(workspace: Path) -> Cantrip:
    crystal = ScriptedCrystal([{"content": f"in {workspace.name}"}])
    return Cantrip(crystal, circle=Circle("conversation", ["done"], [{"max_turns": 2}], workspace=workspace))


async def talk(send: Callable[[bytes], Any], receive: Callable[[], Any], folder: Path) -> list[Any]:
    """Handshake, session, prompt; every message that came."""
    buffer = b""
    came: list[Any] = []

    async def ask(number: int, method: str, params: Any) -> Any:
        nonlocal buffer
        await send(json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}).encode() + b"\n")
        while True:
            while b"\n" not in buffer:
                buffer += bytes(await receive())
            line, _, buffer = buffer.partition(b"\n")
            came.append(json.loads(line))
            if came[-1].get("id") == number:
                return came[-1]["result"]

    check("InitializeResponse", await ask(0, "initialize", {"protocolVersion": 1}), V1_UNSTABLE)
    session = await ask(1, "session/new", {"cwd": str(folder), "mcpServers": []})
    check("NewSessionResponse", session)
    prompt = {"sessionId": session["sessionId"], "prompt": [{"type": "text", "text": "where?"}]}
    result = await ask(2, "session/prompt", prompt)
    check("PromptResponse", result)
    assert result["stopReason"] == "end_turn"
    said = [m["params"]["update"] for m in came if m.get("method") == "session/update"]
    assert [u["content"]["text"] for u in said if "content" in u] == [f"in {folder.name}"]
    return came


async def test_over_anyio_streams(folder: Path, tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    a = await anyio.abc.SocketStream.from_socket(ours)
    b = await anyio.abc.SocketStream.from_socket(theirs)
    with anyio.fail_after(60):
        async with a, b, anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: serve(b, b, cantrips=cantrip, state_dir=tmp_path / "state"))
            await talk(a.send, a.receive, folder)
            await a.send_eof()
    assert list((tmp_path / "state" / "looms").iterdir())


async def test_over_asyncio_streams(folder: Path, tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=theirs)
    client_reader, client_writer = await asyncio.open_connection(sock=ours)

    async def send(data: bytes) -> None:
        client_writer.write(data)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: serve(reader, writer, cantrips=cantrip, state_dir=tmp_path / "state"))
            await talk(send, lambda: client_reader.read(65536), folder)
            client_writer.write_eof()
    for each in (writer, client_writer):
        each.close()
        await each.wait_closed()


@pytest.mark.parametrize("as_files", [True, False])
async def test_over_descriptors_and_files(folder: Path, tmp_path: Path, as_files: bool) -> None:
    to_agent_read, to_agent_write = os.pipe()
    from_agent_read, from_agent_write = os.pipe()
    source: Any = os.fdopen(to_agent_read, "rb", closefd=False) if as_files else to_agent_read
    sink: Any = os.fdopen(from_agent_write, "wb", closefd=False) if as_files else from_agent_write

    async def send(data: bytes) -> None:
        os.write(to_agent_write, data)

    async def receive() -> bytes:
        await anyio.wait_readable(from_agent_read)
        return os.read(from_agent_read, 65536)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: serve(source, sink, cantrips=cantrip, state_dir=tmp_path / "state"))
            await talk(send, receive, folder)
            os.close(to_agent_write)
    # They stay open: they are the caller's.
    for fd in (to_agent_read, from_agent_read, from_agent_write):
        os.close(fd)


async def test_it_ends_with_the_program_that_holds_it(folder: Path, tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    stream = await anyio.abc.SocketStream.from_socket(theirs)
    with anyio.fail_after(60):
        async with stream, anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: serve(stream, stream, cantrips=cantrip, state_dir=tmp_path / "state"))
            await anyio.sleep(0.1)
            tasks.cancel_scope.cancel()
    ours.close()


async def test_anything_else_is_refused() -> None:
    with pytest.raises(TypeError, match="reader must be"):
        await serve("stdin", "stdout", cantrips=cantrip)
    with pytest.raises(OSError, match="Bad file descriptor"):
        await serve(999, 999, cantrips=cantrip)
