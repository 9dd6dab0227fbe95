"""Carries out a deletion plan, item by item. Only one such run at a time works on a state folder.

If a run is interrupted, every loom is either whole or gone, and the next run continues.
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
    """Another run is deleting in this state folder."""


@contextmanager
def alone(state: Path) -> Iterator[None]:
    """Lock the state folder against other runs. Call it before the plan is made, or the plan may list what another run
    deletes. Raises `Sweeping` where another run has the lock."""
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
    """Delete the items of a plan. Yields each item, why it was not deleted (None where it was), and whether that is a
    failure (False where the item is in use)."""
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
