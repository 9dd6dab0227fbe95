"""A server with one odd tool beside good ones: with every provider the good ones work, and so does the odd one."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from cantrip_acp import Cantrip, Circle
from cantrip_acp.gates.mcp.declaration import McpServer
from cantrip_acp.gates.mcp.servers import McpServers
from tests.support.families import FAMILIES, Family
from tests.support.provider_server import Reply, Request, Wire

SERVER = """
import json, sys

TOOLS = [
    {"name": "impact", "description": "Says what depends on it.", "inputSchema": {
        "type": "object",
        "properties": {"route": {"type": "string"}, "file": {"type": "string"}},
        "anyOf": [{"required": ["route"]}, {"required": ["file"]}]}},
    {"name": "broken", "description": "Has no schema.", "inputSchema": {"type": "object", "properties": {"a": {"$ref": "#/lost"}}}},
    {"name": "hello", "description": "Greets.", "inputSchema": {"type": "object", "properties": {}}},
]
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    if message["method"] == "initialize":
        result = {"protocolVersion": message["params"]["protocolVersion"], "capabilities": {"tools": {}},
                  "serverInfo": {"name": "odd", "version": "1"}}
    elif message["method"] == "tools/list":
        result = {"tools": TOOLS}
    elif message["method"] == "tools/call":
        result = {"content": [{"type": "text", "text": json.dumps(message["params"].get("arguments"))}]}
    else:
        result = {}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"""


def refusal(request: Request) -> str | None:
    """Anthropic's and OpenAI's rule."""
    for index, tool in enumerate(request.json()["tools"]):
        tool = tool.get("function", tool)
        schema = tool.get("input_schema", tool.get("parameters"))
        if {"oneOf", "anyOf", "allOf"} & set(schema):
            return f"tools.{index}.custom.input_schema: input_schema does not support oneOf, allOf, or anyOf at the top level"
    return None


@pytest.mark.parametrize("family", [FAMILIES["anthropic"], FAMILIES["openai-responses"]], ids=lambda each: each.name)
async def test_one_odd_tool_never_fails_the_others(family: Family, tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text(SERVER)
    said = [("odd_hello", {}), ("odd_impact", {"file": "a.py"}), ("odd_impact", {}), ("done", {"answer": "ok"})]

    def answer(request: Request) -> Reply:
        wrong = refusal(request)
        if wrong is not None:
            return family.refuse(400, wrong)
        name, args = said[len(wire.requests) - 1]
        names = [tool.get("function", tool)["name"] for tool in request.json()["tools"]]
        return family.call(next(each for each in names if each.startswith(name)), args, f"call{len(wire.requests):05}")

    server = McpServer(name="odd", command=sys.executable, args=(str(tmp_path / "server.py"),), start_s=60)
    with Wire(answer) as wire:
        circle = Circle(gates=["done"], wards=[{"max_turns": 9}], workspace=tmp_path)
        spell = Cantrip(family.crystal(wire.url), circle=circle, sources=[McpServers([server])])
        result = await spell.cast("hello")
        assert result.result == "ok"
        assert len(wire.requests) == len(said)
    hello, right, wrong, _ = [each for turn in spell.loom.turns() for each in turn.observation.results]
    assert (hello.is_error, json.loads(right.result), wrong.is_error) == (False, {"file": "a.py"}, True)
    # The tool whose schema means nothing is left out alone.
    assert "broken" not in wire.requests[0].body.decode()
