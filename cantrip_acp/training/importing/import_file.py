"""Detects the format of an input and imports it."""

from __future__ import annotations

import hashlib
from pathlib import Path

from cantrip_acp.loom.loom import Loom
from cantrip_acp.loom.stores.address import is_address, is_sqlite
from cantrip_acp.loom.stores.rows import encoded
from cantrip_acp.training.importing import acp, atif, inspect_log, verifiers
from cantrip_acp.training.importing.importer import RecordWriter
from cantrip_acp.training.importing.json_lines import ImportProblem, Report, documents
from cantrip_acp.types.errors import LoomError, LoomWriteError
from cantrip_acp.types.records import CantripRecord, CastRecord, LaterRecord, LoomHeader, Record, RewardRecord, Turn

KINDS = ("loom", "verifiers", "acp", "atif", "inspect")


def detect_format(where: str) -> str:
    """The format of an input, from its address or its first line. Raises `ImportProblem` if it is none of
    `KINDS`."""
    if is_address(where) or is_sqlite(where):
        return "loom"
    if inspect_log.is_archive(Path(where)):
        return "inspect"
    for place, first in documents(Path(where)):
        if first.get("type") == "loom":
            return "loom"
        if acp.is_message(first):
            return "acp"
        if atif.is_trajectory(first):
            return "atif"
        if inspect_log.is_log(first):
            return "inspect"
        if "nodes" in first or "traces" in first:
            return "verifiers"
        raise ImportProblem(
            place,
            "this cannot be imported. It must be a record of a loom, a trace or an episode of verifiers, an ATIF "
            "trajectory, a log of Inspect, or a JSON-RPC message",
        )
    raise ImportProblem(where, "there is nothing in it")


def import_file(where: str, into: Loom, kind: str | None = None) -> Report:
    """Import one input into a loom. Raises `ImportProblem`, and `LoomError` if the loom cannot be written."""
    match kind or detect_format(where):
        case "loom":
            with Loom.open(where, readonly=True) as source:
                if source.header is None and source.problems and not len(source):
                    raise ImportProblem(where, f"this is not a loom: {source.problems[0]}")
                return merge(source, into)
        case "acp":
            return acp.import_transcript(Path(where), RecordWriter(into))
        case "inspect":
            return inspect_log.import_log(Path(where), RecordWriter(into))
        case "atif":
            return atif.import_trajectories(Path(where), RecordWriter(into))
        case _:
            return verifiers.import_traces(Path(where), RecordWriter(into))


def merge(source: Loom, into: Loom) -> Report:
    """Add the records that ``into`` lacks. Ids and order stay, and damage in the source is reported. An empty loom becomes a
    copy.

    Raises `LoomWriteError` if the store fails.
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
    """The identity of a record: its kind and id, or its whole content if it has no id."""
    if isinstance(record, Turn | CantripRecord):
        return (type(record).__name__.removesuffix("Record").lower(), record.id)
    if isinstance(record, CastRecord):
        return (f"cast {record.event}", record.id)
    return ("", _digest(record))
