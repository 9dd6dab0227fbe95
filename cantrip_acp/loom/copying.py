"""Copies a loom to another store, record by record."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cantrip_acp.core.errors import LoomError
from cantrip_acp.loom.stores.rows import encoded

if TYPE_CHECKING:
    from cantrip_acp.loom.loom import Loom
    from cantrip_acp.loom.stores.contract import Store


def copied(loom: Loom, store: Store) -> Loom:
    """Copy every record to another store and return that loom; ids and order stay. ``store`` was just opened, and
    belongs to the copy from then on. An interrupted copy continues where it stopped. Records and fields of a later
    version are copied unchanged.

    Raises `LoomError` where the store already holds other records, or refuses one of these (a turn whose parent was
    lost).
    """
    copy, mine = type(loom)(store), loom.stored()
    for kept in copy.records():
        record, _ = next(mine, (None, None))
        if record != kept and (record is None or encoded(record) != encoded(kept)):
            raise LoomError(f"loom {store.location} holds other records already; copy to an empty one")
    for record, body in mine:
        copy.append(record, body)
    return copy
