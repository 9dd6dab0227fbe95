"""MCP transports in the SDK's form: over a program's standard streams, or over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import anyio
import httpx2
import mcp_types
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client
from mcp.shared.message import SessionMessage

from cantrip_acp.gates.mcp.declaration import McpServer
from cantrip_acp.gates.mcp.user_process import UserProcess
from cantrip_acp.sandbox import Service, clean
from cantrip_acp.text.logs import logger
from cantrip_acp.types.errors import SandboxError

log = logger(__name__)

LARGEST = 16 * 1024 * 1024
"""The most bytes of one message from a server."""

Opened = AbstractAsyncContextManager[Any]


@asynccontextmanager
async def over_stdio(service: Service | UserProcess) -> AsyncIterator[Any]:
    """Connect to a server over its standard streams, with one message for each line."""
    async with service.running():
        into, received = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        sending, outgoing = anyio.create_memory_object_stream[SessionMessage](0)

        async def read() -> None:
            held = bytearray()
            async with into:
                while data := await service.receive():
                    held += data
                    while (end := held.find(b"\n")) >= 0:
                        line = bytes(held[:end])
                        del held[: end + 1]
                        if not line.strip():
                            continue
                        try:
                            await into.send(parse_message(line))
                        except (anyio.ClosedResourceError, anyio.BrokenResourceError):
                            return
                    if len(held) > LARGEST:
                        log.warning("an MCP server sent a line of more than %d bytes", LARGEST)
                        return

        async def write() -> None:
            async with outgoing:
                async for message in outgoing:
                    text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                    try:
                        await service.send(text.encode() + b"\n")
                    except (SandboxError, OSError):
                        # End the reading side, so that everybody who waits for an answer gets an error.
                        await into.aclose()
                        return

        async with anyio.create_task_group() as group:
            group.start_soon(read)
            group.start_soon(write)
            try:
                yield received, sending
            finally:
                received.close()
                sending.close()
                group.cancel_scope.cancel()


def parse_message(line: bytes) -> SessionMessage | Exception:
    """Parse one line to a message. Other text becomes an error as a value, so that it does not end the connection."""
    try:
        return SessionMessage(mcp_types.jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError:
        return ValueError(f"a line that is not a message: {clean(line[:200].decode('utf-8', 'replace'))!r}")


class _Bounded(httpx2.AsyncByteStream):
    """Limits the body of a response to the size of one message."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        taken = 0
        async for piece in self._stream:
            taken += len(piece)
            if taken > LARGEST:
                raise httpx2.ReadError(f"the server's answer is larger than {LARGEST} bytes")
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()


Refused = Callable[[int], None]
"""Called with the HTTP status of an error answer, which the SDK does not report."""


class _BoundedTransport(httpx2.AsyncHTTPTransport):
    def __init__(self, refused: Refused) -> None:
        super().__init__()
        self._refused = refused

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await super().handle_async_request(request)
        # Ignore errors of other methods: a server need not support GET (to listen) and DELETE (at the end).
        if response.status_code >= 400 and request.method == "POST":
            self._refused(response.status_code)
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            # A stream of events has no size limit, but the SDK limits each event.
            response.stream = _Bounded(response.stream)
        return response


def _client(server: McpServer, refused: Refused) -> httpx2.AsyncClient:
    client = create_mcp_http_client(headers=dict(server.headers))
    client._transport = _BoundedTransport(refused)
    return client


@asynccontextmanager
async def over_http(server: McpServer, refused: Refused) -> AsyncIterator[Any]:
    """Connect to a server over streamable HTTP."""
    async with _client(server, refused) as client, streamable_http_client(server.url, http_client=client) as streams:
        yield streams


def over_sse(server: McpServer, refused: Refused) -> Opened:
    """Connect to a server over the older HTTP transport: server-sent events and separate requests."""
    factory: Callable[..., httpx2.AsyncClient] = lambda *_, **__: _client(server, refused)  # noqa: E731
    return sse_client(server.url, headers=dict(server.headers), httpx_client_factory=factory)
