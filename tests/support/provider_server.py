"""A provider at wire level: an HTTP/1.1 server on loopback that a test scripts, for the real SDK clients to talk to.

    with Wire([Reply(stream=[sse({"type": "ping"}), Pause(0.1), Cut()])]) as wire:
        ...                              # talk to wire.url
        assert wire.requests[0].json()["model"] == "m"

Threads and plain sockets: it serves any event loop, and stalls or breaks off in the middle of a body as real ones do.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cantrip_acp.files.descriptors import is_ready

_PATIENCE_S = 60.0
"""After this long nothing holds a connection open any more: a test that hangs here ends by itself."""


@dataclass(frozen=True)
class Request:
    """What arrived. ``headers`` have lower-case names; ``at`` is when it was complete (``time.monotonic``)."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    at: float

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Pause:
    """Wait for so many seconds before the next piece."""

    seconds: float


@dataclass(frozen=True)
class Until:
    """Wait until a test sets the event."""

    event: threading.Event


class Cut:
    """End the connection as a crash does: with a reset."""


class Drop:
    """End the connection in good order, but in the middle of the body."""


class Hold:
    """Say nothing more until the client goes away."""


@dataclass(frozen=True)
class Raw:
    """Bytes as they are, past the framing of chunks."""

    data: bytes


Piece = bytes | Pause | Until | Cut | Drop | Hold | Raw


@dataclass(frozen=True)
class Reply:
    """What to answer: ``body`` in one go, or ``stream`` in chunks, a chunk a piece. ``raw`` replaces all of HTTP."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    stream: Iterable[Piece] | None = None
    raw: Iterable[Piece] | None = None


Answer = Callable[[Request], Reply]


def json_reply(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Reply:
    return Reply(status, {"content-type": "application/json", **(headers or {})}, json.dumps(value).encode())


def sse(data: Any, event: str | None = None) -> bytes:
    """One server-sent event; ``data`` is text as it is, or anything else as JSON."""
    text = data if isinstance(data, str) else json.dumps(data, separators=(",", ":"))
    head = f"event: {event}\n" if event is not None else ""
    return (head + "".join(f"data: {line}\n" for line in text.split("\n")) + "\n").encode()


def sse_reply(pieces: Iterable[Piece], headers: Mapping[str, str] | None = None, status: int = 200) -> Reply:
    return Reply(status, {"content-type": "text/event-stream; charset=utf-8", **(headers or {})}, stream=pieces)


class Wire:
    """The server. ``answers`` is a function of the request, or replies in order; once they are used up it answers 500.

    ``requests`` holds what arrived, in order. ``gone`` counts replies during which the client went away; ``wait_gone`` waits
    for one. ``problems`` holds exceptions of an answering function, which are also answered as 500: leaving the server raises
    the first, so that a test cannot overlook it. ``connections`` counts those that were opened.
    """

    def __init__(self, answers: Answer | Sequence[Reply]) -> None:
        self._answers = answers
        self._next = 0
        self.requests: list[Request] = []
        self.problems: list[BaseException] = []
        self.gone = 0
        self.connections = 0
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Wire:
        self._start(self._accept)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._stop.set()
        # close() alone does not wake a thread in accept().
        for each in (self._listener, *tuple(self._open)):
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            each.close()
        for thread in self._threads:
            thread.join(60)
        if kind is None and self.problems:
            raise self.problems[0]

    def wait_gone(self, count: int = 1, seconds: float = 20) -> bool:
        """Whether the client went away ``count`` times within the time."""
        with self._changed:
            return self._changed.wait_for(lambda: self.gone >= count, seconds)

    def wait_requests(self, count: int = 1, seconds: float = 20) -> bool:
        """Whether so many requests arrived within the time."""
        with self._changed:
            return self._changed.wait_for(lambda: len(self.requests) >= count, seconds)

    @property
    def open(self) -> int:
        """The number of connections that are open."""
        return len(self._open)

    def wait_closed(self, seconds: float = 20) -> bool:
        """Whether the client closed all its connections within the time."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._open, seconds)

    def _start(self, work: Callable[..., None], *args: Any) -> None:
        thread = threading.Thread(target=work, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._stop.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.settimeout(_PATIENCE_S)
            self.connections += 1
            self._open.add(connection)
            self._start(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection.makefile("rb") as reader:
                while (request := _read(reader)) is not None and self._exchange(connection, request):
                    pass
        except OSError:
            pass  # The client went away, or the test is over.
        finally:
            with self._changed:
                self._open.discard(connection)
                self._changed.notify_all()
            connection.close()

    def _exchange(self, connection: socket.socket, request: Request) -> bool:
        """Whether the connection goes on."""
        with self._changed:
            self.requests.append(request)
            turn = self._next
            self._next += 1
            self._changed.notify_all()
        reply = self._reply(request, turn)
        try:
            if reply.raw is not None:
                self._pieces(connection, reply.raw, chunked=False)
                return False
            head = dict(reply.headers)
            if reply.stream is None:
                head["content-length"] = str(len(reply.body))
            else:
                head["transfer-encoding"] = "chunked"
            lines = [f"HTTP/1.1 {reply.status} Scripted", *(f"{name}: {value}" for name, value in head.items())]
            connection.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + reply.body)
            if reply.stream is None:
                return True
            if not self._pieces(connection, reply.stream, chunked=True):
                return False
            connection.sendall(b"0\r\n\r\n")
            return True
        except OSError:
            if not self._stop.is_set():
                self._left()
            return False

    def _reply(self, request: Request, turn: int) -> Reply:
        if callable(self._answers):
            try:
                return self._answers(request)
            except Exception as error:
                self.problems.append(error)
                return json_reply({"error": {"type": "test", "message": f"the test's server: {error}"}}, 500)
        if turn < len(self._answers):
            return self._answers[turn]
        return json_reply({"error": {"type": "test", "message": "the test's server has no reply left"}}, 500)

    def _pieces(self, connection: socket.socket, pieces: Iterable[Piece], *, chunked: bool) -> bool:
        """Whether the body came to its end."""
        for piece in pieces:
            if isinstance(piece, bytes):
                connection.sendall(b"%x\r\n%s\r\n" % (len(piece), piece) if chunked else piece)
            elif isinstance(piece, Raw):
                connection.sendall(piece.data)
            elif isinstance(piece, Cut):
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                connection.close()
                return False
            elif isinstance(piece, Drop):
                connection.shutdown(socket.SHUT_RDWR)
                return False
            elif not self._wait(connection, piece):
                return False
        return True

    def _wait(self, connection: socket.socket, piece: Pause | Until | Hold) -> bool:
        """Wait as the piece says; False once the client is gone."""
        end = time.monotonic() + (piece.seconds if isinstance(piece, Pause) else _PATIENCE_S)
        while (left := end - time.monotonic()) > 0 and not self._stop.is_set():
            if isinstance(piece, Until) and piece.event.is_set():
                return True
            if is_ready(connection, min(left, 0.005)) and not connection.recv(1, socket.MSG_PEEK):
                self._left()
                return False
        return isinstance(piece, Pause)

    def _left(self) -> None:
        with self._changed:
            self.gone += 1
            self._changed.notify_all()


def _read(reader: Any) -> Request | None:
    """The next request of a connection; None at its end, also if that came in the middle of a request."""
    first = reader.readline()
    if not first.strip():
        return None
    method, path, _ = first.decode("latin-1").split(" ", 2)
    headers: dict[str, str] = {}
    while line := reader.readline().strip():
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.strip().lower()] = value.strip()
    if headers.get("transfer-encoding", "").lower() == "chunked":
        parts = []
        while size := int((line := reader.readline()).split(b";")[0] or b"0", 16):
            parts.append(reader.read(size))
            reader.readline()
        if not line:
            return None
        reader.readline()
        body = b"".join(parts)
    else:
        length = int(headers.get("content-length", "0"))
        body = reader.read(length)
        if len(body) < length:
            return None
    return Request(method, path, headers, body, time.monotonic())
