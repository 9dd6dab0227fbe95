"""Workers that turn on the host: forged, broken and endless messages, and a Python taken apart from inside."""

from __future__ import annotations

import resource

import anyio
import pytest

from cantrip_acp.sandbox import messages
from tests.sandbox.integration.conftest import both_back_ends, both_back_ends_in_cases

pytestmark = pytest.mark.anyio

FIND = """
import os, struct, json, gc
wire = [o for o in gc.get_objects() if type(o).__name__ == 'Wire'][0]
out = wire._out
def raw(data): os.write(out, data)
def frame(body, kind=b'j', size=None):
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    raw(struct.pack('>I', len(body) if size is None else size) + kind + body)
"""
HARMLESS = [
    "frame(b'')",
    "frame(b'nonsense')",
    "frame(b'\\xff\\xfe')",
    "frame([1, 2])",
    "frame({'t': 'nothing'})",
    "frame({'t': 'end'})",
    "frame({'t': 'end', 'cell': 'x', 'value': None, 'error': None, 'done': False})",
    "frame({'t': 'end', 'cell': 999, 'value': 'forged', 'error': None, 'done': True})",
    "frame({'t': 'end', 'cell': 2, 'value': 'x' * 30000, 'error': None, 'done': False})",
    "frame({'t': 'ready', 'python': '9.9', 'executable': '/x'})",
    "frame({'t': 'call', 'id': -1, 'gate': 'echo', 'args': {}})",
    "frame({'t': 'call', 'id': 10**30, 'gate': 'echo', 'args': {}})",
    "frame({'t': 'call', 'id': 1, 'gate': 'echo', 'args': [1]})",
    "frame({'t': 'call', 'id': 1, 'gate': 'x' * 1000, 'args': {}})",
    "frame({'t': 'call', 'id': 1, 'gate': 'echo', 'args': {}, 'more': 1})",
    "frame({'t': 'call', 'id': 70, 'gate': '../etc/passwd', 'args': {}})",
    "frame({'t': 'call', 'id': 71, 'gate': 'echo', 'args': {'text': 'forged'}})",
    "frame({'t': 'loom', 'id': 72, 'start': 0, 'count': 10})",
    "frame({'t': 'state', 'error': None, 'size': 5})",
    "frame(b'data', b'b')",
    "frame(b'[' * 100000)",
    'frame(b\'{"t":"end","cell":1e400}\')',
    "for _ in range(500): frame({'t': 'nothing'})",
    "for _ in range(300): frame({'t': 'call', 'id': 80, 'gate': 'echo', 'args': {'text': 'again'}})",
]
FATAL = [
    "frame(b'', size=2**32 - 1)",
    "frame(b'', size=100_000_000)",
    "frame(b'x', b'Z')",
    "raw(b'\\xff' * 1000)",
    "raw(b'\\0\\0\\0')\nos.close(out)",
    "os.close(out); os.close(wire._in)",
    "for _ in range(5000): frame({'t': 'nothing'})",
]


@pytest.mark.parametrize("code", HARMLESS)
async def test_forged_messages_harm_nothing(python, code: str) -> None:
    await python(FIND)
    output = await python(code + "\n'fine'")
    assert output.value == "'fine'"
    assert not python.turn.finished
    assert await python.value("echo('works')") == "'works'"


@both_back_ends_in_cases("code", FATAL, few=4)
async def test_a_stream_that_is_lost_ends_the_worker(python, code: str) -> None:
    await python(FIND)
    with anyio.fail_after(60):
        output = await python(code + "\nimport time; time.sleep(600)")
    assert "the Python process ended" in (output.error or "")
    assert await python.value("echo('works')") == "'works'"


@both_back_ends
async def test_a_forged_end_gains_nothing(python) -> None:
    """The cell goes on, frozen, and what it says later belongs to no cell."""
    await python(FIND)
    output = await python(
        "frame({'t': 'end', 'cell': 2, 'value': 'forged', 'error': None, 'done': True})\n"
        "import time\ntime.sleep(0.2)\nprint('went on')\n'real'"
    )
    assert output.value == "forged"
    assert not python.turn.finished
    with anyio.fail_after(60):
        assert await python.value("1 + 1") in ("2", "real")
        assert await python.value("2 + 2") == "4"


async def test_messages_are_decoded_strictly() -> None:
    assert messages.decode(b'{"t":"end","cell":1,"value":null,"error":null,"done":false}') is not None
    for body in (
        b"",
        b"null",
        b"[]",
        b"{}",
        b'{"t":1}',
        b'{"t":"end","cell":true,"value":1,"error":1,"done":1}',
        b"[" * 10**6,
    ):
        assert messages.decode(body) is None


async def test_a_flood_of_calls_is_bounded(python) -> None:
    await python(FIND)
    output = await python(
        "import threading\nerrors = []\ndef call(n):\n    for i in range(700):\n        try: echo('x')\n"
        "        except GateError as e: errors.append(str(e))\n"
        "threads = [threading.Thread(target=call, args=(n,)) for n in range(8)]\nfor t in threads: t.start()\n"
        "for t in threads: t.join()\nlen(errors), set(errors)"
    )
    assert len(python.turn.calls) == 5000
    assert output.value is not None
    assert "600, {'no more than 5000 gate calls are possible in one cell'}" in output.value


async def test_a_gigabyte_of_output_with_flat_memory(python) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with anyio.fail_after(60):
        output = await python("import os\nblock = b'x' * 2**20\nfor n in range(1024): os.write(1, block)\n'written'")
    assert output.truncated
    assert output.value == "'written'"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000


@pytest.mark.parametrize(
    "code",
    [
        "import builtins\nfor n in [*vars(builtins)]: vars(builtins).pop(n)",
        "import builtins\nbuiltins.len = builtins.dict = builtins.isinstance = builtins.type = None",
        "import json, _json\njson.dumps = json.loads = None\n_json.make_encoder = _json.make_scanner = None",
        "import sys\nsys.modules.clear()",
        "import sys\nsys.path.clear(); sys.meta_path.clear()",
        "import sys\nsys.stdout = sys.stderr = None",
        "import sys, os\nsys.stdout.close(); sys.stderr.close()",
        "import os\nos.close(0); os.close(1); os.close(2)",
        "import os\nos.dup2(os.open('/dev/null', os.O_WRONLY), 1)",
        "import os\nos.write = os.read = os.fstat = None",
        "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\nos.kill(1, signal.SIGKILL)",
        "import sys\nsys.settrace(lambda *a: 1 / 0)",
        "import sys\nsys.setprofile(lambda *a: 1 / 0)",
        "import gc\ngc.disable(); gc.freeze()",
        "globals().clear()",
        "import traceback, linecache\ntraceback.TracebackException = None\nlinecache.cache = None",
        "import threading\nthreading.settrace(None)\nthreading.excepthook = None\nthreading.Thread(target=lambda: 1 / 0).start()",
        "import os\nos.chdir('/proc')\nos.environ.clear()",
        "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))",
        "__builtins__ = None",
        "__cantrip_check__ = __cantrip_value__ = 1",
        "import sys\nsys.exit = sys.excepthook = None\nclass E(BaseException): pass\nraise E",
    ],
)
async def test_a_python_taken_apart_costs_at_most_itself(python, code: str) -> None:
    with anyio.fail_after(60):
        await python(code)
        output = await python("1 + 1")
        if output.value != "2":
            # It was its own to break: what follows is a fresh one, or says what is wrong.
            assert output.error is not None
            output = await python("import os; os._exit(1)")
        assert await python.value("echo('works')") == "'works'"
    assert not python.turn.finished


@both_back_ends
async def test_the_worker_cannot_be_replaced_from_inside(python) -> None:
    assert (
        await python.value("import os, sys\nours = sys.modules['_cantrip.code_worker'].__file__\nos.path.isfile(ours)")
        == "True"
    )
    output = await python("open(ours, 'a')")
    assert "Read-only file system" in (output.error or "") or "PermissionError" in (output.error or "")
