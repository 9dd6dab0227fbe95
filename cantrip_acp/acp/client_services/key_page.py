"""Sign-in on a page: a page of this machine takes a provider's key, and the client shows its address (ACP, Elicitation).

A form of the client must not carry a key, and some clients have no terminal. The page is served on the loopback
interface only while its request is open. Its address has a random part, so that no other user of the machine finds it.
"""

from __future__ import annotations

import html
import secrets
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

import anyio
import anyio.from_thread
import anyio.to_thread
import msgspec

from cantrip_acp.acp.client_services.forms import Page, PageDone, ask_to_open
from cantrip_acp.acp.login import is_key, save_key
from cantrip_acp.acp.wire.jsonrpc import AUTH_REQUIRED, RpcError
from cantrip_acp.crystals import keys
from cantrip_acp.recipes.build.crystal_factory import KEYS
from cantrip_acp.types.records import new_id

if TYPE_CHECKING:
    from cantrip_acp.acp.wire.connection import Connection, Request

MAX_BODY = 16 * 1024
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
_STYLE = (
    "body{font:16px system-ui;max-width:32em;margin:4em auto;padding:0 1em}"
    "input,select,button{font:inherit;width:100%;margin:.3em 0 1em;padding:.4em;box-sizing:border-box}"
)


async def sign_in_on_page(connection: Connection, request: Request) -> None:
    """Ask the user to open the page, and wait until a key is saved. Raises `RpcError` -32000 if the user does not."""
    saved = anyio.Event()
    loop = anyio.from_thread.run_sync
    token = anyio.lowlevel.current_token()
    server = _serve(lambda: loop(saved.set, token=token))
    page = Page(
        message="Open this page to enter a provider's key. It is saved on this machine, and nobody else gets it.",
        url=server.url,
        elicitation_id=new_id("el"),
        request_id=msgspec.UNSET if request.id is None else msgspec.Raw(request.id.raw),
    )
    try:
        if await ask_to_open(connection, page) != "accept":
            raise RpcError(AUTH_REQUIRED, "Authentication required: the page for the key was not opened")
        await saved.wait()
        connection.notify_now("elicitation/complete", PageDone(page.elicitation_id))
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(server.close)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, on_saved: Callable[[], None]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.path = f"/{secrets.token_urlsafe(24)}"
        self.on_saved = on_saved
        self.host = f"127.0.0.1:{self.server_port}"
        self.url = f"http://{self.host}{self.path}"

    def close(self) -> None:
        self.shutdown()
        self.server_close()


def _serve(on_saved: Callable[[], None]) -> _Server:
    server = _Server(on_saved)
    Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, name="key page", daemon=True).start()
    return server


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = 30

    def do_GET(self) -> None:
        if self._allowed():
            self._page(200, _form())

    def do_POST(self) -> None:
        if not self._allowed():
            return
        length = self.headers.get("Content-Length", "")
        if not length.isascii() or not length.isdigit() or int(length) > MAX_BODY:
            self._page(400, "<p>This is not the form of this page.</p>")
            return
        fields = parse_qs(self.rfile.read(int(length)).decode("utf-8", "replace"))
        variable, key = (fields.get(name, [""])[0].strip() for name in ("variable", "key"))
        if variable not in {names[0] for names in KEYS.values() if names} or not is_key(key):
            problem = "This is not a key. A key has 8 or more letters, digits and signs, without blanks and quotes."
            self._page(400, _form(problem))
            return
        try:
            path = save_key(variable, key)
        except OSError as error:
            self._page(500, _form(f"{keys.dotenv_file()} cannot be written: {error.strerror or error}"))
            return
        self._page(200, f"<p>{variable} is saved in {html.escape(str(path))}. You can close this page.</p>")
        self.server.on_saved()

    def _allowed(self) -> bool:
        """Whether the request is for the page at its own address. Another host name would be a rebound one."""
        server = self.server
        own = (
            secrets.compare_digest(self.path.encode(), server.path.encode()) and self.headers.get("Host") == server.host
        )
        if not own or self.headers.get("Origin", f"http://{server.host}") != f"http://{server.host}":
            self.send_error(404)
            return False
        return True

    def _page(self, status: int, body: str) -> None:
        text = f"<!doctype html><meta charset=utf-8><title>Cantrip</title><style>{_STYLE}</style><h1>Cantrip</h1>{body}"
        data = text.encode()
        self.send_response(status)
        for name, value in (
            ("Content-Type", "text/html; charset=utf-8"),
            ("Content-Length", str(len(data))),
            ("Content-Security-Policy", _POLICY),
            ("Cache-Control", "no-store"),
            ("Referrer-Policy", "same-origin"),
            ("X-Content-Type-Options", "nosniff"),
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: object) -> None:
        """Log nothing: the address is secret."""


def _form(problem: str = "") -> str:
    choices = "".join(f"<option value={names[0]}>{name}</option>" for name, names in KEYS.items() if names)
    return (
        f"<p role=alert>{html.escape(problem)}</p><form method=post><label>Provider<select name=variable>{choices}</select></label>"
        "<label>Key<input name=key type=password autocomplete=off required></label><button>Save</button></form>"
        f"<p>The key is saved in {html.escape(str(keys.dotenv_file()))}. Only you can read this file.</p>"
    )
