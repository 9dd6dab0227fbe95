"""Ordered queue: runs work items one after another in the order they came, and limits how many wait."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

import anyio

WAITING: Final = 256
"""Items that may wait before `room` makes producers wait."""


class OrderedQueue:
    """A queue of async calls. `put` never waits; one task runs the calls with `run`."""

    def __init__(self) -> None:
        self._work: deque[Callable[[], Awaitable[None]]] = deque()
        self._arrived = anyio.Event()
        self._drained = anyio.Event()

    def put(self, work: Callable[[], Awaitable[None]]) -> None:
        self._work.append(work)
        self._arrived.set()

    async def run(self) -> None:
        """Run the queued calls until cancelled."""
        while True:
            while self._work:
                await self._work[0]()
                self._work.popleft()
                if len(self._work) <= WAITING // 2:
                    self._drained.set()
                    self._drained = anyio.Event()
            self._arrived = anyio.Event()
            await self._arrived.wait()

    async def all_done(self) -> None:
        """Wait until everything queued before now is done."""
        done = anyio.Event()

        async def reached() -> None:
            done.set()

        self.put(reached)
        await done.wait()

    async def room(self) -> None:
        """Wait while too many items are queued."""
        while len(self._work) > WAITING:
            await self._drained.wait()
