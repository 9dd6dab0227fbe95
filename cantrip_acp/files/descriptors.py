"""Whether a file descriptor is ready.

Never `select.select`: it refuses a descriptor with a number of 1024 or more, which a host with many sessions has.
"""

import select
from typing import Protocol


class HasDescriptor(Protocol):
    """A file, a socket: what has a file descriptor."""

    def fileno(self) -> int: ...


def is_ready(descriptor: int | HasDescriptor, seconds: float | None = 0, event: int = select.POLLIN) -> bool:
    """Whether the event happens within that time (None: wait for ever). An end or an error of the descriptor counts too.

    A pidfd is readable when its process has ended.
    """
    poll = select.poll()
    poll.register(descriptor, event)
    return bool(poll.poll(None if seconds is None else max(0.0, seconds) * 1000))
