"""Merges one loom into another: every record with its id, from any store to any store."""

from __future__ import annotations

import hashlib

from cantrip_acp.core.errors import LoomError, LoomWriteError
from cantrip_acp.loom.loom import Loom
from cantrip_acp.loom.records.turn import CantripRecord, CastRecord, LaterRecord, LoomHeader, Record, RewardRecord, Turn
from cantrip_acp.loom.stores.rows import encoded
from cantrip_acp.training.importing.trace_file import Report


def merge(source: Loom, into: Loom) -> Report:
    """Add what ``into`` lacks. Ids and order stay, and damage in the source is reported. An empty loom becomes a copy.

    Raises `LoomWriteError` where the store fails.
    """
    report = Report()
    known = {_key(record): _digest(record) for record in into.records()}
    lost: set[str] = set()
    for record, body in source.stored():
        if isinstance(record, LoomHeader):
            if into.header is None:
                into.append(record)
            continue
        key = _key(record)
        if key in known:
            report.known += isinstance(record, Turn)
            if known[key] != _digest(record):
                report.note(f"records that are there already with another content; those stay ({key[0]})")
            continue
        if isinstance(record, Turn) and record.parent_id is not None and record.parent_id not in into:
            lost.add(record.id)
            report.note("turns whose parent is lost in the source")
            continue
        if isinstance(record, RewardRecord) and record.turn_id in lost:
            report.note("rewards of turns that were not taken")
            continue
        try:
            into.append(record, body)
        except LoomWriteError:
            raise
        except LoomError as problem:
            if isinstance(record, Turn):
                lost.add(record.id)
                report.note(f"a turn was not taken: {problem}")
                continue
            raise
        known[key] = _digest(record)
        report.turns += isinstance(record, Turn)
        report.casts += isinstance(record, CastRecord) and record.event == "start"
        report.rewards += isinstance(record, RewardRecord)
        if isinstance(record, LaterRecord):
            report.note(f"records of a later version, taken as they are ({record.name})")
    for problem_ in source.problems:
        report.note(f"damage in the source: {problem_}")
    return report


def _digest(record: Record | LaterRecord) -> bytes:
    return hashlib.sha256(encoded(record)).digest()


def _key(record: Record | LaterRecord) -> tuple[str, str | bytes]:
    """The identity of a record: its kind and id, or its whole content where it has no id."""
    if isinstance(record, Turn | CantripRecord):
        return (type(record).__name__.removesuffix("Record").lower(), record.id)
    if isinstance(record, CastRecord):
        return (f"cast {record.event}", record.id)
    return ("", _digest(record))
