"""The PostgreSQL tables of looms, and the functions and triggers that protect them (LOOM-3)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cantrip_acp.loom.stores import rows

TABLES = 2
"""The version of the tables; a reader refuses a higher one."""

LOCK = 0x63616E74
"""The first key of looms' advisory locks. The second key is 0 while tables are created, or a loom's number during a
write."""

SCHEMA = """
CREATE TABLE cantrip_looms (
    id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL UNIQUE,
    tables integer NOT NULL
);
CREATE TABLE cantrip_records (
    loom integer NOT NULL REFERENCES cantrip_looms (id),
    n bigint NOT NULL,
    kind text NOT NULL,
    turn_id text,
    parent_id text,
    head bytea NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (loom, n)
) WITH (toast_tuple_target = 128);
CREATE UNIQUE INDEX cantrip_records_turn ON cantrip_records (loom, turn_id) WHERE turn_id IS NOT NULL;
CREATE UNIQUE INDEX cantrip_records_header ON cantrip_records (loom) WHERE kind = 'loom';
DO $$ BEGIN
    -- Bodies are unpacked several times faster; a server that was built without it packs them as it always did.
    EXECUTE 'ALTER TABLE cantrip_records ALTER COLUMN body SET COMPRESSION lz4';
EXCEPTION WHEN OTHERS THEN
    NULL;
END $$;
"""

CHAINS = """
ALTER TABLE cantrip_records ADD COLUMN IF NOT EXISTS entity text;
ALTER TABLE cantrip_records ADD COLUMN IF NOT EXISTS sum text;
CREATE TABLE IF NOT EXISTS cantrip_chains (
    loom integer NOT NULL REFERENCES cantrip_looms (id),
    entity text NOT NULL,
    records bigint NOT NULL,
    sum text NOT NULL,
    PRIMARY KEY (loom, entity)
);
GRANT SELECT ON cantrip_chains TO PUBLIC;
"""
"""What version 2 adds: the end of each entity's chain of checksums. Everybody may read it."""

_NEW_1 = f"""
BEGIN
    PERFORM pg_advisory_xact_lock({LOCK}, NEW.loom);
    IF NEW.turn_id IS NOT NULL AND EXISTS
        (SELECT 1 FROM cantrip_records WHERE loom = NEW.loom AND turn_id = NEW.turn_id) THEN
        RAISE restrict_violation USING MESSAGE = '{rows.TAKEN}';
    END IF;
    IF NEW.parent_id IS NOT NULL AND NOT EXISTS
        (SELECT 1 FROM cantrip_records WHERE loom = NEW.loom AND turn_id = NEW.parent_id) THEN
        RAISE restrict_violation USING MESSAGE = '{rows.ORPHAN}';
    END IF;
    IF NEW.kind = 'loom' AND EXISTS (SELECT 1 FROM cantrip_records WHERE loom = NEW.loom AND kind = 'loom') THEN
        RAISE restrict_violation USING MESSAGE = '{rows.HEADED}';
    END IF;
    SELECT coalesce(max(n), 0) + 1 INTO NEW.n FROM cantrip_records WHERE loom = NEW.loom;
    RETURN NEW;
END """
_NEW = _NEW_1.replace("BEGIN", "DECLARE place bigint;\nBEGIN", 1).replace(
    "INTO NEW.n FROM cantrip_records WHERE loom = NEW.loom;",
    f"""INTO place FROM cantrip_records WHERE loom = NEW.loom;
    IF NEW.n > 0 AND NEW.n <> place THEN
        RAISE restrict_violation USING MESSAGE = '{rows.KEPT}';
    END IF;
    NEW.n := place;""",
)
_CHAINED = """
BEGIN
    IF NEW.sum IS NOT NULL THEN
        INSERT INTO cantrip_chains AS c (loom, entity, records, sum) VALUES (NEW.loom, NEW.entity, 1, NEW.sum)
            ON CONFLICT (loom, entity) DO UPDATE SET records = c.records + 1, sum = excluded.sum;
    END IF;
    RETURN NULL;
END """
_KEPT = f"""
BEGIN
    RAISE restrict_violation USING MESSAGE = '{rows.KEPT}';
END """
_FUNCTIONS = {"cantrip_new_record": _NEW, "cantrip_kept": _KEPT, "cantrip_chained": _CHAINED}
_TRIGGERS = {
    ("cantrip_records", "cantrip_new"): ("BEFORE INSERT", "ROW", "cantrip_new_record"),
    ("cantrip_records", "cantrip_chained"): ("AFTER INSERT", "ROW", "cantrip_chained"),
    ("cantrip_records", "cantrip_kept"): ("BEFORE UPDATE OR DELETE OR TRUNCATE", "STATEMENT", "cantrip_kept"),
    ("cantrip_looms", "cantrip_kept"): ("BEFORE UPDATE OR DELETE OR TRUNCATE", "STATEMENT", "cantrip_kept"),
}
_TYPES = {"BEFORE INSERT": 1 + 2 + 4, "AFTER INSERT": 1 + 4, "BEFORE UPDATE OR DELETE OR TRUNCATE": 2 + 8 + 16 + 32}
"""The same as numbers of pg_trigger: each row, before, insert; before, delete, update, truncate."""

GUARDS = "".join(
    # Run as the owner: a user who writes records need not be allowed to change the ends of chains.
    f"CREATE OR REPLACE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql "
    f"{'SECURITY DEFINER SET search_path FROM CURRENT ' if name == 'cantrip_chained' else ''}AS $${body}$$;\n"
    for name, body in _FUNCTIONS.items()
) + "".join(
    # ALWAYS: otherwise a session that declares itself a replica skips the triggers.
    f"DROP TRIGGER IF EXISTS {name} ON {table};\n"
    f"CREATE TRIGGER {name} {when} ON {table} FOR EACH {each} EXECUTE FUNCTION {function}();\n"
    f"ALTER TABLE {table} ENABLE ALWAYS TRIGGER {name};\n"
    for (table, name), (when, each, function) in _TRIGGERS.items()
)
LOOK = """
SELECT c.relname, t.tgname, t.tgenabled, t.tgtype, p.proname, p.prosrc
FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_proc p ON p.oid = t.tgfoid
WHERE NOT t.tgisinternal AND t.tgrelid IN (to_regclass('cantrip_records'), to_regclass('cantrip_looms'))
"""
"""The query for the existing triggers, for `gone`."""


UPGRADE = """
ALTER TABLE cantrip_looms DISABLE TRIGGER cantrip_kept;
UPDATE cantrip_looms SET tables = {tables} WHERE id = {loom};
ALTER TABLE cantrip_looms ENABLE ALWAYS TRIGGER cantrip_kept;
"""


def gone(found: Iterable[tuple[Any, ...]], *, chained: bool) -> list[str]:
    """The triggers that are missing, disabled or changed, from the rows of `LOOK`. Without ``chained``, the tables
    are of version 1."""
    whole = set()
    for table, name, enabled, kind, function, source in found:
        made = _TRIGGERS.get((table, name))
        if made is not None and enabled in ("O", "A") and (kind, function) == (_TYPES[made[0]], made[2]):
            if source == _FUNCTIONS[made[2]] or (not chained and source == _NEW_1):
                whole.add((table, name))
    wanted = [key for key in _TRIGGERS if chained or key[1] != "cantrip_chained"]
    return [f"{name} of {table}" for table, name in wanted if (table, name) not in whole]
