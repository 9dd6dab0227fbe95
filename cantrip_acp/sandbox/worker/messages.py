"""Messages of a code worker, and the frames that carry them: four bytes of length, one byte of kind, and a body.

Input from the worker is hostile. Messages are checked strictly, and anything that does not decode as one of the classes
here is ignored. If the length of a frame is above the limit, the rest cannot be read, and the worker is killed. Output
to the worker waits in a queue of limited size while the worker does not read.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable
from typing import Annotated, Any, Literal

import msgspec

from cantrip_acp.files.descriptors import is_ready
from cantrip_acp.types.errors import SandboxError

_Text = Annotated[str, msgspec.Meta(max_length=20_000)]
_Name = Annotated[str, msgspec.Meta(max_length=300)]
_Token = Annotated[str, msgspec.Meta(max_length=64)]
_Number = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class Ready(msgspec.Struct, frozen=True, tag_field="t", tag="ready", forbid_unknown_fields=True):
    """The first message: the interpreter is ready. ``python``: its version. ``executable``: its path."""

    python: _Name
    executable: Annotated[str, msgspec.Meta(max_length=4096)]


class GateCall(msgspec.Struct, frozen=True, tag_field="t", tag="call", forbid_unknown_fields=True):
    """A gate call. The answer has the same id. ``cell``: the token of the calling cell."""

    id: _Number
    gate: _Name
    args: dict[str, Any]
    cell: _Token = ""


class LoomRead(msgspec.Struct, frozen=True, tag_field="t", tag="loom", forbid_unknown_fields=True):
    """A request for turns of the entity's own history (LOOM-11)."""

    id: _Number
    start: _Number
    count: Annotated[int, msgspec.Meta(ge=0, le=1000)]
    cell: _Token = ""


class CellEnded(msgspec.Struct, frozen=True, tag_field="t", tag="end", forbid_unknown_fields=True):
    """A cell has ended. ``value``: its last value as text. ``names``: the names in the namespace, if they changed."""

    cell: _Number
    value: _Text | None
    error: _Text | None
    done: bool
    names: Annotated[list[_Name], msgspec.Meta(max_length=200)] | None = None


class SnapshotBegan(msgspec.Struct, frozen=True, tag_field="t", tag="began", forbid_unknown_fields=True):
    """A forked process now makes the snapshot, so the worker itself can be stopped."""


class State(msgspec.Struct, frozen=True, tag_field="t", tag="state", forbid_unknown_fields=True):
    """A snapshot was sent or loaded, or ``error`` says why not.

    ``size``: bytes. ``missing``: names that the snapshot does not contain, each with the reason. ``modules``: imported
    modules.
    """

    error: _Text | None
    size: _Number
    names: Annotated[list[_Name], msgspec.Meta(max_length=2000)] = []
    missing: Annotated[list[tuple[_Name, _Name]], msgspec.Meta(max_length=200)] = []
    modules: Annotated[list[_Name], msgspec.Meta(max_length=500)] = []


class Schema(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The type of an argument, in a small subset of JSON Schema: no references and no patterns."""

    type: Literal["string", "integer", "number", "boolean", "null", "array", "object"] | msgspec.UnsetType = (
        msgspec.UNSET
    )
    items: Schema | msgspec.UnsetType = msgspec.UNSET
    anyOf: Annotated[list[Schema], msgspec.Meta(min_length=1, max_length=50)] | msgspec.UnsetType = msgspec.UNSET  # noqa: N815
    enum: (
        Annotated[list[str | int | float | bool | None], msgspec.Meta(min_length=1, max_length=200)] | msgspec.UnsetType
    ) = msgspec.UNSET


class Parameter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One argument of a module's function."""

    name: _Name
    schema: Schema
    required: bool
    default: Any = msgspec.UNSET


class OfferedFunction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A function that a module defines as a gate."""

    name: _Name
    doc: _Text
    parameters: Annotated[list[Parameter], msgspec.Meta(max_length=32)]


class ModuleLoaded(msgspec.Struct, frozen=True, tag_field="t", tag="loaded", forbid_unknown_fields=True):
    """A module was loaded, or ``error`` says why not."""

    call: _Number
    error: _Text | None
    gates: Annotated[list[OfferedFunction], msgspec.Meta(max_length=64)] = []


class FunctionAnswer(msgspec.Struct, frozen=True, tag_field="t", tag="answer", forbid_unknown_fields=True):
    """A module's function has returned ``result``, or failed with ``error``."""

    call: _Number
    error: _Text | None
    result: Any = None


Message = Ready | GateCall | LoomRead | CellEnded | SnapshotBegan | State | ModuleLoaded | FunctionAnswer

_decoder = msgspec.json.Decoder(Message, strict=True)


def decode(body: bytes) -> Message | None:
    """Decode a message; None if it is not valid."""
    try:
        said: Message = _decoder.decode(body)
        return said
    except (msgspec.DecodeError, RecursionError, UnicodeError, ValueError):
        return None


HEAD = 5
JSON = b"j"
BYTES = b"b"
_READ = 1 << 18
_LARGE = 1 << 20


class FrameError(SandboxError):
    """The other end violates the protocol of frames."""


class Frames:
    """Sends and receives frames over two descriptors, which this object owns.

    ``received`` is called with the kind and the body of each frame. ``failed`` is called once with the reason when no
    more frames can come, because the other end has closed its descriptor or broken the protocol. ``largest``: the
    maximum size in bytes of a received frame. ``most_queued``: the maximum number of bytes that wait to be sent.
    """

    def __init__(
        self,
        inward: int,
        outward: int,
        received: Callable[[bytes, bytes], None],
        failed: Callable[[str], None],
        *,
        largest: int,
        most_queued: int,
    ) -> None:
        self._in = inward
        self._out = outward
        self._received = received
        self._failed = failed
        self._largest = largest
        self._most_queued = most_queued
        self._loop = asyncio.get_running_loop()
        self._buffer = bytearray()
        self._queue: deque[memoryview] = deque()
        self._queued = 0
        os.set_blocking(inward, False)
        os.set_blocking(outward, False)
        self._loop.add_reader(inward, self._on_readable)

    def send(self, kind: bytes, body: bytes) -> None:
        """Queue a frame. Raises `FrameError` if too many bytes wait because the other end does not read."""
        if self._out < 0:
            return
        head = len(body).to_bytes(4, "big") + kind
        if self._queued + HEAD + len(body) > self._most_queued:
            raise FrameError(f"the worker does not read: more than {self._most_queued:,} bytes wait for it")
        self._queued += HEAD + len(body)
        idle = not self._queue
        # Do not copy a large body again.
        self._queue.extend(map(memoryview, (head + body,) if len(body) < _LARGE else (head, body)))
        if idle:
            self._write()

    def _write(self) -> None:
        while self._queue:
            data = self._queue[0]
            try:
                written = os.write(self._out, data[: 1 << 20])
            except BlockingIOError:
                self._loop.add_writer(self._out, self._write)
                return
            except OSError:
                # The reader has ended. `_on_readable` will report that.
                self._queue.clear()
                self._queued = 0
                break
            self._queued -= written
            if written == len(data):
                self._queue.popleft()
            else:
                self._queue[0] = data[written:]
        self._loop.remove_writer(self._out)

    def _on_readable(self) -> None:
        try:
            data = os.read(self._in, _READ)
        except BlockingIOError:
            return
        except OSError as error:
            self._end(error.strerror or "it cannot be read")
            return
        if not data:
            self._end("it closed its pipe")
            return
        self._buffer += data
        start = 0
        while len(self._buffer) - start >= HEAD:
            size = int.from_bytes(self._buffer[start : start + 4], "big")
            kind = bytes(self._buffer[start + 4 : start + HEAD])
            if size > self._largest or kind not in (JSON, BYTES):
                self._end("it sent data that is not a message")
                return
            end = start + HEAD + size
            if len(self._buffer) < end:
                break
            body = bytes(memoryview(self._buffer)[start + HEAD : end])
            start = end
            self._received(kind, body)
            if self._in < 0:
                return
        del self._buffer[:start]

    def _end(self, why: str) -> None:
        if self._in >= 0:
            self._loop.remove_reader(self._in)
            os.close(self._in)
            self._in = -1
            self._failed(why)

    def drop_incomplete(self) -> None:
        """Discard an incomplete frame whose writer was killed. No other process may be writing."""
        while self._in >= 0 and is_ready(self._in):
            self._on_readable()
        self._buffer.clear()

    def close(self) -> None:
        """Close both descriptors. Afterwards no callback is called."""
        if self._in >= 0:
            self._loop.remove_reader(self._in)
            os.close(self._in)
            self._in = -1
        if self._out >= 0:
            self._loop.remove_writer(self._out)
            os.close(self._out)
            self._out = -1
        self._queue.clear()
