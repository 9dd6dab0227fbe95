"""The tables of a tuple-space in PostgreSQL, how each version becomes the next, row security, and how workers find tuples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cantrip_acp.tuplespace.stores.base import encode_runs
from cantrip_acp.tuplespace.tuples import Pattern, Runnable

MIGRATIONS = (
    """
    CREATE TABLE cantrip_tuples (
        position bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        tenant name NOT NULL DEFAULT '', id text NOT NULL, lane text NOT NULL, body text NOT NULL,
        put_at timestamptz NOT NULL DEFAULT clock_timestamp(), xid xid8 NOT NULL DEFAULT pg_current_xact_id(),
        UNIQUE (tenant, id)
    );
    CREATE INDEX cantrip_tuples_xid ON cantrip_tuples (xid, position);
    CREATE TABLE cantrip_tuple_receipts (
        number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        tenant name NOT NULL DEFAULT '', id text NOT NULL, position bigint NOT NULL, step integer, body text NOT NULL
    );
    CREATE UNIQUE INDEX cantrip_tuple_receipt_of_end ON cantrip_tuple_receipts (position) WHERE step IS NULL;
    CREATE UNIQUE INDEX cantrip_tuple_receipt_of_step ON cantrip_tuple_receipts (position, step) WHERE step IS NOT NULL;
    CREATE TABLE cantrip_tuple_queue (
        position bigint PRIMARY KEY, tenant name NOT NULL DEFAULT '', lane text NOT NULL, state text NOT NULL,
        ready_at timestamptz NOT NULL DEFAULT clock_timestamp(), lease_until timestamptz,
        attempts integer NOT NULL DEFAULT 0, token integer NOT NULL DEFAULT 0, worker text, error text
    );
    CREATE INDEX cantrip_tuple_waiting ON cantrip_tuple_queue (lane, position) WHERE state = 'waiting';
    CREATE INDEX cantrip_tuple_leases ON cantrip_tuple_queue (lease_until) WHERE state = 'claimed';
    CREATE FUNCTION cantrip_tuples_kept() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        RAISE restrict_violation USING MESSAGE = 'tuples and receipts are append-only';
    END $$;
    CREATE TRIGGER cantrip_kept BEFORE UPDATE OR DELETE OR TRUNCATE ON cantrip_tuples
        FOR EACH STATEMENT EXECUTE FUNCTION cantrip_tuples_kept();
    CREATE TRIGGER cantrip_kept BEFORE UPDATE OR DELETE OR TRUNCATE ON cantrip_tuple_receipts
        FOR EACH STATEMENT EXECUTE FUNCTION cantrip_tuples_kept();
    """,
    "ALTER TABLE cantrip_tuple_queue ADD COLUMN IF NOT EXISTS progress text;",
    """
    CREATE TABLE cantrip_tuple_budgets (
        tenant name NOT NULL DEFAULT '', name text NOT NULL, usd float8, tokens bigint, spent_usd float8 NOT NULL DEFAULT 0,
        spent_tokens bigint NOT NULL DEFAULT 0, alarmed integer NOT NULL DEFAULT 0, PRIMARY KEY (tenant, name)
    );
    ALTER TABLE cantrip_tuple_queue ADD COLUMN budget text, ADD COLUMN charged_usd float8 NOT NULL DEFAULT 0,
        ADD COLUMN charged_tokens bigint NOT NULL DEFAULT 0;
    """,
    "CREATE INDEX IF NOT EXISTS cantrip_tuple_receipt_id ON cantrip_tuple_receipts (id);",
    # Quick also with many receipts: nothing is rewritten. The trigger fills the columns for an older version's workers too.
    # Receipts from before have no stored_at, and their cost is read from the body.
    """
    ALTER TABLE cantrip_tuple_queue ADD COLUMN meta text;
    CREATE INDEX cantrip_tuple_failed ON cantrip_tuple_queue (lane) WHERE state = 'failed';
    ALTER TABLE cantrip_tuple_receipts ADD COLUMN stored_at timestamptz, ADD COLUMN usd float8,
        ADD COLUMN tokens_in bigint, ADD COLUMN tokens_out bigint;
    CREATE INDEX cantrip_tuple_receipt_times ON cantrip_tuple_receipts (stored_at) WHERE step IS NULL;
    CREATE FUNCTION cantrip_tuples_number(text, text) RETURNS numeric LANGUAGE sql AS $$
        SELECT CASE WHEN jsonb_typeof(c -> $2) = 'number' THEN (c ->> $2)::numeric END FROM (SELECT $1::jsonb -> 'cost' AS c) x
    $$;
    CREATE FUNCTION cantrip_tuples_cost() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        NEW.stored_at := clock_timestamp();
        NEW.usd := cantrip_tuples_number(NEW.body, 'usd');
        NEW.tokens_in := cantrip_tuples_number(NEW.body, 'tokens_in');
        NEW.tokens_out := cantrip_tuples_number(NEW.body, 'tokens_out');
        RETURN NEW;
    END $$;
    CREATE TRIGGER cantrip_cost BEFORE INSERT ON cantrip_tuple_receipts
        FOR EACH ROW EXECUTE FUNCTION cantrip_tuples_cost();
    """,
    """
    CREATE TABLE cantrip_tuple_artifacts (
        tenant name NOT NULL DEFAULT '', id text NOT NULL, size bigint NOT NULL, body bytea, excerpt text,
        put_at timestamptz NOT NULL DEFAULT clock_timestamp(), purged_at timestamptz, PRIMARY KEY (tenant, id)
    );
    CREATE INDEX cantrip_tuple_artifact_bodies ON cantrip_tuple_artifacts (put_at) WHERE purged_at IS NULL;
    CREATE TRIGGER cantrip_kept BEFORE DELETE OR TRUNCATE ON cantrip_tuple_artifacts
        FOR EACH STATEMENT EXECUTE FUNCTION cantrip_tuples_kept();
    """,
    # ``first`` is the position of the tuple that this one repeats. The store fills it in for tuples from before.
    """
    CREATE TABLE cantrip_tuple_workers (
        tenant name NOT NULL DEFAULT '', worker text NOT NULL, lane text NOT NULL, runs text NOT NULL, trouble text,
        seen_until timestamptz NOT NULL, PRIMARY KEY (tenant, worker, lane)
    );
    ALTER TABLE cantrip_tuple_queue ADD COLUMN first bigint;
    CREATE INDEX cantrip_tuple_first ON cantrip_tuple_queue (first, position) WHERE first IS NOT NULL;
    """,
    # ``input_hash`` and ``seal`` are of answers that may be reused, ``reused`` names the receipt that one repeats. Only a worker's
    # claim fills them. ``v2`` is a tuple of that schema, which versions from before do not know: `encode_work`.
    """
    ALTER TABLE cantrip_tuple_receipts ADD COLUMN input_hash text, ADD COLUMN seal text, ADD COLUMN reused text;
    CREATE INDEX cantrip_tuple_receipt_inputs ON cantrip_tuple_receipts (input_hash, number) WHERE input_hash IS NOT NULL;
    CREATE INDEX cantrip_tuple_receipt_reused ON cantrip_tuple_receipts (position) WHERE reused IS NOT NULL;
    ALTER TABLE cantrip_tuples ADD COLUMN v2 text;
    """,
)
"""The statements that lead from each version of the tables to the next. They only add, so an older version goes on working."""
BODY = "coalesce(t.v2, t.body)"
"""The text of a tuple ``t``."""

ROW_SECURITY = "".join(
    f"""
    ALTER TABLE {table} ALTER COLUMN tenant SET DEFAULT current_user;
    ALTER TABLE {table} ENABLE ROW LEVEL SECURITY;
    ALTER TABLE {table} FORCE ROW LEVEL SECURITY;
    DROP POLICY IF EXISTS cantrip_own ON {table};
    CREATE POLICY cantrip_own ON {table} USING (tenant = current_user) WITH CHECK (tenant = current_user);
    """
    for table in (
        "cantrip_tuples",
        "cantrip_tuple_receipts",
        "cantrip_tuple_queue",
        "cantrip_tuple_budgets",
        "cantrip_tuple_artifacts",
        "cantrip_tuple_workers",
    )
)
"""Gives each user of the database tuples of their own. An administrator runs it once, before the first tuple."""


def condition(pattern: Pattern, runs: Sequence[Runnable] | None = None) -> tuple[str, list[Any]]:
    """The condition of a statement on queue ``q`` and tuples ``t``, and its values."""
    where, values = "", list[Any]()
    if pattern.lane is not None:
        where += " AND q.lane = %s"
        values.append(pattern.lane)
    if pattern.rest_json is not None:
        where += f" AND {BODY}::jsonb @> %s::jsonb"
        values.append(pattern.rest_json)
    if runs is not None:
        # As `Runnable.refusal`: of the arguments that a worker looks at, those that a step has are equal.
        where += (
            f" AND NOT EXISTS (SELECT 1 FROM jsonb_array_elements({BODY}::jsonb -> 'payload') s WHERE NOT EXISTS "
            "(SELECT 1 FROM jsonb_array_elements(%s::jsonb) r WHERE r ->> 'yool' = s ->> 'yool' "
            "AND NOT EXISTS (SELECT 1 FROM jsonb_each(coalesce(r -> 'needs', '{}')) n "
            "WHERE coalesce(s -> 'args', '{}') ? n.key AND s -> 'args' -> n.key <> n.value) "
            "AND NOT EXISTS (SELECT 1 FROM jsonb_array_elements_text(coalesce(r -> 'without', '[]')) w "
            "WHERE coalesce(s -> 'args' -> w, 'null') <> 'null')))"
        )
        values.append(encode_runs(runs))
    return where, values


GIVE_BUDGET = (
    "UPDATE cantrip_tuple_queue q SET budget = %s FROM cantrip_tuples t WHERE t.position = q.position "
    "AND q.state NOT IN ('done', 'failed') AND t.id = ANY(%s)"
)
AFFORDABLE = (
    "NOT EXISTS (SELECT 1 FROM cantrip_tuple_budgets b WHERE b.name = q.budget AND b.tenant = q.tenant "
    "AND (b.spent_usd >= b.usd OR b.spent_tokens >= b.tokens))"
)
REPEATED = (
    "EXISTS (SELECT 1 FROM cantrip_tuple_queue r WHERE r.first = coalesce(q.first, q.position) AND r.position > q.position "
    "AND r.state IN ('done', 'failed'))"
)
"""Whether a tuple was repeated, and how the repetition ended is known."""
BUDGET = "name, usd, tokens, spent_usd, spent_tokens, alarmed"

SUMS = """
    SELECT lane, sum(lately), sum(usd)::float8, coalesce(sum(tokens_in), 0)::bigint, coalesce(sum(tokens_out), 0)::bigint,
        sum(reused) FROM (
        SELECT q.lane, 0 AS lately, 0 AS reused,
            CASE WHEN r.stored_at IS NULL THEN cantrip_tuples_number(r.body, 'usd')::float8 ELSE r.usd END AS usd,
            CASE WHEN r.stored_at IS NULL THEN cantrip_tuples_number(r.body, 'tokens_in') ELSE r.tokens_in END AS tokens_in,
            CASE WHEN r.stored_at IS NULL THEN cantrip_tuples_number(r.body, 'tokens_out') ELSE r.tokens_out END AS tokens_out
        FROM cantrip_tuple_queue q JOIN cantrip_tuple_receipts r USING (position)
        WHERE r.step IS NULL OR q.state IN ('waiting', 'claimed')
        UNION ALL SELECT q.lane, 0, 1, NULL, NULL, NULL
        FROM cantrip_tuple_receipts r JOIN cantrip_tuple_queue q USING (position) WHERE r.reused IS NOT NULL
        UNION ALL SELECT q.lane, 1, 0, NULL, NULL, NULL
        FROM cantrip_tuple_receipts r JOIN cantrip_tuple_queue q USING (position)
        WHERE r.step IS NULL AND r.stored_at > clock_timestamp() - %s * interval '1 s'
        UNION ALL SELECT lane, 0, 0, cantrip_tuples_number(progress, 'usd')::float8, cantrip_tuples_number(progress, 'tokens_in'),
            cantrip_tuples_number(progress, 'tokens_out')
        FROM cantrip_tuple_queue WHERE state IN ('waiting', 'claimed') AND progress IS NOT NULL
    ) s GROUP BY lane ORDER BY lane
"""

STORED = (
    f"SELECT t.position, {BODY}, q.state, q.attempts, q.worker, q.error, q.progress, t.xid::text "
    "FROM cantrip_tuples t JOIN cantrip_tuple_queue q USING (position)"
)
FAILURES = (
    "SELECT f.lane, f.error, f.n, t.id FROM (SELECT lane, coalesce(error, '') AS error, count(*) AS n, "
    "max(position) AS position FROM cantrip_tuple_queue q WHERE state = 'failed' "
    f"AND (%s::text IS NULL OR lane = %s) AND NOT {REPEATED} "
    "GROUP BY 1, 2 ORDER BY 3 DESC LIMIT %s) f JOIN cantrip_tuples t USING (position) ORDER BY f.n DESC, f.position DESC"
)
HOLDERS = (
    "SELECT worker, lane, count(*), extract(epoch FROM max(lease_until) - clock_timestamp())::float8 FROM cantrip_tuple_queue "
    "WHERE state = 'claimed' AND lease_until >= clock_timestamp() GROUP BY 1, 2 ORDER BY 1, 2"
)
