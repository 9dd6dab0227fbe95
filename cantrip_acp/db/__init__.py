"""What the stores in SQLite and in PostgreSQL have in common: opening, versions of tables, transactions, and their errors.

`sqlite` and `postgres` have it for each kind of database, `postgres_url` reads addresses. A store that has both writes its
statements once, and `dialect` says them to each. Imports files. Only stores import this folder.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from cantrip_acp.files.installation import install_command

__all__ = ["Kind", "dialect", "postgres", "postgres_url", "sqlite"]


class Kind(NamedTuple):
    """The properties of one kind of store: its tables, migrations and errors."""

    name: str
    """For people, such as ``tuple-space``."""
    application: int
    """The ``application_id`` of the SQLite file; in PostgreSQL the lock of those who make the tables."""
    unopened: Callable[[str], Exception]
    """Makes the error of a store that cannot be opened, of its text."""
    error: Callable[[str], Exception]
    """Makes every other error."""
    newer: str
    """The versions that this version of the product can read, and what to do; with ``{}`` for `reads_to`."""
    reads_to: int = 99
    """The highest version of tables that is opened. A version from 100 on may have changed what exists."""

    def failure(self, what: str, place: object, error: object, mend: str = "") -> Exception:
        """Make the error for a failed database operation; ``what`` is a verb."""
        return (self.unopened if what == "open" else self.error)(f"cannot {what} {self.name} {place}: {error}{mend}")

    def without_driver(self, error: ImportError, instead: str = "name a SQLite file") -> Exception:
        """Make the error for a missing PostgreSQL driver. ``instead`` says what the user can do without it."""
        need = f"a {self.name} in PostgreSQL needs psycopg ({error}): {install_command('postgres')}"
        return self.unopened(f"{need}; or {instead}")

    def check(self, place: object, version: int) -> None:
        """Raise the error of this kind if the tables are too new."""
        if version > self.reads_to:
            said = self.newer.format(self.reads_to)
            raise self.unopened(
                f"cannot open {self.name} {place}: its tables have version {version}, and this version of {said}"
            )
