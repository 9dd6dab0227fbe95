"""Byte streams: makes the two streams of a connection from pipes, sockets, terminals, files or asyncio streams."""

from __future__ import annotations

import os
import select
import stat
from typing import Any

import anyio

from cantrip_acp.acp.wire.connection import ByteReceiver
from cantrip_acp.acp.wire.send_queue import ByteSender


def byte_streams(reader: Any, writer: Any) -> tuple[ByteReceiver, ByteSender, bool]:
    """Return the input stream, the output stream, and whether the input is a regular file.

    Takes anyio byte streams, asyncio's stream reader and writer, binary files and file descriptors. Raises TypeError
    for other types. At the end of a regular file the client may still read the replies.
    """
    receive: ByteReceiver
    send: ByteSender
    if hasattr(reader, "receive"):
        receive = reader
    elif hasattr(reader, "at_eof"):
        receive = _AsyncioReader(reader)
    else:
        receive = DescriptorReader(_descriptor(reader, "reader"))
    if hasattr(writer, "send"):
        send = writer
    elif hasattr(writer, "drain"):
        send = _AsyncioWriter(writer)
    else:
        if hasattr(writer, "flush"):
            writer.flush()
        send = DescriptorWriter(_descriptor(writer, "writer"))
    return receive, send, isinstance(receive, DescriptorReader) and receive.is_file


def _descriptor(stream: Any, what: str) -> int:
    if isinstance(stream, int) and not isinstance(stream, bool):
        os.fstat(stream)
        return stream
    fileno = getattr(stream, "fileno", None)
    if fileno is None:
        raise TypeError(
            f"the {what} must be an anyio byte stream, asyncio's stream {what}, a binary file or a descriptor, "
            f"not {type(stream).__name__}"
        )
    number: int = fileno()
    return number


class _AsyncioReader:
    def __init__(self, reader: Any) -> None:
        self._reader = reader

    async def receive(self) -> bytes:
        try:
            chunk: bytes = await self._reader.read(65536)
        except OSError:
            chunk = b""
        if not chunk:
            raise anyio.EndOfStream
        return chunk


class _AsyncioWriter:
    def __init__(self, writer: Any) -> None:
        self._writer = writer

    async def send(self, item: bytes, /) -> None:
        try:
            self._writer.write(item)
            await self._writer.drain()
        except OSError as gone:
            raise anyio.BrokenResourceError from gone


# --- File descriptors as byte streams: pipes, sockets, terminals and regular files.
#
# An event loop cannot watch regular files, so these classes poll before each read and write. They do not make a
# descriptor non-blocking, because other processes may share its flags (the shell shares those of a terminal).

READ_SIZE = 256 * 1024
"""Bytes to read at once; a pipe holds 64 KiB by default."""

_BLOCKING_WRITE_SIZE = select.PIPE_BUF
"""Bytes that a write to a blocking descriptor surely takes if poll reports that the descriptor is writable."""

_END_OF_TRANSMISSION = b"\x04"


class DescriptorReader:
    """Reads a descriptor. `receive` raises `anyio.EndOfStream` at the end, or if the other side has disconnected."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._terminal = os.isatty(fd)
        self._poll = select.poll()
        self._poll.register(fd, select.POLLIN)
        self.is_file = stat.S_ISREG(os.fstat(fd).st_mode)
        """Whether it is a regular file. The end of a file does not mean that the other side has disconnected."""

    def hung_up(self) -> bool:
        """Whether the writer has disconnected, even if there is still data to read."""
        return any(events & (select.POLLHUP | select.POLLERR) for _, events in self._poll.poll(0))

    async def receive(self, max_bytes: int = READ_SIZE) -> bytes:
        """Read at least one byte and at most ``max_bytes``."""
        while True:
            if self._poll.poll(0):
                try:
                    chunk = os.read(self._fd, max_bytes)
                except BlockingIOError:
                    chunk = None
                except OSError:
                    # ECONNRESET of a socket, or EIO of a terminal: the other side has disconnected.
                    raise anyio.EndOfStream from None
                if chunk is not None:
                    if self._terminal and _END_OF_TRANSMISSION in chunk:
                        chunk = chunk.partition(_END_OF_TRANSMISSION)[0]
                    if not chunk:
                        raise anyio.EndOfStream
                    return chunk
            await anyio.wait_readable(self._fd)


class DescriptorWriter:
    """Writes to a descriptor. `send` waits for a slow reader, and raises `anyio.BrokenResourceError` if there is none."""

    def __init__(self, fd: int) -> None:
        # A blocking terminal may take fewer bytes than poll promises. So open a second descriptor that does not block.
        self._fd = _open_terminal_again(fd) if os.isatty(fd) else fd
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLOUT)
        blocking = os.get_blocking(self._fd) and not stat.S_ISREG(os.fstat(self._fd).st_mode)
        self._write_size = _BLOCKING_WRITE_SIZE if blocking else READ_SIZE

    async def send(self, item: bytes | bytearray) -> None:
        """Write all bytes of ``item``."""
        rest = memoryview(item)
        while rest:
            if not self._poll.poll(0):
                await anyio.wait_writable(self._fd)
                continue
            try:
                written = os.write(self._fd, rest[: self._write_size])
            except BlockingIOError:
                await anyio.wait_writable(self._fd)
            except OSError as gone:
                raise anyio.BrokenResourceError from gone
            else:
                rest = rest[written:]


def _open_terminal_again(fd: int) -> int:
    try:
        return os.open(os.ttyname(fd), os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError:
        return fd
