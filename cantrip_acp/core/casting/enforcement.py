"""Which wards of a cast could not be enforced, or not exactly, and why: texts for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cantrip_acp.core.state import CastState, EntityState


def known_at_start(entity: EntityState) -> list[str]:
    """Problems with wards that are known at the start of a cast."""
    if entity.circle.wards.max_cost_usd is None or getattr(entity.crystal, "priced", None) is not False:
        return []
    return [
        f"max_cost_usd cannot be enforced: what {entity.crystal.model} costs is not known, so the cast ends after the "
        "first query that uses tokens; give the crystal a price"
    ]


def at_end(entity: EntityState, cast: CastState) -> tuple[str, ...]:
    """The wards of a cast that could not be enforced, or not exactly, and why. Known secrets are masked."""
    wards, usage = entity.circle.wards, cast.usage
    found = []
    if wards.max_cost_usd is not None and usage.queries_without_cost:
        models = ", ".join(cast.unpriced) or entity.crystal.model
        known = f"${usage.cost:.6g} are known" if usage.cost is not None else "nothing of it is known"
        found.append(
            f"max_cost_usd cannot be enforced: the cost of {_count_text(usage.queries_without_cost)} of {models} is not known "
            f"({known}); give the crystal a price, or use a provider that reports usage."
        )
    if wards.max_total_tokens is not None and usage.queries_without_usage:
        found.append(
            f"max_total_tokens cannot be enforced exactly: the usage of {_count_text(usage.queries_without_usage)} was not "
            f"reported in full; it was estimated at {cast.estimated:,} tokens."
        )
    return tuple(entity.redactor.text(each) for each in found)


def _count_text(queries: int) -> str:
    return "1 query" if queries == 1 else f"{queries} queries"
