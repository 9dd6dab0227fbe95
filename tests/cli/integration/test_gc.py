"""`cantrip gc`: says what it would do, does it when it is told to, one at a time, and is killed without harm."""

from __future__ import annotations

import fcntl
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cantrip_acp import Loom, Turn
from cantrip_acp.types.errors import LoomLocked
from tests.support import processes
from tests.support.aged_looms import age, keep, names
from tests.support.command_line import CANTRIP, run


@pytest.fixture
def state(tmp_path: Path) -> Path:
    state = tmp_path / "state"
    for name, days in (("a", 100), ("b", 95), ("c", 1)):
        keep(state, name, days=days, size=1000)
    keep(state, "d", days=1, after="t_b_1")
    return state


def gc(state: Path, *more: str, **env: str):  # type: ignore[no-untyped-def]
    return run("gc", "--state-dir", state, *more, cwd=state, CANTRIP_CONFIG_DIR=str(state / "config"), **env)


def test_it_says_first_and_does_when_told_to(state: Path) -> None:
    said = gc(state)
    assert said.status == 0
    lines = said.out.splitlines()
    assert lines[0].startswith("would delete  looms/a.loom.jsonl  ")
    assert lines[0].endswith("last written 100 days ago")
    assert lines[1].endswith("d.loom.jsonl goes on from it (last written 95 days ago)")
    assert lines[2].startswith("would free ")
    assert lines[3] == "nothing was deleted; use --yes to delete"
    assert gc(state, "--dry-run").out == said.out
    assert names(state) == ["a", "b", "c", "d"]
    done = gc(state, "--yes")
    assert done.status == 0
    assert done.out.startswith("deleted  looms/a.loom.jsonl")
    assert "3 looms kept" in done.out
    assert names(state) == ["b", "c", "d"]
    assert "nothing to delete in" in gc(state, "--yes", "--older-than", "never").out


def test_as_data(state: Path) -> None:
    (said,) = gc(state, "--json", "--max-size", "1kB").lines
    assert (said["dry_run"], said["looms"]) == (True, 4)
    assert said["rules"] == {"older_than_seconds": 7_776_000, "max_size_bytes": 1000}
    assert [each["name"] for each in said["would_remove"]] == [f"looms/{n}.loom.jsonl" for n in "abcd"]
    assert said["bytes"] == said["loom_bytes"] == sum(each["bytes"] for each in said["would_remove"])
    (done,) = gc(state, "--json", "--yes").lines
    assert [each["name"] for each in done["removed"]] == ["looms/a.loom.jsonl"]
    assert [each["because"] for each in done["stays"]] == ["d.loom.jsonl goes on from it"]
    assert (done["failed"], done["notes"]) == ([], [])


def test_what_the_user_set_once(state: Path) -> None:
    (state / "config").mkdir()
    settings = state / "config" / "settings.toml"
    settings.write_text('[gc]\nolder_than = "97d"\nmax_size = "1GB"\n')
    (said,) = gc(state, "--json").lines
    assert [each["name"] for each in said["would_remove"]] == ["looms/a.loom.jsonl"]
    assert (said["rules"]["max_size_bytes"], said["stays"]) == (10**9, [])
    settings.write_text("[gc]\nolder = 1\n")
    wrong = gc(state)
    assert (wrong.status, wrong.err) == (
        2,
        f"cantrip: {settings}:2:1: gc.older: is not known; there are older_than and max_size\n    2 | older = 1\n      | ^\n",
    )


def test_wrong_words(state: Path) -> None:
    for words, said in (
        (("--older-than", "soon"), "'soon' is not an age; write a number and its unit"),
        (("--max-size", "much"), "'much' is not a size"),
        (("--yes", "--dry-run"), "cannot be used together"),
    ):
        done = gc(state, *words)
        assert done.status == 2
        assert said in done.err
    assert names(state) == ["a", "b", "c", "d"]


def test_a_loom_is_kept(state: Path) -> None:
    kept = run("loom", "keep", "a", "--state-dir", state, cwd=state)
    assert (kept.status, kept.out) == (0, "a.loom.jsonl  kept\n")
    assert "kept  looms/a.loom.jsonl" in gc(state, "--yes").out
    assert names(state) == ["a", "b", "c", "d"]
    assert run("loom", "keep", "a", "--no", "--state-dir", state, cwd=state).out == "a.loom.jsonl  mark removed\n"
    gc(state, "--yes")
    assert names(state) == ["b", "c", "d"]
    outside = keep(state / "elsewhere", "x")
    refused = run("loom", "keep", outside, "--state-dir", state, cwd=state)
    assert refused.status == 2
    assert "needs no mark" in refused.err


def test_names_are_shown_harmless(state: Path) -> None:
    path = keep(state, "evil\x1b]0;owned\x07\n", days=200)
    said = gc(state)
    assert "\x1b" not in said.out
    assert "evil" in said.out
    assert len(said.out.splitlines()) == 5
    assert path.exists()


def test_one_at_a_time(state: Path) -> None:
    with open(state / "gc.lock", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        done = gc(state, "--yes")
        assert (done.status, done.err) == (
            1,
            f"cantrip: another cantrip gc is running for {state}; wait until it has finished\n",
        )
        assert gc(state).status == 0, "looking is always allowed"
    both = [
        subprocess.Popen([*CANTRIP, "gc", "--yes", "--state-dir", str(state)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(2)
    ]  # fmt: skip
    assert {process.wait(60) for process in both} <= {0, 1}
    assert names(state) == ["b", "c", "d"]


SWEEPER = """
import sys
from pathlib import Path
from cantrip_acp.retention.plan import delete_items, locked, make_plan
from cantrip_acp.retention.rules import Rules
with locked(Path(sys.argv[1])):
    plan = make_plan(Path(sys.argv[1]), Rules(1.0))
    print("ready", flush=True)
    for item in delete_items(plan):
        pass
print("done", flush=True)
"""


def test_a_kill_in_the_middle_leaves_every_loom_whole_or_gone(tmp_path: Path) -> None:
    state, count = tmp_path / "state", 150
    first = keep(state, "l0", days=1, size=2000)
    for n in range(1, count):
        path = first.with_name(f"l{n}.loom.jsonl")
        path.write_bytes(first.read_bytes())
        path.with_name(path.name + ".torn-1").touch()
        age(path, 1)
    for _ in range(8):
        with processes.Popen([sys.executable, "-c", SWEEPER, str(state)], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(random.random() * 0.01)
            process.kill()
        for name in names(state):
            with Loom.open(state / "looms" / f"{name}.loom.jsonl", readonly=True) as loom:
                assert (len(loom), loom.problems) == (2, ())
    processes.run([sys.executable, "-c", SWEEPER, str(state)], check=True, stdout=subprocess.DEVNULL)
    assert list((state / "looms").iterdir()) == []


WRITER = """
import sys
from cantrip_acp import Loom, LoomError, Turn
done = 0
for n in range(int(sys.argv[2])):
    try:
        with Loom.open(sys.argv[1]) as loom:
            loom.append(Turn(f"n{n}", None, "c", "e", None))
            print(n, flush=True)
    except LoomError as error:
        assert "is being written by another process" in str(error), error
"""


def test_who_writes_meanwhile_loses_nothing(tmp_path: Path) -> None:
    state = tmp_path / "state"
    path = keep(state, "a", days=100)
    kept: set[int] = set()
    removed = 0
    with processes.Popen(
        [sys.executable, "-c", WRITER, str(path), "300"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        from cantrip_acp.retention.plan import delete_items, make_plan
        from cantrip_acp.retention.rules import Rules

        while process.poll() is None:
            if path.exists():
                age(path, 100)
            plan = make_plan(state, Rules(1.0))
            before = [int(t[1:]) for t in _turns(path)]
            for _, why, _ in delete_items(plan):
                if why is None:
                    removed += 1
                    kept.update(before)
            plan.close()
        told = [int(line) for line in process.stdout]
        assert process.returncode == 0
    assert told
    # What was removed was seen before it was: nothing that was written since then went with it.
    assert set(told) <= kept | {int(t[1:]) for t in _turns(path)}


def _turns(path: Path) -> list[str]:
    try:
        with Loom.open(path, readonly=True) as loom:
            return [t.id for t in loom.turns() if t.id.startswith("n")]
    except Exception:
        return []


def test_a_loom_that_is_being_removed_is_locked(state: Path) -> None:
    from cantrip_acp.files.folder import Folder
    from cantrip_acp.retention.looms import list_looms, locked

    folder = Folder.open(state / "looms")
    assert folder is not None
    found = next(each for each in list_looms(folder) if each.name.startswith("a"))
    with locked(folder, found), pytest.raises(LoomLocked):
        Loom.open(state / "looms" / "a.loom.jsonl")
    folder.close()
    with Loom.open(state / "looms" / "a.loom.jsonl") as loom:
        loom.append(Turn("t", None, "c", "e", None))


def test_a_folder_that_is_not_there_is_no_empty_one(tmp_path: Path) -> None:
    said = run("gc", "--state-dir", tmp_path / "statte", cwd=tmp_path)
    assert said.status == 2
    assert f"the folder {tmp_path / 'statte'} does not exist" in said.err


def test_large_results_of_a_tuple_space_are_purged_and_their_receipts_are_kept(state: Path) -> None:
    from cantrip_acp.tuplespace.stores import open_store
    from cantrip_acp.tuplespace.tuples import new_tuple

    assert "space" not in gc(state, "--json").lines[0]
    assert not (state / "tuples.db").exists()
    store = open_store(state / "tuples.db")
    ids = [store.put_artifact(bytes([number]) * 3_000_000, "x") for number in range(4)]
    call = new_tuple("gc.urgent", [{"yool": "fs.gc.run", "args": {"folder": str(state), "free_mb": 3}}])
    store.put([call])
    # What was put lately is in the log beside the file.
    before = sum(each.stat().st_size for each in state.glob("tuples.db*"))
    (said,) = gc(state, "--json", "--max-mb", "7", YOOL_TUPLE_HOT_DAYS="9").lines
    assert said["space"] == {
        "location": f"sqlite:{state}/tuples.db", "rules": {"hot_days": 9, "warm_days": 365, "max_mb": 7},
        "bodies": 2, "bytes": 6_000_000, "excerpts": 0, "bodies_left": 2, "bytes_left": 6_000_000, "answered": 0,
    }  # fmt: skip
    said = gc(state, "--dry-run", "--max-mb", "7").out
    assert "with --yes would purge 2 large results (6.0 MB) and 0 excerpts of sqlite:" in said
    assert sum((artifact := store.artifact(each)) is not None and artifact.body is not None for each in ids) == 4
    done = gc(state, "--yes", "--max-mb", "7").out
    assert "purged 2 large results (6.0 MB)" in done
    assert "1 calls for space answered" in done
    assert store.ended([call.id])[call.id]["result"]["freed_bytes"] > 6_000_000
    store.close()
    assert sum(each.stat().st_size for each in state.glob("tuples.db*")) < before - 5_000_000
    wrong = gc(state, YOOL_TUPLE_MAX_MB="much")
    assert (wrong.status, wrong.err) == (
        2,
        "cantrip: YOOL_TUPLE_MAX_MB must be a whole number from 1 to 100000000, not 'much'\n",
    )
