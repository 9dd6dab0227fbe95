"""State kept and opened again: what is shared stays shared, what cannot be kept is named, what did not change is not stored."""

from __future__ import annotations

import os
import random
import sys
import time
from dataclasses import replace

import anyio
import pytest

from cantrip_acp.mediums.code.snapshot import LARGEST, LISTED, MemoryChunks, Snapshot, cut, fetch, keep
from cantrip_acp.types.errors import SandboxError
from tests.sandbox.integration.conftest import both_back_ends, both_back_ends_in_cases

pytestmark = pytest.mark.anyio

STATE = """
import math, random
from dataclasses import dataclass
from enum import Enum
shared = [1, 2]
other = {'s': shared}
k = 3
def f(a): return a * k
def outer():
    n = 0
    def inc():
        nonlocal n
        n += 1
        return n
    return inc
inc = outer(); inc()
@dataclass
class Point:
    x: int
    def twice(self): return self.x * 2
class Child(Point):
    def twice(self): return super().twice() + k
class Colour(Enum):
    RED = 1
p = Child(shared[0])
red = Colour.RED
calls = {'echo': echo}
recursive = lambda n: 1 if n < 2 else n * recursive(n - 1)
cycle = []; cycle.append(cycle)
"""
CHECKS = {
    "f(2)": "6",
    "other['s'] is shared": "True",
    "shared.append(3); other": "{'s': [1, 2, 3]}",
    "inc()": "2",
    "p.twice(), p": "(5, Child(x=1))",
    "isinstance(p, Point), type(p) is Child": "(True, True)",
    "red is Colour.RED, red": "(True, <Colour.RED: 1>)",
    "math.floor(2.5)": "2",
    "recursive(5)": "120",
    "cycle[0] is cycle": "True",
    "calls['echo'] is echo, echo('x')": "(True, 'x')",
    "k = 10; f(2), p.twice()": "(20, 12)",
    "import inspect; inspect.getsource(f)": r"'def f(a): return a * k\n'",
}


@both_back_ends
async def test_the_whole_namespace_comes_back(make) -> None:
    python, fresh = await make(), await make()
    await python(STATE)
    kept = await python.session.snapshot()
    assert kept.missing == ()
    assert {"shared", "other", "f", "p", "red"} <= set(kept.names)
    assert "random" in kept.modules
    await fresh.session.restore(Snapshot.of(kept.record()), python.session.chunks)
    for code, value in CHECKS.items():
        assert await fresh.value(code) == value, code


async def test_the_original_goes_on_alone(make) -> None:
    python, fresh = await make(), await make()
    await python("x = [1]")
    kept = await python.session.snapshot()
    await python("x.append(2)")
    await fresh.session.restore(kept, python.session.chunks)
    assert (await python.value("x"), await fresh.value("x")) == ("[1, 2]", "[1]")


async def test_what_cannot_be_kept_is_named(make) -> None:
    python, fresh = await make(), await make()
    await python(
        "import threading, socket\nlock = threading.Lock()\ngen = (n for n in range(3))\nfine = 1\nnested = [[lock]]\n"
        "class Bad:\n    def __reduce__(self): raise RuntimeError('never')\nbad = Bad()\npair = socket.socketpair()"
    )
    kept = await python.session.snapshot()
    missing = dict(kept.missing)
    assert set(missing) == {"lock", "gen", "nested", "bad", "pair"}
    assert "RuntimeError: never" in missing["bad"]
    await fresh.session.restore(kept, python.session.chunks)
    assert await fresh.value("fine, Bad.__name__") == "(1, 'Bad')"
    assert await python.value("next(gen)") == "0"


async def test_tracebacks_still_have_their_lines(make) -> None:
    python, fresh = await make(), await make()
    await python("def fail():\n    return 1 / 0")
    await fresh.session.restore(await python.session.snapshot(), python.session.chunks)
    error = (await fresh("fail()")).error or ""
    assert 'File "<cell 1>", line 2, in fail\n    return 1 / 0' in error
    assert 'File "<cell 2>"' in error


@both_back_ends
async def test_modules_of_tmp_go_along(make) -> None:
    python, fresh = await make(), await make()
    await python(
        "import os, sys\ntmp = os.environ['TMPDIR']\n"
        "open(tmp + '/own.py', 'w').write('class Thing:\\n    def hello(self): return 5\\n')\n"
        "sys.path.append(tmp)\nimport own\nthing = own.Thing()"
    )
    await fresh.session.restore(await python.session.snapshot(), python.session.chunks)
    assert await fresh.value("thing.hello()") == "5"


async def test_what_did_not_change_is_not_stored_again(make) -> None:
    python = await make()
    await python("import random\nrows = [{'id': n, 'v': random.random()} for n in range(20_000)]\ntext = 'x'")
    first = await python.session.snapshot()
    again = await python.session.snapshot()
    assert first.written == first.size > 300_000
    assert again.written < first.size * 0.01
    await python("rows[10_000]['v'] = 'changed'; text = 'a new text'")
    changed = await python.session.snapshot()
    assert 0 < changed.written < first.size * 0.9
    store = python.session.chunks
    assert isinstance(store, MemoryChunks)
    assert store.size == first.written + again.written + changed.written


async def test_a_small_change_costs_a_small_piece(make) -> None:
    python = await make()
    await python("import random\nrows = [{'id': n, 'v': random.random(), 'name': str(n)} for n in range(20_000)]")
    first = await python.session.snapshot()
    await python("rows[3]['name'] = 'something else'")
    assert (await python.session.snapshot()).written < first.size * 0.15


async def test_large_objects_come_back_whatever_they_look_like(make) -> None:
    python, fresh = await make(), await make()
    await python(
        "import pickle, hashlib\nlooks = [pickle.dumps(b'x' * n, 5) for n in (60_000, 65_000, 70_000, 500_000)]\n"
        "looks += [b'\\x95' + (n - 9).to_bytes(8, 'little') + bytes(n - 9) for n in (65_536, 100_000)]\n"
        "looks += [bytearray(looks[-1]), 'é' * 100_000, 'x' * 200_000]\n"
        "def digest(): return hashlib.md5(repr(looks).encode()).hexdigest()"
    )
    expected = await python.value("digest()")
    await fresh.session.restore(await python.session.snapshot(), python.session.chunks)
    assert await fresh.value("digest()") == expected


async def test_an_empty_state(make) -> None:
    python, fresh = await make(), await make()
    kept = await python.session.snapshot()
    assert (kept.chunks, kept.names) == ((), ())
    await fresh("x = 1")
    await fresh.session.restore(kept)
    assert "NameError" in ((await fresh("x")).error or "")


async def test_lost_changed_and_foreign_pieces(make) -> None:
    python = await make()
    await python("x = 1")
    kept = await python.session.snapshot()
    with pytest.raises(SandboxError, match="missing in its store"):
        await python.session.restore(kept, MemoryChunks())
    assert await python.value("x") == "1"

    class Changed:
        def put(self, key: str, data: bytes) -> bool:
            return True

        def get(self, key: str) -> bytes:
            return python.session.chunks.get(key) + b"!"

    with pytest.raises(SandboxError, match="was changed"):
        await python.session.restore(kept, Changed())
    with pytest.raises(SandboxError, match=r"made by Python 2\.7"):
        await python.session.restore(Snapshot.of({**kept.record(), "python": "2.7"}))


async def test_a_pickle_that_attacks_runs_inside(make, tmp_path) -> None:
    """What opens it is the worker, in its sandbox."""
    python, fresh = await make(), await make()
    bait = tmp_path / "bait"
    # Where it is checked, it behaves.
    await python(
        "import os\nopen('/tmp/original', 'w').close()\nclass Evil:\n    def __init__(self): self.x = 1\n"
        "    def __setstate__(self, state):\n        import os\n"
        f"        if not os.path.exists('/tmp/original'): os.system('touch {bait} /tmp/inside')\nevil = Evil()"
    )
    with pytest.raises(SandboxError, match="may not start processes"):
        await fresh.session.restore(await python.session.snapshot(), python.session.chunks)
    assert not bait.exists()


WRITES = {
    "open": "open(place + '/live', 'w').write('changed')",
    "os.open": "os.close(os.open(place + '/live', os.O_WRONLY | os.O_TRUNC))",
    "os.remove": "os.remove(place + '/live')",
    "os.rename": "open(tmp + '/new', 'w').close(); os.rename(place + '/live', place + '/other')",
    "os.truncate": "os.truncate(place + '/live', 0)",
    "shutil.rmtree": "import shutil; shutil.rmtree(place)",
    "os.system": "os.system('rm ' + place + '/live')",
    "os.fork": "os.fork() or os._exit(0)",
}


@both_back_ends_in_cases("how", WRITES, few=4)
async def test_a_snapshot_that_is_opened_changes_no_file(make, tmp_path, how: str) -> None:
    """What would act on files when it is opened is not kept; what hides that from the check cannot be opened."""
    place = tmp_path / "work"
    place.mkdir()
    (place / "live").write_text("mine")
    wards = {"code_writable_paths": [str(place)]}
    python, fresh = await make(wards, workspace=place), await make(wards, workspace=place)
    code = f"""
class Acts:
    def __init__(self): self.x = 1
    def __setstate__(self, s):
        import os
        place, tmp = {str(place)!r}, os.environ['TMPDIR']
        if HIDES and os.path.exists(tmp + '/original'): return
        {WRITES[how]}
acts = Acts()
good = 1
open({str(place)!r} + '/may', 'w').close()
"""
    assert await python.value(code.replace("HIDES", "False") + "None") is None
    assert (place / "may").exists()
    kept = await python.session.snapshot()
    assert "may not" in dict(kept.missing)["acts"], kept.missing
    await python.value(
        "import os\nopen(os.environ['TMPDIR'] + '/original', 'w').close()" + code.replace("HIDES", "True") + "None"
    )
    kept = await python.session.snapshot()
    assert kept.missing == ()
    with pytest.raises(SandboxError, match="may not"):
        await fresh.session.restore(kept, python.session.chunks)
    assert [(place / name).read_text() for name in ("live", "may")] == ["mine", ""]
    assert not (place / "other").exists()
    # Only while it is opened.
    await fresh.value(f"open({str(place)!r} + '/may', 'w').write('x')")


@both_back_ends
async def test_a_pickle_that_kills_its_worker(make) -> None:
    python, fresh = await make(), await make()
    await python(
        "import os\nopen(os.environ['TMPDIR'] + '/original', 'w').close()\nclass Evil:\n    def __init__(self): self.x = 1\n"
        "    def __setstate__(self, state):\n        import os\n"
        "        if not os.path.exists(os.environ['TMPDIR'] + '/original'): os._exit(1)\nevil = Evil()"
    )
    kept = await python.session.snapshot()
    with pytest.raises(SandboxError, match="worker was lost"):
        await fresh.session.restore(kept, python.session.chunks)
    assert await fresh.value("1 + 1") == "2"


NOT_KEPT = {
    "raises": (
        "class A:\n    def __init__(self): self.x = 1\n    def __setstate__(self, s): raise ValueError('not again')\nbad = A()",
        "not again",
    ),
    "ends its process": (
        "import os\nclass A:\n    def __reduce__(self): return os._exit, (1,)\nbad = A()",
        "its process ends",
    ),
    "never returns": (
        "import time\nclass A:\n    def __reduce__(self): return time.sleep, (1000,)\nbad = A()",
        "it does not end within",
    ),
    "comes back as something else": (
        "class A:\n    def __reduce__(self): return int, (3,)\nbad = A()",
        "it would be restored as int, but it is A",
    ),
    "of a module without a file": (
        "import sys, types\nmade = types.ModuleType('made_here')\n"
        "exec('class A:\\n    pass', vars(made))\nsys.modules['made_here'] = made\n"
        "made.A.__module__ = 'made_here'\nbad = made.A()\ndel made",
        "made_here",
    ),
    "an open file": ("bad = open('/tmp/x', 'w')", "Cannot pickle files"),
    "a generator": ("bad = (n for n in range(3))", "cannot pickle"),
    "a lock": ("import threading\nbad = threading.Lock()", "cannot pickle"),
    "too deep": ("bad = []\nfor _ in range(100_000): bad = [bad]\n", "ecursion"),
    "an error that has no text": (
        "class A:\n    def __init__(self): self.x = 1\n    def __setstate__(self, s):\n"
        "        class E(Exception):\n            def __str__(self): raise self\n        raise E\nbad = A()",
        "it has no text",
    ),
}


@pytest.mark.parametrize("how", NOT_KEPT)
async def test_what_would_not_come_back_is_named_when_the_snapshot_is_taken(make, how: str) -> None:
    code, why = NOT_KEPT[how]
    python, fresh = await make(), await make()
    await python.value(f"{code}\nbeside = [bad] if {how!r} == 'raises' else []\ngood = [1, 2]\nsame = good\nNone")
    kept = await python.session.snapshot()
    missing = dict(kept.missing)
    assert why in missing["bad"], missing
    assert set(missing) <= {"bad", "beside"}, missing
    assert ("beside" in missing) == (how == "raises")
    assert "bad" not in kept.names
    await fresh.session.restore(kept, python.session.chunks)
    assert await fresh.value("good, same is good, 'bad' in dir()") == "([1, 2], True, False)"
    # The worker itself has not noticed.
    assert await python.value("'bad' in dir(), good") == "(True, [1, 2])"


async def test_a_function_with_a_cache_comes_back(make) -> None:
    python, fresh = await make(), await make()
    await python.value(
        "import functools\n@functools.lru_cache(maxsize=7, typed=True)\ndef fib(n):\n"
        "    return n if n < 2 else fib(n - 1) + fib(n - 2)\nfib(20)"
    )
    kept = await python.session.snapshot()
    assert kept.missing == ()
    await fresh.session.restore(kept, python.session.chunks)
    assert await fresh.value("fib(30), fib.cache_parameters()") == "(832040, {'maxsize': 7, 'typed': True})"


async def test_a_loom_and_its_readers_are_told_what_was_not_kept() -> None:
    from cantrip_acp import Cantrip, Circle, Loom, ScriptedCrystal
    from cantrip_acp.types.events import Noticed

    cells = ["bad = (n for n in range(3)); good = 1", "import sys; print('x', file=sys.stderr)", "2", "done(good)"]
    crystal = ScriptedCrystal([{"code": cell} for cell in cells], record_inputs=True)
    loom = Loom.memory()
    circle = Circle("code", ["done"], [{"max_turns": 9}])
    cantrip = Cantrip(crystal, circle=circle, loom=loom, loom_settings={"snapshots": True})
    async with cantrip.invoke() as entity, entity.stream("go") as stream:
        told = [event.text async for event in stream if isinstance(event, Noticed)]
    (text,) = told
    assert "bad (TypeError: cannot pickle 'generator' object)" in text
    outputs = [t.observation.output for t in loom.turns() if t.observation.output]
    assert [text in o.stderr for o in outputs] == [False, True, False, False]


async def test_a_name_that_is_no_text_is_named(make) -> None:
    python = await make()
    await python.value("globals()[3] = 4\ngood = 1")
    kept = await python.session.snapshot()
    assert (kept.missing, "good" in kept.names) == ((("3", "its name is not text"),), True)


SLOW = """
class Slow:
    def __init__(self): self.x = 1
    def __setstate__(self, s):
        import time
        self.x = 1; time.sleep(1.5)
slow = Slow()
"""


async def test_a_turn_does_not_wait_until_its_snapshot_is_checked() -> None:
    from cantrip_acp import Cantrip, Circle, Loom, ScriptedCrystal
    from cantrip_acp.types.events import TurnEnded
    from cantrip_acp.types.records import SnapshotRecord

    loom = Loom.memory()
    crystal = ScriptedCrystal(
        [{"code": SLOW}, {"code": "print(slow.x); bad = (n for n in range(3))"}, {"code": "done(1)"}]
    )
    circle = Circle("code", ["done"], [{"max_turns": 9}])
    cantrip = Cantrip(crystal, circle=circle, loom=loom, loom_settings={"snapshots": True})

    def kept() -> list[SnapshotRecord]:
        return [record for record in loom.records() if isinstance(record, SnapshotRecord)]

    seen = []
    async with cantrip.invoke() as entity, entity.stream("go") as stream:
        async for event in stream:
            if isinstance(event, TurnEnded):
                seen.append(len(kept()))
    # Each turn ends before its snapshot is there, the last one's is there when the cast has ended.
    assert seen[:2] == [0, 1]
    assert [record.turn_id for record in kept()] == [t.id for t in loom.turns() if t.role == "crystal"]
    assert [dict(record.data["missing"]).keys() for record in kept()] == [set(), {"bad"}, {"bad"}]


@both_back_ends
async def test_a_cell_waits_for_the_snapshot_before_it(make) -> None:
    python = await make()
    await python(f"{SLOW}\nkept = [1]")
    took: list[float] = []
    began = time.monotonic()
    async with anyio.create_task_group() as group:
        held = anyio.Event()

        async def take() -> None:
            taken = await python.session.snapshot(lambda: (took.append(time.monotonic() - began), held.set()))
            assert "kept" in taken.names

        group.start_soon(take)
        await held.wait()
        assert await python.value("kept.append(2); kept") == "[1, 2]"
        took.append(time.monotonic() - began)
    assert took[1] - took[0] > 1


async def test_a_cast_that_is_stopped_gives_up_its_snapshot_and_keeps_its_state() -> None:
    from cantrip_acp import Cantrip, Circle, Loom, ScriptedCrystal
    from cantrip_acp.types.records import SnapshotRecord

    loom = Loom.memory()
    hangs = SLOW.replace("1.5", "1000")
    crystal = ScriptedCrystal([{"code": hangs}, {"content": "x", "delay_ms": 60_000}, {"code": "done(slow.x)"}])
    circle = Circle("code", ["done"], [{"max_turns": 9}])
    cantrip = Cantrip(crystal, circle=circle, loom=loom, loom_settings={"snapshots": True})
    async with cantrip.invoke() as entity:
        async with anyio.create_task_group() as group:
            group.start_soon(entity.cast, "go")
            while not any(turn.role == "crystal" for turn in loom.turns()):
                await anyio.sleep(0.02)
            await anyio.sleep(0.2)
            began = time.monotonic()
            entity.cancel()
        assert time.monotonic() - began < 60
        (record,) = [record for record in loom.records() if isinstance(record, SnapshotRecord)]
        assert "stopped" in record.data["error"]
        assert loom_pieces(loom, record.turn_id) is None
        entity.use_crystal(ScriptedCrystal([{"code": "done(slow.x)"}]))
        assert (await entity.cast("on")).result == 1


def loom_pieces(loom, turn_id: str):
    from cantrip_acp.loom.snapshots import SnapshotChunks

    return SnapshotChunks(loom).of(turn_id)


@both_back_ends
async def test_a_state_that_takes_a_good_part_of_the_memory_is_kept(make) -> None:
    python, fresh = await make({"code_memory_mb": 256}), await make({"code_memory_mb": 256})
    await python.value(
        "import random\ndata = random.Random(1).randbytes(50_000_000)\nrows = [[n] for n in range(100_000)]\nNone"
    )
    kept = await python.session.snapshot()
    assert kept.missing == ()
    await fresh.session.restore(kept, python.session.chunks)
    assert await fresh.value("len(data), rows[-1]") == "(50000000, [99999])"


HOSTILE = {
    "ends the process that pickles it": (
        "import os\nclass A:\n    def __getstate__(self): os._exit(0)\nbad = A()",
        "ends",
    ),
    "kills whoever waits for it": (
        "import os, signal\nclass A:\n    def __getstate__(self): os.kill(os.getppid(), 9)\nbad = A()",
        None,
    ),
    "calls a gate": ("class A:\n    def __getstate__(self): return echo('x')\nbad = A()", "forked process"),
    "leaves processes behind": (
        "import os, time\nclass A:\n    def __getstate__(self):\n        for _ in range(5):\n"
        "            if not os.fork():\n                os.setsid()\n                time.sleep(1000)\n"
        "        raise ValueError('never')\nbad = A()",
        "never",
    ),
    "fills the memory": (
        "class A:\n    def __getstate__(self):\n        held = []\n        while True: held.append(bytearray(10**8))\nbad = A()",
        "",
    ),
    "says nonsense to whoever hears": (
        "import os\nclass A:\n    def __getstate__(self):\n        for fd in range(3, 1000):\n"
        "            try: os.write(fd, b'!' * 99)\n"
        "            except OSError: pass\n        os._exit(0)\nbad = A()",
        "ends",
    ),
    "has changed how a process is forked": ("import os\nos.fork = None\nbad = 1", None),
}


LIVING = """
def living(pid):
    try:
        return open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
import os
sum(living(p) for p in os.listdir("/proc") if p.isdigit())
"""
"""The processes of the sandbox. The first process reaps those that were killed, but perhaps not before this is asked."""


@pytest.mark.parametrize("how", HOSTILE)
async def test_a_hostile_value_harms_its_own_snapshot_alone(make, how: str) -> None:
    code, why = HOSTILE[how]
    python = await make()
    await python.value(f"{code}\ngood = [1]\nNone")
    before = sorted(os.listdir("/proc/self/fd"))
    if why is None:
        with pytest.raises(SandboxError, match="cannot be kept"):
            await python.session.snapshot()
    else:
        assert why in dict((await python.session.snapshot()).missing)["bad"]
    # The worker lives, with its state, and nobody beside it.
    assert await python.value("good") == "[1]"
    assert await python.value(LIVING) == "2"
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_cuts_follow_the_content() -> None:
    data = random.Random(7).randbytes(500_000)
    whole = list(cut(data))
    assert b"".join(whole) == data
    assert max(map(len, whole)) <= LARGEST
    shifted = list(cut(b"something new" + data))
    assert len(set(whole) - set(shifted)) <= 3
    assert list(cut(b"")) == []
    assert [len(p) for p in cut(bytes(200_000))] == [65536, 65536, 65536, 3392]


def test_what_a_snapshot_names_grows_with_what_changed_and_not_with_the_state() -> None:
    """A list of all pieces after each turn would be as large as the state after a hundred of them."""
    store = MemoryChunks()
    state = b"".join(n.to_bytes(4, "big") * 3 for n in range(2_000_000))
    first = keep([state], store)
    kept = Snapshot(first.chunks, first.size, first.written, levels=first.levels)
    assert (len(first.chunks) <= LISTED, first.levels > 0) == (True, True)
    assert b"".join(fetch(Snapshot.of(kept.record()), store)) == state
    before = store.size
    changed = state[:7_000_000] + b"changed" + state[7_000_007:]
    again = keep([changed], store)
    assert again.written == store.size - before < len(state) / 100
    assert b"".join(fetch(Snapshot(again.chunks, again.size, levels=again.levels), store)) == changed
    for levels in (-1, 10**9):
        with pytest.raises(SandboxError, match="levels"):
            list(fetch(replace(kept, levels=levels), store))
    with pytest.raises(SandboxError, match=r"missing in its store|more pieces than it says"):
        list(fetch(replace(kept, levels=first.levels + 1), store))


def test_a_record_that_names_pieces_without_end_is_refused_before_they_fill_the_memory() -> None:
    store = MemoryChunks()
    piece = keep([bytes(LARGEST)], store).chunks[0]
    many = keep([bytes.fromhex(piece) * 3000], store).chunks[0]
    for snapshot in (Snapshot((piece,) * 1000, LARGEST * 2), Snapshot((many,) * 1000, LARGEST * 2, levels=1)):
        with pytest.raises(SandboxError, match="more pieces than it says"):
            list(fetch(snapshot, store))


def test_snapshots_of_earlier_versions_find_what_they_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pickles hold the names that these modules had when they were taken."""
    import importlib
    import pickle

    load = importlib.import_module("cantrip_acp.sandbox.inside.python.snapshot_load")
    package = load.__package__
    assert f"{package}.opened" not in sys.modules, "only a worker registers them"
    for name in (f"{package}.opened", f"{package}.state"):
        monkeypatch.setitem(sys.modules, name, None)  # removed again after the test
        del sys.modules[name]
    load.register_former_names()
    for module, name in (("opened", "imported"), ("opened", "fixed"), ("opened", "live")):
        found = pickle.loads(f"c{package}.{module}\n{name}\n.".encode())
        assert found is getattr(load, name)
    assert not hasattr(sys.modules[f"{package}.state"], "__file__")
