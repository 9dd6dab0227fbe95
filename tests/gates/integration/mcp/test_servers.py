"""Servers of the official SDK over every transport, and every way of failing."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any, cast

import anyio
import pytest

from cantrip_acp import Circle
from cantrip_acp.gates.contract import Gate, GateContext, GateReply
from cantrip_acp.gates.mcp.connection import McpError
from cantrip_acp.gates.mcp.declaration import McpServer, unique_prefixes
from cantrip_acp.gates.mcp.servers import McpServers, OpenServers
from cantrip_acp.text.redaction import shared
from cantrip_acp.types.errors import DefinitionError, GateError
from tests.support.images import png

pytestmark = pytest.mark.anyio

PICTURE = base64.b64encode(png()).decode()


class _NoTurn:
    turn = None


async def reply_of(opened: OpenServers, name: str, /, **args: Any) -> GateReply:
    gate = next(g for g in opened.gates if g.name == name)
    return cast(GateReply, await cast(Any, gate.handler)(args, cast(GateContext, _NoTurn())))


async def call(opened: OpenServers, name: str, /, **args: Any) -> Any:
    return (await reply_of(opened, name, **args)).result


@asynccontextmanager
async def open_servers(circle: Circle, *servers: McpServer) -> AsyncIterator[OpenServers]:
    opened = await McpServers(servers).open(circle)
    try:
        yield opened
    finally:
        await opened.close()


def boxed(program: str, name: str = "tools", **options: Any) -> McpServer:
    return McpServer(name=name, command=sys.executable, args=(program,), start_s=60, **options)


@pytest.mark.parametrize("transport", ["boxed", "user", "http", "sse"])
async def test_tools_are_gates_over_every_transport(
    transport: str, sdk_program: str, circle: Circle, listening: Callable[[str], str]
) -> None:
    if transport in ("http", "sse"):
        server = McpServer(name="tools", transport=cast(Any, transport), url=listening(transport), start_s=60)
    else:
        server = boxed(sdk_program, sandboxed=transport == "boxed")
    async with open_servers(circle, server) as opened:
        assert opened.problems == []
        signatures = {gate.name: gate.signature() for gate in opened.gates}
        assert signatures["tools.add"] == "tools.add(a, b)"
        assert await call(opened, "tools.add", a=1, b=2) == 3
        assert await call(opened, "tools.echo", text="hello") == "hello"
        assert await call(opened, "tools.dotted_tool_name") == {"numbers": [1, 2, 3], "nested": {"deep": True}}
        pictured = await reply_of(opened, "tools.picture")
        assert pictured.result == "[image: image/png, 69 bytes]"
        assert [(image.kind, image.mime, image.data) for image in pictured.attachments] == [
            ("image", "image/png", PICTURE)
        ]
        with pytest.raises(GateError, match="Error executing tool fail"):
            await call(opened, "tools.fail", why="because")
        # The connection outlives a failure.
        assert await call(opened, "tools.add", a=2, b=2) == 4
        long = await call(opened, "tools.long", count=300_000)
        assert "characters left out" in long
        assert "\x1b" not in long
        assert len(long) < 210_000


async def test_a_sandboxed_server_has_the_circles_reach_and_one_of_the_users_has_the_users(
    program: str, circle: Circle, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    secret = tmp_path_factory.mktemp("elsewhere") / "secret"
    secret.write_text("the word")
    inside = boxed(program, name="inside", env={"GIVEN": "a value"})
    outside = boxed(program, name="outside", sandboxed=False)
    async with open_servers(circle, inside, outside) as opened:
        assert await call(opened, "outside.read", path=str(secret)) == "the word"
        with pytest.raises(GateError):
            await call(opened, "inside.read", path=str(secret))
        with pytest.raises(GateError):
            await call(opened, "inside.write", path=str(tmp_path / "new"), text="x")
        assert not (tmp_path / "new").exists()
        assert await call(opened, "inside.variable", name="GIVEN") == "a value"


async def test_a_ward_lets_a_sandboxed_server_write(program: str, tmp_path: Path) -> None:
    circle = Circle(gates=["done"], wards=[{"max_turns": 1}, {"bash_writable_paths": ["."]}], workspace=tmp_path)
    async with open_servers(circle, boxed(program)) as opened:
        await call(opened, "tools.write", path=str(tmp_path / "new"), text="written inside")
    assert (tmp_path / "new").read_text() == "written inside"


async def test_secrets_of_this_process_reach_no_server(
    program: str, circle: Circle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-not-for-servers-0001")
    servers = boxed(program, name="inside"), boxed(program, name="outside", sandboxed=False)
    async with open_servers(circle, *servers) as opened:
        assert await call(opened, "inside.variable", name="OPENAI_API_KEY") == ""
        assert await call(opened, "outside.variable", name="OPENAI_API_KEY") == ""


async def test_what_fails_of_a_clients_settings_is_told_once_and_briefly(program: str, circle: Circle) -> None:
    named = [
        boxed(program),
        McpServer(name="missing", command="no-such-program-here", sandboxed=False),
        McpServer(name="nobody", transport="http", url="http://127.0.0.1:1/mcp"),
    ]
    told: set[str] = set()
    for count in (1, 0):
        opened = await McpServers(named, client_told=told).open(circle)
        try:
            assert len(opened.problems) == count
            states = [opened.status(index)["state"] for index in range(3)]
            assert states == ["running", "failed", "failed"]
            # The list has all of it, whether it was told or not.
            assert "was not found" in opened.status(1)["error"]
        finally:
            await opened.close()
    (text,) = told
    assert text.startswith("2 MCP servers from your settings do not run, so the tools are missing: missing cannot be ")
    assert "; nobody cannot be reached: ConnectError" in text
    assert len(text) < 500


async def test_what_fails_is_named_and_keeps_nobody_else_waiting(program: str, circle: Circle) -> None:
    servers = [
        boxed(program),
        McpServer(name="missing", command="no-such-program-here"),
        McpServer(name="missing too", command="no-such-program-here", sandboxed=False),
        McpServer(name="silent", command="sleep", args=("1000",), start_s=1),
        McpServer(name="chatty", command="yes", start_s=1),
        McpServer(name="nobody", transport="http", url="http://127.0.0.1:1/mcp"),
    ]
    async with open_servers(circle, *servers) as opened:
        assert await call(opened, "tools.add", a=1, b=1) == 2
        text = "\n".join(opened.problems)
    assert len(opened.problems) == 5
    assert "'missing' cannot be reached: it left with exit status 127" in text
    assert "bash_network in the recipe's limits opens one" in text
    assert "'missing too' cannot be reached: the program 'no-such-program-here' was not found" in text
    assert "'silent' did not start within 1 s (start_s): " in text
    assert "'chatty' did not start within 1 s (start_s): " in text
    assert "'nobody' cannot be reached: ConnectError" in text


async def test_a_required_server_that_fails_is_an_error(program: str, circle: Circle) -> None:
    broken = McpServer(name="broken", command="no-such-program-here", required=True)
    with pytest.raises(McpError, match="'broken' cannot be reached"):
        await McpServers([boxed(program), broken]).open(circle)


@pytest.mark.parametrize("sandboxed", [True, False])
async def test_a_server_that_crashes_is_named_and_started_again(program: str, circle: Circle, sandboxed: bool) -> None:
    async with open_servers(circle, boxed(program, sandboxed=sandboxed)) as opened:
        with pytest.raises(GateError, match=r"'tools' ended during leave.*I am leaving"):
            await call(opened, "tools.leave", status=3)
        assert await call(opened, "tools.add", a=1, b=2) == 3
        for again in (True, True, False):
            with pytest.raises(GateError, match="ended during leave"):
                await call(opened, "tools.leave", status=3)
            with nullcontext() if again else pytest.raises(GateError, match="ended 4 times"):
                await call(opened, "tools.add", a=1, b=2)
        with pytest.raises(GateError, match="is not started again"):
            await call(opened, "tools.add", a=1, b=2)


async def test_a_call_has_its_time_and_a_cancel_ends_it_at_once(program: str, circle: Circle) -> None:
    async with open_servers(circle, boxed(program, call_s=0.5)) as opened:
        with pytest.raises(GateError, match=r"did not answer sleep within 0\.5 s"):
            await call(opened, "tools.sleep", seconds=2)
    async with open_servers(circle, boxed(program)) as opened:
        began = anyio.current_time()
        with anyio.move_on_after(0.3):
            await call(opened, "tools.sleep", seconds=600)
        assert anyio.current_time() - began < 30


async def test_nothing_is_left_of_a_server(program: str, circle: Circle, tmp_path: Path) -> None:
    mark = f"left-{os.getpid()}-{tmp_path.name}"
    servers = boxed(program, name="a"), boxed(program, name="b", sandboxed=False)
    marked = [
        McpServer(name=s.name, command=s.command, args=(*s.args, "stdio", mark), sandboxed=s.sandboxed, start_s=60)
        for s in servers
    ]
    async with open_servers(circle, *marked):
        assert len(_running(mark)) >= 2
    assert _running(mark) == []


STUBBORN = """
import os, signal, subprocess, sys, time
for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP): signal.signal(each, signal.SIG_IGN)
subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(1000)', sys.argv[2]])
program, sys.argv[1:] = sys.argv[1], ['stdio']
exec(open(program).read())
while True: time.sleep(1)
"""


@pytest.mark.parametrize("sandboxed", [True, False])
async def test_one_that_will_not_leave_is_ended_with_what_it_started(
    program: str, circle: Circle, tmp_path: Path, sandboxed: bool
) -> None:
    mark = f"stubborn-{os.getpid()}-{tmp_path.name}"
    arguments = ("-c", STUBBORN, program, mark)
    server = McpServer(name="s", command=sys.executable, args=arguments, sandboxed=sandboxed, start_s=60)
    async with open_servers(circle, server):
        assert len(_running(mark)) >= 2
    assert _running(mark) == []


ALONE = """
import sys, anyio
from cantrip_acp import Circle
from cantrip_acp.gates.mcp.declaration import McpServer
from cantrip_acp.gates.mcp.servers import McpServers
async def main():
    circle = Circle(gates=["done"], wards=[{"max_turns": 1}])
    server = McpServer(name="s", command=sys.executable, args=tuple(sys.argv[1:]), sandboxed=False, start_s=60)
    opened = await McpServers([server]).open(circle)
    print(opened.problems or "ready", flush=True)
    await anyio.sleep(1000)
anyio.run(main)
"""


def test_one_of_the_users_does_not_outlive_us_whatever_kills_us(program: str, tmp_path: Path) -> None:
    mark = f"orphan-{os.getpid()}-{tmp_path.name}"
    with subprocess.Popen(
        [sys.executable, "-c", ALONE, "-c", STUBBORN, program, mark], stdout=subprocess.PIPE, text=True
    ) as ours:
        assert ours.stdout is not None
        assert ours.stdout.readline() == "ready\n"
        theirs = set(_running(mark)) - {str(ours.pid)}
        assert len(theirs) == 2
        ours.kill()
    deadline = time.monotonic() + 60
    while left := _running(mark):
        assert time.monotonic() < deadline, left
        time.sleep(0.02)


def _running(mark: str) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark.encode() in (entry / "cmdline").read_bytes():
                found.append(entry.name)
        except OSError:
            continue
    return found


def test_declarations_refuse_what_cannot_be_and_hide_what_is_secret() -> None:
    for wrong in (
        {"name": "!!!", "command": "x"},
        {"name": "a"},
        {"name": "a", "command": "x", "env": {"A=B": "c"}},
        {"name": "a", "transport": "http", "url": "ftp://x"},
        {"name": "a", "transport": "http", "url": "http://x", "headers": {"A": "b\r\nC: d"}},
    ):
        with pytest.raises(DefinitionError, match="MCP server"):
            McpServer(**cast(Mapping[str, Any], wrong))
    server = McpServer(
        name="my server",
        transport="http",
        url="https://user:pass-word-1234@host.example/mcp?token=abc",
        headers={"Authorization": "Bearer very-secret-header"},
    )
    assert "secret" not in repr(server)
    assert "pass-word" not in repr(server)
    assert server.record() == {
        "name": "my server",
        "transport": "http",
        "url": "https://host.example/mcp",
        "headers": ["Authorization"],
    }
    server.hide(shared())
    assert "pass-word" not in shared().text("https://user:pass-word-1234@host.example")
    for url, secret in (
        ("https://host.example/mcp?api_key=a%2Bb-c-d-e-f&team=blue", "a%2Bb-c-d-e-f"),
        ("https://host.example/mcp?accessToken=a%2Bb-c-d-e-f&team=blue", "a+b-c-d-e-f"),
        ("https://host.example/mcp?profile=k3y0k3y0k3y0k3y0k3y0k3y0", "k3y0k3y0k3y0k3y0k3y0k3y0"),
        ("https://host.example/s/k9y0k9y0k9y0k9y0k9y0k9y0/sse", "k9y0k9y0k9y0k9y0k9y0k9y0"),
        ("https://t0ken-as-a-name@host.example/sse", "t0ken-as-a-name"),
    ):
        McpServer(name="a", transport="sse", url=url).hide(shared())
        assert secret not in shared().text(f"HTTP 401 at {url} and {secret}")
    McpServer(name="a", command="x", args=("--api-key", "one-of-the-args", "--token=two-of-the-args")).hide(shared())
    assert "-of-the-args" not in shared().text("x --api-key one-of-the-args --token=two-of-the-args")
    assert "blue" in shared().text("team=blue")
    assert "very-secret" not in shared().text("it says very-secret-header")
    assert unique_prefixes([server, McpServer(name="my-server", command="x")]) == ["my_server", "my_server_2"]


def test_gate_names_fit_circles(circle: Circle) -> None:
    """Dotted names are mapped for providers, Python and PATH by the circle."""
    gate = Gate("tools.add", "", {"type": "object"}, lambda args, context: None)
    assert Circle(gates=["done", gate]).tool_names["tools_add"] == "tools.add"
