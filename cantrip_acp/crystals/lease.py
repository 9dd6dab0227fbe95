"""Who still uses a crystal: its connections are closed by the last entity that leaves it, and not under another's query."""

from __future__ import annotations

import logging
import weakref
from typing import Any

import anyio

from cantrip_acp.crystals.contract import Crystal

log = logging.getLogger(__name__)

CLOSING_S = 2.0
"""Seconds that ending connections may take."""

_users: weakref.WeakKeyDictionary[Any, weakref.WeakSet[Any]] = weakref.WeakKeyDictionary()


def take(crystal: Crystal, user: object) -> None:
    """``user`` may ask the crystal from now on."""
    try:
        _users.setdefault(crystal, weakref.WeakSet()).add(user)
    except TypeError:
        pass  # a crystal that cannot be counted is closed by nobody but its owner


async def leave(crystal: Crystal, user: object) -> None:
    """``user`` is done with it. Where nobody else is left, its connections end; it can be asked again all the same."""
    aclose = getattr(crystal, "aclose", None)
    try:
        users = _users.get(crystal)
    except TypeError:
        return
    if users is None or user not in users:
        return
    users.discard(user)
    if users or aclose is None:
        return
    with anyio.move_on_after(CLOSING_S, shield=True):
        try:
            await aclose()
        except Exception as error:  # noqa: BLE001 - whatever a library says of a connection that ends anyway
            log.debug("the connections of %s did not end well: %s: %s", crystal.name, type(error).__name__, error)
