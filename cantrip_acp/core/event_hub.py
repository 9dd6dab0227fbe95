"""The event hub: sends the events of an entity (`types.events`) to its readers, with back-pressure.

A reader subscribes to an `EventHub` in one of two ways:

- **blocking** (the default): a bounded stream. A reader that stops reading stops the entity at its next event.
- **lossy**: when its buffer is full, events are dropped and counted in `Subscription.dropped`.

Without a reader no event is built or sent.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, Self

import anyio

from cantrip_acp.text.json_data import freeze_record
from cantrip_acp.text.redaction import shared
from cantrip_acp.types.events import ChildEvent, Event, TurnEnded

if TYPE_CHECKING:
    from collections.abc import Iterator

    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream


class SpawningCall(Protocol):
    """The gate call of a parent that a child works for, and its place in a batch (`core.state.ParentLink`)."""

    @property
    def call_id(self) -> str: ...

    @property
    def index(self) -> int | None: ...


BUFFER = 64
"""Number of events that may wait for a blocking reader. When it is reached, the entity waits."""


class Subscription:
    """One reader's end of the stream.

    Iterate it. Closing it (or leaving its ``with``) stops reading; the entity goes on.
    """

    def __init__(self, hub: EventHub, buffer: float, lossy: bool) -> None:
        self._hub = hub
        self.lossy = lossy
        self.dropped = 0
        send, receive = anyio.create_memory_object_stream[Event](buffer)
        self._send: MemoryObjectSendStream[Event] = send
        self._receive: MemoryObjectReceiveStream[Event] = receive

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        # Waiting events are returned without a switch through the event loop for each. Streams of small pieces are
        # several times faster this way, and readers can send them on together. This is not a generator: a generator would
        # outlive a cancelled reader.
        try:
            return self._receive.receive_nowait()
        except anyio.WouldBlock:
            pass
        except anyio.EndOfStream:
            raise StopAsyncIteration from None
        try:
            return await self._receive.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def receive(self) -> Event:
        """The next event; raises `anyio.EndOfStream` after the last one."""
        return await self._receive.receive()

    def close(self) -> None:
        """Stop reading. An entity that waits for this reader continues."""
        self._hub._drop(self)
        self._receive.close()
        self._send.close()

    def finish(self) -> None:
        """End the stream for the reader; waiting events can still be read."""
        self._hub._drop(self)
        self._send.close()

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class EventHub:
    """Sends an entity's events to its readers. Sending waits for every blocking reader."""

    __slots__ = ("_subscriptions", "active", "waits")

    def __init__(self) -> None:
        self.waits: Callable[[bool], None] = lambda waiting: None
        """Called when a reader makes the entity wait, and when that is over."""
        self._subscriptions: tuple[Subscription, ...] = ()
        self.active = False
        """Whether there is any reader. Code that builds events checks this first."""

    def subscribe(self, *, lossy: bool = False, buffer: int = BUFFER) -> Subscription:
        """Add a reader. With ``lossy`` it never slows the entity and may miss events."""
        subscription = Subscription(self, buffer, lossy)
        self._subscriptions = (*self._subscriptions, subscription)
        self.active = True
        return subscription

    def _drop(self, subscription: Subscription) -> None:
        self._subscriptions = tuple(s for s in self._subscriptions if s is not subscription)
        self.active = bool(self._subscriptions)

    async def send(self, event: Event) -> None:
        """Send an event to every reader, with known secrets masked.

        Returns when each blocking reader has room for it. Readers cannot change the event.
        """
        await self._deliver(shared().masked(event))

    async def _deliver(self, event: Event) -> None:
        if type(event) is not TurnEnded:
            # A turn is already immutable (`turn_builder`).
            event = freeze_record(event)
        for subscription in self._subscriptions:
            try:
                subscription._send.send_nowait(event)
            except anyio.WouldBlock:
                if subscription.lossy:
                    subscription.dropped += 1
                    continue
                self.wait(True)
                try:
                    await subscription._send.send(event)
                except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                    self._drop(subscription)
                finally:
                    self.wait(False)
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                self._drop(subscription)

    def wait(self, waiting: bool) -> None:
        self.waits(waiting)

    @contextmanager
    def listening(self, *, lossy: bool = False, buffer: int = BUFFER) -> Iterator[Subscription]:
        """A subscription for the duration of a ``with`` block."""
        subscription = self.subscribe(lossy=lossy, buffer=buffer)
        try:
            yield subscription
        finally:
            subscription.close()


class ChildHub(EventHub):
    """A child's hub: its events also go to the readers of all entities above, marked with its place in the tree.

    A slow reader of the parent slows the child too.
    """

    __slots__ = ("_above", "_call", "_entity_id")

    def __init__(self, above: EventHub, call: SpawningCall, entity_id: str) -> None:
        """``above`` is the parent's hub. ``call`` may change from one cast of the child to the next."""
        self._call = call
        self._above = above
        self._entity_id = entity_id
        super().__init__()

    @property
    def active(self) -> bool:
        return bool(self._subscriptions) or self._above.active

    @active.setter
    def active(self, value: bool) -> None:
        """Ignore the value: it depends on the readers of this hub and of those above."""

    def wait(self, waiting: bool) -> None:
        self.waits(waiting)
        self._above.wait(waiting)

    async def _deliver(self, event: Event) -> None:
        if self._subscriptions:
            await super()._deliver(event)
        if not self._above.active:
            return
        marked = ChildEvent.above(event, self._entity_id, self._call.call_id, self._call.index)
        self.waits(True)
        try:
            await self._above._deliver(marked)
        finally:
            self.waits(False)
