"""Detects the format of an input and imports it."""

from __future__ import annotations

from pathlib import Path

from cantrip_acp.loom.loom import Loom
from cantrip_acp.loom.stores.address import is_address, is_sqlite
from cantrip_acp.training.importing import acp, looms, verifiers
from cantrip_acp.training.importing.importer import Weaver
from cantrip_acp.training.importing.trace_file import ImportProblem, Report, objects

KINDS = ("loom", "verifiers", "acp")


def kind_of(where: str) -> str:
    """The format of an input, from its address or its first line. Raises `ImportProblem` where it is none of
    `KINDS`."""
    if is_address(where) or is_sqlite(where):
        return "loom"
    for place, first in objects(Path(where)):
        if first.get("type") == "loom":
            return "loom"
        if acp.is_message(first):
            return "acp"
        if "nodes" in first or "traces" in first:
            return "verifiers"
        raise ImportProblem(
            place, "neither a loom's record, nor a verifiers trace or episode, nor a message of JSON-RPC"
        )
    raise ImportProblem(where, "there is nothing in it")


def take(where: str, into: Loom, kind: str | None = None) -> Report:
    """Import one input into a loom. Raises `ImportProblem`, and `LoomError` where the loom cannot be written."""
    match kind or kind_of(where):
        case "loom":
            with Loom.open(where, readonly=True) as source:
                if source.header is None and source.problems and not len(source):
                    raise ImportProblem(where, f"this is no loom: {source.problems[0]}")
                return looms.merge(source, into)
        case "acp":
            return acp.take(Path(where), Weaver(into))
        case _:
            return verifiers.take(Path(where), Weaver(into))
