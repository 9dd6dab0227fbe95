"""The table of what is allowed without asking, against what the real sandbox lets a cast do: both ways."""

from __future__ import annotations

import http.server
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cantrip_acp import Cantrip, Circle, McpServer, ScriptedCrystal
from cantrip_acp.acp.permissions.allowed import allowed
from tests.support.fixtures.core import done

pytestmark = pytest.mark.sandbox
WORKSPACE: dict[str, Any] = {"bash_writable_paths": ["workspace"]}
CODE: dict[str, Any] = {"code_writable_paths": ["workspace"]}


class _Seen(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.server.paths.append(self.path)  # type: ignore[attr-defined]
        self.send_response(200)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def web() -> Iterator[Any]:
    """A server on this machine that notes who reached it."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Seen)
    server.paths = []  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


# Writes a file of the workspace and sends a request: what each row of the table is about.
TRY = """
import os, urllib.request
try:
    open(os.path.join({folder!r}, 'made'), 'w').close()
except OSError as error:
    print(error)
try:
    urllib.request.urlopen('http://127.0.0.1:{port}/reached', timeout=5)
except OSError as error:
    print(error)
"""
SERVER = """
from mcp.server import MCPServer
server = MCPServer("w")
@server.tool()
def act() -> str:
    exec({program!r})
    return "ran"
server.run("stdio")
"""

CASES: dict[str, tuple[str, list[str], dict[str, Any], str]] = {
    "a shell": ("bash", [], {}, "program"),
    "a shell that writes": ("bash", [], WORKSPACE, "program"),
    "a shell with the network": ("bash", [], {"bash_network": "here"}, "program"),
    "a shell with another host": ("bash", [], {"bash_network": ["example.org"]}, "program"),
    "Python": ("code", [], {**WORKSPACE, "bash_network": "here"}, "program"),
    "Python that writes": ("code", [], CODE, "program"),
    "restricted Python": ("monty", [], {**CODE, **WORKSPACE}, "monty"),
    "a child with a shell": ("code", ["call_agent"], {**WORKSPACE, "bash_network": "here"}, "bash child"),
    "a child with a shell and no paths": ("code", ["call_agent"], CODE, "bash child"),
    "a child that may not have a shell": (
        "code", ["call_agent"], {**WORKSPACE, "bash_network": "here", "child_medium_allowlist": ["code"]}, "bash child",
    ),
    "a child with Python": ("bash", ["call_agent"], CODE, "code child"),
    "no children": ("code", ["call_agent"], {**WORKSPACE, "max_depth": 0}, "bash child"),
    "a server": ("conversation", [], {}, "server"),
    "a server that writes": ("conversation", [], WORKSPACE, "server"),
    "a server with the network": ("conversation", [], {"bash_network": "here"}, "server"),
    "tests": ("conversation", ["run_tests"], {}, "tests"),
    "tests that write": ("conversation", ["run_tests"], {**WORKSPACE, "bash_network": "here"}, "tests"),
    "a gate that writes": ("conversation", ["write_file"], {}, "write_file"),
    "no gate that writes": ("conversation", ["read_file"], WORKSPACE, "write_file"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_the_table_says_is_what_can_be_done(name: str, tmp_path: Path, web: Any) -> None:
    medium, gates, wards, way = CASES[name]
    port = web.server_address[1]
    if wards.get("bash_network") == "here":
        wards = {**wards, "bash_network": [f"127.0.0.1:{port}"]}
    folder = tmp_path / "work"
    folder.mkdir()
    program = TRY.format(folder=str(folder), port=port)
    command = f"python3 - <<'EOF'\n{program}\nEOF"
    servers = ()
    if way == "server":
        (tmp_path / "work" / "server.py").write_text(SERVER.format(program=program))
        servers = (McpServer(name="w", command=sys.executable, args=("server.py",), required=True),)
    children: list[Any] = []
    if way == "program":
        script: list[Any] = [{"bash": command} if medium == "bash" else {"code": program}]
    elif way == "monty":
        script = [
            {"code": "open('made', 'w')"},
            {"code": f"import urllib.request; urllib.request.urlopen('http://127.0.0.1:{port}/reached')"},
        ]
    elif way.endswith("child"):
        kind = way.partition(" ")[0]
        call = f"call_agent('go', medium='{kind}', gates=['done'])"
        script = [
            {"bash": f"cantrip_call_agent go --medium {kind} --gates done"} if medium == "bash" else {"code": call}
        ]
        children = [[{"bash": command} if kind == "bash" else {"code": program}, {"content": "did", "repeat": True}]]
    elif way == "server":
        script = [{"tool_calls": [{"gate": "w.act"}]}]
    elif way == "tests":
        (folder / "test_it.py").write_text(f"def test_it():\n{textwrap.indent(program, '    ')}")
        script = [{"tool_calls": [{"gate": "run_tests", "args": {"targets": ["test_it.py"]}}]}]
    else:
        script = [{"tool_calls": [{"gate": "write_file", "args": {"path": "made", "content": ""}}]}]
    crystal = ScriptedCrystal([*script, done()], children=children)
    circle = Circle(medium, ["done", *gates], {"max_turns": 5, **wards}, workspace=folder)
    web.paths.clear()
    Cantrip(crystal, circle=circle, sources=servers).cast_sync("Go.")

    table = allowed(circle, servers)
    parts = table.children if way.endswith("child") else (*table.writes, *table.network, *table.servers)
    said = " ".join(parts)
    assert (folder / "made").exists() == (f"in {folder} (the workspace)" in said), table
    assert bool(web.paths) == (f"127.0.0.1:{port}" in said), table
