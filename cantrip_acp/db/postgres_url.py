"""The address of a database in PostgreSQL: ``postgresql://user:password@host/database``, for a loom with ``?loom=NAME``.

It is parsed before anything else reads it, so that no error, repr or log contains a password.
"""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass, field

DEFAULT = "default"
"""The name of the loom if the address has none."""

_SECRET = ("password", "sslpassword")
_HOSTS = re.compile(r"([\w.%~-]*|\[[0-9A-Fa-f:.%]+\])(:\d*)?(,([\w.%~-]*|\[[0-9A-Fa-f:.%]+\])(:\d*)?)*")


@dataclass(frozen=True, slots=True)
class PgUrl:
    """The parts of an address: ``server`` for the driver, ``shown`` for people, ``loom`` the loom's name in the
    database."""

    server: str = field(repr=False)
    shown: str
    loom: str
    secrets: tuple[str, ...] = field(default=(), repr=False)

    @classmethod
    def of(cls, url: str, error: Callable[[str], Exception]) -> PgUrl:
        """Parse an address. Raises ``error`` of a text, which repeats nothing of an invalid address."""
        scheme, slashes, rest = url.partition("://")
        before, _, query = rest.partition("?")
        place, slash, database = before.partition("/")
        user, _, hosts = place.rpartition("@")
        # After an unexpected character, the rest may be part of a password.
        if (
            scheme not in ("postgresql", "postgres")
            or not slashes
            or "@" in user + database + query
            or "#" in url
            or not _HOSTS.fullmatch(hosts)
        ):
            raise error(
                "a postgresql:// address cannot be read; in a user, password or name write @ as %40, / as %2F, ? as %3F, "
                ": as %3A and # as %23, as in postgresql://user:p%40ss@host:5432/database?loom=NAME"
            )
        name, colon, password = user.partition(":")
        secrets = [password, urllib.parse.unquote(password)] if colon else []
        pairs, kept, loom = urllib.parse.parse_qsl(query, keep_blank_values=True), [], DEFAULT
        for key, value in pairs:
            if key == "loom":
                loom = value
            else:
                kept.append((key, value))
            if key in _SECRET:
                secrets += [value, urllib.parse.quote(value), urllib.parse.quote_plus(value)]
        if not loom or "\0" in loom or len(loom) > 200:
            raise error("a postgresql:// address names its loom as ?loom=NAME, with 1 to 200 characters")
        # libpq decodes %20 and not +.
        options = urllib.parse.urlencode(kept, quote_via=urllib.parse.quote)
        server = f"{scheme}://{before}{'?' + options if options else ''}"
        open_ones = [(k, v) for k, v in kept if k not in _SECRET] + [("loom", loom)]
        told = urllib.parse.urlencode(open_ones, quote_via=urllib.parse.quote, safe="/:")
        shown = f"{scheme}://{name + '@' if name else ''}{hosts}{slash}{database}?{told}"
        return cls(server, shown, loom, tuple(sorted({s for s in secrets if s}, key=len, reverse=True)))

    def clean(self, text: object) -> str:
        """A driver's message on one line, without secrets."""
        said = " ".join(str(text).split())
        for secret in self.secrets:
            said = said.replace(secret, "***")
        return said
