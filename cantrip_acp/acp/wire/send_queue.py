"""Messages on their way out: in order, many in one write, and no faster than the reader.

Whoever sends much waits for `Outbox.room`; a reply or an error never waits. So a slow client slows the entity that
talks to it and nothing else, and a cancelled turn can still be answered while the client is slow.
"""

from __future__ import annotations

import json
from typing import Any, Protocol, cast

import anyio
import msgspec

HIGH_WATER = 64 * 1024
"""Bytes that may wait before senders do."""


class ByteSender(Protocol):
    """Where the bytes go: an anyio byte stream or a descriptor."""

    async def send(self, item: bytes, /) -> None: ...


class Outbox:
    """The one writer of a connection: `put` keeps order, `run` writes; once `broken`, everything is dropped."""

    def __init__(self, stream: ByteSender) -> None:
        self._stream = stream
        self._buffer = bytearray()
        self._writing = 0
        self._filled = anyio.Event()
        self._drained = anyio.Event()
        self._closing = False
        self._encoder = msgspec.json.Encoder(enc_hook=repr)
        self.written = anyio.Event()
        """Set when the last byte is out, or when the other side no longer reads."""
        self.broken = False
        """The other side no longer reads."""

    @property
    def waiting(self) -> int:
        """Bytes not yet taken by the other side."""
        return len(self._buffer) + self._writing

    def put(self, message: Any) -> None:
        """Queue one message; it is a struct or plain data."""
        if self.broken:
            return
        buffer = self._buffer
        start = len(buffer)
        try:
            self._encoder.encode_into(message, buffer, start)
        except (UnicodeEncodeError, OverflowError, ValueError, TypeError):
            # Lone surrogates and integers beyond 64 bits: what an entity or a model wrote may hold them.
            del buffer[start:]
            buffer += json.dumps(_plain(msgspec.to_builtins(message, enc_hook=repr, str_keys=True))).encode()
        buffer += b"\n"
        if not start:
            self._filled.set()

    async def room(self) -> None:
        """Wait where too much waits, until that is out.

        Once and no longer: what others put meanwhile is for them to wait for, or a flood would starve everybody else.
        """
        if self.waiting > HIGH_WATER and not self.broken:
            await self._drained.wait()

    async def run(self) -> None:
        """Write until `finish`, or until the other side is gone."""
        try:
            while True:
                if not self._buffer:
                    if self._closing:
                        return
                    self._filled = anyio.Event()
                    await self._filled.wait()
                    continue
                batch, self._buffer = self._buffer, bytearray()
                self._writing = len(batch)
                # A buffer serves every stream as bytes do, and copying it would cost as much as writing it.
                await self._stream.send(cast(bytes, batch))
                self._writing = 0
                self._wake_senders()
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass
        finally:
            self.broken = True
            self.written.set()
            self._buffer = bytearray()
            self._writing = 0
            self._wake_senders()

    def finish(self) -> None:
        """No more will be put: `run` ends when all is written."""
        self._closing = True
        self._filled.set()

    def _wake_senders(self) -> None:
        drained, self._drained = self._drained, anyio.Event()
        drained.set()


def _plain(data: Any) -> Any:
    """The same data as JSON can carry it: valid text, finite numbers."""
    if isinstance(data, str):
        return data.encode("utf-8", "replace").decode()
    if isinstance(data, dict):
        return {_plain(key): _plain(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_plain(value) for value in data]
    if isinstance(data, float) and (data != data or data in (float("inf"), float("-inf"))):
        return None
    return data
