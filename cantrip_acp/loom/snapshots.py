"""Snapshots of a medium's state: each record stores only the pieces that no earlier record has (LOOM-4).

So the loom grows with the changes of the state, not with its size times the number of turns. The pieces are bytes;
nothing here decodes them.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

from cantrip_acp.loom.base import BaseLoom
from cantrip_acp.types.errors import LoomError, TurnNotFound
from cantrip_acp.types.records import SnapshotRecord, new_id, now

_READ_AT_ONCE = 16
"""Snapshot records that are cached: the pieces of one state are spread over the turns that changed them."""


class SnapshotChunks:
    """Stores the pieces of states by their hash, in a loom's snapshot records.

    `put` keeps a piece in memory until `keep` writes the record.
    """

    def __init__(self, loom: BaseLoom) -> None:
        self._loom = loom
        self._waiting: dict[str, bytes] = {}
        self._read: dict[int, SnapshotRecord] = {}

    def put(self, key: str, data: bytes) -> bool:
        """Add a piece; returns False if the loom already has it."""
        if key in self._loom.pieces or key in self._waiting:
            return False
        self._waiting[key] = bytes(data)
        return True

    def get(self, key: str) -> bytes:
        """Return a piece. Raises KeyError if the loom has none, or it cannot be read."""
        if key in self._waiting:
            return self._waiting[key]
        position = self._loom.pieces[key]
        record = self._read.get(position)
        if record is None:
            record = self._loom.snapshot_at(position)
            if len(self._read) >= _READ_AT_ONCE:
                del self._read[next(iter(self._read))]
            self._read[position] = record
        try:
            return base64.b64decode(record.data["pieces"][key], validate=True)
        except (KeyError, TypeError, ValueError, binascii.Error):
            raise KeyError(key) from None

    def keep(self, turn_id: str, entity_id: str, data: dict[str, Any]) -> None:
        """Write the snapshot after a turn, with the pieces that were added for it."""
        pieces = {key: base64.b64encode(piece).decode("ascii") for key, piece in self._waiting.items()}
        self._waiting.clear()
        self._loom.append(SnapshotRecord(new_id("s"), turn_id, entity_id, {**data, "pieces": pieces}, now()))

    def of(self, turn_id: str) -> dict[str, Any] | None:
        """The description of the snapshot after a turn, without its pieces; None if there is no usable one.

        Raises `TurnNotFound`, and `LoomError` if the record exists and cannot be read.
        """
        if turn_id not in self._loom:
            raise TurnNotFound(f"no turn {turn_id!r} in this loom")
        position = self._loom.snapshots.get(turn_id)
        if position is None:
            return None
        data = self._loom.snapshot_at(position).data
        if not isinstance(data, dict):
            raise LoomError(f"the snapshot after turn {turn_id!r} is damaged")
        return None if data.get("error") else {k: v for k, v in data.items() if k != "pieces"}
