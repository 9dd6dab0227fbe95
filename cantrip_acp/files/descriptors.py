"""Whether a file descriptor is ready.

Never `select.select`: it refuses a descriptor with a number of 1024 or more, which a host with many sessions has.
"""

from __future__ import annotations

import select
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike


def is_ready(descriptor: FileDescriptorLike, seconds: float | None = 0, event: int = select.POLLIN) -> bool:
    """Whether the event happens within ``seconds`` (None: wait for ever). An end or an error of the descriptor counts too.

    A pidfd is readable when its process has ended.
    """
    poll = select.poll()
    poll.register(descriptor, event)
    return bool(poll.poll(None if seconds is None else max(0.0, seconds) * 1000))
