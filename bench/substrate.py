"""The substrate with 100,000 chunks: commit, scope read, render, search, and a session's beginning.

The chunks are 10,000 sessions of one workspace with nine chunks each, and a scope of 200 documents. The baseline of a row is
the same rows written or read by raw statements on the same tables, through the bare driver, in one transaction. A session's
beginning is a process's first cast with a scripted crystal, until all of it is recorded: with 10,000 earlier sessions (9,000
of the same folder), and with none of the folder. The two take turns.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.measure import Row, Table, row
from bench.options import Options
from cantrip_acp.substrate.boundary import Boundary
from cantrip_acp.substrate.chunks import Change, NewChunk, NewPlacement, Spec
from cantrip_acp.substrate.knowledge import render
from cantrip_acp.substrate.owners import USER_CULTURE
from cantrip_acp.substrate.projects import Project, create, session_id, sync
from cantrip_acp.substrate.stores.base import Record, View, encode_spec, searched_text
from cantrip_acp.substrate.substrate import Substrate, open_substrate
from cantrip_acp.substrate.types import TYPES, type_id
from tests.support import postgres_server as pgserver

SESSIONS, SHOWN, BATCH = 10_000, 200, 100
BUFFERS = "128MB"
"""The shared memory of PostgreSQL that is its default."""
KINDS = (
    "prompt",
    "tool-call",
    "tool-result",
    "tool-call",
    "tool-result",
    "tool-call",
    "tool-result",
    "answer",
    "context",
)
PROGRAM = """
import sys, time
from pathlib import Path
import anyio
from cantrip_acp import Loom
from cantrip_acp.core.cantrip import Cantrip
from cantrip_acp.recipes import load
from cantrip_acp.recipes.build.build import build
from cantrip_acp.substrate.recorder import SessionRecorder
from cantrip_acp.substrate.stores import open_tables
from cantrip_acp.substrate.view import SessionView
recipe, workspace = map(Path, sys.argv[1:])
open_tables(recipe.parent / "other.db").close()  # imports are not what is measured
async def main():
    began = time.perf_counter()
    made = build(load(recipe), workspace=workspace, loom=Loom.memory())
    async with made.invoke() as entity:
        await entity.cast("Which port is free?")
    said = time.perf_counter()
    assert all(each.flush() for each in made.contributors if isinstance(each, SessionRecorder))
    print((said - began) * 1000, (time.perf_counter() - began) * 1000)
anyio.run(main)
"""
RECIPE = """\
crystal: {provider: scripted, responses: [{content: Port 4711.}]}
circle: {medium: conversation, gates: [done], wards: [{max_turns: 3}]}
memory: {culture: true, sessions: 8}
"""
Samples = dict[str, list[float]]


@dataclass
class Texts:
    """Texts of words as rare as in a language, and searches for them."""

    chance: random.Random = field(default_factory=lambda: random.Random(16))

    def __post_init__(self) -> None:
        syllables = [a + b for a in "bdfgklmnprstvz" for b in ("a", "e", "i", "o", "u", "ar", "en", "ist")]
        self._words = list(dict.fromkeys("".join(self.chance.choices(syllables, k=3)) for _ in range(25_000)))[:20_000]
        self._weights = [1 / (place + 3) for place in range(len(self._words))]

    def text(self, words: int) -> str:
        return " ".join(self.chance.choices(self._words, self._weights, k=words)) + "."

    def query(self) -> str:
        """One to three words; sometimes one is not finished, or is nowhere."""
        words = self.chance.choices(self._words, self._weights, k=self.chance.randint(1, 3))
        kind = self.chance.random()
        if kind < 0.2:
            words[-1] = words[-1][:4]
        elif kind < 0.3:
            words.append("xyzzy")
        return " ".join(words)


def run(options: Options) -> Table:
    texts, samples, rows = Texts(), Samples(), list[Row]()
    results = Path(__file__).parent / "results"
    results.mkdir(exist_ok=True)
    with contextlib.ExitStack() as held:
        folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="bench-", dir=results)))
        addresses = {"SQLite": f"sqlite:{folder}/full.db"}
        empty = {"SQLite": f"sqlite:{folder}/empty.db"}
        try:
            server = held.enter_context(pgserver.running(BUFFERS))
        except pgserver.NoServer as why:
            print(f"  PostgreSQL is left out: {why}")
        else:
            addresses["PostgreSQL"] = _schema(server, "filled")
            empty["PostgreSQL"] = _schema(server, "empty")
        for name, address in addresses.items():
            rows += _measure(name, address, empty[name], folder, texts, samples, options)
    return Table("substrate", f"the substrate with {SESSIONS * (len(KINDS) + 1):,} chunks", tuple(rows))


def _schema(server: pgserver.Server, name: str) -> str:
    import psycopg

    base = server.url("x").partition("?")[0]
    with psycopg.connect(base, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {name}".encode())
    return f"{base}?options=-csearch_path%3D{name}"


def _measure(
    name: str,
    address: str,
    empty: str,
    folder: Path,
    texts: Texts,
    samples: Samples,
    options: Options,
) -> list[Row]:
    workspace = folder / name
    workspace.mkdir()
    (workspace / "AGENTS.md").write_text("Run the tests.\n")

    def timed(what: str, work: Callable[[], Any]) -> Any:
        began = time.perf_counter()
        found = work()
        samples.setdefault(f"{name} {what}", []).append((time.perf_counter() - began) * 1000)
        return found

    with open_substrate(address) as substrate:
        project = sync(substrate, workspace)
        _fill(substrate, project, texts)
        raw = (_RawPostgres if address.startswith("postgresql") else _RawSqlite)(address)
        for number in range(options.rounds(30)):
            for count in (1, BATCH):
                given, ours = (
                    _change(project, texts, f"raw{number}", count),
                    _change(project, texts, f"own{number}", count),
                )
                timed(f"raw commit {count}", lambda given=given: raw.commit(given))  # type: ignore[misc]
                timed(f"commit {count}", lambda ours=ours: substrate.commit(ours, author="bench"))  # type: ignore[misc]
        scope = f"{project.id}:bench"
        for _ in range(options.rounds(30)):
            assert len(timed("raw scope", lambda: raw.scope(scope))) == SHOWN
            assert len(timed("scope", lambda: substrate.scope(scope)).placed) == SHOWN
            assert timed("render", lambda: render(substrate, [scope], most_tokens=10**9)).tokens > SHOWN * 40
        # As the gate `recall` does it.
        own, inside = session_id("e1"), Boundary.of(read=[USER_CULTURE, project.id, TYPES])
        for _ in range(options.rounds(300)):
            query = texts.query()
            timed("raw search", lambda query=query: raw.search(query.split()))  # type: ignore[misc]
            timed("search", lambda query=query: substrate.search(query))  # type: ignore[misc]
            timed("recall", lambda query=query: substrate.search(query, boundary=inside, limit=10, without=own))  # type: ignore[misc]
        raw.close()
    recipe = folder / "bench.cantrip.yaml"
    recipe.write_text(RECIPE)
    for number in range(options.rounds(20)):
        other = folder / f"{name}{number}"
        other.mkdir()
        (other / "AGENTS.md").write_text("Run the tests.\n")
        with open_substrate(empty) as substrate:
            sync(substrate, other)
        for what, place, where in (("none", empty, other), ("many", address, workspace)):
            said, all_of_it = _begin(place, recipe, where)
            samples.setdefault(f"{name} {what} said", []).append(said)
            samples.setdefault(f"{name} {what} all", []).append(all_of_it)
    return _rows(name, samples)


def _begin(address: str, recipe: Path, workspace: Path) -> tuple[float, float]:
    """The milliseconds of a process's first cast: until it ended, and until it was recorded."""
    environment = {**os.environ, "CANTRIP_SUBSTRATE": address, "CANTRIP_STATE_DIR": str(recipe.parent / "state")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(recipe), str(workspace)],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    said, all_of_it = map(float, done.stdout.split())
    return said, all_of_it


def _rows(name: str, samples: Samples) -> list[Row]:
    rows: list[Row] = []
    for count in (1, BATCH):
        what = f"{count} chunk{'s' if count > 1 else ''}, {2 * count} placements"
        base = row(f"{name}: raw statements, {what}", samples[f"{name} raw commit {count}"], "ms")
        rows += [base, row(f"{name}: commit of {what}", samples[f"{name} commit {count}"], "ms", baseline=base)]
    base = row(f"{name}: raw select of a scope of {SHOWN}", samples[f"{name} raw scope"], "ms")
    rows += [base, row(f"{name}: scope read", samples[f"{name} scope"], "ms", baseline=base)]
    rows.append(
        row(
            f"{name}: rendered",
            samples[f"{name} render"],
            "ms",
            baseline=base,
            goal="<= 5",
        )
    )
    base = row(f"{name}: raw search, all words, best 20", samples[f"{name} raw search"], "ms")
    rows.append(base)
    for what, said in (("search", "search"), ("recall", "search within a boundary")):
        rows.append(
            row(
                f"{name}: {said}",
                samples[f"{name} {what}"],
                "ms",
                baseline=base,
                goal="p95 <= 20",
            )
        )
    for what, said in (("said", "a first cast"), ("all", "a first cast, recorded")):
        none, many = samples[f"{name} none {what}"], samples[f"{name} many {what}"]
        base = row(f"{name}: {said}, no earlier sessions", none, "ms")
        rows += [base, row(f"{name}: {said}, {SESSIONS:,} earlier ones", many, "ms", baseline=base)]
        rows.append(
            row(
                f"{name}: what they add",
                [after - before for before, after in zip(none, many, strict=True)],
                "ms",
                goal="<= 10",
            )
        )
    return rows


def _fill(substrate: Substrate, project: Project, texts: Texts) -> None:
    """Store the chunks, without the rules: they are right by construction."""
    scope, sequences = f"{project.id}:bench", dict[str, int]()
    other = create(substrate, "/elsewhere")
    for first in range(0, SESSIONS, 100):
        with substrate.tables.writing(durable=False) as view:
            number = view.add_commit(time.time(), "bench", "bench", "")
            for each in range(first, min(first + 100, SESSIONS)):
                # Every tenth session is of another folder.
                home = project if each % 10 else other
                _add(view, number, _session(f"e{each}", home, texts), session_id(f"e{each}"), sequences)
            view.set_changed(number, 1)
    shown = [NewChunk(f"doc:{n}", f"doc {n}", Spec(), {"text": texts.text(60)}) for n in range(SHOWN)]
    change = Change(
        [NewChunk(scope, "bench", Spec(ordered=True), {"text": "What is shown."}), *shown],
        [NewPlacement(scope, project.id), *(NewPlacement(each.id, scope) for each in shown)],
    )
    substrate.commit(change, author="bench")


def _session(entity: str, project: Project, texts: Texts) -> Change:
    """A session whose context says that it read what every session of the project reads."""
    session = session_id(entity)
    chunks = [
        NewChunk(session, texts.text(8), Spec(), {"text": "", "started": "2026-11-24T02:00:00", "entity": entity})
    ]
    placements = [NewPlacement(session, type_id("session")), NewPlacement(session, project.sessions)]
    for place, kind in enumerate(KINDS):
        body: dict[str, Any] = {"text": texts.text(40), "cast": f"c-{entity}", "turn": f"t-{entity}-{place}"}
        if kind == "prompt":
            body["outcome"] = {"reason": "done", "text": texts.text(10)}
        elif kind.startswith("tool"):
            body |= {"program": "read_file", "tool_use_id": f"call-{place}", "input": {"path": "a.txt"}}
        made = NewChunk(f"{kind}:{entity}:{place}", kind, Spec(), body)
        chunks.append(made)
        placements += [NewPlacement(made.id, type_id(kind)), NewPlacement(made.id, session)]
    placements += [NewPlacement(scope, chunks[-1].id, "relates") for scope in project.pinned]
    return Change(chunks, placements)


def _change(project: Project, texts: Texts, name: str, count: int) -> Change:
    """A new session of as many chunks as asked for, apart from itself."""
    session, chunks, placements = f"session:{name}-{count}", list[NewChunk](), list[NewPlacement]()
    if count > 1:
        chunks.append(NewChunk(session, name, Spec(), {"text": ""}))
        placements += [NewPlacement(session, type_id("session")), NewPlacement(session, project.sessions)]
    else:
        session = session_id("e1")
    for place in range(count - (count > 1)):
        made = NewChunk(f"prompt:{name}-{count}:{place}", "prompt", Spec(), {"text": texts.text(40)})
        chunks.append(made)
        placements += [NewPlacement(made.id, type_id("prompt")), NewPlacement(made.id, session)]
    return Change(chunks, placements)


def _add(view: View, number: int, change: Change, source: str, sequences: dict[str, int]) -> None:
    for chunk in change.chunks:
        view.add_chunk(chunk, json.dumps(chunk.body, sort_keys=True).encode(), source, number)
    for each in change.placements:
        sequence = None
        if each.scope.startswith("session:"):
            sequence = sequences[each.scope] = sequences.get(each.scope, -1) + 1
        view.add_record(Record(each.chunk, each.scope, each.kind, sequence, number))


class _RawSqlite:
    """The rows of a commit and of a read, by the driver alone."""

    def __init__(self, address: str) -> None:
        self._base = sqlite3.connect(address.removeprefix("sqlite:"), isolation_level=None)
        self._base.execute("PRAGMA synchronous = FULL")
        self._run: Callable[..., Any] = self._base.execute

    def commit(self, change: Change) -> None:
        run = self._run
        run("BEGIN IMMEDIATE")
        number = run("INSERT INTO commits (at, author, source, message, changed) VALUES (1, 'b', 'b', '', 9)").lastrowid
        for chunk in change.chunks:
            body = json.dumps(chunk.body).encode()
            position = run(
                "INSERT INTO chunk_versions (id, number, name, spec, body, source) VALUES (?, ?, ?, ?, ?, 'b')",
                (chunk.id, number, chunk.name, encode_spec(chunk.spec), body),
            ).lastrowid
            text = searched_text(chunk.body)
            run("INSERT INTO searched (rowid, name, text) VALUES (?, ?, ?)", (position, chunk.name, text))
        for place, each in enumerate(change.placements):
            run(
                "INSERT INTO placement_versions (scope, chunk, kind, number, sequence, removed) VALUES (?, ?, ?, ?, ?, 0)",
                (each.scope, each.chunk, each.kind, number, 10_000 * number + place),
            )
        run("COMMIT")

    def scope(self, scope: str) -> list[Any]:
        statement = """SELECT v.id, v.name, v.body, p.kind, p.sequence FROM placement_versions p
            JOIN chunk_versions v ON v.id = p.chunk WHERE p.scope = ? ORDER BY p.sequence"""
        return [(*each, json.loads(each[2])) for each in self._run(statement, (scope,)).fetchall()]

    def search(self, words: list[str]) -> list[Any]:
        statement = """SELECT v.id, v.body FROM searched JOIN chunk_versions v ON v.position = searched.rowid
            WHERE searched MATCH ? ORDER BY bm25(searched, 4.0, 1.0) LIMIT 20"""
        return list(self._run(statement, (" ".join(f'"{word}"' for word in words),)).fetchall())

    def close(self) -> None:
        self._base.close()


class _RawPostgres:
    def __init__(self, address: str) -> None:
        import psycopg

        self._base = psycopg.connect(address, autocommit=True)
        self._run: Callable[..., Any] = self._base.execute
        # The server does that by itself within a minute.
        self._run("VACUUM ANALYZE")

    def commit(self, change: Change) -> None:
        run = self._run
        with self._base.transaction():
            run("SELECT pg_advisory_xact_lock(1)")
            (number,) = run("SELECT max(number) + 1 FROM cantrip_commits").fetchone()
            run("INSERT INTO cantrip_commits VALUES (%s, 1, 'b', 'b', '', 9)", (number,))
            for chunk in change.chunks:
                run(
                    """INSERT INTO cantrip_chunks (id, number, name, spec, body, source, words) VALUES (%s, %s, %s, %s, %s, 'b',
                       setweight(to_tsvector('simple', %s), 'A') || to_tsvector('simple', %s))""",
                    (
                        *(chunk.id, number, chunk.name, encode_spec(chunk.spec), json.dumps(chunk.body)),
                        *(chunk.name, searched_text(chunk.body)),
                    ),
                )
            for place, each in enumerate(change.placements):
                run(
                    """INSERT INTO cantrip_placements (scope, kind, chunk, number, sequence, removed)
                       VALUES (%s, %s, %s, %s, %s, false)""",
                    (each.scope, each.kind, each.chunk, number, 10_000 * number + place),
                )

    def scope(self, scope: str) -> list[Any]:
        statement = """SELECT v.id, v.name, v.body, p.kind, p.sequence FROM cantrip_placements p
            JOIN cantrip_chunks v ON v.id = p.chunk WHERE p.scope = %s ORDER BY p.sequence"""
        return [(*each, json.loads(each[2])) for each in self._run(statement, (scope,)).fetchall()]

    def search(self, words: list[str]) -> list[Any]:
        statement = """SELECT v.id, v.body FROM cantrip_chunks v, to_tsquery('simple', %s) AS query WHERE words @@ query
            ORDER BY ts_rank(words, query) DESC LIMIT 20"""
        return list(self._run(statement, (" & ".join(words),)).fetchall())

    def close(self) -> None:
        self._base.close()
