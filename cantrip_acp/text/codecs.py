"""Structs of data: msgspec's decoders, each made once and by one thread.

msgspec learns a Struct's fields when it first meets it, and lets other threads run meanwhile. One that comes with the same
Struct then finds half of them, and the process ends with a segmentation fault (seen with msgspec 0.22). So whatever makes
Structs of data asks here; tests/house holds that.
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
    """The decoder of JSON for a shape: a Struct, a union of them, a generic."""
    found = _json.get(shape)
    if found is None:
        with _lock:
            found = _json[shape] = msgspec.json.Decoder(shape)
    return found


def msgpack_decoder(shape: Any) -> msgspec.msgpack.Decoder[Any]:
    """The decoder of MessagePack for a shape."""
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
    """Plain data as a shape. Raises `msgspec.ValidationError`."""
    json_decoder(shape)
    return msgspec.convert(data, shape, strict=strict)
