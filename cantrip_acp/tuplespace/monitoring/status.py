"""State of a tuple-space: lanes, rates, cost, workers, and why tuples failed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from cantrip_acp.text.redaction import shared
from cantrip_acp.tuplespace.stores.base import Failures, Holder

if TYPE_CHECKING:
    from cantrip_acp.tuplespace.stores.base import TupleStore

LATELY_S = 60.0
"""The time over which the rate is counted."""
_VARYING = re.compile(r"\b(?=[\w-]*\d)[\w-]{8,}\b")
"""Ids, hashes and times: reasons that differ only in these are one reason."""


class LaneStatus(msgspec.Struct, kw_only=True):
    """A lane. Counts by state, the age of the oldest waiting tuple, and what all of its tuples have cost until now."""

    waiting: int = 0
    claimed: int = 0
    done: int = 0
    failed: int = 0
    taken: int = 0
    oldest_waiting_s: float | None = None
    ended_per_s: float = 0.0
    """Over the last minute."""
    usd: float | None = None
    tokens_in: int = 0
    tokens_out: int = 0


class SpaceStatus(msgspec.Struct, kw_only=True):
    """A tuple-space, or one lane of it."""

    space: str
    lanes: dict[str, LaneStatus]
    ended_per_s: float
    usd: float | None
    workers: list[Holder]
    budgets: list[dict[str, Any]]
    """What tuples share: the limits, and what is spent of them, with the casts that run."""
    failures: list[Failures]
    """The most frequent first. Reasons that differ only in ids and numbers are one."""


def read_status(store: TupleStore, lane: str | None = None) -> SpaceStatus:
    """The state of a space, or of one lane. Raises `SpaceError`."""
    lanes: dict[str, LaneStatus] = {}
    for count in store.counts():
        each = lanes.setdefault(count.lane, LaneStatus())
        setattr(each, count.state, count.count)
        if count.state == "waiting":
            each.oldest_waiting_s = round(count.oldest_s, 1)
    for sums in store.sums(LATELY_S):
        each = lanes.setdefault(sums.lane, LaneStatus())
        each.ended_per_s = round(sums.ended_lately / LATELY_S, 2)
        each.usd = None if sums.usd is None else round(sums.usd, 9)
        each.tokens_in, each.tokens_out = sums.tokens_in, sums.tokens_out
    if lane is not None:
        lanes = {lane: lanes.get(lane, LaneStatus())}
    known = [each.usd for each in lanes.values() if each.usd is not None]
    return SpaceStatus(
        space=store.location,
        lanes=dict(sorted(lanes.items())),
        ended_per_s=round(sum(each.ended_per_s for each in lanes.values()), 2),
        usd=round(sum(known), 9) if known else None,
        workers=[each for each in store.holders() if lane is None or each.lane == lane],
        budgets=[each.record() for each in store.budgets()] if lane is None else [],
        failures=_grouped(store.failures(lane)),
    )


def _grouped(failures: list[Failures]) -> list[Failures]:
    """Join the reasons that differ only in ids and numbers, under the text of the most frequent one."""
    found: dict[tuple[str, str], Failures] = {}
    for each in failures:
        key = (each.lane, _VARYING.sub("…", each.reason))
        first = found.get(key)
        reason = shared().diagnostic(each.reason)
        found[key] = (
            msgspec.structs.replace(each, reason=reason)
            if first is None
            else msgspec.structs.replace(first, count=first.count + each.count)
        )
    return sorted(found.values(), key=lambda each: -each.count)
