"""Makes the text of values and errors for an entity. A long value is shown as type, size and beginning."""

from __future__ import annotations

import builtins
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

globals()["__builtins__"] = dict(vars(builtins))

WHOLE = 2_000
"""Characters up to which a value is shown in full."""
PREVIEW = 600
_ALL_SHOWN = 1_000
"""The maximum number of items of an array or a data frame that is shown in full."""
_COLUMNS = 20
_NAME = 100
"""The maximum length of a class name."""
_UNREACHABLE = (97, 99, 101, 111, 113)
"""EAFNOSUPPORT, EADDRNOTAVAIL, ENETUNREACH, ECONNREFUSED, EHOSTUNREACH."""
ERROR = 12_000
"""The maximum length of a traceback in characters."""


def show(value: Any) -> str:
    """The text of a value. An error in a ``__repr__`` is reported in the text. Interrupts are raised."""
    pieces = _Pieces(WHOLE)
    pieces.add(value, 0)
    large = _large(value)
    if large:
        return large + _cut("".join(pieces.parts), WHOLE)
    if not pieces.full:
        return "".join(pieces.parts)
    if _shape(value) is not None:
        return _cut("".join(pieces.parts), WHOLE)
    return f"{type(value).__name__[:_NAME]}{_size(value)}: {_preview(value)}"


def _shape(value: Any) -> tuple[Any, ...] | None:
    """The shape of an array or a data frame of any library, or None. Such values shorten their own repr."""
    try:
        shape = getattr(value, "shape", None)
    except Exception:  # noqa: BLE001 - a class of the entity may do anything here
        return None
    return shape if isinstance(shape, tuple) and not isinstance(value, type) else None


def _large(value: Any) -> str:
    """A heading for an array or a data frame that does not show all of its items; empty for other values."""
    shape = _shape(value)
    if not shape:
        return ""
    try:
        count = 1
        for each in shape:
            count *= each
        columns = getattr(value, "columns", None)
        if count <= _ALL_SHOWN or (columns is None and not hasattr(value, "dtype")):
            return ""
        # Column names may be long, so cut each.
        kinds = (
            str(value.dtype)
            if columns is None
            else ", ".join(f"{str(c)[:40]} {t}" for c, t in zip(columns[:_COLUMNS], value.dtypes, strict=False))
        )
        more = f", and {len(columns) - _COLUMNS:,} more" if columns is not None and len(columns) > _COLUMNS else ""
        return f"{type(value).__name__[:_NAME]} of shape {tuple(shape)}, {kinds[:PREVIEW]}{more}:\n"
    except Exception:  # noqa: BLE001 - the value is not an array
        return ""


def _size(value: Any) -> str:
    if isinstance(value, (str, bytes, bytearray)):
        unit = "characters" if isinstance(value, str) else "bytes"
        return f" of {len(value):,} {unit}"
    if isinstance(value, (list, tuple, dict, set, frozenset)):
        return f" of {len(value):,} item{'s' * (len(value) != 1)}"
    try:
        return f" of length {len(value):,}"
    except TypeError:
        return ""


def _preview(value: Any) -> str:
    if isinstance(value, (str, bytes, bytearray)):
        return f"{value[:PREVIEW]!r} … {value[-PREVIEW // 4 :]!r}"
    pieces = _Pieces(PREVIEW)
    pieces.add(value, 0)
    return "".join(pieces.parts)[:PREVIEW] + " …"


class _Pieces:
    """Builds the repr of a value of any size, and stops at a limit."""

    def __init__(self, most: int) -> None:
        self.parts: list[str] = []
        self._room = most
        self._seen: set[int] = set()

    @property
    def full(self) -> bool:
        return self._room < 0

    def put(self, text: str) -> None:
        self.parts.append(text)
        self._room -= len(text)

    def add(self, value: Any, depth: int) -> None:
        kind = type(value)
        if kind in (list, tuple, set, frozenset, dict) and value:
            if depth > 60 or id(value) in self._seen:
                self.put("…")
                return
            self._seen.add(id(value))
            self._container(value, kind, depth)
            self._seen.discard(id(value))
        elif kind in (str, bytes, bytearray) and len(value) > WHOLE:
            self.put(repr(value[: WHOLE + 1]))
        elif kind is int and value.bit_length() > 4 * WHOLE:
            self.put(f"an int of {value.bit_length():,} bits " + " " * WHOLE)
        else:
            self.put(_repr(value))

    def _container(self, value: Any, kind: type, depth: int) -> None:
        brackets: Any = {list: "[]", tuple: "()", dict: "{}", set: "{}"}
        opening, closing = brackets.get(kind, ("frozenset({", "})"))
        self.put(opening)
        for index, item in enumerate(value.items() if kind is dict else value):
            if self.full:
                return
            if index:
                self.put(", ")
            if kind is dict:
                self.add(item[0], depth + 1)
                self.put(": ")
                self.add(item[1], depth + 1)
            else:
                self.add(item, depth + 1)
        self.put(",)" if kind is tuple and len(value) == 1 else closing)


def _repr(value: Any) -> str:
    try:
        text = repr(value)
        return text if type(text) is str else str(text)
    except Exception as error:  # noqa: BLE001
        # A class of the entity may do anything in its repr.
        return f"<{type(value).__name__[:_NAME]} object, whose repr failed with {type(error).__name__}>"


def _cut(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    return f"{text[: most * 2 // 3]}\n[… {len(text) - most:,} characters left out …]\n{text[-most // 3 :]}"


def describe(error: BaseException, ours: str) -> str:
    """The traceback of an error without the frames of the worker. ``ours``: the folder of the worker's files."""
    try:
        import traceback

        shown = traceback.TracebackException.from_exception(error, compact=True)
        seen: list[Any] = [shown]
        while seen:
            each = seen.pop()
            frames = [f for f in each.stack if not f.filename.startswith(ours)]
            # Also leave out the frames of an event loop between the worker and the cell.
            first = next((n for n, f in enumerate(frames) if f.filename.startswith("<")), 0)
            each.stack = traceback.StackSummary.from_list(frames[first:])
            seen += [e for e in (each.__cause__, each.__context__, *(getattr(each, "exceptions", None) or ())) if e]
        return _cut("".join(shown.format()).rstrip("\n"), ERROR) + _no_network(error)
    except Exception:  # noqa: BLE001
        # The entity may have changed the modules that are used here.
        try:
            return f"{type(error).__name__}: {error}"
        except Exception:  # noqa: BLE001
            return type(error).__name__


def _no_network(error: BaseException) -> str:
    """A hint for errors of network connections, which are not possible here; empty for other errors."""
    seen: set[int] = set()
    each: BaseException | None = error
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        if isinstance(each, OSError) and (each.errno in _UNREACHABLE or type(each).__name__ == "gaierror"):
            return (
                "\n[There is no network in this sandbox, not even to this machine. Use the functions that were described "
                "to you to reach anything outside.]"
            )
        each = each.__cause__ or each.__context__
    return ""


class Help:
    """The builtin ``help``, which does not exist in a start without ``site``."""

    def __call__(self, *things: Any) -> None:
        import pydoc

        for thing in things or ("help",):
            print(pydoc.render_doc(thing, "%s", renderer=pydoc.plaintext))  # type: ignore[attr-defined]

    def __repr__(self) -> str:
        return "Call help(x) to read the documentation of x."


class Exit:
    """The builtins ``exit`` and ``quit``, which do not exist in a start without ``site``. They end the cell."""

    def __call__(self, code: Any = None) -> None:
        raise SystemExit(code)

    def __repr__(self) -> str:
        return "Call exit() to end the cell. Call done(answer) to end the task."


def restore_builtins(saved: dict[str, Any]) -> None:
    """Restore deleted builtins, because the standard library does not work without them."""
    real = vars(builtins)
    if not saved.keys() <= real.keys():
        for name, value in saved.items():
            real.setdefault(name, value)
    if sys.modules.get("builtins") is not builtins:
        sys.modules["builtins"] = builtins
