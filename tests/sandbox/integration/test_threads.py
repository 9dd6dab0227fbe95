"""Several threads of one process, each with an event loop of its own, that start their first sandbox at the same time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import json, sys, threading
from pathlib import Path
import anyio
from cantrip_acp import Cantrip, Call, Circle
from cantrip_acp.crystals.scripted import ScriptedCrystal
from cantrip_acp.sandbox.launch import runtime_dir as runtime

count, medium, base = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
together = threading.Barrier(count)
made, original = [], runtime.Runtime.__init__
def counted(self, *args, **more):
    made.append(1)
    original(self, *args, **more)
runtime.Runtime.__init__ = counted
results = {}

async def cast(number):
    workspace = base / str(number)
    workspace.mkdir()
    call = ({"name": "bash", "args": {"command": f"cantrip_done {number} && sleep 5"}} if medium == "bash"
            else {"name": "python", "args": {"code": f"done({number})"}})
    crystal = ScriptedCrystal(responses=[{"tool_calls": [{"id": "t", "gate": call["name"], "args": call["args"]}]}])
    circle = Circle(medium, ["done"], {"max_turns": 2}, workspace=workspace)
    together.wait()
    return (await Cantrip(crystal, Call(), circle).cast("go")).result

def work(number):
    try:
        results[number] = str(anyio.run(cast, number))
    except BaseException as error:
        results[number] = f"{type(error).__name__}: {error}"

threads = [threading.Thread(target=work, args=(n,)) for n in range(count)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(json.dumps({"made": len(made), "results": results}))
"""


def run(count: int, medium: str, folder: Path) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(count), medium, str(folder)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_threads_share_one_runtime(tmp_path: Path) -> None:
    for medium in ("bash", "code"):
        folder = tmp_path / medium
        folder.mkdir()
        assert run(6, medium, folder) == {"made": 1, "results": {str(n): str(n) for n in range(6)}}
