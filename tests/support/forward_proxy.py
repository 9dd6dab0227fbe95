"""A real HTTP proxy on this machine's loopback, as a company has one, that notes what it was asked for."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field


@dataclass
class ForwardProxy:
    """``port``: where it listens. ``to``: the port of this machine where all requests go. ``login``: the Proxy-Authorization that
    it wants. ``status``: what it answers instead, if set; 0 for no answer. ``requests``: the first lines."""

    to: int
    port: int = 0
    login: str = ""
    status: int | None = None
    requests: list[str] = field(default_factory=list)

    def serve(self, client: socket.socket) -> None:
        with client, suppress(OSError):
            client.settimeout(60)
            head = b""
            while b"\r\n\r\n" not in head and (more := client.recv(65_536)):
                head += more
            first, *fields = head.partition(b"\r\n\r\n")[0].decode().split("\r\n")
            self.requests.append(first)
            if self.status == 0:
                client.recv(1)
                return
            status = self.status
            if status is None and self.login and f"Proxy-Authorization: {self.login}" not in fields:
                status = 407
            if status is not None:
                client.sendall(f"HTTP/1.1 {status} No\r\nContent-Length: 4\r\nConnection: close\r\n\r\nno!\n".encode())
                return
            with socket.create_connection(("127.0.0.1", self.to)) as server:
                if first.startswith("CONNECT"):
                    client.sendall(b"HTTP/1.1 200 Yes\r\n\r\n")
                else:
                    method, address, version = first.split()
                    path = "/" + address.split("/", 3)[3]
                    kept = [each for each in fields if not each.startswith("Proxy-")]
                    body = head.partition(b"\r\n\r\n")[2]
                    server.sendall("\r\n".join([f"{method} {path} {version}", *kept, "", ""]).encode() + body)
                back = threading.Thread(target=_copy, args=(server, client))
                back.start()
                _copy(client, server)
                back.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65_536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


@contextmanager
def forward_proxy(to: int) -> Iterator[ForwardProxy]:
    """A running proxy."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        found = ForwardProxy(to, listener.getsockname()[1])

        def accept() -> None:
            with suppress(OSError):
                while True:
                    client, _ = listener.accept()
                    threading.Thread(target=found.serve, args=(client,), daemon=True).start()

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield found
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
