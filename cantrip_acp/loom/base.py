"""Reads and appends to the tree of all turns (§6.3, LOOM-1..3, LOOM-7, LOOM-9).

`loom.loom.Loom` adds what needs more than the records: opening with recovery, threads, checks and copies.

Memory holds a head for each turn: its parent, and its position in the store. The body of a turn is read when it is
needed.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from types import MappingProxyType
from typing import Any, NoReturn, Self, TypeVar
from typing import cast as typed
from weakref import WeakValueDictionary

import msgspec

from cantrip_acp.loom.records import record_heads
from cantrip_acp.loom.records.tree import Place, Problem, Tree, unreadable
from cantrip_acp.loom.records.turn_parts import joined
from cantrip_acp.loom.stores.contract import Store, readable
from cantrip_acp.loom.stores.memory import MemoryStore
from cantrip_acp.loom.stores.rows import encode_into
from cantrip_acp.text.json_data import freeze_record
from cantrip_acp.text.redaction import shared
from cantrip_acp.types.errors import EntityExists, LoomAppendOnly, LoomError, TurnNotFound
from cantrip_acp.types.records import (
    CantripRecord,
    CastRecord,
    ContextRecord,
    FilesRecord,
    ForkRecord,
    LaterRecord,
    LoomHeader,
    Record,
    RewardKind,
    RewardRecord,
    SnapshotRecord,
    Turn,
    UtteranceRecord,
    new_id,
    now,
)

_Written = TypeVar("_Written", bound=Record | LaterRecord)
_Kept = TypeVar("_Kept")
_Kind = TypeVar("_Kind", bound=msgspec.Struct)

_open_entities: WeakValueDictionary[str, Any] = WeakValueDictionary()
"""The entities of this process, in all looms, by their ids. An id names one open entity at a time (D-008.3)."""
_claiming = threading.Lock()

_KEPT = 1 << 20
"""The largest buffer that is kept for the next record, in bytes."""


class LoomReader:
    """The records of a store, by the tree that they form. Nothing here writes."""

    def __init__(self, store: Store) -> None:
        self._store = store
        tree = store.tree()
        if tree is None:
            tree = Tree()
            for position, record in store.heads():
                problem = tree.add(position, record)
                if problem is not None:
                    store.note(position, problem.message, problem.rule)
        self._tree = tree
        self.location = store.location
        """The path or address of the store; None in memory."""
        self.later: Mapping[str, int] = tree.later
        """The number of records of a later version, by kind. They are kept and copied; this version does not use them."""
        self._in_step = threading.RLock()
        """Held while store and tree change, and while the whole tree is read. Threads that look for a turn read on in the
        store, also while another one appends."""

    @property
    def header(self) -> LoomHeader | None:
        """The first record; None in a loom without records."""
        return self._tree.header

    @property
    def snapshots(self) -> Mapping[str, int]:
        """The position of the snapshot after a turn, by the turn's id."""
        return MappingProxyType(self._tree.snapshots)

    @property
    def pieces(self) -> Mapping[str, int]:
        """The position of the snapshot record that holds a piece of a state, by the piece's hash."""
        return MappingProxyType(self._tree.pieces)

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What could not be read when the loom was opened, and since."""
        return told(self._store.problems)

    def __len__(self) -> int:
        return len(self._tree.turns)

    def __contains__(self, turn_id: object) -> bool:
        return isinstance(turn_id, str) and self._tree_place(turn_id) is not None

    def stored(self) -> Iterator[tuple[Record | LaterRecord, bytes | None]]:
        """Yield every record and its JSON as it was written, in order; `append` of another loom takes both."""
        return self._store.stored()

    def refresh(self) -> int:
        """Read what other processes have written since, and return the number of those records.

        A search for an unknown turn calls this. Without new records it costs two system calls for a file and one query
        for a database. In a file of JSON lines the writer is alone and finds nothing new. Raises `LoomChanged` where a
        file that is followed was replaced, removed or cut.
        """
        count = 0
        with self._in_step:
            for position, record in self._store.news():
                problem = self._tree.add(position, record)
                if problem is not None:
                    self._store.note(position, problem.message, problem.rule)
                count += 1
        return count

    @property
    def open_casts(self) -> set[str]:
        """The casts without an end: those that run, and those whose process has died."""
        return self._tree.casts.keys() - self._tree.ends

    def running_casts(self, among: Set[str] | None = None) -> set[str]:
        """The casts without an end that run in a living process, among all or among these."""
        there = self.open_casts if among is None else among
        running = self._store.running(there)
        if running != there:
            # A cast without a lock may have ended normally after the last look.
            self.refresh()
        return running - self._tree.ends.keys()

    def turn(self, turn_id: str) -> Turn:
        """Return a turn with its last reward. Raises `TurnNotFound`."""
        return self._turns((self._known_place(turn_id),))[0]

    def _tree_place(self, turn_id: str) -> Place | None:
        """The place of a turn in the tree. Another process may have written it a moment ago."""
        place = self._tree.turns.get(turn_id)
        if place is None and self.refresh():
            place = self._tree.turns.get(turn_id)
        return place

    def _known_place(self, turn_id: str) -> Place:
        place = self._tree_place(turn_id)
        if place is None:
            raise TurnNotFound(f"no turn {turn_id!r} in this loom")
        return place

    def _read(self, positions: Iterable[int]) -> list[Record | LaterRecord | None]:
        return readable(self._store, positions)

    def _of(self, kind: type[_Kind], positions: Iterable[int]) -> list[_Kind]:
        """The records of a kind at these positions. Damaged ones are left out."""
        return [each for each in self._read(positions) if isinstance(each, kind)]

    def _one(self, kind: type[_Kind], position: int | None) -> _Kind | None:
        found = [] if position is None else self._of(kind, (position,))
        return found[0] if found else None

    def _unreadable(self, place: Place) -> Turn:
        """A placeholder for a damaged turn. Raises `LoomDamaged` for a writer, because it would continue from that
        turn."""
        if not self._store.readonly:
            self._store.read(place.position)
        turn_id = next(i for i, other in self._tree.turns.items() if other is place)
        return unreadable(turn_id, place)

    def _turns(self, places: Sequence[Place]) -> list[Turn]:
        turns = []
        for place, record in zip(places, self._read(p.position for p in places), strict=True):
            if record is None:
                turns.append(self._unreadable(place))
                continue
            if isinstance(record, LaterRecord):
                raise LoomError(
                    f"a turn of a later version ({place.role}) cannot be read by this one; upgrade cantrip-acp"
                )
            if not isinstance(record, Turn) or (record.parent_id, record.entity_id) != (
                place.parent_id,
                place.entity_id,
            ):
                raise LoomError(
                    f"loom {self.location}: the record at {place.position} was replaced; another program changed the loom"
                )
            turns.append(self._rewarded(record))
        return turns

    def turns(self) -> Iterator[Turn]:
        """Yield every turn in the order of writing, with rewards."""
        for head_id in tuple(self._tree.turns):
            yield self.turn(head_id)

    def records(self) -> Iterator[Record]:
        """Yield every record as it was written, in order; those of a later version are `LaterRecord`."""
        for head in self._store.scan():
            yield typed("Record", head[1])

    def casts(self) -> list[tuple[CastRecord, CastRecord | None]]:
        """Each cast's start with its end. The end is None where the cast still runs or its process crashed."""
        starts: dict[str, CastRecord] = {}
        ends: dict[str, CastRecord] = {}
        for record in self.records():
            if isinstance(record, CastRecord):
                (starts if record.event == "start" else ends)[record.id] = record
        return [(start, ends.get(cast_id)) for cast_id, start in starts.items()]

    @property
    def cast_ids(self) -> tuple[str, ...]:
        """The ids of all casts, in the order in which they began."""
        return tuple(self._tree.casts)

    def cast_of(self, cast_id: str) -> tuple[CastRecord | None, tuple[ContextRecord, ...]]:
        """The start of a cast, and the context that was pinned before its intent. The start is None if it is not in
        this loom."""
        records = self._read(self._tree.casts.get(cast_id, ()))
        start = next((each for each in records if isinstance(each, CastRecord)), None)
        return start, tuple(each for each in records if isinstance(each, ContextRecord))

    def unfinished(self) -> list[UtteranceRecord]:
        """The last utterance of each entity for which no turn was written, in the order of writing."""
        return self._of(UtteranceRecord, self._tree.unfinished.values())

    def partials(self, turn_id: str | None = None) -> list[UtteranceRecord]:
        """Utterances that were cut because their cast was stopped, in the order of writing: all, or those that follow a
        turn."""
        return self._of(UtteranceRecord, _positions(self._tree.partials, turn_id))

    def cast_starts(self, cast_ids: Iterable[str] | None = None) -> dict[str, CastRecord]:
        """The start of every cast by its id, or of these casts, in the order of writing."""
        wanted = None if cast_ids is None else set(cast_ids)
        # A copy: another thread may append.
        casts = tuple(self._tree.casts.items())
        positions = [where[0] for cast_id, where in casts if where and (wanted is None or cast_id in wanted)]
        return {each.id: each for each in self._of(CastRecord, positions)}

    def cast_end(self, cast_id: str) -> CastRecord | None:
        """The end of a cast; None if none was recorded."""
        return self._one(CastRecord, self._tree.ends.get(cast_id))

    def fork_of(self, entity_id: str) -> ForkRecord | None:
        """The fork record of an entity; None if the entity is not a fork."""
        return self._one(ForkRecord, self._tree.forks.get(entity_id))

    def forks(self) -> list[ForkRecord]:
        """Every fork record, in the order of writing."""
        return self._of(ForkRecord, self._tree.forks.values())

    def files(self) -> list[FilesRecord]:
        """The pinned workspace files after each turn that changed some, in the order of writing."""
        return self._of(FilesRecord, self._tree.files.values())

    def elsewhere(self) -> set[str]:
        """The turns that this loom names but lacks: another loom holds them, and a fork or a child in this loom starts
        there."""
        begun = [where[0] for where in tuple(self._tree.casts.values()) if where]
        named: set[str | None] = {place.parent_id for place in tuple(self._tree.turns.values())}
        for record in self._read([*begun, *self._tree.forks.values()]):
            if isinstance(record, CastRecord):
                named.add(record.parent_turn_id)
            elif isinstance(record, ForkRecord):
                named.add(record.from_turn)
        return {i for i in named if i is not None and i not in self._tree.turns}

    def assigned(self, turn_id: str | None = None) -> list[RewardRecord]:
        """Every reward of one turn, or of all turns, in the order in which they were given (LOOM-3)."""
        return self._of(RewardRecord, _positions(self._tree.assigned, turn_id))

    def reward(self, turn_id: str) -> float | None:
        """The reward of a turn that counts; None if it has none. Reads no body."""
        return self._tree.rewards.get(turn_id)

    @property
    def places(self) -> MappingProxyType[str, Place]:
        """Each turn's place in the tree by its id, in the order of writing: parent, role, entity, cast. Reads no
        body. Copy it to iterate over it in a thread, because turns may be added meanwhile."""
        return MappingProxyType(self._tree.turns)

    def bodies(self, turn_ids: Iterable[str]) -> list[Turn]:
        """Return many turns at once, with rewards. Raises `TurnNotFound`."""
        return self._turns([self._known_place(i) for i in turn_ids])

    def files_at(self, turn_id: str) -> FilesRecord | None:
        """The workspace files at the end of a turn: the last record of them on the path to it. None if there is
        none."""
        for at in reversed(self.path(turn_id)):
            position = self._tree.files.get(at)
            if position is not None:
                record = self._one(FilesRecord, position)
                if record is None:
                    raise LoomError(
                        f"loom {self.location}: byte {position} has no record of files; another program changed the file"
                    )
                return record
        return None

    def snapshot_at(self, position: int) -> SnapshotRecord:
        """The snapshot record at a position from ``snapshots`` or ``pieces``."""
        record = self._one(SnapshotRecord, position)
        if record is None:
            raise LoomError(f"loom {self.location}: byte {position} has no snapshot; another program changed the file")
        return record

    @property
    def cantrip_ids(self) -> tuple[str, ...]:
        """The ids of the distinct calls and circles, in the order of writing."""
        return tuple(self._tree.cantrips)

    def cantrip(self, cantrip_id: str) -> CantripRecord | None:
        """The call and circle for a ``cantrip_id``."""
        record = self._tree.cantrips.get(cantrip_id)
        if record is None:
            return None
        # Records from an index are not frozen. Freeze each one once.
        frozen = self._tree.cantrips[cantrip_id] = freeze_record(record)
        return frozen

    def has_entity(self, entity_id: str) -> bool:
        """Whether any record here belongs to an entity with this id."""
        self.refresh()
        with self._in_step:
            if entity_id in self._tree.forks or any(p.entity_id == entity_id for p in self._tree.turns.values()):
                return True
        return any(start.entity_id == entity_id for start in self.cast_starts().values())

    def last_turn(self, entity_id: str) -> str | None:
        """The id of the last turn that an entity wrote, folds included; None if it wrote none."""
        self.refresh()
        with self._in_step:
            for turn_id, place in reversed(self._tree.turns.items()):
                if place.entity_id == entity_id and place.role != "call":
                    return turn_id
        return None

    def leaves(self) -> list[str]:
        """Ids of the turns without children, in order of writing. A ``call`` turn without children does not count."""
        with self._in_step:
            parents = {place.parent_id for place in self._tree.turns.values()}
            return [i for i, place in self._tree.turns.items() if i not in parents and place.role != "call"]

    def children(self, turn_id: str) -> list[str]:
        """Ids of the turns whose parent this is, in order of writing."""
        with self._in_step:
            return [i for i, head in self._tree.turns.items() if head.parent_id == turn_id]

    def path(self, leaf_id: str) -> list[str]:
        """Ids from the root to a turn."""
        self._known_place(leaf_id)
        path: list[str] = []
        seen: set[str] = set()
        at: str | None = leaf_id
        while at is not None and at in self._tree.turns:
            if at in seen:
                raise LoomError(f"turn {at!r} is its own ancestor; the loom is damaged")
            seen.add(at)
            path.append(at)
            at = self._tree.turns[at].parent_id
        path.reverse()
        return path

    def own_path(self, leaf_id: str) -> list[str]:
        """The ids from an entity's own ``call`` turn to one of its turns. For a child, the part above its own call is
        left out."""
        path = self.path(leaf_id)
        for place in range(len(path) - 1, 0, -1):
            if self._tree.turns[path[place]].role == "call":
                return path[place:]
        return path

    @property
    def has_children(self) -> bool:
        """Whether any entity of this loom is the child of another one."""
        with self._in_step:
            return any(place.role == "call" and place.parent_id is not None for place in self._tree.turns.values())

    def children_until(self, leaf_id: str) -> tuple[int, int]:
        """On the path to a turn: the number of children that its entity spawned, and the number of casts of children
        and of their children (``max_children_total`` counts each)."""
        places = dict(self._tree.turns)
        mine = set(self.own_path(leaf_id))
        children = sum(1 for place in places.values() if place.role == "call" and place.parent_id in mine)
        turns: dict[str | None, list[str]] = {}
        for turn_id, place in places.items():
            turns.setdefault(place.cast_id, []).append(turn_id)
        spawned: dict[str | None, list[str]] = {}
        for start in self.cast_starts().values():
            spawned.setdefault(start.parent_turn_id, []).append(start.id)
        waiting, casts = list(mine), set[str]()
        while waiting:
            for cast_id in spawned.get(waiting.pop(), ()):
                if cast_id not in casts:
                    casts.add(cast_id)
                    waiting += turns.get(cast_id, ())
        return children, len(casts)

    def utterance_ids(self, leaf_id: str) -> list[tuple[str, ...]]:
        """The utterances of an entity on the path to a turn, without the call and folds. Each is a tuple of turn ids:
        an utterance has several turns if it delegated (`turn_parts`)."""
        texts: list[tuple[str, ...]] = []
        for i in self.own_path(leaf_id):
            place = self._tree.turns[i]
            if place.role != "crystal":
                continue
            if place.continues is not None and texts and texts[-1][0] == place.continues:
                texts[-1] = (*texts[-1], i)
            else:
                texts.append((i,))
        return texts

    def utterance_turn(self, ids: Sequence[str]) -> Turn:
        """Return one utterance as one turn. ``ids`` are the ids of its parts, from `utterance_ids`."""
        return joined([self.turn(i) for i in ids])

    def _rewarded(self, turn: Turn) -> Turn:
        reward = self._tree.rewards.get(turn.id)
        return turn if reward is None else msgspec.structs.replace(turn, reward=reward)


class BaseLoom(LoomReader):
    """A tree of turns in a store. The only way to change it is to append; `annotate_reward` appends too."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._observers: list[Callable[[Any, object], None]] = []
        self._buffer = bytearray()
        """For the JSON of the record that is appended."""

    @classmethod
    def memory(cls) -> Self:
        """Return a loom in memory. It is lost when the process ends."""
        return cls(MemoryStore())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the store, release its lock and the ids of its entities, which can write no more. Safe to call twice."""
        self._store.close(self._tree)
        with _claiming:
            for entity_id, entity in list(_open_entities.items()):
                if entity.loom is self:
                    del _open_entities[entity_id]

    def append(self, record: _Written, body: bytes | None = None) -> _Written:
        """Add one record; when this returns it is in the store (LOOM-1). Returns it as it was written: with known secrets
        masked. ``body`` is the record's JSON as another loom gave it (`stored`), which masked it; it may have fields that this
        version does not know.

        Raises `LoomError` for a turn whose id is taken or whose parent is unknown and for a reward that is no finite
        number, `TurnNotFound` for a reward of an unknown turn, `LoomWriteError` where the store fails.
        """
        with self._in_step:
            if self._tree.header is None and not isinstance(record, LoomHeader):
                self._begin_file()
            if body is not None:
                self._append(record, body)
            else:
                # Encoded once: this is searched for secrets, and it is what the store writes.
                made = encode_into(record, self._buffer)
                masked = as_kept(record, made)
                if masked is not record:
                    record, made = masked, encode_into(masked, self._buffer)
                if isinstance(record, RewardRecord):
                    # None says that a scorer failed.
                    self._check_reward(record.turn_id, 0 if record.reward is None else record.reward)
                self._append(record, made)
            if len(self._buffer) > _KEPT:
                self._buffer = bytearray()
        for observer in self._observers:
            observer(self, record)
        return record

    def _append(self, record: Record | LaterRecord, body: bytes | bytearray) -> None:
        if isinstance(record, Turn):
            if record.id in self._tree.turns:
                raise LoomAppendOnly(f"loom is append-only: turn {record.id!r} is already written")
            if record.parent_id is not None and self._tree_place(record.parent_id) is None:
                raise LoomError(f"turn {record.id!r} names a parent that is not in this loom: {record.parent_id!r}")
        position = self._store.append(record, body)
        if self._store.behind:
            # Other processes wrote records before this one. Read all of them in the order of the store, this one too.
            self.refresh()
        else:
            self._tree.add(
                position, record_heads.decode(record.data, sealed=True) if type(record) is LaterRecord else record
            )

    def observe(self, observer: Callable[[Any, object], None]) -> None:
        """Call the observer with each record that this object writes from now on. It must be quick, and must not raise."""
        if observer not in self._observers:
            self._observers.append(observer)

    def _begin_file(self) -> None:
        self.refresh()
        if self._tree.header is None:
            try:
                self.append(LoomHeader(id=new_id("loom"), created=now()))
            except LoomAppendOnly:
                # Another process has just written the header.
                self.refresh()

    def begin(
        self,
        cantrip_id: str,
        call: Mapping[str, Any],
        circle: Mapping[str, Any],
        entity_id: str,
        shown: Mapping[str, Any] | msgspec.UnsetType = msgspec.UNSET,
        *,
        above: str | None = None,
    ) -> str:
        """Write the cantrip if the loom lacks it, and return the id of its ``call`` turn, the root (CALL-4).

        A child has a root of its own. Its parent is the turn that spawned the child: ``above``.
        """
        if above is not None:
            self.record_cantrip(cantrip_id, call, circle, shown)
            below = new_id("t")
            self.append(Turn(below, above, cantrip_id, entity_id, None, role="call"))
            return below
        self.refresh()
        root = self._tree.calls.get(cantrip_id)
        if root is not None:
            return root
        self.record_cantrip(cantrip_id, call, circle, shown)
        root = new_id("t")
        self.append(Turn(root, None, cantrip_id, entity_id, None, role="call"))
        return root

    def record_cantrip(
        self,
        cantrip_id: str,
        call: Mapping[str, Any],
        circle: Mapping[str, Any],
        shown: Mapping[str, Any] | msgspec.UnsetType = msgspec.UNSET,
    ) -> None:
        """Write the cantrip if the loom lacks it."""
        if cantrip_id not in self._tree.cantrips:
            self.append(CantripRecord(cantrip_id, call, circle, shown))

    def annotate_reward(
        self,
        turn_id: str,
        reward: float,
        *,
        by: str = "",
        note: str | None = None,
        kind: RewardKind = "explicit",
        group: str | None = None,
        grade: bool = False,
    ) -> None:
        """Give a turn a reward. The last one counts, and all of them are kept (LOOM-3).

        ``kind``, ``group`` and ``grade`` are as in `RewardRecord`.
        Raises `TurnNotFound`, and `LoomError` for a value that is not a finite number.
        """
        self._check_reward(turn_id, reward)
        about: dict[str, Any] = {"grade": True} if grade else {}
        if group is not None:
            about["group"] = group
        self.append(RewardRecord(turn_id, float(reward), by, note, now(), kind, **about))

    def _check_reward(self, turn_id: str, reward: Any) -> None:
        self._known_place(turn_id)
        if isinstance(reward, bool) or not isinstance(reward, int | float) or not abs(reward) <= sys.float_info.max:
            raise LoomError(f"a reward is a number, not {reward!r}")

    def delete_turn(self, turn_id: str) -> NoReturn:
        """Always raises `LoomAppendOnly`: a turn cannot be deleted (LOOM-3)."""
        raise LoomAppendOnly(f"loom is append-only: turn {turn_id!r} cannot be deleted or changed")

    __delitem__ = delete_turn

    def lock_cast(self, cast_id: str) -> bool:
        """Mark a cast as running in this process, until `release_cast` or until the process dies. Returns False if
        this process or another one runs it already."""
        return self._store.lock_cast(cast_id)

    def unlock_cast(self, cast_id: str) -> None:
        """Mark a cast as no longer running in this process."""
        self._store.release(cast_id)

    def claim(self, entity_id: str, entity: Any) -> None:
        """Register an open entity with this id. Raises `EntityExists` if another open entity of this process has the id."""
        with _claiming:
            other = _open_entities.get(entity_id)
            if other is not None and not other.closed:
                where = (
                    "this loom"
                    if other.loom is self
                    else f"another loom of this process ({other.loom.location or 'in memory'})"
                )
                raise EntityExists(
                    f"entity {entity_id!r} is already open in {where}; close it first, or leave the id out for a new one"
                )
            _open_entities[entity_id] = entity


def _positions(held: Mapping[str, list[int]], turn_id: str | None) -> list[int]:
    """The positions of the records of one turn, or of all turns in the order of writing."""
    if turn_id is not None:
        return held.get(turn_id, [])
    # A copy: another thread may append.
    return sorted(position for of in tuple(held.values()) for position in tuple(of))


def told(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """Problems for people: a decoder's message repeats parts of the damaged record."""
    return tuple(map(as_kept, problems))


def as_kept(value: _Kept, encoded: bytes | bytearray | None = None) -> _Kept:
    """A value as a loom keeps it: with known secrets masked. What is compared with records, or hashed as they are, is made with
    this. ``encoded`` is its JSON, if there is one."""
    return shared().masked(value, encoded)
