"""Budgets that many tuples share, and the alarm tuples that say how much of one is spent.

A store charges what a tuple has cost so far whenever its worker saves progress or a receipt. So the cost of a worker that
dies counts too. When a budget is spent, its tuples are not claimed any more, and those that run are stopped after the query
that they are in: together they can cost one query each more than the budget.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from cantrip_acp.tuplespace.tuples import WorkTuple, new_tuple

ALARM_LANE = "alarms"
THRESHOLDS = (50, 80, 100)
"""Per cent of a budget. An alarm tuple is put at each, once."""


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """Limits that tuples share, and the amounts that these tuples have spent. None means no limit."""

    name: str
    usd: float | None
    tokens: int | None
    spent_usd: float = 0.0
    spent_tokens: int = 0
    alarmed: int = 0
    """The highest threshold with an alarm."""

    @property
    def spent_percent(self) -> float:
        """The spent percentage of the limit that is closer to its end."""
        parts = [
            100.0 * spent / limit if limit else 100.0
            for spent, limit in ((self.spent_usd, self.usd), (self.spent_tokens, self.tokens))
            if limit is not None
        ]
        return max(parts, default=0.0)

    @property
    def is_spent(self) -> bool:
        """Whether either limit is reached."""
        return (self.usd is not None and self.spent_usd >= self.usd) or (
            self.tokens is not None and self.spent_tokens >= self.tokens
        )

    def record(self) -> dict[str, Any]:
        """The budget as JSON data."""
        return {
            "name": self.name,
            "usd": self.usd,
            "tokens": self.tokens,
            "spent_usd": round(self.spent_usd, 9),
            "spent_tokens": self.spent_tokens,
            "spent_percent": round(self.spent_percent, 1),
        }


def amounts(cost: object) -> tuple[float, int]:
    """US dollars and tokens in the ``cost`` of a receipt or progress. Unknown values count as 0."""
    if not isinstance(cost, Mapping):
        return 0.0, 0
    usd, tokens = cost.get("usd"), [cost.get(name) for name in ("tokens_in", "tokens_out")]
    return (
        float(usd) if isinstance(usd, int | float) and usd > 0 else 0.0,
        sum(int(each) for each in tokens if isinstance(each, int | float) and each > 0),
    )


def due_alarms(budget: Budget) -> list[int]:
    """The thresholds that a budget has reached and that have no alarm yet."""
    percent = 100.0 if budget.is_spent else min(budget.spent_percent, 99.999)
    return [each for each in THRESHOLDS if budget.alarmed < each <= percent]


def alarm_tuple(budget: Budget, percent: int) -> WorkTuple:
    """The tuple that reports a reached threshold to the watchers of the lane `ALARM_LANE`."""
    return new_tuple(
        ALARM_LANE,
        [{"yool": "alarm.budget", "args": {"percent": percent, **budget.record()}}],
        map_pos={"budget": budget.name, "percent": percent},
    )
