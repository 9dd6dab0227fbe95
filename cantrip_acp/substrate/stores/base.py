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
    """One record of a placement: that it began or moved, or (``removed``) that it ended."""

    chunk: str
    scope: str
    kind: Kind
    sequence: int | None
    commit: int
    removed: bool = False


class Separation(msgspec.Struct, frozen=True):
    """How a database keeps its users apart.

    ``secured``: the database itself does it, and not for the role if that ``passes`` row security. ``nobodys``: how many
    private chunks of earlier versions belong to nobody. ``grants``: what each role needs.
    """

    role: str
    name: str
    secured: bool
    passes: bool
    nobodys: int
    grants: tuple[str, ...]


class View(Protocol):
    """One transaction. ``at`` is the number of a commit; what came later is not seen."""

    def latest(self) -> int:
        """The number of the latest commit; 0 if there is none."""

    def chunk(self, chunk_id: str, at: int = NOW) -> Chunk | None: ...

    def chunks(self, ids: Collection[str], at: int = NOW) -> list[Chunk]:
        """Those of the chunks that exist, in no order."""

    def named(self, name: str, at: int = NOW) -> list[Chunk]:
        """The chunks that have this name at that moment, latest first."""

    def names(self) -> list[str]:
        """The names of all chunks, for suggestions; at most 20,000."""

    def placed(self, scopes: Collection[str], at: int = NOW, *, ids: str = "") -> list[tuple[Chunk, Placement]]:
        """What is placed on any of the scopes, in no order; of that, the chunks whose id begins with ``ids``."""

    def newest(self, scope: str, limit: int, at: int = NOW) -> list[Chunk]:
        """The latest ``limit`` instances on a scope, latest first."""

    def parents(self, chunk_id: str, at: int = NOW) -> list[Placement]:
        """Where a chunk is placed."""

    def above(self, chunks: Collection[str], kinds: Collection[Kind], at: int = NOW) -> list[tuple[str, str, bool]]:
        """The placements of these kinds of any of the chunks: chunk, scope, whether the chunk is by it an instance of a type."""

    def placement(self, scope: str, chunk_id: str, kind: Kind, at: int = NOW) -> Placement | None: ...

    def references(self, scope: str) -> list[Placement]:
        """What relates to a scope now."""

    def at_sequence(self, scope: str, sequence: int) -> list[Placement]:
        """The current placements with this number in the scope."""

    def highest_sequence(self, scope: str) -> int:
        """The highest number that was ever used in the scope; -1 if none was."""

    def commits(self, scope: str | None, limit: int, before: int) -> list[Commit]:
        """Commits with a number below ``before``, latest first; with ``scope``, those that touch it or what is placed on it.

        A reference to it from elsewhere is not one of them: each session makes one to what it reads.
        """

    def changed(self, chunks: Collection[str], after: int) -> bool:
        """Whether a commit after this one has a version of one of the chunks, or a record of a placement on one."""

    def versions(self, after: int, until: int) -> list[Chunk]:
        """The chunk versions of the commits ``after`` (not included) to ``until``, in their order."""

    def records(self, after: int, until: int) -> list[Record]:
        """The placement records of the commits ``after`` (not included) to ``until``, in their order."""

    def search(
        self, words: Sequence[str], match: Match, at: int, limit: int, *, known: bool, skip: int = 0
    ) -> list[tuple[str, str]]:
        """Id and source of chunks whose latest version has the words, best first, of the latest `MOST_RANKED` after ``skip``.

        ``known``: of what is known, which is neither a type nor a record (`Chunk.is_record`); else of the records.
        """

    def refusals(self, limit: int) -> list[Refusal]:
        """The latest refusals, latest first."""

    def add_commit(self, at: float, author: str, source: str, message: str) -> int: ...

    def set_changed(self, number: int, changed: int) -> None:
        """Note how much a commit changed. It is called once, in the commit's own transaction."""

    def own(self, chunks: Collection[str]) -> set[str]:
        """Those of the chunks that others who use the database do not see."""

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
        """Whether several people may use it, so that an id says whose its chunk is (`owners.privacy`)."""

    @property
    def user(self) -> str:
        """Who uses it; empty if it is one user's alone."""

    def separation(self) -> Separation | None:
        """How it keeps its users apart; None if it is one user's alone."""

    def secure(self, earlier: str = "") -> int:
        """Let the database itself keep its users apart. ``earlier``: the role that gets the private chunks of earlier versions.

        Returns how many chunks that role has. Raises `SubstrateError`, also where there is one user alone.
        """

    def reading(self) -> AbstractContextManager[View]: ...

    def writing(self, durable: bool = True) -> AbstractContextManager[View]:
        """One writer at a time. An exception undoes all of it.

        If ``durable`` is false, a power failure may undo the latest commits, and nothing else.
        """

    def close(self) -> None: ...


def encode_spec(spec: Spec) -> str:
    """The spec as JSON; empty if it has no rules."""
    return "" if spec == _NO_RULES else msgspec.json.encode(spec).decode()


@functools.lru_cache(maxsize=1024)
def decode_spec(text: str) -> Spec:
    """The way back."""
    return convert(msgspec.json.decode(text), Spec) if text else _NO_RULES


def decode_chunk(row: Iterable[Any]) -> Chunk:
    """A chunk of the columns id, name, spec, body, source, number."""
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
    """What the search finds of a body: its ``text``, or all its texts if it has none."""
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
    """The words of a query or a text: letters and digits, in lower case."""
    return re.findall(r"\w+", text.casefold())


_NO_RULES = Spec()
