"""Runs an entity in an event loop in another thread, so that the main thread can handle signals and read the terminal.

The thread lives until the entity is closed, because the state of the entity's medium continues from cast to cast.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, overload

import anyio
from anyio.from_thread import BlockingPortal, start_blocking_portal

from cantrip_acp.crystals.http_clients import prepare_in_background

if TYPE_CHECKING:
    from cantrip_acp.core.casting.result import CastResult
    from cantrip_acp.core.context_block import ContextBlock
    from cantrip_acp.core.entity import Entity
    from cantrip_acp.types.events import Event

T = TypeVar("T")

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class EventOutput(Protocol):
    """Shows events. The methods are called in the entity's thread, and the entity waits for them."""

    def show_event(self, event: Event) -> None: ...


@dataclass(frozen=True)
class CastEnding:
    """The end of a cast: its result (None if it was stopped earlier) and the signal that stopped it, if any."""

    result: CastResult | None
    stopped_by: int | None


class EntityThread:
    """An entity in its own event loop. Use `run_entity` to make one."""

    def __init__(self, portal: BlockingPortal, entity: Entity) -> None:
        self._portal = portal
        self.entity = entity
        self._scope: anyio.CancelScope | None = None
        self._presses = 0
        self._stopped_by: list[int] = []
        self._loop: asyncio.AbstractEventLoop | None = None

    def cast(
        self,
        intent: str | None,
        output: EventOutput,
        context: Sequence[ContextBlock] = (),
        while_running: Callable[[], Coroutine[Any, Any, None]] | None = None,
        reference: str | None = None,
    ) -> CastEnding:
        """Run one cast to its end. Raises the cast's error. An intent of None continues the last cast (`Entity.resume`).

        ``while_running`` runs beside the cast in the entity's thread, and is cancelled when the cast ends.
        The first signal cancels the cast, and its end is recorded. After a second signal the command ends at once. In another
        thread than the main one, `stop` takes the place of signals.
        """
        self._presses = 0
        self._stopped_by = []
        self._loop = self._portal.call(_running_loop)
        in_main = threading.current_thread() is threading.main_thread()
        with _handling(lambda number, frame: self.stop(number)) if in_main else nullcontext():
            future = self._portal.start_task_soon(self._drive, intent, output, context, while_running, reference)
            try:
                result = future.result()
            except CancelledError:
                result = None
        return CastEnding(result, self._stopped_by[0] if self._stopped_by else None)

    def stop(self, number: int) -> None:
        """Stop the running cast as a signal does. Any thread may call this."""
        self._stopped_by.append(number)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stop)

    @overload
    def call(self, work: Callable[..., Awaitable[T]], *args: Any) -> T: ...
    @overload
    def call(self, work: Callable[..., T], *args: Any) -> T: ...
    def call(self, work: Callable[..., Any], *args: Any) -> Any:
        """Call a function, or run a coroutine function, in the entity's thread between two casts."""
        return self._portal.call(work, *args)

    def soon(self, work: Callable[..., Any], *args: Any) -> None:
        """Call a function in the entity's thread, also while a cast runs, and do not wait for it."""
        self._portal.start_task_soon(work, *args)

    def stopping(self, stop: Callable[[int], None]) -> AbstractContextManager[None]:
        """Inside the block signals call ``stop`` in the main thread, in place of ending the command."""
        if threading.current_thread() is not threading.main_thread():
            return nullcontext()
        return _handling(lambda number, frame: stop(number))

    def warm(self) -> None:
        """Prepare the entity in advance, so that the first cast starts faster."""
        prepare_in_background(self.entity.crystal)
        self._portal.start_task_soon(self.entity.warm)

    def close(self) -> None:
        """Close the entity and end everything that its medium started."""
        self._portal.call(self.entity.close)

    async def _drive(
        self,
        intent: str | None,
        output: EventOutput,
        context: Sequence[ContextBlock],
        while_running: Callable[[], Coroutine[Any, Any, None]] | None,
        reference: str | None,
    ) -> CastResult | None:
        with anyio.CancelScope() as scope:
            self._scope = scope
            lost: OSError | None = None
            options: dict[str, Any] = {} if intent is None else {"context": context, "reference": reference}
            async with self.entity.stream(intent, **options) as stream, anyio.create_task_group() as beside:
                if while_running is not None:
                    beside.start_soon(while_running)
                async for event in stream:
                    lost = _show_event(output, event)
                    if lost is not None:
                        break  # nobody sees the output, so end the cast
                beside.cancel_scope.cancel()
            if lost is not None:
                raise lost
            return stream.result
        return None

    def _stop(self) -> None:
        self._presses += 1
        if (self._presses > 1 or not self.entity.cancel()) and self._scope is not None:
            self._scope.cancel()


def _show_event(output: EventOutput, event: Event) -> OSError | None:
    """Show an event. Returns the error if that fails because the reader is gone or the disk is full."""
    try:
        output.show_event(event)
    except SystemExit:  # rich raises this when the reader is gone
        return BrokenPipeError()
    except OSError as error:
        return error
    return None


@contextmanager
def run_entity(entity: Entity | Callable[[], Awaitable[Entity]]) -> Iterator[EntityThread]:
    """Run an entity in its own event loop until the block ends. A function may make the entity inside the loop."""
    with start_blocking_portal("asyncio") as portal:
        run = EntityThread(portal, portal.call(entity) if callable(entity) else entity)
        try:
            yield run
        finally:
            run.close()


async def _running_loop() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


def handled_signals(*numbers: int) -> list[int]:
    """The signals of ``numbers`` that may be handled. A signal that was ignored at the start (``nohup``) stays ignored."""
    return [number for number in numbers if signal.getsignal(number) != signal.SIG_IGN]


@contextmanager
def _handling(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in handled_signals(*SIGNALS)}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
