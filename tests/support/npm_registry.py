"""An npm registry on this machine with one package: an MCP server with the tool ``hello``."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

NAME = "hello-mcp"
PROGRAM = """#!/usr/bin/env node
const lines = require("readline").createInterface({ input: process.stdin });
const tool = { name: "hello", description: "Says hello.", inputSchema: { type: "object", properties: {} } };
lines.on("line", (line) => {
  const { id, method, params } = JSON.parse(line);
  if (id === undefined) return;
  const result = method === "initialize"
    ? { protocolVersion: params.protocolVersion, capabilities: { tools: {} }, serverInfo: { name: "hello", version: "1" } }
    : method === "tools/list" ? { tools: [tool] } : { content: [{ type: "text", text: "hello from npm" }] };
  console.log(JSON.stringify({ jsonrpc: "2.0", id, result }));
});
"""


def _tarball() -> bytes:
    about = {"name": NAME, "version": "1.0.0", "bin": {NAME: "server.js"}}
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w:gz") as tar:
        for name, text in (("package/package.json", json.dumps(about)), ("package/server.js", PROGRAM)):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(text), 0o755
            tar.addfile(entry, io.BytesIO(text.encode()))
    return held.getvalue()


@contextmanager
def registry() -> Iterator[tuple[str, list[str]]]:
    """Serve the registry. Yields its address, and the paths that were asked for."""
    tarball, asked = _tarball(), list[str]()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            if self.path.endswith(".tgz"):
                body, kind = tarball, "application/octet-stream"
            elif self.path == f"/{NAME}":
                digest = base64.b64encode(hashlib.sha512(tarball).digest()).decode()
                dist = {"tarball": f"{address}/{NAME}.tgz", "integrity": f"sha512-{digest}"}
                version = {"name": NAME, "version": "1.0.0", "bin": {NAME: "server.js"}, "dist": dist}
                about = {"name": NAME, "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}
                body, kind = json.dumps(about).encode(), "application/json"
            else:
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing is logged."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    address = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield address, asked
    finally:
        server.shutdown()
        server.server_close()
