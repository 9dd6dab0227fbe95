"""Databases of the substrate: SQLite (one user, one machine) and PostgreSQL (teams). Only this folder knows a database.

`base.py` says what a database offers; the rules of a change are in `substrate.py`, the same for each of them.
"""

from __future__ import annotations

from pathlib import Path

from cantrip_acp.substrate.chunks import SubstrateError
from cantrip_acp.substrate.stores.base import Tables


def open_tables(address: Path | str, *, readonly: bool = False) -> Tables:
    """Open a file or ``postgresql://…``. Raises `SubstrateError`, which never shows a password."""
    if isinstance(address, str) and address.startswith(("postgresql://", "postgres://")):
        raise SubstrateError("the substrate cannot be in PostgreSQL yet")
    from cantrip_acp.substrate.stores.sqlite import SqliteTables

    if isinstance(address, str):
        address = address.removeprefix("sqlite:")
    return SqliteTables(address, readonly=readonly)
