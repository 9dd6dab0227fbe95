"""Carrying a plan out, one thing after the other; one sweep of a state folder at a time.

Whatever ends it in the middle leaves every loom whole or gone, and the next sweep goes on.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cantrip_acp.core.errors import CantripError
from cantrip_acp.retention.plan import Plan
from cantrip_acp.retention.rules import Item, Stays

LOCK = "gc.lock"


class Sweeping(CantripError):
    """Another sweep of this state folder is at work."""


@contextmanager
def alone(state: Path) -> Iterator[None]:
    """Keep other sweeps out; before the plan is made, so that it is not of a folder that another one is clearing."""
    if not state.is_dir():
        yield
        return
    fd = os.open(state / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Sweeping(f"another cantrip gc is at work in {state}; let it finish") from None
        yield
    finally:
        os.close(fd)


def sweep(plan: Plan) -> Iterator[tuple[Item, str | None, bool]]:
    """Remove what goes: each item, why it was not removed or None, and whether that is a failure (not: it is in use)."""
    for item in plan.going:
        try:
            item.drop()
        except Stays as why:
            item.stays = str(why)
            yield item, str(why), False
        except OSError as error:
            yield item, error.strerror or str(error), True
        except CantripError as error:
            yield item, str(error), True
        else:
            yield item, None, False
