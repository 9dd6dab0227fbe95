"""Chunks and their placements: the shape of everything in the substrate, and of a change to it.

Every chunk is also a scope: others may be placed on it. Nothing is overwritten. A change adds versions of chunks and
records of placements, and gets the next commit number.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from cantrip_acp.text.codecs import convert
from cantrip_acp.text.json_data import thaw
from cantrip_acp.text.json_schema import Schema
from cantrip_acp.text.redaction import holds_shape
from cantrip_acp.types.errors import DefinitionError

Kind = Literal["instance", "relates"]
"""``instance``: the chunk belongs to the scope. ``relates``: a reference to it, or the definition of a type."""

PROCESS = "process-"
"""The beginning of the ids of program runs."""
RECORDED = ("session:", "program:")
"""The beginning of the sources of all chunks that sessions and program runs wrote."""
LARGEST_BODY = 1_000_000
"""Maximum size of a chunk's body, in bytes of JSON."""
MOST_CHANGES = 10_000
"""Maximum number of chunks, of placements and of removals in one commit."""
_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_:./@+~-]{0,199}\Z")
_NAME = re.compile(r"[^\x00-\x1f\x7f\x85\u2028\u2029\ud800-\udfff]{1,200}\Z")
_DEEPEST = 40
_MOST_NAMES = 1_000
"""Maximum number of names that a spec accepts, and of keys that it requires."""


class SubstrateError(DefinitionError):
    """The substrate cannot be opened, read or changed. The text names the chunk, the scope and the rule."""


class ChunkNotFound(SubstrateError):
    """No chunk has this id, or it lies outside the reader's boundary: both look the same."""


class OutsideBoundary(SubstrateError):
    """A read or write reached outside the caller's boundary. It was refused and recorded."""


class CommitRefused(SubstrateError):
    """A change breaks a rule. Nothing of its commit was stored. ``rule`` is the rule's name, such as ``accepts``."""

    def __init__(self, rule: str, text: str, *, chunk: str | None = None, scope: str | None = None) -> None:
        where = [f"chunk {chunk!r}" if chunk else "", f"scope {scope!r}" if scope else ""]
        super().__init__(f"commit refused ({', '.join(filter(None, [*where, f'rule {rule}']))}): {text}")
        self.rule, self.chunk, self.scope = rule, chunk, scope


class Spec(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The rules of a chunk as a scope.

    - ``propagate``: its instances have its ``ordered`` and ``accepts`` too.
    - ``ordered``: chunks on it have a place in a sequence.
    - ``accepts``: the names of the types whose instances may be placed on it; empty: anything.
    - ``required``: the keys that the body of each instance must have.
    """

    propagate: bool = False
    ordered: bool = False
    accepts: tuple[str, ...] = ()
    required: tuple[str, ...] = ()

    @property
    def archetype(self) -> bool:
        """Whether the chunk is a type. Being an instance of a type describes a chunk, and is no way to reach it."""
        return self.propagate or bool(self.required)


class Chunk(msgspec.Struct, frozen=True):
    """One version of a chunk. ``source`` says where it comes from; ``commit`` is the number of the commit that made this
    version."""

    id: str
    name: str
    spec: Spec
    body: Mapping[str, Any]
    source: str
    commit: int

    @property
    def is_process(self) -> bool:
        """Whether the chunk is one run of a program: only the engine makes such ids."""
        return self.id.startswith(PROCESS) and ":" not in self.id

    @property
    def is_record(self) -> bool:
        """Whether the chunk records a question, action or output of a session or run. All other chunks are knowledge, or
        types."""
        return self.id.startswith(PROCESS) or self.source.startswith(RECORDED)

    @property
    def text(self) -> str:
        """The text of its body; empty if it has none."""
        text = self.body.get("text")
        return text if isinstance(text, str) else ""


class Placement(msgspec.Struct, frozen=True):
    """A chunk on a scope. ``sequence`` is its place if the scope is ordered."""

    chunk: str
    scope: str
    kind: Kind
    sequence: int | None
    commit: int


class Placed(msgspec.Struct, frozen=True):
    """A chunk as a scope shows it."""

    chunk: Chunk
    kind: Kind
    sequence: int | None


class Scope(msgspec.Struct, frozen=True):
    """A chunk with what is placed on it: instances before references, each by sequence, then by name."""

    chunk: Chunk
    placed: tuple[Placed, ...]


class NewChunk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A chunk to store: a new one, or a new version of the one with this id."""

    id: str
    name: str
    spec: Spec = Spec()
    body: dict[str, Any] = {}


class NewPlacement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A placement to store. An ordered scope gives the next number if ``sequence`` is None."""

    chunk: str
    scope: str
    kind: Kind = "instance"
    sequence: int | None = None


class Removal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The end of a placement. The chunk stays, and so does the placement's history."""

    chunk: str
    scope: str
    kind: Kind = "instance"


class Change(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one commit adds. All of it is stored, or nothing."""

    chunks: Sequence[NewChunk] = ()
    placements: Sequence[NewPlacement] = ()
    removals: Sequence[Removal] = ()

    def touched(self) -> list[NewPlacement | Removal]:
        """The placements that the change adds, moves or ends."""
        return [*self.placements, *self.removals]


class Commit(msgspec.Struct, frozen=True):
    """A stored change. ``at`` is the time in seconds since 1970; ``changed`` counts new versions and placements.

    If nothing was new, ``changed`` is 0 and ``number`` is that of the commit before.
    """

    number: int
    at: float
    author: str
    source: str
    message: str = ""
    changed: int = 0


class Hit(msgspec.Struct, frozen=True):
    """A chunk that a search found. ``snippet`` has the words in ``[ ]``."""

    chunk: Chunk
    snippet: str


class Difference(msgspec.Struct, frozen=True):
    """The changes between two commits: the last version of each chunk, and the placements that began, moved or ended."""

    chunks: tuple[Chunk, ...]
    placed: tuple[Placement, ...]
    removed: tuple[Placement, ...]


class Refusal(msgspec.Struct, frozen=True):
    """A read or write that a boundary refused."""

    at: float
    author: str
    operation: str
    chunk: str
    text: str


def parse_change(data: Any) -> Change:
    """Make a change from plain data of a program. Raises `CommitRefused`, which names the field."""
    try:
        return convert(data, Change)
    except (msgspec.ValidationError, UnicodeError) as error:
        raise CommitRefused("shape", str(error)) from None
    except RecursionError:
        raise CommitRefused("shape", "the data is nested too deeply") from None


def check_change(change: Change) -> None:
    """Check ids, names, sizes and secrets, for which no store is needed. Raises `CommitRefused`."""
    for what in ("chunks", "placements", "removals"):
        if len(getattr(change, what)) > MOST_CHANGES:
            raise CommitRefused("size", f"a commit has at most {MOST_CHANGES:,} {what}; split it")
    seen: set[str] = set()
    for chunk in change.chunks:
        _check_id(chunk.id)
        if chunk.id in seen:
            raise CommitRefused("id", "the same chunk is in this commit twice", chunk=chunk.id)
        seen.add(chunk.id)
        if not _NAME.match(chunk.name) or not chunk.name.strip():
            raise CommitRefused("name", "a name is one line of 1 to 200 characters", chunk=chunk.id)
        if len(chunk.spec.accepts) > _MOST_NAMES or len(chunk.spec.required) > _MOST_NAMES:
            raise CommitRefused("spec", f"a spec has at most {_MOST_NAMES:,} names", chunk=chunk.id)
        for name in (*chunk.spec.accepts, *chunk.spec.required):
            if not _NAME.match(name):
                raise CommitRefused("spec", f"{name[:80]!r} is not a name", chunk=chunk.id)
        wrong = why_not_stored(chunk.body)
        if wrong is not None:
            raise CommitRefused("body", f"the body {wrong}", chunk=chunk.id)
    touched: set[tuple[str, str, str]] = set()
    for each in change.touched():
        if (key := (each.chunk, each.scope, each.kind)) in touched:
            raise CommitRefused(
                "placement", "the same placement is in this commit twice", chunk=each.chunk, scope=each.scope
            )
        touched.add(key)
    for placement in change.placements:
        _check_id(placement.chunk)
        _check_id(placement.scope)
        if placement.chunk == placement.scope:
            raise CommitRefused("placement", "a chunk cannot be placed on itself", chunk=placement.chunk)
        if placement.sequence is not None and not 0 <= placement.sequence < 2**53:
            raise CommitRefused(
                "sequence", "a sequence number is not negative", chunk=placement.chunk, scope=placement.scope
            )
    for removal in change.removals:
        _check_id(removal.chunk)
        _check_id(removal.scope)


def refuse_secrets(change: Change) -> None:
    """Raise `CommitRefused` if a body seems to contain a key or a password, or cannot be stored."""
    check_change(change)
    for chunk in change.chunks:
        if holds_shape(chunk.body):
            raise CommitRefused(
                "secret", "the body contains a text that looks like a secret, so it is not stored", chunk=chunk.id
            )


def encode_body(body: Mapping[str, Any]) -> bytes:
    """The body as JSON with sorted keys, so that equal bodies have equal bytes."""
    return msgspec.json.encode(body, order="sorted")


def why_not_stored(body: Mapping[str, Any]) -> str | None:
    """Why a body cannot be stored: it is not JSON, or too large. None if it can."""
    wrong = _why_not_json(body)
    if wrong is not None:
        return f"is not JSON: it {wrong}"
    try:
        size = len(encode_body(body))
    except (TypeError, ValueError, RecursionError, UnicodeError) as error:
        return f"is not JSON: {error}"
    return None if size <= LARGEST_BODY else f"has {size:,} bytes; at most {LARGEST_BODY:,} are stored"


def is_project(chunk_id: str) -> bool:
    """Whether this is the id of a project itself, not of one of the project's scopes."""
    return chunk_id.startswith("project:") and chunk_id.count(":") == 1


def breach(body: Mapping[str, Any], schema: Any) -> str | None:
    """Find the first value of a body that does not fit a type's ``body.schema``, which has a JSON Schema for each key. An
    invalid schema checks nothing."""
    for key, each in schema.items() if isinstance(schema, Mapping) else ():
        if key in body:
            try:
                problems = Schema(thaw(each)).problems(thaw(body[key]), 1)
            except (ValueError, TypeError, RecursionError):
                continue
            if problems:
                return f"its {key!r} does not fit: {one_line(problems[0])}"
    return None


def one_line(text: str, most: int = 200) -> str:
    """Make a name of a text: its printable characters on one line, at most ``most`` of them. Empty if there are none."""
    line = " ".join("".join(each if each.isprintable() else " " for each in text).split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def _check_id(text: str) -> None:
    if not _ID.match(text):
        raise CommitRefused(
            "id", f"{text[:80]!r} is not an id: 1 to 200 letters, digits and _ : . / @ + ~ -, not beginning with a sign"
        )


def _why_not_json(value: Any, left: int = _DEEPEST) -> str | None:
    """Find a value that JSON cannot express exactly: NaN, bytes, keys that are not text. None if the value is JSON."""
    if value is None or isinstance(value, (str, bool, int)):
        return None
    if isinstance(value, float):
        return None if math.isfinite(value) else f"holds {value}"
    if not isinstance(value, (Mapping, list, tuple)):
        return f"holds data of type {type(value).__name__}"
    if left == 0:
        return f"is nested deeper than {_DEEPEST} levels"
    if isinstance(value, Mapping) and not all(isinstance(key, str) for key in value):
        return "has a key that is no text"
    inside = value.values() if isinstance(value, Mapping) else value
    return next((why for each in inside if (why := _why_not_json(each, left - 1)) is not None), None)
