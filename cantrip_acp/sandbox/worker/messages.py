"""Messages of a code worker, checked strictly: anything that does not decode as one of these is ignored."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

_Text = Annotated[str, msgspec.Meta(max_length=20_000)]
_Name = Annotated[str, msgspec.Meta(max_length=300)]
_Token = Annotated[str, msgspec.Meta(max_length=64)]
_Number = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class Ready(msgspec.Struct, frozen=True, tag_field="t", tag="ready", forbid_unknown_fields=True):
    """The first message: the interpreter runs."""

    python: _Name
    executable: Annotated[str, msgspec.Meta(max_length=4096)]


class Called(msgspec.Struct, frozen=True, tag_field="t", tag="call", forbid_unknown_fields=True):
    """A gate call; the answer has the same id. ``cell`` is the token of the calling cell."""

    id: _Number
    gate: _Name
    args: dict[str, Any]
    cell: _Token = ""


class LoomRead(msgspec.Struct, frozen=True, tag_field="t", tag="loom", forbid_unknown_fields=True):
    """A request for turns of the entity's own history (LOOM-11)."""

    id: _Number
    start: _Number
    count: Annotated[int, msgspec.Meta(ge=0, le=1000)]
    cell: _Token = ""


class Ended(msgspec.Struct, frozen=True, tag_field="t", tag="end", forbid_unknown_fields=True):
    """A cell has ended. ``names`` are the names in the namespace, if they changed."""

    cell: _Number
    value: _Text | None
    error: _Text | None
    done: bool
    names: Annotated[list[_Name], msgspec.Meta(max_length=200)] | None = None


class Began(msgspec.Struct, frozen=True, tag_field="t", tag="began", forbid_unknown_fields=True):
    """A separate process makes the snapshot from now on, so the worker can be stopped."""


class State(msgspec.Struct, frozen=True, tag_field="t", tag="state", forbid_unknown_fields=True):
    """A snapshot was sent or loaded; ``error`` says why not."""

    error: _Text | None
    size: _Number
    names: Annotated[list[_Name], msgspec.Meta(max_length=2000)] = []
    missing: Annotated[list[tuple[_Name, _Name]], msgspec.Meta(max_length=200)] = []
    modules: Annotated[list[_Name], msgspec.Meta(max_length=500)] = []


class Schema(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The type of an argument, in a small subset of JSON Schema: no references and no patterns."""

    type: Literal["string", "integer", "number", "boolean", "null", "array", "object"] | msgspec.UnsetType = (
        msgspec.UNSET
    )
    items: Schema | msgspec.UnsetType = msgspec.UNSET
    anyOf: Annotated[list[Schema], msgspec.Meta(min_length=1, max_length=50)] | msgspec.UnsetType = msgspec.UNSET  # noqa: N815
    enum: (
        Annotated[list[str | int | float | bool | None], msgspec.Meta(min_length=1, max_length=200)] | msgspec.UnsetType
    ) = msgspec.UNSET


class Parameter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One argument of a module's function."""

    name: _Name
    schema: Schema
    required: bool
    default: Any = msgspec.UNSET


class Offer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A function that a module defines as a gate."""

    name: _Name
    doc: _Text
    parameters: Annotated[list[Parameter], msgspec.Meta(max_length=32)]


class Loaded(msgspec.Struct, frozen=True, tag_field="t", tag="loaded", forbid_unknown_fields=True):
    """A module was loaded; ``error`` says why not."""

    call: _Number
    error: _Text | None
    gates: Annotated[list[Offer], msgspec.Meta(max_length=64)] = []


class Answered(msgspec.Struct, frozen=True, tag_field="t", tag="answer", forbid_unknown_fields=True):
    """A module's function has returned ``result``, or failed with ``error``."""

    call: _Number
    error: _Text | None
    result: Any = None


Message = Ready | Called | LoomRead | Ended | Began | State | Loaded | Answered

_decoder = msgspec.json.Decoder(Message, strict=True)


def decode(body: bytes) -> Message | None:
    """Decode a message; None for an invalid one."""
    try:
        said: Message = _decoder.decode(body)
        return said
    except (msgspec.DecodeError, RecursionError, UnicodeError, ValueError):
        return None
