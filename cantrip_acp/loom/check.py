"""What `Loom.check` (`cantrip loom check`) finds beside records that cannot be read or were changed, which the store reports:
pieces of state and cantrips that are missing although every record can be read."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from cantrip_acp.loom.records.tree import Problem
from cantrip_acp.loom.snapshots import SnapshotChunks
from cantrip_acp.types.errors import LoomError

if TYPE_CHECKING:
    from cantrip_acp.loom.base import BaseLoom

_KEY = re.compile(r"[0-9a-f]{40}\Z")
_KEY_BYTES = 20
_LEAST_PIECE = 2_048
_DEEPEST = 8


def missing_records(loom: BaseLoom) -> Iterator[Problem]:
    """Yield what is missing or changed. Reads every snapshot. The store reports records that cannot be read at all."""
    yield from _cantrips(loom)
    whole: set[str] = set()
    # Check every piece by itself first: a later state also uses pieces of earlier ones.
    for position in dict.fromkeys(loom.pieces.values()):
        found = _read(loom, position)
        changed = 0
        for key, text in _pieces(found).items():
            if _as_it_was(key, text):
                whole.add(key)
            else:
                changed += 1
        if changed:
            told = f"{changed:,} piece{'s are' if changed > 1 else ' is'} not as written"
            yield Problem(f"the snapshot after turn {found.get('turn_id')!r}: {told}", None, position)
    pieces = SnapshotChunks(loom)
    for turn_id, position in loom.snapshots.items():
        missing = _missing(_read(loom, position).get("data"), whole, pieces)
        if missing:
            told = f"{missing:,} of its pieces {'are' if missing > 1 else 'is'} lost or changed; a fork runs the code again"
            yield Problem(f"the state after turn {turn_id!r} cannot be restored: {told}", None, position)


def _cantrips(loom: BaseLoom) -> Iterator[Problem]:
    seen: set[str] = set()
    for turn_id, place in loom.places.items():
        if place.cantrip_id in seen:
            continue
        seen.add(place.cantrip_id)
        if loom.cantrip(place.cantrip_id) is None:
            yield Problem(
                f"turn {turn_id!r} names a cantrip that is not here: {place.cantrip_id!r}", None, place.position
            )


def _missing(data: Any, whole: set[str], pieces: SnapshotChunks) -> int:
    """The number of pieces of a state that are missing."""
    if not isinstance(data, dict) or data.get("error") or "chunks" not in data:
        return 0
    keys, levels, size = data.get("chunks"), data.get("levels", 0), data.get("size", 0)
    if not isinstance(keys, list) or not isinstance(levels, int) or not isinstance(size, int):
        return 1
    for _ in range(min(levels, _DEEPEST)):
        gone = sum(key not in whole for key in keys)
        if gone or len(keys) > size // _LEAST_PIECE + 1:
            return gone or 1
        listed = b"".join(map(pieces.get, keys))
        keys = [listed[at : at + _KEY_BYTES].hex() for at in range(0, len(listed), _KEY_BYTES)]
    return sum(key not in whole for key in keys)


def _read(loom: BaseLoom, position: int) -> dict[str, Any]:
    try:
        record = loom.snapshot_at(position)
    except LoomError:
        return {}
    return {"turn_id": record.turn_id, "data": record.data}


def _pieces(found: dict[str, Any]) -> dict[str, Any]:
    data = found.get("data")
    pieces = data.get("pieces") if isinstance(data, dict) else None
    return pieces if isinstance(pieces, dict) else {}


def _as_it_was(key: str, text: Any) -> bool:
    if not _KEY.match(key):
        # This version did not make this key, so the piece cannot be checked.
        return True
    try:
        data = base64.b64decode(text, validate=True)
    except (TypeError, ValueError, binascii.Error):
        return False
    return hashlib.blake2b(data, digest_size=_KEY_BYTES).hexdigest() == key
