"""What `Cantrip.cast_batch` and `Cantrip.cast_stream` return: casts to iterate over while they run.

Both run their casts in asyncio tasks of their own. A generator cannot hold a task group: a reader that leaves its loop early
ends the generator from another task, and a task group must end in the task in which it began.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic
from typing import cast as typed

import anyio

from cantrip_acp.core.casting.result import CastResult, Value
from cantrip_acp.types.errors import CantripError, NoResult

if TYPE_CHECKING:
    from cantrip_acp.core.casting.cast_stream import CastStream
    from cantrip_acp.types.events import Event


@dataclass(frozen=True, slots=True)
class BatchItem(Generic[Value]):
    """One finished cast of a batch.

    ``number`` is its place in the batch (from 0), ``intent`` what was asked, ``result`` how the cast ended, ``error`` what it
    failed with. One of the two is None. ``earlier``: an earlier run had the result already (`Cantrip.cast_batch`, ``resume``).
    """

    number: int
    intent: str
    result: CastResult[Value] | None
    error: CantripError | None = None
    earlier: bool = False

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
        self,
        casts: Sequence[tuple[str, Callable[[], Awaitable[tuple[CastResult[Value], bool]]]]],
        concurrency: int,
        progress: bool,
    ) -> None:
        """``casts`` has for each intent the function that casts it, or takes its result from an earlier run and says so."""
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
            result, earlier = await cast()
            return BatchItem(number, intent, result, earlier=earlier)
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
                        # Prints of the reader must not follow the line of progress.
                        display.clear()
                        yield item
                        display.draw()
            finally:
                await _end(running)

    def __iter__(self) -> Iterator[BatchItem[Value]]:
        refuse_event_loop("`for item in cantrip.cast_batch(…)`", "async for item in cantrip.cast_batch(…)")
        reader = _ThreadReader(typed("AsyncGenerator[BatchItem[Value], None]", aiter(self)))
        leaving = False
        try:
            while (item := reader.next()) is not None:
                yield item
        except GeneratorExit:
            leaving = True
            raise
        finally:
            try:
                reader.close(leaving=leaving)
            except KeyboardInterrupt:
                # It may have come before `close` held interrupts back.
                reader.close(leaving=leaving)
                raise


class _ThreadReader(Generic[Value]):
    """Reads an asynchronous generator in a thread with an event loop of its own, which goes on while the reader works.

    An interrupt (Ctrl-C) is raised only where it leaves nothing half done: while the caller waits for an item, which then
    ends what runs, and after everything is closed.
    """

    def __init__(self, items: AsyncGenerator[Value, None]) -> None:
        self._items = items
        self._portal: Any = None
        self._open: Any = None
        self._waiting: asyncio.Task[Value | None] | None = None
        self._interrupts = _Interrupts()

    def next(self) -> Value | None:
        """The next item, or None after the last. Raises KeyboardInterrupt, after which only `close` may be called."""
        with self._interrupts as held:
            if self._portal is None:
                from anyio.from_thread import start_blocking_portal

                opened = start_blocking_portal()
                self._portal, self._open = opened.__enter__(), opened
            answer = self._portal.start_task_soon(self._next)
            with held.waiting():
                item: Value | None = answer.result()
        return item

    async def _next(self) -> Value | None:
        async def following() -> Value | None:
            return await anext(self._items, None)

        # A task of its own, so that `close` can end it.
        self._waiting = asyncio.create_task(following(), name="the next item of a batch")
        try:
            return await self._waiting
        except asyncio.CancelledError:
            # The reader does not wait any more.
            return None

    def close(self, *, leaving: bool = False) -> None:
        """End what runs, and the thread. Does nothing the second time.

        ``leaving``: the caller cannot raise. An interrupt that came meanwhile is then raised in the main thread soon after.
        """
        with self._interrupts as held:
            held.raises_later = leaving
            opened, self._open = self._open, None
            if opened is not None:
                self._portal.call(self._close)
                opened.__exit__(None, None, None)

    async def _close(self) -> None:
        if self._waiting is not None:
            await _end({self._waiting})
        await self._items.aclose()


def run_sync(cast: Callable[[], Awaitable[CastResult[Value]]]) -> CastResult[Value]:
    """Run one cast in an event loop of its own. An interrupt (Ctrl-C) at any moment cancels it, and is then raised."""
    with _Interrupts() as held:

        async def main() -> CastResult[Value]:
            with held.cancelling():
                return await cast()

        return anyio.run(main)


class _Interrupts:
    """Holds SIGINT back in a ``with`` block, and raises KeyboardInterrupt at its end if one came.

    A program that has its own handler for SIGINT keeps it, and a thread other than the main one gets no signals.
    """

    def __init__(self) -> None:
        self._came = self._waits = self.raises_later = False
        self._cancel: Callable[[], object] | None = None
        self._before: Any = None

    def __enter__(self) -> _Interrupts:
        self._came = self._waits = self.raises_later = False
        ours = threading.current_thread() is threading.main_thread()
        if ours and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *exc: object) -> None:
        before, self._before = self._before, None
        if before is not None:
            signal.signal(signal.SIGINT, before)
        came, self._came = self._came, False
        if came and self.raises_later:
            threading.Thread(
                target=_interrupt_soon, daemon=True, name="an interrupt that came while a batch closed"
            ).start()
        elif came:
            raise KeyboardInterrupt from None

    def _note(self, number: int, frame: object) -> None:
        if self._waits:
            raise KeyboardInterrupt
        self._came = True
        if self._cancel is not None:
            self._cancel()

    @contextmanager
    def cancelling(self) -> Iterator[None]:
        """A block in which an interrupt cancels the task that runs it."""
        task = asyncio.current_task()
        if task is not None:
            self._cancel = partial(task.get_loop().call_soon_threadsafe, task.cancel)
        try:
            if self._came:
                raise asyncio.CancelledError
            yield
        finally:
            self._cancel = None

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """A block in which an interrupt is raised at once."""
        self._waits = True
        try:
            if self._came:
                self._came = False
                raise KeyboardInterrupt
            yield
        finally:
            self._waits = False


def _interrupt_soon() -> None:
    """Interrupt the main thread when it has left the generator that closes: an exception in there would only be printed."""
    time.sleep(0.02)
    signal.raise_signal(signal.SIGINT)


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
        """The result of the cast. Read it after the last event."""
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


def _in_notebook() -> bool:
    """Whether stderr appears below a notebook's cell. There, too, a carriage return goes back to the start of the line."""
    kernel = sys.modules.get("ipykernel.iostream")
    return kernel is not None and isinstance(sys.stderr, kernel.OutStream)


class _Progress:
    """A line on stderr that says how many casts have ended, if stderr is a terminal or belongs to a notebook."""

    def __init__(self, total: int, wanted: bool) -> None:
        self._shown = wanted and (sys.stderr.isatty() or _in_notebook())
        self._width = 0
        self._total = total
        self._done = self._failed = self._earlier = 0
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
        self._earlier += item.earlier
        if cast is not None and cast.usage.cost is not None:
            self._cost = (self._cost or 0.0) + cast.usage.cost
        self.draw()

    def clear(self) -> None:
        """Remove the line, until `draw` writes it again."""
        if self._shown:
            sys.stderr.write(f"\r{' ' * self._width}\r")
            sys.stderr.flush()
            self._width = 0

    def draw(self) -> None:
        """Write the line in the place of the last one."""
        if not self._shown:
            return
        width = 20
        full = width * self._done // max(1, self._total)
        parts = [f"{self._done}/{self._total} casts"]
        parts += [f"{self._failed} without result"] if self._failed else []
        parts += [f"{self._earlier} of an earlier run"] if self._earlier else []
        if self._cost is not None:
            parts.append(f"${self._cost:.4g}")
        parts.append(f"{time.monotonic() - self._started:.0f} s")
        line = f"[{'#' * full}{'.' * (width - full)}] {', '.join(parts)}"
        # Blanks cover what an earlier, longer line left: a notebook knows no sequence that erases.
        sys.stderr.write(f"\r{line.ljust(self._width)}")
        sys.stderr.flush()
        self._width = len(line)
