"""HTTP clients for the providers' SDKs: one client for each event loop, and limits on response sizes.

`prepare` and `prepare_in_background` import an SDK before the first query, because the import takes up to a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import threading
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import anyio
import anyio.to_thread

from cantrip_acp.crystals.contract import Crystal, CrystalBase
from cantrip_acp.crystals.event_stream import Api, EventReader
from cantrip_acp.text.defaults import complete
from cantrip_acp.text.logs import logger
from cantrip_acp.types.errors import MalformedResponse

log = logger(__name__)

CLOSING_S = 2.0
"""The most seconds to wait for connections to close."""

LONGEST_EVENT = 16 * 1024 * 1024
"""The most bytes of one event of a stream, or of an error body. The SDKs keep them in memory until they end."""

MOST_LINES = 1000
"""The most lines of one event, which normally has two. The SDKs copy the whole event for each line."""

TAIL = "cantrip.tail"
"""The key in a response's extensions under which `response_hook` stores the end of the body."""
_TAIL = 16 * 1024

if TYPE_CHECKING:
    import ssl

Client = TypeVar("Client")


class ClientPerLoop(Generic[Client]):
    """The clients of one crystal: one for each event loop, made at the first request in it.

    The crystal owns them: a client is closed when nobody has the crystal any more, when its event loop ends, or by `aclose`.
    """

    __slots__ = ("_clients", "_close", "_make")

    def __init__(self, make: Callable[[], Client], close: Callable[[Client], Awaitable[None]]) -> None:
        self._make = make
        self._close = close
        self._clients: dict[asyncio.AbstractEventLoop, tuple[Client, AsyncGenerator[Client, None]]] = {}

    async def get(self) -> Client:
        """Return the client of the running event loop."""
        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            life = self._life(loop)
            self._clients[loop] = (await anext(life), life)
        return self._clients[loop][0]

    async def _life(self, loop: asyncio.AbstractEventLoop) -> AsyncGenerator[Client, None]:
        """Make a client, and close it at the end. An event loop ends its generators before it stops, and those that are garbage."""
        client = self._make()
        try:
            yield client
        finally:
            self._clients.pop(loop, None)
            try:
                with anyio.move_on_after(CLOSING_S, shield=True):
                    await self._close(client)
            except Exception as error:  # noqa: BLE001 - a library may raise anything while a connection closes
                log.debug("cannot close the connections of a crystal: %s: %s", type(error).__name__, error)

    async def aclose(self) -> None:
        """Close the client of the running event loop. The next query makes a new one."""
        if (found := self._clients.get(asyncio.get_running_loop())) is not None:
            await found[1].aclose()


def tls_context() -> ssl.SSLContext:
    """The trusted certificates, loaded once for all clients of this process, because loading takes 20 ms or more."""
    return _tls_context(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))


@functools.cache
def _tls_context(file: str | None, folder: str | None) -> ssl.SSLContext:
    import httpx2

    # It reads both variables from the environment itself.
    return httpx2.create_ssl_context()


def response_hook(api: Api) -> Callable[[Any], Awaitable[None]]:
    """Make a response hook for an HTTP client. ``api`` as in `EventReader`.

    It stops a response whose event or error body is too large, and leaves out events without data.
    """

    async def hook(response: Any) -> None:
        _watch(response, api)

    return hook


def _watch(response: Any, api: Api) -> None:
    read = response.aiter_bytes
    streamed = response.status_code == 200
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()

    async def watched(chunk_size: int | None = None) -> AsyncIterator[bytes]:
        length, lines, tail = 0, 0, b""
        events = EventReader(api, streamed=kind == "text/event-stream") if streamed else None
        # Count after decompression, because a small compressed body may become very large.
        async with contextlib.aclosing(read(chunk_size)) as pieces:
            async for piece in pieces:
                seen = (tail + piece).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
                end = seen.rfind(b"\n\n") if streamed else -1
                if end >= 0:
                    length, lines, seen = 0, 0, seen[end + 2 :]
                length += len(seen)
                lines += seen.count(b"\n") if streamed else 0
                if length > LONGEST_EVENT or lines > MOST_LINES:
                    raise MalformedResponse(
                        f"the response was stopped: one event has more than {LONGEST_EVENT:,} bytes or {MOST_LINES} lines"
                    )
                tail = piece[-3:]
                response.extensions[TAIL] = (response.extensions.get(TAIL, b"") + piece)[-_TAIL:]
                if passed := piece if events is None else events.feed(piece):
                    yield passed
        if events is not None and (rest := events.finish()):
            yield rest

    response.aiter_bytes = watched


_ready: weakref.WeakSet[Any] = weakref.WeakSet()


def _preparation(crystal: Crystal) -> Callable[[], None] | None:
    """The crystal's own ``prepare``. None if it has none: its queries wait for no thread, and so begin in their order."""
    prepare = complete(crystal, CrystalBase).prepare
    return None if getattr(prepare, "__func__", None) is CrystalBase.prepare else prepare


async def prepare(crystal: Crystal) -> None:
    """Run the crystal's ``prepare`` in a thread, because an import would block the event loop, and wait for it.

    A cancel does not wait for the thread. Errors are only logged here, because the query reports them.
    """
    try:
        if crystal in _ready:
            return
    except TypeError:
        return  # It cannot be hashed, so we cannot remember that it is ready.
    if (own := _preparation(crystal)) is None:
        return
    try:
        await anyio.to_thread.run_sync(own, abandon_on_cancel=True)
    except Exception as error:  # noqa: BLE001
        log.debug("%s could not be prepared: %s: %s", crystal.name, type(error).__name__, error)
    _ready.add(crystal)


def prepare_in_background(crystal: Crystal) -> None:
    """Run the crystal's ``prepare`` in a separate thread. Returns at once and never raises.

    The thread is a daemon, so the process can exit without waiting for an import.
    """

    if (own := _preparation(crystal)) is None:
        return

    def run() -> None:
        try:
            own()
        except Exception as error:  # noqa: BLE001 - the first query meets the same error, and reports it
            log.info("%s could not be prepared: %s: %s", crystal.name, type(error).__name__, error)

    threading.Thread(target=run, name=f"prepare {crystal.name}", daemon=True).start()
