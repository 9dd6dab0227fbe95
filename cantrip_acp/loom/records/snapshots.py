"""Snapshots of a medium's state in a loom: each record holds the pieces that no earlier one had (LOOM-4).

So a loom grows with what changed, and not with turns times state. The pieces are never opened here: they are bytes.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

from cantrip_acp.core.errors import LoomError, TurnNotFound
from cantrip_acp.loom.loom import Loom
from cantrip_acp.loom.records.turn import SnapshotRecord, new_id, now

_READ_AT_ONCE = 16
"""Records that are held: the pieces of a state lie in the turns that changed them, now in this one and now in that."""


class LoomPieces:
    """Pieces by their hash, kept in a loom's snapshot records.

    What is put is held until `keep` writes the record that it belongs to.
    """

    def __init__(self, loom: Loom) -> None:
        self._loom = loom
        self._waiting: dict[str, bytes] = {}
        self._read: dict[int, SnapshotRecord] = {}

    def put(self, key: str, data: bytes) -> bool:
        """Take a piece; False where the loom has it already."""
        if key in self._loom.pieces or key in self._waiting:
            return False
        self._waiting[key] = bytes(data)
        return True

    def get(self, key: str) -> bytes:
        """A piece; raises KeyError where the loom has none, or it cannot be read."""
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
        """Write the snapshot after a turn, with the pieces that were put for it."""
        pieces = {key: base64.b64encode(piece).decode("ascii") for key, piece in self._waiting.items()}
        self._waiting.clear()
        self._loom.append(SnapshotRecord(new_id("s"), turn_id, entity_id, {**data, "pieces": pieces}, now()))

    def of(self, turn_id: str) -> dict[str, Any] | None:
        """The description of the snapshot after a turn, without its pieces; None where there is none that can be used.

        Raises `LoomError` where the record is there and cannot be read.
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
