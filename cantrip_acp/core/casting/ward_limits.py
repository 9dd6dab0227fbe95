"""Wards that limit a cast: why a cast ends with a turn, limits that count on after a resume or for all casts above, and texts
for people about wards that could not be enforced, or not exactly."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cantrip_acp.crystals.contract import CUTS, CrystalBase
from cantrip_acp.text.defaults import complete

if TYPE_CHECKING:
    from cantrip_acp.core.casting.turn_builder import TurnBuilder
    from cantrip_acp.core.history.continuation import Point
    from cantrip_acp.core.state import CastState, EntityState
    from cantrip_acp.types.usage import Usage


def end_reason(cast: CastState, turn: TurnBuilder) -> str | None:
    """Why a cast ends with this turn, or None if it goes on (LOOP-2, LOOP-3, LOOP-4, LOOP-6)."""
    wards, response = cast.entity.circle.wards, turn.response
    if turn.finished:
        return "done"
    if response.refused:
        return "refusal"
    if not response.tool_calls and response.stop_reason in CUTS and not cast.entity.require_done:
        # Cut at the crystal's own limit, or as it repeated itself: half an answer is not a result.
        return "output_limit"
    if not response.tool_calls and response.problem is None and not cast.entity.require_done:
        return "text"
    if wards.max_total_tokens is not None and cast.spent.tokens >= wards.max_total_tokens:
        return "max_tokens"
    if wards.max_cost_usd is not None:
        # A cost limit that cannot be measured counts as reached at once.
        if turn.used.queries_without_cost or cast.spent.cost >= wards.max_cost_usd:
            return "max_cost"
    if cast.spent.queries >= (wards.max_turns or 1):
        return "max_turns"
    return None


def carry_over(cast: CastState, point: Point) -> None:
    """Let the limits of a resumed cast include what the casts before it have spent. A limit that was reached starts again
    from zero, because the user continues in spite of it."""
    wards, used = cast.entity.circle.wards, point.used
    if point.spent < (wards.max_turns or 1):
        cast.spent.queries = point.spent
    tokens, cost = wards.max_total_tokens, wards.max_cost_usd
    if (tokens is None or (used.total_tokens or 0) < tokens) and (cost is None or (used.cost or 0.0) < cost):
        cast.spent.before = used


def stop_overspent(entity: EntityState, usage: Usage) -> None:
    """Stop the highest cast above an entity that has reached its token or cost limit.

    All casts below it end too (COMP-9).
    """
    over: tuple[CastState, str] | None = None
    parent = entity.parent
    while parent is not None:
        above = parent.cast
        wards = above.entity.circle.wards
        if wards.max_total_tokens is not None and above.spent.tokens >= wards.max_total_tokens:
            over = (above, "max_tokens")
        elif wards.max_cost_usd is not None and (usage.queries_without_cost or above.spent.cost >= wards.max_cost_usd):
            over = (above, "max_cost")
        parent = above.entity.parent
    if over is not None:
        cast, reason = over
        cast.cancel(reason)


def known_at_start(entity: EntityState) -> list[str]:
    """Problems with wards that are known at the start of a cast."""
    if entity.circle.wards.max_cost_usd is None or complete(entity.crystal, CrystalBase).priced is not False:
        return []
    return [
        f"max_cost_usd cannot be enforced: what {entity.crystal.model} costs is not known, so the cast ends after the "
        "first query that uses tokens; give the crystal a price"
    ]


def at_end(entity: EntityState, cast: CastState) -> tuple[str, ...]:
    """The wards of a cast that could not be enforced, or not exactly, and why."""
    wards, usage = entity.circle.wards, cast.spent.usage
    found = []
    if wards.max_cost_usd is not None and usage.queries_without_cost:
        models = ", ".join(cast.spent.unpriced) or entity.crystal.model
        known = f"${usage.cost:.6g} are known" if usage.cost is not None else "nothing of it is known"
        found.append(
            f"max_cost_usd cannot be enforced: the cost of {_count_text(usage.queries_without_cost)} of {models} is not known "
            f"({known}); give the crystal a price, or use a provider that reports usage."
        )
    if wards.max_total_tokens is not None and usage.queries_without_usage:
        found.append(
            f"max_total_tokens cannot be enforced exactly: the usage of {_count_text(usage.queries_without_usage)} was not "
            f"reported in full; it was estimated at {cast.spent.estimated:,} tokens."
        )
    return tuple(found)


def _count_text(queries: int) -> str:
    return "1 query" if queries == 1 else f"{queries} queries"
