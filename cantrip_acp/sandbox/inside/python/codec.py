"""JSON codec on the interpreter's own C functions. Importing ``json`` would take a third of the start time."""

from __future__ import annotations

import _json
import builtins

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

globals()["__builtins__"] = dict(vars(builtins))


class _Rules:
    """The settings that the C scanner reads."""

    strict = False
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = float

    def __init__(self) -> None:
        self.memo: dict[str, str] = {}


def plain(value: Any) -> Any:
    """Convert a value without a JSON form to a similar one that has one. Raises TypeError."""
    kind = type(value)
    if isinstance(value, (set, frozenset)):
        try:
            return sorted(value)
        except TypeError:
            return list(value)
    if isinstance(value, (range, type({}.keys()), type({}.values()), type({}.items()))):
        return list(value)
    for method in ("tolist", "item", "__fspath__", "isoformat"):
        # For numpy's arrays and scalars, paths, dates. Looked up on the class, so that no instance can fake it.
        if callable(getattr(kind, method, None)):
            return getattr(value, method)()
    if isinstance(value, dict) or hasattr(kind, "keys"):
        return dict(value)
    raise TypeError(f"a {kind.__name__} is not JSON data; give text, numbers, booleans, None, lists or dicts")


class Codec:
    """Data to UTF-8 JSON and back. Raises TypeError and ValueError for data without a JSON form."""

    def __init__(self) -> None:
        self._scan = _json.make_scanner(_Rules())  # type: ignore[arg-type]
        self._text = _json.encode_basestring

    def encode(self, data: Any) -> bytes:
        encoder = _json.make_encoder({}, plain, self._text, None, ":", ",", False, False, False)
        return "".join(encoder(data, 0)).encode("utf-8", "replace")

    def decode(self, data: bytes) -> Any:
        return self._scan(data.decode("utf-8"), 0)[0]
