"""Databases of the substrate: SQLite (one user, one machine) and PostgreSQL (teams). Only this folder knows a database.

`base.py` says what a database offers; the rules of a change are in `substrate.py`, the same for each of them.
"""

from __future__ import annotations

from pathlib import Path

from cantrip_acp.substrate.stores.base import Tables

IN_MEMORY = "sqlite::memory:"
"""The address of a new substrate in memory, for one process."""


def open_tables(address: Path | str) -> Tables:
    """Open a file, `IN_MEMORY` or ``postgresql://…``. Raises `SubstrateError`, which never shows a password."""
    if isinstance(address, str) and address.startswith(("postgresql://", "postgres://")):
        from cantrip_acp.substrate.stores.postgres import PostgresTables

        return PostgresTables(address)
    from cantrip_acp.substrate.stores.sqlite import SqliteTables

    if isinstance(address, str):
        address = address.removeprefix("sqlite:")
    return SqliteTables(address)
