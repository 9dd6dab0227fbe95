"""What was said when the process ended: its turn, made from the record that was written before the circle acted on it.

Whatever the utterance asked for may have happened, wholly or in part, and nobody knows. So each of its calls has an error
for an answer, which the crystal reads and can look into, and nothing is run a second time.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from typing import Any

import msgspec

from cantrip_acp.crystals.contract import NO_USAGE, Usage
from cantrip_acp.errors import LoomAppendOnly, LoomError
from cantrip_acp.loom.loom import Loom
from cantrip_acp.loom.thread import PROCESS_ENDED
from cantrip_acp.loom.turn import (
    CastRecord,
    GateRecord,
    Observation,
    Output,
    Turn,
    TurnMetadata,
    Utterance,
    UtteranceRecord,
    made,
    metadata_of,
    now,
)
from cantrip_acp.loom.utterances import together

log = logging.getLogger(__name__)

ENDED = "interrupted: the process ended before this call had; it may have had its effect"
"""What is known of each call, in the place of its result."""

CUT_OFF = "interrupted: the process ended while the child was at work; what it had done is in the loom"
"""The same of a delegation."""


def settle(loom: Loom, entities: str | Set[str] | None = None) -> list[Turn]:
    """Write the turns of all utterances that nobody will finish any more, and the ends of their casts.

    ``entities`` limits this where others may be writing the loom: to an entity and the children below it (whoever takes it
    up again holds it alone), or to a set of entities whose writers have ended (`Store.abandoned`). What cannot be settled (a
    turn above it is damaged) stays as it is.
    """
    settled: list[Turn] = []
    # Children began after what called for them.
    for record in reversed(loom.unfinished()):
        try:
            if isinstance(entities, str) and not _below(loom, record, entities):
                continue
            if isinstance(entities, Set) and record.entity_id not in entities:
                continue
            turn = _turn(loom, record)
            try:
                loom.append(turn)
            except LoomAppendOnly:
                # Somebody else who opened the loom at the same moment was faster.
                continue
            settled.append(turn)
            start, _ = loom.cast_of(turn.cast_id or "")
            if start is not None:
                _end(loom, start)
        except LoomError as problem:
            log.warning("what entity %s said last stays unfinished: %s", record.entity_id, problem)
    return settled


def _below(loom: Loom, record: UtteranceRecord, entity_id: str) -> bool:
    """Whether an utterance is an entity's own or that of a child below it; a fork of either is somebody else."""
    speaker, at = record.entity_id, record.parent_id
    while speaker != entity_id:
        if at not in loom:
            return False
        call = loom.places[loom.own(at)[0]]
        if call.role != "call" or call.entity_id != speaker or call.parent_id is None or call.parent_id not in loom:
            return False
        at = call.parent_id
        speaker = loom.places[at].entity_id
    return True


def _turn(loom: Loom, record: UtteranceRecord) -> Turn:
    parts: list[Turn] = []
    utterance, gates, program = record.utterance, record.gates, record.program
    if record.continues is not None:
        path = loom.path(record.parent_id)
        if record.continues not in path:
            raise LoomError(f"turn {record.id!r} goes on with one that is not above it: {record.continues!r}")
        parts = [loom.turn(i) for i in path[path.index(record.continues) :]]
        utterance = parts[0].utterance
    results, outputs = _left(utterance, gates, program, parts)
    return Turn(
        id=record.id,
        parent_id=record.parent_id,
        cantrip_id=record.cantrip_id,
        entity_id=record.entity_id,
        cast_id=record.cast_id,
        sequence=record.sequence,
        continues=record.continues,
        utterance=record.utterance,
        observation=Observation(results, together(outputs), outputs if len(outputs) > 1 else msgspec.UNSET),
        # What was cut off has been named by the part that it ended.
        gate_calls=tuple(each.gate for each in results if each.result != CUT_OFF),
        metadata=_metadata(loom, record),
        truncated=True,
        reason="error",
    )


def _metadata(loom: Loom, record: UtteranceRecord) -> TurnMetadata:
    """What can be known of it: the time when it began is in its id, and nobody knows how long it took."""
    start, _ = loom.cast_of(record.cast_id)
    model = start.attributes.get("model") if start is not None else None
    used = record.usage
    return metadata_of(
        used,
        duration_ms=0.001,
        timestamp=made(record.id) or now(),
        model=record.model or (model if isinstance(model, str) else None),
        trace_id=start.trace_id if start is not None else None,
        stop_reason=record.stop_reason or msgspec.UNSET,
        request=record.request or msgspec.UNSET,
        fingerprint=record.fingerprint or msgspec.UNSET,
        voided=record.voided or msgspec.UNSET,
    )


def _left(
    utterance: Utterance, gates: Sequence[str], program: str | None, parts: Sequence[Turn]
) -> tuple[tuple[GateRecord, ...], tuple[Output, ...]]:
    """An answer for each call that has none in the parts which are in the loom."""
    answered = {r.tool_call_id for part in parts for r in part.observation.results}
    ran = sum(1 for part in parts for output in _outputs(part) if output.unfinished is not True)
    # Of the calls that a part names, the one without an answer is the delegation that ended it.
    named = Counter(name for part in parts for name in part.gate_calls)
    named.subtract(record.gate for part in parts for record in part.observation.results)
    results: list[GateRecord] = []
    outputs: list[Output] = []
    for call, gate in zip(utterance.tool_calls, gates, strict=False):
        if gate == program:
            ran -= 1
            if ran < 0:
                outputs.append(Output(error=ENDED))
        elif call.id not in answered:
            named[gate] -= 1
            why = ENDED if named[gate] < 0 else CUT_OFF
            results.append(GateRecord(gate, _given(call.args), why, True, call.id))
    return tuple(results), tuple(outputs)


def _outputs(turn: Turn) -> Iterator[Output]:
    observation = turn.observation
    if isinstance(observation.outputs, tuple):
        yield from observation.outputs
    elif observation.output is not None:
        yield observation.output


def _given(args: str) -> Any:
    try:
        return json.loads(args or "{}")
    except (ValueError, RecursionError):
        return args


def _end(loom: Loom, start: CastRecord) -> None:
    """The end of a cast that was interrupted, with what its turns and its children used."""
    cast_id = start.id
    if loom.cast_end(cast_id) is not None:
        return
    own = loom.bodies(i for i, place in loom.places.items() if place.cast_id == cast_id)
    ids = {each.id for each in own}
    used = [each.metadata.usage for each in own]
    children = [
        Usage.of_record(end.usage)
        for child in loom.cast_starts().values()
        if child.parent_turn_id in ids and (end := loom.cast_end(child.id)) is not None
    ]
    usage = _sum([*used, *children]).record()
    if children:
        usage["children"] = _sum(children).record()
    loom.append(
        CastRecord(
            id=cast_id,
            event="end",
            entity_id=start.entity_id,
            cantrip_id=start.cantrip_id,
            trace_id=start.trace_id,
            timestamp=now(),
            summary=f"Interrupted in turn {len(own)}: the process ended.",
            reason="error",
            error=PROCESS_ENDED,
            truncated=True,
            turns=len(own),
            usage=usage,
        )
    )


def _sum(usages: Iterable[Usage]) -> Usage:
    return sum(usages, NO_USAGE)
