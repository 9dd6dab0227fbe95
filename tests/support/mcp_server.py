"""A server made with the official SDK, for the tests: ``python toolserver.py [stdio|http|sse] [PORT]``."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from mcp.server import MCPServer
from mcp.types import ImageContent, TextContent

server = MCPServer("tools")

PICTURE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"
"""One pixel."""


@server.tool(title="Add numbers", description="Adds two numbers.")
def add(a: int, b: int) -> int:
    return a + b


@server.tool()
def echo(text: str) -> list[TextContent]:
    """Says the text again."""
    return [TextContent(type="text", text=text)]


@server.tool()
def fail(why: str) -> str:
    """Always fails."""
    raise RuntimeError(why)


@server.tool()
def sleep(seconds: float) -> str:
    """Takes its time."""
    time.sleep(seconds)
    return "slept"


@server.tool()
def leave(status: int) -> str:
    """Ends the server at once."""
    print("I am leaving", file=sys.stderr, flush=True)
    os._exit(status)


@server.tool()
def read(path: str) -> str:
    """Reads a file of the machine that the server runs on."""
    with open(path) as file:
        return file.read()


@server.tool()
def write(path: str, text: str) -> str:
    """Writes a file of the machine that the server runs on."""
    with open(path, "w") as file:
        file.write(text)
    return "written"


@server.tool()
def variable(name: str) -> str:
    """A variable of the server's environment."""
    return os.environ.get(name, "")


@server.tool("dotted.tool-name")
def dotted() -> dict[str, Any]:
    """Data."""
    return {"numbers": [1, 2, 3], "nested": {"deep": True}}


@server.tool()
def picture() -> list[ImageContent]:
    """A picture."""
    return [ImageContent(type="image", data=PICTURE, mime_type="image/png")]


@server.tool()
def long(count: int) -> list[TextContent]:
    """Much text, with terminal sequences."""
    return [TextContent(type="text", text="\x1b[31mred\x1b[0m" + "x" * count)]


if __name__ == "__main__":
    transport = sys.argv[1] if len(sys.argv) > 1 else "stdio"
    if transport == "stdio":
        server.run("stdio")
    elif transport == "http":
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[2]))
    else:
        server.run("sse", host="127.0.0.1", port=int(sys.argv[2]))
