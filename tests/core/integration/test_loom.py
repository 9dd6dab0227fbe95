"""The tests of `tests/core/unit/test_loom.py` that start processes."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest

from cantrip_acp import Loom, LoomError
from cantrip_acp.types.errors import LoomLocked
from tests.core.unit.test_loom import filled, turn
from tests.support import processes

pytestmark = pytest.mark.anyio


def test_one_writer(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with filled(path):
        with pytest.raises(LoomLocked, match="another process"):
            Loom.open(path)
        code = f"from cantrip_acp import Loom; Loom.open({str(path)!r})"
        other = processes.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
        assert "LoomLocked" in other.stderr
        with Loom.open(path, readonly=True) as reader:
            assert len(reader) == 5
            with pytest.raises(LoomError, match="reading only"):
                reader.append(turn(9, None))
    Loom.open(path).close()


WRITER = """
import sys, random
from cantrip_acp import Loom, Turn
from cantrip_acp.types.records import Utterance
loom = Loom.open(sys.argv[1])
parent, n = None, len(loom)
if n: parent = list(loom.turns())[-1].id
while True:
    t = Turn(f"t{n}", parent, "c", "e", "k", sequence=n, utterance=Utterance("x" * random.randrange(20000)))
    loom.append(t)
    sys.stdout.write(f"{n}\\n"); sys.stdout.flush()
    parent, n = t.id, n + 1
"""


def test_kill_9_loses_at_most_the_record_in_flight(tmp_path: Path) -> None:
    path = tmp_path / "a.loom.jsonl"
    told = -1
    for _ in range(5):
        process = processes.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline()
        time.sleep(random.random() * 0.05)
        process.send_signal(signal.SIGKILL)
        rest = process.stdout.read().splitlines()
        process.wait()
        if rest:
            told = int(rest[-1]) if rest[-1].isdigit() else int(rest[-2]) if len(rest) > 1 else told
        with Loom.open(path) as loom:
            kept = list(loom.turns())
        assert [t.sequence for t in kept] == list(range(len(kept)))
        assert len(kept) > told, "what was told as written is there"
        assert all(a.id == b.parent_id for a, b in pairwise(kept))


FULL = """
import resource, signal, sys
from cantrip_acp import Loom, Turn
from cantrip_acp.types.errors import LoomWriteError
from cantrip_acp.types.records import Utterance
loom = Loom.open(sys.argv[1])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, resource.RLIM_INFINITY))
n = 0
try:
    while True:
        loom.append(Turn(f"t{n}", f"t{n-1}" if n else None, "c", "e", "k", utterance=Utterance("x" * 700)))
        n += 1
except LoomWriteError as error:
    print(error)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
loom.append(Turn("after", f"t{n-1}", "c", "e", "k"))
print(n)
"""


def test_a_full_disk_is_an_error_and_hurts_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a"
    ran = processes.run([sys.executable, "-c", FULL, str(path)], capture_output=True, text=True, timeout=60)
    message, count = ran.stdout.splitlines()
    assert "cannot write loom" in message
    assert "Free some disk space" in message
    with Loom.open(path) as loom:
        assert not loom.problems
        assert len(loom) == int(count) + 1
        assert loom.turn("after").parent_id == f"t{int(count) - 1}"
