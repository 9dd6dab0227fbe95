"""Tables change while workers of an older version run: real processes of that version, taken from the history of git."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cantrip_acp.tuplespace.errors import SpaceNotOpened
from cantrip_acp.tuplespace.monitoring.status import read_status
from cantrip_acp.tuplespace.stores import open_store, postgres, sqlite
from cantrip_acp.tuplespace.tuples import new_tuple
from tests.support.command_line import run, start
from tests.support.waiting import wait_for

pytestmark = pytest.mark.timeout(300)
ROOT = Path(__file__).resolve().parents[3]
STORES = "cantrip_acp/tuplespace/stores"
RECIPE = """\
name: greeter
crystal:
  provider: scripted
  responses:
    - when: slow
      tool_calls: [{gate: done, args: {answer: Late.}}]
      usage: {prompt_tokens: 10, completion_tokens: 5, cost: 0.25}
      delay_ms: 3000
      repeat: true
    - {when: endless, content: Never., delay_ms: 600000}
    - tool_calls: [{gate: done, args: {answer: Hello.}}]
      usage: {prompt_tokens: 10, completion_tokens: 5, cost: 0.25}
      repeat: true
circle: {medium: conversation, gates: [done], wards: [{max_turns: 3}]}
"""


def git(*words: str) -> bytes:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, check=True, timeout=60).stdout


def migrations(source: bytes) -> tuple[str, ...]:
    """The value of MIGRATIONS in a module's text."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", None) == "MIGRATIONS":
            return tuple(ast.literal_eval(node.value))
    return ()


def versions() -> dict[int, str]:
    """The newest commit of each older version of the tables that leads to the present one."""
    found: dict[int, str] = {}
    for commit in git("log", "--format=%H", "--", f"{STORES}/").decode().split():
        names = git("ls-tree", "--name-only", commit, f"{STORES}/").decode()
        kinds = [f"{kind}_tables" if f"{kind}_tables.py" in names else kind for kind in ("sqlite", "postgres")]
        if any(f"/{kind}.py" not in names for kind in kinds):
            continue
        each = [migrations(git("show", f"{commit}:{STORES}/{kind}.py")) for kind in kinds]
        number = len(each[0])
        if each == [sqlite.MIGRATIONS[:number], postgres.MIGRATIONS[: len(each[1])]] and len(each[0]) == len(each[1]):
            found.setdefault(number, commit)
    found.pop(len(sqlite.MIGRATIONS), None)
    return found


@pytest.fixture(scope="session")
def history() -> dict[int, str]:
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("an older version is taken from git, and this is no checkout")
    found = versions()
    if not found:
        pytest.skip("git's history here has no older version of the tables")
    return found


@pytest.fixture(params=["previous", "first"])
def older(request: pytest.FixtureRequest, history: dict[int, str], tmp_path: Path) -> tuple[int, Path]:
    """An older version's number and its package."""
    number = {"previous": max(history), "first": min(history)}.get(request.param, request.param)
    if number not in history:
        pytest.skip(f"git's history here has no version {number} of the tables")
    folder = tmp_path / "older"
    folder.mkdir()
    subprocess.run(["tar", "-x", "-C", str(folder)], input=git("archive", history[number], "cantrip_acp"), check=True)
    return number, folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "work"
    made.mkdir()
    (made / "greeter.cantrip.yaml").write_text(RECIPE)
    return made


@pytest.fixture
def of_older(older: tuple[int, Path], folder: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts commands of the older version."""
    started = []

    def begin(*words: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "cantrip_acp.cli.main", *words], cwd=folder, text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(older[1]), "CANTRIP_STATE_DIR": str(folder / "older-state")},
        )  # fmt: skip
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def intents(folder: Path, name: str, *texts: str) -> str:
    (folder / name).write_text("".join(json.dumps(each) + "\n" for each in texts))
    return name


def version(address: str) -> int:
    """The version of the tables, read without opening the store."""
    if address.startswith("sqlite:"):
        import sqlite3

        return int(sqlite3.connect(address.removeprefix("sqlite:")).execute("PRAGMA user_version").fetchone()[0])
    import psycopg

    with psycopg.connect(address) as connection:
        row = connection.execute("SELECT max(version) FROM cantrip_tuple_tables").fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.slow
def test_workers_and_emitters_of_an_older_version_go_on(
    older: tuple[int, Path], of_older: Callable[..., subprocess.Popen[str]], folder: Path, address: str
) -> None:
    number, _ = older
    lane = ("--lane", "greetings", "--space", address)
    old_worker = of_older("worker", "greeter.cantrip.yaml", *lane, "--concurrency", "2", "--lease", "2", "--json",
                          "--loom", "old.loom.jsonl")  # fmt: skip
    old_batch = of_older("cast-batch", "greeter.cantrip.yaml", intents(folder, "a", "slow one", "two"), *lane)
    assert old_worker.stdout is not None
    # The quick cast has ended, and the slow one runs.
    assert json.loads(old_worker.stdout.readline())["state"] == "done"
    assert version(address) == number

    # Somebody opens the space with this version: the tables are changed under the older one's feet.
    store = open_store(address)
    assert version(address) == len(sqlite.MIGRATIONS) == len(postgres.MIGRATIONS)
    assert store.holders()[0].count == 1
    # This version emits, the older worker works.
    env = {"CANTRIP_STATE_DIR": str(folder / "state")}
    new = run(
        "cast-batch",
        "greeter.cantrip.yaml",
        intents(folder, "b", "three", "four", "slow five"),
        *lane,
        cwd=folder,
        **env,
    )
    assert new.status == 0, new.err
    _, err = old_batch.communicate(timeout=60)
    assert old_batch.returncode == 0, err
    assert old_worker.poll() is None
    status = read_status(store, "greetings")
    assert status.lanes["greetings"].done == 5
    # Receipts from before the change, and later ones of the older worker, have their cost.
    assert (status.usd, status.lanes["greetings"].tokens_in) == (1.25, 50)
    # The older version opens the changed tables too.
    shown = of_older("tuple", "status", "--space", address, "--json")
    out, err = shown.communicate(timeout=60)
    assert (shown.returncode, json.loads(out)["lanes"]["greetings"]["done"]) == (0, 5), err

    # The older worker is killed, and one of this version goes on with its tuple.
    batch = start("cast-batch", "greeter.cantrip.yaml", intents(folder, "c", "slow six"), *lane, cwd=folder, **env)
    wait_for(lambda: store.holders())
    old_worker.kill()
    worker = start("worker", "greeter.cantrip.yaml", *lane, "--loom", "new.loom.jsonl", cwd=folder, **env)
    try:
        batch.communicate(timeout=60)
        assert batch.returncode == 0
    finally:
        worker.terminate()
        worker.communicate(timeout=60)
    works, _cursor = store.after("", sqlite.Pattern())
    assert [each.state for each in works] == ["done"] * 6
    for each in works:
        assert sum(receipt.step is None for receipt in store.receipts(each.work.id)) == 1
    assert read_status(store).usd == 1.5
    store.close()


@pytest.mark.slow
@pytest.mark.parametrize("older", [7], indirect=True)
def test_a_worker_of_an_older_version_leaves_tuples_of_the_new_schema_alone(
    older: tuple[int, Path], of_older: Callable[..., subprocess.Popen[str]], folder: Path, address: str
) -> None:
    # The workers of versions before it end every tuple that they cannot run.
    lane = ("--lane", "greetings", "--space", address)
    env = {"CANTRIP_STATE_DIR": str(folder / "state")}
    store = open_store(address)
    old_worker = of_older("worker", "greeter.cantrip.yaml", *lane, "--loom", "old.loom.jsonl", "--json")
    steps = [{"yool": "agent.cast.greeter", "args": {"intent": "new"}}]
    newer, old = new_tuple("greetings", steps, flags={"no_cache": True}), new_tuple("greetings", steps)
    store.put([newer, old])
    assert old_worker.stdout is not None
    assert json.loads(old_worker.stdout.readline())["tuple_id"] == old.id
    shown = of_older("tuple", "rd", newer.id, "--space", address)
    out, err = shown.communicate(timeout=60)
    assert (shown.returncode, json.loads(out)["state"], json.loads(out)["attempts"]) == (0, "waiting", 0), err
    assert old_worker.poll() is None
    # A worker of this version takes it.
    ran = run("worker", "greeter.cantrip.yaml", *lane, "--until-empty", "--loom", "new.loom.jsonl", cwd=folder, **env)
    assert ran.status == 0, ran.err
    found = store.get(newer.id)
    assert found is not None
    assert (found.state, found.work) == ("done", newer)
    store.close()


@pytest.mark.slow
def test_failures_that_an_older_version_repeated_are_known_as_repeated(
    history: dict[int, str], tmp_path: Path, folder: Path, address: str
) -> None:
    """The column ``first`` is filled in for tuples from before."""
    number = 6
    if number not in history:
        pytest.skip("git's history here has no version of the tables without this column")
    older = tmp_path / "older"
    older.mkdir()
    subprocess.run(["tar", "-x", "-C", str(older)], input=git("archive", history[number], "cantrip_acp"), check=True)
    words = ["cast-batch", "greeter.cantrip.yaml", intents(folder, "a", "hm 1", "hm 2", "one"), "--space", address]
    broken = "{when: hm, error: {message: it is broken}, repeat: true}"
    recipe = RECIPE.replace("{when: endless, content: Never., delay_ms: 600000}", broken)
    (folder / "greeter.cantrip.yaml").write_text(recipe)
    for more in ((), ("--again", "failed")):
        done = subprocess.run(
            [sys.executable, "-m", "cantrip_acp.cli.main", *words, "--max-retries", "0", *more], cwd=folder, text=True,
            capture_output=True, timeout=60,
            env={**os.environ, "PYTHONPATH": str(older), "CANTRIP_STATE_DIR": str(folder / "older-state")},
        )  # fmt: skip
        assert done.returncode == 1, done.stderr
    assert version(address) == number
    store = open_store(address)
    try:
        assert version(address) > number
        [lane] = store.repeated()
        assert store.repeated() == {lane: 2}
        [failed] = store.failures()
        assert failed.count == 2
        status = read_status(store).lanes[lane]
        assert (status.done, status.failed, status.repeated) == (1, 2, 2)
    finally:
        store.close()


@pytest.mark.slow
def test_a_migration_does_not_hold_up_workers_behind_a_long_reader(
    older: tuple[int, Path],
    of_older: Callable[..., subprocess.Popen[str]],
    folder: Path,
    request: pytest.FixtureRequest,
) -> None:
    import psycopg

    address = request.getfixturevalue("postgres").new_schema()
    lane = ("--lane", "greetings", "--space", address)
    worker = of_older("worker", "greeter.cantrip.yaml", *lane, "--loom", "old.loom.jsonl", "--json")
    batch = of_older("cast-batch", "greeter.cantrip.yaml", intents(folder, "a", "one"), *lane)
    batch.communicate(timeout=60)
    assert batch.returncode == 0
    assert worker.stdout is not None
    worker.stdout.readline()
    opened: list[Any] = []
    with psycopg.connect(address) as reader:
        # As a backup does: it keeps a table from changing as long as its transaction lasts.
        reader.execute("SELECT count(*) FROM cantrip_tuple_queue")
        opening = threading.Thread(target=lambda: opened.append(open_store(address)))
        opening.start()
        # The migration waits, the older worker does not.
        second = of_older("cast-batch", "greeter.cantrip.yaml", intents(folder, "b", "two"), *lane)
        second.communicate(timeout=60)
        assert second.returncode == 0
        # A migration that only makes new tables does not even wait.
        if any("ALTER TABLE cantrip_tuple_queue" in each for each in postgres.MIGRATIONS[older[0] :]):
            assert (version(address), opened) == (older[0], [])
    opening.join(60)
    assert version(address) == len(postgres.MIGRATIONS)
    opened[0].close()


def test_migrations_only_add() -> None:
    """What an older version's statements rely on stays: nothing is dropped or renamed, and no new column wants a value."""
    for script in (*sqlite.MIGRATIONS[1:], *postgres.MIGRATIONS[1:]):
        assert not re.search(r"\b(DROP|RENAME|TRUNCATE(?! ON)|DELETE FROM|ALTER COLUMN)\b", script)
        assert not re.search(r"CREATE UNIQUE", script)
        for column in re.findall(r"ADD COLUMN[^,;]*", script):
            assert "NOT NULL" not in column or "DEFAULT" in column, column


def test_a_version_that_may_have_changed_what_exists_is_refused(address: str) -> None:
    store = open_store(address)
    store.close()
    if address.startswith("sqlite:"):
        import sqlite3

        base = sqlite3.connect(address.removeprefix("sqlite:"))
        base.execute("PRAGMA user_version = 100")
        base.close()
    else:
        import psycopg

        with psycopg.connect(address) as connection:
            connection.execute("INSERT INTO cantrip_tuple_tables VALUES (100)")
    with pytest.raises(SpaceNotOpened, match=r"its tables have version 100, .* Upgrade cantrip-acp"):
        open_store(address)
