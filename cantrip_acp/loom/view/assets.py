"""The static files of the page (HTML, CSS, JavaScript), read from the package. They contain no loom data."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from importlib.resources import files

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}

_IMPORT = re.compile(r'^import \{[^}]*\} from "\./([a-z]+\.js)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?function |class |const |let )", re.MULTILINE)


@cache
def names() -> frozenset[str]:
    """The names of the files; no other path is ever opened."""
    return frozenset(entry.name for entry in files(__package__).joinpath("page").iterdir() if _type(entry.name))


def read(name: str) -> tuple[bytes, str] | None:
    """A file and its media type; None for a name that is not one of the page's files."""
    if name not in names():
        return None
    return files(__package__).joinpath("page", name).read_bytes(), TYPES[_type(name)]


def _type(name: str) -> str:
    ending = "." + name.rpartition(".")[2]
    return ending if ending in TYPES else ""


def text(name: str) -> str:
    """A file as text. Raises `FileNotFoundError`."""
    found = read(name)
    if found is None:
        raise FileNotFoundError(name)
    return found[0].decode()


def script(main: str | None = None) -> str:
    """All modules joined into one, each after those it imports. They share one scope, so their names must differ.

    ``main`` is the text of another page's main module, which imports some of them.
    """
    sources = _ordered(text("main.js") if main is None else main, set())
    return "\n".join(_EXPORT.sub("", _IMPORT.sub("", source)) for source in sources)


def _ordered(source: str, seen: set[str]) -> Iterator[str]:
    for name in _IMPORT.findall(source):
        if name not in seen:
            seen.add(name)
            yield from _ordered(text(name), seen)
    yield source
