"""One loom's file, as far as it was read.
Only record heads are kept; a body is read from the file on demand. Files are read in threads, for about a millisecond at
a time, so that the editor's requests do not wait for a large loom.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from lsprotocol import types

from cantrip_acp.loom.base import told
from cantrip_acp.loom.query.completed_turns import CompletedStore
from cantrip_acp.loom.records import record_heads
from cantrip_acp.loom.records.tree import Problem
from cantrip_acp.loom.stores.jsonl import JsonlStore
from cantrip_acp.loom.view.index import Index
from cantrip_acp.lsp.looms.places import CastTree, RecordLines
from cantrip_acp.lsp.recipes import lint
from cantrip_acp.text.sanitize import clean_line
from cantrip_acp.types.errors import LoomChanged, LoomError
from cantrip_acp.types.records import CastRecord, ForkRecord, LaterRecord, Record, RewardRecord, Turn, Utterance
from cantrip_acp.types.usage import NO_USAGE, Usage

_SLICE_S = 0.001
_REST_S = 0.0003
"""Seconds that reading runs without a pause, and the length of the pause, which lets other threads run."""


class LoomDocument:
    """A loom's file. `load` and `look` read it; all else answers from what was read, under `lock`.
    Casts and turns have the numbers of `Index`. Lines count from 0, as in the protocol.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock = threading.RLock()
        self._looking = threading.Lock()
        self.loaded = threading.Event()
        self.broken: str | None = None
        """Why the file cannot be read (further)."""
        self.version = 0
        """Counts up with every change that was seen."""
        self._store: CompletedStore | None = None
        self._begin()

    def _begin(self) -> None:
        self.index = Index()
        self.lines = RecordLines()
        self.tree = CastTree(self.index)
        self.rewards: dict[int, list[int]] = {}
        """The positions of a turn's rewards."""
        self._ran: set[str] = set()
        """The casts that were running at the last look."""
        self._forks: dict[str, int] = {}
        """The position of an entity's fork record."""
        self.cantrips: dict[str, int] = {}
        """The position of a cantrip's record."""
        self._spent: dict[int, tuple[int, Usage]] = {}
        self._flaws: dict[tuple[int, str], Problem] = {}
        """The problems of records, by the record's position and the problem's rule."""

    # Reading

    def load(self) -> None:
        """Read the whole file. Raises nothing: on failure, ``broken`` says why."""
        try:
            with self.lock:
                self._begin()
                self.broken = None
                self._store = CompletedStore(JsonlStore(self.path, readonly=True), self.path)
                records = iter(self._store.heads())
            while self._read_records(records):
                time.sleep(_REST_S)
            if self.index.header is None and not len(self.index) and self._store.problems:
                self.broken = "this is not a loom: no record can be read in it"
        except LoomError as error:
            self.broken = str(error)
        finally:
            with self.lock:
                self.version += 1
            self.loaded.set()

    def running(self, cast_id: str) -> bool:
        """Whether a living process works on a cast that has no end."""
        return self._store is not None and bool(self._store.running([cast_id]))

    def look(self) -> bool:
        """Read new records; return whether anything changed. A replaced file is read again from the start."""
        if not self.loaded.is_set():
            return False
        with self._looking:
            return self._read_new()

    def _read_new(self) -> bool:
        before = self.version
        if self._store is None or self.broken is not None:
            if self.path.is_file():
                self._reload()
            return self.version != before
        try:
            problems = len(self._store.problems)
            records = iter(self._store.news())
            count = len(self.lines)
            while self._read_records(records):
                time.sleep(_REST_S)
            if self._store.written:
                # A turn that was shown at its utterance's line now has a line of its own.
                self._reload()
                return self.version != before
            running = self._store.running(cast.id for cast in self.index.casts if cast.end is None)
            if len(self.lines) != count or len(self._store.problems) != problems or running != self._ran:
                # A killed process writes nothing, but its cast is no longer active.
                self._ran = running
                with self.lock:
                    self.version += 1
        except LoomChanged as changed:
            if self.path.is_file():
                self._reload()
            else:
                self._set_broken(str(changed))
        except LoomError as error:
            self._set_broken(str(error))
        return self.version != before

    def _reload(self) -> None:
        self.close()
        self.load()

    def _set_broken(self, why: str) -> None:
        with self.lock:
            self.close()
            self._begin()
            self.broken = why
            self.version += 1

    def close(self) -> None:
        """Close the file; safe to call twice."""
        with self.lock:
            store, self._store = self._store, None
            if store is not None:
                store.close()

    def _read_records(self, records: Iterator[tuple[int, Any]]) -> bool:
        """Take records for about a millisecond; return whether there may be more."""
        end = time.perf_counter() + _SLICE_S
        with self.lock:
            store = self._store
            if store is None:
                return False
            for count, (position, head) in enumerate(records, 1):
                self._one(position, head, *store.given)
                if count % 16 == 0 and time.perf_counter() > end:
                    return True
        return False

    def _one(self, position: int, head: Any, line: int, length: int) -> None:
        index = self.index
        said = self._store.utterance_positions.get(position) if self._store is not None else None
        if said is None:
            self.lines.add(position, line - 1, length)
        else:
            self.lines.add_without_line(position, said)
        kind = record_heads.kind(head)
        turns, flaws, rewards = len(index), len(index.problems), len(index.rewards)
        index.add(position, head)
        if kind == "utterance":
            self.lines.add_utterance(head.id, line - 1)
        elif kind == "fork":
            self._forks[head.entity_id] = position
        elif kind == "cantrip":
            self.cantrips.setdefault(head.id, position)
        elif len(index.rewards) > rewards:
            self.rewards.setdefault(index.rewards[-1][0], []).append(position)
        for flaw in index.problems[flaws:]:
            found = msgspec.structs.replace(flaw, line=line, offset=position, length=length)
            self._flaws[position, flaw.rule] = found
        self.tree.add_casts()
        if len(index) > turns:
            self.lines.add_turn(turns, head.id)
            self.tree.add_turn(turns)

    # Access to the records that were read

    @property
    def damage(self) -> int:
        """The number of problems."""
        store = self._store
        return len(self._flaws) + (len(store.problems) if store is not None else 0)

    def problems(self, most: int, line: int | None = None) -> list[Problem]:
        """The problems (of one ``line``, if given), in line order. Secrets in their messages are masked."""
        store = self._store
        found = [*(store.problems if store is not None else ()), *self._flaws.values()]
        if line is not None:
            found = [each for each in found if each.line == line + 1]
        found.sort(key=lambda problem: problem.line or 0)
        return list(told(found[:most]))

    def line(self, turn: int) -> int:
        return self.lines.at(self.index.positions[turn])

    def read(self, positions: Sequence[int]) -> list[Record | LaterRecord]:
        """The records at these positions. Raises `LoomError`."""
        with self.lock:
            if self._store is None:
                raise LoomError(self.broken or f"loom {self.path} is closed")
            return self._store.read_all(positions)

    def text(self, position: int) -> bytes:
        """The bytes of a record's line. Raises `LoomError`."""
        with self.lock:
            if self._store is None:
                raise LoomError(self.broken or f"loom {self.path} is closed")
            return bytes(self._store.line_at(self.lines.written(position)))

    def one(self, position: int) -> Record | LaterRecord | None:
        """The record at a position, or None if only its head can be read. The damage is then added to the problems."""
        try:
            return self.read([position])[0]
        except LoomError as error:
            if self._store is None:
                raise
            if (position, "damaged-line") not in self._flaws:
                why = str(error).partition("no record at byte ")[2].partition(": ")[2] or str(error)
                line, length = self.lines.at(position) + 1, self.lines.length(position)
                flaw = Problem(f"not a loom record: {why}", line, position, length, rule="damaged-line")
                self._flaws[position, flaw.rule] = flaw
                self.version += 1
            return None

    def body(self, turn: int) -> Turn:
        """A turn, with the reward that counts. If its record is damaged, only what its head says. Raises `LoomError`."""
        record = self.one(self.index.positions[turn])
        if record is None:
            return self._turn_without_body(turn)
        if not isinstance(record, Turn):
            raise LoomError(f"loom {self.path}: another record is now at the place of a turn; open the loom again")
        given = self.reward(turn)
        return record if given is None else msgspec.structs.replace(record, reward=given)

    def bodies(self, turns: Sequence[int]) -> list[Turn]:
        """As `body`, for several turns."""
        return [self.body(turn) for turn in turns]

    def _turn_without_body(self, turn: int) -> Turn:
        index = self.index
        parent, cast = index.parents[turn], index.cast_of[turn]
        return Turn(
            index.ids[turn],
            index.ids[parent] if parent >= 0 else None,
            "",
            index.entities[index.entity_of[turn]],
            index.casts[cast].id if cast >= 0 else None,
            ("call", "crystal", "fold")[index.roles[turn]],
            utterance=Utterance("(this record cannot be read)"),
        )

    def reward(self, turn: int) -> float | None:
        """The reward that counts among those given after the turn was written; None if there is none."""
        for position in reversed(self.rewards.get(turn, ())):
            record = self.one(position)
            if isinstance(record, RewardRecord) and record.kind != "relative" and record.reward is not None:
                return record.reward
        return None

    def cast(self, number: int) -> tuple[CastRecord | None, CastRecord | None]:
        """A cast's start and end; None for a record that is missing."""
        places = self.index.casts[number]
        start, end = (None if place is None else self.one(place) for place in (places.start, places.end))
        return (start if isinstance(start, CastRecord) else None, end if isinstance(end, CastRecord) else None)

    def spent(self, cast: int) -> Usage:
        """The usage of a cast's turns so far. Turns that were counted once are not read again."""
        counted, total = self._spent.get(cast, (0, NO_USAGE))
        turns = self.tree.turns[cast]
        if counted < len(turns):
            for turn in self.bodies(turns[counted:]):
                total = total + turn.metadata.usage
            self._spent[cast] = (len(turns), total)
        return total

    def span(self, cast: int) -> tuple[int, int]:
        """The first and the last line of a cast; if its records are lost, the lines of its turns."""
        places, turns = self.index.casts[cast], self.tree.turns[cast]
        lines = [self.lines.at(place) for place in (places.start, places.end, *places.context) if place is not None]
        if turns:
            lines += [self.lines.begun.get(turns[0], self.line(turns[0])), self.line(turns[-1])]
        return (min(lines), max(lines)) if lines else (0, 0)

    def fork(self, cast: int) -> ForkRecord | None:
        """The fork record, for the first cast of a fork; else None."""
        position = self._forks.get(self.index.entities[self.index.casts[cast].entity])
        if position is None or not self.tree.is_first(cast):
            return None
        record = self.one(position)
        return record if isinstance(record, ForkRecord) else None


MOST = 250
"""The most diagnostics for one file."""

_WARNING, _INFORMATION = types.DiagnosticSeverity.Warning, types.DiagnosticSeverity.Information

_ADVICE = {
    "torn-line": "the next session that writes this loom sets it aside; nothing before it is lost",
    "empty-line": "nothing is lost; it may stay",
    "damaged-line": "it is passed over; restore the line from a copy, or leave it as it is",
    "changed-line": "`cantrip loom check FILE` tells more",
    "lost-parent": "the turn is shown as a root; restore the line of its parent from a copy",
    "second-turn": "this line is passed over; it may stay",
    "second-header": "two looms were joined in one file; `cantrip loom import` joins them rightly",
}
"""The advice for the user, by the rule of the problem."""


def findings(book: LoomDocument) -> list[types.Diagnostic]:
    out = []
    if book.broken is not None:
        out.append(_finding(0, 1, "no-loom", f"{clean_line(book.broken)}", _WARNING))
    for problem in book.problems(MOST) if book.broken is None else ():
        out.append(_diagnostic(problem))
    if book.broken is None and book.damage > MOST:
        more = f"{book.damage - MOST:,} more lines are damaged; `cantrip loom check FILE` names them all"
        out.append(_finding(0, 1, "damaged-line", more, _INFORMATION))
    return out


def of_line(book: LoomDocument, line: int) -> str:
    """The problems of a line as text; empty if there are none."""
    found = [_diagnostic(problem).message for problem in book.problems(MOST, line)]
    return "\n".join(found)


def _diagnostic(problem: Problem) -> types.Diagnostic:
    rule, advice = problem.rule, _ADVICE[problem.rule]
    line = max(0, (problem.line or 1) - 1)
    severity = _INFORMATION if rule in ("empty-line", "torn-line") else _WARNING
    message = f"{clean_line(problem.message)}; {advice}"
    return _finding(line, max(1, min(problem.length or 1, 1 << 30)), rule, message, severity)


def _finding(line: int, length: int, rule: str, message: str, severity: types.DiagnosticSeverity) -> types.Diagnostic:
    return types.Diagnostic(
        types.Range(types.Position(line, 0), types.Position(line, length)),
        message,
        severity=severity,
        code=rule,
        code_description=types.CodeDescription(lint.link(rule)),
        source="cantrip",
    )
