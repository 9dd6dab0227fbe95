"""A loom copied to another store, record by record."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cantrip_acp.core.errors import LoomError
from cantrip_acp.loom.stores.rows import encoded

if TYPE_CHECKING:
    from cantrip_acp.loom.loom import Loom
    from cantrip_acp.loom.stores.contract import Store


def copied(loom: Loom, store: Store) -> Loom:
    """A loom in another store with every record of this one, ids and order kept; ``store``, just opened, is then the
    copy's. A copy that was broken off goes on where it was. Records and fields of a later version are copied as they are.

    Raises `LoomError` where the store holds other records already, or takes one of these not (a turn whose parent was
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
