"""The tables of a tuple-space in SQLite, and how each version becomes the next."""

from __future__ import annotations

MIGRATIONS = (
    """
    CREATE TABLE tuples (
        position INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, lane TEXT NOT NULL, body BLOB NOT NULL, put_at REAL NOT NULL
    );
    CREATE TABLE receipts (
        number INTEGER PRIMARY KEY, id TEXT NOT NULL, position INTEGER NOT NULL REFERENCES tuples, step INTEGER,
        body BLOB NOT NULL
    );
    CREATE UNIQUE INDEX receipt_of_end ON receipts (position) WHERE step IS NULL;
    CREATE UNIQUE INDEX receipt_of_step ON receipts (position, step) WHERE step IS NOT NULL;
    CREATE TABLE queue (
        position INTEGER PRIMARY KEY, lane TEXT NOT NULL, state TEXT NOT NULL, ready_at REAL NOT NULL,
        lease_until REAL, attempts INTEGER NOT NULL DEFAULT 0, token INTEGER NOT NULL DEFAULT 0, worker TEXT, error TEXT
    );
    CREATE INDEX queue_waiting ON queue (lane, position) WHERE state = 'waiting';
    CREATE INDEX queue_leases ON queue (lease_until) WHERE state = 'claimed';
    CREATE TRIGGER tuples_changed BEFORE UPDATE ON tuples BEGIN SELECT RAISE(ABORT, 'tuples are append-only'); END;
    CREATE TRIGGER tuples_deleted BEFORE DELETE ON tuples BEGIN SELECT RAISE(ABORT, 'tuples are append-only'); END;
    CREATE TRIGGER receipts_changed BEFORE UPDATE ON receipts BEGIN SELECT RAISE(ABORT, 'receipts are append-only'); END;
    CREATE TRIGGER receipts_deleted BEFORE DELETE ON receipts BEGIN SELECT RAISE(ABORT, 'receipts are append-only'); END;
    """,
    "ALTER TABLE queue ADD COLUMN progress TEXT;\n",
    """
    CREATE TABLE budgets (
        name TEXT PRIMARY KEY, usd REAL, tokens INTEGER, spent_usd REAL NOT NULL DEFAULT 0, spent_tokens INTEGER NOT NULL DEFAULT 0,
        alarmed INTEGER NOT NULL DEFAULT 0
    );
    ALTER TABLE queue ADD COLUMN budget TEXT;
    ALTER TABLE queue ADD COLUMN charged_usd REAL NOT NULL DEFAULT 0;
    ALTER TABLE queue ADD COLUMN charged_tokens INTEGER NOT NULL DEFAULT 0;
    """,
    "CREATE INDEX IF NOT EXISTS receipt_id ON receipts (id);",
    # The columns are computed from the receipt, so that they are also right for receipts of an older version's workers.
    """
    ALTER TABLE receipts ADD COLUMN usd REAL AS (json_extract(CAST(body AS TEXT), '$.cost.usd'));
    ALTER TABLE receipts ADD COLUMN tokens_in INTEGER AS (json_extract(CAST(body AS TEXT), '$.cost.tokens_in'));
    ALTER TABLE receipts ADD COLUMN tokens_out INTEGER AS (json_extract(CAST(body AS TEXT), '$.cost.tokens_out'));
    ALTER TABLE receipts ADD COLUMN ended_at TEXT AS (json_extract(CAST(body AS TEXT), '$.ended_at'));
    CREATE INDEX receipt_costs ON receipts (position, step, usd, tokens_in, tokens_out);
    CREATE INDEX receipt_times ON receipts (ended_at, position) WHERE step IS NULL;
    CREATE INDEX queue_states ON queue (lane, state, position);
    ALTER TABLE queue ADD COLUMN meta TEXT;
    """,
    """
    CREATE TABLE artifacts (
        id TEXT PRIMARY KEY, size INTEGER NOT NULL, body BLOB, excerpt TEXT, put_at REAL NOT NULL, purged_at REAL
    );
    CREATE INDEX artifact_bodies ON artifacts (put_at, id, size) WHERE purged_at IS NULL;
    CREATE TRIGGER artifacts_deleted BEFORE DELETE ON artifacts BEGIN SELECT RAISE(ABORT, 'records of artifacts are kept'); END;
    """,
    # ``first`` is the position of the tuple that this one repeats. The store fills it in for tuples from before.
    """
    CREATE TABLE workers (
        worker TEXT NOT NULL, lane TEXT NOT NULL, runs TEXT NOT NULL, trouble TEXT, seen_until REAL NOT NULL,
        PRIMARY KEY (worker, lane)
    );
    ALTER TABLE queue ADD COLUMN first INTEGER;
    CREATE INDEX queue_first ON queue (first, position) WHERE first IS NOT NULL;
    """,
    # ``input_hash`` and ``seal`` are of answers that may be reused, ``reused`` names the receipt that one repeats. Only a worker's
    # claim fills them. ``v2`` is a tuple of that schema, which versions from before do not know: `encode_work`.
    """
    ALTER TABLE receipts ADD COLUMN input_hash TEXT;
    ALTER TABLE receipts ADD COLUMN seal TEXT;
    ALTER TABLE receipts ADD COLUMN reused TEXT;
    CREATE INDEX receipt_inputs ON receipts (input_hash, number) WHERE input_hash IS NOT NULL;
    CREATE INDEX receipt_reused ON receipts (position) WHERE reused IS NOT NULL;
    ALTER TABLE tuples ADD COLUMN v2 BLOB;
    """,
    # Nothing: this version is of PostgreSQL, and the numbers stay equal.
    "",
)
"""The statements that lead from each version of the tables to the next. They only add, so an older version goes on working."""
