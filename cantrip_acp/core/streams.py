"""What `Cantrip.cast_batch` and `Cantrip.cast_stream` return: casts to iterate over while they run.

Both run their casts in asyncio tasks of their own. A generator cannot hold a task group: a reader that leaves its loop early
ends the generator from another task, and a task group must end in the task in which it began.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Generic
from typing import cast as typed

import anyio

from cantrip_acp.core.casting.result import CastResult, Value
from cantrip_acp.core.errors import CantripError, NoResult
from cantrip_acp.text.dataclass import dataclass

if TYPE_CHECKING:
    from cantrip_acp.core.casting.cast_control import CastStream
    from cantrip_acp.core.events import Event


@dataclass(frozen=True, slots=True)
class BatchItem(Generic[Value]):
    """One finished cast of a batch.

    ``number`` is its place in the batch (from 0), ``intent`` what was asked, ``result`` how the cast ended, ``error`` what it
    failed with. One of the two is None.
    """

    number: int
    intent: str
    result: CastResult[Value] | None
    error: CantripError | None = None

    @property
    def answer(self) -> Value:
        """The answer of the cast. Raises the error of a cast that failed."""
        if self.result is None:
            raise self.error or RuntimeError("the cast has no result")
        return self.result.result


class Batch(Generic[Value]):
    """Casts that run beside each other, at most some at once. It starts when it is awaited or iterated.

    - ``await batch``: a list of the results in the order of the intents, with an exception in place of each failed cast.
    - ``async for item in batch``, or ``for item in batch`` in a script without an event loop: a `BatchItem` for each cast as
      it finishes. Leaving the loop early cancels the casts that still run, and starts no others.
    """

    def __init__(
        self, casts: Sequence[tuple[str, Callable[[], Awaitable[CastResult[Value]]]]], concurrency: int, progress: bool
    ) -> None:
        self._casts = casts
        self._concurrency = max(1, concurrency)
        self._progress = progress

    def __len__(self) -> int:
        return len(self._casts)

    def __await__(self) -> Generator[Any, None, list[CastResult[Value] | Exception]]:
        return self._all().__await__()

    async def _all(self) -> list[CastResult[Value] | Exception]:
        items: list[BatchItem[Value] | None] = [None] * len(self)
        limiter = anyio.CapacityLimiter(self._concurrency)
        display = _Progress(len(self), self._progress)

        async def one(number: int) -> None:
            async with limiter:
                items[number] = item = await self._one(number)
            display.add(item)

        with display:
            async with anyio.create_task_group() as group:
                for number in range(len(self)):
                    group.start_soon(one, number)
        return [typed("CastResult[Value] | Exception", i.result or i.error) for i in items if i is not None]

    async def _one(self, number: int) -> BatchItem[Value]:
        intent, cast = self._casts[number]
        try:
            return BatchItem(number, intent, await cast())
        except CantripError as error:
            return BatchItem(number, intent, None, error)

    async def __aiter__(self) -> AsyncIterator[BatchItem[Value]]:
        waiting = iter(range(len(self)))
        running: set[asyncio.Task[BatchItem[Value]]] = set()
        with _Progress(len(self), self._progress) as display:
            try:
                while True:
                    while len(running) < self._concurrency and (number := next(waiting, None)) is not None:
                        running.add(asyncio.create_task(self._one(number), name=f"cast {number} of a batch"))
                    if not running:
                        return
                    done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                    items = [task.result() for task in done]
                    for item in items:
                        display.add(item)
                    for item in sorted(items, key=lambda item: item.number):
                        # What the reader prints must not follow the line of progress.
                        display.clear()
                        yield item
                        display.draw()
            finally:
                await _end(running)

    def __iter__(self) -> Iterator[BatchItem[Value]]:
        refuse_event_loop("`for item in cantrip.cast_batch(…)`", "async for item in cantrip.cast_batch(…)")
        from anyio.from_thread import start_blocking_portal

        with start_blocking_portal() as portal:
            items = aiter(self)

            async def following() -> BatchItem[Value] | None:
                return await anext(items, None)

            async def close() -> None:
                await typed(Any, items).aclose()

            try:
                while (item := portal.call(following)) is not None:
                    yield item
            finally:
                portal.call(close)


class EventStream(Generic[Value]):
    """The events of one cast, which starts when they are read. See `Cantrip.cast_stream`."""

    def __init__(self, opens: Callable[[], AbstractAsyncContextManager[CastStream[Value]]]) -> None:
        self._opens = opens
        self._open: AbstractAsyncContextManager[CastStream[Value]] | None = None
        self._result: CastResult[Value] | None = None

    async def __aenter__(self) -> CastStream[Value]:
        self._open = self._opens()
        return await self._open.__aenter__()

    async def __aexit__(self, *exc: Any) -> bool | None:
        opened, self._open = self._open, None
        return None if opened is None else await opened.__aexit__(*exc)

    @property
    def result(self) -> CastResult[Value]:
        """How the cast ended. Read it after the last event."""
        if self._result is None:
            raise RuntimeError("the cast has not ended; read its events to the end first")
        return self._result

    async def __aiter__(self) -> AsyncIterator[Event]:
        send, receive = anyio.create_memory_object_stream[Any](0)

        async def run() -> CastResult[Value]:
            async with send, self._opens() as stream:
                async for event in stream:
                    await send.send(event)
                return stream.result

        task = asyncio.create_task(run(), name="a cast whose events are read")
        try:
            with receive:
                async for event in receive:
                    yield event
            self._result = await task
        finally:
            await _end({task})


async def _end(tasks: set[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait until they have written their last records."""
    for task in tasks:
        task.cancel()
    with anyio.CancelScope(shield=True):
        await asyncio.gather(*tasks, return_exceptions=True)


def refuse_event_loop(what: str, instead: str) -> None:
    """Raise RuntimeError where an event loop runs already: blocking it would stop everything else that runs there."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError(f"{what} cannot be used where an event loop runs, as in a notebook; write `{instead}`")


class _Progress:
    """A line on stderr that says how many casts have ended, if stderr is a terminal."""

    def __init__(self, total: int, wanted: bool) -> None:
        self._shown = wanted and sys.stderr.isatty()
        self._total = total
        self._done = self._failed = 0
        self._cost: float | None = None
        self._started = time.monotonic()

    def __enter__(self) -> _Progress:
        self.draw()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._shown:
            sys.stderr.write("\n")
            sys.stderr.flush()

    def add(self, item: BatchItem[Any]) -> None:
        self._done += 1
        cast = item.result or (item.error.cast if isinstance(item.error, NoResult) else None)
        self._failed += cast is None or not cast.terminated or item.error is not None
        if cast is not None and cast.usage.cost is not None:
            self._cost = (self._cost or 0.0) + cast.usage.cost
        self.draw()

    def clear(self) -> None:
        """Remove the line, until `draw` writes it again."""
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def draw(self) -> None:
        """Write the line in the place of the last one."""
        if not self._shown:
            return
        width = 20
        full = width * self._done // max(1, self._total)
        parts = [f"{self._done}/{self._total} casts", *([f"{self._failed} without result"] if self._failed else [])]
        if self._cost is not None:
            parts.append(f"${self._cost:.4g}")
        parts.append(f"{time.monotonic() - self._started:.0f} s")
        # The last sequence erases what an earlier, longer line left.
        sys.stderr.write(f"\r[{'#' * full}{'.' * (width - full)}] {', '.join(parts)}\x1b[K")
        sys.stderr.flush()
