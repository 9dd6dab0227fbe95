"""Client watch: ends the server when the client's process ends. It runs in a thread, so a busy event loop cannot block it."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable

EVERY_S = 2.0
"""Seconds between two checks, on systems without pidfd."""


LAST_S = 10.0
"""Seconds that an orderly end may take before the process is ended by force."""


def watch(process: int, gone: Callable[[], None]) -> None:
    """When process ``process`` ends, call ``gone`` in a thread; if this process still runs `LAST_S` seconds later, exit at once."""
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
