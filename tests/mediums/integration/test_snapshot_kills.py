"""A process that is killed while it keeps snapshots: what the loom offers afterwards opens, and nothing runs on."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

import pytest

from cantrip_acp import Cantrip, Circle, Loom, ScriptedCrystal
from cantrip_acp.loom.snapshots import SnapshotChunks
from cantrip_acp.types.errors import SandboxError
from tests.support import processes

pytestmark = pytest.mark.anyio

SCRIPT = """
import sys, anyio
from cantrip_acp import Cantrip, Circle, Loom, ScriptedCrystal
cells = ["n = 0\\nclass Slow:\\n    def __init__(self): self.x = 1\\n    def __setstate__(self, s):\\n"
         "        import time\\n        time.sleep(0.1)\\nslow = Slow()\\nimport random\\ndata = random.randbytes(300_000)"]
cells += ["n += 1"] * 500
with Loom.open(sys.argv[1]) as loom:
    circle = Circle("code", ["done"], [{"max_turns": 1000}])
    crystal = ScriptedCrystal([{"code": cell} for cell in cells])
    cantrip = Cantrip(crystal, circle=circle, loom=loom, loom_settings={"snapshots": True})
    anyio.run(cantrip.cast, "count")
"""


def below(pid: int) -> set[int]:
    """The processes that come of one."""
    found: set[int] = set()
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            found |= {child} | below(child)
    return found


@pytest.mark.timeout(300)
async def test_a_kill_at_any_moment(tmp_path: Path) -> None:
    chance = random.Random(5)
    offered = 0
    for number in range(6):
        path = tmp_path / f"{number}.loom.jsonl"
        process = processes.Popen([sys.executable, "-c", SCRIPT, str(path)], start_new_session=True)
        try:
            end = time.monotonic() + 60
            while time.monotonic() < end and (not path.exists() or b'"type":"snapshot"' not in path.read_bytes()):
                time.sleep(0.05)
            time.sleep(chance.random())
            started = below(process.pid)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        assert started
        end = time.monotonic() + 60
        while time.monotonic() < end and any(os.path.exists(f"/proc/{pid}") for pid in started):
            time.sleep(0.05)
        assert not [pid for pid in started if os.path.exists(f"/proc/{pid}")]
        with Loom.open(path) as loom:
            kept = SnapshotChunks(loom)
            turns = [turn for turn in loom.turns() if turn.role == "crystal"]
            for at in sorted({0, len(turns) - 2, len(turns) - 1} & set(range(len(turns)))):
                cantrip = Cantrip(
                    ScriptedCrystal([{"code": "done([n, slow.__class__.__name__, len(data)])"}]),
                    circle=Circle("code", ["done"], [{"max_turns": 9}]),
                    loom=loom,
                )
                if kept.of(turns[at].id) is None:
                    with pytest.raises(SandboxError, match="there is no snapshot"):
                        await cantrip.fork(turns[at].id)
                    continue
                offered += 1
                async with await cantrip.fork(turns[at].id) as entity:
                    assert (await entity.cast("on")).result == [at, "Slow", 300_000]
    assert offered >= 6
