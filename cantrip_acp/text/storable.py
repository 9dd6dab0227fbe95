"""What is kept: data as a file of JSON or a database may hold them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from cantrip_acp.text.redaction import shared


def storable(value: Any, *, shapes: bool | Collection[str] = False) -> Any:
    """JSON data (or a Struct) as files and databases keep it: without known secrets and, with ``shapes``, without what looks like
    one (`Redactor.masked`). JSON data have U+FFFD for what no database and no UTF-8 holds: NUL characters and halves of
    characters."""
    return _mended(shared().masked(value, shapes=shapes))


def _mended(value: Any) -> Any:
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            value = value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return value.replace("\0", "\ufffd")
    if isinstance(value, Mapping):
        return {_mended(key): _mended(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_mended(each) for each in value]
    return value
