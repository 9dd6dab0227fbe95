"""The substrate: reading, changing and searching chunks, within a boundary and as of any commit.

`writing.py` has the rules of a change.
"""

from __future__ import annotations

import atexit
import secrets
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from types import TracebackType
from typing import Self
from weakref import WeakValueDictionary

from cantrip_acp.substrate.boundary import Boundary, Reach
from cantrip_acp.substrate.chunks import (
    Change,
    Chunk,
    ChunkNotFound,
    Commit,
    CommitRefused,
    Difference,
    Hit,
    Kind,
    NewChunk,
    NewPlacement,
    OutsideBoundary,
    Placed,
    Placement,
    Refusal,
    Scope,
    SubstrateError,
    check_change,
    is_project,
)
from cantrip_acp.substrate.stores import open_tables
from cantrip_acp.substrate.stores.base import MOST_RANKED, NOW, Match, Tables, View, searched_text, words_of
from cantrip_acp.substrate.writing import ALL_TYPES, Outside, Writer, reach_at
from cantrip_acp.text.redaction import shared

EVERYTHING = Boundary()
_CANDIDATES = 200
"""The number of best matches that a search looks at first, if not all of them can be read."""
_MOST_PAGES = 10
"""The maximum number of pages of `MOST_RANKED` matches that a search reads to find enough readable ones."""
_TIERS: tuple[tuple[tuple[bool, Match], ...], ...] = (
    ((True, "all"), (True, "beginning"), (False, "all"), (False, "beginning")),
    ((True, "any"), (False, "any")),
)
"""The steps of a search until it has enough results: knowledge or records, and the kind of match."""
_SNIPPET = 160
"""The length of a snippet, in characters."""


def open_substrate(address: Path | str) -> Substrate:
    """Open a file, or ``postgresql://…``. Raises `SubstrateError`."""
    return Substrate(open_tables(address))


_shared: WeakValueDictionary[str, Substrate] = WeakValueDictionary()
_sharing = threading.Lock()


@atexit.register
def _close_at_exit() -> None:
    """Close the shared substrates when the process ends, after all handlers that were registered later.

    Otherwise SQLite's write-ahead log stays, and each later process would read it on opening and make it longer.
    """
    for each in list(_shared.values()):
        each.close()


def shared_substrate(address: Path | str) -> Substrate:
    """The substrate at an address, opened once per process.

    Do not close it: it is closed when the process ends, or by `close_shared`.
    """
    with _sharing:
        found = _shared.get(str(address))
        if found is None:
            found = _shared[str(address)] = open_substrate(address)
        return found


def close_shared(folder: Path) -> None:
    """Close the shared substrates in a folder. Call it before the folder is deleted."""
    with _sharing:
        for address, each in list(_shared.items()):
            if "://" not in address and Path(address).is_relative_to(folder):
                del _shared[address]
                each.close()


@contextmanager
def at_most_once() -> Iterator[None]:
    """Surround a commit that removes placements: it is skipped if another process has removed one of them meanwhile."""
    try:
        yield
    except CommitRefused as refused:
        if refused.rule != "placement":
            raise


def new_id(prefix: str) -> str:
    """A new id for a chunk: the prefix, ``-`` and 16 random letters and digits."""
    return f"{prefix}-{secrets.token_hex(8)}"


class Substrate:
    """Chunks and scopes with their history. Safe for several threads. Every method raises `SubstrateError`.

    ``at`` is the number of a commit: the answer is as of that commit. A caller with a limited boundary must reach a chunk
    both now and at that commit.
    """

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.location = tables.location
        """Where it is kept, without a password."""

    def __repr__(self) -> str:
        return f"Substrate({self.location!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.tables.close()

    # Reading

    def latest(self) -> int:
        """The number of the latest commit; 0 if there is none."""
        with self.tables.reading() as view:
            return view.latest()

    def chunk(self, chunk_id: str, *, at: int | None = None, boundary: Boundary = EVERYTHING) -> Chunk:
        """One chunk. Raises `ChunkNotFound`, or `OutsideBoundary` if the caller's boundary is limited."""
        chunk_id = storable(chunk_id)
        with self.tables.reading() as view:
            found = view.chunk(chunk_id, _until(at))
            inside = found is not None and _readable(view, boundary, [chunk_id], _until(at))
        if found is not None and inside:
            return found
        raise self._unreadable(chunk_id, at, boundary)

    def find(self, name: str, *, at: int | None = None, boundary: Boundary = EVERYTHING) -> list[Chunk]:
        """The chunks with this id or name inside the boundary: the one with the id first, then the latest."""
        until, name = _until(at), storable(name)
        with self.tables.reading() as view:
            by_id = view.chunk(name, until)
            found = [*([by_id] if by_id else ()), *(each for each in view.named(name, until) if each.id != name)]
            inside = _readable(view, boundary, (each.id for each in found), until)
            return [each for each in found if each.id in inside]

    def one(
        self, name: str, *, at: int | None = None, boundary: Boundary = EVERYTHING, prefer: Collection[str] = ()
    ) -> Chunk:
        """The one chunk with this id or name. Raises `ChunkNotFound` with similar names, `SubstrateError` if it is not one.

        Of several, what is inside the scopes ``prefer`` is meant, else a program or type; a project, whose name is that of its
        folder, only if nothing else has the name. Records of sessions and runs have the
        names of what they called, so only their ids name them; but documents that were attached to a prompt have a name.
        """
        every = self.find(name, at=at, boundary=boundary)
        if every and every[0].id == name:
            return every[0]
        attached = [each for each in every if each.id.startswith("attachment:")]
        found = [each for each in every if not each.is_record] or attached
        found = [each for each in found if not is_project(each.id)] or found
        if len(found) > 1 and prefer:
            near = Boundary.of(read=prefer)
            found = [each for each in found if self.readable(each.id, near, at=at)] or found
        if len(found) > 1:
            found = [each for each in found if self._is_tool_or_type(each, at)] or found
        if len(found) == 1:
            return found[0]
        if every:
            which = found or every
            ids = ", ".join(each.id for each in which[:5]) + (", …" if len(which) > 5 else "")
            if not found:
                raise SubstrateError(f"only records of sessions and runs are named {name!r}; give the id of one: {ids}")
            raise SubstrateError(f"{len(found)} chunks are named {name!r}; give the id of one: {ids}")
        hint = ""
        if not boundary.limited:
            with self.tables.reading() as view:
                similar = get_close_matches(name, view.names(), 3, 0.6)
            hint = f"; similar names: {', '.join(similar)}" if similar else ""
        if boundary.limited:
            hint = " inside the read boundary"
            self.refuse(boundary, "read", name, f"no chunk has the id or name {name!r}{hint}")
        raise ChunkNotFound(f"no chunk has the id or name {name!r}{hint}")

    def scope(self, scope_id: str, *, at: int | None = None, boundary: Boundary = EVERYTHING) -> Scope:
        """A chunk with the chunks placed on it inside the boundary: instances first, each by sequence, then by name."""
        until, scope_id = _until(at), storable(scope_id)
        with self.tables.reading() as view:
            chunk = view.chunk(scope_id, until)
            if chunk is not None and _readable(view, boundary, [scope_id], until):
                found = view.placed([scope_id], until)
                inside = _readable(view, boundary, (each.id for each, _ in found), until)
                placed = [
                    Placed(each, placement.kind, placement.sequence) for each, placement in found if each.id in inside
                ]
                return Scope(chunk, tuple(sorted(placed, key=_order)))
        raise self._unreadable(scope_id, at, boundary)

    def newest(self, scope_id: str, limit: int, *, at: int | None = None) -> list[Chunk]:
        """The instances on a scope that were placed last, the latest first. Its cost does not grow with the scope."""
        with self.tables.reading() as view:
            return view.newest(storable(scope_id), _limit(limit), _until(at))

    def instances(self, scopes: Iterable[str], ids: str = "") -> dict[str, list[Chunk]]:
        """The instances on each of the scopes, in order; with ``ids``, those whose id begins with it."""
        found: dict[str, list[Placed]] = {scope: [] for scope in map(storable, scopes)}
        with self.tables.reading() as view:
            for chunk, placement in view.placed(found, ids=storable(ids)):
                if placement.kind == "instance":
                    found[placement.scope].append(Placed(chunk, placement.kind, placement.sequence))
        return {scope: [each.chunk for each in sorted(placed, key=_order)] for scope, placed in found.items()}

    def placements(self, chunk_id: str, *, at: int | None = None, boundary: Boundary = EVERYTHING) -> list[Placement]:
        """The placements of a chunk that the boundary shows."""
        until, chunk_id = _until(at), storable(chunk_id)
        with self.tables.reading() as view:
            found = view.parents(chunk_id, until)
            inside = _readable(view, boundary, {chunk_id, *(each.scope for each in found)}, until)
            return [each for each in found if chunk_id in inside and each.scope in inside]

    def above(self, chunk_id: str, kinds: Collection[Kind] = ("instance", "relates")) -> set[str]:
        """The scopes above a chunk, and the chunk itself. Paths through a type to its instances do not count."""
        level = {storable(chunk_id)}
        seen = set(level)
        with self.tables.reading() as view:
            while level:
                found = view.above(level, kinds)
                level = {scope for _, scope, of_type in found if not of_type} - seen
                seen |= level
        return seen

    def exists(self, chunk_id: str) -> bool:
        with self.tables.reading() as view:
            return view.chunk(storable(chunk_id)) is not None

    def readable(self, chunk_id: str, boundary: Boundary, *, at: int | None = None) -> bool:
        """Whether a chunk exists inside the read boundary. A "no" is not recorded as a refusal."""
        chunk_id = storable(chunk_id)
        with self.tables.reading() as view:
            found = view.chunk(chunk_id, _until(at))
            return found is not None and bool(_readable(view, boundary, [chunk_id], _until(at)))

    def search(
        self,
        query: str,
        *,
        at: int | None = None,
        boundary: Boundary = EVERYTHING,
        limit: int = 20,
        without: str | None = None,
    ) -> list[Hit]:
        """Chunks with the words of the query: what is known before records of sessions and runs, as those repeat every question.

        In each of the two, first those with all words, best first, then those with the beginning of the last. Any word is
        enough if nothing else is found. A type is found by its id alone. ``without``: a session that is left out, with its
        records. Of very many chunks outside the boundary that have the words, the latest 10,000 are looked at.
        """
        query = storable(query)
        words = words_of(query)[:32]
        if not words:
            return []
        until, limit, found = _until(at), _limit(limit), dict[str, None]()
        # Most often the first few are enough. Matches outside the boundary must not hide those inside.
        first = max(limit, _CANDIDATES) if boundary.limited else limit
        pages = [(0, first), *((n * MOST_RANKED, MOST_RANKED) for n in range(_MOST_PAGES))]
        with self.tables.reading() as view:
            reaches = [reach_at(view, moment) for moment in dict.fromkeys((NOW, until))]
            if query.strip().startswith("type:"):
                found |= dict.fromkeys(
                    _inside(reaches, boundary, [each.id for each in view.chunks([query.strip()], until)])
                )
            for tier in _TIERS:
                for known, match in tier:
                    for skip, most in pages:
                        if len(found) >= limit:
                            break
                        candidates = view.search(words, match, until, most, known=known, skip=skip)
                        new = [id_ for id_, source in candidates if id_ not in found and without not in (id_, source)]
                        checked = 0
                        # Most are inside, and to check one takes longer than to find it.
                        while checked < len(new) and len(found) < limit:
                            some = new[checked : 2 * (checked + limit)]
                            inside = _inside(reaches, boundary, some)
                            found |= dict.fromkeys(each for each in some if each in inside)
                            checked += len(some)
                        if len(candidates) < _CANDIDATES:
                            break
                if found:
                    break
            chunks = {each.id: each for each in view.chunks([*found][:limit], until)}
        return [Hit(chunks[each], _snippet(chunks[each], words)) for each in [*found][:limit]]

    def log(self, scope: str | None = None, *, limit: int = 50, before: int | None = None) -> list[Commit]:
        """Commits, the latest first; with a scope, those that changed it, the chunks on it, or its placements."""
        with self.tables.reading() as view:
            return view.commits(None if scope is None else storable(scope), _limit(limit), _until(before))

    def changed(self, chunks: Iterable[str], after: int) -> bool:
        """Whether a later commit changed any of these chunks, or the chunks placed on them."""
        with self.tables.reading() as view:
            return view.changed([*map(storable, chunks)], _until(after))

    def changes(self, number: int, since: int | None = None) -> Difference:
        """The changes of the commits after ``since`` (by default the commit before) up to ``number``."""
        number, after = _until(number), _until(number - 1 if since is None else since)
        with self.tables.reading() as view:
            chunks = {each.id: each for each in view.versions(after, number)}
            records = {(each.scope, each.chunk, each.kind): each for each in view.records(after, number)}
        placements = {
            removed: tuple(
                Placement(r.chunk, r.scope, r.kind, r.sequence, r.commit)
                for r in records.values()
                if r.removed is removed
            )
            for removed in (False, True)
        }
        return Difference(tuple(chunks.values()), placements[False], placements[True])

    def refusals(self, limit: int = 50) -> list[Refusal]:
        """The latest reads and writes that a boundary refused, latest first."""
        with self.tables.reading() as view:
            return view.refusals(_limit(limit))

    # Changing

    def commit(
        self,
        change: Change,
        *,
        author: str,
        source: str = "user",
        boundary: Boundary = EVERYTHING,
        message: str = "",
        durable: bool = True,
    ) -> Commit:
        """Store a change: all of it, or nothing. A change with nothing new stores nothing, and ``changed`` is 0.

        ``author`` is who does it; ``source`` is the label of where the contents are from. Known secrets are replaced.
        Raises `CommitRefused` (a rule) or `OutsideBoundary` (recorded).
        """
        check_change(change)
        change, message = shared().masked((change, storable(message)))
        author, source = _label(author), _label(source)
        at = time.time()
        try:
            with self.tables.writing(durable) as view:
                writer = Writer(view, boundary, source)
                writer.check_boundary(change)
                if self.tables.several_users:
                    writer.check_private(change)
                number = view.add_commit(at, author, source, message)
                changed = writer.write(change, number)
                writer.check_new()
                if not changed:
                    raise _NothingNew(number - 1)
                view.set_changed(number, changed)
                return Commit(number, at, author, source, message, changed)
        except _NothingNew as nothing:
            return Commit(nothing.latest, at, author, source, message, 0)
        except Outside as outside:
            raise self.refuse(
                boundary.held_by(boundary.holder or author), "commit", outside.chunk, outside.text
            ) from None

    def put(
        self,
        chunk: NewChunk,
        on: str | Iterable[NewPlacement] | None = None,
        *,
        author: str = "user",
        source: str = "user",
        message: str = "",
        boundary: Boundary = EVERYTHING,
    ) -> Commit:
        """Store one chunk, as an instance on a scope or with the placements given."""
        placements = [NewPlacement(chunk.id, on)] if isinstance(on, str) else list(on or ())
        return self.commit(
            Change([chunk], placements), author=author, source=source, message=message, boundary=boundary
        )

    def refuse(self, boundary: Boundary, operation: str, chunk_id: str, text: str) -> OutsideBoundary:
        """Record a request outside the boundary, and return the error for the caller to raise."""
        told = (boundary.holder, operation, chunk_id[:200], text[:1_000])
        refusal = Refusal(time.time(), *map(storable, told))
        with self.tables.writing(durable=False) as view:
            view.add_refusal(refusal)
        return OutsideBoundary(text)

    def holds(self, chunk: NewChunk) -> bool:
        """Whether the substrate has a chunk with this name, spec and body."""
        with self.tables.reading() as view:
            stored = view.chunk(storable(chunk.id))
        return stored is not None and (stored.name, stored.spec, stored.body) == (chunk.name, chunk.spec, chunk.body)

    def _is_tool_or_type(self, chunk: Chunk, at: int | None) -> bool:
        places = {(each.scope, each.kind) for each in self.placements(chunk.id, at=at)}
        return bool(places & {("type:program", "instance"), (ALL_TYPES, "relates")})

    def _unreadable(self, chunk_id: str, at: int | None, boundary: Boundary) -> SubstrateError:
        when = f" as of commit {at}" if at is not None else ""
        if boundary.limited:
            # Give the same answer for a chunk outside the boundary and for one that does not exist.
            text = f"chunk {chunk_id!r} is not inside the read boundary{when}"
            return self.refuse(boundary, "read", chunk_id, text)
        later = at is not None and self.exists(chunk_id)
        hint = f"; it was made later: cantrip substrate log {chunk_id}" if later else ""
        return ChunkNotFound(f"no chunk has the id {chunk_id!r}{when}{hint}")


class _NothingNew(Exception):
    """Ends a transaction that would change nothing."""

    def __init__(self, latest: int) -> None:
        self.latest = latest


def storable(text: str) -> str:
    """Replace NUL, and lone surrogates as from names that are not UTF-8, so that every database can hold the text."""
    return (text if text.isascii() else text.encode("utf-8", "replace").decode()).replace("\0", "?")


def _label(text: str) -> str:
    """Put an author or a source on one line: a file's name may have line breaks and control characters."""
    return text if text.isprintable() else "".join(each if each.isprintable() else " " for each in text)


def _until(at: int | None) -> int:
    return NOW if at is None else max(-1, min(at, NOW))


def _limit(limit: int) -> int:
    return max(0, min(limit, 1_000_000))


def _readable(view: View, boundary: Boundary, chunks: Iterable[str], at: int) -> set[str]:
    """The chunks that can be read: inside the boundary now, and as of the requested commit."""
    return _inside([reach_at(view, moment) for moment in dict.fromkeys((NOW, at))], boundary, chunks)


def _inside(reaches: Iterable[Reach], boundary: Boundary, chunks: Iterable[str]) -> set[str]:
    inside = set(chunks)
    for reach in reaches:
        inside = reach.readable(boundary, inside)
    return inside


def _order(placed: Placed) -> tuple[bool, float, str, str]:
    sequence = placed.sequence if placed.sequence is not None else float("inf")
    return placed.kind != "instance", sequence, placed.chunk.name, placed.chunk.id


def _snippet(chunk: Chunk, words: Sequence[str]) -> str:
    """An excerpt around the first matching word, on one line."""
    text = " ".join((chunk.text or searched_text(dict(chunk.body))).split())
    lower = text.casefold()
    places = [at for at in (lower.find(word) for word in words) if at >= 0]
    begin = max(0, min(places, default=0) - _SNIPPET // 4)
    piece = text[begin : begin + _SNIPPET]
    return f"{'…' if begin else ''}{piece}{'…' if begin + _SNIPPET < len(text) else ''}"
