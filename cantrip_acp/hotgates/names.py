"""What a loaded module may be called: ``cantrip_acp.hot.NAME``, which is no place of this package, and nothing else.

Each module has one full name; ``NAME`` alone means it. So no name that anything else has, the package's own modules first
of all, can be written in any way.
"""

from __future__ import annotations

import keyword
import re
import sys

PREFIX = "cantrip_acp.hot."
LONGEST = 100
_SEGMENT = re.compile(r"[A-Za-z][A-Za-z0-9_]*\Z", re.ASCII)


class NameRefused(ValueError):
    """A name that no module may have; the text says why."""


def full_name(name: str) -> str:
    """``textkit`` and ``cantrip_acp.hot.textkit`` as the latter. Raises `NameRefused`."""
    shown = repr(name if len(name) <= LONGEST else name[:LONGEST] + "…")
    if len(name) > LONGEST:
        raise NameRefused(f"{shown} is too long for a module's name: {LONGEST} characters at most")
    segments = name.split(".")
    if not all(_SEGMENT.match(each) and not keyword.iskeyword(each) for each in segments):
        raise NameRefused(
            f"{shown} is no module's name: use ASCII letters, digits and '_', with '.' between words, such as {PREFIX}textkit"
        )
    first = segments[0].lower()
    if first == "cantrip_acp" or first.startswith("cantrip"):
        if not name.startswith(PREFIX):
            raise NameRefused(
                f"{shown} is a name of cantrip-acp itself, whose modules can never be replaced, whatever a ward allows; "
                f"loaded modules are called {PREFIX}NAME"
            )
        return name
    if segments[0] in sys.stdlib_module_names or segments[0] in sys.builtin_module_names:
        raise NameRefused(
            f"{shown} is a name of Python's standard library, which is never replaced; use another, or {PREFIX}{name}"
        )
    return PREFIX + name
