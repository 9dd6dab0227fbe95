"""The tables of a substrate in PostgreSQL: how each version becomes the next, whose a row is, and row security."""

from __future__ import annotations

from cantrip_acp.substrate.owners import PATTERNS

RECORD = "(starts_with(source, 'session:') OR starts_with(source, 'program:') OR starts_with(id, 'process-'))"
"""`Chunk.is_record`."""
KNOWN = "NOT (id ~ '^process-' OR source ~ '^(session|program):') AND id !~ '^types?(:|$)'"
"""The condition for knowledge, which a search looks at first: neither a record nor a type. Its index stays small."""

MIGRATIONS = (
    """
    CREATE TABLE cantrip_commits (
        number bigint PRIMARY KEY, at float8 NOT NULL, author text NOT NULL, source text NOT NULL, message text NOT NULL,
        changed integer NOT NULL
    );
    CREATE TABLE cantrip_chunks (
        position bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, id text NOT NULL, number bigint NOT NULL, name text NOT NULL,
        spec text NOT NULL, body text NOT NULL, source text NOT NULL, words tsvector NOT NULL, UNIQUE (id, number)
    );
    CREATE INDEX cantrip_chunk_names ON cantrip_chunks (name);
    CREATE INDEX cantrip_chunk_commits ON cantrip_chunks (number);
    CREATE INDEX cantrip_chunk_words ON cantrip_chunks USING gin (words);
    CREATE TABLE cantrip_placements (
        scope text NOT NULL, kind text NOT NULL, chunk text NOT NULL, number bigint NOT NULL, sequence bigint,
        removed boolean NOT NULL, PRIMARY KEY (scope, kind, chunk, number)
    );
    CREATE INDEX cantrip_placement_chunks ON cantrip_placements (chunk, kind, scope, number);
    CREATE INDEX cantrip_placement_sequences ON cantrip_placements (scope, sequence);
    CREATE INDEX cantrip_placement_times ON cantrip_placements (scope, kind, number);
    CREATE INDEX cantrip_placement_commits ON cantrip_placements (number);
    CREATE TABLE cantrip_refusals (
        position bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, at float8 NOT NULL, author text NOT NULL,
        operation text NOT NULL, chunk text NOT NULL, text text NOT NULL
    );
    CREATE FUNCTION cantrip_substrate_kept() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        RAISE restrict_violation USING MESSAGE = 'the substrate is append-only';
    END $$;
    CREATE TRIGGER cantrip_kept BEFORE UPDATE OR DELETE OR TRUNCATE ON cantrip_commits
        FOR EACH STATEMENT EXECUTE FUNCTION cantrip_substrate_kept();
    CREATE TRIGGER cantrip_kept BEFORE UPDATE OR DELETE OR TRUNCATE ON cantrip_chunks
        FOR EACH STATEMENT EXECUTE FUNCTION cantrip_substrate_kept();
    CREATE TRIGGER cantrip_kept BEFORE UPDATE OR DELETE OR TRUNCATE ON cantrip_placements
        FOR EACH STATEMENT EXECUTE FUNCTION cantrip_substrate_kept();
    """,
    f"""
    CREATE INDEX cantrip_known_words ON cantrip_chunks USING gin (words) WHERE {KNOWN};
    ANALYZE cantrip_chunks;
    """,
    # Whose a row is, is seen by its ids (`owners.privacy`). Private rows of earlier versions have the owner '?': nobody reads them
    # until an administrator gives them to somebody. An older version that writes names no owner, so the trigger does.
    f"""
    CREATE FUNCTION cantrip_substrate_privacy(id text) RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
        SELECT CASE WHEN id ~ '{PATTERNS[0]}' THEN 2 WHEN id ~ '{PATTERNS[1]}' THEN 1 ELSE 0 END
    $$;
    CREATE TABLE cantrip_commit_texts (
        number bigint PRIMARY KEY, author text NOT NULL, source text NOT NULL, message text NOT NULL, owner text NOT NULL,
        part text NOT NULL
    );
    ALTER TABLE cantrip_commits ADD COLUMN private boolean NOT NULL DEFAULT false;
    ALTER TABLE cantrip_refusals ADD COLUMN owner text NOT NULL DEFAULT '?', ADD COLUMN part text NOT NULL DEFAULT '';
    ALTER TABLE cantrip_placements ADD COLUMN owner text NOT NULL DEFAULT '?', ADD COLUMN part text NOT NULL DEFAULT '';
    ALTER TABLE cantrip_chunks ADD COLUMN owner text NOT NULL DEFAULT '?', ADD COLUMN part text NOT NULL DEFAULT '';
    ALTER TABLE cantrip_commits DISABLE TRIGGER cantrip_kept;
    ALTER TABLE cantrip_placements DISABLE TRIGGER cantrip_kept;
    ALTER TABLE cantrip_chunks DISABLE TRIGGER cantrip_kept;
    UPDATE cantrip_chunks SET part = '?' WHERE cantrip_substrate_privacy(id) = 2;
    UPDATE cantrip_chunks c SET owner = '' WHERE cantrip_substrate_privacy(id) = 0 AND NOT (
        EXISTS (SELECT FROM cantrip_placements p WHERE p.chunk = c.id AND p.kind = 'instance'
            AND p.scope IN ('culture:user', 'skills:user'))
        AND NOT EXISTS (SELECT FROM cantrip_placements p WHERE p.chunk = c.id AND p.kind = 'instance'
            AND p.scope !~ '^type:' AND p.scope NOT IN ('culture:user', 'skills:user')));
    UPDATE cantrip_placements SET part = '?'
        WHERE cantrip_substrate_privacy(scope) = 2 OR cantrip_substrate_privacy(chunk) = 2;
    UPDATE cantrip_placements SET owner = ''
        WHERE cantrip_substrate_privacy(scope) = 0 AND cantrip_substrate_privacy(chunk) = 0
        AND NOT EXISTS (SELECT FROM cantrip_chunks c WHERE c.id = chunk AND c.owner = '?');
    WITH own AS (SELECT number FROM cantrip_chunks WHERE owner = '?' UNION SELECT number FROM cantrip_placements WHERE owner = '?'),
        texts AS (INSERT INTO cantrip_commit_texts SELECT number, author, source, message, '?', ''
            FROM cantrip_commits JOIN own USING (number))
        UPDATE cantrip_commits c SET private = true, author = '', source = '', message = '' FROM own WHERE own.number = c.number;
    ALTER TABLE cantrip_commits ENABLE TRIGGER cantrip_kept;
    ALTER TABLE cantrip_placements ENABLE TRIGGER cantrip_kept;
    ALTER TABLE cantrip_chunks ENABLE TRIGGER cantrip_kept;
    ALTER TABLE cantrip_refusals ALTER COLUMN owner DROP DEFAULT;
    ALTER TABLE cantrip_placements ALTER COLUMN owner DROP DEFAULT;
    ALTER TABLE cantrip_chunks ALTER COLUMN owner DROP DEFAULT;
    ALTER TABLE cantrip_chunks ADD CONSTRAINT cantrip_shared CHECK (owner <> '' OR cantrip_substrate_privacy(id) = 0) NOT VALID;
    ALTER TABLE cantrip_placements ADD CONSTRAINT cantrip_shared CHECK (owner <> '' OR
        (cantrip_substrate_privacy(scope) = 0 AND cantrip_substrate_privacy(chunk) = 0)) NOT VALID;
    CREATE FUNCTION cantrip_substrate_chunk_owner() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF NEW.owner IS NULL THEN
            NEW.owner := CASE cantrip_substrate_privacy(NEW.id) WHEN 0 THEN '' ELSE current_user END;
            NEW.part := CASE cantrip_substrate_privacy(NEW.id) WHEN 2 THEN '?' ELSE '' END;
        END IF;
        -- To others, "user" would be themselves.
        IF NEW.owner = '' AND NEW.source = 'user' THEN
            NEW.source := 'user:' || current_user;
        END IF;
        RETURN NEW;
    END $$;
    CREATE FUNCTION cantrip_substrate_placement_owner() RETURNS trigger LANGUAGE plpgsql AS $$
        DECLARE level integer := greatest(cantrip_substrate_privacy(NEW.scope), cantrip_substrate_privacy(NEW.chunk));
    BEGIN
        IF NEW.owner IS NULL THEN
            IF NEW.scope IN ('culture:user', 'skills:user') AND NEW.kind = 'instance' AND EXISTS (
                SELECT FROM cantrip_chunks WHERE id = NEW.chunk AND number = NEW.number AND owner = '') THEN
                RAISE insufficient_privilege USING MESSAGE =
                    'this version of cantrip would let everybody read what is yours alone: update it';
            END IF;
            NEW.owner := CASE level WHEN 0 THEN '' ELSE current_user END;
            NEW.part := CASE level WHEN 2 THEN '?' ELSE '' END;
        END IF;
        RETURN NEW;
    END $$;
    CREATE FUNCTION cantrip_substrate_refusal_owner() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        NEW.owner := coalesce(NEW.owner, current_user);
        RETURN NEW;
    END $$;
    CREATE FUNCTION cantrip_substrate_commit_texts() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        -- Behind the largest number nobody could commit any more.
        IF NEW.number <> (SELECT coalesce(max(number), 0) + 1 FROM cantrip_commits) THEN
            RAISE check_violation USING MESSAGE = 'commits are numbered without gaps';
        END IF;
        INSERT INTO cantrip_commit_texts
            SELECT NEW.number, NEW.author, NEW.source, NEW.message, owner, part FROM (
                SELECT owner, part FROM cantrip_chunks WHERE number = NEW.number AND owner <> ''
                UNION SELECT owner, part FROM cantrip_placements WHERE number = NEW.number AND owner <> '') own
            ORDER BY part LIMIT 1;
        IF FOUND THEN
            NEW.private := true;
            NEW.author := '';
            NEW.source := '';
            NEW.message := '';
        ELSE
            NEW.author := CASE NEW.author WHEN 'user' THEN 'user:' || current_user ELSE NEW.author END;
            NEW.source := CASE NEW.source WHEN 'user' THEN 'user:' || current_user ELSE NEW.source END;
        END IF;
        RETURN NEW;
    END $$;
    CREATE TRIGGER cantrip_owner BEFORE INSERT ON cantrip_chunks
        FOR EACH ROW EXECUTE FUNCTION cantrip_substrate_chunk_owner();
    CREATE TRIGGER cantrip_owner BEFORE INSERT ON cantrip_placements
        FOR EACH ROW EXECUTE FUNCTION cantrip_substrate_placement_owner();
    CREATE TRIGGER cantrip_owner BEFORE INSERT ON cantrip_refusals
        FOR EACH ROW EXECUTE FUNCTION cantrip_substrate_refusal_owner();
    CREATE TRIGGER cantrip_texts BEFORE INSERT ON cantrip_commits
        FOR EACH ROW EXECUTE FUNCTION cantrip_substrate_commit_texts();
    CREATE TRIGGER cantrip_kept BEFORE UPDATE OR DELETE OR TRUNCATE ON cantrip_commit_texts
        FOR EACH STATEMENT EXECUTE FUNCTION cantrip_substrate_kept();
    ANALYZE cantrip_chunks;
    ANALYZE cantrip_placements;
    """,
)
TABLES = {
    "chunk_versions": "cantrip_chunks",
    "placement_versions": "cantrip_placements",
    "texts": "cantrip_commit_texts",
    "refusals": "cantrip_refusals",
    "commits": "cantrip_commits",
}
"""The tables by the names that statements use."""
_PRIVATE_TABLES = tuple(table for table in TABLES.values() if table != "cantrip_commits")
ROW_SECURITY = "".join(
    f"""
    ALTER TABLE {table} ENABLE ROW LEVEL SECURITY;
    ALTER TABLE {table} FORCE ROW LEVEL SECURITY;
    DROP POLICY IF EXISTS cantrip_own ON {table};
    CREATE POLICY cantrip_own ON {table} USING (owner IN ('', current_user)) WITH CHECK (owner IN ('', current_user));
    """
    for table in _PRIVATE_TABLES
)
"""Lets each role read and write what is shared, and what is its own."""
GIVE = tuple(
    f"ALTER TABLE {table} NO FORCE ROW LEVEL SECURITY; ALTER TABLE {table} DISABLE TRIGGER USER; "
    f"UPDATE {table} SET owner = {{role}} WHERE owner = '?'; ALTER TABLE {table} ENABLE TRIGGER USER;"
    for table in _PRIVATE_TABLES
)
"""Gives the private rows of earlier versions to a role."""
SECURED = f"""SELECT bool_and(relrowsecurity AND relforcerowsecurity) FROM pg_class
    WHERE oid IN ({", ".join(f"'{table}'::regclass" for table in _PRIVATE_TABLES)})"""
"""Whether row security is on."""
GRANTS = (
    "GRANT USAGE ON SCHEMA {schema} TO {role};",
    "GRANT SELECT, INSERT ON cantrip_commits, cantrip_commit_texts, cantrip_chunks TO {role};",
    "GRANT SELECT, INSERT ON cantrip_placements, cantrip_refusals TO {role};",
    "GRANT SELECT ON cantrip_substrate_tables TO {role};",
)
"""The rights that each role needs."""
