"""Usage: the tokens and the cost of queries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec


class Usage(msgspec.Struct, frozen=True):
    """Tokens and cost (US dollars) of one query, or the sum over several queries.

    None means unknown, which is not the same as 0. A sum contains only the known values. ``queries_without_usage``
    counts the queries whose tokens were not fully reported, and ``queries_without_cost`` those with an unknown cost. If
    both are 0, the sum is complete. A value of a sum is None if it is unknown for every query. ``Usage()`` is the usage
    of zero queries.

    ``prompt_tokens`` are all tokens that the model read. They include ``cached_tokens`` (read from a cache) and
    ``cache_write_tokens``. ``completion_tokens`` include ``reasoning_tokens``.
    """

    prompt_tokens: int | None = 0
    completion_tokens: int | None = 0
    cached_tokens: int | None = 0
    cache_write_tokens: int | None = 0
    reasoning_tokens: int | None = 0
    cost: float | None = None
    queries_without_usage: int = 0
    queries_without_cost: int = 0

    @property
    def total_tokens(self) -> int | None:
        """The known prompt and completion tokens together; None if neither is known."""
        read, said = self.prompt_tokens, self.completion_tokens
        known = (read or 0) + (said or 0)
        return known if known or (read is not None and said is not None) else None

    def counted(self) -> Usage:
        """Return the usage of one query with ``queries_without_*`` set. A sum is returned unchanged."""
        if self.queries_without_usage or self.queries_without_cost:
            return self
        unknown = self.prompt_tokens is None or self.completion_tokens is None
        unpriced = self.cost is None and (unknown or bool(self.prompt_tokens or self.completion_tokens))
        if not unknown and not unpriced:
            return self
        return msgspec.structs.replace(self, queries_without_usage=int(unknown), queries_without_cost=int(unpriced))

    def partial(self) -> Usage:
        """Return the usage of a query that was cut off. The query may have used more than was reported."""
        return msgspec.structs.replace(self, queries_without_usage=1, queries_without_cost=1)

    def __add__(self, other: Usage) -> Usage:
        # Compare identity first, for speed: it is nearly always the constant, and every turn adds usage.
        if self is NO_USAGE or self == NO_USAGE:
            return other
        if other is NO_USAGE or other == NO_USAGE:
            return self
        pairs = zip(msgspec.structs.astuple(self), msgspec.structs.astuple(other), strict=True)
        return Usage(*[one if more is None else more if one is None else one + more for one, more in pairs])

    def __sub__(self, other: Usage) -> Usage:
        """Subtract one part from a sum."""
        without_usage = max(0, self.queries_without_usage - other.queries_without_usage)
        without_cost = max(0, self.queries_without_cost - other.queries_without_cost)
        return Usage(
            _minus(self.prompt_tokens, other.prompt_tokens, without_usage),
            _minus(self.completion_tokens, other.completion_tokens, without_usage),
            _minus(self.cached_tokens, other.cached_tokens, without_usage),
            _minus(self.cache_write_tokens, other.cache_write_tokens, without_usage),
            _minus(self.reasoning_tokens, other.reasoning_tokens, without_usage),
            _minus(self.cost, other.cost, without_cost),
            without_usage,
            without_cost,
        )

    def words(self) -> list[str]:
        """Describe tokens and cost in short texts for people, including unknown values. Empty if no query was made."""
        parts = []
        some, many = self.queries_without_usage, self.queries_without_cost
        if self.total_tokens is None:
            parts.append("tokens unknown")
        elif self.total_tokens or some:
            read, said = ("?" if n is None else f"{n:,}" for n in (self.prompt_tokens, self.completion_tokens))
            cached = f" ({self.cached_tokens:,} cached)" if self.cached_tokens else ""
            parts.append(f"{read} tokens in, {said} out{cached}" + (f" + unknown of {_queries(some)}" if some else ""))
        if self.cost is not None:
            money = f"${self.cost:.4f}" if self.cost >= 0.001 or not self.cost else f"${self.cost:.6f}"
            parts.append(money + (f" + unknown of {_queries(many)}" if many else ""))
        elif many:
            parts.append("cost unknown")
        return parts

    def record(self) -> dict[str, Any]:
        """Return the usage as a mapping for results and events: the counts, their total, and the cost.

        If something is unknown, the mapping also has the number of queries with unknown values.
        """
        record: dict[str, Any] = {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "cached_tokens": self.cached_tokens,
            "cache_write_tokens": self.cache_write_tokens,
            "reasoning_tokens": self.reasoning_tokens,
            "total_tokens": self.total_tokens,
            "cost": self.cost,
        }
        return record | self.unknown() if self.queries_without_usage or self.queries_without_cost else record

    def unknown(self) -> dict[str, int]:
        """The non-zero ``queries_without_*`` counts, by name. Empty if all values are known."""
        names = ("queries_without_usage", "queries_without_cost")
        return {name: number for name in names if (number := getattr(self, name))}

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> Usage:
        """Read the result of `record` again. A missing key (from an older version) counts as 0."""
        return cls(**{name: record[name] for name in cls.__struct_fields__ if name in record})


NO_USAGE = Usage()
"""The usage of zero queries: the start value of a sum."""

UNKNOWN_USAGE = Usage(None, None, None, None, None, None, 1, 1)
"""The usage of a query whose provider reported nothing."""


def _queries(number: int) -> str:
    return "1 query" if number == 1 else f"{number} queries"


_Number = TypeVar("_Number", int, float)


def _minus(whole: _Number | None, part: _Number | None, unknown: int) -> _Number | None:
    left = whole if whole is None or part is None else max(whole - part, type(whole)(0))
    # If nothing known is left but something is unknown, the rest is unknown and not 0.
    return None if not left and unknown else left
