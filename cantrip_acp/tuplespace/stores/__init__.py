"""Stores of tuples. `sql` says what each of them does; `open_store` opens one by its address.

They import tuples, patterns and text helpers, and nothing that runs a tuple.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cantrip_acp.tuplespace.errors import SpaceNotOpened

if TYPE_CHECKING:
    from cantrip_acp.tuplespace.stores.sql import TupleStore

__all__ = ["base", "open_store", "sql"]


def open_store(address: str | Path) -> TupleStore:
    """Open the store at ``postgresql://…``, ``sqlite:FILE`` or a file's path. Raises `SpaceNotOpened`."""
    text = str(address)
    if text.startswith(("postgresql:", "postgres:")):
        from cantrip_acp.tuplespace.stores.postgres import PostgresTupleStore

        return PostgresTupleStore(text)
    if "://" in text:
        scheme = text.partition("://")[0]
        raise SpaceNotOpened(
            f"no tuple-space is at {scheme}://…: name a SQLite file or postgresql://user@host/database"
        )
    from cantrip_acp.tuplespace.stores.sqlite import SqliteTupleStore

    return SqliteTupleStore(text.removeprefix("sqlite:"))
