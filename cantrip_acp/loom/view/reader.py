"""Reads a loom for the page in pieces of limited size: columns, lines, bodies and search hits. Follows other writers.

One lock protects the store; each piece takes it separately. The heads are read in the background, so the first page
does not wait for a large loom. A request that needs the whole index waits in `ready`.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from typing import cast as typed

import msgspec

from cantrip_acp.loom.query.completed_turns import completed
from cantrip_acp.loom.query.joined_looms import JoinedStore
from cantrip_acp.loom.query.thread import cast_ending
from cantrip_acp.loom.records.tree import unreadable
from cantrip_acp.loom.stores.address import open_store
from cantrip_acp.loom.stores.contract import readable
from cantrip_acp.loom.view import summary
from cantrip_acp.loom.view.index import Index
from cantrip_acp.text.sanitize import without_links
from cantrip_acp.types.errors import LoomError, TurnNotFound
from cantrip_acp.types.records import CastRecord, ContextRecord, ForkRecord, LaterRecord, Record, RewardRecord, Turn

if TYPE_CHECKING:
    from cantrip_acp.loom.stores.contract import Store

CHUNK = 2_000
"""The number of turns in one piece of `numbers`; a full piece is cached."""

MOST_NODES = 20_000
MOST_ROWS = 400
HITS = 200
SEARCH_S = 0.15
SHOWN = 262_144
"""The number of characters of one text that are sent, unless the whole text is requested."""

_LOOK_S = 0.2
_SLICE = 5_000


class LoomReader:
    """One loom, read by any number of pages; or two looms as one. ``where`` and ``beside`` are paths or addresses."""

    def __init__(self, where: Path | str, beside: Path | str | None = None) -> None:
        self.where = where
        self._both = JoinedStore(where, beside) if beside is not None else None
        self._store = typed("Store", self._both) if self._both else completed(open_store(where, readonly=True), where)
        self.index = Index()
        self.version = 0
        """Increases with every change that was seen."""
        self.loaded = threading.Event()
        self.broken: str | None = None
        """Why the loom can no longer be followed."""
        self._lock = threading.RLock()
        self._pieces: dict[int, bytes] = {}
        self._looked = 0.0
        self._ran: set[int] = set()
        """The casts that were running at the last look."""
        self._closed = False

    @property
    def location(self) -> str:
        return self._store.location or "in memory"

    def load(self) -> None:
        """Read the heads. An error is put in ``broken``; `loaded` is set in any case."""
        try:
            heads = iter(self._store.heads())
            more = True
            while more:
                with self._lock:
                    if self._closed:
                        return
                    more = self._index_records(heads, _SLICE) == _SLICE
            if self.index.header is None and not len(self.index) and self._store.problems:
                self.broken = f"{self.location}: this is not a loom: {self._store.problems[0]}"
        except LoomError as error:
            self.broken = str(error)
        finally:
            self.loaded.set()

    def _index_records(self, heads: Iterator[tuple[int, Any]], most: int | None = None) -> int:
        count = 0
        for position, head in heads:
            self.index.add(position, head)
            count += 1
            if count == most:
                break
        if count:
            self.version += 1
        return count

    @contextlib.contextmanager
    def ready(self, patience_s: float = 30.0) -> Iterator[Index]:
        """Yield the index with the lock held. Raises `LoomError` if the loom is still being opened, or was
        closed."""
        if not self.loaded.wait(patience_s):
            raise LoomError(f"loom {self.location} is still being opened ({len(self.index):,} turns so far); ask again")
        with self._lock:
            if self._closed:
                raise LoomError(f"the view of {self.location} has ended")
            yield self.index

    def look(self, *, at_once: bool = False) -> int:
        """Read new records, at most every fifth of a second unless ``at_once``; returns the version after that."""
        with self._lock:
            now = time.monotonic()
            due = at_once or now - self._looked >= _LOOK_S
            if due and self.loaded.is_set() and not self._closed and self.broken is None:
                self._looked = now
                try:
                    self._index_records(iter(self._store.news()))
                    running = self._running(self.index)
                    if running != self._ran:
                        # A killed process writes nothing, but its cast is no longer active.
                        self._ran = running
                        self.version += 1
                except LoomError as error:
                    self.broken = str(error)
                    self.version += 1
            return self.version

    def wait(self, seen: int, patience_s: float) -> int:
        """Wait until the version differs from ``seen``, or until the time is over; returns the version."""
        end = time.monotonic() + patience_s
        while (version := self.look()) == seen and time.monotonic() < end and not self._closed:
            time.sleep(_LOOK_S)
        return version

    def close(self) -> None:
        """Close the store; safe to call twice."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._store.close()

    # What the page requests

    def about(self) -> dict[str, Any]:
        """The loom as a whole: its location, its size and its damage. Of two looms also the number of the turn that each
        ends with now, -1 where there is none."""
        with self._lock:
            index = self.index
            problems = [*self._store.problems, *index.problems]
            return {
                "location": self.location,
                "header": msgspec.to_builtins(index.header),
                "loading": not self.loaded.is_set(),
                "broken": self.broken,
                "version": self.version,
                "turns": len(index),
                "casts": len(index.cast_events),
                "running": sorted(self._running(index)),
                "rewards": len(index.rewards),
                "problems": [str(problem) for problem in problems[:200]],
                "problem_count": len(problems),
                "later": dict(index.later),
                **(
                    {}
                    if self._both is None
                    else {"ends": [index.numbers.get(end or "", -1) for end in self._both.ends]}
                ),
            }

    def nodes(self, start: int, count: int = MOST_NODES) -> dict[str, Any]:
        """The tree's columns from a turn on."""
        with self.ready() as index:
            part = slice(start, start + max(1, min(count, MOST_NODES)))
            return {
                "from": start,
                "parent": index.parents[part].tolist(),
                "role": list(index.roles[part]),
                "cast": index.cast_of[part].tolist(),
                "entity": index.entity_of[part].tolist(),
                "total": len(index),
            }

    def numbers(self, start: int) -> bytes:
        """Columns of tokens, times and flags, as JSON, up to the end of the piece that contains ``start``.

        The first turn is ``from``: the start of the piece if it is full and therefore cached, else ``start``.
        """
        with self.ready() as index:
            piece = start - start % CHUNK
            kept = self._pieces.get(piece)
            if kept is not None:
                return kept
            full = len(index) >= piece + CHUNK
            begin = piece if full else start
            positions = index.positions[begin : piece + CHUNK]
            answer = msgspec.json.encode({"from": begin, **summary.numbers(self._turns(positions))})
            if full:
                self._pieces[piece] = answer
            return answer

    def rows(self, numbers: Sequence[int]) -> list[dict[str, Any]]:
        """Lines of the list."""
        with self.ready() as index:
            known = [n for n in numbers[:MOST_ROWS] if 0 <= n < len(index)]
            turns = self._turns([index.positions[n] for n in known])
            return [
                {"n": n, "id": turn.id, "seq": turn.sequence, **summary.row(turn)}
                for n, turn in zip(known, turns, strict=True)
            ]

    def casts(self, start: int, count: int = 1_000) -> dict[str, Any]:
        """Starts and ends of casts as they came, from number ``start`` on."""
        with self.ready() as index:
            events = index.cast_events[start : start + max(1, min(count, 1_000))]
            told = []
            for (cast, event, _), record in zip(events, self._read([p for *_, p in events]), strict=True):
                entity = index.casts[cast].entity
                if not isinstance(record, CastRecord):
                    # The record is damaged: only its position is known.
                    record = CastRecord(index.casts[cast].id, typed(Any, event), index.entities[entity], "")
                born = {"fork": entity in index.forked, "child": entity in index.children}
                told.append({"cast": cast, "event": event, **born, **_brief(record)})
            return {"from": start, "events": told, "total": len(index.cast_events)}

    def rewards(self, start: int, count: int = 2_000) -> dict[str, Any]:
        """Rewards as they were given, from number ``start`` on: turn, value, giver, time and note."""
        with self.ready() as index:
            given = index.rewards[start : start + max(1, min(count, 2_000))]
            told = []
            for (turn, _), record in zip(given, self._read([p for _, p in given]), strict=True):
                if not isinstance(record, RewardRecord):
                    record = RewardRecord(index.ids[turn], None)
                told.append({**msgspec.to_builtins(record), "turn": turn})
            return {"from": start, "given": told, "total": len(index.rewards)}

    def find(self, turn_id: str) -> int:
        """A turn's number by its id. Raises `TurnNotFound`."""
        with self.ready() as index:
            number = index.numbers.get(turn_id)
            if number is None:
                raise TurnNotFound(f"no turn {turn_id!r} in this loom")
            return number

    def turn(self, number: int, *, whole: bool = False) -> dict[str, Any]:
        """A turn's body with the records that belong to it. Texts are cut unless ``whole``; ``cut`` is the number of
        cut texts."""
        with self.ready() as index:
            if not 0 <= number < len(index):
                raise TurnNotFound(f"this loom has {len(index):,} turns; there is no number {number}")
            (turn,) = self._turns([index.positions[number]])
            forks = [r for r in self._read(index.forks.get(number, ())) if isinstance(r, ForkRecord)]
            data = msgspec.to_builtins(turn) | {
                "n": number,
                "snapshot": number in index.snapshots,
                "forks": [msgspec.to_builtins(fork) for fork in forks],
            }
            if self._both is not None:
                data["location"] = self._both.location_of(index.positions[number])
            files = self._read([index.files[number]])[0] if number in index.files else None
            if files is not None:
                data["files"] = msgspec.to_builtins(files)
            if turn.role == "call":
                data["cantrip"] = msgspec.to_builtins(index.cantrips.get(turn.cantrip_id))
            return _cut(data, whole)

    def _running(self, index: Index) -> set[int]:
        """The casts without an end that run in a living process."""
        open_casts = {cast.id: number for number, cast in enumerate(index.casts) if cast.end is None}
        return {open_casts[cast_id] for cast_id in self._store.running(open_casts)}

    def cast(self, number: int, *, whole: bool = False) -> dict[str, Any]:
        """A cast: its start, its end (null while there is none) and its pinned context."""
        with self.ready() as index:
            if not 0 <= number < len(index.casts):
                raise LoomError(f"this loom has {len(index.casts):,} casts; there is no number {number}")
            places = index.casts[number]
            records = [None if at is None else self._read([at])[0] for at in (places.start, places.end)]
            last = records[1] if isinstance(records[1], CastRecord) else None
            ending = cast_ending(last, running=last is None and number in self._running(index))
            start, end = (None if record is None else msgspec.to_builtins(record) for record in records)
            pinned = [msgspec.to_builtins(r) for r in self._read(places.context) if isinstance(r, ContextRecord)]
            entity = index.entities[places.entity]
            data = {"n": number, "id": places.id, "entity_id": entity, "start": start, "end": end, "context": pinned}
            data |= {"state": ending.state, "reason": ending.reason}
            return _cut(data, whole)

    def search(self, words: str, start: int = 0) -> dict[str, Any]:
        """Turns that contain the words, from a turn on. ``next`` is where to continue; null at the end.

        Returns after about `HITS` hits or a fraction of a second; the page asks again for more.
        """
        wanted = words.lower()
        patience = SearchBudget(SEARCH_S)
        hits: list[dict[str, Any]] = []
        at = max(0, start)
        while wanted:
            with self.ready() as index:
                numbers = range(at, min(at + 50, len(index)))
                hits += page(numbers, self._turns([index.positions[n] for n in numbers]), wanted)
                at = numbers.stop
                if at >= len(index):
                    break
            if patience.over or len(hits) >= HITS:
                return {"hits": hits, "next": at}
        return {"hits": hits, "next": None}

    def _turns(self, positions: Sequence[int]) -> list[Turn]:
        turns = []
        for position, record in zip(positions, self._read(positions), strict=True):
            if record is None:
                number = self.index.positions.index(position)
                turns.append(unreadable(self.index.ids[number], self.index.place(number)))
                continue
            if not isinstance(record, Turn):
                raise LoomError(
                    f"loom {self.location}: no turn is at byte {position}; another program changed the file"
                )
            turns.append(record)
        return turns

    def _read(self, positions: Sequence[int]) -> list[Record | LaterRecord | None]:
        return readable(self._store, positions)


def _brief(record: CastRecord) -> dict[str, Any]:
    """The fields of a cast that the list displays."""
    time_ms = summary.moment(record.timestamp)
    if record.event == "start":
        resumes = {"resumes": record.resumes} if isinstance(record.resumes, str) else {}
        # Long intents may differ only after what the list displays.
        same = f"{zlib.crc32((record.intent or '').encode('utf-8', 'surrogatepass')):08x}"
        intent = summary.line(without_links(record.intent or ""))
        return {"id": record.id, "intent": intent, "same": same, "time": time_ms, **resumes}
    answered = summary.plain(record.result) if record.terminated and record.result is not None else ""
    told = record.error or answered or record.summary or ""
    end = {
        "reason": cast_ending(record, running=False).reason,
        "terminated": record.terminated,
        "truncated": record.truncated,
    }
    return {**end, "told": summary.line(told), "time": time_ms}


def _cut(data: dict[str, Any], whole: bool) -> dict[str, Any]:
    count = 0

    def shorter(value: Any) -> Any:
        nonlocal count
        if isinstance(value, str):
            if len(value) > SHOWN:
                count += 1
                return value[:SHOWN]
            return value
        if isinstance(value, dict):
            # A cut image cannot be displayed, so images are never cut.
            return {key: inner if key == "data" else shorter(inner) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [shorter(inner) for inner in value]
        return value

    short = data if whole else shorter(data)
    return {**short, "cut": count}


AROUND = 60
"""The number of characters displayed before and after a match."""


def matches(turn: Turn, wanted: str) -> dict[str, Any] | None:
    """Where a turn contains the words (in lower case); None if it does not."""
    for place, text in summary.texts(turn):
        found = excerpt(text, wanted)
        if found is not None:
            return {"in": place, **found}
    return None


def excerpt(text: str, wanted: str) -> dict[str, str] | None:
    """The text before, at and after the first match."""
    # Lower case may be longer than the text (İ). Then the position is a guess, and the match is still reported.
    at = text.lower().find(wanted)
    if at < 0:
        return None
    end = at + len(wanted)
    before, after = text[max(0, at - AROUND) : at], text[end : end + AROUND]
    return {"before": _joined(before), "match": text[at:end], "after": _joined(after)}


def _joined(text: str) -> str:
    """The text on one line; a space stays at its start or end."""
    return re.sub(r"\s+", " ", text)


class SearchBudget:
    """The time limit of one answer."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    @property
    def over(self) -> bool:
        return time.monotonic() >= self._end


def page(numbers: Sequence[int], turns: Sequence[Turn], wanted: str) -> list[dict[str, Any]]:
    """The hits among some turns."""
    hits = []
    for number, turn in zip(numbers, turns, strict=True):
        hit = matches(turn, wanted)
        if hit is not None:
            hits.append({"n": number, **hit})
    return hits
