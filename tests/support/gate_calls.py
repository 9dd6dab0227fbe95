"""Chores as gates are called by an executor: the handler with a context, awaited."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from cantrip_acp.gates.contract import Gate, GateContext, GateReply
from cantrip_acp.gates.wards import Wards


def context_of(workspace: Path | None, wards: Any = (), **dependencies: Any) -> GateContext:
    return GateContext(dependencies, Wards.of(wards, base=workspace), workspace, "entity", "cast", "trace", "call")


async def call_in(context: GateContext, gate: Gate, **args: Any) -> GateReply:
    result = gate.handler(args, context)
    reply = await result if inspect.isawaitable(result) else result
    return reply if isinstance(reply, GateReply) else GateReply(reply)


Pages = Mapping[str, tuple[int, Mapping[str, str], bytes]]


class Site:
    """A web site of this machine: what it serves, and what it was asked."""

    def __init__(self, pages: Pages) -> None:
        self.asked: list[tuple[str, dict[str, str]]] = []
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                site.asked.append((self.path, {k.lower(): v for k, v in self.headers.items()}))
                status, headers, body = pages.get(self.path, (404, {"Content-Type": "text/plain"}, b"no such page"))
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                try:
                    self.wfile.write(body)
                except OSError:
                    pass

            def log_message(self, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        self.host = f"127.0.0.1:{self.port}"

    def url(self, path: str) -> str:
        return f"http://{self.host}{path}"


@contextmanager
def serving(pages: Pages) -> Iterator[Site]:
    site = Site(pages)
    thread = Thread(target=site.server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield site
    finally:
        site.server.shutdown()
        site.server.server_close()
        thread.join()
