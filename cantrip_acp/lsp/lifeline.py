"""The end of the client is the end of the server: its process is watched, from a thread that nothing holds up."""

from __future__ import annotations

import os
import select
import threading
import time

EVERY_S = 2.0
"""Seconds between two looks, where the system cannot tell by itself."""


def watch(process: int) -> None:
    """End this process when that one is gone."""
    threading.Thread(target=_watch, args=(process,), name="lifeline", daemon=True).start()


def _watch(process: int) -> None:
    if process <= 0 or process == os.getpid():
        return
    try:
        descriptor = os.pidfd_open(process)
    except ProcessLookupError:
        os._exit(0)
    except (AttributeError, OSError):
        while _lives(process):
            time.sleep(EVERY_S)
    else:
        select.select([descriptor], [], [])
    os._exit(0)


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
