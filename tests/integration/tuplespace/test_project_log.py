"""The log in a project's folder: what is written is read, whatever is killed, and nothing that was changed is taken."""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from cantrip_acp.tuplespace.errors import TupleError
from cantrip_acp.tuplespace.project_log import ProjectLog
from cantrip_acp.tuplespace.receipts import make_receipt
from cantrip_acp.tuplespace.stores import open_store
from cantrip_acp.tuplespace.stores.base import TupleStore, encode_work
from cantrip_acp.tuplespace.tuples import Pattern, WorkTuple, new_tuple
from tests.support import processes
from tests.support.command_line import run
from tests.support.tuples import acknowledge
from tests.support.waiting import wait_for

ANY = Pattern()


def work(number: int) -> WorkTuple:
    return new_tuple("build", [{"yool": "a.b"}, {"yool": "a.c"}], map_pos={"n": number})


def end_one(store: TupleStore, *, failed: str | None = None) -> WorkTuple:
    [claim] = store.claim(ANY, "w", lease_s=30)

    def receipt(yool: str, steps: tuple[str, ...] = ()) -> dict[str, object]:
        return make_receipt(
            yool=yool, tuple_id=claim.work.id, started_at="2026-05-19T17:30:00Z", ended_at="2026-05-19T17:31:00Z",
            exit=1 if failed else 0, cost={"usd": 0.5}, error=failed, steps=steps,
        )  # fmt: skip

    first = receipt("a.b")
    store.save_step(claim, 0, first)
    acknowledge(store, claim, receipt("tuple.end", (str(first["id"]),)), failed=failed)
    return claim.work


@pytest.fixture
def space(tmp_path: Path) -> TupleStore:
    store = open_store(tmp_path / "space.db")
    store.put([work(n) for n in range(4)])
    end_one(store)
    end_one(store, failed="no")
    return store


def test_a_log_holds_tuples_and_receipts_and_makes_the_same_space(space: TupleStore, tmp_path: Path) -> None:
    log = ProjectLog(tmp_path / ".catalog")
    changes = log.export(space)
    assert (changes.tuples, changes.receipts) == (4, 4)
    lines = [json.loads(line) for line in (tmp_path / ".catalog/tuples.jsonl").read_text().splitlines()]
    assert [line.get("id") for line in lines if "id" in line] == [work(n).id for n in range(4)]
    for line in lines:
        if "receipt_id" in line:
            digits = line["receipt_id"].removeprefix("sha256:")
            path = tmp_path / ".catalog/receipts" / digits[:2] / f"{digits[2:]}.json"
            assert json.loads(path.read_text())["tuple_id"] == line["tuple_id"]
    other = open_store(tmp_path / "other.db")
    changes = log.load(other)
    assert (changes.tuples, changes.receipts, changes.torn) == (4, 4, ())
    for number, state in enumerate(["done", "failed", "waiting", "waiting"]):
        stored = other.get(work(number).id)
        assert stored is not None
        assert stored.state == state
        assert other.receipts(work(number).id) == space.receipts(work(number).id)
    # Both sides go on, and are kept in step.
    end_one(other)
    assert log.load(other).tuples == 0
    assert (log.export(other).tuples, log.export(other).receipts) == (0, 0)
    assert log.load(space).receipts == 2
    stored = space.get(work(2).id)
    assert stored is not None
    assert stored.state == "done"


def test_only_a_lane(space: TupleStore, tmp_path: Path) -> None:
    space.put([new_tuple("other", [{"yool": "a.b"}])])
    log = ProjectLog(tmp_path / ".catalog")
    assert log.export(space, Pattern({"lane": "other"})).tuples == 1
    assert log.export(space).tuples == 4


def test_a_torn_line_is_left_out_and_the_log_goes_on(space: TupleStore, tmp_path: Path) -> None:
    log = ProjectLog(tmp_path / ".catalog")
    log.export(space)
    path = tmp_path / ".catalog/tuples.jsonl"
    content = path.read_bytes()
    path.write_bytes(content[:-20])
    changes = log.export(space)
    assert changes.receipts + changes.tuples == 1, "what was cut is written again"
    loaded = log.load(open_store(tmp_path / "other.db"))
    assert loaded.tuples == 4
    assert [place.rpartition(":")[0] for place in loaded.torn] == [str(path)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda receipt: {**receipt, "exit": 3}, "is not the receipt sha256:"),
        (lambda receipt: {**receipt, "id": "sha256:" + "0" * 64}, "is not the receipt sha256:"),
        (lambda receipt: [], "is not the receipt"),
    ],
)
def test_a_receipt_that_was_changed_is_refused_and_nothing_is_put(
    space: TupleStore, tmp_path: Path, change: object, message: str
) -> None:
    log = ProjectLog(tmp_path / ".catalog")
    log.export(space)
    path = next((tmp_path / ".catalog/receipts").rglob("*.json"))
    path.write_text(json.dumps(change(json.loads(path.read_text()))))  # type: ignore[operator]
    other = open_store(tmp_path / "other.db")
    with pytest.raises(TupleError, match=rf"tuples\.jsonl:\d+: .*{message}"):
        log.load(other)
    assert other.counts() == []
    path.unlink()
    with pytest.raises(TupleError, match=r"tuples\.jsonl:\d+: the receipt cannot be read"):
        log.load(other)


def test_a_tuple_that_was_changed_is_refused(space: TupleStore, tmp_path: Path) -> None:
    log = ProjectLog(tmp_path / ".catalog")
    log.export(space)
    path = tmp_path / ".catalog/tuples.jsonl"
    path.write_text(path.read_text().replace('"lane":"build"', '"lane":"deploy"', 1))
    with pytest.raises(TupleError, match=r"tuples\.jsonl:1: the tuple's id is"):
        log.load(open_store(tmp_path / "other.db"))


def test_lines_of_earlier_days_are_compressed_and_read(space: TupleStore, tmp_path: Path) -> None:
    log, folder = ProjectLog(tmp_path / ".catalog"), tmp_path / ".catalog"
    log.export(space)
    for day in (1, 2):
        yesterday = time.time() - 86_400 * (3 - day)
        os.utime(folder / "tuples.jsonl", (yesterday, yesterday))
        space.put([work(10 + day)])
        assert log.export(space).tuples == 1
    packed = sorted(folder.glob("tuples-*.jsonl.gz"))
    assert len(packed) == 2
    assert len(gzip.decompress(packed[0].read_bytes()).splitlines()) == 8
    assert log.load(open_store(tmp_path / "other.db")).tuples == 6


def test_a_packed_day_that_is_a_bomb_is_refused(space: TupleStore, tmp_path: Path) -> None:
    log, folder = ProjectLog(tmp_path / ".catalog"), tmp_path / ".catalog"
    log.export(space)
    receipt = next(line for line in (folder / "tuples.jsonl").read_bytes().splitlines(True) if b"receipt_id" in line)
    day = time.strftime("%Y-%m-%d", time.gmtime(time.time() - 86_400))
    packed = folder / f"tuples-{day}.jsonl.gz"
    program = (
        "import resource, sys\nfrom pathlib import Path\nfrom cantrip_acp.tuplespace.project_log import ProjectLog\n"
        "from cantrip_acp.tuplespace.stores import open_store\n"
        "log, store = ProjectLog(Path(sys.argv[1])), open_store(sys.argv[2])\n"
        "resource.setrlimit(resource.RLIMIT_DATA, (150 << 20, 150 << 20))\n"
        "try:\n    getattr(log, sys.argv[3])(store)\n"
        "except Exception as error:\n    print(type(error).__name__, error)\n"
    )

    def tried(what: str) -> str:
        words = [sys.executable, "-c", program, str(folder), str(tmp_path / "space.db"), what]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def pack(begin: bytes, piece: bytes, times: int) -> None:
        with gzip.open(packed, "wb", compresslevel=1) as file:
            file.write(begin)
            for _ in range(times):
                file.write(piece)

    yesterday = time.time() - 86_400
    os.utime(folder / "tuples.jsonl", (yesterday, yesterday))
    log_before = (folder / "tuples.jsonl").read_bytes()
    for begin, piece, times in (
        (b'{"x": "', b"a" * (1 << 20), 200),
        (b"", receipt * 5000, 100),
        (b"", b"\n" * (1 << 20), 200),
    ):
        pack(begin, piece, times)
        for what in ("load", "export"):
            assert re.match(
                rf"TupleError {packed}(:1: the line has more than 4,194,304 bytes|: it unpacks to more)", tried(what)
            )
        assert (folder / "tuples.jsonl").read_bytes() == log_before
    packed.unlink()
    assert tried("export") == ""
    assert gzip.decompress(packed.read_bytes()) == log_before


@pytest.mark.parametrize(
    ("field", "identity"),
    [
        *(("receipt_id", each) for each in ("sha256:../../x", "/etc/passwd", "sha256:" + "g" * 64, ["a"], None, {})),
        *(("tuple_id", each) for each in (["a"], None, {})),
    ],
)
def test_a_line_whose_ids_are_no_ids_is_refused(
    space: TupleStore, tmp_path: Path, identity: object, field: str
) -> None:
    log = ProjectLog(tmp_path / ".catalog")
    log.export(space)
    with (tmp_path / ".catalog/tuples.jsonl").open("a") as lines:
        lines.write(json.dumps({"receipt_id": "sha256:" + "0" * 64, "tuple_id": "x", "step": None, field: identity}))
    with pytest.raises(TupleError, match=r"tuples\.jsonl:\d+: a line of a receipt has receipt_id"):
        log.load(open_store(tmp_path / "other.db"))


def test_exports_that_are_killed_lose_nothing_and_repeat_nothing(tmp_path: Path) -> None:
    store, folder, random_ = open_store(tmp_path / "space.db"), tmp_path / ".catalog", random.Random(7)
    works = [work(n) for n in range(60)]
    store.put(works)
    for _ in range(40):
        end_one(store)
    program = (
        "import sys\nfrom pathlib import Path\nfrom cantrip_acp.tuplespace.project_log import ProjectLog\n"
        "from cantrip_acp.tuplespace.stores import open_store\nprint('ready', flush=True)\n"
        "ProjectLog(Path(sys.argv[2])).export(open_store(sys.argv[1]))\n"
    )
    for attempt in range(6):
        # Two at once: one waits for the other.
        exports = [
            processes.Popen([sys.executable, "-c", program, str(tmp_path / "space.db"), str(folder)], stdout=-1)
            for _ in range(2)
        ]
        for export in exports:
            assert export.stdout is not None
            export.stdout.readline()
        time.sleep(random_.random() * 0.1)
        for export in exports:
            if attempt < 5:
                export.kill()
            export.wait()
            assert export.stdout is not None
            export.stdout.close()
    lines = []
    for line in (folder / "tuples.jsonl").read_text().splitlines():
        try:
            lines.append(json.loads(line))
        except ValueError:
            continue
    identities = [line.get("receipt_id") or line["id"] for line in lines]
    assert len(identities) == len(set(identities)) == 60 + 80
    other = open_store(tmp_path / "other.db")
    assert ProjectLog(folder).load(other).tuples == 60
    assert sum(each.count for each in other.counts() if each.state == "done") == 40


def test_loading_what_is_known_is_no_change(space: TupleStore, tmp_path: Path) -> None:
    """Otherwise a sync that watches would begin anew at once, again and again."""
    log, never = ProjectLog(tmp_path / ".catalog"), threading.Event()
    log.export(space)
    space.wait(0, never)
    log.load(space)
    assert not space.wait(0, never)


def test_what_another_process_adds_during_a_sync_is_loaded_by_the_next_one(tmp_path: Path) -> None:
    log, store = tmp_path / ".catalog", open_store(tmp_path / "space.db")

    def add(number: int) -> None:
        with (log / "tuples.jsonl").open("a") as lines:
            lines.write(json.dumps(work(number).document) + "\n")

    words = [*processes.CANTRIP, "tuple", "sync", str(log), "--watch", "--space", str(tmp_path / "space.db")]
    syncing = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        assert syncing.stdout is not None
        assert "loaded 0" in syncing.stdout.readline()
        add(0)
        assert "loaded 1" in syncing.stdout.readline()
        with ProjectLog(log).locked():
            add(1)
            # It has read the log, and waits for the lock to write it.
            lock = f":{(log / 'tuples.lock').stat().st_ino} "
            wait_for(
                lambda: any("->" in line and lock in line for line in Path("/proc/locks").read_text().splitlines())
            )
            add(2)
        wait_for(lambda: store.get(work(2).id), 20)
    finally:
        store.close()
        syncing.terminate()
        syncing.communicate()


def test_both_schemas_go_through_a_log_and_newer_ones_are_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / ".catalog"
    old, new = new_tuple("build", [{"yool": "a.b"}]), new_tuple("build", [{"yool": "a.b"}], flags={"no_cache": True})
    out = run(
        "tuple",
        "out",
        "-",
        "--space",
        "one.db",
        cwd=tmp_path,
        stdin=f"{json.dumps(old.document)}\n{json.dumps(new.document)}",
    )
    assert out.status == 0, out.err
    assert run("tuple", "export", "--space", "one.db", cwd=tmp_path).status == 0
    newer = json.dumps({"id": "sha256:" + "0" * 64, "schema": "yool-tuple/v3", "lane": "build", "steps": {}})
    stand_in = encode_work(new)[0].decode()
    lines = (folder / "tuples.jsonl").read_text() + f"{newer}\n{stand_in}\n"
    (folder / "tuples.jsonl").write_text(lines)
    loaded = run("tuple", "import", "--space", "two.db", "--json", cwd=tmp_path)
    assert (loaded.status, json.loads(loaded.out)["loaded"]) == (0, {"tuples": 2, "receipts": 0})
    assert "tuples.jsonl:3: the tuple has the schema yool-tuple/v3" in loaded.err
    assert "Upgrade cantrip-acp. The line is left alone" in loaded.err
    # Nor does a later export change the line.
    assert run("tuple", "sync", "--space", "two.db", cwd=tmp_path).status == 0
    assert (folder / "tuples.jsonl").read_text() == lines
    refused = run("tuple", "out", "-", "--space", "two.db", cwd=tmp_path, stdin=newer)
    assert (refused.status, "stdin:1: the tuple has the schema yool-tuple/v3" in refused.err) == (2, True)
