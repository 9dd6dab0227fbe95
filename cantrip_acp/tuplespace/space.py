"""The tuple-space of a program: put, take and read tuples by pattern, and wait for them."""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Self, TypeVar

import anyio
import anyio.abc
import anyio.to_thread

from cantrip_acp.telemetry.tracing import current_metadata
from cantrip_acp.tuplespace.errors import SpaceError, SpaceFull, TupleError, WaitTimeout
from cantrip_acp.tuplespace.stores.base import DEFAULT_MAX_WAITING, StoredTuple
from cantrip_acp.tuplespace.stores.sql import TupleStore
from cantrip_acp.tuplespace.tuples import Pattern, WorkTuple

_T = TypeVar("_T")
_LOOK_S = 2.0
"""How often to look for tuples whose delay or lease has ended while somebody waits."""
_RETRY_S = 0.2
"""How often to try again to put a tuple into a full lane."""


class _Waiter:
    def __init__(self, pattern: Pattern, *, take: bool) -> None:
        self.pattern = pattern
        self.take = take
        self.found = anyio.Event()
        self.result: WorkTuple | None = None


class TupleSpace:
    """The operations of Linda over a store. An asynchronous context manager; it does not close the store.

    Callers that wait for the same tuples get them in the order in which they came.
    """

    def __init__(self, store: TupleStore, *, max_waiting: int | None = None) -> None:
        self.store = store
        self.max_waiting = max_waiting_from_environment() if max_waiting is None else max_waiting
        self._waiters: list[_Waiter] = []
        self._serving = anyio.Lock()
        self._stop = threading.Event()
        self._someone_waits = anyio.Event()
        self._exits = AsyncExitStack()
        self._tasks: anyio.abc.TaskGroup | None = None

    async def __aenter__(self) -> Self:
        await self._exits.__aenter__()
        self._tasks = await self._exits.enter_async_context(anyio.create_task_group())
        self._tasks.start_soon(self._watch)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        self._stop.set()
        if self._tasks is not None:
            self._tasks.cancel_scope.cancel()
        return await self._exits.__aexit__(kind, error, trace)

    async def out(self, *works: WorkTuple, wait: bool = True, timeout_s: float | None = None) -> list[bool]:
        """Put tuples, all or none. Returns for each whether it is new; a tuple with a known id is the same work.

        If a lane is full, wait until there is room. Raises `SpaceFull` without ``wait``, or after ``timeout_s``.
        """
        meta = current_metadata()
        deadline = anyio.current_time() + (timeout_s if timeout_s is not None else float("inf"))
        while True:
            try:
                return await run_in_thread(lambda: self.store.put(works, max_waiting=self.max_waiting, meta=meta))
            except SpaceFull:
                if not wait or anyio.current_time() >= deadline:
                    raise
                await anyio.sleep(min(_RETRY_S, max(0.0, deadline - anyio.current_time())))

    async def in_(self, pattern: Mapping[str, Any] | Pattern, timeout_s: float | None = None) -> WorkTuple:
        """Remove and return the oldest matching tuple; waits for one. Raises `WaitTimeout`.

        The tuple then belongs to the caller: if its process ends, nobody gets the tuple again. Workers use claims instead.
        """
        return await self._wait_for(_Waiter(_pattern(pattern), take=True), timeout_s)

    async def rd(self, pattern: Mapping[str, Any] | Pattern, timeout_s: float | None = None) -> WorkTuple:
        """Return the oldest matching tuple without removing it; waits for one. Raises `WaitTimeout`."""
        return await self._wait_for(_Waiter(_pattern(pattern), take=False), timeout_s)

    async def eval(self, template: WorkTuple, compute: Callable[[WorkTuple], Awaitable[WorkTuple]]) -> None:
        """Start to compute a tuple from a template, and put it when it is ready. Returns at once.

        An error of ``compute`` ends the space's context.
        """
        if self._tasks is None:
            raise SpaceError("open the tuple-space first: async with TupleSpace(store) as space")

        async def run() -> None:
            await self.out(await compute(template))

        self._tasks.start_soon(run)

    async def subscribe(
        self, pattern: Mapping[str, Any] | Pattern, *, cursor: str = ""
    ) -> AsyncIterator[tuple[StoredTuple, str]]:
        """Yield each matching tuple, past ones first, with the cursor from which to continue later."""
        wanted, stop = _pattern(pattern), threading.Event()
        try:
            while True:
                start = cursor
                found, cursor = await run_in_thread(lambda start=start: self.store.after(start, wanted))  # type: ignore[misc]
                for each in found:
                    yield each, cursor
                if cursor == start:
                    await anyio.to_thread.run_sync(self.store.wait, _LOOK_S, stop, abandon_on_cancel=True)
        finally:
            stop.set()

    async def _wait_for(self, waiter: _Waiter, timeout_s: float | None) -> WorkTuple:
        self._waiters.append(waiter)
        self._someone_waits.set()
        try:
            with anyio.move_on_after(timeout_s):
                await self._serve()
                await waiter.found.wait()
        except BaseException:
            if waiter.take and waiter.result is not None:
                taken = waiter.result.id
                await run_in_thread(lambda: self.store.restore(taken))
            raise
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
        if waiter.result is None:
            raise WaitTimeout(f"no tuple matched {waiter.pattern!r} in {timeout_s:g} s")
        return waiter.result

    async def _serve(self) -> None:
        """Give each waiting caller a matching tuple, in the order of the calls."""
        async with self._serving:
            for waiter in list(self._waiters):
                while waiter in self._waiters and await self._serve_one(waiter):
                    pass

    async def _serve_one(self, waiter: _Waiter) -> bool:
        """Look for a tuple for one caller. Returns whether it got one."""
        action = self.store.take if waiter.take else self.store.read
        with anyio.CancelScope(shield=True):
            work = await anyio.to_thread.run_sync(action, waiter.pattern)
            if work is None:
                return False
            # The tuple may have come after an earlier caller found none. Or the caller went while the store was asked.
            takers = (each for each in self._waiters if each.take and each.pattern.matches(work.document))
            receiver = next(takers, None) if waiter.take else waiter
            if receiver is not None and receiver in self._waiters:
                receiver.result = work
                receiver.found.set()
                self._waiters.remove(receiver)
            elif waiter.take:
                await anyio.to_thread.run_sync(self.store.restore, work.id)
        return True

    async def _watch(self) -> None:
        while True:
            if not self._waiters:
                self._someone_waits = anyio.Event()
                await self._someone_waits.wait()
            await anyio.to_thread.run_sync(self.store.wait, _LOOK_S, self._stop, abandon_on_cancel=True)
            await self._serve()


async def run_in_thread(action: Callable[[], _T]) -> _T:
    """Run a store's method in a thread, to its end even if the caller is cancelled, so that the result of a write is known."""
    with anyio.CancelScope(shield=True):
        return await anyio.to_thread.run_sync(action)
    raise AssertionError("unreachable")


def _pattern(pattern: Mapping[str, Any] | Pattern) -> Pattern:
    return pattern if isinstance(pattern, Pattern) else Pattern(pattern)


def max_waiting_from_environment(environment: Mapping[str, str] | None = None) -> int:
    """``YOOL_TUPLE_QUEUE_MAXSIZE``: the maximum number of waiting tuples in a lane. Raises `TupleError` if it is not a number
    above 0."""
    text = (os.environ if environment is None else environment).get("YOOL_TUPLE_QUEUE_MAXSIZE", "").strip()
    if not text:
        return DEFAULT_MAX_WAITING
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise TupleError(f"YOOL_TUPLE_QUEUE_MAXSIZE must be a whole number above 0, not {text!r}")
    return int(text)
