"""What an earlier cell left running cannot call gates as if it were the cell that runs; what belongs to that cell can."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.anyio

WORDS = "what an earlier cell left running cannot call gates"

LATER = """
import time
said = []
def call(say=echo):
    while not started:
        time.sleep(0.005)
    try:
        said.append(say("from the first cell"))
    except GateError as error:
        said.append(str(error))
started = []
"""

WAIT = """
started.append(1)
import time
for _ in range(6000):
    if said: break
    time.sleep(0.005)
said, echo("from the second cell")
"""

THREADS = {
    "threading": "import threading; threading.Thread(target=call, daemon=True).start()",
    "_thread": "import _thread; _thread.start_new_thread(call, ())",
    "a pool": "from concurrent.futures import ThreadPoolExecutor; pool = ThreadPoolExecutor(1); pool.submit(call)",
    "a thread of a thread": (
        "import threading\n"
        "def outer():\n"
        "    while not started: time.sleep(0.005)\n"
        "    threading.Thread(target=call, daemon=True).start()\n"
        "threading.Thread(target=outer, daemon=True).start()"
    ),
    "a timer": "import threading; threading.Timer(0.2, call).start()",
    "to_thread": "import asyncio; kept = asyncio.get_event_loop().create_task(asyncio.to_thread(call)); await asyncio.sleep(0.02)",
}


@pytest.mark.parametrize("how", THREADS)
async def test_a_thread_of_an_earlier_cell_gets_an_error(make, how: str) -> None:
    python = await make()
    await python.value(LATER + THREADS[how])
    seen = await python.value(WAIT)
    assert seen is not None
    assert WORDS in seen
    assert "from the second cell" in seen
    assert [args["text"] for _, args in python.turn.calls] == ["from the second cell"]


async def test_a_task_works_for_the_cell_that_runs_its_loop(python) -> None:
    """A later cell may await what an earlier one began: such a task stands still between cells."""
    await python.value(
        "import asyncio\nstarted = asyncio.Event()\n"
        "async def late():\n"
        "    await started.wait()\n"
        "    return echo('late')\n"
        "kept = asyncio.get_event_loop().create_task(late())\nawait asyncio.sleep(0)"
    )
    seen = await python.value("started.set()\nawait kept, echo('now')")
    assert "late" in (seen or "")
    assert [args["text"] for _, args in python.turn.calls] == ["late", "now"]


PROCESSES = {
    "subprocess": "subprocess.run(['sh', '-c', SCRIPT])",
    "an environment of its own": "subprocess.run(['sh', '-c', SCRIPT], env={'PATH': os.environ['PATH']})",
    "the newer cell's environment": "subprocess.run(['sh', '-c', SCRIPT], env=os.environ)",
    "a fork": "pid = os.fork()\n    if not pid: os.execvp('sh', ['sh', '-c', SCRIPT])\n    os.waitpid(pid, 0)",
    "posix_spawn": "os.waitpid(os.posix_spawnp('sh', ['sh', '-c', SCRIPT], os.environ), 0)",
    "os.system": "os.system(SCRIPT)",
    "multiprocessing": "multiprocessing.get_context('spawn').util.spawnv_passfds(b'/bin/sh', [b'sh', b'-c', SCRIPT.encode()], [])",
}
SCRIPT = "cantrip_echo late >/tmp/out 2>&1; touch /tmp/over"


@pytest.mark.parametrize("how", PROCESSES)
async def test_a_process_that_a_thread_of_an_earlier_cell_starts_gets_an_error(python, how: str) -> None:
    """What a cell itself starts ends with the cell; its threads go on, and can start more."""
    await python.value(
        f"import multiprocessing, multiprocessing.util, os, subprocess, threading, time\nSCRIPT = {SCRIPT!r}\n"
        "multiprocessing.get_context('spawn').util = multiprocessing.util\n"
        f"def outer():\n    while not os.path.exists('/tmp/go'): time.sleep(0.005)\n    {PROCESSES[how]}\n"
        "threading.Thread(target=outer).start()"
    )
    seen = await python.value(
        "open('/tmp/go', 'w').close()\n"
        "for _ in range(6000):\n"
        "    if os.path.exists('/tmp/over'): break\n"
        "    time.sleep(0.01)\n"
        "now = subprocess.run(['cantrip_echo', 'now'], capture_output=True, text=True).stdout\n"
        "open('/tmp/out').read(), now"
    )
    assert WORDS in (seen or "")
    assert [args["text"] for _, args in python.turn.calls] == ["now"]


async def test_what_is_kept_from_cell_to_cell_works_for_the_cell_that_uses_it(python) -> None:
    await python.value(
        "import asyncio, os, subprocess, sys\nfrom concurrent.futures import ThreadPoolExecutor\n"
        "pool = ThreadPoolExecutor(1)\npool.submit(echo, 'pool 1').result()\n"
        "await asyncio.to_thread(echo, 'thread 1')\n"
        "env = dict(os.environ)\n"
        "def numbers():\n    while True: yield echo('generator')\n"
        "steps = numbers(); next(steps)"
    )
    seen = await python.value(
        "[pool.submit(echo, 'pool 2').result(), await asyncio.to_thread(echo, 'thread 2'), next(steps),\n"
        " subprocess.run(['cantrip_echo', 'kept env'], env=env, capture_output=True, text=True).stdout,\n"
        " subprocess.run(['cantrip_echo', 'small env'], env={'PATH': env['PATH']}, capture_output=True, text=True).stdout]"
    )
    assert seen == "['pool 2', 'thread 2', 'generator', 'kept env', 'small env']"
    code = (
        "import threading\n"
        "def run():\n    global runner\n    runner = asyncio.Runner()\n"
        "    async def one(): return echo('runner')\n    found.append(runner.run(one()))\n"
        "found = []\nthread = threading.Thread(target=run); thread.start(); thread.join()\nfound"
    )
    assert await python.value(code) == "['runner']"
    again = (
        "def run():\n    async def one(): return echo('runner again')\n    found.append(runner.run(one()))\n"
        "thread = threading.Thread(target=run); thread.start(); thread.join()\nfound"
    )
    assert await python.value(again) == "['runner', 'runner again']"


async def test_a_forged_token_is_refused(python) -> None:
    seen = await python.value(
        "import sys, os, subprocess\n"
        "os.environ['CANTRIP_CELL'] = '0' * 16\n"
        "made = subprocess.run('cantrip_echo x', shell=True, capture_output=True, text=True)\n"
        "made.stdout, os.system('env CANTRIP_CELL=guess cantrip_echo y 2>/tmp/y'), open('/tmp/y').read()"
    )
    # Processes of this cell get its token, whatever stands in the environment; one that hides it is refused.
    assert seen is not None
    assert seen.startswith("('x', 256,")
    assert WORDS in seen


async def test_what_starts_things_is_kept_by_name(make) -> None:
    """A snapshot refers to these functions as it does to all others of the library."""
    python, fresh = await make(), await make()
    await python.value("import os, _thread\nkept = [os.system, os.posix_spawn, _thread.start_new_thread]")
    taken = await python.session.snapshot()
    assert taken.missing == ()
    await fresh.session.restore(taken, python.session.chunks)
    assert (
        await fresh.value("import os, _thread\nkept == [os.system, os.posix_spawn, _thread.start_new_thread]") == "True"
    )
