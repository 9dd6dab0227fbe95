"""Running calls: what an entity and its children do now, each call in a scope that the user can stop alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import anyio

STOPPED_BY_USER = "the user stopped this; it may have had a part of its effect"
"""The result of a call that the user stopped, as the entity reads it. The cast goes on."""


class RunningCalls:
    """The gate calls and programs of one tree of entities that run now, by the ids that events give them."""

    __slots__ = ("_scopes",)

    def __init__(self) -> None:
        self._scopes: dict[str, anyio.CancelScope] = {}

    @contextmanager
    def stoppable(self, call_id: str) -> Iterator[anyio.CancelScope]:
        """Run a call. ``cancelled_caught`` of the scope is True if the user stopped it before it had ended by itself."""
        with anyio.CancelScope() as scope:
            self._scopes[call_id] = scope
            try:
                yield scope
            finally:
                self._scopes.pop(call_id, None)

    def stop(self, call_id: str) -> bool:
        """Stop a call and everything below it. Returns False if no call with this id runs."""
        scope = self._scopes.get(call_id)
        if scope is None:
            return False
        scope.cancel()
        return True
