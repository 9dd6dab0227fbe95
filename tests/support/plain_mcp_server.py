"""The tools of `mcp_server.py` over stdio, without the official SDK, which takes 1.4 s of processor time to import."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

PICTURE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"
"""One pixel."""


class Refused(Exception):
    """A JSON-RPC error in place of a result: code, message and data."""


after_answer: list[Callable[[], None]] = []
"""What is to be done when the present answer has gone out."""


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


def result(value: Any) -> dict[str, Any]:
    """A result as the SDK gives one: data has its JSON as text beside it, and a plain value stands under `result`."""
    data = value if isinstance(value, dict) else {"result": value}
    words = value if isinstance(value, str) else json.dumps(value, indent=2)
    return {"content": [text(words)], "structuredContent": data, "isError": False}


def leave(status: int) -> Any:
    print("I am leaving", file=sys.stderr, flush=True)
    os._exit(status)


def fail(why: str) -> Any:
    raise RuntimeError(why)


def sleep(seconds: float) -> Any:
    time.sleep(seconds)
    return result("slept")


def read(path: str) -> Any:
    with open(path) as file:
        return result(file.read())


def write(path: str, text: str) -> Any:
    with open(path, "w") as file:
        file.write(text)
    return result("written")


def picture() -> Any:
    return {"content": [{"type": "image", "data": PICTURE, "mimeType": "image/png"}], "isError": False}


def long(count: int) -> Any:
    return {"content": [text("\x1b[31mred\x1b[0m" + "x" * count)], "isError": False}


TOOLS: dict[str, tuple[Callable[..., Any], str, dict[str, str]]] = {
    "add": (lambda a, b: result(a + b), "Adds two numbers.", {"a": "integer", "b": "integer"}),
    "echo": (lambda text: {"content": [globals()["text"](text)], "isError": False}, "Says the text again.", {"text": "string"}),
    "fail": (fail, "Always fails.", {"why": "string"}),
    "sleep": (sleep, "Takes its time.", {"seconds": "number"}),
    "leave": (leave, "Ends the server at once.", {"status": "integer"}),
    "read": (read, "Reads a file of the machine that the server runs on.", {"path": "string"}),
    "write": (write, "Writes a file of the machine that the server runs on.", {"path": "string", "text": "string"}),
    "variable": (
        lambda name: result(os.environ.get(name, "")), "A variable of the server's environment.", {"name": "string"}
    ),
    "dotted.tool-name": (lambda: result({"numbers": [1, 2, 3], "nested": {"deep": True}}), "Data.", {}),
    "picture": (picture, "A picture.", {}),
    "long": (long, "Much text, with terminal sequences.", {"count": "integer"}),
}  # fmt: skip


def describe(name: str) -> dict[str, Any]:
    _tool, description, arguments = TOOLS[name]
    properties = {each: {"title": each.title(), "type": kind} for each, kind in arguments.items()}
    schema = {"type": "object", "properties": properties, "required": list(arguments)}
    title = {"title": "Add numbers"} if name == "add" else {}
    return {"name": name, **title, "description": description, "inputSchema": schema}


def call(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    try:
        return TOOLS[name][0](**arguments)
    except Exception as error:
        return {"content": [text(f"Error executing tool {name}: {error}")], "isError": True}


def main() -> None:
    for line in iter(sys.stdin.readline, ""):
        message = json.loads(line)
        if "id" not in message or "method" not in message:
            continue
        params = message.get("params") or {}
        answer: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
        match message["method"]:
            case "initialize":
                answer["result"] = {
                    "protocolVersion": params["protocolVersion"],
                    "capabilities": {"tools": {"listChanged": False}},
                    "serverInfo": {"name": "tools", "version": "1"},
                }
            case "ping":
                answer["result"] = {}
            case "tools/list":
                answer["result"] = {"tools": [describe(name) for name in TOOLS]}
            case "tools/call":
                try:
                    answer["result"] = call(params["name"], params.get("arguments") or {})
                except Refused as refused:
                    answer["error"] = dict(zip(("code", "message", "data"), refused.args, strict=True))
            case other:
                answer["error"] = {"code": -32601, "message": f"Method not found: {other}"}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
        while after_answer:
            after_answer.pop()()


if __name__ == "__main__":
    main()
