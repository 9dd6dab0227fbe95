"""What a database of the substrate offers. `substrate.substrate.Substrate` has the rules; a store only keeps versions.

Every record has the number of its commit. "As of commit N" means: of each chunk the latest version, and of each
placement the latest record, with a number of at most N.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, Protocol

import msgspec

from cantrip_acp.substrate.chunks import Chunk, Commit, Kind, NewChunk, Placement, Refusal, Spec
from cantrip_acp.text.codecs import convert

NOW = 2**62
"""A commit number after every other."""

MOST_RANKED = 1_000
"""How many of the latest matches of a search are ranked together."""
Match = Literal["all", "beginning", "any"]
"""A search for all words, for all where the last one may be the beginning of a word, or for any of them."""


class Record(msgspec.Struct, frozen=True):
    """One record of a placement: its beginning or move, or (``removed``) its end."""

    chunk: str
    scope: str
    kind: Kind
    sequence: int | None
    commit: int
    removed: bool = False


class Separation(msgspec.Struct, frozen=True):
    """How a database separates its users.

    ``secured``: the database itself separates them, but not for a role that ``passes`` row security. ``nobodys``: the number
    of private chunks of earlier versions without an owner. ``grants``: the statements that each role needs.
    """

    role: str
    name: str
    secured: bool
    passes: bool
    nobodys: int
    grants: tuple[str, ...]


class View(Protocol):
    """One transaction. ``at`` is the number of a commit; later commits are not visible."""

    def latest(self) -> int:
        """The number of the latest commit; 0 if there is none."""

    def chunk(self, chunk_id: str, at: int = NOW) -> Chunk | None: ...

    def chunks(self, ids: Collection[str], at: int = NOW) -> list[Chunk]:
        """The existing chunks among these ids, in no order."""

    def named(self, name: str, at: int = NOW) -> list[Chunk]:
        """The chunks that have this name at that moment, latest first."""

    def names(self) -> list[str]:
        """The names of all chunks, for suggestions; at most 20,000."""

    def placed(self, scopes: Collection[str], at: int = NOW, *, ids: str = "") -> list[tuple[Chunk, Placement]]:
        """The chunks that are placed on any of the scopes, in no order; with ``ids``, those whose id begins with it."""

    def newest(self, scope: str, limit: int, at: int = NOW) -> list[Chunk]:
        """The latest ``limit`` instances on a scope, latest first."""

    def parents(self, chunk_id: str, at: int = NOW) -> list[Placement]:
        """The placements of a chunk."""

    def above(self, chunks: Collection[str], kinds: Collection[Kind], at: int = NOW) -> list[tuple[str, str, bool]]:
        """The placements of these kinds for any of the chunks: chunk, scope, and whether the placement makes the chunk an
        instance of a type."""

    def placement(self, scope: str, chunk_id: str, kind: Kind, at: int = NOW) -> Placement | None: ...

    def references(self, scope: str) -> list[Placement]:
        """The current reference placements on a scope."""

    def at_sequence(self, scope: str, sequence: int) -> list[Placement]:
        """The current placements with this number in the scope."""

    def highest_sequence(self, scope: str) -> int:
        """The highest number ever used in the scope; -1 if there is none."""

    def commits(self, scope: str | None, limit: int, before: int) -> list[Commit]:
        """Commits with a number below ``before``, latest first; with ``scope``, those that touch it or the chunks on it.

        References to the scope do not count: each session makes one to the scopes that it reads.
        """

    def changed(self, chunks: Collection[str], after: int) -> bool:
        """Whether a later commit has a version of one of the chunks, or a record of a placement on one."""

    def versions(self, after: int, until: int) -> list[Chunk]:
        """The chunk versions of the commits ``after`` (not included) to ``until``, in their order."""

    def records(self, after: int, until: int) -> list[Record]:
        """The placement records of the commits ``after`` (not included) to ``until``, in their order."""

    def search(
        self, words: Sequence[str], match: Match, at: int, limit: int, *, known: bool, skip: int = 0
    ) -> list[tuple[str, str]]:
        """Id and source of chunks whose latest version contains the words, best first, out of the latest `MOST_RANKED` after
        ``skip``.

        ``known``: search in knowledge, which is neither a type nor a record (`Chunk.is_record`); else in records.
        """

    def refusals(self, limit: int) -> list[Refusal]:
        """The latest refusals, latest first."""

    def add_commit(self, at: float, author: str, source: str, message: str) -> int: ...

    def set_changed(self, number: int, changed: int) -> None:
        """Store the number of changes of a commit. Called once, in the commit's own transaction."""

    def own(self, chunks: Collection[str]) -> set[str]:
        """The chunks among these that other users of the database cannot see."""

    def add_chunk(self, chunk: NewChunk, body: bytes, source: str, number: int, *, private: bool = False) -> None:
        """Add a chunk. In a database of several people, ``private`` makes it the user's own. A chunk is also private if
        its id says so (`owners.privacy`), or if its earlier version is."""

    def add_record(self, record: Record) -> None: ...

    def add_refusal(self, refusal: Refusal) -> None: ...


class Tables(Protocol):
    """A database of the substrate. It may be used by several threads and processes."""

    @property
    def location(self) -> str: ...

    @property
    def several_users(self) -> bool:
        """Whether several people may use the database, so that an id shows the owner of its chunk (`owners.privacy`)."""

    @property
    def user(self) -> str:
        """The present user; empty if the database belongs to one user."""

    def separation(self) -> Separation | None:
        """How the database separates its users; None if it belongs to one user."""

    def secure(self, earlier: str = "") -> int:
        """Let the database itself separate its users. ``earlier``: the role that gets the private chunks of earlier versions.

        Returns the number of that role's chunks. Raises `SubstrateError`, also if the database belongs to one user.
        """

    def reading(self) -> AbstractContextManager[View]: ...

    def writing(self, durable: bool = True) -> AbstractContextManager[View]:
        """A transaction for one writer at a time. An exception undoes all of it.

        If ``durable`` is false, a power failure may undo the latest commits, and nothing else.
        """

    def close(self) -> None: ...


def encode_spec(spec: Spec) -> str:
    """The spec as JSON; empty if it has no rules."""
    return "" if spec == _NO_RULES else msgspec.json.encode(spec).decode()


@functools.lru_cache(maxsize=1024)
def decode_spec(text: str) -> Spec:
    return convert(msgspec.json.decode(text), Spec) if text else _NO_RULES


def decode_chunk(row: Iterable[Any]) -> Chunk:
    """Make a chunk from the columns id, name, spec, body, source, number."""
    chunk_id, name, spec, body, source, number = row
    return Chunk(
        chunk_id,
        name,
        decode_spec(spec),
        msgspec.json.decode(body),
        source,
        number,
    )


def searched_text(value: Any) -> str:
    """The text of a body that the search finds: its ``text``, or all its texts if it has none."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        if isinstance(value.get("text"), str):
            return str(value["text"])
        return "\n".join(filter(None, map(searched_text, value.values())))
    if isinstance(value, (list, tuple)):
        return "\n".join(filter(None, map(searched_text, value)))
    return ""


def words_of(text: str) -> list[str]:
    """Split a query or a text into its words: letters and digits, in lower case."""
    return re.findall(r"\w+", text.casefold())


_NO_RULES = Spec()
