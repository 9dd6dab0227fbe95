"""Past calls: lists the calls of a recorded utterance with the ids, the order and the parents that they had when they ran.

An id contains the turn in which the call began. If the utterance delegated, it has several turns, and the result may
be in a later one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from cantrip_acp.loom.loom import Loom
    from cantrip_acp.loom.records.turn import GateRecord, Output, Turn
    from cantrip_acp.mediums.contract import Medium


class PastProgram(NamedTuple):
    """A command or cell. ``output`` is None where it was stopped without any. ``done``: it ended with a call of `done`."""

    call_id: str
    tool: str
    text: str
    output: Output | None
    done: bool = False


class PastGate(NamedTuple):
    """A gate call. ``via`` is the id of the program that made it, None where the crystal itself did."""

    call_id: str
    record: GateRecord
    via: str | None


def calls_of(loom: Loom, turn: Turn, medium: Medium) -> Iterator[PastProgram | PastGate]:
    """The calls of a whole utterance, in the order of its tool calls. The calls that a program made follow the program."""
    parts = _parts(loom, turn)
    outputs = iter(_outputs(turn))
    begun = _programs_begun(parts)
    direct: dict[str, tuple[str, GateRecord]] = {}
    inner: dict[str | int | None, list[tuple[str, GateRecord]]] = {}
    for call_id, record in _ids(parts, turn.observation.results):
        if record.tool_call_id is not None:
            direct[record.tool_call_id] = (call_id, record)
        else:
            inner.setdefault(_caller(record), []).append((call_id, record))
    for index, call in enumerate(turn.utterance.tool_calls):
        if medium.tool is not None and call.gate == medium.tool:
            program = f"{next(begun, parts[-1].id)}.{index}"
            called = [*inner.pop(program, ()), *inner.pop(index, ()), *inner.pop(None, ())]
            done = any(record.gate == "done" and not record.is_error for _, record in called)
            yield PastProgram(program, call.gate, medium.code(call) or "", next(outputs, None), done)
            for call_id, record in called:
                yield PastGate(call_id, record, program)
        elif call.id in direct:
            yield PastGate(*direct[call.id], None)
    for left in inner.values():
        for call_id, record in left:
            yield PastGate(call_id, record, None)


def _caller(record: GateRecord) -> str | int | None:
    """The program that made a call: its id. In looms of earlier versions its position, or None where there was only
    one program."""
    if isinstance(record.parent_call_id, str):
        return record.parent_call_id
    return record.via if isinstance(record.via, int) else None


def _parts(loom: Loom, turn: Turn) -> list[Turn]:
    """The turns of one utterance, first one first."""
    if turn.continues is None:
        return [turn]
    parts = [loom.turn(turn.id)]
    while parts[0].id != turn.continues and parts[0].parent_id is not None:
        parts.insert(0, loom.turn(parts[0].parent_id))
    return parts


def _ids(parts: Sequence[Turn], results: Sequence[GateRecord]) -> list[tuple[str, GateRecord]]:
    """Each result with the id of its call, in the order of the calls. The loom keeps results in the order in which they came.

    Looms of earlier versions have no ids. There a result belongs to the first call of its gate that has no result yet.
    """
    called = [(f"{part.id}.g{number}", name) for part in parts for number, name in enumerate(part.gate_calls)]
    if [record.call_id for record in results] == [call_id for call_id, _ in called]:
        return [(call_id, record) for (call_id, _), record in zip(called, results, strict=True)]
    found: list[tuple[int, str, GateRecord]] = []
    for number, record in enumerate(results):
        own = record.call_id if isinstance(record.call_id, str) else None
        at = ((n for n, each in enumerate(called) if (each[1] == record.gate if own is None else each[0] == own)), None)
        place = next(*at)
        if place is None:
            found.append((len(called) + number, own or f"{parts[-1].id}.r{number}", record))
        else:
            found.append((place, called[place][0], record))
            called[place] = ("", "")
    return [(call_id, record) for _, call_id, record in sorted(found, key=lambda each: each[0])]


def _programs_begun(parts: Sequence[Turn]) -> Iterator[str]:
    """The turn in which each program began, in order. A program that delegates is left unfinished, and the next turn
    continues it."""
    going_on = False
    for part in parts:
        for output in _outputs(part):
            if not going_on:
                yield part.id
            going_on = output.unfinished is True


def _outputs(turn: Turn) -> Sequence[Output]:
    observation = turn.observation
    if isinstance(observation.outputs, tuple):
        return observation.outputs
    return () if observation.output is None else (observation.output,)
