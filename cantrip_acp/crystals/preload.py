"""Preload: does before the first query what it would wait for. Importing an SDK takes most of a second."""

from __future__ import annotations

import logging
import threading
import weakref
from typing import Any

import anyio.to_thread

from cantrip_acp.crystals.contract import Crystal

log = logging.getLogger(__name__)

_ready: weakref.WeakSet[Any] = weakref.WeakSet()


async def prepared(crystal: Crystal) -> None:
    """Wait until the crystal's ``prepare`` is done. It runs in a thread, because an import would block the event loop.

    A cancel does not wait for it. Errors are only logged: the query reports them.
    """
    prepare = getattr(crystal, "prepare", None)
    try:
        if prepare is None or crystal in _ready:
            return
    except TypeError:
        return  # not hashable: it prepares itself
    try:
        await anyio.to_thread.run_sync(prepare, abandon_on_cancel=True)
    except Exception as error:  # noqa: BLE001
        log.debug("%s could not be prepared: %s: %s", crystal.name, type(error).__name__, error)
    _ready.add(crystal)


def prepare_beside(crystal: Crystal) -> None:
    """Run the crystal's ``prepare`` in a separate thread, where it has one. Returns at once and never fails.

    The thread is a daemon, so the process can exit without waiting for an import.
    """
    prepare = getattr(crystal, "prepare", None)
    if prepare is None:
        return

    def run() -> None:
        try:
            prepare()
        except Exception as error:  # noqa: BLE001 - the first query meets the same error, and reports it
            log.info("%s could not be prepared: %s: %s", crystal.name, type(error).__name__, error)

    threading.Thread(target=run, name=f"prepare {crystal.name}", daemon=True).start()
