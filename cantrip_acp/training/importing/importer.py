"""Writes imported records to a loom, each only once; existing records are not changed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from cantrip_acp.loom.base import as_kept
from cantrip_acp.loom.loom import Loom
from cantrip_acp.training.importing.json_lines import Report, stable
from cantrip_acp.types.records import CastRecord, ContextRecord, RewardRecord, Turn, UtteranceRecord


class RecordWriter:
    """Adds records to one loom."""

    def __init__(self, loom: Loom) -> None:
        self.loom = loom
        self.report = Report()
        self._casts = set(loom.cast_starts())
        self._cantrips: dict[str, tuple[Any, Any, Any]] = {}
        self._roots: dict[str, Turn] = {}
        self._waiting: dict[str, list[CastRecord | ContextRecord | UtteranceRecord]] = {}

    def cantrip(self, call: Mapping[str, Any], circle: Mapping[str, Any], shown: Mapping[str, Any]) -> str:
        """The id of a call and a circle. They are written before their first new turn."""
        text = json.dumps([call, circle], sort_keys=True, ensure_ascii=True, default=str)
        cantrip_id = f"cantrip_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
        self._cantrips[cantrip_id] = (call, circle, dict(shown))
        return cantrip_id

    def root(self, cantrip_id: str, entity_id: str, spawner: str | None = None) -> str:
        """The id of the ``call`` turn above an entity's turns; for a child, its parent is the turn that spawned the
        child."""
        own = stable("t", "call", cantrip_id, spawner or "", entity_id if spawner else "")
        self._roots.setdefault(own, Turn(own, spawner, cantrip_id, entity_id, None, role="call"))
        return own

    def cast(
        self, start: CastRecord, context: Sequence[ContextRecord], before: Sequence[CastRecord | UtteranceRecord] = ()
    ) -> None:
        """Register a cast, which is written before its first new turn. ``before`` are earlier casts without a turn, each with
        its partial utterance."""
        if start.id not in self._casts:
            self._waiting.setdefault(start.id, [*before, start, *context])

    def turn(self, turn: Turn) -> bool:
        """Add a turn. Returns False if it is already there. Raises `LoomError` if its parent is missing."""
        if turn.id in self.loom:
            self.report.known += 1
            if not _alike(self.loom.turn(turn.id), as_kept(turn)):
                self.report.note("turns that are there already with another content; those stay as they are")
            return False
        known = self._cantrips.pop(turn.cantrip_id, None)
        if known is not None:
            self.loom.record_cantrip(turn.cantrip_id, *known)
        root = self._roots.get(turn.parent_id or "")
        if root is not None and root.id not in self.loom:
            self.loom.append(root)
        added = ""
        for record in self._waiting.pop(turn.cast_id or "", ()):
            if isinstance(record, UtteranceRecord):
                if record.cast_id == added:
                    self.loom.append(record)
            elif isinstance(record, ContextRecord):
                self.loom.append(record)
            elif record.id not in self._casts:
                self._casts.add(record.id)
                added = record.id
                self.loom.append(record)
                self.report.casts += 1
        self.loom.append(turn)
        self.report.turns += 1
        return True

    def end(self, last: Turn, when: str, result: Any, *, error: str | None = None, turns: int = 0) -> None:
        """Write the end of the cast of its ``last`` turn, if its start is in the loom and it has no end."""
        if last.cast_id is None or last.cast_id not in self._casts or self.loom.cast_end(last.cast_id) is not None:
            return
        end = CastRecord(
            last.cast_id,
            "end",
            last.entity_id,
            last.cantrip_id,
            None,
            when,
            result=result,
            reason=last.reason,
            error=error,
            terminated=last.terminated,
            truncated=last.truncated,
            turns=turns,
        )
        self.loom.append(end)

    def reward(self, turn_id: str, reward: float, by: str, note: str | None) -> None:
        """Give a turn a reward, unless it already has exactly this one."""
        given = self.loom.assigned(turn_id)
        if not any(r.reward == reward and r.by == by and r.note == note for r in given):
            self.loom.append(RewardRecord(turn_id, reward, by, note, ""))
            self.report.rewards += 1


def _alike(one: Turn, other: Turn) -> bool:
    """Whether two turns have the same text and calls. Other fields, such as numbers, may be stored differently."""
    same = one.utterance.content == other.utterance.content
    return same and [(c.gate, c.args) for c in one.utterance.tool_calls] == [
        (c.gate, c.args) for c in other.utterance.tool_calls
    ]
