"""Decoders from JSON, MessagePack and plain data to msgspec Structs, with one shared decoder for each type.

All code that makes Structs from data must use this module; a test checks that. The reason is a bug of msgspec (seen in
0.22): it collects the fields of a Struct on first use. If a second thread uses the Struct at the same time, it finds
only some of the fields, and the process ends with a segmentation fault. Here a lock prevents that.
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
    """The JSON decoder for a type, such as a Struct, a union of Structs or a generic type."""
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
