"""HTTP clients for the providers' SDKs: one per event loop, a limit on event sizes, and a count of a crystal's users.

`prepare` and `prepare_in_background` import an SDK before the first query, because that takes most of a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Generic, TypeVar

import anyio
import anyio.to_thread

from cantrip_acp.core.errors import MalformedResponse
from cantrip_acp.crystals.contract import Crystal

LONGEST_EVENT = 16 * 1024 * 1024
"""Bytes of one event of a stream, or of an error body; SDKs keep these in memory until they end."""

MOST_LINES = 1000
"""Lines of one event, which normally has two; SDKs copy the whole event with each line."""

TAIL = "cantrip.tail"
"""The extension of a watched response that holds the end of its body."""
_TAIL = 16 * 1024

Client = TypeVar("Client")


class ClientPerLoop(Generic[Client]):
    """Makes a client when a loop first asks for one, and returns the same one afterwards."""

    __slots__ = ("_clients", "_close", "_make")

    def __init__(self, make: Callable[[], Client], close: Callable[[Client], Awaitable[None]]) -> None:
        self._make = make
        self._close = close
        self._clients: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Client] = weakref.WeakKeyDictionary()

    def get(self) -> Client:
        """The running loop's client."""
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None:
            client = self._clients[loop] = self._make()
        return client

    async def aclose(self) -> None:
        """Close the running loop's client. The next query makes another."""
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await self._close(client)


async def watch(response: Any) -> None:
    """An event hook of an HTTP client: stops a response whose event or error body does not end."""
    read = response.aiter_bytes
    streamed = response.status_code == 200

    async def watched(chunk_size: int | None = None) -> AsyncIterator[bytes]:
        length, lines, tail = 0, 0, b""
        # Count after decompression: few bytes on the wire may become many.
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
                        f"the response has an event beyond {LONGEST_EVENT:,} bytes or {MOST_LINES} lines and was stopped"
                    )
                tail = piece[-3:]
                response.extensions[TAIL] = (response.extensions.get(TAIL, b"") + piece)[-_TAIL:]
                yield piece

    response.aiter_bytes = watched


log = logging.getLogger(__name__)

CLOSING_S = 2.0
"""Seconds that closing connections may take."""

_users: weakref.WeakKeyDictionary[Any, weakref.WeakSet[Any]] = weakref.WeakKeyDictionary()


def acquire(crystal: Crystal, user: object) -> None:
    """Register ``user`` as a user of the crystal."""
    try:
        _users.setdefault(crystal, weakref.WeakSet()).add(user)
    except TypeError:
        pass  # a crystal that cannot be counted is closed only by its owner


async def release(crystal: Crystal, user: object) -> None:
    """Remove ``user``. When no user is left, the crystal's connections are closed; it may still be queried again."""
    aclose = getattr(crystal, "aclose", None)
    try:
        users = _users.get(crystal)
    except TypeError:
        return
    if users is None or user not in users:
        return
    users.discard(user)
    if users or aclose is None:
        return
    with anyio.move_on_after(CLOSING_S, shield=True):
        try:
            await aclose()
        except Exception as error:  # noqa: BLE001 - a library may raise anything while a connection closes
            log.debug("the connections of %s did not end well: %s: %s", crystal.name, type(error).__name__, error)


_ready: weakref.WeakSet[Any] = weakref.WeakSet()


async def prepare(crystal: Crystal) -> None:
    """Wait until the crystal's ``prepare`` is done. It runs in a thread, because an import would block the event loop.

    A cancel does not wait for it. Errors are only logged: the query reports them.
    """
    prepare = getattr(crystal, "prepare", None)
    try:
        if prepare is None or crystal in _ready:
            return
    except TypeError:
        return  # not hashable: it prepares itself
    try:
        await anyio.to_thread.run_sync(prepare, abandon_on_cancel=True)
    except Exception as error:  # noqa: BLE001
        log.debug("%s could not be prepared: %s: %s", crystal.name, type(error).__name__, error)
    _ready.add(crystal)


def prepare_in_background(crystal: Crystal) -> None:
    """Run the crystal's ``prepare`` in a separate thread, where it has one. Returns at once and never fails.

    The thread is a daemon, so the process can exit without waiting for an import.
    """
    prepare = getattr(crystal, "prepare", None)
    if prepare is None:
        return

    def run() -> None:
        try:
            prepare()
        except Exception as error:  # noqa: BLE001 - the first query meets the same error, and reports it
            log.info("%s could not be prepared: %s: %s", crystal.name, type(error).__name__, error)

    threading.Thread(target=run, name=f"prepare {crystal.name}", daemon=True).start()
