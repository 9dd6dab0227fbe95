"""Time limit: the deadline of a running cast, by the wards in force."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from cantrip_acp.core.state import CastState
    from cantrip_acp.gates.wards import Wards


class TimeLimit:
    """Sets the deadline of a cast's scope. Time in which a reader of events keeps the cast waiting does not count (§7.4)."""

    def __init__(self, cast: CastState) -> None:
        self._cast = cast
        self._running = False
        self._waiting = 0
        self._waiting_since = 0.0
        self._started_at = 0.0
        self._latest = math.inf

    def start(self) -> None:
        self._running, self._latest, self._started_at = True, self._cast.scope.deadline, anyio.current_time()
        self._cast.entity.hub.waits = self.wait
        self.set_wards(self._cast.entity.circle.wards)

    def set_wards(self, wards: Wards) -> None:
        """Apply the limit that is in force now. It counts from the start of the cast."""
        if self._running and self._cast.stop_reason is None and not self._waiting:
            limit = math.inf if wards.max_seconds is None else self._started_at + wards.max_seconds
            self._cast.scope.deadline = min(self._latest, limit)

    def wait(self, waiting: bool) -> None:
        """Note that a reader of events begins or stops to keep the cast waiting."""
        self._waiting += 1 if waiting else -1
        if waiting and self._waiting == 1:
            self._waiting_since = anyio.current_time()
            self._cast.scope.deadline = self._latest
        elif not self._waiting:
            self._started_at += anyio.current_time() - self._waiting_since
            self.set_wards(self._cast.entity.circle.wards)

    def lift(self) -> None:
        """Remove the limit, because the end of the cast is decided and nothing may change it (LOOP-3)."""
        self._running = False
        self._cast.scope.deadline = self._latest
