"""Whatever a program has for input and output, as the two byte streams that a connection needs."""

from __future__ import annotations

import os
from typing import Any

import anyio

from cantrip_acp.acp.descriptor import DescriptorReader, DescriptorWriter
from cantrip_acp.acp.outbox import ByteSender
from cantrip_acp.acp.wire import ByteReceiver


def byte_streams(reader: Any, writer: Any) -> tuple[ByteReceiver, ByteSender, bool]:
    """The two streams, and whether the input is a regular file, whose end is no hanging up.

    Takes anyio byte streams, asyncio's stream reader and writer, binary files and descriptors. Raises TypeError for
    anything else.
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
    return receive, send, getattr(receive, "is_file", False) is True


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
