"""Counts what a cast spends: adds the tokens and dollars of each query to its cast, its entity and the casts above (PROD-3).

`Spent.tokens` and `Spent.cost` are the sums that wards compare with their limits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cantrip_acp.core.folding.policy import CHARS_PER_TOKEN

if TYPE_CHECKING:
    from cantrip_acp.core.state import CastState
    from cantrip_acp.types.usage import Usage


def spend(cast: CastState, usage: Usage, *, response_chars: int = 0, model: str | None = None) -> None:
    """Add a query's usage (tokens, and dollars if they are known) to a cast and to every cast above it, because parents pay
    for their children.

    ``response_chars`` is the length of its response, for an estimate if the usage is unknown. ``model`` is the queried model,
    if it is not the entity's.
    """
    estimated = 0
    if usage.queries_without_usage:
        likely = cast.entity.context.tokens * usage.queries_without_usage + response_chars // CHARS_PER_TOKEN
        estimated = max(0, likely - (usage.total_tokens or 0))
    unpriced = (model or cast.entity.crystal.model) if usage.queries_without_cost else None
    while True:
        entity, spent = cast.entity, cast.spent
        if entity.usage is spent.usage:
            # The first cast of an entity: one sum serves both.
            entity.usage = spent.usage = spent.usage + usage
        else:
            spent.usage = spent.usage + usage
            entity.usage = entity.usage + usage
        spent.estimated += estimated
        if unpriced is not None:
            spent.unpriced[unpriced] = None
        if entity.parent is None:
            return
        cast = entity.parent.cast
        above = cast.spent
        above.children_usage = usage if above.children_usage is None else above.children_usage + usage
