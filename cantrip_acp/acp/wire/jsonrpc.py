"""JSON-RPC 2.0 messages: splits the input into lines, parses messages, and defines replies, errors and error codes.

A message is parsed in two steps: first its envelope (`parse_envelope`), later its parameters (`decode_params`). An id is
kept as bytes, so that a reply repeats exactly what was sent: an integer of any size, a string or null.
"""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any, ClassVar, TypeVar

import msgspec
from msgspec import Raw

from cantrip_acp.text import codecs

T = TypeVar("T")

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
REQUEST_CANCELLED = -32800
AUTH_REQUIRED = -32000
RESOURCE_NOT_FOUND = -32002

ABSENT = Raw(b"")


class RpcError(Exception):
    """A JSON-RPC error, sent or received. ``data`` is JSON data for programs, such as ``{"field": "cwd"}``."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data


def one_line(message: str) -> str:
    """Join the lines of an error message, because JSON-RPC errors have a message of one line."""
    return "; ".join(filter(None, map(str.strip, message.splitlines()))) or "Error"


class ErrorObject(msgspec.Struct, omit_defaults=True):
    code: int
    message: str
    data: Any = None

    @classmethod
    def of(cls, error: RpcError) -> ErrorObject:
        """The error in the form that is sent. A message of several lines is also sent whole, as ``details`` of the data."""
        message, data = one_line(error.message), error.data
        if len(error.message.strip().splitlines()) > 1 and isinstance(data, dict | None):
            known = data or {}
            if not any(isinstance(each, str) and one_line(each) in message and "\n" in each for each in known.values()):
                data = {**known, "details": error.message.strip()}
        return cls(error.code, message, data)


class Reply(msgspec.Struct):
    id: Raw
    result: Any
    jsonrpc: str = "2.0"


class ErrorReply(msgspec.Struct):
    id: Raw
    error: ErrorObject
    jsonrpc: str = "2.0"
    diagnostics: ClassVar = ("error",)


class Notification(msgspec.Struct):
    method: str
    params: Any
    jsonrpc: str = "2.0"


class FailureNotification(Notification):
    """A notification that tells of an error."""

    diagnostics: ClassVar = ("params",)


class OutgoingRequest(msgspec.Struct):
    id: int
    method: str
    params: Any
    jsonrpc: str = "2.0"


class Envelope(msgspec.Struct):
    """A received message with members that are not decoded yet. An absent member is empty."""

    jsonrpc: Raw = ABSENT
    id: Raw = ABSENT
    method: Raw = ABSENT
    params: Raw = ABSENT
    result: Raw = ABSENT
    error: Raw = ABSENT


class Id(msgspec.Struct, frozen=True):
    """The id of a request: its bytes for the reply, and a key for comparison, in which 1 and "1" differ."""

    raw: Raw
    key: tuple[str, Any]


NULL_ID = Id(Raw(b"null"), ("null", None))

_decode = codecs.json_decoder(Envelope).decode
_decoder = cache(codecs.json_decoder)


def member_value(raw: Raw) -> Any:
    """The value of a member that may be anything. A number that Python cannot hold, such as 1e400, is NaN."""
    try:
        return msgspec.json.decode(raw)
    except (ValueError, RecursionError):
        return float("nan")


def parse_id(raw: Raw) -> Id | None:
    """Parse an id. Returns None if it is not a string, an integer or null."""
    value = member_value(raw)
    if value is None:
        return NULL_ID
    if isinstance(value, str):
        return Id(raw, ("string", value))
    if isinstance(value, int) and not isinstance(value, bool):
        return Id(raw, ("number", value))
    if isinstance(value, float) and value.is_integer():
        return Id(raw, ("number", int(value)))
    return None


class Message(msgspec.Struct):
    """A received message: a request or notification (``method``), or an answer. ``problem`` says why it is neither; ``id`` is
    then the one to answer with."""

    envelope: Envelope
    id: Id = NULL_ID
    method: str = ""
    problem: RpcError | None = None


def parse_message(line: bytes) -> Message:
    """Parse the message of a line. Its members are not decoded yet."""
    message = Message(Envelope())
    try:
        envelope = message.envelope = _parse_envelope(line)
        is_call = bool(envelope.method)
        is_answer = not is_call and bool(envelope.result or envelope.error)
        if envelope.id:
            message_id = parse_id(envelope.id)
            if message_id is None:
                raise RpcError(INVALID_REQUEST, "Invalid request: an id is a string, an integer or null")
            # The id of an answer is an id of this side. An error with that id would look like an answer to a request
            # of the other side.
            message.id = NULL_ID if is_answer else message_id
        if envelope.jsonrpc != b'"2.0"' and (not envelope.jsonrpc or member_value(envelope.jsonrpc) != "2.0"):
            raise RpcError(INVALID_REQUEST, 'Invalid request: "jsonrpc" must be "2.0"')
        if is_answer:
            return message
        if not is_call:
            raise RpcError(INVALID_REQUEST, "Invalid request: a message has a method, or an id and a result or error")
        method = member_value(envelope.method)
        if not isinstance(method, str):
            raise RpcError(INVALID_REQUEST, "Invalid request: the method must be a string")
        if envelope.id and bytes(memoryview(envelope.params)[:1]) not in (b"{", b"[", b"n", b""):
            raise RpcError(INVALID_REQUEST, "Invalid request: params must be an object")
        message.method = method
    except RpcError as problem:
        message.problem = problem
    return message


def _parse_envelope(line: bytes) -> Envelope:
    """Parse the message of a line. Raises `RpcError` -32700 for invalid JSON, and -32600 if it is not an object."""
    try:
        line.decode()
        try:
            return _decode(line)
        except msgspec.ValidationError:
            # It is not an object. msgspec stopped there, so the rest may still be invalid JSON.
            msgspec.json.decode(line)
            raise _not_a_message(line) from None
        except msgspec.DecodeError:
            if b"\\u" not in line:
                raise
            # JSON allows half of a surrogate pair in an escape, and JavaScript writes it when it cuts a string.
            return _decode(_without_lone_surrogates(line))
    except UnicodeDecodeError as problem:
        raise RpcError(PARSE_ERROR, f"Parse error: the line is not UTF-8 (byte {problem.start})") from None
    except RecursionError:
        raise RpcError(PARSE_ERROR, "Parse error: the message is nested too deeply") from None
    except ValueError as problem:
        raise RpcError(PARSE_ERROR, f"Parse error: {problem}") from None


def _not_a_message(line: bytes) -> RpcError:
    if line.lstrip()[:1] == b"[":
        return RpcError(
            INVALID_REQUEST, "Invalid request: ACP has no JSON-RPC batches; send each message on a separate line"
        )
    return RpcError(INVALID_REQUEST, "Invalid request: a message is a JSON object")


def _without_lone_surrogates(line: bytes) -> bytes:
    def refuse(constant: str) -> Any:
        raise ValueError(f"{constant} is not JSON")

    text = json.dumps(json.loads(line, parse_constant=refuse), ensure_ascii=False)
    return text.encode("utf-8", "replace")


_FIELD = re.compile(r"(?:missing required field `(?P<missing>[^`]+)`)?(?: - at `\$\.?(?P<path>[^`]*)`)?$")


def invalid_params(problem: str, field: str | None = None) -> RpcError:
    """Error -32602 with the name of the field."""
    message = f"Invalid params: {field}: {problem}" if field else f"Invalid params: {problem}"
    return RpcError(INVALID_PARAMS, message, {"field": field, "problem": problem} if field else {"problem": problem})


def decode_params(raw: Raw, shape: Any) -> Any:
    """Decode parameters as the type ``shape``. Absent and null parameters count as an empty object.

    Raises `RpcError` -32602 with the name of the wrong field.
    """
    data = bytes(raw)
    if not data or data == b"null":
        data = b"{}"
    if data[:1] == b"[":
        raise invalid_params("must be an object with named members, not an array")
    try:
        return _decoder(shape).decode(data)
    except RecursionError:
        raise invalid_params("nested too deeply") from None
    except msgspec.DecodeError as problem:
        raise _wrong_field(problem) from None


def meta_of(meta: Any, shape: type[T], *names: str) -> T:
    """``_meta``, or the object ``_meta.NAME`` in it, as the type ``shape``. Anything else than an object counts as an empty one.

    Raises `RpcError` -32602 with the name of the wrong field.
    """
    for name in names:
        meta = meta.get(name) if isinstance(meta, dict) else None
    try:
        return codecs.convert(meta if isinstance(meta, dict) else {}, shape)
    except msgspec.ValidationError as problem:
        raise _wrong_field(problem, "_meta", *names) from None


def _wrong_field(problem: msgspec.DecodeError, *within: str) -> RpcError:
    """The error for a problem of msgspec, whose text ends with the path of the field."""
    text = str(problem)
    found = _FIELD.search(text)
    missing, path = (found["missing"], found["path"]) if found else (None, None)
    field = ".".join(part for part in (*within, path, missing) if part)
    what = "required, and missing" if missing else text.partition(" - at ")[0]
    return invalid_params(what[:1].lower() + what[1:], field or None)


MAX_LINE = 64 * 1024 * 1024
"""Bytes of the longest accepted line. A longer line is dropped while it is read."""


class TooLong:
    """Stands in the result of `LineSplitter` in place of a line that was too long."""


TOO_LONG = TooLong()


class LineSplitter:
    """Splits byte chunks of any size into lines (ACP, Transports). Memory use stays within the limit for one line."""

    def __init__(self, max_line: int = MAX_LINE) -> None:
        self._max = max_line
        self._parts: list[bytes] = []
        self._size = 0
        self._skipping = False

    def feed(self, chunk: bytes) -> list[bytes | TooLong]:
        """Add a chunk. Returns the lines that are now complete, without their newlines."""
        first, newline, rest = chunk.partition(b"\n")
        if not newline:
            lines: list[bytes | TooLong] = []
            if self._add(first):
                lines.append(TOO_LONG)
            return lines
        *middle, last = rest.split(b"\n")
        lines = self._finish_line(first)
        lines.extend(line if len(line) <= self._max else TOO_LONG for line in middle)
        if last and self._add(last):
            lines.append(TOO_LONG)
        return lines

    def end(self) -> list[bytes | TooLong]:
        """Return the text after the last newline. Call this at the end of the input."""
        return self._finish_line(b"") if self._parts else []

    def _add(self, part: bytes) -> bool:
        """Store a part of an unfinished line. Returns True once, when the line becomes too long."""
        if self._skipping:
            return False
        self._size += len(part)
        if self._size > self._max:
            self._parts.clear()
            self._skipping = True
            return True
        if part:
            self._parts.append(part)
        return False

    def _finish_line(self, part: bytes) -> list[bytes | TooLong]:
        too_long = self._add(part)
        line = b"".join(self._parts)
        dropped = self._skipping
        self._parts.clear()
        self._size = 0
        self._skipping = False
        if too_long:
            return [TOO_LONG]
        return [] if dropped else [line]
