"""Event stream: passes on the server-sent events that have data, before a provider's SDK reads them.

The standard says that an event without data is ignored, and that comments and unknown fields mean nothing. The SDKs do not
all keep to this, and gateways send such events as heartbeats. The data itself is not changed.
https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import AsyncIterator
from typing import Any, Literal

import msgspec

from cantrip_acp.text.codecs import json_decoder

DONE = b"[DONE]"
"""The data of the event that ends a stream of OpenAI's API."""

_BOM = b"\xef\xbb\xbf"
_LINE_END = re.compile(rb"\r\n?|\n")
_FIELDS = (b"data", b"event", b"id", b"retry", b"")
"""The names of fields. A comment has an empty name."""
Api = Literal["openai", "anthropic", "google"]
JSON = (b"{", b"[")
"""The first characters of a JSON object and of a list."""
_KNOWN = re.compile(rb"message|error|response\.|content_block")
"""Matches the names of the APIs' own events. Their data is read even if it is not a JSON object, so that a fault is reported."""


class EventReader:
    """Reads one body. Give it the bytes as they arrive: `feed`, and `finish` at the end.

    A body that is no event stream passes unchanged, without a byte order mark. ``streamed``: whether the content type says
    that it is one. ``api`` names the SDK that reads on: Anthropic's reads only events with a name, and Google's knows neither
    names nor `DONE` nor a list of all chunks.
    """

    __slots__ = ("_api", "_beyond", "_data", "_json", "_line", "_list", "_name", "_raw", "_start", "_streamed")

    def __init__(self, api: Api, *, streamed: bool) -> None:
        self._streamed = streamed
        self._api = api
        self._start: bytes | None = b""
        """The bytes of the beginning, until it is clear what they are."""
        self._json = False
        self._list = bytearray()
        self._line = bytearray()
        self._beyond = False
        """Whether the last line ended with a carriage return, so that a line feed may belong to it."""
        self._name: bytes | None = None
        self._data: list[bytes] = []
        self._raw: list[bytes] = []
        """Lines of JSON that is not in an event. Gemini reports an error like this."""

    def feed(self, piece: bytes) -> bytes:
        """Returns the part of the body that the SDK can read so far."""
        if self._start is not None:
            self._start += piece
            events = self._is_stream(self._start)
            if events is None:
                return b""
            piece, self._start = _without_mark(self._start), None
            self._json = not events
            if self._json and self._api == "google" and piece.lstrip().startswith(b"["):
                self._list += b" "
        if self._list:
            self._list += piece
            return b""
        return piece if self._json else self._events(piece)

    def finish(self) -> bytes:
        """Returns the rest. An event without a blank line after it is passed on only if its data is complete."""
        if self._start is not None:
            rest, self._start = self._start, None
            if not self._is_stream(rest + b"\n"):
                return _without_mark(rest)
            out = self._events(_without_mark(rest))
        elif self._list:
            return self._split()
        else:
            out = b""
        if self._line:
            out += self._field(bytes(self._line))
            self._line.clear()
        return out + (self._event() if _are_json(self._data) or _is_json(b"\n".join(self._data)) else b"")

    def _is_stream(self, start: bytes) -> bool | None:
        """Whether the body is an event stream. None: more bytes are needed."""
        if len(start) < len(_BOM) and _BOM.startswith(start):
            return None
        text = _without_mark(start).lstrip()
        if not text:
            return None
        if text.startswith((*JSON, b"<")):
            return False
        if self._streamed:
            return True
        name, colon, _ = text.partition(b":")
        if colon:
            return name in _FIELDS
        lines = _LINE_END.split(text, 1)
        if len(lines) > 1 or len(text) > len(b"event"):
            return lines[0] in _FIELDS and len(lines) > 1
        return None

    def _events(self, piece: bytes) -> bytes:
        if self._beyond and piece.startswith(b"\n"):
            piece = piece[1:]
        elif not piece:
            return b""
        self._beyond = piece.endswith(b"\r")
        out = bytearray()
        at = 0
        for end in _LINE_END.finditer(piece):
            self._line += piece[at : end.start()]
            at = end.end()
            line = bytes(self._line)
            self._line.clear()
            out += self._field(line) if line else self._event()
        self._line += piece[at:]
        return bytes(out)

    def _field(self, line: bytes) -> bytes:
        """Read one line. Returns an event if the line is one by itself."""
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
        elif name == b"event":
            self._name = value.removeprefix(b" ").strip()
        elif self._raw or line.startswith(JSON):
            self._raw.append(line)
            if line.rstrip().endswith((b"}", b"]")) and _is_json(whole := b" ".join(self._raw)):
                self._raw = []
                return self._written(None, [whole])
        return b""

    def _event(self) -> bytes:
        """Returns the event that ends here; nothing if it has no data."""
        # A blank line means nothing in JSON, but the SDKs do not all read it.
        name, data = self._name, [line for line in self._data if line.strip()]
        self._name, self._data = None, []
        whole = b"\n".join(data)
        bare = whole.strip()
        if not bare or (bare == DONE and self._api == "google"):
            return b""
        if name and not _KNOWN.match(name) and bare != DONE and not bare.startswith(JSON):
            return b""  # The heartbeat of a gateway, with a text or a time.
        if len(data) > 1 and not _is_json(whole) and _are_json(data):
            # Events that are separated by the end of the line alone.
            return b"".join(
                self._written(name, [each]) for each in data if each.strip() != DONE or self._api != "google"
            )
        return self._written(name, data)

    def _written(self, name: bytes | None, data: list[bytes]) -> bytes:
        if self._api == "anthropic" and not name:
            name = _type_of(b"\n".join(data))
        head = b"event: " + name + b"\n" if name and self._api != "google" else b""
        return head + b"".join(b"data: " + line + b"\n" for line in data) + b"\n"

    def _split(self) -> bytes:
        """Returns the chunks of a list as events; the body as it was if it is no list."""
        try:
            chunks = json_decoder(list[msgspec.Raw]).decode(self._list)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return bytes(self._list)
        return b"".join(self._written(None, _LINE_END.split(bytes(each))) for each in chunks)


async def begins_with_json(response: Any) -> bool:
    """Whether a response of which nothing was read is a JSON value instead of an event stream. Its body can still be read."""
    return (await beginning(response)).startswith(JSON)


async def beginning(response: Any) -> bytes:
    """The first bytes of a response of which nothing was read, without blanks. Its body can still be read."""
    pieces = response.aiter_bytes()
    read: list[bytes] = []
    async for piece in pieces:
        read.append(piece)
        if piece.strip():
            break
    before, rest = b"".join(read), [pieces]

    async def again(chunk_size: int | None = None) -> AsyncIterator[bytes]:
        # The response must not keep the generator: in a cycle with it, the generator would be closed by the garbage collector,
        # and so at any time and in any thread.
        if not rest:
            return
        async with contextlib.aclosing(rest.pop()) as after:
            if before:
                yield before
            async for piece in after:
                yield piece

    response.aiter_bytes = again
    return before.lstrip()


def _without_mark(start: bytes) -> bytes:
    return start.removeprefix(_BOM)


def _is_json(text: bytes) -> bool:
    try:
        json_decoder(msgspec.Raw).decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        # Half of a surrogate pair may be in a text, which the SDKs read.
        return _value(text) is not None
    return True


def _value(text: bytes) -> Any:
    """The value as the SDKs read it; None if it is no JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _are_json(lines: list[bytes]) -> bool:
    """Whether each line is an event's data by itself."""
    return all(each.strip() in (b"", DONE) or _is_json(each) for each in lines)


def _type_of(text: bytes) -> bytes | None:
    value = _value(text)
    kind = value.get("type") if isinstance(value, dict) else None
    return kind.encode("utf-8", "replace") if isinstance(kind, str) else None
