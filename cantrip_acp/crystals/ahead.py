"""Doing ahead of the first query what it would wait for: importing an SDK takes most of a second."""

from __future__ import annotations

import logging
import threading

from cantrip_acp.crystals.contract import Crystal

log = logging.getLogger(__name__)


def prepare_beside(crystal: Crystal) -> None:
    """Call the crystal's ``prepare`` in a thread of its own, where it has one. Returns at once and never fails.

    A daemon: a process that is asked to end does not wait for an import.
    """
    prepare = getattr(crystal, "prepare", None)
    if prepare is None:
        return

    def run() -> None:
        try:
            prepare()
        except Exception as error:  # noqa: BLE001 - the first query meets it again, and says it where it can be seen
            log.info("%s could not be prepared: %s: %s", crystal.name, type(error).__name__, error)

    threading.Thread(target=run, name=f"prepare {crystal.name}", daemon=True).start()
