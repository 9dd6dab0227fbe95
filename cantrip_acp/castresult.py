"""What a cast gives back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cantrip_acp.crystals.contract import Usage


@dataclass(frozen=True, slots=True)
class CastResult:
    """How a cast ended.

    ``result`` is what ``done`` was given, or the last words (LOOP-6); None where a ward or a cancel cut it off.
    ``reason`` is one of done, text, max_turns, max_seconds, max_tokens, max_cost, cancelled, parent_terminated, refusal, error.
    ``summary`` says what had been done until a truncation (LOOP-4). ``loom`` is where the trace is, None in memory.
    ``usage`` is with all children; ``children_usage`` is theirs, None where there were none. Both count every billed query:
    failed and repeated attempts, cancelled streams as far as their provider reported, summaries of folding.
    ``warnings`` say which wards could not be enforced, or not exactly, and why.
    """

    result: Any
    terminated: bool
    truncated: bool
    reason: str
    usage: Usage
    turns: int
    entity_id: str
    cast_id: str
    trace_id: str
    summary: str | None = None
    loom: str | None = None
    children_usage: Usage | None = None
    warnings: tuple[str, ...] = ()

    @property
    def own_usage(self) -> Usage:
        """``usage`` without what children used."""
        return self.usage if self.children_usage is None else self.usage - self.children_usage

    def record(self) -> dict[str, Any]:
        """As ``cantrip cast --json`` ends with."""
        return {
            "result": self.result,
            "terminated": self.terminated,
            "truncated": self.truncated,
            "reason": self.reason,
            "usage": self.usage.record(),
            "entity_id": self.entity_id,
            "cast_id": self.cast_id,
            "trace_id": self.trace_id,
            "turns": self.turns,
            "loom": self.loom,
            **({"children_usage": self.children_usage.record()} if self.children_usage is not None else {}),
            **({"warnings": list(self.warnings)} if self.warnings else {}),
        }
