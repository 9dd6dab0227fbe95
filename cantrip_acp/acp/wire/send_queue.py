"""Send queue: writes outgoing messages in order, several in one write, and only as fast as the other side reads.

A sender of many messages awaits `SendQueue.wait_for_space`. Replies and errors never wait. So a slow client slows only
the entity that talks to it, and the prompt of a cancelled turn still gets its reply.
"""

from __future__ import annotations

import json
from typing import Any, Protocol, cast

import anyio
import msgspec

from cantrip_acp.acp.wire.jsonrpc import ErrorReply
from cantrip_acp.text.redaction import shared

HIGH_WATER = 64 * 1024
"""Queued bytes at which senders start to wait."""


class ByteSender(Protocol):
    """Destination of bytes: an anyio byte stream or a file descriptor."""

    async def send(self, item: bytes, /) -> None: ...


class SendQueue:
    """The only writer of a connection. `put` queues a message and `run` writes. After `broken` all messages are dropped."""

    def __init__(self, stream: ByteSender) -> None:
        self._stream = stream
        self._buffer = bytearray()
        self._writing = 0
        self._filled = anyio.Event()
        self._drained = anyio.Event()
        self._closing = False
        self._encoder = msgspec.json.Encoder(enc_hook=_plain)
        self.written = anyio.Event()
        """Set when the last byte was written, or when the other side no longer reads."""
        self.broken = False
        """True when the other side no longer reads."""

    @property
    def waiting(self) -> int:
        """The number of bytes that are queued or being written."""
        return len(self._buffer) + self._writing

    def put(self, message: Any, *, masked: bool = False) -> None:
        """Queue one message: a struct or plain data. Known secrets are masked if ``masked`` is set, or if it tells of an error."""
        if self.broken:
            return
        buffer = self._buffer
        start = len(buffer)
        encoded: bytearray | None = buffer
        try:
            self._encoder.encode_into(message, buffer, start)
        except (UnicodeEncodeError, OverflowError, ValueError, TypeError):
            # Text of a model may hold lone surrogates, and data may hold integers beyond 64 bits.
            encoded = None
        masked = masked or isinstance(message, ErrorReply)
        clean = shared().masked(message, encoded, start) if masked else message
        if encoded is None or clean is not message:
            del buffer[start:]
            buffer += json.dumps(_json_compatible(msgspec.to_builtins(clean, enc_hook=_plain, str_keys=True))).encode()
        buffer += b"\n"
        if not start:
            self._filled.set()

    async def wait_for_space(self) -> None:
        """If too many bytes are queued, wait until these bytes are written.

        Messages that other senders queue later do not prolong the wait, so many messages cannot block a sender forever.
        """
        if self.waiting > HIGH_WATER and not self.broken:
            await self._drained.wait()

    async def run(self) -> None:
        """Write until `finish` was called and all is written, or until the other side no longer reads."""
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
                # Every stream also takes a bytearray. A copy to bytes would cost as much as the write.
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
        """End the queue: no more messages come, and `run` ends when all are written."""
        self._closing = True
        self._filled.set()

    def _wake_senders(self) -> None:
        drained, self._drained = self._drained, anyio.Event()
        drained.set()


def _plain(value: Any) -> Any:
    """The id of a reply, which is kept as bytes, as data; for anything else its text."""
    return json.loads(bytes(value)) if isinstance(value, msgspec.Raw) else repr(value)


def _json_compatible(data: Any) -> Any:
    """Return the data in a form that JSON allows: with valid Unicode text, and None for infinite numbers."""
    if isinstance(data, str):
        return data.encode("utf-8", "replace").decode()
    if isinstance(data, dict):
        return {_json_compatible(key): _json_compatible(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_json_compatible(value) for value in data]
    if isinstance(data, float) and (data != data or data in (float("inf"), float("-inf"))):
        return None
    return data
