"""The loom: the tree of all turns, append-only (§6.3, LOOM-1..3, LOOM-7, LOOM-9, LOOM-10).

In memory it keeps a head for each turn (who its parent is, where it stands in the store); bodies are read when asked for.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn
from typing import cast as typed
from weakref import WeakValueDictionary

import msgspec

from cantrip_acp.core.errors import EntityExists, LoomAppendOnly, LoomError, TurnNotFound
from cantrip_acp.loom.query.thread import Endings, Thread
from cantrip_acp.loom.records import record_heads
from cantrip_acp.loom.records.tree import Place, Tree, unreadable
from cantrip_acp.loom.records.turn import (
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
from cantrip_acp.loom.records.turn_parts import joined
from cantrip_acp.loom.stores.contract import Problem, Store, readable
from cantrip_acp.loom.stores.memory import MemoryStore
from cantrip_acp.text.json_data import freeze_record
from cantrip_acp.text.redaction import shared


class Loom:
    """A tree of turns in a store.

    `Loom.memory` and `Loom.open` make one. Appending is the only way to change it; `annotate_reward` appends too.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._living: WeakValueDictionary[str, Any] = WeakValueDictionary()
        tree = store.tree()
        if tree is None:
            tree = Tree()
            for position, record in store.heads():
                problem = tree.take(position, record)
                if problem is not None:
                    store.note(position, problem.message, problem.rule)
        self._tree = tree

    @classmethod
    def memory(cls) -> Loom:
        """A loom that lives as long as the process."""
        return cls(MemoryStore())

    @classmethod
    def open(cls, path: Path | str, *, fsync: bool = False, readonly: bool = False) -> Loom:
        """The loom in a file of JSON lines (a path) or a database (``sqlite:FILE``,
        ``postgresql://…?loom=NAME``), made where it is missing.

        Opening a file of lines for writing locks it (`LoomLocked`) and sets a torn last line aside; a database has many
        writers. `problems` tells what was found. What was said when a process ended becomes a turn (`interrupted`), which
        a reader sees and does not write. With ``fsync`` each record is on the disk before the next turn begins.
        """
        from cantrip_acp.loom.stores.address import open_store

        store = open_store(path, fsync=fsync, readonly=readonly)
        try:
            if readonly:
                from cantrip_acp.loom.query.completed import completed

                return cls(completed(store, path))
            loom = cls(store)
            if loom._tree.unfinished or loom.open_casts:
                from cantrip_acp.loom.recovery import settle

                settle(loom)
            return loom
        except BaseException:
            store.close()
            raise

    @property
    def header(self) -> LoomHeader | None:
        """The first record, None in a loom that nobody has written to."""
        return self._tree.header

    @property
    def snapshots(self) -> Mapping[str, int]:
        """Where the snapshot after a turn stands, by the turn's id."""
        return MappingProxyType(self._tree.snapshots)

    @property
    def pieces(self) -> Mapping[str, int]:
        """Which snapshot's record holds a piece of a state, by the piece's hash."""
        return MappingProxyType(self._tree.pieces)

    @property
    def location(self) -> str | None:
        """Where it is kept: a path, or None in memory."""
        return self._store.location

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What could not be read when it was opened."""
        return tuple(map(_told, self._store.problems))

    def check(self) -> list[Problem]:
        """Everything that is wrong with it, found by reading all of it; opening reads heads alone, and tells less."""
        known = list(self._store.problems)
        places = {each.offset for each in known} - {None}
        from cantrip_acp.loom.fsck import lacking

        damaged = [each for each in self._store.damaged() if each.offset not in places]
        return list(map(_told, [*known, *damaged, *lacking(self)]))

    def __len__(self) -> int:
        return len(self._tree.turns)

    def __contains__(self, turn_id: object) -> bool:
        return isinstance(turn_id, str) and self._place(turn_id) is not None

    def __enter__(self) -> Loom:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the store and its lock; safe to call twice."""
        self._store.close(self._tree)

    # Writing

    def append(self, record: Record | LaterRecord, body: bytes | None = None) -> None:
        """Add one record; when this returns it is in the store (LOOM-1). ``body`` is its JSON where another loom gave it
        (`stored`), with fields that this version does not know.

        Raises `LoomError` for a turn whose id is taken or whose parent is unknown, `LoomWriteError` where the store fails.
        """
        if self._tree.header is None and not isinstance(record, LoomHeader):
            self._begin_file()
        if isinstance(record, Turn):
            if record.id in self._tree.turns:
                raise LoomAppendOnly(f"loom is append-only: turn {record.id!r} is already written")
            if record.parent_id is not None and self._place(record.parent_id) is None:
                raise LoomError(f"turn {record.id!r} names a parent that is not in this loom: {record.parent_id!r}")
        position = self._store.append(record, body)
        if self._store.behind:
            # In the order of the store, this one among them.
            self.refresh()
        else:
            self._tree.take(
                position, record_heads.decode(record.data, sealed=True) if type(record) is LaterRecord else record
            )

    def _begin_file(self) -> None:
        self.refresh()
        if self._tree.header is None:
            try:
                self.append(LoomHeader(id=new_id("loom"), created=now()))
            except LoomAppendOnly:
                # Another process was faster by a moment.
                self.refresh()

    def stored(self) -> Iterator[tuple[Record | LaterRecord, bytes | None]]:
        """Every record with its JSON as it was written, in order: for `append` of another loom."""
        return self._store.stored()

    def refresh(self) -> int:
        """Take in what other processes wrote since; how many records that were.

        Looking for a turn that is not known does it by itself. It costs two system calls where nothing new is in a file,
        and one question where nothing is in a database. The writer of a file of lines is alone: nothing new for it.
        Raises `LoomChanged` where a file that is followed was replaced, removed or cut.
        """
        count = 0
        for position, record in self._store.news():
            problem = self._tree.take(position, record)
            if problem is not None:
                self._store.note(position, problem.message, problem.rule)
            count += 1
        return count

    def copy_to(self, store: Store) -> Loom:
        """A loom in another store with every record of this one; see `copying.copied`."""
        from cantrip_acp.loom.copying import copied

        return copied(self, store)

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
        """Make sure that a cantrip stands in the loom, and return the id of its ``call`` turn, the root (CALL-4).

        A child has a root of its own, below the turn that spawned it: ``above``.
        """
        if above is not None:
            self.know(cantrip_id, call, circle, shown)
            below = new_id("t")
            self.append(Turn(below, above, cantrip_id, entity_id, None, role="call"))
            return below
        self.refresh()
        root = self._tree.calls.get(cantrip_id)
        if root is not None:
            return root
        self.know(cantrip_id, call, circle, shown)
        root = new_id("t")
        self.append(Turn(root, None, cantrip_id, entity_id, None, role="call"))
        return root

    def know(
        self,
        cantrip_id: str,
        call: Mapping[str, Any],
        circle: Mapping[str, Any],
        shown: Mapping[str, Any] | msgspec.UnsetType = msgspec.UNSET,
    ) -> None:
        """Make sure that a cantrip stands in the loom."""
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
        """Give a turn a reward; the last one given counts, and every one is kept (LOOM-3).

        ``kind``, ``group`` and ``grade`` are as in `RewardRecord`; secrets in ``by`` and ``note`` are masked.
        Raises `TurnNotFound`, and `LoomError` for what is no finite number.
        """
        self._found(turn_id)
        if isinstance(reward, bool) or not isinstance(reward, int | float) or not abs(reward) <= sys.float_info.max:
            raise LoomError(f"a reward is a number, not {reward!r}")
        about: dict[str, Any] = {"grade": True} if grade else {}
        if group is not None:
            about["group"] = group
        mask = shared().text
        note = None if note is None else mask(note)
        self.append(RewardRecord(turn_id, float(reward), mask(by), note, now(), kind, **about))

    def delete_turn(self, turn_id: str) -> NoReturn:
        """There is no deleting (LOOM-3): always raises `LoomAppendOnly`."""
        raise LoomAppendOnly(f"loom is append-only: turn {turn_id!r} cannot be deleted or changed")

    def replace_turn(self, turn: Turn) -> NoReturn:
        """There is no changing (LOOM-3): always raises `LoomAppendOnly`."""
        raise LoomAppendOnly(f"loom is append-only: turn {turn.id!r} cannot be deleted or changed")

    __delitem__ = delete_turn

    def hold_cast(self, cast_id: str) -> bool:
        """This process works on a cast: it is active until `release_cast`, or until the process dies. False where this
        process, or another one, works on it already."""
        return self._store.hold(cast_id)

    def release_cast(self, cast_id: str) -> None:
        """This process no longer works on a cast."""
        self._store.release(cast_id)

    @property
    def open_casts(self) -> set[str]:
        """The casts without an end: a living process works on them, or none does any more."""
        return self._tree.casts.keys() - self._tree.ends

    def running_casts(self, among: Set[str] | None = None) -> set[str]:
        """The casts without an end that a living process works on, of all or of these."""
        there = self.open_casts if among is None else among
        running = self._store.running(there)
        if running != there:
            # One that is not locked any more may have ended as it should, after we last looked.
            self.refresh()
        return running - self._tree.ends.keys()

    # Reading

    def turn(self, turn_id: str) -> Turn:
        """A turn, with the last reward it was given. Raises `TurnNotFound`."""
        return self._turns((self._found(turn_id),))[0]

    def _place(self, turn_id: str) -> Place | None:
        """Where a turn stands; another process may have written it a moment ago."""
        place = self._tree.turns.get(turn_id)
        if place is None and self.refresh():
            place = self._tree.turns.get(turn_id)
        return place

    def _found(self, turn_id: str) -> Place:
        place = self._place(turn_id)
        if place is None:
            raise TurnNotFound(f"no turn {turn_id!r} in this loom")
        return place

    def _read(self, positions: Iterable[int]) -> list[Record | LaterRecord | None]:
        return readable(self._store, positions)

    def _unreadable(self, place: Place) -> Turn:
        """What stands for a damaged turn. Raises `LoomDamaged` for a writer, who would go on from it."""
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
                    f"loom {self.location}: at {place.position} there is another record than was; the file changed under us"
                )
            turns.append(self._rewarded(record))
        return turns

    def turns(self) -> Iterator[Turn]:
        """Every turn in the order of writing, with rewards."""
        for head_id in tuple(self._tree.turns):
            yield self.turn(head_id)

    def records(self) -> Iterator[Record]:
        """Every record as it was written, in order; those of a later version are `LaterRecord`."""
        for head in self._store.scan():
            yield typed("Record", head[1])

    @property
    def later(self) -> Mapping[str, int]:
        """How many records of a later version there are, by their kind. They are kept and copied, and nothing here uses them."""
        return self._tree.later

    def casts(self) -> list[tuple[CastRecord, CastRecord | None]]:
        """Each cast's start with its end; None for one that never ended (a crash, or it still runs)."""
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
        """The start of a cast, None where it is not here, and what was pinned before its intent."""
        start: CastRecord | None = None
        context: list[ContextRecord] = []
        for position in self._tree.casts.get(cast_id, ()):
            record = self._read((position,))[0]
            if isinstance(record, ContextRecord):
                context.append(record)
            elif isinstance(record, CastRecord) and start is None:
                start = record
        return start, tuple(context)

    def unfinished(self) -> list[UtteranceRecord]:
        """What was said last, of each entity of which no turn tells yet what came of it, in the order of writing."""
        return [r for r in self._read(self._tree.unfinished.values()) if isinstance(r, UtteranceRecord)]

    def partials(self, turn_id: str | None = None) -> list[UtteranceRecord]:
        """What was streamed before a cast was stopped, of the casts that went on from a turn or of all, in order of writing."""
        held = self._tree.partials
        positions = sorted(p for of in held.values() for p in of) if turn_id is None else held.get(turn_id, [])
        return [r for r in self._read(positions) if isinstance(r, UtteranceRecord)] if positions else []

    def cast_starts(self, cast_ids: Iterable[str] | None = None) -> dict[str, CastRecord]:
        """The start of every cast by its id, or of these, in the order of writing."""
        wanted = None if cast_ids is None else set(cast_ids)
        casts = self._tree.casts.items()
        positions = [where[0] for cast_id, where in casts if where and (wanted is None or cast_id in wanted)]
        return {r.id: r for r in self._read(positions) if isinstance(r, CastRecord)}

    def cast_end(self, cast_id: str) -> CastRecord | None:
        """The end of a cast; None where none was recorded."""
        position = self._tree.ends.get(cast_id)
        record = None if position is None else self._read((position,))[0]
        return record if isinstance(record, CastRecord) else None

    def fork_of(self, entity_id: str) -> ForkRecord | None:
        """How an entity began, where it is a fork; None where it is none."""
        position = self._tree.forks.get(entity_id)
        record = None if position is None else self._read((position,))[0]
        return record if isinstance(record, ForkRecord) else None

    def forks(self) -> list[ForkRecord]:
        """How each fork began, in the order of writing."""
        return [r for r in self._read(self._tree.forks.values()) if isinstance(r, ForkRecord)]

    def files(self) -> list[FilesRecord]:
        """What was kept of the workspace's files after each turn that changed some, in the order of writing."""
        return [r for r in self._read(self._tree.files.values()) if isinstance(r, FilesRecord)]

    def elsewhere(self) -> set[str]:
        """The turns that are named here and lie in another loom: where a fork or a child of theirs began."""
        begun = [where[0] for where in self._tree.casts.values() if where]
        named: set[str | None] = {place.parent_id for place in self._tree.turns.values()}
        for record in self._read([*begun, *self._tree.forks.values()]):
            if isinstance(record, CastRecord):
                named.add(record.parent_turn_id)
            elif isinstance(record, ForkRecord):
                named.add(record.from_turn)
        return {i for i in named if i is not None and i not in self._tree.turns}

    def assigned(self, turn_id: str | None = None) -> list[RewardRecord]:
        """Every reward that a turn was ever given, or that any was, in the order of giving (LOOM-3)."""
        held = self._tree.assigned
        positions = sorted(p for of in held.values() for p in of) if turn_id is None else held.get(turn_id, [])
        return [r for r in self._read(positions) if isinstance(r, RewardRecord)]

    def reward(self, turn_id: str) -> float | None:
        """The reward of a turn that counts; None where it has none. No body is read."""
        return self._tree.rewards.get(turn_id)

    @property
    def places(self) -> Mapping[str, Place]:
        """Each turn's place in the tree by its id, in the order of writing: parent, role, entity, cast. No body is read."""
        return MappingProxyType(self._tree.turns)

    def bodies(self, turn_ids: Iterable[str]) -> list[Turn]:
        """Many turns at once, with rewards. Raises `TurnNotFound`."""
        return self._turns([self._found(i) for i in turn_ids])

    def files_at(self, turn_id: str) -> FilesRecord | None:
        """How the files stood when a turn had ended: the last that was kept of them on the way there, None where none was."""
        for at in reversed(self.path(turn_id)):
            position = self._tree.files.get(at)
            if position is not None:
                record = self._read((position,))[0]
                if not isinstance(record, FilesRecord):
                    raise LoomError(f"loom {self.location}: byte {position} holds no files; the file changed under us")
                return record
        return None

    def snapshot_at(self, position: int) -> SnapshotRecord:
        """The snapshot's record at a position that ``snapshots`` or ``pieces`` gave."""
        record = self._read((position,))[0]
        if not isinstance(record, SnapshotRecord):
            raise LoomError(f"loom {self.location}: byte {position} holds no snapshot; the file changed under us")
        return record

    def cantrip(self, cantrip_id: str) -> CantripRecord | None:
        """The call and circle that a turn's ``cantrip_id`` names."""
        record = self._tree.cantrips.get(cantrip_id)
        if record is None:
            return None
        # An index gives records that are not frozen; it is done once.
        frozen = self._tree.cantrips[cantrip_id] = freeze_record(record)
        return frozen

    def claim(self, entity_id: str, entity: Any) -> None:
        """Note that an entity of this id lives here. Raises `EntityExists` where another one does."""
        other = self._living.get(entity_id)
        if other is not None and not other.closed:
            raise EntityExists(
                f"entity {entity_id!r} lives in this loom already; close it first, or leave the id out for a new one"
            )
        self._living[entity_id] = entity

    def has_entity(self, entity_id: str) -> bool:
        """Whether any record here is of an entity with this id."""
        self.refresh()
        if entity_id in self._tree.forks or any(p.entity_id == entity_id for p in self._tree.turns.values()):
            return True
        return any(start.entity_id == entity_id for start in self.cast_starts().values())

    def last_turn(self, entity_id: str) -> str | None:
        """The id of the last turn that an entity wrote, folds among them; None where it wrote none."""
        self.refresh()
        for turn_id, place in reversed(self._tree.turns.items()):
            if place.entity_id == entity_id and place.role != "call":
                return turn_id
        return None

    def leaves(self) -> list[str]:
        """Ids of the turns without children, in order of writing; a lone ``call`` turn is none."""
        parents = {place.parent_id for place in self._tree.turns.values()}
        return [i for i, place in self._tree.turns.items() if i not in parents and place.role != "call"]

    def children(self, turn_id: str) -> list[str]:
        """Ids of the turns whose parent this is, in order of writing."""
        return [i for i, head in self._tree.turns.items() if head.parent_id == turn_id]

    def path(self, leaf_id: str) -> list[str]:
        """Ids from the root down to a turn."""
        self._found(leaf_id)
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

    def own(self, leaf_id: str) -> list[str]:
        """The ids from an entity's call down to one of its turns: of a child's path, what is below its own call."""
        path = self.path(leaf_id)
        for place in range(len(path) - 1, 0, -1):
            if self._tree.turns[path[place]].role == "call":
                return path[place:]
        return path

    @property
    def has_children(self) -> bool:
        """Whether any entity of this loom is another one's child."""
        return any(place.role == "call" and place.parent_id is not None for place in self._tree.turns.values())

    def children_until(self, leaf_id: str) -> tuple[int, int]:
        """On the way to a turn: how many children its entity spawned, and how many casts of children there were, those of
        children's children among them (``max_children_total`` counts each)."""
        places = self._tree.turns
        mine = set(self.own(leaf_id))
        born = sum(1 for place in places.values() if place.role == "call" and place.parent_id in mine)
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
        return born, len(casts)

    def acted(self, leaf_id: str) -> list[tuple[str, ...]]:
        """What an entity said on the way to a turn, without the call and folds: for each utterance the ids of its turns,
        of which there are several where it delegated (`utterances`)."""
        spoken: list[tuple[str, ...]] = []
        for i in self.own(leaf_id):
            place = self._tree.turns[i]
            if place.role != "crystal":
                continue
            if place.continues is not None and spoken and spoken[-1][0] == place.continues:
                spoken[-1] = (*spoken[-1], i)
            else:
                spoken.append((i,))
        return spoken

    def said(self, ids: Sequence[str]) -> Turn:
        """One utterance as one turn, by the ids that `acted` gives for it."""
        return joined([self.turn(i) for i in ids])

    def thread(self, leaf_id: str) -> Thread:
        """The path from the root to any turn (LOOM-10)."""
        return self._thread(leaf_id, Endings(self))

    def _thread(self, leaf_id: str, endings: Endings) -> Thread:
        turns = tuple(self._turns([self._tree.turns[i] for i in self.path(leaf_id)]))
        return Thread(turns, endings.thread(turns[-1]))

    def threads(self) -> list[Thread]:
        """Every root-to-leaf path, by when its leaf was written."""
        endings = Endings(self)
        return [self._thread(leaf, endings) for leaf in self.leaves()]

    def _rewarded(self, turn: Turn) -> Turn:
        reward = self._tree.rewards.get(turn.id)
        return turn if reward is None else msgspec.structs.replace(turn, reward=reward)


def _told(problem: Problem) -> Problem:
    """A problem as anybody may see it: what a decoder says repeats parts of a damaged record."""
    return msgspec.structs.replace(problem, message=shared().diagnostic(problem.message))
