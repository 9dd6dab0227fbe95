"""Values of a class with a secret at one place, for every place that its fields have.

They are made from the types of the fields, so a new class or a new field is tried without anybody thinking of it.
"""

from __future__ import annotations

import dataclasses
import itertools
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from cantrip_acp.types import events, records

SECRET = "s3cr3t-value-0123456789"
_count = itertools.count()


def with_secret(cls: type) -> Iterator[tuple[str, Any]]:
    """The place and the value, for each place of a Struct or a dataclass that may hold words."""
    hints, plain = _hints(cls), sample(cls)
    for name in fields(cls):
        if name in getattr(cls, "untouched", ()):
            continue
        for place, value in _variants(hints[name], getattr(plain, name)):
            changed = {each: getattr(plain, each) for each in fields(cls)} | {name: value}
            # Where the text has colours, they are in the middle of the secret.
            styles = getattr(cls, "styled_fields", {}).get(name)
            yield f"{name}{place}", cls(**changed)
            if styles is not None:
                yield f"{name} with {styles}", cls(**changed | {styles: ((0, "31"), (7, "1"), (12, ""))})


def _hints(cls: type) -> dict[str, Any]:
    # Some modules import these for their types alone.
    return typing.get_type_hints(cls, localns=vars(records) | vars(events))


def fields(cls: Any) -> tuple[str, ...]:
    return getattr(cls, "__struct_fields__", None) or tuple(getattr(cls, "__dataclass_fields__", ()))


def _variants(hint: Any, plain: Any) -> Iterator[tuple[str, Any]]:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is str:
        yield "", f"before {SECRET} after"
    elif hint is Any:
        yield "", SECRET
        yield "[list in mapping]", {"a": [1, None, f"x{SECRET}"]}
        yield "[key]", {SECRET: 1}
        yield "[escaped]", f'"\n{SECRET}'
    elif origin in (typing.Union, types.UnionType):
        for each in arguments:
            yield from _variants(each, None)
    elif origin is tuple and arguments[-1] is Ellipsis:
        yield from ((f"[]{place}", (value,)) for place, value in _variants(arguments[0], None))
    elif origin is list:
        yield from ((f"[]{place}", [value]) for place, value in _variants(arguments[0], None))
    elif origin is tuple:
        for at, each in enumerate(arguments):
            for place, value in _variants(each, None):
                yield f"[{at}]{place}", tuple(value if n == at else sample(h) for n, h in enumerate(arguments))
    elif isinstance(origin, type) and issubclass(origin, Mapping):
        for place, value in _variants(arguments[1], None):
            yield f"[value]{place}", {"key": value}
        yield "[key]", {SECRET: sample(arguments[1])}
    elif isinstance(hint, type) and fields(hint):
        yield from ((f".{place}", value) for place, value in with_secret(hint))


def sample(hint: Any) -> Any:
    """Any value of a type."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return arguments[0]
    if origin in (typing.Union, types.UnionType):
        return sample(arguments[0])
    if origin is tuple:
        return () if arguments[-1] is Ellipsis else tuple(map(sample, arguments))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {}
    if origin is list:
        return []
    if isinstance(hint, type) and fields(hint):
        hints = _hints(hint)
        needed = {name for name, each in zip(fields(hint), _defaults(hint), strict=True) if each is msgspec.NODEFAULT}
        return hint(**{name: sample(hints[name]) for name in needed})
    if hint is str:
        return f"word-{next(_count)}"
    return {int: 1, float: 1.0, bool: True}.get(hint) if hint is not Any else None


def _defaults(cls: Any) -> list[Any]:
    if issubclass(cls, msgspec.Struct):
        return [msgspec.NODEFAULT if each.required else None for each in msgspec.structs.fields(cls)]
    missing = dataclasses.MISSING
    return [
        msgspec.NODEFAULT if each.default is missing and each.default_factory is missing else None
        for each in dataclasses.fields(cls)
    ]
