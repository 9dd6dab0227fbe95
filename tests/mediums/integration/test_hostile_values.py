"""Cells that a host must live with: values that fight back, signals, forks, threads, output of any kind."""

from __future__ import annotations

import os
import signal

import anyio
import pytest

from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

LOOP = "    while True: pass\n"
ODD_VALUES = {
    "a repr that raises": (
        "class R:\n  def __repr__(self): raise ValueError\nR()",
        "<R object, whose repr failed with ValueError>",
    ),
    "a repr that is not text": (
        "class R:\n  def __repr__(self): return 5\nR()",
        "<R object, whose repr failed with TypeError>",
    ),
    "a repr of 100 MB": ("class R:\n  def __repr__(self): return 'y' * 10**8\nR()", "R: yyyy"),
    "a repr that recurses": (
        "class R:\n  def __repr__(self): return repr(self)\nR()",
        "whose repr failed with RecursionError",
    ),
    "a value in itself": ("x = []\nx.append(x)\nx", "[…]"),
    "a lone surrogate": ("{'\\ud800': 1}", "{'\\ud800': 1}"),
    "a number of a million digits": ("10**1_000_000", "an int of 3,321,929 bits"),
    "control sequences": ("'\\x1b[31mred'", "'\\x1b[31mred'"),
    "a type that names itself oddly": ("type('x\\ny' * 1000, (), {})()", "<__main__.x"),
}


@pytest.mark.parametrize("what", ODD_VALUES)
async def test_values(python, what: str) -> None:
    code, shown = ODD_VALUES[what]
    value = await python.value(code)
    assert value is not None
    assert shown in value
    assert len(value) < 3000


ERRORS = {
    "a text that cannot be made": (
        "class E(Exception):\n  def __str__(self): raise E\nraise E",
        "E: <exception str() failed>",
    ),
    "a lone surrogate": ("raise ValueError('\\ud800 lone')", "lone"),
    "a group": ("raise ExceptionGroup('g', [ValueError(1)])", "ValueError: 1"),
    "endless recursion": ("def f(): f()\nf()", "RecursionError"),
    "a base exception": ("class B(BaseException): pass\nraise B('b')", "B: b"),
    "an interrupt of its own": ("raise KeyboardInterrupt", "KeyboardInterrupt"),
    "a chain of itself": (
        "e = ValueError(1)\ne.__context__ = TypeError(2)\ne.__context__.__context__ = e\nraise e",
        "ValueError: 1",
    ),
    "100,000 lines": ("raise ValueError('line\\n' * 100_000)", "characters left out"),
    "a status": ("raise SystemExit('words')", "SystemExit: words"),
    "a trace function": ("import sys\nsys.settrace(lambda *a: 1 / 0)\n(lambda: 0)()", "ZeroDivisionError"),
    "no memory": ("bytearray(2**34)", "MemoryError"),
}


@pytest.mark.parametrize("what", ERRORS)
async def test_errors(make, what: str) -> None:
    python = await make({"code_memory_mb": 512})
    await python("kept = 1")
    code, shown = ERRORS[what]
    output = await python(code)
    assert shown in (output.error or "")
    assert len(output.error or "") < 13_000
    assert await python.value("kept") == "1"


@pytest.mark.parametrize("how", ["exit()", "quit(0)", "raise SystemExit", "import sys; sys.exit()"])
async def test_leaving_a_cell_keeps_the_process(python, how: str) -> None:
    await python("kept = 1")
    output = await python(f"{how}\nprint('not reached')")
    assert (output.error, output.stdout) == (None, "")
    assert await python.value("kept") == "1"


HANGS = {
    "a repr": "class R:\n  def __repr__(self):\n" + LOOP + "R()",
    "the text of an error": "class E(Exception):\n  def __str__(self):\n" + LOOP + "raise E",
    "a finaliser": "class D:\n  def __del__(self):\n" + LOOP + "d = D(); del d",
    "a handler of everything": "while True:\n  try:\n" + LOOP + "  except BaseException: pass",
    "a finally that goes on": "import time\ntry:\n    time.sleep(600)\nfinally:\n    time.sleep(600)",
    "a lock": "import threading\nl = threading.Lock(); l.acquire(); l.acquire()",
    "a thread that is joined": "import threading, time\nt = threading.Thread(target=time.sleep, args=(600,), daemon=True)\n"
    "t.start(); t.join()",
    "a child that is waited for": "import subprocess\nsubprocess.run(['sleep', '600'])",
    "an awaited task": "import asyncio\nawait asyncio.sleep(600)",
    "a generator": "import itertools\nfor _ in itertools.count(): pass",
}


@pytest.mark.parametrize("what", HANGS)
async def test_what_hangs_is_stopped_and_the_state_survives(make, what: str) -> None:
    python = await make({"code_timeout_ms": 400})
    await python("kept = 1")
    with anyio.fail_after(60):
        output = await python(HANGS[what])
    assert "timed out after 400 ms" in (output.error or "")
    if "it could not be interrupted" not in (output.error or ""):
        assert await python.value("kept") == "1"
    else:
        assert "Lost with it: kept" in (output.error or "")


@pytest.mark.parametrize(
    "code",
    [
        "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass",
        "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])\nwhile True: pass",
        "import hashlib\nhashlib.pbkdf2_hmac('sha256', b'x', b'y', 10**9)",
    ],
)
async def test_what_cannot_be_interrupted_says_what_was_lost(make, code: str) -> None:
    python = await make({"code_timeout_ms": 300})
    await python("kept = 1")
    with anyio.fail_after(60):
        output = await python(code)
    assert "it could not be interrupted" in (output.error or "")
    assert "Lost with it: kept" in (output.error or "")
    assert await python.value("'kept' in globals()") == "False"


async def test_a_process_that_stops_itself_goes_on(python) -> None:
    with anyio.fail_after(60):
        assert await python.value("import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)\n'went on'") == "'went on'"


async def test_a_fork_of_a_cell_is_gone_with_it(python) -> None:
    await python("kept = 1")
    output = await python("import os\npid = os.fork()\nif pid == 0:\n    while True: pass\nprint('parent')")
    assert output.stdout == "parent\n"
    assert await python.value("try:\n    os.kill(pid, 0)\nexcept ProcessLookupError:\n    pass\nkept") == "1"
    output = await python(
        "pid = os.fork()\nif pid == 0:\n    try:\n        echo('from a child')\n    finally:\n        os._exit(0)\n"
        "os.waitpid(pid, 0)[1]"
    )
    assert output.value == "0"
    assert python.turn.calls == []


async def test_late_words_of_a_thread_come_with_the_cell_that_runs_then(python) -> None:
    await python(
        "import threading\ngo = threading.Event()\nlate = threading.Thread(target=lambda: (go.wait(), print('late')))\nlate.start()"
    )
    output = await python("go.set(); late.join()")
    assert output.stdout == "late\n"


async def test_words_after_the_end_are_not_lost(python) -> None:
    assert (
        await python("import atexit, os\natexit.register(print, 'bye')\nprint('before')\nos._exit(0)")
    ).stdout == "before\n"


@pytest.mark.parametrize("code", ["input()", "import sys; sys.stdin.readline() or 1 / 0", "next(open(0))"])
async def test_nobody_types(python, code: str) -> None:
    with anyio.fail_after(60):
        assert (await python(code)).error is not None


async def test_bytes_that_are_no_text(python) -> None:
    output = await python(
        "import os\nos.write(1, b'\\xff\\xfe raw \\xed\\xa0\\x80\\n')\nprint('\\ud800')\nprint('\\x1b[31mred\\x07')"
    )
    assert output.stdout.splitlines()[1:] == ["\\ud800", "red"]
    assert " raw " in output.stdout


@pytest.mark.parametrize(
    "code", ["", "def", "x = = 1", "\x00", "  indented", "'''open", "yield 1", "return", "(" * 500]
)
async def test_what_is_no_program(python, code: str) -> None:
    output = await python(code)
    assert output.error is not None
    assert "_cantrip" not in output.error
    assert await python.value("1 + 1") == "2"


@pytest.mark.parametrize(
    "code",
    [
        "import socket\nsocket.create_connection(('1.1.1.1', 80), 1)",
        "import urllib.request\nurllib.request.urlopen('http://example.org')",
        "import socket\nsocket.create_connection(('127.0.0.1', 9), 1)",
        "import asyncio\nawait asyncio.open_connection('example.org', 443)",
    ],
)
async def test_a_connection_says_that_there_is_no_network(make, code: str) -> None:
    """bash_network is a ward of shell commands; it opens nothing here."""
    python = await make({"bash_network": True})
    output = await python(code)
    assert (output.error or "").endswith(
        "[There is no network in this sandbox, not even to this machine. Use the functions that were described to you to "
        "reach anything outside.]"
    )
    assert "no network" not in ((await python("open('/nowhere')")).error or "")


async def test_two_sessions_at_once_share_nothing(make) -> None:
    first, second = await make(), await make()
    seen: dict[str, str | None] = {}

    async def work(python, name: str) -> None:
        for n in range(20):
            await python.value(f"mine = {name!r}, {n}\nopen('/tmp/mine', 'w').write({name!r})\necho({name!r})")
        seen[name] = await python.value("mine, open('/tmp/mine').read()")

    async with anyio.create_task_group() as group:
        group.start_soon(work, first, "first")
        group.start_soon(work, second, "second")
    assert seen == {name: f"(('{name}', 19), '{name}')" for name in ("first", "second")}


async def test_a_worker_killed_from_outside_while_a_cell_runs(python) -> None:
    await python("kept = 1")
    pid = python.worker.pid
    async with anyio.create_task_group() as group:

        async def kill() -> None:
            await wait_until(lambda: python.worker.is_busy)
            os.kill(pid, signal.SIGKILL)

        group.start_soon(kill)
        with anyio.fail_after(60):
            output = await python("import time; time.sleep(600)")
    assert "SIGKILL" in (output.error or "")
    assert "Lost with it: kept" in (output.error or "")
    assert await python.value("1 + 1") == "2"
