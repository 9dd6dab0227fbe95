"""The monty medium: state, gates, done, errors, stops, snapshots; and that there is no authority but the gates."""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import psutil
import pytest

from cantrip_acp import Cantrip, Circle, ScriptedCrystal
from cantrip_acp.mediums.monty import prompt
from cantrip_acp.mediums.monty.medium import MontyMedium
from cantrip_acp.types.context_block import ContextBlock
from cantrip_acp.types.errors import GateError, SandboxError, SandboxMissing
from tests.mediums.integration.conftest import Python
from tests.sandbox.integration.conftest import both_back_ends

pytestmark = pytest.mark.anyio
Make = Callable[..., Awaitable[Python]]


@both_back_ends
async def test_state_lives_on(monty: Make) -> None:
    cell = await monty()
    await cell(
        "import math\nx = 41\ndef more(n):\n    return n + 1\nclass Point:\n    def __init__(self):\n        self.x = x"
    )
    assert await cell.value("more(x)") == "42"
    assert await cell.value("Point().x, math.floor(2.5)") == "(41, 2)"
    await cell("1/0")
    assert await cell.value("x") == "41"


@both_back_ends
async def test_what_is_seen_of_a_cell(monty: Make) -> None:
    cell = await monty()
    output = await cell("import sys\nprint('out')\nprint('err', file=sys.stderr)\n'value'")
    assert (output.stdout, output.stderr, output.value) == ("out\n", "err\n", "'value'")
    await cell("def deep(n):\n    return 1 / n")
    output = await cell("print('before')\ndeep(0)")
    assert output.stdout == "before\n"
    assert output.error is not None
    assert 'File "<cell 3>", line 2' in output.error
    assert 'File "<cell 2>", line 2, in deep' in output.error
    assert output.error.endswith("ZeroDivisionError: division by zero")
    output = await cell("x = (")
    assert output.error is not None
    assert 'File "<cell 4>", line 1' in output.error
    large = await cell.value("list(range(100000))")
    assert large is not None
    assert large.startswith("list of 100,000 items: [0, 1, 2")
    assert len(large) < 2000
    assert (await cell("raise SystemExit")).error is None


@both_back_ends
async def test_gates_are_functions(monty: Make) -> None:
    def add(a: int, b: int = 2) -> int:
        return a + b

    def fail(why: str) -> str:
        raise GateError(why)

    cell = await monty(add=add, fail=fail)
    assert (
        await cell.value("add(1), add(1, 5), add(a=1, b=1), add({'a': 3}), [f(1) for f in [add]]")
        == "(3, 6, 2, 5, [3])"
    )
    output = await cell("try:\n    fail('no')\nexcept GateError as e:\n    print('caught', e)")
    assert output.stdout == "caught no\n"
    assert output.error is None
    output = await cell("fail(why='not there')")
    assert output.error is not None
    assert output.error.endswith("GateError: not there")
    output = await cell("add(1, 2, 3)")
    assert output.error is not None
    assert "takes 2 arguments, 3 were given" in output.error
    output = await cell("add(b'x')")
    assert output.error is not None
    assert "GateError: arguments of add" in output.error
    assert await cell.value("len([add(i) for i in range(1500)])") == "1500"


async def test_context_is_a_variable(monty: Make) -> None:
    cell = await monty()
    cell.turn.context = (ContextBlock("some text", "a title"),)
    assert await cell.value("context[0]['title'], context[0]['text']") == "('a title', 'some text')"


@both_back_ends
@pytest.mark.parametrize("name", ["done", "submit_answer"])
async def test_done_ends_the_cell_and_keeps_its_state(monty: Make, name: str) -> None:
    cell = await monty()
    output = await cell(f"x = 5\n{name}({{'n': x}})\nx = 6\nprint('late')")
    assert output.error is None
    assert output.stdout == ""
    assert cell.turn.answers == [{"n": 5}]
    cell.turn.finished = False
    assert await cell.value("x") == "5"


async def test_what_catches_done_can_do_nothing_more(monty: Make) -> None:
    cell = await monty()
    code = (
        "while True:\n    try:\n        done(1)\n    except BaseException:\n        print('late')\n        echo('late')"
    )
    output = await cell(code)
    assert output.stdout == ""
    assert output.error is None
    assert [name for name, _ in cell.turn.calls] == ["done"]


@both_back_ends
async def test_a_cell_over_its_time_is_undone(monty: Make) -> None:
    cell = await monty({"code_timeout_ms": 300})
    await cell("x = [1]")
    before = time.monotonic()
    output = await cell("x.append(2)\nwhile True:\n    try:\n        while True: pass\n    except BaseException: pass")
    assert time.monotonic() - before < 60
    assert output.error is not None
    assert "undone" in output.error
    assert "300 ms (code_timeout_ms)" in output.error
    assert await cell.value("x") == "[1]"
    output = await cell("import time\ntime.sleep(60)")
    assert output.error is not None
    assert "code_timeout_ms" in output.error
    output = await cell("print('shown')\nnowhere")
    assert output.error is not None
    assert 'File "<cell 5>", line 2' in output.error


@both_back_ends
async def test_a_cancel_stops_a_cell(monty: Make) -> None:
    cell = await monty()
    await cell("x = 1")
    with anyio.move_on_after(3) as scope:
        await cell("x = 2\nprint('begun')\nwhile True: pass")
    assert scope.cancelled_caught
    assert cell.turn.partial is not None
    assert cell.turn.partial.stdout == "begun\n"
    assert await cell.value("x") == "1"


@both_back_ends
async def test_snapshots(monty: Make) -> None:
    cell = await monty()
    await cell("shared = [1]\nother = shared\ndef f(n=0):\n    return shared if n == 0 else 1 / (n - 1)")
    snapshot = await cell.session.snapshot()
    assert set(snapshot.names) == {"shared", "other", "f"}
    assert snapshot.python.startswith("monty ")
    await cell("shared.append(2)")
    fork = await monty()
    await fork.session.restore(snapshot, cell.session.chunks)
    assert await fork.value("other.append(7)\nf()") == "[1, 7]"
    assert await fork.value("echo('gates work')") == "'gates work'"
    output = await fork("f(1)")
    assert output.error is not None
    assert "<cell 4>" in output.error
    await cell.session.restore(snapshot)
    assert await cell.value("shared") == "[1]"


async def test_a_snapshot_of_another_kind_is_refused(monty: Make, make: Make) -> None:
    code = await make()
    await code("x = 1")
    snapshot = await code.session.snapshot()
    cell = await monty()
    with pytest.raises(SandboxError, match="cannot be opened by monty"):
        await cell.session.restore(snapshot, code.session.chunks)


async def test_a_damaged_snapshot_costs_nothing_but_itself(monty: Make) -> None:
    cell = await monty()
    await cell("x = 1")
    snapshot = await cell.session.snapshot()
    whole = b"".join(cell.session.chunks.get(k) for k in snapshot.chunks)
    from dataclasses import replace

    from cantrip_acp.mediums.code.snapshot import MemoryChunks, keep

    store = MemoryChunks()
    half = keep([whole[: len(whole) // 2]], store)
    with pytest.raises(SandboxError, match="cannot be opened"):
        await cell.session.restore(replace(snapshot, chunks=half.chunks, size=half.size), store)
    assert await cell.value("1 + 1") == "2"


SECRET = "a-secret-of-the-host"


@pytest.mark.parametrize(
    "code",
    [
        "open({path!r}).read()",
        "open({path!r}, 'w').write('x')",
        "import pathlib\npathlib.Path({path!r}).read_text()",
        "import pathlib\npathlib.Path({path!r}).write_text('x')",
        "import pathlib\npathlib.Path({path!r}).unlink()",
        "import os\nos.listdir({folder!r})",
        "import os\nos.environ['MONTY_TEST_SECRET']",
        "import os\nos.getenv('MONTY_TEST_SECRET')",
        "import os\nos.system('touch ' + {path!r})",
        "import os\nos.remove({path!r})",
        "import subprocess",
        "import socket",
        "import ctypes",
        "import builtins\nbuiltins.open({path!r})",
        "__import__('subprocess')",
        "eval(\"__import__('os').system('id')\")",
        "exec(\"import subprocess\")",
        "().__class__.__base__.__subclasses__()",
        "(lambda: 0).__globals__",
        "getattr(echo, '__globals__')",
        "getattr(echo, '__self__')",
        "echo.__code__",
        "getattr(getattr(context, '__class__'), '__mro__')",
        "'{{0.__class__}}'.format(echo) + '{{0.__globals__}}'.format(echo)",
        "echo('x').__class__.__mro__[1].__subclasses__()",
        "import sys\nsys.modules['os']",
        "import sys\nsys._getframe()",
        "import asyncio\nasyncio.create_subprocess_shell('id')",
        "globals()['echo'].__globals__",
    ],
)  # fmt: skip
async def test_there_is_no_authority(monty: Make, tmp_path: Path, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONTY_TEST_SECRET", SECRET)
    file = tmp_path / "secret"
    file.write_text(SECRET)
    wards = {"code_readable_paths": [str(tmp_path)], "code_writable_paths": [str(tmp_path)]}
    cell = await monty(wards, workspace=tmp_path)
    output = await cell(code.format(path=str(file), folder=str(tmp_path)))
    assert output.error is not None, output
    assert SECRET not in f"{output}"
    assert file.read_text() == SECRET
    assert os.listdir(tmp_path) == ["secret"]
    assert cell.turn.calls == [] or [name for name, _ in cell.turn.calls] == ["echo"]
    assert await cell.value("echo('still here')") == "'still here'"


@pytest.mark.parametrize(
    "code",
    [
        "a = [0] * 10**9",
        "'a' * 10**10",
        "2 ** 10**10",
        "a = []\nwhile True: a.append('x' * 1000000)",
        "def f(): return f()\nf()",
        "eval('(' * 100000 + ')' * 100000)",
        "exec('x = ' + '-' * 200000 + '1')",
        "a = []\nfor i in range(200000): a = [a]\na",
        "a = []\nfor i in range(200000): a = [a]\necho(a)",
        "a = []\na.append(a)\necho(a)",
        "while True: pass",
        "import re\nre.match('(a+)+$', 'a' * 40 + 'b')",
        "print('x' * 100000000)",
        "while True: print('x' * 100000)",
        "int('9' * 5000000)",
        "while True: echo('x')",
    ],
)
async def test_bombs_cost_the_cell_alone(monty: Make, code: str) -> None:
    cell = await monty({"code_timeout_ms": 1500, "code_memory_mb": 256})
    await cell("x = 1")
    before = time.monotonic()
    await cell(code)
    assert time.monotonic() - before < 60
    assert (await cell("echo('on')")).value == "'on'"
    value = (await cell("x")).value
    assert value == "1"


async def test_it_runs_in_a_sandbox_of_its_own(monty: Make) -> None:
    cell = await monty()
    await cell("x = 1")
    first = cell.worker.first
    for kind in ("net", "pid", "mnt", "user"):
        assert os.readlink(f"/proc/{first}/ns/{kind}") != os.readlink(f"/proc/self/ns/{kind}")
    assert len(psutil.Process(first).children(recursive=True)) >= 2
    await cell.session.close()
    deadline = time.monotonic() + 2
    while os.path.exists(f"/proc/{first}") and time.monotonic() < deadline:
        await anyio.sleep(0.01)
    assert not os.path.exists(f"/proc/{first}")


async def test_what_the_presentation_says_is_so(monty: Make) -> None:
    cell = await monty()
    for module in prompt.MODULES:
        assert (await cell(f"import {module}")).error is None, module
    for what, code in prompt.LACKING.items():
        assert (await cell(code)).error is not None, what
    for module in ("enum", "io", "string", "textwrap", "statistics", "uuid", "heapq", "logging"):
        assert (await cell(f"import {module}")).error is not None, module


async def test_the_presentation_reads_well() -> None:
    circle = Circle(MontyMedium(), ["done", "echo"], {"max_turns": 2, "code_timeout_ms": 1500})
    medium = circle.medium
    text = medium.presentation(circle)
    assert text == medium.presentation(circle)
    assert text is not None
    for part in ("`echo(text: str)`", "class inheritance", "1.5 seconds", "no files", "GateError", "done(answer)"):
        assert part in text
    assert [t.name for t in medium.tools(circle)] == ["python"]


async def test_a_cast_in_the_medium() -> None:
    crystal = ScriptedCrystal(
        [{"code": "n = len(echo('four'))\nn"}, {"content": "So:\n```python\ndone(n * 2)\n```"}],
        record_inputs=True,
        tools="text",
    )
    cantrip = Cantrip(crystal, circle=Circle("monty", ["done", "echo"], {"max_turns": 4}))
    result = await cantrip.cast("Count.")
    assert (result.result, result.terminated) == (8, True)


async def test_where_it_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda n, *a: None if n == "pydantic_monty" else real(n, *a))
    circle = Circle("monty", ["done"], {"max_turns": 1})
    with pytest.raises(SandboxMissing, match=r"pydantic-monty>="):
        await circle.medium.open(circle, "e")
