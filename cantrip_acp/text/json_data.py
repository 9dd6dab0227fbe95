"""JSON data that cannot be changed, and conversion of any value to such data.

Several parts of the program read the same records, definitions and events at once. None of them may change what
another one reads. So lists and mappings in them are `FrozenList` and `FrozenDict`: they compare, print and encode
like ``list`` and ``dict``, and refuse every change.
"""

from __future__ import annotations

import math
import operator
import os
import types
import typing
from collections import deque
from collections.abc import Mapping
from functools import cache
from typing import Any, NoReturn, TypeVar

import msgspec

MOST_NESTED = 200
"""Maximum nesting of lists and mappings in what a gate returns."""

_SCALARS = frozenset({str, int, float, bool, type(None)})
_Struct = TypeVar("_Struct", bound=msgspec.Struct)


class NotJson(ValueError):
    """A value that cannot be written as JSON. The text says which part and why."""


def _refuse(self: object, *args: object, **kwargs: object) -> NoReturn:
    raise TypeError("this value is immutable: make a copy with thaw() or dict()/list(), and change the copy")


class FrozenDict(dict[str, Any]):
    """A mapping that cannot be changed."""

    __slots__ = ()

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __copy__(self) -> FrozenDict:
        return self

    def __deepcopy__(self, memo: object) -> FrozenDict:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenDict, (dict(self),)


class FrozenList(list[Any]):
    """A list that cannot be changed."""

    __slots__ = ()

    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = clear = extend = insert = pop = remove = reverse = sort = _refuse

    def __copy__(self) -> FrozenList:
        return self

    def __deepcopy__(self, memo: object) -> FrozenList:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenList, (list(self),)


_UNCHANGING = _SCALARS | {FrozenDict, FrozenList}


def freeze(value: Any) -> Any:
    """The value with every list, tuple, set and mapping in it replaced by one that cannot be changed.

    Other objects (a path, a client, a function) stay as they are.
    """
    kind = type(value)
    if kind in _UNCHANGING:
        return value
    if kind is tuple:
        frozen = [each if type(each) in _SCALARS else freeze(each) for each in value]
        return value if all(map(operator.is_, frozen, value)) else tuple(frozen)
    if isinstance(value, msgspec.Struct):
        return freeze_record(value)
    if isinstance(value, dict | Mapping):
        # The check avoids a call per scalar: most values are scalars, and events hold many of them.
        return FrozenDict({k: each if type(each) in _SCALARS else freeze(each) for k, each in value.items()})
    if isinstance(value, list):
        return FrozenList([freeze(each) for each in value])
    if isinstance(value, set):
        return frozenset(value)
    if isinstance(value, bytearray):
        return bytes(value)
    return value


def freeze_record(record: _Struct) -> _Struct:
    """The record with all its lists and mappings frozen. The same object if nothing had to change."""
    changed: dict[str, Any] | None = None
    for name in _open_fields(type(record)):
        value = getattr(record, name)
        if type(value) not in _UNCHANGING and value != () and (frozen := freeze(value)) is not value:
            changed = {name: frozen} if changed is None else {**changed, name: frozen}
    return record if changed is None else msgspec.structs.replace(record, **changed)


@cache
def _open_fields(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    """The fields of a record that may hold a list or a mapping. The others need no check."""
    try:
        hints = typing.get_type_hints(kind)
    except NameError:
        return kind.__struct_fields__
    return tuple(name for name in kind.__struct_fields__ if not _closed(hints.get(name, Any)))


def _closed(hint: Any) -> bool:
    if hint in _SCALARS or hint is msgspec.UnsetType:
        return True
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return True
    if origin in (typing.Union, types.UnionType):
        return all(map(_closed, arguments))
    return isinstance(hint, type) and issubclass(hint, msgspec.Struct) and not _open_fields(hint)


def thaw(value: Any) -> Any:
    """A copy of JSON data that can be changed."""
    if isinstance(value, dict):
        return {key: thaw(each) for key, each in value.items()}
    if isinstance(value, list):
        return [thaw(each) for each in value]
    return value


def plain(value: Any, *, depth: int = 0) -> Any:
    """Frozen JSON data from any value that third-party code returned.

    Types that `msgspec.to_builtins` knows (dataclasses, dates, enums, sets, bytes) are converted by it, and models of
    pydantic by their ``model_dump``, with aliases, as their JSON Schema has them. Paths and addresses of ipaddress become
    texts, and a ``deque`` a list. Numbers that
    JSON does not have become the texts ``NaN``, ``Infinity`` and ``-Infinity``. A lone surrogate in a text becomes
    ``?``. Keys become texts. Raises `NotJson` for everything else, for data that contain themselves and for data
    nested deeper than `MOST_NESTED`.
    """
    kind = type(value)
    if kind is str:
        return value if value.isascii() else encodable(value)
    if kind is float:
        return value if math.isfinite(value) else _named(value)
    if kind is int or kind is bool or value is None or kind is FrozenDict or kind is FrozenList:
        return value
    if depth > MOST_NESTED:
        raise NotJson(f"it is nested deeper than {MOST_NESTED} levels, or contains itself")
    if kind is not dict and isinstance(value, str) and not _is_enum(value):
        return encodable(str.__str__(value))
    if kind is dict or isinstance(value, Mapping):
        made: dict[str, Any] = {}
        for key, each in value.items():
            made[key if type(key) is str and key.isascii() else _key(key)] = plain(each, depth=depth + 1)
        return FrozenDict(made)
    if isinstance(value, list | tuple | set | frozenset | deque):
        return FrozenList([plain(each, depth=depth + 1) for each in value])
    if isinstance(value, float) and not _is_enum(value):
        return plain(float(value), depth=depth)
    if isinstance(value, int) and not _is_enum(value):
        return int(value)
    if isinstance(value, os.PathLike):
        return plain(os.fspath(value), depth=depth + 1)
    if kind.__module__ == "ipaddress":
        return str(value)
    try:
        known = msgspec.to_builtins(value, str_keys=True, enc_hook=_model_data)
    except RecursionError:
        raise NotJson(f"it is nested deeper than {MOST_NESTED} levels, or contains itself") from None
    except Exception as error:  # noqa: BLE001
        raise NotJson(f"a value of type {kind.__name__} is not JSON data ({error})") from None
    if type(known) is kind:
        raise NotJson(f"a value of type {kind.__name__} is not JSON data")
    return plain(known, depth=depth + 1)


def _model_data(value: Any) -> Any:
    """The data of a value in a value that msgspec knows: of a model of pydantic, which need not be imported for this, of a
    path, of an address."""
    dump = getattr(type(value), "model_dump", None)
    if dump is not None:
        try:
            return dump(value, mode="json", by_alias=True)
        except ValueError:
            # Bytes that are not UTF-8. Elsewhere bytes become base64.
            return plain(dump(value, by_alias=True))
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if type(value).__module__ == "ipaddress":
        return str(value)
    if isinstance(value, deque):
        return list(value)
    raise NotImplementedError(f"Encoding objects of type {type(value).__name__} is unsupported")


def encodable(text: str) -> str:
    """The text with every lone surrogate replaced by a question mark, because UTF-8 cannot encode them."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode("utf-8")
    return text


def _is_enum(value: object) -> bool:
    import enum

    return isinstance(value, enum.Enum)


def _key(key: object) -> str:
    if type(key) is str:
        return key if key.isascii() else encodable(key)
    found = plain(key)
    if isinstance(found, str):
        return found
    if found is None or isinstance(found, bool):
        return "null" if found is None else str(found).lower()
    if isinstance(found, int | float):
        return str(found)
    raise NotJson(f"a mapping's key of type {type(key).__name__} cannot be a text")


def _named(value: float) -> str:
    return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
