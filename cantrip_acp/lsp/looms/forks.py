"""Finds the looms of the sessions that were forked from each other, and the first message in which each differs from one of
them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from cantrip_acp.text import codecs
from cantrip_acp.types.records import CastRecord

SESSION = ".session.json"
LOOM = ".loom.jsonl"
_MOST = 200


class _Fork(msgspec.Struct, rename="camel"):
    session_id: str


class _Session(msgspec.Struct):
    """The facts about a fork in a session's metadata file."""

    id: str
    forked_from: _Fork | None = None


def related(path: Path) -> list[Path]:
    """The looms of sessions that are related to this loom's session by forks, directly or through others."""
    decoder = codecs.json_decoder(_Session)
    groups: dict[str, set[str]] = {}
    for note in path.parent.glob(f"*{SESSION}"):
        try:
            session = decoder.decode(note.read_bytes())
        except (OSError, UnicodeError, msgspec.DecodeError):
            continue
        if session.forked_from is None:
            continue
        both = {session.id, session.forked_from.session_id}
        for each in tuple(both):
            both |= groups.get(each, set())
        for each in both:
            groups[each] = both
    name = path.name.removesuffix(LOOM)
    found = [
        path.with_name(f"{each}{LOOM}") for each in groups.get(name, ()) if each != name and not set(each) & set("/\\")
    ]
    return sorted(each for each in found if each.is_file())[:_MOST]


def difference(path: Path, other: Path) -> dict[str, Any]:
    """The first message of ``other`` that ``path`` lacks, its time, and the message that ``path`` has instead; null if there
    is none."""
    own, theirs = _messages(path), _messages(other)
    message = next((each for cast, each in theirs.items() if cast not in own), None)
    instead = next((each for cast, each in own.items() if cast not in theirs), None)
    return {
        "message": message.intent if message is not None else None,
        "sent": message.timestamp if message is not None else None,
        "instead": instead.intent if instead is not None else None,
    }


def _messages(path: Path) -> dict[str, CastRecord]:
    """The start records of casts that are not of children, by id."""
    decoder, found = codecs.json_decoder(CastRecord), {}
    try:
        with path.open("rb") as file:
            for line in file:
                if not line.startswith(b'{"type":"cast"'):
                    continue
                try:
                    record = decoder.decode(line)
                except (msgspec.DecodeError, UnicodeError):
                    continue
                if record.event == "start" and record.parent_turn_id is None:
                    found[record.id] = record
    except OSError:
        pass  # It was removed meanwhile.
    return found
