"""Cast log: the records of one cast, from its start to its end, in the order in which the loom has them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec

from cantrip_acp.core.casting.result import CastResult, without_calls
from cantrip_acp.core.history.continuation import rebuild_context
from cantrip_acp.crystals.contract import CrystalBase
from cantrip_acp.loom.records.turn_parts import joined
from cantrip_acp.text.defaults import complete
from cantrip_acp.text.json_data import thaw
from cantrip_acp.types.records import TERMINATIONS, CastRecord, Output, Turn, Utterance, UtteranceRecord, new_id, now

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cantrip_acp.core.casting.query_stream import QueryStream
    from cantrip_acp.core.casting.turn_builder import TurnBuilder
    from cantrip_acp.core.history.continuation import Point
    from cantrip_acp.core.state import CastState

_ENDED = {
    "cancelled": "Cancelled",
    "parent_terminated": "Ended with its parent",
    "refusal": "The crystal refused",
    "error": "Failed",
    "output_limit": "The provider cut the answer at its limit",
}
"""Words for truncations that no ward caused."""


class CastLog:
    """Writes the records of one cast and updates the context to match."""

    def __init__(self, cast: CastState, resumed: Point | None, reference: Any) -> None:
        self._resumed = resumed
        self._reference = reference
        self.cast = cast
        self.entity = cast.entity
        self.ended = False
        """Whether the last turn, or the partial answer written instead of one, has ended the cast."""
        self.end_record: CastRecord | None = None
        self._gate_counts: Counter[str] = Counter()
        self._last_text: str | None = None

    def start(self) -> None:
        """Write the start of the cast. If it continues another cast, first take over that cast's context and place in the
        loom."""
        entity, parent, resumed = self.entity, self.entity.parent, self._resumed
        if resumed is not None and resumed.taken:
            entity.context = rebuild_context(entity, resumed)
            entity.last_turn = resumed.turn_id
        entity.loom.lock_cast(self.cast.id)
        start = entity.loom.append(
            CastRecord(
                id=self.cast.id,
                event="start",
                entity_id=entity.id,
                cantrip_id=entity.cantrip.id,
                trace_id=self.cast.trace.trace_id,
                timestamp=now(),
                intent=self.cast.intent,
                attributes={
                    "crystal": entity.crystal.name,
                    "model": entity.crystal.model,
                    **({} if complete(entity.crystal, CrystalBase).samples else {"sampled": False}),
                    **self.cast.trace.attributes,
                },
                parent_turn_id=parent.turn_id if parent is not None else None,
                parent_call_id=parent.call_id if parent is not None else msgspec.UNSET,
                parent_call_index=msgspec.UNSET if parent is None or parent.index is None else parent.index,
                resumes=resumed.cast.id if resumed is not None else msgspec.UNSET,
                reference=msgspec.UNSET if self._reference is None else self._reference,
            )
        )
        self.cast.intent = start.intent or ""

    def utterance(self, turn: TurnBuilder) -> None:
        """Write the utterance before acting on it, so that a crash cannot make anything run twice.

        Skipped for a loom in memory, which ends with the process.
        """
        entity = self.entity
        if entity.loom.location is not None and turn.has_effects:
            entity.loom.append(turn.utterance_record(parent_id=entity.last_turn, sequence=entity.sequence + 1))

    def turn(self, turn: TurnBuilder, reason: str | None) -> Turn:
        """Write a whole turn, and add it to the messages."""
        entity = self.entity
        record = self._append(turn.close(reason=reason, parent_id=entity.last_turn, sequence=entity.sequence + 1))
        self.cast.turns += 1
        # The crystal spoke once, so it sees one observation, even if delegations split the turn.
        entity.context.add(record if not turn.parts else joined((*turn.parts, record)))
        if record.utterance.content:
            self._last_text = record.utterance.content
        return record

    def part(self, turn: TurnBuilder, output: Output | None) -> Turn:
        """Write a turn up to the delegation that it has reached."""
        entity = self.entity
        record = self._append(turn.close_part(parent_id=entity.last_turn, sequence=entity.sequence + 1, output=output))
        self.utterance(turn)
        return record

    def _append(self, record: Turn) -> Turn:
        entity = self.entity
        record = entity.loom.append(record)
        entity.sequence += 1
        entity.last_turn = record.id
        self._gate_counts.update(record.gate_calls)
        return record

    def partial(self, stream: QueryStream | None, reason: str) -> None:
        """Write the part of an answer that was streamed before the cast stopped.

        It is not a turn; the next query continues from it. It is also written without text, so that the crystal sees that the
        last message of its user had no answer.
        """
        if self.ended:
            return
        self.ended = True
        entity = self.entity
        record = UtteranceRecord(
            new_id("u"),
            entity.last_turn,
            entity.cantrip.id,
            entity.id,
            self.cast.id,
            entity.sequence + 1,
            stream.streamed() if stream is not None else Utterance(),
            usage=self.cast.query.extra_usage,
            model=entity.crystal.model if stream is not None else None,
            stop_reason=reason,
            partial=True,
            voided=tuple(self.cast.query.voided),
        )
        record = entity.loom.append(record)
        entity.context.interrupt(record)
        if record.utterance.content:
            self._last_text = record.utterance.content

    def end(
        self,
        reason: str,
        result: Any,
        error: BaseException | None,
        *,
        unenforced: Sequence[str],
        faults: Sequence[str],
        withdrawn: bool,
    ) -> CastResult:
        """Write the end of the cast. ``unenforced``: wards that were not enforced; ``faults``: errors in the code of gates."""
        entity = self.entity
        terminated = reason in TERMINATIONS
        warnings = (*unenforced, *entity.sources.problems, *faults)
        summary = None if terminated else self._summary(reason, unenforced)
        self.end_record = entity.loom.append(
            CastRecord(
                id=self.cast.id,
                event="end",
                entity_id=entity.id,
                cantrip_id=entity.cantrip.id,
                trace_id=self.cast.trace.trace_id,
                timestamp=now(),
                result=result if terminated else None,
                summary=summary,
                reason=reason,
                error=f"{type(error).__name__}: {error}" if error is not None else None,
                terminated=terminated,
                truncated=not terminated,
                turns=self.cast.turns,
                usage=self.cast.spent.usage.record()
                | (
                    {"children": self.cast.spent.children_usage.record()}
                    if self.cast.spent.children_usage is not None
                    else {}
                ),
                withdrawn=withdrawn or msgspec.UNSET,
                warnings=warnings or msgspec.UNSET,
            )
        )
        return CastResult(
            # A copy, so that callers who change the result do not change the record.
            thaw(result) if terminated else None,
            terminated,
            not terminated,
            reason,
            self.cast.spent.usage,
            self.cast.turns,
            entity.id,
            self.cast.id,
            self.cast.trace.trace_id,
            self.end_record.summary,
            entity.loom.location,
            self.cast.spent.children_usage,
            self.end_record.warnings or (),
        )

    def _summary(self, reason: str, warnings: Sequence[str]) -> str:
        """A summary of what was done before the cast was cut off, made by rule and without a query (LOOP-4)."""
        how = _ENDED.get(reason, f"Stopped by {reason}")
        parts = [f"{how} after {self.cast.turns} turn{'s' if self.cast.turns != 1 else ''}.", *warnings]
        if self._gate_counts:
            parts.append("Gates called: " + ", ".join(f"{g} ×{n}" for g, n in self._gate_counts.most_common(8)) + ".")
        if words := without_calls(self._last_text or ""):
            parts.append(f"Last words: {words[:300]}{'…' if len(words) > 300 else ''}")
        return " ".join(parts)
