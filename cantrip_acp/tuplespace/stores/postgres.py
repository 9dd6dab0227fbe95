"""PostgreSQL store of tuples: one database for workers on many hosts. Its clock decides when a lease ends."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from cantrip_acp.files.installation import install_command
from cantrip_acp.loom.stores.postgres_url import PgUrl
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
from cantrip_acp.tuplespace.stores.postgres_tables import (
    AFFORDABLE,
    BODY,
    BUDGET,
    FAILURES,
    GIVE_BUDGET,
    HOLDERS,
    MIGRATIONS,
    REPEATED,
    ROW_SECURITY,
    STORED,
    SUMS,
    condition,
)
from cantrip_acp.tuplespace.tuples import Pattern, Runnable, WorkTuple, without_again
from cantrip_acp.types.errors import LoomError

try:
    import psycopg
    from psycopg.conninfo import conninfo_to_dict
except ImportError as error:
    raise SpaceNotOpened(
        f"a tuple-space in PostgreSQL needs psycopg ({error}): {install_command('postgres')}; or name a SQLite file"
    ) from None

_T = TypeVar("_T")
_DEFAULTS = {"connect_timeout": "10", "application_name": "cantrip-tuples", "tcp_user_timeout": "30000"}
_LOCK = 0x43545550
"""The advisory lock of migrations."""
_LOCK_S = 2.0
"""How long a migration holds up workers at most while somebody else has a table locked."""
_CHANNEL = "cantrip_tuples"
_SLICE_S = 0.5
"""How often a wait looks whether it is to stop."""
_RECONNECTS = 30
"""How often an operation tries a lost connection again, once a second."""


class PostgresTupleStore:
    """Tuples in a database. A lost connection is opened again for up to 30 s. Raises `SpaceError`."""

    path = None

    def __init__(self, url: str) -> None:
        try:
            self._url = PgUrl.of(url)
        except LoomError as error:
            raise SpaceNotOpened(str(error)) from None
        self._lock = threading.RLock()
        self._listening = threading.Lock()
        self._base: psycopg.Connection[Any] | None = None
        self._listener: psycopg.Connection[Any] | None = None
        self._closed = False
        self._base = self._connect()
        self._run("open", self._migrate)

    @property
    def location(self) -> str:
        return self._url.shown.removesuffix("?loom=default")

    def __repr__(self) -> str:
        return f"PostgresTupleStore({self.location!r})"

    def _failure(self, what: str, error: object, mend: str = "") -> SpaceError:
        kind = SpaceNotOpened if what == "open" else SpaceError
        return kind(f"cannot {what} tuple-space {self.location}: {self._url.clean(error)}{mend}")

    def _connect(self) -> psycopg.Connection[Any]:
        if self._closed:
            raise SpaceError(f"the tuple-space {self.location} is closed")
        try:
            return psycopg.connect(**{**_DEFAULTS, **conninfo_to_dict(self._url.server)}, autocommit=True)  # type: ignore[arg-type]
        except psycopg.ProgrammingError:
            # The driver's message repeats parts of the address.
            raise SpaceNotOpened(
                f"cannot open tuple-space {self.location}: the address has a part that PostgreSQL does not know"
            ) from None
        except psycopg.Error as error:
            mend = ". Is the server running and reachable, and are user, password (or ~/.pgpass) and database right?"
            raise self._failure("open", error, mend) from None

    def _migrate(self, base: psycopg.Connection[Any]) -> None:
        found = base.execute("SELECT to_regclass('cantrip_tuple_tables')").fetchone()
        version = 0
        if found != (None,):
            version = base.execute("SELECT max(version) FROM cantrip_tuple_tables").fetchone()[0] or 0  # type: ignore[index]
        if version > READS_TO:
            raise SpaceNotOpened(
                f"cannot open tuple-space {self.location}: its tables have version {version}, and this version of "
                f"cantrip-acp works with up to {READS_TO}. Upgrade cantrip-acp"
            )
        if version >= len(MIGRATIONS):
            return
        base.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
        base.execute("CREATE TABLE IF NOT EXISTS cantrip_tuple_tables (version integer PRIMARY KEY)")
        # Another process may have been first.
        version = base.execute("SELECT max(version) FROM cantrip_tuple_tables").fetchone()[0] or 0  # type: ignore[index]
        # Workers wait behind a statement that waits for a lock. So it waits for a short time, and tries again (`_run`).
        base.execute(f"SET LOCAL lock_timeout = '{_LOCK_S:g}s'".encode())
        for number, script in enumerate(MIGRATIONS[version:], version + 1):
            base.execute(script.encode())
            base.execute("INSERT INTO cantrip_tuple_tables VALUES (%s)", (number,))
        if 0 < version < FIRSTS:
            rows = base.execute("SELECT position, body FROM cantrip_tuples WHERE body LIKE '%\"again\":%'").fetchall()
            for position, body in rows:
                self._note_first(base, position, decode_work(body))
        secured = base.execute("SELECT relrowsecurity FROM pg_class WHERE oid = 'cantrip_tuples'::regclass").fetchone()
        if secured == (True,):
            # Tables that are new have no row security yet.
            base.execute(ROW_SECURITY.encode())

    def enable_row_security(self) -> None:
        """Give each user of the database tuples of their own: nobody reads or claims those of another user."""
        self._run("change", lambda base: base.execute(ROW_SECURITY.encode()))

    def _run(self, what: str, work: Callable[[psycopg.Connection[Any]], _T]) -> _T:
        """Do something in one transaction, again if the connection was lost. So the work must be safe to repeat."""
        with self._lock:
            for attempt in range(_RECONNECTS + 1):
                try:
                    if self._base is None or self._base.closed:
                        self._base = self._connect()
                    with self._base.transaction():
                        return work(self._base)
                except psycopg.Error as error:
                    lost = self._base is None or self._base.closed or isinstance(error, psycopg.OperationalError)
                    serialization = isinstance(
                        error, psycopg.errors.SerializationFailure | psycopg.errors.DeadlockDetected
                    )
                    if not (lost or serialization) or attempt == _RECONNECTS or self._closed:
                        raise self._failure(what, error) from None
                except SpaceError:
                    # Connecting failed. The first time it tells the user at once; a worker waits for its server.
                    if (self._base is not None and not self._base.closed) or attempt == _RECONNECTS or self._closed:
                        raise
                if self._base is not None and self._base.closed:
                    time.sleep(min(1.0, 0.05 * 2**attempt))
        raise AssertionError("unreachable")

    def put(
        self,
        works: Sequence[WorkTuple],
        *,
        max_waiting: int | None = None,
        budget: str | None = None,
        meta: Mapping[str, str] | None = None,
    ) -> list[bool]:
        def work(base: psycopg.Connection[Any]) -> list[bool]:
            new = self._insert(base, works, meta)
            if budget is not None:
                base.execute(GIVE_BUDGET, (budget, [each.id for each in works]))
            if max_waiting is not None:
                for lane in {each.lane for each, is_new in zip(works, new, strict=True) if is_new}:
                    row = base.execute(
                        "SELECT count(*) FROM cantrip_tuple_queue WHERE lane = %s AND state = 'waiting'", (lane,)
                    ).fetchone()
                    if row is not None and row[0] > max_waiting:
                        raise SpaceFull(
                            f"lane {lane!r} of {self.location} would have {row[0]} waiting tuples; at most {max_waiting} "
                            "are allowed (YOOL_TUPLE_QUEUE_MAXSIZE). Start workers, or wait"
                        )
            return new

        return self._run("write", work)

    def _insert(
        self, base: psycopg.Connection[Any], works: Sequence[WorkTuple], meta: Mapping[str, str] | None = None
    ) -> list[bool]:
        if not works:
            return []
        texts = [encode_work(each) for each in works]
        rows = base.execute(
            "WITH new AS (INSERT INTO cantrip_tuples (id, lane, body, v2) SELECT id, lane, body, v2 "
            "FROM unnest(%s::text[], %s::text[], %s::text[], %s::text[]) WITH ORDINALITY AS given (id, lane, body, v2, n) "
            "ORDER BY n ON CONFLICT (tenant, id) DO NOTHING "
            "RETURNING position, id, lane), "
            "queued AS (INSERT INTO cantrip_tuple_queue (position, lane, state, meta) "
            "SELECT position, lane, 'waiting', %s FROM new) "
            "SELECT id FROM new",
            (
                [each.id for each in works],
                [each.lane for each in works],
                [body.decode() for body, _ in texts],
                [None if v2 is None else v2.decode() for _, v2 in texts],
                encode_progress(meta) if meta else None,
            ),
        ).fetchall()
        base.execute(f"NOTIFY {_CHANNEL}")
        new = {row[0] for row in rows}
        for work in works:
            if work.id in new and without_again(work):
                position = base.execute("SELECT position FROM cantrip_tuples WHERE id = %s", (work.id,)).fetchone()
                self._note_first(base, (position or (0,))[0], work)
        first = {each.id: index for index, each in reversed(list(enumerate(works)))}
        return [each.id in new and first[each.id] == index for index, each in enumerate(works)]

    @staticmethod
    def _note_first(base: psycopg.Connection[Any], position: int, work: WorkTuple) -> None:
        """Note which tuple this one repeats."""
        for identity in without_again(work):
            base.execute(
                "UPDATE cantrip_tuple_queue q SET first = t.position FROM cantrip_tuples t "
                "WHERE q.position = %s AND t.id = %s AND t.tenant = q.tenant",
                (position, identity),
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
        where, values = condition(pattern, runs)
        statement = (
            f"WITH picked AS (SELECT q.position, {BODY} AS body FROM cantrip_tuple_queue q JOIN cantrip_tuples t USING (position) "
            f"WHERE q.state = 'waiting' AND q.ready_at <= clock_timestamp() AND {AFFORDABLE}{where} "
            "ORDER BY q.position LIMIT %s FOR UPDATE OF q SKIP LOCKED) "
            "UPDATE cantrip_tuple_queue q SET state = 'claimed', lease_until = clock_timestamp() + %s * interval '1 s', "
            "attempts = q.attempts + 1, token = q.token + 1, worker = %s "
            "FROM picked WHERE q.position = picked.position RETURNING q.position, picked.body, q.attempts, q.token, q.meta, "
            "q.progress"
        )

        def work(base: psycopg.Connection[Any]) -> list[Claim]:
            base.execute(
                "UPDATE cantrip_tuple_queue SET state = 'waiting', worker = NULL, "
                "error = 'its lease ended: worker ' || worker || ' stopped or was cut off' WHERE position IN (SELECT position "
                "FROM cantrip_tuple_queue WHERE state = 'claimed' AND lease_until < clock_timestamp() FOR UPDATE SKIP LOCKED)"
            )
            rows = base.execute(statement.encode(), (*values, count, lease_s, worker)).fetchall()
            return [
                Claim(
                    work=decode_work(body),
                    position=position,
                    token=token,
                    attempt=attempt,
                    meta=decode_progress(meta),
                    progress=decode_progress(progress),
                )
                for position, body, attempt, token, meta, progress in sorted(rows)
            ]

        return self._run("claim from", work)

    def runnable(self, pattern: Pattern, runs: Sequence[Runnable]) -> bool:
        where, values = condition(pattern, runs)
        statement = (
            "SELECT 1 FROM cantrip_tuple_queue q JOIN cantrip_tuples t USING (position) "
            f"WHERE q.state = 'waiting' AND {AFFORDABLE}{where} LIMIT 1"
        )
        return self._run("read", lambda base: base.execute(statement.encode(), values).fetchone()) is not None

    def announce(self, entry: WorkerEntry, for_s: float) -> None:
        def work(base: psycopg.Connection[Any]) -> None:
            base.execute("DELETE FROM cantrip_tuple_workers WHERE seen_until < clock_timestamp() - interval '1 day'")
            base.execute(
                "INSERT INTO cantrip_tuple_workers (worker, lane, runs, trouble, seen_until) "
                "VALUES (%s, %s, %s, %s, clock_timestamp() + %s * interval '1 s') ON CONFLICT (tenant, worker, lane) DO UPDATE "
                "SET runs = excluded.runs, trouble = excluded.trouble, seen_until = excluded.seen_until",
                (entry.worker, entry.lane, encode_runs(entry.runs), entry.trouble, for_s),
            )

        self._run("write", work)

    def leave(self, worker: str, lane: str) -> None:
        statement = "DELETE FROM cantrip_tuple_workers WHERE worker = %s AND lane = %s"
        self._run("write", lambda base: base.execute(statement, (worker, lane)))

    def workers(self, lane: str | None = None) -> list[WorkerEntry]:
        statement = (
            "SELECT worker, lane, runs, trouble FROM cantrip_tuple_workers "
            "WHERE seen_until >= clock_timestamp() AND lane = coalesce(%s, lane) ORDER BY 1, 2"
        )
        rows = self._run("read", lambda base: base.execute(statement, (lane,)).fetchall())
        return [
            WorkerEntry(worker=worker, lane=lane, runs=decode_runs(runs), trouble=trouble)
            for worker, lane, runs, trouble in rows
        ]

    def needs(self, lane: str | None = None, limit: int = 2000) -> list[Need]:
        statement = (
            f"SELECT w.lane, {BODY}, t.id FROM (SELECT lane, position, row_number() OVER (PARTITION BY lane ORDER BY position) "
            "AS number FROM cantrip_tuple_queue WHERE state = 'waiting' AND lane = coalesce(%s, lane)) w "
            "JOIN cantrip_tuples t USING (position) WHERE w.number <= %s ORDER BY 1, w.position"
        )
        return grouped_needs(self._run("read", lambda base: base.execute(statement, (lane, limit)).fetchall()))

    def _lost(self, claim: Claim) -> LeaseLost:
        return LeaseLost(
            f"the lease of tuple {claim.work.id} ended before this worker answered; another worker may have the tuple"
        )

    def extend(self, claims: Sequence[Claim], lease_s: float) -> list[bool]:
        def work(base: psycopg.Connection[Any]) -> list[bool]:
            rows = base.execute(
                "UPDATE cantrip_tuple_queue q SET lease_until = clock_timestamp() + %s * interval '1 s' "
                "FROM unnest(%s::bigint[], %s::integer[]) AS held (position, token) "
                "WHERE q.position = held.position AND q.token = held.token AND q.state = 'claimed' "
                "RETURNING q.position, q.token",
                (lease_s, [each.position for each in claims], [each.token for each in claims]),
            ).fetchall()
            held = set(rows)
            return [(each.position, each.token) in held for each in claims]

        return self._run("write", work)

    def save_progress(self, claim: Claim, progress: Mapping[str, Any]) -> Budget | None:
        text = encode_progress(progress)

        def work(base: psycopg.Connection[Any]) -> Budget | None:
            changed = base.execute(
                "UPDATE cantrip_tuple_queue SET progress = %s WHERE position = %s AND token = %s AND state = 'claimed'",
                (text, claim.position, claim.token),
            ).rowcount
            if not changed:
                raise self._lost(claim)
            return self._charge(base, claim, progress.get("cost"))

        return self._run("write", work)

    def _charge(
        self, base: psycopg.Connection[Any], claim: Claim, cost: object, *, whole: bool = False
    ) -> Budget | None:
        """Charge what a tuple has cost: its steps that ended, and ``cost``, or ``cost`` alone if it is the ``whole``."""
        row = base.execute(
            "SELECT budget, charged_usd, charged_tokens FROM cantrip_tuple_queue WHERE position = %s", (claim.position,)
        ).fetchone()
        if row is None or row[0] is None:
            return None
        name, charged_usd, charged_tokens = row
        costs = [cost]
        if not whole:
            rows = base.execute(
                "SELECT body FROM cantrip_tuple_receipts WHERE position = %s AND step IS NOT NULL", (claim.position,)
            ).fetchall()
            costs += [json.loads(body).get("cost") for (body,) in rows]
        usd, tokens = (sum(each) for each in zip(*map(amounts, costs), strict=True))
        base.execute(
            "UPDATE cantrip_tuple_queue SET charged_usd = %s, charged_tokens = %s WHERE position = %s",
            (usd, tokens, claim.position),
        )
        row = base.execute(
            "UPDATE cantrip_tuple_budgets SET spent_usd = spent_usd + %s, spent_tokens = spent_tokens + %s "
            f"WHERE name = %s RETURNING {BUDGET}",
            (usd - charged_usd, tokens - charged_tokens, name),
        ).fetchone()
        if row is None:
            return None
        budget = budget_of(row)
        for percent in due_alarms(budget):
            self._insert(base, [alarm_tuple(budget, percent)])
            base.execute("UPDATE cantrip_tuple_budgets SET alarmed = %s WHERE name = %s", (percent, name))
        return budget

    def set_budget(self, name: str, *, usd: float | None = None, tokens: int | None = None) -> Budget:
        def work(base: psycopg.Connection[Any]) -> Any:
            row = base.execute(
                "INSERT INTO cantrip_tuple_budgets AS b (name, usd, tokens) VALUES (%s, %s, %s) ON CONFLICT (tenant, name) "
                f"DO UPDATE SET usd = excluded.usd, tokens = excluded.tokens, alarmed = 0 RETURNING {BUDGET}",
                (name, usd, tokens),
            ).fetchone()
            base.execute(f"NOTIFY {_CHANNEL}")
            return row

        return budget_of(self._run("write", work))

    def budgets(self, name: str | None = None) -> list[Budget]:
        statement = f"SELECT {BUDGET} FROM cantrip_tuple_budgets WHERE name = coalesce(%s, name) ORDER BY name"
        return [
            budget_of(row)
            for row in self._run("read", lambda base: base.execute(statement.encode(), (name,)).fetchall())
        ]

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

        def work(base: psycopg.Connection[Any]) -> None:
            changed = base.execute(
                "UPDATE cantrip_tuple_queue SET progress = %s WHERE position = %s AND token = %s AND state = 'claimed'",
                (encode_progress(progress) if progress else None, claim.position, claim.token),
            ).rowcount
            if not changed:
                raise self._lost(claim)
            base.execute(
                "INSERT INTO cantrip_tuple_receipts (id, position, step, body, input_hash, seal, reused) "
                "VALUES (%s, %s, %s, %s, %s, %s, %s) ON CONFLICT DO NOTHING",
                (identity, claim.position, step, body.decode(), *reuse_columns(receipt, seal)),
            )
            self._charge(base, claim, (progress or {}).get("cost"))

        self._run("write", work)

    def answers(self, input_hash: str) -> list[Answer]:
        # Row security hides the receipts of other users, but not from an administrator.
        statement = (
            "SELECT body, seal FROM cantrip_tuple_receipts WHERE input_hash = %s AND tenant IN ('', current_user) "
            "ORDER BY number DESC LIMIT %s"
        )
        rows = self._run("read", lambda base: base.execute(statement, (input_hash, MOST_ANSWERS)).fetchall())
        return [Answer(document=json.loads(body), seal=seal) for body, seal in rows]

    def acknowledge(self, *ends: End) -> list[bool]:
        encoded = [encode_receipt(end.receipt, end.claim.work) for end in ends]
        positions = [end.claim.position for end in ends]

        def work(base: psycopg.Connection[Any]) -> list[bool]:
            base.execute("SET LOCAL synchronous_commit = on")
            rows = base.execute(
                "WITH given AS (SELECT * FROM unnest(%s::bigint[], %s::integer[], %s::text[], %s::text[], %s::text[], %s::text[], "
                "%s::text[], %s::text[], %s::text[]) "
                "AS given (position, token, state, error, id, body, input_hash, seal, reused)), "
                "changed AS (UPDATE cantrip_tuple_queue q SET state = given.state, error = given.error, lease_until = NULL "
                "FROM given WHERE q.position = given.position AND q.token = given.token AND q.state = 'claimed' "
                "RETURNING q.position, given.id, given.body, given.input_hash, given.seal, given.reused, q.budget), "
                "added AS (INSERT INTO cantrip_tuple_receipts (id, position, body, input_hash, seal, reused) "
                "SELECT id, position, body, input_hash, seal, reused FROM changed) "
                "SELECT position, budget FROM changed",
                (
                    positions,
                    [end.claim.token for end in ends],
                    ["done" if end.failed is None else "failed" for end in ends],
                    [end.failed for end in ends],
                    [identity for identity, _ in encoded],
                    [body.decode() for _, body in encoded],
                    *map(list, zip(*(reuse_columns(end.receipt, end.seal) for end in ends), strict=True)),
                ),
            ).fetchall()
            budgets = dict(rows)
            for end in ends:
                for step, made in end.steps.items() if end.claim.position in budgets else ():
                    base.execute(
                        "INSERT INTO cantrip_tuple_receipts (id, position, step, body) VALUES (%s, %s, %s, %s) "
                        "ON CONFLICT DO NOTHING",
                        (made["id"], end.claim.position, step, encode_receipt(made, end.claim.work)[1].decode()),
                    )
                if budgets.get(end.claim.position) is not None:
                    self._charge(base, end.claim, end.receipt.get("cost"), whole=True)
                if end.claim.position in budgets and end.children:
                    self._insert(base, end.children, end.claim.meta)
                    if budgets[end.claim.position] is not None:
                        base.execute(GIVE_BUDGET, (budgets[end.claim.position], [child.id for child in end.children]))
            again: set[tuple[int, str]] = set()
            if len(budgets) < len(ends):
                # The first try may have reached the server, and its answer may have been lost.
                found = base.execute(
                    "SELECT position, id FROM cantrip_tuple_receipts WHERE position = ANY(%s) AND step IS NULL",
                    (positions,),
                ).fetchall()
                again = set(found)
            base.execute(f"NOTIFY {_CHANNEL}")
            return [
                position in budgets or (position, identity) in again
                for position, (identity, _) in zip(positions, encoded, strict=True)
            ]

        return self._run("write", work) if ends else []

    def release(self, claim: Claim, error: str, *, delay_s: float = 0.0, counts: bool = True) -> None:
        def work(base: psycopg.Connection[Any]) -> None:
            changed = base.execute(
                "UPDATE cantrip_tuple_queue SET state = 'waiting', error = %s, lease_until = NULL, worker = NULL, "
                "ready_at = clock_timestamp() + %s * interval '1 s', attempts = attempts - %s "
                "WHERE position = %s AND token = %s AND state = 'claimed'",
                (error.replace("\0", " "), delay_s, 0 if counts else 1, claim.position, claim.token),
            ).rowcount
            if not changed:
                raise self._lost(claim)
            base.execute(f"NOTIFY {_CHANNEL}")

        self._run("write", work)

    def revoke(self, worker: str, reason: str) -> int:
        def work(base: psycopg.Connection[Any]) -> int:
            count = base.execute(
                "UPDATE cantrip_tuple_queue SET state = 'waiting', error = %s, lease_until = NULL, worker = NULL "
                "WHERE state = 'claimed' AND worker = %s",
                (reason, worker),
            ).rowcount
            base.execute(f"NOTIFY {_CHANNEL}")
            return count

        return self._run("write", work)

    def resume(self, pattern: Pattern) -> list[str]:
        where, values = condition(pattern)
        statement = (
            "WITH picked AS (SELECT q.position, t.id FROM cantrip_tuple_queue q JOIN cantrip_tuples t USING (position) "
            "WHERE (q.state = 'taken' OR (q.state = 'claimed' AND q.lease_until < clock_timestamp()) "
            f"OR (q.state = 'waiting' AND q.ready_at > clock_timestamp())){where} ORDER BY q.position FOR UPDATE OF q) "
            "UPDATE cantrip_tuple_queue q SET state = 'waiting', ready_at = clock_timestamp(), lease_until = NULL, worker = NULL "
            "FROM picked WHERE q.position = picked.position RETURNING q.position, picked.id"
        )

        def work(base: psycopg.Connection[Any]) -> list[Any]:
            rows = base.execute(statement.encode(), values).fetchall()
            base.execute(f"NOTIFY {_CHANNEL}")
            return rows

        return [identity for _, identity in sorted(self._run("write", work))]

    def put_ended(self, work: WorkTuple, receipts: Sequence[StoredReceipt]) -> bool:
        encoded = [(*encode_receipt(each.document, work), each.step) for each in receipts]
        last = next(each.document for each in receipts if each.step is None)

        def store(base: psycopg.Connection[Any]) -> bool:
            base.execute("SET LOCAL synchronous_commit = on")
            self._insert(base, [work])
            row = base.execute(
                "UPDATE cantrip_tuple_queue q SET state = %s, error = %s, lease_until = NULL, token = token + 1 "
                "FROM cantrip_tuples t WHERE t.position = q.position AND t.id = %s AND q.state NOT IN ('done', 'failed') "
                "AND (q.state <> 'claimed' OR q.lease_until < clock_timestamp()) RETURNING q.position",
                ("failed" if last.get("exit") else "done", last.get("error"), work.id),
            ).fetchone()
            for identity, body, step in encoded if row is not None else ():
                base.execute(
                    "INSERT INTO cantrip_tuple_receipts (id, position, step, body) VALUES (%s, %s, %s, %s) "
                    "ON CONFLICT DO NOTHING",
                    (identity, row[0], step, body.decode()),  # type: ignore[index]
                )
            return row is not None

        return self._run("write", store)

    def take(self, pattern: Pattern) -> WorkTuple | None:
        where, values = condition(pattern)
        statement = (
            f"WITH picked AS (SELECT q.position, {BODY} AS body FROM cantrip_tuple_queue q JOIN cantrip_tuples t USING (position) "
            f"WHERE q.state = 'waiting' AND q.ready_at <= clock_timestamp(){where} "
            "ORDER BY q.position LIMIT 1 FOR UPDATE OF q SKIP LOCKED) "
            "UPDATE cantrip_tuple_queue q SET state = 'taken' FROM picked WHERE q.position = picked.position RETURNING picked.body"
        )
        row = self._run("take from", lambda base: base.execute(statement.encode(), values).fetchone())
        return decode_work(row[0]) if row is not None else None

    def restore(self, tuple_id: str) -> None:
        def work(base: psycopg.Connection[Any]) -> None:
            base.execute(
                "UPDATE cantrip_tuple_queue q SET state = 'waiting' FROM cantrip_tuples t "
                "WHERE t.position = q.position AND t.id = %s AND q.state = 'taken'",
                (tuple_id,),
            )
            base.execute(f"NOTIFY {_CHANNEL}")

        self._run("write", work)

    def read(self, pattern: Pattern) -> WorkTuple | None:
        where, values = condition(pattern)
        statement = (
            f"SELECT {BODY} FROM cantrip_tuple_queue q JOIN cantrip_tuples t USING (position) "
            f"WHERE q.state IN ('waiting', 'claimed'){where} ORDER BY q.position LIMIT 1"
        )
        row = self._run("read", lambda base: base.execute(statement.encode(), values).fetchone())
        return decode_work(row[0]) if row is not None else None

    def get(self, tuple_id: str) -> StoredTuple | None:
        row = self._run("read", lambda base: base.execute(f"{STORED} WHERE t.id = %s", (tuple_id,)).fetchone())
        return stored_of(row[:7]) if row is not None else None

    def receipts(self, tuple_id: str) -> list[StoredReceipt]:
        rows = self._run(
            "read",
            lambda base: base.execute(
                "SELECT r.body, r.step FROM cantrip_tuple_receipts r JOIN cantrip_tuples t USING (position) "
                "WHERE t.id = %s ORDER BY r.number",
                (tuple_id,),
            ).fetchall(),
        )
        return [StoredReceipt(document=json.loads(body), step=step) for body, step in rows]

    def ended(self, tuple_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
        rows = self._run(
            "read",
            lambda base: base.execute(
                "SELECT t.id, r.body FROM cantrip_tuples t JOIN cantrip_tuple_receipts r USING (position) "
                "WHERE t.id = ANY(%s) AND r.step IS NULL",
                (list(tuple_ids),),
            ).fetchall(),
        )
        return {identity: json.loads(body) for identity, body in rows}

    def receipt(self, receipt_id: str) -> StoredReceipt | None:
        statement = "SELECT body, step FROM cantrip_tuple_receipts WHERE id = %s LIMIT 1"
        row = self._run("read", lambda base: base.execute(statement, (receipt_id,)).fetchone())
        return StoredReceipt(document=json.loads(row[0]), step=row[1]) if row is not None else None

    def after(self, cursor: str, pattern: Pattern, limit: int = 1000) -> tuple[list[StoredTuple], str]:
        # Positions become visible in any order, transactions' ids only once all earlier transactions have ended.
        xid, _, position = cursor.partition(":")
        rows = self._run(
            "read",
            lambda base: base.execute(
                f"{STORED} WHERE (t.xid, t.position) > (%s::text::xid8, %s::bigint) "
                "AND t.xid < pg_snapshot_xmin(pg_current_snapshot()) ORDER BY t.xid, t.position LIMIT %s",
                (xid or "0", position or "0", limit),
            ).fetchall(),
        )
        last = f"{rows[-1][7]}:{rows[-1][0]}" if rows else cursor
        found = [stored_of(row[:7]) for row in rows]
        return [each for each in found if pattern.matches(each.work.document)], last

    def counts(self) -> list[LaneCount]:
        rows = self._run(
            "read",
            lambda base: base.execute(
                "SELECT q.lane, q.state, q.n, extract(epoch FROM clock_timestamp() - t.put_at)::float8 FROM (SELECT lane, "
                "state, count(*) AS n, min(position) AS position FROM cantrip_tuple_queue GROUP BY 1, 2) q "
                "JOIN cantrip_tuples t USING (position) ORDER BY 1, 2"
            ).fetchall(),
        )
        return [LaneCount(lane=lane, state=state, count=n, oldest_s=max(0.0, age)) for lane, state, n, age in rows]

    def waiting(self, lane: str) -> tuple[int, float]:
        row = self._run(
            "read",
            lambda base: base.execute(
                "SELECT n, extract(epoch FROM clock_timestamp() - (SELECT put_at FROM cantrip_tuples t WHERE t.position = first))"
                "::float8 FROM (SELECT count(*) AS n, min(position) AS first FROM cantrip_tuple_queue "
                "WHERE lane = %s AND state = 'waiting') q",
                (lane,),
            ).fetchone(),
        )
        count, age = row or (0, None)
        return count, max(0.0, age or 0.0)

    def sums(self, lately_s: float = 60.0) -> list[LaneSums]:
        rows = self._run("read", lambda base: base.execute(SUMS.encode(), (lately_s,)).fetchall())
        return [
            LaneSums(
                lane=lane,
                ended_lately=lately,
                usd=usd,
                tokens_in=int(tokens_in),
                tokens_out=int(tokens_out),
                reused=reused,
            )
            for lane, lately, usd, tokens_in, tokens_out, reused in rows
        ]

    def failures(self, lane: str | None = None, limit: int = 20_000) -> list[Failures]:
        rows = self._run(
            "read",
            lambda base: base.execute(
                FAILURES.encode(),
                (lane, lane, limit),
            ).fetchall(),
        )
        return [Failures(lane=lane, reason=reason, count=n, tuple_id=id_) for lane, reason, n, id_ in rows]

    def repeated(self) -> dict[str, int]:
        statement = f"SELECT lane, count(*) FROM cantrip_tuple_queue q WHERE state = 'failed' AND {REPEATED} GROUP BY 1"
        return dict(self._run("read", lambda base: base.execute(statement.encode()).fetchall()))

    def holders(self) -> list[Holder]:
        rows = self._run(
            "read",
            lambda base: base.execute(HOLDERS.encode()).fetchall(),
        )
        return [
            Holder(worker=worker, lane=lane, count=count, lease_s=round(left, 1)) for worker, lane, count, left in rows
        ]

    def put_artifact(self, body: bytes, excerpt: str) -> str:
        identity = artifact_id(body)
        statement = (
            "INSERT INTO cantrip_tuple_artifacts (id, size, body, excerpt) VALUES (%s, %s, %s, %s) ON CONFLICT (tenant, id) "
            "DO UPDATE SET body = excluded.body, excerpt = excluded.excerpt, put_at = clock_timestamp(), purged_at = NULL"
        )
        values = (identity, len(body), body, excerpt.replace("\0", " "))
        self._run("write", lambda base: base.execute(statement, values))
        return identity

    def artifact(self, artifact_id: str) -> StoredArtifact | None:
        statement = "SELECT id, size, body, excerpt, purged_at FROM cantrip_tuple_artifacts WHERE id = %s"
        row = self._run("read", lambda base: base.execute(statement, (artifact_id,)).fetchone())
        if row is None:
            return None
        identity, size, body, excerpt, at = row
        return StoredArtifact(
            id=identity, size=size, body=body, excerpt=excerpt, purged_at=None if at is None else at.isoformat()
        )

    def expire_artifacts(self, *, hot_s: float, warm_s: float, most_bytes: int, dry_run: bool) -> Expired:
        def work(base: psycopg.Connection[Any]) -> Expired:
            chosen = base.execute(
                "SELECT id, size, put_at < clock_timestamp() - %s * interval '1 s' OR total > %s FROM (SELECT id, size, put_at, "
                "sum(size) OVER (ORDER BY put_at DESC, id) AS total FROM cantrip_tuple_artifacts WHERE purged_at IS NULL) a",
                (hot_s, most_bytes),
            ).fetchall()
            old = [(identity, size) for identity, size, is_old in chosen if is_old]
            cold = base.execute(
                "SELECT count(*) FROM cantrip_tuple_artifacts "
                "WHERE put_at < clock_timestamp() - %s * interval '1 s' AND excerpt IS NOT NULL",
                (warm_s,),
            ).fetchone()
            if not dry_run:
                base.execute(
                    "UPDATE cantrip_tuple_artifacts SET body = NULL, purged_at = clock_timestamp() WHERE id = ANY(%s)",
                    ([identity for identity, _ in old],),
                )
                base.execute(
                    "UPDATE cantrip_tuple_artifacts SET excerpt = NULL WHERE excerpt IS NOT NULL "
                    "AND put_at < clock_timestamp() - %s * interval '1 s'",
                    (warm_s,),
                )
            return expired(old, [size for _, size, _ in chosen], cold[0] if cold is not None else 0)

        return self._run("write", work)

    def wait(self, timeout_s: float, stop: threading.Event) -> bool:
        end = time.monotonic() + timeout_s
        with self._listening:
            while not stop.is_set() and not self._closed:
                left = end - time.monotonic()
                try:
                    if self._listener is None or self._listener.closed:
                        self._listener = self._connect()
                        self._listener.execute(f"LISTEN {_CHANNEL}")
                        # What was notified before is unknown.
                        return True
                    for _ in self._listener.notifies(timeout=max(0.0, min(left, _SLICE_S)), stop_after=1):
                        return True
                except (psycopg.Error, SpaceError):
                    stop.wait(min(1.0, max(0.0, left)))
                if left <= 0:
                    return False
        return False

    def close(self) -> None:
        self._closed = True
        with self._lock:
            if self._base is not None:
                self._base.close()
        with self._listening, contextlib.suppress(psycopg.Error):
            if self._listener is not None:
                self._listener.close()
