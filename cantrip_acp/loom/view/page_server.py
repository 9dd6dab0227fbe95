"""HTTP server of the page, on the loopback interface, in threads of its own.

Python's own HTTP server is enough for one loom, a few pages and short requests. This module adds what it lacks: limits
of time, size and number of connections, and access control (`auth`).
"""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
import urllib.parse
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec

from cantrip_acp.loom.view import assets
from cantrip_acp.loom.view.auth import Guard, Refused
from cantrip_acp.loom.view.reader import LoomReader
from cantrip_acp.loom.view.routes import Routes

AT_ONCE = 64
"""The maximum number of connections; a further one is closed immediately."""

LARGEST_BODY = 65_536
_PATIENCE_S = 30.0


def serve(
    where: Path | str,
    beside: Path | str | None = None,
    *,
    port: int = 0,
    readonly: bool = False,
    hosts: Sequence[str] = (),
    frames: Sequence[str] = (),
) -> View:
    """Serve a loom's page on 127.0.0.1 until the view is closed. Returns as soon as the page can be opened.

    ``where`` is as in `Loom.open`; ``port`` 0 is any free port. The loom is read in the background and followed while a
    session writes it. With ``beside``, a second loom, the page has the turns of both and shows the threads that they end
    with side by side; then it gives no rewards. ``readonly`` refuses rewards. ``hosts`` (such as ``name:port``) are names
    of a proxy in front of it; ``frames`` are origins (or schemes, ``vscode-webview:``) whose pages may show it in a frame.
    Raises `LoomError` if there is no loom, `OSError` if the port is taken.
    """
    reading = LoomReader(where, beside)
    try:
        return View(reading, port, readonly or beside is not None, hosts, frames)
    except BaseException:
        reading.close()
        raise


class View:
    """A page that is being served. It is a context manager; `close` ends it."""

    def __init__(
        self, reading: LoomReader, port: int, readonly: bool, hosts: Sequence[str], frames: Sequence[str]
    ) -> None:
        self._reading = reading
        self._server = _Server(("127.0.0.1", port), _Handler)
        self.port: int = self._server.server_address[1]
        self._guard = Guard(self.port, hosts=tuple(hosts), frames=tuple(frames))
        self._server.guard = self._guard
        self._server.answers = Routes(reading, readonly=readonly)
        self._threads = [
            threading.Thread(target=reading.load, name="loom-view-load", daemon=True),
            threading.Thread(target=self._server.serve_forever, args=(0.1,), name="loom-view", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    @property
    def url(self) -> str:
        """The page's address with its token: anybody who has it can read the loom."""
        return f"http://127.0.0.1:{self.port}/#token={self._guard.token}"

    def link(self, turn_id: str) -> str:
        """The address of one turn."""
        return f"{self.url}&turn={urllib.parse.quote(turn_id, safe='')}"

    def trouble(self, patience_s: float = 1.0) -> str | None:
        """Why the loom cannot be displayed or followed; None if it can, or is still being opened."""
        self._reading.loaded.wait(patience_s)
        return self._reading.broken

    def close(self) -> None:
        """Stop serving; safe to call twice."""
        self._reading.close()
        self._server.shutdown()
        self._server.server_close()
        for thread in self._threads:
            thread.join(5)

    def __enter__(self) -> View:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64
    guard: Guard
    answers: Routes

    def __init__(self, address: tuple[str, int], handler: Any) -> None:
        self._open: set[socket.socket] = set()
        self._opening = threading.Lock()
        super().__init__(address, handler)

    def server_bind(self) -> None:
        # Python's own method first asks the name service for this address's name.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = "127.0.0.1", self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._opening:
            admitted = len(self._open) < AT_ONCE
            if admitted:
                self._open.add(request)
        if admitted:
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        with self._opening:
            self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log nothing: a page that was closed during an answer is normal, and a bug ends only its own connection."""

    def server_close(self) -> None:
        super().server_close()
        with self._opening:
            for request in self._open:
                with contextlib.suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "cantrip"
    sys_version = ""
    timeout = _PATIENCE_S
    server: _Server
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        self._answer(self._get)

    def do_POST(self) -> None:
        self._answer(self._post)

    def _get(self) -> tuple[bytes, str]:
        split = urllib.parse.urlsplit(self.path)
        if split.path.startswith("/api/"):
            self.server.guard.caller(self.headers, changes=False)  # type: ignore[arg-type]
            pairs = urllib.parse.parse_qsl(split.query, keep_blank_values=True, max_num_fields=20)
            return self.server.answers.get(split.path.removeprefix("/api/"), dict(pairs)), _JSON
        found = assets.read("index.html" if split.path == "/" else split.path.removeprefix("/"))
        if found is None:
            raise Refused(404, "there is nothing here")
        return found

    def _post(self) -> tuple[bytes, str]:
        self.server.guard.caller(self.headers, changes=True)  # type: ignore[arg-type]
        if urllib.parse.urlsplit(self.path).path != "/api/reward":
            raise Refused(404, "there is nothing here")
        if self.headers.get_content_type() != "application/json":
            raise Refused(415, "send a reward as application/json")
        length = self.headers.get("Content-Length", "")
        if not length.isascii() or not length.isdigit():
            raise Refused(411, "the request needs the header Content-Length")
        if int(length) > LARGEST_BODY:
            raise Refused(413, f"a reward has at most {LARGEST_BODY:,} bytes")
        body = self.rfile.read(int(length))
        self._unread = False
        return self.server.answers.reward(body), _JSON

    def _answer(self, act: Any) -> None:
        # The unread body of this request must not be read as the next request.
        self._unread = self.command != "GET" or "Content-Length" in self.headers or "Transfer-Encoding" in self.headers
        try:
            self.server.guard.host(self.headers)  # type: ignore[arg-type]
            body, kind = act()
            status = 200
        except Refused as refused:
            status, kind = refused.status, _JSON
            body = msgspec.json.encode({"error": str(refused)})
        except ValueError as error:
            status, kind, body = 400, _JSON, msgspec.json.encode({"error": str(error)})
        self._send(status, kind, body)

    def _send(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if self._unread:
            self.send_header("Connection", "close")
            self.close_connection = True
        self.end_headers()
        self.wfile.write(body)

    def end_headers(self) -> None:
        for name, value in self.server.guard.headers().items():
            self.send_header(name, value)
        super().end_headers()

    def log_message(self, *args: Any) -> None:
        """Log nothing: the terminal belongs to the command."""


_JSON = "application/json"
