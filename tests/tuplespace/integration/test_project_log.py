"""The log in a project's folder: what is written is read, whatever is killed, and nothing that was changed is taken."""

from __future__ import annotations

import gzip
import hashlib
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
from cantrip_acp.tuplespace.receipts import is_genuine, make_receipt
from cantrip_acp.tuplespace.stores import open_store
from cantrip_acp.tuplespace.stores.base import encode_work
from cantrip_acp.tuplespace.stores.sql import TupleStore
from cantrip_acp.tuplespace.tuples import Pattern, WorkTuple, new_tuple, tuple_id
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


def of_another_program(folder: Path) -> tuple[dict[str, object], list[dict[str, object]]]:
    """A tuple with two receipts as the format's own algorithms make them, in a log in the folder."""

    def sha(text: str) -> str:
        return "sha256:" + hashlib.sha256(text.encode()).hexdigest()

    content: dict[str, object] = {
        "schema": "yool-tuple/v1", "lane": "build", "map_pos": {"repo": "Größe"}, "src_ptr": ["commit://abc123"],
        "payload": [{"yool": "agent.lint.dotnet", "args": {}}, {"yool": "agent.test.dotnet", "args": {"filter": "Unit"}}],
        "receipts": [], "parent_id": None, "created_at": "2026-05-19T17:30:00Z",
    }  # fmt: skip
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    document = {**content, "id": sha(canonical)}
    receipts: list[dict[str, object]] = []
    for yool in ("agent.lint.dotnet", "agent.test.dotnet", "tuple.end"):
        receipt: dict[str, object] = {
            "yool": yool, "tuple_id": document["id"], "started_at": "2026-05-19T17:30:00Z",
            "ended_at": "2026-05-19T17:31:00Z", "exit": 0, "stdout_sha": sha("out"), "stderr_sha": sha(""),
            "artifacts": [{"kind": "junit", "path": "evidence/junit.xml"}], "cost": {"usd": 0.01},
        }  # fmt: skip
        receipt["id"] = sha(f"{yool}0{sha('out')}{sha('')}evidence/junit.xml")
        if yool == "tuple.end":
            receipt["steps"] = [each["id"] for each in receipts]
        receipts.append(receipt)
    lines = [document]
    for step, receipt in zip((0, 1, None), receipts, strict=True):
        digits = str(receipt["id"]).removeprefix("sha256:")
        path = folder / "receipts" / digits[:2] / f"{digits[2:]}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(receipt))
        lines.append({"receipt_id": receipt["id"], "tuple_id": document["id"], "step": step})
    (folder / "tuples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return document, receipts


def test_a_tuple_whose_id_was_made_in_another_way_is_put_and_the_output_says_as_what(tmp_path: Path) -> None:
    document, _ = of_another_program(tmp_path / "theirs")
    ours = tuple_id(document)
    assert ours != document["id"]
    put = run("tuple", "out", "-", "--space", "one.db", cwd=tmp_path, stdin=json.dumps(document))
    assert put.out == f"{ours}  put into lane build  (its id was {document['id']})\n"
    # It is the same work as the tuple with our id, and is put once.
    again = json.dumps({**document, "id": ours})
    known = run("tuple", "out", "-", "--json", "--space", "one.db", cwd=tmp_path, stdin=again)
    assert json.loads(known.out) == {"tuple_id": ours, "lane": "build", "new": False}
    given = run("tuple", "out", "-", "--json", "--space", "one.db", cwd=tmp_path, stdin=json.dumps(document))
    assert json.loads(given.out)["given_id"] == document["id"]
    # An id that fits by neither rule is refused.
    for changed in ({**document, "lane": "test"}, {**document, "created_at": "2026-05-19T17:30:01Z"}):
        refused = run("tuple", "out", "-", "--space", "one.db", cwd=tmp_path, stdin=json.dumps(changed))
        assert (refused.status, "but its content has the id sha256:" in refused.err) == (2, True)


def test_a_log_of_another_program_is_loaded_with_its_receipts(tmp_path: Path) -> None:
    document, receipts = of_another_program(tmp_path / ".catalog")
    ours = tuple_id(document)
    loaded = run("tuple", "import", "--space", "one.db", cwd=tmp_path)
    assert loaded.out.splitlines() == [".catalog  loaded 1 tuples, 3 receipts", f"{document['id']} is {ours} here"]
    store = open_store(tmp_path / "one.db")
    stored = store.get(ours)
    assert stored is not None
    assert stored.state == "done"
    found = [each.document for each in store.receipts(ours)]
    assert [each["source_id"] for each in found] == [each["id"] for each in receipts]
    assert all(each["tuple_id"] == ours and is_genuine(each) for each in found)
    assert found[-1]["steps"] == [each["id"] for each in found[:2]]
    store.close()
    # Again, and after our export into the same log: it is known.
    assert "loaded 0 tuples, 0 receipts" in run("tuple", "sync", "--space", "one.db", cwd=tmp_path).out
    other = run("tuple", "import", "--space", "two.db", "--json", cwd=tmp_path)
    assert json.loads(other.out)["loaded"] == {"tuples": 1, "receipts": 3}
    assert json.loads(other.out)["renamed"] == {document["id"]: ours}
    # A receipt that was changed is refused by that rule, too.
    digits = str(receipts[0]["id"]).removeprefix("sha256:")
    path = tmp_path / ".catalog/receipts" / digits[:2] / f"{digits[2:]}.json"
    path.write_text(json.dumps({**receipts[0], "exit": 1}))
    refused = run("tuple", "import", "--space", "three.db", cwd=tmp_path)
    assert (refused.status, "its content has another hash" in refused.err) == (2, True)
