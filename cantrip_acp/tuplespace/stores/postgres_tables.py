"""The tables of a tuple-space in PostgreSQL, how each version becomes the next, and row security."""

from __future__ import annotations

from cantrip_acp.tuplespace.stores.sql import BODY

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
    # The same columns with a fifth of the work: the body is parsed once.
    """
    CREATE OR REPLACE FUNCTION cantrip_tuples_cost() RETURNS trigger LANGUAGE plpgsql AS $$
    DECLARE cost jsonb := NEW.body::jsonb -> 'cost';
    BEGIN
        NEW.stored_at := clock_timestamp();
        IF jsonb_typeof(cost -> 'usd') = 'number' THEN NEW.usd := (cost -> 'usd')::numeric; END IF;
        IF jsonb_typeof(cost -> 'tokens_in') = 'number' THEN NEW.tokens_in := (cost -> 'tokens_in')::numeric; END IF;
        IF jsonb_typeof(cost -> 'tokens_out') = 'number' THEN NEW.tokens_out := (cost -> 'tokens_out')::numeric; END IF;
        RETURN NEW;
    END $$;
    """,
)
"""The statements that lead from each version of the tables to the next. They only add, so an older version goes on working."""

TABLES = {
    "tuples": "cantrip_tuples",
    "receipts": "cantrip_tuple_receipts",
    "queue": "cantrip_tuple_queue",
    "budgets": "cantrip_tuple_budgets",
    "artifacts": "cantrip_tuple_artifacts",
    "workers": "cantrip_tuple_workers",
}
"""The tables by the names that statements use."""
ROW_SECURITY = "".join(
    f"""
    ALTER TABLE {table} ALTER COLUMN tenant SET DEFAULT current_user;
    ALTER TABLE {table} ENABLE ROW LEVEL SECURITY;
    ALTER TABLE {table} FORCE ROW LEVEL SECURITY;
    DROP POLICY IF EXISTS cantrip_own ON {table};
    CREATE POLICY cantrip_own ON {table} USING (tenant = current_user) WITH CHECK (tenant = current_user);
    """
    for table in TABLES.values()
)
"""Gives each user of the database tuples of their own. An administrator runs it once, before the first tuple."""

# As `Runnable.refusal`: of the arguments that a worker looks at, those that a step has are equal.
CAN_RUN = (
    f"NOT EXISTS (SELECT 1 FROM jsonb_array_elements(CAST({BODY} AS jsonb) -> 'payload') s WHERE NOT EXISTS "
    "(SELECT 1 FROM jsonb_array_elements(CAST(:runs AS jsonb)) r WHERE r ->> 'yool' = s ->> 'yool' "
    "AND NOT EXISTS (SELECT 1 FROM jsonb_each(coalesce(r -> 'needs', '{}')) n "
    "WHERE coalesce(s -> 'args', '{}') ? n.key AND s -> 'args' -> n.key <> n.value) "
    "AND NOT EXISTS (SELECT 1 FROM jsonb_array_elements_text(coalesce(r -> 'without', '[]')) w "
    "WHERE coalesce(s -> 'args' -> w, 'null') <> 'null')))"
)
"""Whether a worker with ``:runs`` can run a tuple ``t``."""
