"""SQLite store of tuples: one file for the processes of one machine. Work that ends is on the disk before it is acknowledged."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from cantrip_acp.files import guarded
from cantrip_acp.files.folder import Folder
from cantrip_acp.files.sqlite_file import ROLLBACK, WAL_FILES, statements, use_write_ahead_log
from cantrip_acp.tuplespace.budget import Budget, alarm_tuple, amounts, due_alarms
from cantrip_acp.tuplespace.errors import LeaseLost, SpaceError, SpaceFull, SpaceNotOpened
from cantrip_acp.tuplespace.stores.base import (
    FIRSTS,
    MOST_ANSWERS,
    READS_TO,
    Answer,
    Claim,
    End,
    Expired,
    Failures,
    Holder,
    LaneCount,
    LaneSums,
    Need,
    StoredArtifact,
    StoredReceipt,
    StoredTuple,
    WorkerEntry,
    artifact_id,
    budget_of,
    can_run_body,
    decode_progress,
    decode_runs,
    decode_work,
    encode_progress,
    encode_receipt,
    encode_runs,
    encode_work,
    expired,
    grouped_needs,
    reuse_columns,
    stored_of,
)
from cantrip_acp.tuplespace.stores.sqlite_tables import (
    AFFORDABLE,
    BODY,
    GIVE_BUDGET,
    IDLE,
    MIGRATIONS,
    REPEATED,
    STORED,
)
from cantrip_acp.tuplespace.tuples import Pattern, Runnable, WorkTuple, contains, without_again

APPLICATION = 0x43545550
"""The database's ``application_id``: the letters CTUP."""
_PATIENCE_S = 30.0
"""How long to wait while another process writes."""
_POLL_S = (0.002, 0.25)
"""The shortest and the longest pause between two looks for changes of other processes."""


class SqliteTupleStore:
    """Tuples in a file. The file is created, with its folders, for the user only. Raises `SpaceError`."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(os.path.abspath(path))
        self._lock = threading.RLock()
        self._changed = threading.Condition()
        self._version = -1
        self._closed = False
        self._held: guarded.Held | None = None
        try:
            self._held = guarded.Held(self.path, WAL_FILES, (ROLLBACK,), (ROLLBACK,))
            Folder.make_database(self.path)
            self._base = sqlite3.connect(
                self.path, timeout=_PATIENCE_S, isolation_level=None, check_same_thread=False, cached_statements=256
            )
            self._prepare()
        except OSError as error:
            self._release()
            raise SpaceNotOpened(f"cannot open tuple-space {self.path}: {error.strerror}") from None
        except sqlite3.Error as error:
            self._release()
            raise self._failure("open", error) from None
        except BaseException:
            self._release()
            raise

    @property
    def location(self) -> str:
        return f"sqlite:{self.path}"

    def __repr__(self) -> str:
        return f"SqliteTupleStore({str(self.path)!r})"

    def _prepare(self) -> None:
        base = self._base
        base.create_function("matches", 2, _matches, deterministic=True)
        base.create_function("can_run", 2, can_run_body, deterministic=True)
        # In this order: another process creates both at once.
        (tables,) = base.execute("SELECT count(*) FROM sqlite_master").fetchone()
        (application,) = base.execute("PRAGMA application_id").fetchone()
        if tables and application != APPLICATION:
            raise SpaceNotOpened(f"cannot open tuple-space {self.path}: the file is a database of another program")
        use_write_ahead_log(base, _PATIENCE_S)
        base.execute("PRAGMA synchronous = NORMAL")
        with self._transaction():
            (version,) = base.execute("PRAGMA user_version").fetchone()
            if version > READS_TO:
                raise SpaceNotOpened(
                    f"cannot open tuple-space {self.path}: its tables have version {version}, and this version of "
                    f"cantrip-acp works with up to {READS_TO}. Upgrade cantrip-acp"
                )
            for script in MIGRATIONS[version:]:
                for statement in statements(script):
                    base.execute(statement)
            if 0 < version < FIRSTS:
                rows = base.execute(
                    "SELECT position, body FROM tuples WHERE instr(body, CAST('\"again\":' AS BLOB))"
                ).fetchall()
                for position, body in rows:
                    self._note_first(base, position, decode_work(body))
            base.execute(f"PRAGMA application_id = {APPLICATION}")
            base.execute(f"PRAGMA user_version = {max(version, len(MIGRATIONS))}")

    def _failure(self, what: str, error: sqlite3.Error) -> SpaceError:
        mend = (
            "; is the disk full, or the folder read-only?" if "full" in str(error) or "readonly" in str(error) else ""
        )
        kind = SpaceNotOpened if what == "open" else SpaceError
        return kind(f"cannot {what} tuple-space {self.path}: {error}{mend}")

    @contextlib.contextmanager
    def _transaction(self, *, durable: bool = False) -> Iterator[sqlite3.Connection]:
        """One transaction of this process and all others. A durable one is on the disk at its end."""
        with self._lock:
            if self._closed:
                raise SpaceError(f"the tuple-space {self.path} is closed")
            base = self._base
            try:
                if durable:
                    base.execute("PRAGMA synchronous = FULL")
                base.execute("BEGIN IMMEDIATE")
                try:
                    yield base
                except BaseException:
                    base.execute("ROLLBACK")
                    raise
                base.execute("COMMIT")
            except sqlite3.Error as error:
                if base.in_transaction:
                    base.execute("ROLLBACK")
                raise self._failure("write", error) from None
            finally:
                if durable:
                    base.execute("PRAGMA synchronous = NORMAL")

    def _notify(self) -> None:
        with self._changed:
            self._version = -1
            self._changed.notify_all()

    def _rows(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        with self._reading() as base:
            return base.execute(statement, values).fetchall()

    def put(
        self,
        works: Sequence[WorkTuple],
        *,
        max_waiting: int | None = None,
        budget: str | None = None,
        meta: Mapping[str, str] | None = None,
    ) -> list[bool]:
        with self._transaction() as base:
            new = self._insert(base, works, meta)
            if budget is not None:
                base.execute(GIVE_BUDGET, (budget, json.dumps([work.id for work in works])))
            if max_waiting is not None:
                for lane in {work.lane for work, each in zip(works, new, strict=True) if each}:
                    (waiting,) = base.execute(
                        "SELECT count(*) FROM queue WHERE lane = ? AND state = 'waiting'", (lane,)
                    ).fetchone()
                    if waiting > max_waiting:
                        raise SpaceFull(
                            f"lane {lane!r} of {self.location} would have {waiting} waiting tuples; at most {max_waiting} "
                            "are allowed (YOOL_TUPLE_QUEUE_MAXSIZE). Start workers, or wait"
                        )
        if any(new):
            self._notify()
        return new

    def _insert(
        self, base: sqlite3.Connection, works: Sequence[WorkTuple], meta: Mapping[str, str] | None = None
    ) -> list[bool]:
        now, about = time.time(), encode_progress(meta) if meta else None
        new: list[bool] = []
        for work in works:
            row = base.execute(
                "INSERT INTO tuples (id, lane, body, v2, put_at) VALUES (?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING "
                "RETURNING position",
                (work.id, work.lane, *encode_work(work), now),
            ).fetchone()
            new.append(row is not None)
            if row is not None:
                base.execute(
                    "INSERT INTO queue (position, lane, state, ready_at, meta) VALUES (?, ?, 'waiting', ?, ?)",
                    (row[0], work.lane, now, about),
                )
                self._note_first(base, row[0], work)
        return new

    @staticmethod
    def _note_first(base: sqlite3.Connection, position: int, work: WorkTuple) -> None:
        """Note which tuple this one repeats."""
        for identity in without_again(work):
            base.execute(
                "UPDATE queue SET first = (SELECT position FROM tuples WHERE id = ?1) WHERE position = ?2 AND EXISTS "
                "(SELECT 1 FROM tuples WHERE id = ?1)",
                (identity, position),
            )

    def claim(
        self,
        pattern: Pattern,
        worker: str,
        *,
        lease_s: float,
        count: int = 1,
        runs: Sequence[Runnable] | None = None,
    ) -> list[Claim]:
        with self._transaction() as base:
            now = time.time()
            base.execute(
                "UPDATE queue SET state = 'waiting', worker = NULL, error = 'its lease ended: worker ' || worker || "
                "' stopped or was cut off' WHERE state = 'claimed' AND lease_until < ?",
                (now,),
            )
            condition, values = f"q.state = 'waiting' AND q.ready_at <= ? AND {AFFORDABLE}", [now]
            rows = self._find(base, pattern, condition, values, count, runs)
            bodies = dict(rows)
            claimed = base.execute(
                "UPDATE queue SET state = 'claimed', lease_until = ?, attempts = attempts + 1, token = token + 1, "
                "worker = ? WHERE position IN (SELECT value FROM json_each(?)) RETURNING position, attempts, token, progress, "
                "meta",
                (now + lease_s, worker, json.dumps(list(bodies))),
            ).fetchall()
        return [
            Claim(
                work=decode_work(bodies[position]),
                position=position,
                token=token,
                attempt=attempt,
                meta=decode_progress(meta),
                progress=decode_progress(progress),
            )
            for position, attempt, token, progress, meta in sorted(claimed)
        ]

    def _find(
        self,
        base: sqlite3.Connection,
        pattern: Pattern,
        condition: str,
        values: Sequence[Any],
        count: int,
        runs: Sequence[Runnable] | None = None,
    ) -> list[tuple[int, bytes]]:
        where, more = condition, list(values)
        if pattern.lane is not None:
            where += " AND q.lane = ?"
            more.append(pattern.lane)
        if pattern.rest_json is not None:
            where += f" AND matches({BODY}, ?)"
            more.append(pattern.rest_json)
        if runs is not None:
            where += f" AND can_run({BODY}, ?)"
            more.append(encode_runs(runs))
        return base.execute(
            f"SELECT q.position, {BODY} FROM queue q JOIN tuples t ON t.position = q.position "
            f"WHERE {where} ORDER BY q.position LIMIT ?",
            (*more, count),
        ).fetchall()

    def runnable(self, pattern: Pattern, runs: Sequence[Runnable]) -> bool:
        with self._reading() as base:
            return bool(self._find(base, pattern, f"q.state = 'waiting' AND {AFFORDABLE}", (), 1, runs))

    def announce(self, entry: WorkerEntry, for_s: float) -> None:
        with self._transaction() as base:
            now = time.time()
            base.execute("DELETE FROM workers WHERE seen_until < ?", (now - _FORGET_S,))
            base.execute(
                "INSERT OR REPLACE INTO workers (worker, lane, runs, trouble, seen_until) VALUES (?, ?, ?, ?, ?)",
                (entry.worker, entry.lane, encode_runs(entry.runs), entry.trouble, now + for_s),
            )

    def leave(self, worker: str, lane: str) -> None:
        with self._transaction() as base:
            base.execute("DELETE FROM workers WHERE worker = ? AND lane = ?", (worker, lane))

    def workers(self, lane: str | None = None) -> list[WorkerEntry]:
        rows = self._rows(
            "SELECT worker, lane, runs, trouble FROM workers WHERE seen_until >= ? AND lane = ifnull(?, lane) ORDER BY 1, 2",
            (time.time(), lane),
        )
        return [
            WorkerEntry(worker=worker, lane=lane, runs=decode_runs(runs), trouble=trouble)
            for worker, lane, runs, trouble in rows
        ]

    def needs(self, lane: str | None = None, limit: int = 2000) -> list[Need]:
        rows = self._rows(
            f"SELECT w.lane, {BODY}, t.id FROM (SELECT lane, position, row_number() OVER (PARTITION BY lane ORDER BY position) "
            "AS number FROM queue WHERE state = 'waiting' AND lane = ifnull(?, lane)) w "
            "JOIN tuples t USING (position) WHERE w.number <= ? ORDER BY 1, w.position",
            (lane, limit),
        )
        return grouped_needs(rows)

    def _check(self, claim: Claim, changed: int) -> None:
        if not changed:
            raise LeaseLost(
                f"the lease of tuple {claim.work.id} ended before this worker answered; another worker may have the tuple"
            )

    def extend(self, claims: Sequence[Claim], lease_s: float) -> list[bool]:
        held = []
        with self._transaction() as base:
            until = time.time() + lease_s
            for claim in claims:
                cursor = base.execute(
                    "UPDATE queue SET lease_until = ? WHERE position = ? AND token = ? AND state = 'claimed'",
                    (until, claim.position, claim.token),
                )
                held.append(cursor.rowcount > 0)
        return held

    def save_progress(self, claim: Claim, progress: Mapping[str, Any]) -> Budget | None:
        text = encode_progress(progress)
        with self._transaction() as base:
            cursor = base.execute(
                "UPDATE queue SET progress = ? WHERE position = ? AND token = ? AND state = 'claimed'",
                (text, claim.position, claim.token),
            )
            self._check(claim, cursor.rowcount)
            return self._charge(base, claim, progress.get("cost"))

    def _charge(self, base: sqlite3.Connection, claim: Claim, cost: object, *, whole: bool = False) -> Budget | None:
        """Charge what a tuple has cost: its steps that ended, and ``cost``, or ``cost`` alone if it is the ``whole``."""
        (name, *charged) = base.execute(
            "SELECT budget, charged_usd, charged_tokens FROM queue WHERE position = ?", (claim.position,)
        ).fetchone()
        if name is None:
            return None
        costs = [cost]
        if not whole:
            rows = base.execute("SELECT body FROM receipts WHERE position = ? AND step IS NOT NULL", (claim.position,))
            costs += [json.loads(body).get("cost") for (body,) in rows]
        usd, tokens = (sum(each) for each in zip(*map(amounts, costs), strict=True))
        base.execute(
            "UPDATE queue SET charged_usd = ?, charged_tokens = ? WHERE position = ?", (usd, tokens, claim.position)
        )
        row = base.execute(
            "UPDATE budgets SET spent_usd = spent_usd + ?, spent_tokens = spent_tokens + ? WHERE name = ? RETURNING *",
            (usd - charged[0], tokens - charged[1], name),
        ).fetchone()
        if row is None:
            return None
        budget = budget_of(row)
        for percent in due_alarms(budget):
            self._insert(base, [alarm_tuple(budget, percent)])
            base.execute("UPDATE budgets SET alarmed = ? WHERE name = ?", (percent, name))
        return budget

    def set_budget(self, name: str, *, usd: float | None = None, tokens: int | None = None) -> Budget:
        with self._transaction() as base:
            row = base.execute(
                "INSERT INTO budgets (name, usd, tokens) VALUES (?, ?, ?) "
                "ON CONFLICT (name) DO UPDATE SET usd = excluded.usd, tokens = excluded.tokens, alarmed = 0 RETURNING *",
                (name, usd, tokens),
            ).fetchone()
        self._notify()
        return budget_of(row)

    def budgets(self, name: str | None = None) -> list[Budget]:
        rows = self._rows("SELECT * FROM budgets WHERE name = ifnull(?, name) ORDER BY name", (name,))
        return [budget_of(row) for row in rows]

    def save_step(
        self,
        claim: Claim,
        step: int,
        receipt: Mapping[str, Any],
        *,
        seal: str | None = None,
        progress: Mapping[str, Any] | None = None,
    ) -> None:
        identity, body = encode_receipt(receipt, claim.work)
        with self._transaction() as base:
            cursor = base.execute(
                "UPDATE queue SET progress = ? WHERE position = ? AND token = ? AND state = 'claimed'",
                (encode_progress(progress) if progress else None, claim.position, claim.token),
            )
            self._check(claim, cursor.rowcount)
            base.execute(
                "INSERT INTO receipts (id, position, step, body, input_hash, seal, reused) VALUES (?, ?, ?, ?, ?, ?, ?) "
                "ON CONFLICT DO NOTHING",
                (identity, claim.position, step, body, *reuse_columns(receipt, seal)),
            )
            self._charge(base, claim, (progress or {}).get("cost"))

    def answers(self, input_hash: str) -> list[Answer]:
        rows = self._rows(
            "SELECT body, seal FROM receipts WHERE input_hash = ? ORDER BY number DESC LIMIT ?",
            (input_hash, MOST_ANSWERS),
        )
        return [Answer(document=json.loads(body), seal=seal) for body, seal in rows]

    def acknowledge(self, *ends: End) -> list[bool]:
        encoded = [encode_receipt(end.receipt, end.claim.work) for end in ends]
        ended = []
        with self._transaction(durable=True) as base:
            for end, (identity, body) in zip(ends, encoded, strict=True):
                claim = end.claim
                row = base.execute(
                    "UPDATE queue SET state = ?, error = ?, lease_until = NULL "
                    "WHERE position = ? AND token = ? AND state = 'claimed' RETURNING budget",
                    ("done" if end.failed is None else "failed", end.failed, claim.position, claim.token),
                ).fetchone()
                ended.append(row is not None or self._ended_with(base, claim, identity))
                if row is None:
                    continue
                base.execute(
                    "INSERT INTO receipts (id, position, body, input_hash, seal, reused) VALUES (?, ?, ?, ?, ?, ?)",
                    (identity, claim.position, body, *reuse_columns(end.receipt, end.seal)),
                )
                for step, made in end.steps.items():
                    base.execute(
                        "INSERT INTO receipts (id, position, step, body) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
                        (made["id"], claim.position, step, encode_receipt(made, claim.work)[1]),
                    )
                if row[0] is not None:
                    self._charge(base, claim, end.receipt.get("cost"), whole=True)
                self._insert(base, end.children, claim.meta)
                if row[0] is not None and end.children:
                    base.execute(GIVE_BUDGET, (row[0], json.dumps([child.id for child in end.children])))
        self._notify()
        return ended

    def _ended_with(self, base: sqlite3.Connection, claim: Claim, receipt_id: str) -> bool:
        """Whether the tuple ended with this receipt already: to acknowledge twice is no error."""
        found = base.execute(
            "SELECT 1 FROM receipts WHERE position = ? AND step IS NULL AND id = ?", (claim.position, receipt_id)
        ).fetchone()
        return found is not None

    def release(self, claim: Claim, error: str, *, delay_s: float = 0.0, counts: bool = True) -> None:
        with self._transaction() as base:
            cursor = base.execute(
                "UPDATE queue SET state = 'waiting', error = ?, ready_at = ?, lease_until = NULL, worker = NULL, "
                "attempts = attempts - ? WHERE position = ? AND token = ? AND state = 'claimed'",
                (error, time.time() + delay_s, 0 if counts else 1, claim.position, claim.token),
            )
            self._check(claim, cursor.rowcount)
        self._notify()

    def revoke(self, worker: str, reason: str) -> int:
        with self._transaction() as base:
            count = base.execute(
                "UPDATE queue SET state = 'waiting', error = ?, lease_until = NULL, worker = NULL "
                "WHERE state = 'claimed' AND worker = ?",
                (reason, worker),
            ).rowcount
        self._notify()
        return count

    def resume(self, pattern: Pattern) -> list[str]:
        with self._transaction() as base:
            now = time.time()
            rows = self._find(base, pattern, IDLE, (now, now), -1)
            base.executemany(
                "UPDATE queue SET state = 'waiting', ready_at = ?, lease_until = NULL, worker = NULL WHERE position = ?",
                [(now, position) for position, _ in rows],
            )
        self._notify()
        return [decode_work(body).id for _, body in rows]

    def put_ended(self, work: WorkTuple, receipts: Sequence[StoredReceipt]) -> bool:
        encoded = [(*encode_receipt(each.document, work), each.step) for each in receipts]
        last = next(each.document for each in receipts if each.step is None)
        with self._transaction(durable=True) as base:
            self._insert(base, [work])
            row = base.execute(
                "UPDATE queue SET state = ?, error = ?, lease_until = NULL, token = token + 1 WHERE position = "
                "(SELECT position FROM tuples WHERE id = ?) AND state NOT IN ('done', 'failed') "
                "AND (state <> 'claimed' OR lease_until < ?) RETURNING position",
                ("failed" if last.get("exit") else "done", last.get("error"), work.id, time.time()),
            ).fetchone()
            if row is not None:
                base.executemany(
                    "INSERT INTO receipts (id, body, step, position) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
                    [(*each, row[0]) for each in encoded],
                )
        if row is not None:
            self._notify()
        return row is not None

    def take(self, pattern: Pattern) -> WorkTuple | None:
        with self._transaction() as base:
            rows = self._find(base, pattern, "q.state = 'waiting' AND q.ready_at <= ?", (time.time(),), 1)
            if not rows:
                return None
            base.execute("UPDATE queue SET state = 'taken' WHERE position = ?", (rows[0][0],))
        return decode_work(rows[0][1])

    def restore(self, tuple_id: str) -> None:
        with self._transaction() as base:
            base.execute(
                "UPDATE queue SET state = 'waiting' "
                "WHERE state = 'taken' AND position = (SELECT position FROM tuples WHERE id = ?)",
                (tuple_id,),
            )
        self._notify()

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            if self._closed:
                raise SpaceError(f"the tuple-space {self.path} is closed")
            try:
                yield self._base
            except sqlite3.Error as error:
                raise self._failure("read", error) from None

    def read(self, pattern: Pattern) -> WorkTuple | None:
        with self._reading() as base:
            rows = self._find(base, pattern, "q.state IN ('waiting', 'claimed')", (), 1)
        return decode_work(rows[0][1]) if rows else None

    def get(self, tuple_id: str) -> StoredTuple | None:
        rows = self._rows(f"{STORED} WHERE t.id = ?", (tuple_id,))
        return stored_of(rows[0]) if rows else None

    def receipts(self, tuple_id: str) -> list[StoredReceipt]:
        rows = self._rows(
            "SELECT r.body, r.step FROM receipts r JOIN tuples t USING (position) WHERE t.id = ? ORDER BY r.number",
            (tuple_id,),
        )
        return [StoredReceipt(document=json.loads(body), step=step) for body, step in rows]

    def ended(self, tuple_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
        rows = self._rows(
            "SELECT t.id, r.body FROM json_each(?) w JOIN tuples t ON t.id = w.value "
            "JOIN receipts r ON r.position = t.position AND r.step IS NULL",
            (json.dumps(list(tuple_ids)),),
        )
        return {identity: json.loads(body) for identity, body in rows}

    def receipt(self, receipt_id: str) -> StoredReceipt | None:
        rows = self._rows("SELECT body, step FROM receipts WHERE id = ? LIMIT 1", (receipt_id,))
        return StoredReceipt(document=json.loads(rows[0][0]), step=rows[0][1]) if rows else None

    def after(self, cursor: str, pattern: Pattern, limit: int = 1000) -> tuple[list[StoredTuple], str]:
        rows = self._rows(f"{STORED} WHERE t.position > ? ORDER BY t.position LIMIT ?", (int(cursor or 0), limit))
        found = [stored_of(row) for row in rows]
        last = str(found[-1].position) if found else cursor
        return [each for each in found if pattern.matches(each.work.document)], last

    def counts(self) -> list[LaneCount]:
        rows = self._rows(
            "SELECT q.lane, q.state, q.n, t.put_at FROM "
            "(SELECT lane, state, count(*) AS n, min(position) AS position FROM queue GROUP BY 1, 2) q "
            "JOIN tuples t USING (position) ORDER BY 1, 2"
        )
        now = time.time()
        return [LaneCount(lane=lane, state=state, count=n, oldest_s=max(0.0, now - at)) for lane, state, n, at in rows]

    def waiting(self, lane: str) -> tuple[int, float]:
        [(count, at)] = self._rows(
            "SELECT n, (SELECT put_at FROM tuples t WHERE t.position = first) "
            "FROM (SELECT count(*) AS n, min(position) AS first FROM queue WHERE lane = ? AND state = 'waiting')",
            (lane,),
        )
        return count, 0.0 if at is None else max(0.0, time.time() - at)

    def sums(self, lately_s: float = 60.0) -> list[LaneSums]:
        since = datetime.datetime.fromtimestamp(time.time() - lately_s, datetime.UTC).isoformat(timespec="milliseconds")
        lately = self._rows(
            "SELECT q.lane, count(*) FROM receipts r JOIN queue q USING (position) "
            "WHERE r.step IS NULL AND r.ended_at > ? GROUP BY 1",
            (since,),
        )
        costs = self._rows(
            "SELECT q.lane, sum(r.usd), sum(r.tokens_in), sum(r.tokens_out) FROM queue q JOIN receipts r USING (position) "
            "WHERE r.step IS NULL OR q.state IN ('waiting', 'claimed') GROUP BY 1"
        )
        running = self._rows(
            "SELECT lane, sum(json_extract(progress, '$.cost.usd')), sum(json_extract(progress, '$.cost.tokens_in')), "
            "sum(json_extract(progress, '$.cost.tokens_out')) FROM queue "
            "WHERE state IN ('waiting', 'claimed') AND progress IS NOT NULL GROUP BY 1"
        )
        reused = dict(
            self._rows(
                "SELECT q.lane, count(*) FROM receipts r JOIN queue q USING (position) WHERE r.reused IS NOT NULL GROUP BY 1"
            )
        )
        ended, sums = dict(lately), dict[str, tuple[float | None, int, int]]()
        for lane, usd, tokens_in, tokens_out in (*costs, *running):
            have = sums.get(lane, (None, 0, 0))
            total = have[0] if usd is None else usd + (have[0] or 0.0)
            sums[lane] = (total, have[1] + (tokens_in or 0), have[2] + (tokens_out or 0))
        return [
            LaneSums(
                lane=lane,
                ended_lately=ended.get(lane, 0),
                usd=usd,
                tokens_in=tokens_in,
                tokens_out=tokens_out,
                reused=reused.get(lane, 0),
            )
            for lane, (usd, tokens_in, tokens_out) in sorted(sums.items())
        ]

    def failures(self, lane: str | None = None, limit: int = 20_000) -> list[Failures]:
        rows = self._rows(
            "SELECT f.lane, f.error, f.n, t.id FROM (SELECT lane, coalesce(error, '') AS error, count(*) AS n, "
            f"max(position) AS position FROM queue q WHERE state = 'failed' AND (?1 IS NULL OR lane = ?1) AND NOT {REPEATED} "
            "GROUP BY 1, 2 ORDER BY 3 DESC LIMIT ?2) f JOIN tuples t USING (position) ORDER BY f.n DESC, f.position DESC",
            (lane, limit),
        )
        return [Failures(lane=lane, reason=reason, count=n, tuple_id=id_) for lane, reason, n, id_ in rows]

    def repeated(self) -> dict[str, int]:
        rows = self._rows(f"SELECT lane, count(*) FROM queue q WHERE state = 'failed' AND {REPEATED} GROUP BY 1")
        return dict(rows)

    def holders(self) -> list[Holder]:
        rows = self._rows(
            "SELECT worker, lane, count(*), max(lease_until) - ?1 FROM queue WHERE state = 'claimed' AND lease_until >= ?1 "
            "GROUP BY 1, 2 ORDER BY 1, 2",
            (time.time(),),
        )
        return [
            Holder(worker=worker, lane=lane, count=count, lease_s=round(left, 1)) for worker, lane, count, left in rows
        ]

    def put_artifact(self, body: bytes, excerpt: str) -> str:
        identity = artifact_id(body)
        with self._transaction() as base:
            base.execute(
                "INSERT INTO artifacts (id, size, body, excerpt, put_at) VALUES (?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE "
                "SET body = excluded.body, excerpt = excluded.excerpt, put_at = excluded.put_at, purged_at = NULL",
                (identity, len(body), body, excerpt, time.time()),
            )
        return identity

    def artifact(self, artifact_id: str) -> StoredArtifact | None:
        rows = self._rows("SELECT id, size, body, excerpt, purged_at FROM artifacts WHERE id = ?", (artifact_id,))
        if not rows:
            return None
        identity, size, body, excerpt, at = rows[0]
        purged_at = None if at is None else datetime.datetime.fromtimestamp(at, datetime.UTC).isoformat()
        return StoredArtifact(id=identity, size=size, body=body, excerpt=excerpt, purged_at=purged_at)

    def expire_artifacts(self, *, hot_s: float, warm_s: float, most_bytes: int, dry_run: bool) -> Expired:
        with self._transaction() as base:
            now = time.time()
            chosen = base.execute(
                "SELECT id, size, put_at < ? OR total > ? FROM (SELECT id, size, put_at, "
                "sum(size) OVER (ORDER BY put_at DESC, id) AS total FROM artifacts WHERE purged_at IS NULL)",
                (now - hot_s, most_bytes),
            ).fetchall()
            old = [(identity, size) for identity, size, is_old in chosen if is_old]
            [(cold,)] = base.execute(
                "SELECT count(*) FROM artifacts WHERE put_at < ? AND excerpt IS NOT NULL", (now - warm_s,)
            ).fetchall()
            if not dry_run:
                ids = json.dumps([identity for identity, _ in old])
                base.execute(
                    "UPDATE artifacts SET body = NULL, purged_at = ? WHERE id IN (SELECT value FROM json_each(?))",
                    (now, ids),
                )
                base.execute("UPDATE artifacts SET excerpt = NULL WHERE put_at < ?", (now - warm_s,))
        if old and not dry_run:
            self._shrink()
        return expired(old, [size for _, size, _ in chosen], cold)

    def _shrink(self) -> None:
        """Give the space of purged bodies back to the disk, unless other processes are at work in the file."""
        with self._lock, contextlib.suppress(sqlite3.OperationalError):
            self._base.execute("VACUUM")
            self._base.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def wait(self, timeout_s: float, stop: threading.Event) -> bool:
        end = time.monotonic() + timeout_s
        pause, longest = _POLL_S
        while not stop.is_set():
            with self._lock:
                if self._closed:
                    return False
                try:
                    (version,) = self._base.execute("PRAGMA data_version").fetchone()
                except sqlite3.Error:
                    # The next operation says why.
                    version = self._version
            with self._changed:
                if version != self._version:
                    self._version = version
                    return True
                left = end - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(min(pause, left))
            pause = min(pause * 1.5, longest)
        return False

    def close(self) -> None:
        with self._lock:
            if not self._closed:
                self._closed = True
                self._base.close()
                self._release()
        self._notify()

    def _release(self) -> None:
        if self._held is not None:
            self._held.release()


_FORGET_S = 86400.0


@lru_cache(maxsize=64)
def _part(pattern: str) -> Any:
    return json.loads(pattern)


def _matches(body: bytes, pattern: str) -> bool:
    return contains(json.loads(body), _part(pattern))
