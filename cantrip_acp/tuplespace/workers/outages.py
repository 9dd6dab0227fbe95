"""Outages: what does not work for every step of a yool (a model, a disk), or for the whole worker (the store)."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Literal

from cantrip_acp.tuplespace.stores.base import Claim
from cantrip_acp.tuplespace.yools.step import StepFailed

_BACKOFF_S = (1.0, 60.0)
"""The first and the longest pause before another attempt; it doubles after each failure."""
_LONG_S = 3600.0
"""How long an outage may last before attempts during it count."""


def pause_s(failures: int) -> float:
    """The pause before another attempt, after so many earlier failures."""
    first, longest = _BACKOFF_S
    return min(longest, first * 2.0 ** min(failures, 30))


class Outage:
    """A failure of something that steps need: its start, and the time of the next try."""

    def __init__(self) -> None:
        self.since = time.monotonic()
        self.tries = 0
        self.next_at = 0.0
        self.reason = ""
        self.probing = False

    def failed(self, reason: str) -> float:
        """Note a failure, and return the pause before the next attempt."""
        pause = pause_s(self.tries)
        self.tries += 1
        self.reason, self.next_at, self.probing = reason, time.monotonic() + pause, False
        return pause

    @property
    def is_due(self) -> bool:
        return not self.probing and time.monotonic() >= self.next_at

    @property
    def lasts_s(self) -> float:
        return time.monotonic() - self.since


class YoolOutages:
    """The outages of each yool. While a yool has one, one tuple at a time tests whether it is over."""

    def __init__(self) -> None:
        self.by_yool: dict[str, Outage] = {}
        self._answered_at: dict[str, float] = {}
        """By yool, when one of its steps last showed that what it needs works."""
        self._failed_at: dict[str, dict[str, float]] = {}
        """By yool, the tuples that failed, perhaps by an outage, and when they did so last."""

    def __contains__(self, yool: str) -> bool:
        return yool in self.by_yool

    def may_start(self, yool: str) -> bool:
        """Whether a tuple of this yool may start: it has no outage, or it is time for a test."""
        return (outage := self.by_yool.get(yool)) is None or outage.is_due

    def next_test_in_s(self) -> list[float]:
        """The seconds until each next test."""
        return [out.next_at - time.monotonic() for out in self.by_yool.values() if not out.probing]

    def probe(self, claim: Claim, *, begins: bool) -> None:
        """Note that a tuple begins to test its yools, or that it ended and showed nothing: then another may test them."""
        for step in claim.work.payload if self.by_yool else ():
            if (outage := self.by_yool.get(step.yool)) is not None:
                outage.probing = begins

    def has_worked(self, yool: str) -> bool:
        return yool in self._answered_at

    def works(self, yool: str) -> Outage | None:
        """Note that a step got what it needs. Returns the outage that is over with it."""
        self._answered_at[yool] = time.monotonic()
        return self.by_yool.pop(yool, None)

    def failed(self, yool: str, reason: str) -> tuple[float, bool]:
        """Note a failure. Returns the pause before the next test, and whether the failure says something new."""
        outage = self.by_yool.get(yool)
        if outage is None:
            outage = self.by_yool[yool] = Outage()
        elif not outage.probing and not outage.is_due:
            # The step began before the outage was known.
            return max(0.0, outage.next_at - time.monotonic()), False
        return outage.failed(reason), True

    def is_long(self, yool: str) -> bool:
        """Whether an outage lasts so long that attempts during it count."""
        return (outage := self.by_yool.get(yool)) is not None and outage.lasts_s > _LONG_S

    def ended(self, tuple_id: str) -> None:
        """Forget the failures of a tuple that has its receipt."""
        for failed in self._failed_at.values():
            failed.pop(tuple_id, None)

    def cause(
        self, claim: Claim, yool: str, failure: StepFailed, began: float, running: Collection[Claim]
    ) -> Literal["tuple", "outage", "unknown"]:
        """Decide whether a step failed because of its tuple, or because of something that all steps of the yool need."""
        if not failure.outage and not failure.perhaps:
            return "tuple"
        failed = self._failed_at.setdefault(yool, {})
        before = failed.get(claim.work.id, began)
        failed[claim.work.id] = time.monotonic()
        answered = self._answered_at.get(yool, 0.0)
        if answered >= before:
            # Others got an answer since this tuple began, or since it failed before.
            return "tuple"
        if failure.outage or any(at > answered for work, at in failed.items() if work != claim.work.id):
            return "outage"
        others = (other for other in running if other is not claim)
        return "unknown" if any(step.yool == yool for other in others for step in other.work.payload) else "tuple"
