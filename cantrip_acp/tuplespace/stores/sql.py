"""The statements of a store of tuples, once for SQLite and PostgreSQL: `db.dialect` says what they write differently.

`sqlite` and `postgres` have the rest: opening, transactions, waiting, and the writing of many rows at once.
"""

from __future__ import annotations

import datetime
import json
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar

from cantrip_acp.db import Kind, dialect
from cantrip_acp.tuplespace.budget import Budget, alarm_tuple, amounts, due_alarms
from cantrip_acp.tuplespace.errors import LeaseLost, SpaceError, SpaceFull, SpaceNotOpened
from cantrip_acp.tuplespace.stores.base import (
    MOST_ANSWERS,
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
    decode_progress,
    decode_runs,
    decode_work,
    encode_progress,
    encode_receipt,
    encode_runs,
    expired,
    grouped_needs,
    reuse_columns,
    stored_of,
)
from cantrip_acp.tuplespace.tuples import Pattern, Runnable, WorkTuple, without_again

KIND = Kind(
    "tuple-space",
    # The letters CTUP.
    0x43545550,
    SpaceNotOpened,
    SpaceError,
    "cantrip-acp works with up to {}. Upgrade cantrip-acp",
)
_T = TypeVar("_T")

BODY = "coalesce(t.v2, t.body)"
"""The text of a tuple ``t``."""
STORED = f"t.position, {BODY}, q.state, q.attempts, q.worker, q.error, q.progress"
"""The columns of `stored_of`."""
AFFORDABLE = (
    "NOT EXISTS (SELECT 1 FROM budgets b WHERE b.name = q.budget AND b.tenant = q.tenant "
    "AND (b.spent_usd >= b.usd OR b.spent_tokens >= b.tokens))"
)
REPEATED = (
    "EXISTS (SELECT 1 FROM queue r WHERE r.first = coalesce(q.first, q.position) AND r.position > q.position "
    "AND r.state IN ('done', 'failed'))"
)
"""The condition that a tuple was repeated and the end of the repetition is known."""
BUDGET = "name, usd, tokens, spent_usd, spent_tokens, alarmed"
ADD_RECEIPT = (
    "INSERT INTO receipts (id, position, step, body, input_hash, seal, reused) "
    "VALUES (:id, :position, :step, :body, :input_hash, :seal, :reused) ON CONFLICT DO NOTHING"
)


Ended: TypeAlias = "dict[tuple[int, int], str | None]"
"""Of tuples that ended, the budget, by position and token of the claim."""


class Do(Protocol):
    """Executes a statement in the current transaction. The cursor has ``fetchone``, ``fetchall`` and ``rowcount``."""

    def __call__(self, statement: str, /, **values: Any) -> Any: ...


class Database(ABC):
    """The database of a store, and how a statement is executed in it. Methods block, and any thread may call them."""

    location: str
    """The address, without a password."""
    _dialect: dialect.Sqlite | dialect.Postgres

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.location!r})"

    @abstractmethod
    def _run(self, what: str, work: Callable[[Do], _T], *, durable: bool = False, tell: bool = False) -> _T:
        """Run ``work`` in one transaction, perhaps several times, so it must be safe to repeat.

        ``what`` is a verb for errors; a ``read`` is one statement. A durable transaction is on the disk at its end. ``tell``
        wakes callers that wait for a change.
        """

    def _rows(self, statement: str, **values: Any) -> list[Any]:
        return self._run("read", lambda do: list(do(statement, **values).fetchall()))

    def _write(self, statement: str, *, tell: bool = False, **values: Any) -> int:
        """Execute a statement, and return the number of changed rows."""
        return self._run("write", lambda do: int(do(statement, **values).rowcount), tell=tell)


class Overview(Database):
    """Who works, what waits, what has failed, and what it has cost."""

    _costs: tuple[str, str, str]
    """Of a receipt ``r``: its ``usd``, ``tokens_in`` and ``tokens_out``."""
    _running_costs: tuple[str, str, str]
    """The same of what a running step saved as its ``progress``."""
    _lately: str
    """Whether a receipt ended in the last ``:lately_s`` seconds."""

    def announce(self, entry: WorkerEntry, for_s: float) -> None:
        """Store a worker's sign of life, valid for some seconds."""

        def work(do: Do) -> None:
            do("DELETE FROM workers WHERE seen_until < :now - :forgotten_s", forgotten_s=86400.0)
            do(
                "INSERT INTO workers (worker, lane, runs, trouble, seen_until) "
                "VALUES (:worker, :lane, :runs, :trouble, :now + :for_s) ON CONFLICT (worker, lane) DO UPDATE "
                "SET runs = excluded.runs, trouble = excluded.trouble, seen_until = excluded.seen_until",
                worker=entry.worker,
                lane=entry.lane,
                runs=encode_runs(entry.runs),
                trouble=entry.trouble,
                for_s=for_s,
            )

        self._run("write", work)

    def leave(self, worker: str, lane: str) -> None:
        """Forget a worker that ends."""
        self._write("DELETE FROM workers WHERE worker = :worker AND lane = :lane", worker=worker, lane=lane)

    def workers(self, lane: str | None = None) -> list[WorkerEntry]:
        """The workers with a valid sign of life."""
        rows = self._rows(
            "SELECT worker, lane, runs, trouble FROM workers "
            "WHERE seen_until >= :now AND lane = coalesce(:lane, lane) ORDER BY 1, 2",
            lane=lane,
        )
        return [
            WorkerEntry(worker=worker, lane=lane, runs=decode_runs(runs), trouble=trouble)
            for worker, lane, runs, trouble in rows
        ]

    def needs(self, lane: str | None = None, limit: int = 2000) -> list[Need]:
        """The needs of waiting tuples. Looks at the ``limit`` oldest ones of each lane."""
        return grouped_needs(
            self._rows(
                f"SELECT w.lane, {BODY}, t.id FROM (SELECT lane, position, row_number() OVER (PARTITION BY lane ORDER BY position) "
                "AS number FROM queue WHERE state = 'waiting' AND lane = coalesce(:lane, lane)) w "
                "JOIN tuples t USING (position) WHERE w.number <= :limit ORDER BY 1, w.position",
                lane=lane,
                limit=limit,
            )
        )

    def counts(self) -> list[LaneCount]:
        """The numbers of tuples by lane and state."""
        rows = self._rows(
            f"SELECT q.lane, q.state, q.n, {self._dialect.age('t.put_at')} FROM (SELECT lane, state, count(*) AS n, "
            "min(position) AS position FROM queue GROUP BY 1, 2) q JOIN tuples t USING (position) ORDER BY 1, 2"
        )
        return [LaneCount(lane=lane, state=state, count=n, oldest_s=max(0.0, age)) for lane, state, n, age in rows]

    def waiting(self, lane: str) -> tuple[int, float]:
        """The number of waiting tuples of a lane, and the age of the oldest in seconds. Fast enough for each look of a
        monitor."""
        age = self._dialect.age("SELECT put_at FROM tuples t WHERE t.position = q.first")
        [(count, since)] = self._rows(
            f"SELECT n, {age} FROM (SELECT count(*) AS n, min(position) AS first FROM queue "
            "WHERE lane = :lane AND state = 'waiting') q",
            lane=lane,
        )
        return count, max(0.0, since or 0.0)

    def sums(self, lately_s: float = 60.0) -> list[LaneSums]:
        """The cost of each lane's tuples, and the number that ended in the last ``lately_s`` seconds."""
        ended = "FROM receipts r JOIN queue q USING (position)"
        parts = (
            f"SELECT q.lane, 0, 0, {_sums(self._costs)} {ended} "
            "WHERE r.step IS NULL OR q.state IN ('waiting', 'claimed') GROUP BY 1",
            f"SELECT q.lane, count(*), 0, NULL, NULL, NULL {ended} WHERE r.step IS NULL AND {self._lately} GROUP BY 1",
            f"SELECT q.lane, 0, count(*), NULL, NULL, NULL {ended} WHERE r.reused IS NOT NULL GROUP BY 1",
            f"SELECT lane, 0, 0, {_sums(self._running_costs)} FROM queue "
            "WHERE state IN ('waiting', 'claimed') AND progress IS NOT NULL GROUP BY 1",
        )
        sums: dict[str, list[Any]] = {}
        since = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=lately_s)
        for lane, *counted in self._rows(
            " UNION ALL ".join(parts), lately_s=lately_s, since=since.isoformat(timespec="milliseconds")
        ):
            have = sums.setdefault(lane, [0, 0, None, 0, 0])
            for index, each in enumerate(counted):
                if each is not None:
                    have[index] = (have[index] or 0) + each
        return [
            LaneSums(
                lane=lane,
                ended_lately=lately,
                usd=None if usd is None else float(usd),
                tokens_in=int(tokens_in),
                tokens_out=int(tokens_out),
                reused=reused,
            )
            for lane, (lately, reused, usd, tokens_in, tokens_out) in sorted(sums.items())
        ]

    def failures(self, lane: str | None = None, limit: int = 20_000) -> list[Failures]:
        """The reasons of dead letters, the most frequent first. Dead letters whose repetition has ended are left out."""
        rows = self._rows(
            "SELECT f.lane, f.error, f.n, t.id FROM (SELECT lane, coalesce(error, '') AS error, count(*) AS n, "
            "max(position) AS position FROM queue q WHERE state = 'failed' AND lane = coalesce(:lane, lane) "
            f"AND NOT {REPEATED} GROUP BY 1, 2 ORDER BY 3 DESC LIMIT :limit) f JOIN tuples t USING (position) "
            "ORDER BY f.n DESC, f.position DESC",
            lane=lane,
            limit=limit,
        )
        return [Failures(lane=lane, reason=reason, count=n, tuple_id=id_) for lane, reason, n, id_ in rows]

    def repeated(self) -> dict[str, int]:
        """By lane, the number of dead letters whose repetition has ended."""
        return dict(self._rows(f"SELECT lane, count(*) FROM queue q WHERE state = 'failed' AND {REPEATED} GROUP BY 1"))

    def holders(self) -> list[Holder]:
        """The workers that have tuples now."""
        rows = self._rows(
            f"SELECT worker, lane, count(*), -{self._dialect.age('max(lease_until)')} FROM queue "
            "WHERE state = 'claimed' AND lease_until >= :now GROUP BY 1, 2 ORDER BY 1, 2"
        )
        return [
            Holder(worker=worker, lane=lane, count=count, lease_s=round(left, 1)) for worker, lane, count, left in rows
        ]


class Artifacts(Database):
    """Bodies that receipts name by their hash, each until it is too old."""

    def put_artifact(self, body: bytes, excerpt: str) -> str:
        """Store a body, and return its id (``sha256:…``). A body that is stored again counts as new."""
        identity = artifact_id(body)
        self._write(
            "INSERT INTO artifacts (id, size, body, excerpt, put_at) VALUES (:id, :size, :body, :excerpt, :now) "
            "ON CONFLICT (id) DO UPDATE SET body = excluded.body, excerpt = excluded.excerpt, put_at = excluded.put_at, "
            "purged_at = NULL",
            id=identity,
            size=len(body),
            body=body,
            excerpt=excerpt,
        )
        return identity

    def artifact(self, artifact_id: str) -> StoredArtifact | None:
        """An artifact by its id."""
        rows = self._rows("SELECT id, size, body, excerpt, purged_at FROM artifacts WHERE id = :id", id=artifact_id)
        if not rows:
            return None
        identity, size, body, excerpt, at = rows[0]
        if isinstance(at, float):
            at = datetime.datetime.fromtimestamp(at, datetime.UTC)
        purged_at = None if at is None else at.isoformat()
        return StoredArtifact(id=identity, size=size, body=body, excerpt=excerpt, purged_at=purged_at)

    def expire_artifacts(self, *, hot_s: float, warm_s: float, most_bytes: int, dry_run: bool) -> Expired:
        """Purge bodies older than ``hot_s``, then the oldest until the rest has at most ``most_bytes``; and excerpts older
        than ``warm_s``. With ``dry_run``, only report."""

        def work(do: Do) -> tuple[list[Any], int]:
            chosen = do(
                "SELECT id, size, put_at < :now - :hot_s OR total > :most FROM (SELECT id, size, put_at, "
                "sum(size) OVER (ORDER BY put_at DESC, id) AS total FROM artifacts WHERE purged_at IS NULL) a",
                hot_s=hot_s,
                most=most_bytes,
            ).fetchall()
            cold = "excerpt IS NOT NULL AND put_at < :now - :warm_s"
            (excerpts,) = do(f"SELECT count(*) FROM artifacts WHERE {cold}", warm_s=warm_s).fetchone()
            if not dry_run:
                do(
                    "UPDATE artifacts SET body = NULL, purged_at = :now WHERE id IN :ids",
                    ids=[identity for identity, _, is_old in chosen if is_old],
                )
                do(f"UPDATE artifacts SET excerpt = NULL WHERE {cold}", warm_s=warm_s)
            return chosen, excerpts

        chosen, excerpts = self._run("write", work)
        old = [(identity, size) for identity, size, is_old in chosen if is_old]
        return expired(old, [size for _, size, _ in chosen], excerpts)


class Budgets(Database):
    """What tuples may cost together."""

    def set_budget(self, name: str, *, usd: float | None = None, tokens: int | None = None) -> Budget:
        """Create a budget, or change its limits. The spent amounts stay."""
        row = self._run(
            "write",
            lambda do: do(
                "INSERT INTO budgets (name, usd, tokens) VALUES (:name, :usd, :tokens) ON CONFLICT (name) "
                f"DO UPDATE SET usd = excluded.usd, tokens = excluded.tokens, alarmed = 0 RETURNING {BUDGET}",
                name=name,
                usd=usd,
                tokens=tokens,
            ).fetchone(),
            tell=True,
        )
        return budget_of(row)

    def budgets(self, name: str | None = None) -> list[Budget]:
        """All budgets, sorted by name. With ``name``, only that budget."""
        rows = self._rows(f"SELECT {BUDGET} FROM budgets WHERE name = coalesce(:name, name) ORDER BY name", name=name)
        return [budget_of(row) for row in rows]

    @staticmethod
    def _give_budget(do: Do, budget: str, works: Sequence[WorkTuple]) -> None:
        do(
            "UPDATE queue SET budget = :budget FROM tuples t WHERE t.position = queue.position "
            "AND queue.state NOT IN ('done', 'failed') AND t.id IN :ids",
            budget=budget,
            ids=[each.id for each in works],
        )


class Log(Database):
    """The tuples that were put, and their receipts."""

    def get(self, tuple_id: str) -> StoredTuple | None:
        """A tuple by its id."""
        rows = self._rows(f"SELECT {STORED} FROM tuples t JOIN queue q USING (position) WHERE t.id = :id", id=tuple_id)
        return stored_of(rows[0]) if rows else None

    def receipts(self, tuple_id: str) -> list[StoredReceipt]:
        """The receipts of a tuple, in the order of storing."""
        rows = self._rows(
            "SELECT r.body, r.step FROM receipts r JOIN tuples t USING (position) WHERE t.id = :id ORDER BY r.number",
            id=tuple_id,
        )
        return [StoredReceipt(document=json.loads(body), step=step) for body, step in rows]

    def ended(self, tuple_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
        """The final receipts of these tuples, by tuple. Tuples that have not ended are left out."""
        rows = self._rows(
            "SELECT t.id, r.body FROM tuples t JOIN receipts r USING (position) WHERE t.id IN :ids AND r.step IS NULL",
            ids=list(tuple_ids),
        )
        return {identity: json.loads(body) for identity, body in rows}

    def receipt(self, receipt_id: str) -> StoredReceipt | None:
        """A receipt by its id."""
        rows = self._rows("SELECT body, step FROM receipts WHERE id = :id LIMIT 1", id=receipt_id)
        return StoredReceipt(document=json.loads(rows[0][0]), step=rows[0][1]) if rows else None

    def answers(self, input_hash: str) -> list[Answer]:
        """The newest reusable answers for an input, of this user of the database: answers that were stored with a seal under
        a claim, never imported ones."""
        # Row security hides the receipts of other users, but not from an administrator.
        rows = self._rows(
            "SELECT body, seal FROM receipts WHERE input_hash = :input_hash AND tenant IN ('', current_user) "
            "ORDER BY number DESC LIMIT :most",
            input_hash=input_hash,
            most=MOST_ANSWERS,
        )
        return [Answer(document=json.loads(body), seal=seal) for body, seal in rows]


class TupleStore(Overview, Artifacts, Budgets, Log):
    """A store of tuples in a database. All methods raise `SpaceError` if it cannot be read or written."""

    path: Path | None
    """The file, if the store is one. Other programs of this user can write it, too."""
    _matches: str
    """Whether a tuple has the parts ``:part``."""
    _can_run: str
    """Whether a worker with ``:runs`` can run a tuple."""

    @abstractmethod
    def _text(self, body: bytes) -> bytes | str:
        """The body of a tuple or receipt in the form that the store has."""

    @abstractmethod
    def _add(self, do: Do, works: Sequence[WorkTuple], about: str | None) -> dict[str, int]:
        """Write tuples to the queue and wake waiting callers. Returns the positions of new tuples, by id."""

    @abstractmethod
    def _end(self, do: Do, ends: Sequence[End], encoded: Sequence[tuple[str, bytes]]) -> Ended:
        """End tuples with their last receipts, if their claim holds."""

    def put(
        self,
        works: Sequence[WorkTuple],
        *,
        max_waiting: int | None = None,
        budget: str | None = None,
        meta: Mapping[str, str] | None = None,
    ) -> list[bool]:
        """Store tuples, all or none. Returns for each whether it is new. A tuple with a known id stays unchanged.

        ``budget`` names the budget (`set_budget`) that the tuples share that have not ended, known ones too. ``meta`` is
        stored with new tuples and is not part of their content: the trace context (`Claim.meta`). Raises `SpaceFull` if a
        lane would have more than about ``max_waiting`` waiting tuples.
        """

        def work(do: Do) -> list[bool]:
            new = self._insert(do, works, meta)
            if budget is not None:
                self._give_budget(do, budget, works)
            if max_waiting is not None:
                for lane in {each.lane for each, is_new in zip(works, new, strict=True) if is_new}:
                    (waiting,) = do(
                        "SELECT count(*) FROM queue WHERE lane = :lane AND state = 'waiting'", lane=lane
                    ).fetchone()
                    if waiting > max_waiting:
                        raise SpaceFull(
                            f"lane {lane!r} of {self.location} would have {waiting} waiting tuples; at most {max_waiting} "
                            "are allowed (YOOL_TUPLE_QUEUE_MAXSIZE). Start workers, or wait"
                        )
            return new

        return self._run("write", work)

    def _insert(self, do: Do, works: Sequence[WorkTuple], meta: Mapping[str, str] | None = None) -> list[bool]:
        if not works:
            return []
        added = self._add(do, works, encode_progress(meta) if meta else None)
        for work in works:
            if work.id in added:
                self._note_first(do, added[work.id], work)
        first = {each.id: index for index, each in reversed(list(enumerate(works)))}
        return [each.id in added and first[each.id] == index for index, each in enumerate(works)]

    @staticmethod
    def _note_first(do: Do, position: int, work: WorkTuple) -> None:
        """Record which tuple this one repeats."""
        for identity in without_again(work):
            do(
                "UPDATE queue SET first = t.position FROM tuples t "
                "WHERE queue.position = :position AND t.id = :id AND t.tenant = queue.tenant",
                position=position,
                id=identity,
            )

    def _found(
        self, columns: str, condition: str, pattern: Pattern, runs: Sequence[Runnable] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """A query for the matching tuples, the oldest first, and its values."""
        values: dict[str, Any] = {}
        if pattern.lane is not None:
            condition += " AND q.lane = :lane"
            values["lane"] = pattern.lane
        if pattern.rest_json is not None:
            condition += f" AND {self._matches}"
            values["part"] = pattern.rest_json
        if runs is not None:
            condition += f" AND {self._can_run}"
            values["runs"] = encode_runs(runs)
        joined = " JOIN tuples t ON t.position = q.position" if BODY in columns + condition else ""
        return f"SELECT {columns} FROM queue q{joined} WHERE {condition} ORDER BY q.position", values

    def claim(
        self,
        pattern: Pattern,
        worker: str,
        *,
        lease_s: float,
        count: int = 1,
        runs: Sequence[Runnable] | None = None,
    ) -> list[Claim]:
        """Claim up to ``count`` tuples, the oldest first: only those that ``runs`` can run in full and whose shared budget is
        not spent."""
        found, values = self._found(
            "q.position", f"q.state = 'waiting' AND q.ready_at <= :now AND {AFFORDABLE}", pattern, runs
        )
        statement = (
            f"WITH picked AS ({found} LIMIT :count FOR UPDATE OF q SKIP LOCKED) "
            "UPDATE queue SET state = 'claimed', lease_until = :now + :lease_s, attempts = attempts + 1, token = token + 1, "
            "worker = :worker WHERE position IN (SELECT position FROM picked) RETURNING position, attempts, token, meta, progress, "
            f"(SELECT {BODY} FROM tuples t WHERE t.position = queue.position)"
        )

        def work(do: Do) -> list[Any]:
            do(
                "UPDATE queue SET state = 'waiting', worker = NULL, "
                "error = 'its lease ended: worker ' || worker || ' stopped or was cut off' WHERE position IN (SELECT position "
                "FROM queue WHERE state = 'claimed' AND lease_until < :now FOR UPDATE SKIP LOCKED)"
            )
            return sorted(do(statement, count=count, lease_s=lease_s, worker=worker, **values).fetchall())

        return [
            Claim(
                work=decode_work(body),
                position=position,
                token=token,
                attempt=attempt,
                meta=decode_progress(meta),
                progress=decode_progress(progress),
            )
            for position, attempt, token, meta, progress, body in self._run("claim from", work)
        ]

    def runnable(self, pattern: Pattern, runs: Sequence[Runnable]) -> bool:
        """Whether a tuple waits, or pauses before another attempt, that ``runs`` can run and whose budget is not spent."""
        found, values = self._found("1", f"q.state = 'waiting' AND {AFFORDABLE}", pattern, runs)
        return bool(self._rows(f"{found} LIMIT 1", **values))

    @staticmethod
    def _hold(do: Do, claim: Claim, change: str, **values: Any) -> None:
        """Change a tuple whose claim holds. Raises `LeaseLost`."""
        changed = do(
            f"UPDATE queue SET {change} WHERE position = :position AND token = :token AND state = 'claimed'",
            position=claim.position,
            token=claim.token,
            **values,
        ).rowcount
        if not changed:
            raise LeaseLost(
                f"the lease of tuple {claim.work.id} ended before this worker answered; another worker may have the tuple"
            )

    def extend(self, claims: Sequence[Claim], lease_s: float) -> list[bool]:
        """Extend leases by heartbeat. Returns for each claim whether it still holds."""
        held = {
            tuple(row)
            for row in self._run(
                "write",
                lambda do: do(
                    "UPDATE queue SET lease_until = :now + :lease_s WHERE position IN :positions "
                    "AND position || ':' || token IN :held AND state = 'claimed' RETURNING position, token",
                    lease_s=lease_s,
                    positions=[each.position for each in claims],
                    held=[f"{each.position}:{each.token}" for each in claims],
                ).fetchall(),
            )
        }
        return [(each.position, each.token) in held for each in claims]

    def save_progress(self, claim: Claim, progress: Mapping[str, Any]) -> Budget | None:
        """Store the progress of the running step, charge its ``cost`` to the budget that its tuple shares, and return that
        budget.

        The next `save_step` removes the progress. Raises `LeaseLost`.
        """
        text = encode_progress(progress)

        def work(do: Do) -> Budget | None:
            self._hold(do, claim, "progress = :progress", progress=text)
            return self._charge(do, claim, progress.get("cost"))

        return self._run("write", work)

    def _charge(self, do: Do, claim: Claim, cost: object, *, whole: bool = False) -> Budget | None:
        """Charge the cost of a tuple to its budget: its ended steps and ``cost``, or ``cost`` alone if that is the ``whole``."""
        at = claim.position
        row = do(
            "SELECT budget, charged_usd, charged_tokens FROM queue WHERE position = :position", position=at
        ).fetchone()
        if row is None or row[0] is None:
            return None
        name, charged_usd, charged_tokens = row
        costs = [cost]
        if not whole:
            rows = do("SELECT body FROM receipts WHERE position = :position AND step IS NOT NULL", position=at)
            costs += [json.loads(body).get("cost") for (body,) in rows.fetchall()]
        usd, tokens = (sum(each) for each in zip(*map(amounts, costs), strict=True))
        do(
            "UPDATE queue SET charged_usd = :usd, charged_tokens = :tokens WHERE position = :position",
            usd=usd,
            tokens=tokens,
            position=at,
        )
        row = do(
            "UPDATE budgets SET spent_usd = spent_usd + :usd, spent_tokens = spent_tokens + :tokens "
            f"WHERE name = :name RETURNING {BUDGET}",
            usd=usd - charged_usd,
            tokens=tokens - charged_tokens,
            name=name,
        ).fetchone()
        if row is None:
            return None
        budget = budget_of(row)
        for percent in due_alarms(budget):
            self._insert(do, [alarm_tuple(budget, percent)])
            do("UPDATE budgets SET alarmed = :percent WHERE name = :name", percent=percent, name=name)
        return budget

    def _receipt(
        self, position: int, step: int | None, identity: str, body: bytes, reuse: Sequence[str | None] = (None,) * 3
    ) -> dict[str, Any]:
        """The values of `ADD_RECEIPT`."""
        about = dict(zip(("input_hash", "seal", "reused"), reuse, strict=True))
        return {"id": identity, "position": position, "step": step, "body": self._text(body), **about}

    def save_step(
        self,
        claim: Claim,
        step: int,
        receipt: Mapping[str, Any],
        *,
        seal: str | None = None,
        progress: Mapping[str, Any] | None = None,
    ) -> None:
        """Store the receipt of a step, and the progress of steps that still run. With a ``seal`` its answer may be reused.
        Raises `LeaseLost`."""
        row = self._receipt(claim.position, step, *encode_receipt(receipt, claim.work), reuse_columns(receipt, seal))

        def work(do: Do) -> None:
            self._hold(do, claim, "progress = :progress", progress=encode_progress(progress) if progress else None)
            do(ADD_RECEIPT, **row)
            self._charge(do, claim, (progress or {}).get("cost"))

        self._run("write", work)

    def acknowledge(self, *ends: End) -> list[bool]:
        """End tuples in one transaction: last receipts, new states and child tuples are on the disk when this returns.

        Returns for each whether it ended so, now or earlier by the same receipt. False if the lease is lost.
        """
        encoded = [encode_receipt(end.receipt, end.claim.work) for end in ends]

        def work(do: Do) -> list[bool]:
            budgets = self._end(do, ends, encoded)
            for end in ends:
                claim = end.claim
                if (claim.position, claim.token) not in budgets:
                    continue
                for step, made in end.steps.items():
                    do(ADD_RECEIPT, **self._receipt(claim.position, step, *encode_receipt(made, claim.work)))
                budget = budgets[claim.position, claim.token]
                if budget is not None:
                    self._charge(do, claim, end.receipt.get("cost"), whole=True)
                self._insert(do, end.children, claim.meta)
                if budget is not None and end.children:
                    self._give_budget(do, budget, end.children)
            again: set[Any] = set()
            if len(budgets) < len(ends):
                # To acknowledge twice is no error: the answer to the first time may have been lost.
                again = set(
                    do(
                        "SELECT position, id FROM receipts WHERE position IN :positions AND step IS NULL",
                        positions=[end.claim.position for end in ends],
                    ).fetchall()
                )
            return [
                (end.claim.position, end.claim.token) in budgets or (end.claim.position, identity) in again
                for end, (identity, _) in zip(ends, encoded, strict=True)
            ]

        return self._run("write", work, durable=True, tell=True) if ends else []

    def release(self, claim: Claim, error: str, *, delay_s: float = 0.0, counts: bool = True) -> None:
        """Give a tuple back, to be claimed again after ``delay_s``. Raises `LeaseLost`.

        ``counts`` is False if nothing was tried.
        """
        self._run(
            "write",
            lambda do: self._hold(
                do,
                claim,
                "state = 'waiting', error = :error, ready_at = :now + :delay_s, lease_until = NULL, worker = NULL, "
                "attempts = attempts - :uncounted",
                error=error,
                delay_s=delay_s,
                uncounted=0 if counts else 1,
            ),
            tell=True,
        )

    def revoke(self, worker: str, reason: str) -> int:
        """Give back all tuples of a worker that is known to be dead, before their leases end, and return their number."""
        return self._write(
            "UPDATE queue SET state = 'waiting', error = :reason, lease_until = NULL, worker = NULL "
            "WHERE state = 'claimed' AND worker = :worker",
            reason=reason,
            worker=worker,
            tell=True,
        )

    def resume(self, pattern: Pattern) -> list[str]:
        """Make tuples that have not ended and that no worker holds claimable at once: taken ones, those whose lease ended,
        and those that pause before another attempt. Returns their ids."""
        idle = (
            "(q.state = 'taken' OR (q.state = 'claimed' AND q.lease_until < :now) "
            "OR (q.state = 'waiting' AND q.ready_at > :now))"
        )
        found, values = self._found("q.position", idle, pattern)
        statement = (
            f"WITH picked AS ({found} FOR UPDATE OF q) UPDATE queue SET state = 'waiting', ready_at = :now, lease_until = NULL, "
            "worker = NULL WHERE position IN (SELECT position FROM picked) RETURNING position, "
            "(SELECT t.id FROM tuples t WHERE t.position = queue.position)"
        )
        rows = self._run("write", lambda do: do(statement, **values).fetchall(), tell=True)
        return [identity for _, identity in sorted(rows)]

    def put_ended(self, work: WorkTuple, receipts: Sequence[StoredReceipt]) -> bool:
        """Store a tuple that ended elsewhere, with its receipts. Returns whether it was new.

        A tuple that has ended here, or that a worker holds, stays unchanged.
        """
        encoded = [(each.step, *encode_receipt(each.document, work)) for each in receipts]
        last = next(each.document for each in receipts if each.step is None)

        def store(do: Do) -> bool:
            self._insert(do, [work])
            row = do(
                "UPDATE queue SET state = :state, error = :error, lease_until = NULL, token = token + 1 FROM tuples t "
                "WHERE t.position = queue.position AND t.id = :id AND queue.state NOT IN ('done', 'failed') "
                "AND (queue.state <> 'claimed' OR queue.lease_until < :now) RETURNING queue.position",
                state="failed" if last.get("exit") else "done",
                error=last.get("error"),
                id=work.id,
            ).fetchone()
            for step, identity, body in encoded if row is not None else ():
                do(ADD_RECEIPT, **self._receipt(row[0], step, identity, body))
            return row is not None

        return self._run("write", store, durable=True)

    def take(self, pattern: Pattern) -> WorkTuple | None:
        """Remove the oldest waiting tuple from the queue. The tuple itself stays in the log."""
        found, values = self._found("q.position", "q.state = 'waiting' AND q.ready_at <= :now", pattern)
        statement = (
            f"WITH picked AS ({found} LIMIT 1 FOR UPDATE OF q SKIP LOCKED) UPDATE queue SET state = 'taken' "
            "WHERE position IN (SELECT position FROM picked) "
            f"RETURNING (SELECT {BODY} FROM tuples t WHERE t.position = queue.position)"
        )
        row = self._run("take from", lambda do: do(statement, **values).fetchone())
        return decode_work(row[0]) if row is not None else None

    def restore(self, tuple_id: str) -> None:
        """Put a taken tuple back into the queue, because its caller has gone."""
        self._write(
            "UPDATE queue SET state = 'waiting' FROM tuples t "
            "WHERE t.position = queue.position AND t.id = :id AND queue.state = 'taken'",
            id=tuple_id,
            tell=True,
        )

    def read(self, pattern: Pattern) -> WorkTuple | None:
        """The oldest tuple that waits or is being run."""
        found, values = self._found(BODY, "q.state IN ('waiting', 'claimed')", pattern)
        rows = self._rows(f"{found} LIMIT 1", **values)
        return decode_work(rows[0][0]) if rows else None

    @abstractmethod
    def after(self, cursor: str, pattern: Pattern, limit: int = 1000) -> tuple[list[StoredTuple], str]:
        """Tuples that were put after a cursor, and the next cursor. The first cursor is ""."""

    @abstractmethod
    def wait(self, timeout_s: float, stop: threading.Event) -> bool:
        """Wait until the store may have changed. False if it has not changed after ``timeout_s``, or if ``stop`` was set."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection. Claims stay until their leases end."""


def _sums(columns: Sequence[str]) -> str:
    return ", ".join(f"sum({each})" for each in columns)
