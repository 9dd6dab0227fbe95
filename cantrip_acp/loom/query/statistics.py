"""Statistics of looms: casts, turns, tokens, cost, times, gates with errors, rewards, models, folds and forks."""

from __future__ import annotations

import math
from array import array
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cantrip_acp.loom import rewards
from cantrip_acp.loom.query.listing import moment
from cantrip_acp.loom.query.thread import cast_ending
from cantrip_acp.types.records import CastRecord, FoldRecord, ForkRecord, RewardRecord, SnapshotRecord, Turn
from cantrip_acp.types.usage import NO_USAGE, Usage

if TYPE_CHECKING:
    from cantrip_acp.loom.loom import Loom


@dataclass
class _Cast:
    """What is known of a cast while its loom is read."""

    start: str | None = None
    """When it began; None before its start and after its end."""
    model: str = "unknown"
    used: Usage = NO_USAGE
    """The usage of its turns."""


@dataclass
class _Model:
    turns: int = 0
    used: Usage = NO_USAGE


class Statistics:
    """Counts over any number of looms: call `add` for each, then `record`. Reads record by record, with little
    memory."""

    def __init__(self) -> None:
        self.looms = 0
        self.damage = 0
        self._casts: Counter[str] = Counter()
        self._started = 0
        self._children = 0
        self._turn_ms = array("d")
        self._cast_s = array("d")
        self._gates: dict[str, list[int]] = {}
        self._programs = [0, 0]
        self._models: defaultdict[str, _Model] = defaultdict(_Model)
        self._kinds: Counter[str] = Counter()
        self._values = array("d")
        self._records: Counter[str] = Counter()
        self._ids: set[str] = set()
        """The casts that were counted."""
        self._verdicts: list[tuple[str, str, Usage]] = []
        """The casts of verifiers, with model and usage. They may be in none of these looms."""

    def add(self, loom: Loom) -> None:
        """Add a loom in its present state."""
        self.looms += 1
        self.damage += len(loom.problems)
        casts: defaultdict[str, _Cast] = defaultdict(_Cast)
        for record in loom.records():
            if isinstance(record, Turn):
                self._turn(record, casts)
            elif isinstance(record, CastRecord):
                self._cast(record, casts[record.id])
            elif isinstance(record, RewardRecord):
                self._kinds[rewards.kind(record) if record.reward is not None else "failed"] += 1
                if record.usage:
                    model = record.by.rpartition("(")[2].rstrip(")") or "unknown"
                    self._verdicts.append((record.cast_id or "", model, Usage.of_record(record.usage).counted()))
            elif isinstance(record, FoldRecord):
                self._records["folds"] += 1
            elif isinstance(record, ForkRecord):
                self._records["forks"] += 1
            elif isinstance(record, SnapshotRecord):
                self._records["snapshots"] += 1
        running = loom.running_casts()
        for cast_id, cast in casts.items():
            if cast.start is not None:
                self._casts[cast_ending(None, running=cast_id in running).outcome] += 1
        for turn_id in loom.places.copy():
            given = loom.reward(turn_id)
            if given is not None:
                self._values.append(given)

    def _cast(self, record: CastRecord, cast: _Cast) -> None:
        if record.event == "start":
            self._started += 1
            self._ids.add(record.id)
            self._children += record.parent_turn_id is not None
            cast.start = record.timestamp
            if isinstance(model := record.attributes.get("model"), str):
                cast.model = model
            return
        if record.usage:
            # Failed and cancelled queries have no turn, so their usage is only in the cast's end.
            rest, cast.used = record.own_usage - cast.used, NO_USAGE
            if rest.total_tokens or rest.queries_without_usage:
                self._models[cast.model].used += rest
        self._casts[cast_ending(record, running=False).outcome] += 1
        first, last = moment(cast.start or ""), moment(record.timestamp)
        if first is not None and last is not None:
            self._cast_s.append(max(0.0, (last - first).total_seconds()))
        cast.start = None

    def _turn(self, turn: Turn, casts: defaultdict[str, _Cast]) -> None:
        about = turn.metadata
        if turn.role != "crystal" and about.usage == NO_USAGE:
            # A fold that a crystal summarized has usage too.
            return
        cast = casts[turn.cast_id or ""]
        model = self._models[about.model or cast.model]
        model.used += about.usage
        cast.used += about.usage
        if turn.role != "crystal":
            return
        model.turns += turn.is_utterance
        if about.duration_ms > 0:
            self._turn_ms.append(about.duration_ms)
        seen = turn.observation
        for result in seen.results:
            counted = self._gates.setdefault(result.gate, [0, 0])
            counted[0] += 1
            counted[1] += result.is_error
        for output in seen.programs:
            self._programs[0] += 1
            self._programs[1] += output.failed

    def record(self) -> dict[str, Any]:
        """The totals as JSON data: durations in ms (turns) and s (casts), cost in US dollars. Tokens and cost are the
        known ones, null if none is known; ``queries_without_usage`` and ``queries_without_cost`` count the queries
        without them."""
        for cast_id, model, used in self._verdicts:
            if not cast_id or cast_id not in self._ids:
                self._ids.add(cast_id)
                self._models[model].used += used
        self._verdicts.clear()
        used = sum((model.used for model in self._models.values()), NO_USAGE)
        calls = sorted(self._gates.items(), key=lambda item: (-item[1][0], item[0]))
        models = sorted(self._models.items(), key=lambda item: (-item[1].turns, item[0]))
        return {
            "looms": self.looms,
            "damage": self.damage,
            "casts": {"started": self._started, "children": self._children, "outcomes": _counts(self._casts)},
            "turns": sum(model.turns for model in self._models.values()),
            "tokens": {
                "prompt": used.prompt_tokens,
                "completion": used.completion_tokens,
                "cached": used.cached_tokens,
                "total": used.total_tokens,
            },
            "cost": used.cost,
            **used.unknown(),
            "turn_ms": _spread(self._turn_ms),
            "cast_s": _spread(self._cast_s),
            "gates": {name: _rate(*counted) for name, counted in calls},
            "programs": _rate(*self._programs),
            "rewards": {"given": _counts(self._kinds), **_spread(self._values)},
            "models": {
                name: {
                    "turns": model.turns,
                    "tokens_prompt": model.used.prompt_tokens,
                    "tokens_completion": model.used.completion_tokens,
                    "cost": model.used.cost,
                    **model.used.unknown(),
                }
                for name, model in models
            },
            **{name: self._records[name] for name in ("folds", "forks", "snapshots")},
        }


def _counts(counter: Counter[str]) -> dict[str, int]:
    return {name: number for name, number in counter.most_common() if number}


def _rate(count: int, errors: int) -> dict[str, Any]:
    return {"calls": count, "errors": errors, "error_rate": errors / count if count else 0.0}


def _spread(values: array[float]) -> dict[str, Any]:
    """The number of values, their mean, median, 95th percentile, minimum and maximum; null without values."""
    ordered = sorted(values)
    count = len(ordered)
    names = ("mean", "p50", "p95", "min", "max")
    if not count:
        return {"count": 0, **dict.fromkeys(names)}
    # Divide before adding: the sum of very large rewards would overflow.
    mean = math.fsum(v / count for v in ordered)
    figures = (mean, percentile(ordered, 0.5), percentile(ordered, 0.95), ordered[0], ordered[-1])
    return {"count": count, **dict(zip(names, figures, strict=True))}


def percentile(ordered: list[float], share: float) -> float:
    """The smallest of these sorted values that at least this share of them does not exceed (nearest rank)."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
