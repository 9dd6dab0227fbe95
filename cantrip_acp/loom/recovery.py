"""Crash recovery: writes the missing turn of an utterance whose process ended before the turn was written.

An utterance is recorded before the circle acts on it. After a crash nobody knows which of its calls ran, wholly or in
part. So each call gets an error as its answer, which the crystal reads and can look into; no call is run a second time.
Only a child that had ended is known to have ended: its answer is that of the call.
`Loom.open` calls `complete_interrupted`; readers use `missing`.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from cantrip_acp.loom.base import BaseLoom
from cantrip_acp.loom.query.thread import PROCESS_ENDED
from cantrip_acp.loom.records.turn_parts import together
from cantrip_acp.text.logs import logger
from cantrip_acp.types.errors import LoomError
from cantrip_acp.types.records import (
    CastRecord,
    GateRecord,
    Observation,
    Output,
    Turn,
    TurnMetadata,
    Utterance,
    UtteranceRecord,
    created_at,
    metadata_of,
    now,
)
from cantrip_acp.types.usage import NO_USAGE, Usage

log = logger(__name__)

ENDED = "interrupted: the process ended before this call had; it may have had its effect"
"""The error that replaces the result of each call."""

CUT_OFF = "interrupted: the process ended while the child was at work; what it had done is in the loom"
"""The error that replaces the result of a delegation."""


def complete_interrupted(loom: BaseLoom) -> list[Turn]:
    """Write the missing turns of all utterances whose process has ended, and the ends of their casts; return those
    turns.

    Each cast is locked meanwhile, so only one process writes its turn. An utterance that cannot be completed (a turn
    above it is damaged) stays as it is.
    """
    settled: list[Turn] = []
    for record in _interrupted_utterances(loom):
        with _locked_cast(loom, record.cast_id) as held:
            if held and any(each.id == record.id for each in loom.unfinished()):
                try:
                    turn = _turn(loom, record)
                    loom.append(turn)
                    settled.append(turn)
                except LoomError as problem:
                    _raise_incomplete(record, problem)
    for cast_id in _interrupted_children(loom):
        with _locked_cast(loom, cast_id) as held:
            end = _end(loom, cast_id, {}, {}) if held and loom.cast_end(cast_id) is None else None
            if end is not None:
                loom.append(end)
    # A process may have written such a turn and been killed before it wrote the cast's end.
    for cast_id, turn_id in _last_turns(loom).items():
        last = loom.turn(turn_id)
        if last.truncated and last.reason == "error":
            with _locked_cast(loom, cast_id) as held:
                end = _end(loom, cast_id, {}, {}) if held and loom.cast_end(cast_id) is None else None
                if end is not None:
                    loom.append(end)
    return settled


def missing(loom: BaseLoom) -> Iterator[Turn | CastRecord]:
    """Yield the records that `complete_interrupted` would write, for a reader."""
    turns: dict[str, Turn] = {}
    ends: dict[str, CastRecord] = {}
    unfinished = _interrupted_utterances(loom)
    speaking = {record.cast_id for record in unfinished}
    for cast_id in _interrupted_children(loom):
        if cast_id not in speaking and (end := _end(loom, cast_id, turns, ends)) is not None:
            ends[end.id] = end
            yield end
    for record in unfinished:
        try:
            turns[record.id] = turn = _turn(loom, record)
            yield turn
            end = _end(loom, record.cast_id, turns, ends) if loom.cast_end(record.cast_id) is None else None
            if end is not None:
                ends[end.id] = end
                yield end
        except LoomError as problem:
            _raise_incomplete(record, problem)


def _interrupted_utterances(loom: BaseLoom) -> list[UtteranceRecord]:
    """The utterances whose process has ended, last one first: a child began after the utterance that called it."""
    said = loom.unfinished()
    if not said:
        return []
    running = loom.running_casts({each.cast_id for each in said})
    # A process that no longer runs writes nothing more. Read again, because it may have written something before it
    # ended.
    return [each for each in reversed(loom.unfinished()) if each.cast_id not in running]


def _interrupted_children(loom: BaseLoom) -> list[str]:
    """The casts of children that have no end although their process has ended, last one first. Such a child was between two
    turns; what it spent is part of what its parents spent (PROD-3)."""
    found = [s.id for s in loom.cast_starts().values() if s.parent_turn_id is not None and loom.cast_end(s.id) is None]
    running = loom.running_casts(set(found)) if found else set()
    return [each for each in reversed(found) if each not in running]


@contextlib.contextmanager
def _locked_cast(loom: BaseLoom, cast_id: str) -> Iterator[bool]:
    """Lock a cast. Yields False if it runs; otherwise nobody else can start it meanwhile."""
    held = loom.lock_cast(cast_id)
    try:
        if held:
            loom.refresh()
        yield held
    finally:
        if held:
            loom.unlock_cast(cast_id)


def _raise_incomplete(record: UtteranceRecord, problem: LoomError) -> None:
    log.warning("what entity %s said last stays unfinished: %s", record.entity_id, problem)


def _last_turns(loom: BaseLoom) -> dict[str, str]:
    """The last turn of each cast that has no end and does not run."""
    there = loom.open_casts - loom.running_casts()
    return {place.cast_id: i for i, place in loom.places.copy().items() if place.cast_id in there} if there else {}


def _turn(loom: BaseLoom, record: UtteranceRecord) -> Turn:
    parts: list[Turn] = []
    utterance, gates, program = record.utterance, record.gates, record.program
    if record.continues is not None:
        path = loom.path(record.parent_id)
        if record.continues not in path:
            raise LoomError(
                f"turn {record.id!r} continues {record.continues!r}, which is not one of the turns before it"
            )
        parts = [loom.turn(i) for i in path[path.index(record.continues) :]]
        utterance = parts[0].utterance
    results, outputs = _missing_answers(loom, record.id, utterance, gates, program, parts)
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
        # A call that began before a delegation is already listed in the part of the turn before it.
        gate_calls=tuple(each.gate for each in results if str(each.call_id).startswith(f"{record.id}.g")),
        metadata=_metadata(loom, record),
        truncated=True,
        reason="error",
    )


def _metadata(loom: BaseLoom, record: UtteranceRecord) -> TurnMetadata:
    """The known metadata of an interrupted turn: its id contains the time of its beginning; its duration is unknown."""
    start, _ = loom.cast_of(record.cast_id)
    model = start.attributes.get("model") if start is not None else None
    used = record.usage
    return metadata_of(
        used,
        duration_ms=0.001,
        timestamp=created_at(record.id) or now(),
        model=record.model or (model if isinstance(model, str) else None),
        trace_id=start.trace_id if start is not None else None,
        stop_reason=record.stop_reason or msgspec.UNSET,
        request=record.request or msgspec.UNSET,
        fingerprint=record.fingerprint or msgspec.UNSET,
        voided=record.voided or msgspec.UNSET,
        query=record.query or msgspec.UNSET,
    )


def _missing_answers(
    loom: BaseLoom, turn_id: str, utterance: Utterance, gates: Sequence[str], program: str | None, parts: Sequence[Turn]
) -> tuple[tuple[GateRecord, ...], tuple[Output, ...]]:
    """Answers for the calls that have no answer in the recorded parts."""
    answered = {r.tool_call_id for part in parts for r in part.observation.results}
    ran = sum(1 for part in parts for output in _outputs(part) if output.unfinished is not True)
    # A part can name one call that has no answer: the delegation that ended the part.
    begun = [(f"{part.id}.g{number}", name) for part in parts for number, name in enumerate(part.gate_calls)]
    for record in (record for part in parts for record in part.observation.results):
        matches = [each for each in begun if record.call_id in (each[0], msgspec.UNSET) and each[1] == record.gate]
        if matches:
            begun.remove(matches[0])
    results: list[GateRecord] = []
    outputs: list[Output] = []
    ended = 0
    for call, gate in zip(utterance.tool_calls, gates, strict=False):
        if gate == program:
            ran -= 1
            if ran < 0:
                outputs.append(Output(error=ENDED))
        elif call.id not in answered:
            cut_off = next((each for each in begun if each[1] == gate), None)
            if cut_off is not None:
                begun.remove(cut_off)
                call_id, why = cut_off[0], CUT_OFF
            else:
                call_id, why = f"{turn_id}.g{ended}", ENDED
                ended += 1
            child = _ended_child(loom, call_id) if gate == "call_agent" else None
            result, failed = (why, True) if child is None else (child.result, False)
            results.append(GateRecord(gate, _decoded_args(call.args), result, failed, call.id, call_id=call_id))
    return tuple(results), tuple(outputs)


def _ended_child(loom: BaseLoom, call_id: str) -> CastRecord | None:
    """The end of the child that a call started, if the child had answered. Its answer is that of the call."""
    for start in loom.cast_starts().values():
        if start.parent_call_id == call_id:
            end = loom.cast_end(start.id)
            return end if end is not None and end.terminated else None
    return None


def _outputs(turn: Turn) -> Iterator[Output]:
    observation = turn.observation
    if isinstance(observation.outputs, tuple):
        yield from observation.outputs
    elif observation.output is not None:
        yield observation.output


def _decoded_args(args: str) -> Any:
    try:
        return json.loads(args or "{}")
    except (ValueError, RecursionError):
        return args


def _end(loom: BaseLoom, cast_id: str, turns: dict[str, Turn], ends: dict[str, CastRecord]) -> CastRecord | None:
    """The end of an interrupted cast, with the usage of its turns and its children. ``turns`` and ``ends`` are not in
    the loom yet. None where the loom lacks the cast's start."""
    start, _ = loom.cast_of(cast_id)
    if start is None:
        return None
    own = loom.bodies(i for i, place in loom.places.copy().items() if place.cast_id == cast_id)
    own += [turn for turn in turns.values() if turn.cast_id == cast_id]
    ids = {each.id for each in own}
    used = [each.metadata.usage for each in own]
    children = [
        Usage.of_record(end.usage)
        for child in loom.cast_starts().values()
        if child.parent_turn_id in ids and (end := ends.get(child.id) or loom.cast_end(child.id)) is not None
    ]
    usage = _sum([*used, *children]).record()
    if children:
        usage["children"] = _sum(children).record()
    return CastRecord(
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
        turns=sum(each.continues is None for each in own),
        usage=usage,
    )


def _sum(usages: Iterable[Usage]) -> Usage:
    return sum(usages, NO_USAGE)
