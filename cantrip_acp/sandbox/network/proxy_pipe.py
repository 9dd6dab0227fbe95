"""One side of a proxied connection: reads and writes with limits of bytes and time."""

from __future__ import annotations

import asyncio
import re
import time

import anyio

IDLE = 120.0
"""Seconds. A connection is closed if no byte moves in either direction for this long."""
LINGER = 2.0
"""Seconds that we wait for the other side to end the connection after we have ended it."""
MOST_BYTES = 8 * 1024**3
"""The maximum number of bytes of one connection in each direction."""
_PIECE = 65_536
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,12})[ \t]*(?:;[^\r\n]*)?\r\n")
_MOST_TRAILERS = 100


class Broken(Exception):
    """The connection cannot continue: no data came for too long, it ended too early, or the data is malformed."""


class TooLong(Broken):
    """The expected end marker did not come within the byte limit."""


class ProxyPipe:
    """A stream in both directions, to a client or to a server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._buffer = b""
        self._sent = 0
        self.last_moved = time.monotonic()

    @property
    def peer_port(self) -> int:
        """The port of the other end; 0 if it has gone."""
        name = self._writer.get_extra_info("peername")
        return int(name[1]) if name else 0

    async def send(self, data: bytes) -> None:
        self._sent += len(data)
        if self._sent > MOST_BYTES:
            raise Broken("more bytes than a connection may carry")
        self._writer.write(data)
        with anyio.move_on_after(IDLE) as scope:
            await self._writer.drain()
        if scope.cancelled_caught:
            raise Broken("the other side does not read")
        self.last_moved = time.monotonic()

    def buffered(self) -> bytes:
        """Return the bytes that were read from the connection but not used yet."""
        return self._buffer

    async def read(self) -> bytes:
        """Return the next bytes; empty at the end of the stream."""
        if self._buffer:
            data, self._buffer = self._buffer, b""
            return data
        return await self._reader.read(_PIECE)

    def put_back(self, data: bytes) -> None:
        self._buffer = data + self._buffer

    async def refill(self) -> bool:
        """Read more bytes into the buffer. Returns False at the end of the stream, or if no byte comes within `IDLE`."""
        with anyio.move_on_after(IDLE):
            more = await self._reader.read(_PIECE)
            self._buffer += more
            return bool(more)
        return False

    async def next_byte(self) -> int | None:
        """The next byte, which stays in the buffer. None at the end of the stream, or if no byte comes within `IDLE`."""
        return self._buffer[0] if self._buffer or await self.refill() else None

    async def read_until(self, end: bytes, most: int) -> bytes:
        """Read up to and including ``end``, at most ``most`` bytes. Raises `Broken`."""
        data = b""
        while (at := data.find(end)) < 0:
            if len(data) > most:
                raise TooLong
            more = await self.read()
            if not more:
                raise Broken("the stream ended too early")
            data += more
        at += len(end)
        if at > most:
            raise TooLong
        self.put_back(data[at:])
        return data[:at]

    async def copy_to(self, other: ProxyPipe) -> None:
        """Copy all data to the other stream, then send the end of the stream."""
        while True:
            with anyio.move_on_after(IDLE) as scope:
                data = await self.read()
            if scope.cancelled_caught:
                if time.monotonic() - max(self.last_moved, other.last_moved) < IDLE:
                    continue
                raise Broken("no data moved for too long")
            if not data:
                break
            self.last_moved = time.monotonic()
            await other.send(data)
        await other.finish()

    async def finish(self) -> None:
        """Send the end of the stream to the other side."""
        if not self._writer.is_closing():
            self._writer.write_eof()
        with anyio.move_on_after(IDLE):
            await self._writer.drain()

    async def linger(self) -> None:
        """Send the end, then discard input until the other side ends too, for at most `LINGER` seconds.

        If a socket is closed with unread input, the kernel resets the connection. Then a client that still writes
        would fail before it reads our answer.
        """
        with anyio.move_on_after(LINGER):
            try:
                await self.finish()
                while await self._reader.read(_PIECE):
                    pass
            except OSError:
                return

    def close(self) -> None:
        """Close the connection. Bytes that wait to be sent are still sent."""
        self._writer.close()

    def abort(self) -> None:
        """Close the connection at once and discard unsent bytes."""
        self._writer.transport.abort()


async def forward_body(client: ProxyPipe, server: ProxyPipe, length: int | None) -> None:
    """Forward the body of a request, and not one byte more. If ``length`` is None, the body is chunked."""
    if length is not None:
        await _forward(client, server, length)
        return
    while True:
        found = _CHUNK.fullmatch(await client.read_until(b"\r\n", 4096))
        if found is None:
            raise Broken("a malformed chunk")
        size = int(found[1], 16)
        if size == 0:
            break
        await server.send(b"%x\r\n" % size)
        await _forward(client, server, size)
        if await client.read_until(b"\r\n", 2) != b"\r\n":
            raise Broken("a malformed chunk")
        await server.send(b"\r\n")
    for _ in range(_MOST_TRAILERS):
        if await client.read_until(b"\r\n", 4096) == b"\r\n":
            await server.send(b"0\r\n\r\n")
            return
    raise Broken("too many trailers")


async def _forward(client: ProxyPipe, server: ProxyPipe, left: int) -> None:
    while left:
        with anyio.move_on_after(IDLE) as scope:
            data = await client.read()
        if scope.cancelled_caught:
            raise Broken("no data came for too long")
        if not data:
            raise Broken("the stream ended too early")
        if len(data) > left:
            client.put_back(data[left:])
            data = data[:left]
        left -= len(data)
        client.last_moved = time.monotonic()
        await server.send(data)
