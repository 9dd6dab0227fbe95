"""Servers that lie: raw lines on stdio, schemas that reach out, answers without end."""

from __future__ import annotations

import http.server
import sys
import threading
from pathlib import Path
from typing import Any, cast

import pytest

from cantrip_acp import Circle
from cantrip_acp.gates.contract import GateContext
from cantrip_acp.gates.mcp.declaration import McpServer
from cantrip_acp.gates.mcp.servers import McpServers
from cantrip_acp.gates.mcp.tools import checked_schema
from cantrip_acp.types.errors import GateError

pytestmark = pytest.mark.anyio

RAW = """
import json, sys
TOOLS = {tools}
def say(value): sys.stdout.write(value if isinstance(value, str) else json.dumps(value) + "\\n"); sys.stdout.flush()
for line in sys.stdin:
    ask = json.loads(line)
    if "id" not in ask: continue
    method, id = ask["method"], ask["id"]
    if method == "initialize":
        about = {{"capabilities": {{"tools": {{}}}}, "serverInfo": {{"name": "raw", "version": "1"}}}}
        say({{"jsonrpc": "2.0", "id": id, "result": {{"protocolVersion": "2025-06-18", **about}}}})
    elif method == "tools/list":
        {listing}
    elif method == "tools/call":
        {answer}
    else:
        say({{"jsonrpc": "2.0", "id": id, "error": {{"code": -32601, "message": "no"}}}})
"""
LIST = 'say({"jsonrpc": "2.0", "id": id, "result": {"tools": TOOLS}})'
ONE = [{"name": "go", "description": "d", "inputSchema": {"type": "object"}}]


def raw(folder: Path, *, tools: Any = ONE, listing: str = LIST, answer: str = "pass", **options: Any) -> McpServer:
    file = folder / "raw.py"
    file.write_text(RAW.format(tools=repr(tools), listing=listing, answer=answer))
    return McpServer(name="raw", command=sys.executable, args=(str(file),), start_s=30, **options)


class _NoTurn:
    turn = None


async def answered(circle: Circle, server: McpServer) -> Any:
    opened = await McpServers([server]).open(circle)
    try:
        assert opened.problems == []
        return (await cast(Any, opened.gates[0].handler)({}, cast(GateContext, _NoTurn()))).result
    finally:
        await opened.close()


def answer(text: str) -> str:
    return f'say({{"jsonrpc": "2.0", "id": id, "result": {text}}})'


async def test_the_control_answers(circle: Circle, tmp_path: Path) -> None:
    said = answer('{"content": [{"type": "text", "text": "fine"}]}')
    assert await answered(circle, raw(tmp_path, answer=said)) == "fine"


async def test_noise_between_messages_is_passed_over(circle: Circle, tmp_path: Path) -> None:
    noise = 'say("npm WARN something\\n{}\\n[1]\\n\\n\\x00\\n"); ' + answer('{"content": []}')
    assert await answered(circle, raw(tmp_path, answer=noise)) == ""


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (answer('"nonsense"'), "did not answer"),
        (answer('{"content": [{"type": "unheard of"}]}'), "invalid answer|refused"),
        ('say({"jsonrpc": "2.0", "id": id, "error": {"code": 1, "message": "not today"}})', "not today"),
        ("sys.exit(4)", "ended during go: it left with exit status 4"),
        ('say("x" * 17_000_000)', "ended|invalid answer"),
        ('say({"jsonrpc": "2.0", "id": "another", "result": {"content": []}})', "did not answer"),
    ],
    ids=["no object", "unknown content", "error", "leaves", "a line without end", "another's answer"],
)
async def test_a_wrong_answer_is_an_error_that_names_the_server(
    circle: Circle, tmp_path: Path, said: str, told: str
) -> None:
    with pytest.raises(GateError, match=rf"MCP server 'raw' .*({told})"):
        await answered(circle, raw(tmp_path, answer=said, call_s=3))


async def test_wrong_tools_are_left_out_by_name_and_the_others_stay(circle: Circle, tmp_path: Path) -> None:
    tools = [
        {
            "name": "good",
            "inputSchema": {"type": "object", "properties": {"a": {"$ref": "#/$defs/t"}}, "$defs": {"t": {}}},
        },
        {"name": "same", "inputSchema": {"type": "object"}},
        {"name": "same", "inputSchema": {"type": "object"}},
        {"name": "\u202e!!", "inputSchema": {"type": "object"}},
        {"name": "far", "inputSchema": {"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1:9/x"}}}},
        {"name": "wrong", "inputSchema": {"type": "object", "properties": {"a": {"type": "nothing"}}}},
    ]
    opened = await McpServers([raw(tmp_path, tools=tools)]).open(circle)
    await opened.close()
    assert [gate.name for gate in opened.gates] == ["raw.good", "raw.same", "raw.same_2"], opened.problems
    text = "\n".join(opened.problems)
    assert "no gate can have" in text
    assert "'far' was left out: its schema refers to 'http://127.0.0.1:9/x', outside itself" in text
    assert "'wrong' was left out: its schema is not valid" in text


async def test_tools_that_are_none_are_told(circle: Circle, tmp_path: Path) -> None:
    opened = await McpServers([raw(tmp_path, tools=[{"name": "list", "inputSchema": {"type": "array"}}])]).open(circle)
    await opened.close()
    assert opened.gates == []
    assert "MCP server 'raw' cannot be reached: ValidationError" in opened.problems[0]


async def test_a_list_of_tools_without_end_ends(circle: Circle, tmp_path: Path) -> None:
    tool = '{"name": f"t{id}", "inputSchema": {"type": "object"}}'
    endless = f'say({{"jsonrpc": "2.0", "id": id, "result": {{"tools": [{tool}], "nextCursor": "more"}}}})'
    opened = await McpServers([raw(tmp_path, listing=endless)]).open(circle)
    await opened.close()
    assert len(opened.gates) == 50
    assert "offers more than" in opened.problems[0]


def test_a_schema_that_reaches_out_is_refused_and_nothing_is_fetched() -> None:
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: object) -> None: ...

    web = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=web.serve_forever, daemon=True).start()
    base = f"http://127.0.0.1:{web.server_port}"
    try:
        for given in (
            {"type": "object", "properties": {"a": {"$ref": f"{base}/ref"}}},
            {"type": "object", "$id": f"{base}/", "properties": {"a": {"$id": "b", "$ref": "c"}}},
            {"type": "object", "allOf": [{"$dynamicRef": f"{base}/dynamic"}]},
            {"type": "object", "properties": {"a": {"$id": f"{base}/x", "type": "string"}}},
        ):
            assert checked_schema(given)[1] is not None
    finally:
        web.shutdown()
    assert asked == []


def test_a_property_may_be_called_as_a_keyword() -> None:
    given = {"type": "object", "properties": {"id": {"type": "string"}, "$ref": {"type": "string"}}}
    taken, problem = checked_schema(given)
    assert problem is None
    assert taken["properties"] == given["properties"]


def test_a_deep_or_large_schema_is_refused() -> None:
    deep: dict[str, Any] = {}
    for _ in range(100):
        deep = {"properties": {"a": deep}}
    assert "deeper" in (checked_schema({"type": "object", **deep})[1] or "")
    assert "characters" in (checked_schema({"type": "object", "description": "x" * 70_000})[1] or "")


async def test_an_answer_over_http_is_bounded(circle: Circle) -> None:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.end_headers()
            try:
                while True:
                    self.wfile.write(b" " * 1_000_000)
            except OSError:
                return

        def log_message(self, *_: object) -> None: ...

    web = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=web.serve_forever, daemon=True).start()
    try:
        server = McpServer(name="flood", transport="http", url=f"http://127.0.0.1:{web.server_port}/", start_s=30)
        opened = await McpServers([server]).open(circle)
        await opened.close()
        assert opened.gates == []
        assert "'flood' cannot be reached" in opened.problems[0]
    finally:
        web.shutdown()


@pytest.mark.parametrize("kind", ["http", "sse"])
async def test_a_refusal_over_http_is_told_with_its_status_and_without_keys(
    circle: Circle, caplog: pytest.LogCaptureFixture, kind: Any
) -> None:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            said = f"no: {self.headers.get('x-key')} {self.path}".encode()
            self.send_response(401)
            self.send_header("content-length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        do_GET = do_DELETE = do_POST

        def log_message(self, *_: object) -> None: ...

    caplog.set_level("INFO")
    web = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=web.serve_forever, daemon=True).start()
    try:
        url = f"http://127.0.0.1:{web.server_port}/?api_key=key-of-the-url"
        server = McpServer(name="shut", transport=kind, url=url, headers={"X-Key": "key-of-a-header"}, start_s=30)
        opened = await McpServers([server]).open(circle)
        await opened.close()
        (problem,) = opened.problems
        assert problem.startswith("MCP server 'shut' cannot be reached")
        assert "401" in problem
        assert "key-of" not in problem
        assert "key-of" not in caplog.text
    finally:
        web.shutdown()
