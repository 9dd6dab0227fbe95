"""Real servers on this machine's loopback, plain and with TLS, that say what they were asked."""

from __future__ import annotations

import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


@dataclass
class Served:
    """A running server: its port, and each request that reached it, as method, path, Host and body."""

    port: int
    requests: list[tuple[str, str, str, bytes]] = field(default_factory=list)


class _Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    served: Served

    def _answer(self) -> None:
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.served.requests.append((self.command, self.path, self.headers["Host"], body))
        if self.path.startswith("/away"):
            self.send_response(302)
            self.send_header("Location", self.path.partition("?")[2])
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        data = f"{self.command} {self.path} {len(body)}\n".encode()
        if self.path.startswith("/large"):
            data = b"x" * 5_000_000
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    do_GET = do_POST = do_PUT = do_HEAD = do_OPTIONS = _answer

    def log_message(self, *_: Any) -> None: ...


@contextmanager
def serve(certificate: Path | None = None, folder: Path | None = None) -> Iterator[Served]:
    """A server at 127.0.0.1, with TLS where there is a certificate; of a folder's files where one is named."""
    served = Served(0)
    handler: Any = type("Answers", (_Answers,), {"served": served})
    if folder is not None:
        quiet: Any = type("Files", (SimpleHTTPRequestHandler,), {"log_message": lambda *_: None})
        handler = partial(quiet, directory=str(folder))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    served.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def make_certificate(folder: Path) -> Path:
    """A certificate for localhost, 127.0.0.1 and names below corp.example that vouches for itself, with its key, in one file."""
    path = folder / "certificate.pem"
    words = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -keyout".split()
    names = ["-addext", "subjectAltName=DNS:localhost,DNS:*.corp.example,IP:127.0.0.1"]
    key = folder / "key.pem"
    subprocess.run(["openssl", *words, key, "-out", path, *names], check=True, capture_output=True)
    path.write_text(path.read_text() + key.read_text())
    return path
