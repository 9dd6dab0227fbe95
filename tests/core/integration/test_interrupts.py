"""Ctrl-C while a program casts: a KeyboardInterrupt at any moment, nothing that still runs, and a whole loom."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from cantrip_acp import Loom
from tests.support.processes import run

# Each round sends a real SIGINT at another moment, in the same process, so that many moments need no many starts.
PROGRAM = """
import asyncio, json, os, random, signal, sys, threading, time
from cantrip_acp import Cantrip, Loom, ScriptedCrystal

way, file, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
loom = Loom.open(file)
script = [{"content": "x", "chunks": ["a", "b"], "delay_ms": 4, "repeat": True}]
cantrip = Cantrip(ScriptedCrystal(script), max_turns=2, loom=loom)
before = set(threading.enumerate())

def leave_early():
    for item in cantrip.cast_batch(["a"] * 6, concurrency=3):
        break

def iterate(work=0):
    for item in cantrip.cast_batch(["a"] * 5000, concurrency=3):
        for _ in range(work):
            pass

async def async_iterate(pause):
    armed.set()
    async for item in cantrip.cast_batch(["a"] * 5000, concurrency=3):
        await asyncio.sleep(pause)

async def awaited():
    armed.set()
    await cantrip.cast_batch(["a"] * 5000, concurrency=3)

async def stream():
    armed.set()
    while True:
        async for event in cantrip.cast_stream("a"):
            pass

once = {
    "for": iterate,
    "for, busy": lambda: iterate(20_000),
    "for, left early": leave_early,
    "async for": lambda: asyncio.run(async_iterate(0.001)),
    "await": lambda: asyncio.run(awaited()),
    "cast_sync": lambda: cantrip.cast_sync("a"),
    "stream": lambda: asyncio.run(stream()),
}[way]
went = []
random.seed(7)
for number in range(rounds):
    # The first moments are those of the start.
    moment = number * 0.0007 if number < rounds // 2 else random.uniform(0, 0.15)
    armed = threading.Event()

    def interrupt():
        armed.wait()
        time.sleep(moment)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        # The start and the end of an event loop of the program's own belong to asyncio.
        if way not in ("async for", "await", "stream"):
            armed.set()
        while True:
            once()
    except KeyboardInterrupt:
        went.append("interrupted")
    except BaseException as error:
        went.append(repr(error))
    thread.join()
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        went.append("the handler of the program is lost")
    still = [each.name for each in set(threading.enumerate()) - before if not each.daemon]
    if still:
        went.append(f"still there: {still}")
print(json.dumps(went))
"""


@pytest.mark.parametrize("way", ["for", "for, busy", "for, left early", "async for", "await", "cast_sync", "stream"])
def test_an_interrupt_is_a_keyboard_interrupt_at_any_moment(way: str, tmp_path: Path) -> None:
    file = tmp_path / "batch.loom.jsonl"
    rounds = 24
    ran = run([sys.executable, "-c", PROGRAM, way, str(file), str(rounds)], capture_output=True, text=True)
    assert ran.stderr == ""
    assert json.loads(ran.stdout) == ["interrupted"] * rounds
    with Loom.open(file) as loom:
        ends = [end.reason if end is not None else None for _, end in loom.casts()]
        assert len(ends) >= rounds // 2
        assert set(ends) <= {"text", "cancelled"}
        assert loom.check() == []


RESUMED = """
import os, signal, sys, threading
from cantrip_acp import Cantrip, Loom, ScriptedCrystal

script = [{"content": "x", "delay_ms": 20, "repeat": True}]
loom = Loom.open(sys.argv[1])
cantrip = Cantrip(ScriptedCrystal(script), max_turns=2, loom=loom)
seen = 0
for item in cantrip.cast_batch([f"intent {n}" for n in range(30)], concurrency=3, resume=True):
    seen += 1
    if seen == 10 and sys.argv[2] != "end":
        os.kill(os.getpid(), getattr(signal, sys.argv[2]))
print(seen, len(loom.casts()))
"""


@pytest.mark.parametrize("ending", ["SIGINT", "SIGKILL"])
def test_a_batch_goes_on_where_a_process_was_ended(ending: str, tmp_path: Path) -> None:
    file = tmp_path / "batch.loom.jsonl"
    first = run([sys.executable, "-c", RESUMED, str(file), ending], capture_output=True, text=True)
    assert first.returncode != 0
    with Loom.open(file) as loom:
        cut = sum(1 for _, end in loom.casts() if end is None or end.reason == "cancelled")
        ended = {start.intent for start, end in loom.casts() if end is not None and end.reason == "text"}
        assert len(ended) >= 10
    second = run([sys.executable, "-c", RESUMED, str(file), "end"], capture_output=True, text=True)
    assert (second.stderr, second.returncode) == ("", 0)
    with Loom.open(file) as loom:
        casts = loom.casts()
        assert second.stdout.split() == ["30", str(len(casts))]
        # What ended was not cast again; what was cut off went on as a cast of the same entity.
        assert len(casts) == 30 + cut
        assert len({start.entity_id for start, _ in casts}) == 30
        assert sum(start.intent in ended for start, _ in casts) == len(ended)
        assert loom.check() == []
