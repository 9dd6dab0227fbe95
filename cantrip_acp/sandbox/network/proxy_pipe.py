"""One end of a proxied connection: bytes in and out, bounded in number, and not without end when nothing moves."""

from __future__ import annotations

import asyncio
import re
import time

import anyio

IDLE = 120.0
"""Seconds without a byte in either direction, after which a connection is closed."""
LINGER = 2.0
"""Seconds for the other side to take note of our end, before its connection is closed all the same."""
MOST_BYTES = 8 * 1024**3
"""What one connection may carry each way."""
_PIECE = 65_536
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,12})[ \t]*(?:;[^\r\n]*)?\r\n")
_MOST_TRAILERS = 100


class Broken(Exception):
    """A connection that cannot go on: silent for too long, ended too early, or malformed."""


class TooLong(Broken):
    """More came than there may be before the end that was looked for."""


class Passage:
    """A stream both ways."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._held = b""
        self._carried = 0
        self.moved = time.monotonic()

    async def send(self, data: bytes) -> None:
        self._carried += len(data)
        if self._carried > MOST_BYTES:
            raise Broken("too much")
        self._writer.write(data)
        with anyio.move_on_after(IDLE) as scope:
            await self._writer.drain()
        if scope.cancelled_caught:
            raise Broken("nobody reads")
        self.moved = time.monotonic()

    def waiting(self) -> bytes:
        """What was read and not taken yet."""
        return self._held

    async def read(self) -> bytes:
        """The next bytes; none at the end."""
        if self._held:
            data, self._held = self._held, b""
            return data
        return await self._reader.read(_PIECE)

    def put_back(self, data: bytes) -> None:
        self._held = data + self._held

    async def refill(self) -> bool:
        """Have more wait than did. False where nothing comes any more."""
        with anyio.move_on_after(IDLE):
            more = await self._reader.read(_PIECE)
            self._held += more
            return bool(more)
        return False

    async def until(self, end: bytes, most: int) -> bytes:
        """Up to the next such bytes, these included. Raises `Broken`."""
        data = b""
        while (at := data.find(end)) < 0:
            if len(data) > most:
                raise TooLong
            more = await self.read()
            if not more:
                raise Broken("it ended too early")
            data += more
        at += len(end)
        if at > most:
            raise TooLong
        self.put_back(data[at:])
        return data[:at]

    async def copy_to(self, other: Passage) -> None:
        """Everything to the other one, and then its end."""
        while True:
            with anyio.move_on_after(IDLE) as scope:
                data = await self.read()
            if scope.cancelled_caught:
                if time.monotonic() - max(self.moved, other.moved) < IDLE:
                    continue
                raise Broken("nothing moved")
            if not data:
                break
            self.moved = time.monotonic()
            await other.send(data)
        await other.finish()

    async def finish(self) -> None:
        """No more from this side."""
        if not self._writer.is_closing():
            self._writer.write_eof()
        with anyio.move_on_after(IDLE):
            await self._writer.drain()

    async def linger(self) -> None:
        """Finish, and discard what still comes until the other side ends too, or `LINGER` is over.

        Closing a socket while bytes wait in it resets the connection: whoever still writes breaks off before it reads our answer.
        """
        with anyio.move_on_after(LINGER):
            try:
                await self.finish()
                while await self._reader.read(_PIECE):
                    pass
            except OSError:
                return

    def close(self) -> None:
        """What was sent still goes out."""
        self._writer.close()

    def abort(self) -> None:
        """At once, whatever waits."""
        self._writer.transport.abort()


async def forward_body(client: Passage, server: Passage, length: int | None) -> None:
    """A request's body, and not one byte after it. ``length`` is None for one in chunks, which are written anew."""
    if length is not None:
        await _forward(client, server, length)
        return
    while True:
        found = _CHUNK.fullmatch(await client.until(b"\r\n", 4096))
        if found is None:
            raise Broken("a malformed chunk")
        size = int(found[1], 16)
        if size == 0:
            break
        await server.send(b"%x\r\n" % size)
        await _forward(client, server, size)
        if await client.until(b"\r\n", 2) != b"\r\n":
            raise Broken("a malformed chunk")
        await server.send(b"\r\n")
    for _ in range(_MOST_TRAILERS):
        if await client.until(b"\r\n", 4096) == b"\r\n":
            await server.send(b"0\r\n\r\n")
            return
    raise Broken("too many trailers")


async def _forward(client: Passage, server: Passage, left: int) -> None:
    while left:
        with anyio.move_on_after(IDLE) as scope:
            data = await client.read()
        if scope.cancelled_caught:
            raise Broken("nothing came")
        if not data:
            raise Broken("it ended too early")
        if len(data) > left:
            client.put_back(data[left:])
            data = data[:left]
        left -= len(data)
        client.moved = time.monotonic()
        await server.send(data)
