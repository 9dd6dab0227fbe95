"""What a code worker may say, checked strictly: whatever does not decode as one of these was never said."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

_Text = Annotated[str, msgspec.Meta(max_length=20_000)]
_Name = Annotated[str, msgspec.Meta(max_length=300)]
_Number = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class Ready(msgspec.Struct, frozen=True, tag_field="t", tag="ready", forbid_unknown_fields=True):
    """The first message: the interpreter runs."""

    python: _Name
    executable: Annotated[str, msgspec.Meta(max_length=4096)]


class Called(msgspec.Struct, frozen=True, tag_field="t", tag="call", forbid_unknown_fields=True):
    """A gate is wanted; the answer carries the same id."""

    id: _Number
    gate: _Name
    args: dict[str, Any]


class LoomRead(msgspec.Struct, frozen=True, tag_field="t", tag="loom", forbid_unknown_fields=True):
    """Turns of the entity's own history are wanted (LOOM-11)."""

    id: _Number
    start: _Number
    count: Annotated[int, msgspec.Meta(ge=0, le=1000)]


class Ended(msgspec.Struct, frozen=True, tag_field="t", tag="end", forbid_unknown_fields=True):
    """A cell has ended. ``names`` are what the namespace holds now, where that changed."""

    cell: _Number
    value: _Text | None
    error: _Text | None
    done: bool
    names: Annotated[list[_Name], msgspec.Meta(max_length=200)] | None = None


class State(msgspec.Struct, frozen=True, tag_field="t", tag="state", forbid_unknown_fields=True):
    """A snapshot was sent, or one was opened; ``error`` says why not."""

    error: _Text | None
    size: _Number
    names: Annotated[list[_Name], msgspec.Meta(max_length=2000)] = []
    missing: Annotated[list[tuple[_Name, _Name]], msgspec.Meta(max_length=200)] = []
    modules: Annotated[list[_Name], msgspec.Meta(max_length=500)] = []


Message = Ready | Called | LoomRead | Ended | State

_decoder = msgspec.json.Decoder(Message, strict=True)


def decode(body: bytes) -> Message | None:
    """The message, None for what is none."""
    try:
        said: Message = _decoder.decode(body)
        return said
    except (msgspec.DecodeError, RecursionError, UnicodeError, ValueError):
        return None
