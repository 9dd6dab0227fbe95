"""Casts driven from the main thread while the entity lives in an event loop of its own.

Signals arrive in the main thread, and a person types there. So the loop has a thread to itself for as long as the
entity lives: an invoked entity keeps what its medium holds from one cast to the next.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

import anyio
from anyio.from_thread import BlockingPortal, start_blocking_portal

from cantrip_acp.crystals.preload import prepare_beside

if TYPE_CHECKING:
    from cantrip_acp.core.context import ContextBlock
    from cantrip_acp.core.entity import Entity
    from cantrip_acp.core.events import Event
    from cantrip_acp.core.loop import CastResult

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Face(Protocol):
    """Shows what happens; called in the entity's thread, which waits for it."""

    def event(self, event: Event) -> None: ...


@dataclass(frozen=True)
class Ended:
    """How a cast ended: its result, or None where it was stopped before there was one; the signal that stopped it."""

    result: CastResult | None
    stopped_by: int | None


class Running:
    """An entity in its own loop. Use `running`."""

    def __init__(self, portal: BlockingPortal, entity: Entity) -> None:
        self._portal = portal
        self.entity = entity
        self._scope: anyio.CancelScope | None = None
        self._presses = 0

    def cast(self, intent: str | None, face: Face, context: Sequence[ContextBlock] = ()) -> Ended:
        """One cast to its end; raises what it failed with. None as the intent goes on with the last one (`Entity.resume`).

        The first signal cancels the cast, which is recorded; a second one does not wait for that.
        """
        self._presses = 0
        stopped_by: list[int] = []
        loop = self._portal.call(_running_loop)

        def on_signal(number: int, frame: FrameType | None) -> None:
            stopped_by.append(number)
            loop.call_soon_threadsafe(self._stop)

        with _handling(on_signal):
            future = self._portal.start_task_soon(self._drive, intent, face, context)
            try:
                result = future.result()
            except CancelledError:
                result = None
        return Ended(result, stopped_by[0] if stopped_by else None)

    def warm(self) -> None:
        """Start what the first cast would wait for, while nobody waits yet."""
        prepare_beside(self.entity.crystal)
        self._portal.start_task_soon(self.entity.warm)

    def close(self) -> None:
        """End the entity and all that its medium started."""
        self._portal.call(self.entity.close)

    async def _drive(self, intent: str | None, face: Face, context: Sequence[ContextBlock]) -> CastResult | None:
        with anyio.CancelScope() as scope:
            self._scope = scope
            lost: OSError | None = None
            options: dict[str, Any] = {} if intent is None else {"context": context}
            async with self.entity.stream(intent, **options) as stream:
                async for event in stream:
                    lost = _shown(face, event)
                    if lost is not None:
                        break  # and with the block the cast ends: nobody sees what it does
            if lost is not None:
                raise lost
            return stream.result
        return None

    def _stop(self) -> None:
        self._presses += 1
        if (self._presses > 1 or not self.entity.cancel()) and self._scope is not None:
            self._scope.cancel()


def _shown(face: Face, event: Event) -> OSError | None:
    """Show an event; why it could not be, where the reader has left or the disk behind it is full."""
    try:
        face.event(event)
    except SystemExit:  # rich's way to say that the reader has left
        return BrokenPipeError()
    except OSError as error:
        return error
    return None


@contextmanager
def running(entity: Entity | Callable[[], Awaitable[Entity]]) -> Iterator[Running]:
    """The entity, or the one that a function makes there, in a loop of its own for the length of the block."""
    with start_blocking_portal("asyncio") as portal:
        run = Running(portal, portal.call(entity) if callable(entity) else entity)
        try:
            yield run
        finally:
            run.close()


async def _running_loop() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


def not_ignored(*numbers: int) -> list[int]:
    """The signals that may be handled: those ignored from the start (``nohup``, a background job) stay ignored."""
    return [number for number in numbers if signal.getsignal(number) != signal.SIG_IGN]


@contextmanager
def _handling(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in not_ignored(*SIGNALS)}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
