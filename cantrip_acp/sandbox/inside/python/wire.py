"""Sends and receives frames on the worker's side: a length, a kind, and JSON or bytes.

Any thread may send a request to the host and wait for the answer. The first waiting thread reads for all of them, so
that the worker needs no extra thread.
"""

from __future__ import annotations

import _json
import _thread
import builtins
import os
import select

from .interrupts import Interrupts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

globals()["__builtins__"] = dict(vars(builtins))

_HEAD = 5
_READ = 1 << 18
LARGEST = 8 * 1024 * 1024
"""The maximum size in bytes of a frame to the host. The host kills a worker that sends a larger frame."""


class _Waiting:
    __slots__ = ("reply", "wake")

    def __init__(self) -> None:
        self.reply: dict[str, Any] | None = None
        self.wake = _thread.allocate_lock()
        self.wake.acquire()


class Wire:
    """The connection to the host over two descriptors. ``codec`` converts data to JSON and back."""

    def __init__(self, inward: int, outward: int, codec: Any, interrupts: Interrupts) -> None:
        self._in = inward
        self._out = outward
        self._codec = codec
        self._interrupts = interrupts
        self._buffer = bytearray()
        self._guard = _thread.allocate_lock()
        self._writing = _thread.allocate_lock()
        self._waiting: dict[int, _Waiting] = {}
        self._commands: list[dict[str, Any]] = []
        self._leader: _Waiting | None = None
        self._last = 0
        self._poll = select.poll()
        self._poll.register(inward, select.POLLIN)
        self._owner = os.getpid()
        self.blobs: list[bytes] = []
        self.cell: Callable[[], str] = str
        """Returns the token of the calling cell."""
        self.gained: Any = None
        """Called with the added gates as soon as any thread reads the message."""

    @property
    def here(self) -> bool:
        """Whether this is the worker process and not a fork of it."""
        return os.getpid() == self._owner

    def size(self, data: Any) -> int:
        return len(self._codec.encode(data))

    def send(self, data: dict[str, Any]) -> None:
        self._write(b"j", self._codec.encode(data))

    def send_bytes(self, data: bytes | memoryview) -> None:
        self._write(b"b", data)

    def pause_writing(self) -> None:
        """Let only a forked process write until `resume_writing`. Threads of this process wait until then."""
        with self._interrupts:
            self._writing.acquire()

    def resume_writing(self) -> None:
        """Allow this process to write again."""
        with self._interrupts:
            if self._writing.locked():
                self._writing.release()

    def become_writer(self) -> None:
        """Allow a forked process to write, after `pause_writing` in its parent."""
        self._writing = _thread.allocate_lock()
        self._owner = os.getpid()

    def shut(self) -> None:
        """Close the connection in a forked process that must not use it. Then every request to the host fails."""
        os.close(self._in)
        os.close(self._out)

    def _write(self, kind: bytes, body: bytes | memoryview) -> None:
        with self._interrupts, self._writing:
            data = memoryview((len(body)).to_bytes(4, "big") + kind + bytes(body))
            while data:
                data = data[os.write(self._out, data) :]

    def ask(self, data: dict[str, Any]) -> dict[str, Any]:
        """Send a request with a new number and return the answer with that number.

        Raises ValueError if the request is too large, and TypeError for data without a JSON form.
        """
        waiting = _Waiting()
        body: bytes | None = None
        number = 0
        try:
            with self._interrupts:
                with self._guard:
                    self._last += 1
                    number = self._last
                    self._waiting[number] = waiting
                body = self._codec.encode({**data, "id": number, "cell": self.cell()})
                if len(body) > LARGEST:
                    raise ValueError(
                        f"they are {len(body):,} bytes as JSON, and the limit of one gate call is {LARGEST:,}: pass less data"
                    )
                self._write(b"j", body)
            return self._await(waiting)
        finally:
            with self._interrupts:
                self._forget(number, waiting)

    def command(self) -> dict[str, Any]:
        """Wait for the next command of the host and return it."""
        waiting = _Waiting()
        with self._guard:
            if self._commands:
                return self._commands.pop(0)
            self._waiting[0] = waiting
        try:
            return self._await(waiting)
        finally:
            self._forget(0, waiting)

    def _forget(self, number: int, waiting: _Waiting) -> None:
        with self._guard:
            self._waiting.pop(number, None)
            if self._leader is waiting:
                self._leader = None
            if self._leader is None:
                # One of the waiting threads must read from now on. Wake one that still waits.
                for other in self._waiting.values():
                    if other.reply is None:
                        if other.wake.locked():
                            other.wake.release()
                        break

    def _await(self, waiting: _Waiting) -> dict[str, Any]:
        while True:
            with self._interrupts, self._guard:
                if waiting.reply is not None:
                    return waiting.reply
                if self._leader is None:
                    self._leader = waiting
                leads = self._leader is waiting
            # Only here an interrupt is raised at once, because no bytes were read from the pipe.
            if leads:
                self._poll.poll()
                self._read()
            else:
                waiting.wake.acquire()

    def _read(self) -> None:
        with self._interrupts:
            data = os.read(self._in, _READ)
            if not data:
                os._exit(0)
            self._buffer += data
            while len(self._buffer) >= _HEAD:
                end = _HEAD + int.from_bytes(self._buffer[:4], "big")
                if len(self._buffer) < end:
                    return
                kind, body = self._buffer[4], bytes(self._buffer[_HEAD:end])
                del self._buffer[:end]
                if kind == 98:
                    self.blobs.append(body)
                else:
                    self._deliver(self._codec.decode(body))

    def _deliver(self, data: dict[str, Any]) -> None:
        number = data.get("id", 0)
        if data.get("t") == "gained":
            if self.gained is not None:
                self.gained(data["gates"])
            return
        with self._guard:
            waiting = self._waiting.get(number)
            if waiting is None or waiting.reply is not None:
                # Store a command for later. Ignore an answer for which no thread waits any more.
                if not number:
                    self._commands.append(data)
                return
            waiting.reply = data
            if waiting.wake.locked():
                waiting.wake.release()


class _Rules:
    """The settings that the C scanner of `_json` needs."""

    strict = False
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = float

    def __init__(self) -> None:
        self.memo: dict[str, str] = {}


def json_like(value: Any) -> Any:
    """Convert a value without a JSON form to a similar value that has one. Raises TypeError."""
    kind = type(value)
    if isinstance(value, (set, frozenset)):
        try:
            return sorted(value)
        except TypeError:
            return list(value)
    if isinstance(value, (range, type({}.keys()), type({}.values()), type({}.items()))):
        return list(value)
    for method in ("tolist", "item", "__fspath__", "isoformat"):
        # For arrays and scalars of numpy, paths and dates. Search in the class, so that no instance can fake a method.
        if callable(getattr(kind, method, None)):
            return getattr(value, method)()
    if isinstance(value, dict) or hasattr(kind, "keys"):
        return dict(value)
    raise TypeError(f"a {kind.__name__} is not JSON data; use text, numbers, booleans, None, lists or dicts")


class Codec:
    """Converts data to UTF-8 JSON and back, with the C functions of the interpreter.

    The import of ``json`` would take a third of the start time. Raises TypeError or ValueError for data without a JSON
    form.
    """

    def __init__(self) -> None:
        self._scan = _json.make_scanner(_Rules())  # type: ignore[arg-type]
        self._text = _json.encode_basestring

    def encode(self, data: Any) -> bytes:
        encoder = _json.make_encoder({}, json_like, self._text, None, ":", ",", False, False, False)
        return "".join(encoder(data, 0)).encode("utf-8", "replace")

    def decode(self, data: bytes) -> Any:
        return self._scan(data.decode("utf-8"), 0)[0]
