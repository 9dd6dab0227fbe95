"""One text for a statement in SQLite and in PostgreSQL. What they write differently:

| in a statement | means |
|---|---|
| ``:name`` | a value; ``:now`` is the time of the process, or of the server |
| ``:now + :name``, ``:now - :name`` | seconds after, seconds before |
| ``IN :name`` | in a list of values |
| ``:name::text[]`` | a list, in PostgreSQL alone |
| ``UPDATE table SET``, ``FROM``, ``JOIN``, ``INTO`` | a table of the store, by its short name |
| ``ON CONFLICT (id)`` | the row with this key, of this user |
| ``AND a.tenant = b.tenant`` | of the same user, where several share a database |
| ``FOR UPDATE OF …`` | a lock of rows, where others may write at the same time |

What only one of them can do is no statement for both: each store then has its own.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from typing import Any

_LIST = re.compile(r"\bIN :(\w+)")
_ARRAY = re.compile(r"(?<![:\w]):(\w+)(?=::\w+\[\])")
_VALUE = re.compile(r"(?<![:\w]):([a-z_]\w*)")
_TENANT = re.compile(r" AND (\w+\.)?tenant (= \w+\.tenant|IN \('', current_user\))")
_LOCKS = re.compile(r" FOR UPDATE(?: OF \w+)?(?: SKIP LOCKED)?")
_SECONDS = re.compile(r":now ([+-]) :([a-z_]\w*)")
_CONFLICT = re.compile(r"ON CONFLICT \(")


class Sqlite:
    """How SQLite writes a statement and its values. A list is a text of JSON."""

    def __init__(self) -> None:
        self._made: dict[str, str] = {}

    def statement(self, text: str) -> str:
        made = self._made.get(text)
        if made is None:
            made = _LIST.sub(r"IN (SELECT value FROM json_each(:\1))", _LOCKS.sub("", _TENANT.sub("", text)))
            self._made[text] = made
        return made

    def values(self, values: Mapping[str, Any]) -> dict[str, Any]:
        given = {name: json.dumps(each) if type(each) is list else each for name, each in values.items()}
        given["now"] = time.time()
        return given

    def age(self, moment: str) -> str:
        """The seconds since a moment."""
        return f"(:now - ({moment}))"


class Postgres:
    """How PostgreSQL writes a statement and its values. ``tables`` has the full names of the store's tables, or selections of
    their rows that are ``read`` in their place. ``tenant``: whether the keys of rows include a user."""

    def __init__(self, tables: Mapping[str, str], *, read: Mapping[str, str] = {}, tenant: bool = False) -> None:
        self._made: dict[str, bytes] = {}
        self._read, self._tables, self._tenant = {**tables, **read}, tables, tenant
        self._names = re.compile(rf"\b(FROM|JOIN|INTO|UPDATE) ({'|'.join(tables)})\b")

    def statement(self, text: str) -> bytes:
        made = self._made.get(text)
        if made is None:
            said = _SECONDS.sub(r"clock_timestamp() \1 %(\2)s * interval '1 s'", text.replace("%", "%%"))
            said = _LIST.sub(r"= ANY(%(\1)s)", said.replace(":now", "clock_timestamp()"))
            # In binary form, because psycopg escapes each quote of a text in a list by itself, and bodies have many.
            said = _ARRAY.sub(r"%(\1)b", said)
            said = self._names.sub(self._table, _VALUE.sub(r"%(\1)s", said))
            if self._tenant:
                said = _CONFLICT.sub("ON CONFLICT (tenant, ", said)
            made = self._made[text] = said.encode()
        return made

    def _table(self, found: re.Match[str]) -> str:
        verb, name = found.groups()
        if verb == "UPDATE":
            return f"UPDATE {self._tables[name]} AS {name}"
        return f"{verb} {(self._tables if verb == 'INTO' else self._read)[name]}"

    def values(self, values: Mapping[str, Any]) -> dict[str, Any]:
        # A text here has no NUL.
        return {
            name: each.replace("\0", " ") if type(each) is str and "\0" in each else each
            for name, each in values.items()
        }

    def age(self, moment: str) -> str:
        """The seconds since a moment."""
        return f"extract(epoch FROM clock_timestamp() - ({moment}))::float8"
