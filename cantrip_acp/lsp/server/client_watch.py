"""The end of the client is the end of the server: its process is watched, from a thread that nothing holds up."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable

EVERY_S = 2.0
"""Seconds between two looks, where the system cannot tell by itself."""


LAST_S = 10.0
"""Seconds that an orderly end may take."""


def watch(process: int, gone: Callable[[], None]) -> None:
    """End this process when that one is gone: by ``gone``, called in a thread, and where that does not do it by force."""
    threading.Thread(target=_watch, args=(process, gone), name="lifeline", daemon=True).start()


def _watch(process: int, gone: Callable[[], None]) -> None:
    if process <= 0 or process == os.getpid():
        return
    try:
        descriptor = os.pidfd_open(process)
    except ProcessLookupError:
        pass
    except (AttributeError, OSError):
        while _lives(process):
            time.sleep(EVERY_S)
    else:
        select.select([descriptor], [], [])
    gone()
    time.sleep(LAST_S)
    os._exit(0)


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
