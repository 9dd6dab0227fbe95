"""Preparation: starts ahead of time what the first turn would otherwise wait for."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import anyio

from cantrip_acp.core.errors import CantripError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from cantrip_acp.core.lifecycle.medium_session import SessionKeeper

log = logging.getLogger(__name__)


class Preparation:
    """Connects one entity's gate sources and starts its medium, once, in the background."""

    def __init__(self, entity_id: str, connect_sources: Callable[[], Awaitable[None]], session: SessionKeeper) -> None:
        self._entity_id = entity_id
        self._connect_sources = connect_sources
        self._session = session
        self._scope: anyio.CancelScope | None = None
        self._finished = anyio.Event()

    async def run(self) -> None:
        """Prepare. Problems are only logged here; the first turn reports them."""
        if self._session.pending_restore is not None:
            return
        with anyio.CancelScope() as self._scope:
            try:
                await self._connect_sources()
                warm = getattr(await self._session.open(), "warm", None)
                if warm is not None:
                    await warm()
            except CantripError as problem:
                log.debug("nothing could be prepared for %s: %s", self._entity_id, problem)
            finally:
                self._finished.set()

    async def stop(self) -> None:
        """Stop a preparation that still runs."""
        if self._scope is not None:
            self._scope.cancel()
            with anyio.CancelScope(shield=True):
                await self._finished.wait()
