"""State of a tuple-space: lanes, rates, cost, workers, and why tuples failed."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, Any

import msgspec

from cantrip_acp.tuplespace.budget import ALARM_LANE
from cantrip_acp.tuplespace.stores.base import BATCH_LANE, Failures, Holder, Need, WorkerEntry
from cantrip_acp.tuplespace.workers.guardrails import GC_LANE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cantrip_acp.tuplespace.stores.sql import TupleStore

LATELY_S = 60.0
"""The time over which the rate is counted."""
_VARYING = re.compile(r"\b(?=[\w-]*\d)[\w-]{8,}\b|(?<!exit )(?<!answered )(?<!status )(?<![\d.,:])\d+(?:[.,:]\d+)*")
"""Ids, hashes, times and numbers, but not exit and HTTP statuses: reasons that differ only in these are one reason."""
_FOR_PEOPLE = frozenset({ALARM_LANE, GC_LANE})
"""Lanes whose tuples no worker takes."""


class LaneStatus(msgspec.Struct, kw_only=True):
    """A lane: its tuples by state, the age of the oldest waiting one, and the total cost of all of them so far."""

    waiting: int = 0
    claimed: int = 0
    done: int = 0
    failed: int = 0
    """The failed tuples, without those that were repeated."""
    repeated: int = 0
    """Failed ones that were repeated, and whose repetition has ended."""
    taken: int = 0
    oldest_waiting_s: float | None = None
    ended_per_s: float = 0.0
    """Tuples that ended in a second, over the last minute."""
    usd: float | None = None
    tokens_in: int = 0
    tokens_out: int = 0
    reused: int = 0
    """Steps whose answer was reused."""


class Stuck(msgspec.Struct, frozen=True, kw_only=True):
    """Tuples that no worker takes. If very many wait in a lane, only the oldest are checked."""

    lane: str
    count: int
    reason: str
    tuple_id: str
    """The oldest of these tuples."""


class SpaceStatus(msgspec.Struct, kw_only=True):
    """The state of a tuple-space, or of one lane in it."""

    space: str
    lanes: dict[str, LaneStatus]
    ended_per_s: float
    usd: float | None
    workers: list[Holder]
    budgets: list[dict[str, Any]]
    """The budgets that tuples share: their limits, and the amounts spent, including running casts."""
    failures: list[Failures]
    """The most frequent first. Reasons that differ only in ids and numbers are one."""
    stuck: list[Stuck] = []
    """The waiting tuples that nobody takes, and why."""


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
        each.tokens_in, each.tokens_out, each.reused = sums.tokens_in, sums.tokens_out, sums.reused
    for name, repeated in store.repeated().items():
        each = lanes.setdefault(name, LaneStatus())
        each.failed, each.repeated = max(0, each.failed - repeated), repeated
    lanes.pop(BATCH_LANE, None)
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
        stuck=find_stuck(store, lane),
    )


def find_stuck(
    store: TupleStore, lane: str | None = None, *, among: Sequence[WorkerEntry] | None = None
) -> list[Stuck]:
    """The waiting tuples that no worker takes. Raises `SpaceError`.

    ``among`` replaces the workers that the store knows.
    """
    needs = [each for each in store.needs(lane) if each.lane not in _FOR_PEOPLE]
    if not needs:
        return []
    workers: dict[str, list[WorkerEntry]] = {}
    for entry in store.workers(lane) if among is None else among:
        workers.setdefault(entry.lane, []).append(entry)
    # A worker of an older version says nothing of itself until it has tuples.
    silent = {
        each.lane
        for each in (store.holders() if among is None else ())
        if all(each.worker != w.worker for w in workers.get(each.lane, ()))
    }
    reasons = [(each, _why(each, workers.get(each.lane, ()))) for each in needs if each.lane not in silent]
    return [
        Stuck(lane=need.lane, count=need.count, reason=reason, tuple_id=need.tuple_id)
        for need, reason in reasons
        if reason is not None
    ]


def _why(need: Need, workers: Sequence[WorkerEntry]) -> str | None:
    """Why none of the workers takes these tuples. None if one of them does."""
    if not workers:
        if need.lane.startswith("here."):
            return "the cast-batch that put them does not run; the same command continues it"
        return "no worker works on this lane"
    able = [each for each in workers if all(_lacks(step, each) is None for step in need.steps)]
    if able:
        troubles = [each.trouble for each in able if each.trouble is not None]
        return troubles[0] if len(troubles) == len(able) else None
    for step in need.steps:
        lacks = [_lacks(step, each) for each in workers]
        if None in lacks:
            continue
        known = [each for each in lacks if each]
        if not known:
            names = {run.yool for each in workers for run in each.runs}
            near = difflib.get_close_matches(step["yool"], sorted(names), 2)
            return f"no worker has the yool {step['yool']}" + (f"; similar: {', '.join(near)}" if near else "")
        return f"{step['yool']}: {_LACKS.get(str(known[0]), f'the workers have another {known[0]}')}"
    return "no worker has all of the yools of their steps"


_LACKS = {
    "recipe": "the workers have another text of the recipe, or another model",
    "project": "the workers are in another project",
    "reference": (
        "the workers' entities could read the loom, which would hold the expected answers; give the workers a --loom in "
        "another folder"
    ),
}


def _lacks(step: Mapping[str, Any], worker: WorkerEntry) -> str | None:
    """What a worker lacks for a step: an argument that it cannot serve, "" for the yool itself, None if nothing."""
    found: str | None = ""
    for run in worker.runs:
        if run.yool == step["yool"]:
            refused = run.refusal(step["args"])
            if not refused:
                return None
            found = refused[0]
    return found


def same_reason(reason: str) -> str:
    """Replace ids and numbers in a reason, so that reasons that differ only in these are equal."""
    return _VARYING.sub("…", reason)


def _grouped(failures: list[Failures]) -> list[Failures]:
    """Join the reasons that differ only in ids and numbers, under the text of the most frequent one."""
    found: dict[tuple[str, str], Failures] = {}
    for each in failures:
        key = (each.lane, same_reason(each.reason))
        first = found.get(key)
        found[key] = each if first is None else msgspec.structs.replace(first, count=first.count + each.count)
    return sorted(found.values(), key=lambda each: -each.count)
