"""Runs a long task in a thread of its own with an event loop, so that no request waits for it and no pool thread is blocked."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any


class Aside:
    """One coroutine. Create it in the server's loop: it starts at once. `wait` for its result; `cancel` it at any time."""

    def __init__(self, made: Callable[[], Coroutine[Any, Any, Any]], name: str) -> None:
        self._made = made
        self._server = asyncio.get_running_loop()
        self._ended: asyncio.Future[Any] = self._server.create_future()
        self._inside: tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]] | None = None
        self.cancelled = False
        threading.Thread(target=self._live, name=name, daemon=True).start()

    async def wait(self) -> Any:
        """Return its result or raise its error. Raises `asyncio.CancelledError` if it was cancelled."""
        return await asyncio.shield(self._ended)

    def cancel(self) -> None:
        """Cancel the coroutine; it ends at its next step."""
        self.cancelled = True
        if self._inside is not None:
            loop, task = self._inside
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(task.cancel)

    def _live(self) -> None:
        try:
            result = asyncio.run(self._run())
        except asyncio.CancelledError:
            self._hand(lambda: self._ended.cancel())
        except BaseException as error:  # noqa: BLE001 - handed to the waiting task
            told = error if isinstance(error, Exception) else RuntimeError(repr(error))
            self._hand(lambda: self._ended.set_exception(told))
        else:
            self._hand(lambda: self._ended.set_result(result))

    async def _run(self) -> Any:
        task = asyncio.current_task()
        assert task is not None
        self._inside = asyncio.get_running_loop(), task
        if self.cancelled:
            task.cancel()
        return await self._made()

    def _hand(self, take: Callable[[], object]) -> None:
        def handed() -> None:
            if not self._ended.done():
                take()

        with contextlib.suppress(RuntimeError):  # the server has ended
            self._server.call_soon_threadsafe(handed)
