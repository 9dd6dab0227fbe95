"""Work that is done one piece after another, in the order in which it came, with a limit for who brings it."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

import anyio

WAITING: Final = 256
"""Pieces that may wait before `room` makes whoever brings more wait too."""


class InOrder:
    """`put` never waits; one task does the work by `run`."""

    def __init__(self) -> None:
        self._work: deque[Callable[[], Awaitable[None]]] = deque()
        self._arrived = anyio.Event()
        self._drained = anyio.Event()

    def put(self, work: Callable[[], Awaitable[None]]) -> None:
        self._work.append(work)
        self._arrived.set()

    async def run(self) -> None:
        """Do what came, for as long as this is not cancelled."""
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
        """Wait until all is done that came before now."""
        done = anyio.Event()

        async def reached() -> None:
            done.set()

        self.put(reached)
        await done.wait()

    async def room(self) -> None:
        """Wait while too much waits."""
        while len(self._work) > WAITING:
            await self._drained.wait()
