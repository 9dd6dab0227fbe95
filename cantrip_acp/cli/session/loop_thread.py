"""Runs an entity in an event loop in another thread, so that the main thread can handle signals and read the terminal.

The thread lives until the entity is closed, because the state of the entity's medium continues from cast to cast.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import closing, contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

import anyio
from anyio.from_thread import BlockingPortal, start_blocking_portal

if TYPE_CHECKING:
    from cantrip_acp.core.casting.result import CastResult
    from cantrip_acp.core.entity import Entity
    from cantrip_acp.types.context_block import ContextBlock
    from cantrip_acp.types.events import Event

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
        reference: str | None = None,
    ) -> CastEnding:
        """Run one cast to its end. Raises the cast's error. An intent of None continues the last cast (`Entity.resume`).

        The first signal cancels the cast, and its end is recorded. After a second signal the command ends at once.
        """
        self._presses = 0
        self._stopped_by = []
        self._loop = self._portal.call(_running_loop)
        with _handling(lambda number, frame: self._stop_by(number)):
            future = self._portal.start_task_soon(self._drive, intent, output, context, reference)
            try:
                result = future.result()
            except CancelledError:
                result = None
        return CastEnding(result, self._stopped_by[0] if self._stopped_by else None)

    def _stop_by(self, number: int) -> None:
        self._stopped_by.append(number)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stop)

    def close(self) -> None:
        """Close the entity and end everything that its medium started."""
        self._portal.call(self.entity.close)

    async def _drive(
        self,
        intent: str | None,
        output: EventOutput,
        context: Sequence[ContextBlock],
        reference: str | None,
    ) -> CastResult | None:
        with anyio.CancelScope() as scope:
            self._scope = scope
            lost: OSError | None = None
            options: dict[str, Any] = {} if intent is None else {"context": context, "reference": reference}
            async with self.entity.stream(intent, **options) as stream:
                async for event in stream:
                    lost = _show_event(output, event)
                    if lost is not None:
                        break  # nobody sees the output, so end the cast
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
        with closing(EntityThread(portal, portal.call(entity) if callable(entity) else entity)) as run:
            yield run


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
