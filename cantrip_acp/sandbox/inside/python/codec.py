"""JSON by the interpreter's own C functions, without importing ``json``: it would be a third of the start."""

from __future__ import annotations

import _json
import builtins

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

globals()["__builtins__"] = dict(vars(builtins))


class _Rules:
    """What the C scanner asks for."""

    strict = False
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = float

    def __init__(self) -> None:
        self.memo: dict[str, str] = {}


def plain(value: Any) -> Any:
    """What JSON has no form for, as the nearest thing that it has one for. Raises TypeError."""
    kind = type(value)
    if isinstance(value, (set, frozenset)):
        try:
            return sorted(value)
        except TypeError:
            return list(value)
    if isinstance(value, (range, type({}.keys()), type({}.values()), type({}.items()))):
        return list(value)
    for method in ("tolist", "item", "__fspath__", "isoformat"):
        # numpy's arrays and scalars, paths, dates; asked of the class, so that no instance answers for itself.
        if callable(getattr(kind, method, None)):
            return getattr(value, method)()
    if isinstance(value, dict) or hasattr(kind, "keys"):
        return dict(value)
    raise TypeError(f"a {kind.__name__} is not JSON data; give text, numbers, booleans, None, lists or dicts")


class Codec:
    """Data to UTF-8 JSON and back. Raises TypeError and ValueError for what has no JSON form."""

    def __init__(self) -> None:
        self._scan = _json.make_scanner(_Rules())  # type: ignore[arg-type]
        self._text = _json.encode_basestring

    def encode(self, data: Any) -> bytes:
        encoder = _json.make_encoder({}, plain, self._text, None, ":", ",", False, False, False)
        return "".join(encoder(data, 0)).encode("utf-8", "replace")

    def decode(self, data: bytes) -> Any:
        return self._scan(data.decode("utf-8"), 0)[0]
