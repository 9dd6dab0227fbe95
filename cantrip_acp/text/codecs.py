"""Decoders: makes Structs from data, with one shared msgspec decoder per type.

msgspec collects a Struct's fields on first use and lets other threads run meanwhile. A second thread with the same
Struct then finds half of them, and the process ends with a segmentation fault (seen with msgspec 0.22). So all code
that makes Structs from data must use this module; a test checks that.
"""

from __future__ import annotations

from threading import Lock
from typing import Any, TypeVar, overload

import msgspec

T = TypeVar("T")

_lock = Lock()
_json: dict[Any, msgspec.json.Decoder[Any]] = {}
_msgpack: dict[Any, msgspec.msgpack.Decoder[Any]] = {}


@overload
def json_decoder(shape: type[T]) -> msgspec.json.Decoder[T]: ...
@overload
def json_decoder(shape: Any) -> msgspec.json.Decoder[Any]: ...
def json_decoder(shape: Any) -> msgspec.json.Decoder[Any]:
    """The JSON decoder for a type: a Struct, a union of Structs, a generic."""
    found = _json.get(shape)
    if found is None:
        with _lock:
            found = _json[shape] = msgspec.json.Decoder(shape)
    return found


def msgpack_decoder(shape: Any) -> msgspec.msgpack.Decoder[Any]:
    """The MessagePack decoder for a type."""
    found = _msgpack.get(shape)
    if found is None:
        with _lock:
            found = _msgpack[shape] = msgspec.msgpack.Decoder(shape)
    return found


@overload
def convert(data: Any, shape: type[T], *, strict: bool = True) -> T: ...
@overload
def convert(data: Any, shape: Any, *, strict: bool = True) -> Any: ...
def convert(data: Any, shape: Any, *, strict: bool = True) -> Any:
    """Convert plain data to a type. Raises `msgspec.ValidationError`."""
    json_decoder(shape)
    return msgspec.convert(data, shape, strict=strict)
