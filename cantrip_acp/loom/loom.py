"""The `Loom` class: what programs open, read and append to (§6.3, LOOM-1..3, LOOM-7, LOOM-9, LOOM-10)."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from cantrip_acp.loom.base import BaseLoom, told
from cantrip_acp.loom.query.thread import Endings, Thread
from cantrip_acp.loom.records.tree import Problem
from cantrip_acp.loom.stores.contract import Store
from cantrip_acp.types.errors import LoomError
from cantrip_acp.types.records import LoomHeader, Turn


class Loom(BaseLoom):
    """The record of what entities did: a tree of turns, in a file, a database or memory.

    `Loom.open` and `Loom.memory` make one. `threads` are its ways from the start to an end, `turns` and `casts` all that is in
    it. Records are only added and never changed; `annotate_reward` adds one, too.
    """

    @classmethod
    def open(cls, path: Path | str, *, fsync: bool = False, readonly: bool = False) -> Self:
        """Open the loom in a file of JSON lines (a path) or in a database (``sqlite:FILE``,
        ``postgresql://…?loom=NAME``), and create it if it is missing.

        A file of JSON lines has one writer: opening it for writing locks it, and moves a torn last line to another
        file. Raises `LoomLocked` if another process writes it. A database has many writers. `problems` lists what
        was wrong. An utterance without a turn, because its process ended, becomes a turn (see `recovery`). With
        ``readonly`` that turn is shown and not written. With ``fsync`` each record is on the disk before the next turn
        begins.
        """
        from cantrip_acp.loom.stores.address import open_store

        store = open_store(path, fsync=fsync, readonly=readonly)
        try:
            if readonly:
                from cantrip_acp.loom.query.completed_turns import completed

                return cls(completed(store, path))
            loom = cls(store)
            if loom._tree.unfinished or loom.open_casts:
                from cantrip_acp.loom.recovery import complete_interrupted

                complete_interrupted(loom)
            return loom
        except BaseException:
            store.close()
            raise

    def check(self) -> list[Problem]:
        """Read the whole loom and return everything that is wrong. Opening reads only the heads, and finds less."""
        from cantrip_acp.loom.check import missing_records

        known = list(self._store.problems)
        places = {each.offset for each in known} - {None}
        damaged = [each for each in self._store.damaged() if each.offset not in places]
        return list(told([*known, *damaged, *missing_records(self)]))

    def copy_to(self, store: Store) -> Self:
        """Copy every record to another store and return that loom; ids and order stay. ``store`` was just opened, and
        belongs to the copy from then on. An interrupted copy continues where it stopped. Records and fields of a later
        version are copied unchanged.

        Raises `LoomError` if the store already holds other records, or refuses one of these (a turn whose parent was
        lost).
        """
        from cantrip_acp.loom.stores.rows import encoded

        copy, records = type(self)(store), self.stored()
        for kept in copy.records():
            record, _ = next(records, (None, None))
            if record != kept and (record is None or encoded(record) != encoded(kept)):
                raise LoomError(f"loom {store.location} holds other records already; copy to an empty one")
        for record, body in records:
            copy.append(record, body)
        return copy

    def joined(self, other: Loom, store: Store) -> Self:
        """Copy the records of this loom and of another one to an empty store and return that loom. What both have, such as
        the turns that a fork was copied with, is in it once. ``store`` belongs to the copy from then on."""
        from cantrip_acp.loom.stores.rows import encoded

        joined, kept = self.copy_to(store), {encoded(record) for record, _ in self.stored()}
        for record, body in other.stored():
            known = record.id in joined if isinstance(record, Turn) else encoded(record) in kept
            if not known and not isinstance(record, LoomHeader):
                joined.append(record, body)
        return joined

    def thread(self, leaf_id: str) -> Thread:
        """The path from the root to any turn (LOOM-10)."""
        return self._thread(leaf_id, Endings(self))

    def _thread(self, leaf_id: str, endings: Endings) -> Thread:
        turns = tuple(self._turns([self._tree.turns[i] for i in self.path(leaf_id)]))
        return Thread(turns, endings.thread(turns[-1]))

    def threads(self) -> list[Thread]:
        """Every path from the root to a leaf, in the order in which the leaves were written."""
        endings = Endings(self)
        return [self._thread(leaf, endings) for leaf in self.leaves()]
