"""What a cell may count on: state that lives on, values and errors that read well, output that is bounded."""

from __future__ import annotations

from typing import Any

import pytest

from cantrip_acp.mediums.code.medium import CodeMedium
from cantrip_acp.mediums.code.prompt import observe
from cantrip_acp.types import events
from cantrip_acp.types.context_block import ContextBlock
from tests.sandbox.integration.conftest import both_back_ends

pytestmark = pytest.mark.anyio


@both_back_ends
async def test_state_lives_on(python) -> None:
    await python("import math\nx = 41\ndef more(n): return n + x\nclass Point:\n    def __init__(self): self.x = x")
    assert await python.value("more(1)") == "42"
    await python("x = 1")
    assert await python.value("more(1), Point().x, math.pi > 3") == "(2, 1, True)"


async def test_nothing_is_started_before_the_first_cell(python) -> None:
    assert python.worker is None


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("1 + 1", "2"),
        ("'text'", "'text'"),
        ("None", None),
        ("x = 3", None),
        ("x = 3; x", "3"),
        ("x = 3; x;", "3"),
        ("[1, (2,), {3}, {'a': None}]", "[1, (2,), {3}, {'a': None}]"),
        ("'''doc'''", "'doc'"),
        ("", "the code is empty"),
        ("a = []; a.append(a); a", "[…]"),
        ("frozenset({1})", "frozenset({1})"),
        ("def f(): return 1\nf()", "1"),
        ("if True:\n    5", None),
        ("await __import__('asyncio').sleep(0, 'slept')", "'slept'"),
        ("[x async for x in agen()]", "[0, 1]"),
        ("(lambda: (yield 1))().__next__()", "1"),
    ],
)
async def test_the_value_of_the_last_expression(python, code: str, value: str | None) -> None:
    await python("async def agen():\n    for n in range(2): yield n")
    output = await python(code)
    assert (output.value if output.error is None else output.error) == value


@pytest.mark.parametrize(
    ("code", "begins"),
    [
        ("list(range(10**6))", "list of 1,000,000 items: [0, 1, 2, 3"),
        ("'x' * 10**6", "str of 1,000,000 characters: 'xxx"),
        ("{n: str(n) for n in range(10**5)}", "dict of 100,000 items: {0: '0', 1: '1'"),
        ("b'y' * 10**6", "bytes of 1,000,000 bytes: b'yyy"),
        ("[['deep'] * 1000] * 1000", "list of 1,000 items: [['deep', 'deep'"),
        ("10 ** 100_000", "int: an int of 332,193 bits"),
    ],
)
async def test_large_values_are_summed_up(python, code: str, begins: str) -> None:
    value = await python.value(code)
    assert value is not None
    assert value.startswith(begins)
    assert len(value) < 1000


async def test_a_repr_that_fails_is_said(python) -> None:
    code = "class Bad:\n    def __repr__(self): raise ValueError('no')\n[Bad()]"
    assert "whose repr failed with ValueError" in (await python.value(code) or "")


@both_back_ends
async def test_errors_show_the_entitys_own_lines(python) -> None:
    await python("def divide(a, b):\n    return a / b")
    output = await python("x = 1\ndivide(x, 0)")
    assert output.error is not None
    assert 'File "<cell 2>", line 2, in <module>\n    divide(x, 0)' in output.error
    assert 'File "<cell 1>", line 2, in divide\n    return a / b' in output.error
    assert output.error.endswith("ZeroDivisionError: division by zero")
    assert "cantrip" not in output.error
    assert await python.value("x") == "1"


async def test_syntax_errors_point_at_the_place(python) -> None:
    output = await python("x = 1\nif x\n    pass")
    assert output.error is not None
    assert 'File "<cell 1>", line 2' in output.error
    assert "SyntaxError: expected ':'" in output.error


async def test_chained_errors_are_whole(python) -> None:
    output = await python("try:\n    {}['a']\nexcept KeyError as e:\n    raise ValueError('b') from e")
    assert output.error is not None
    assert "KeyError: 'a'" in output.error
    assert "The above exception was the direct cause" in output.error
    assert output.error.endswith("ValueError: b")


async def test_a_deep_recursion_is_an_error_of_readable_length(python) -> None:
    output = await python("def f(): f()\nf()")
    assert output.error is not None
    assert "RecursionError" in output.error
    assert len(output.error) < 2000


async def test_source_and_help_are_there(python) -> None:
    output = await python("import inspect\ndef f(a):\n    return a\nprint(inspect.getsource(f))\nhelp(echo)")
    assert "def f(a):\n    return a" in output.stdout
    assert "echo(text: str)" in output.stdout


async def test_help_on_a_gate_shows_defaults_as_one_would_write_them(make) -> None:
    def look(path: str, depth: int = 3, within: str | None = None, also: Any = None) -> str:
        return f"{path} {depth} {within} {also}"

    python = await make(look=look)
    told = (await python("help(look)")).stdout
    assert "Ellipsis" not in told
    assert "look(path: str, depth: int = 3, " in told
    assert await python.value("look('p')") == "'p 3 None None'"
    code = "import inspect\nbound = inspect.signature(look).bind('p')\nbound.apply_defaults()\nlook(*bound.args)"
    assert await python.value(code) == "'p 3 None None'"


@both_back_ends
async def test_exit_ends_the_cell_alone(python) -> None:
    output = await python("x = 5\nimport sys\nsys.exit(3)\nx = 6")
    assert output.error == "SystemExit: 3 (the cell ended, its state is kept)"
    assert (await python("sys.exit()")).error is None
    assert await python.value("x") == "5"


@both_back_ends
async def test_streams_are_told_apart_and_streamed(python) -> None:
    output = await python("import sys, os\nprint('out')\nprint('err', file=sys.stderr)\nos.system('echo from a shell')")
    assert (output.stdout, output.stderr) == ("out\nfrom a shell\n", "err\n")
    told = [(e.stream, e.data) for e in python.turn.events if isinstance(e, events.CommandOutput)]
    assert ("stderr", "err\n") in told
    assert "".join(d for s, d in told if s == "stdout") == output.stdout + "=> 0\n"
    first, last = python.turn.events[0], python.turn.events[-1]
    assert isinstance(last, events.CommandFinished)
    assert (last.exit_code, last.record.error) == (0, None)
    assert isinstance(first, events.CommandStarted)
    assert (first.tool, first.command[:10]) == ("python", "import sys")


@both_back_ends
async def test_output_comes_while_the_cell_runs(make) -> None:
    seen = []

    def look() -> int:
        seen.append([e.data for e in python.turn.events if isinstance(e, events.CommandOutput)])
        return 1

    python = await make(look=look)
    await python("import time\nprint('early')\ntime.sleep(0.1)\nlook()")
    assert seen == [["early\n"]]


@both_back_ends
async def test_output_is_bounded(make) -> None:
    python = await make({"code_max_output_bytes": 2000})
    output = await python("for n in range(100_000): print('line', n)")
    assert output.truncated
    assert len(output.stdout.encode()) <= 2000
    assert output.stdout.startswith("line 0\n")
    assert output.stdout.endswith("line 99999\n")
    assert "shortened" in observe(output)


async def test_terminal_sequences_do_not_come_out(python) -> None:
    output = await python(
        "print('\\x1b[31mred\\x1b[0m\\x1b]0;title\\x07')\nclass A:\n def __repr__(s): return '\\x1b[2J'\nA()"
    )
    assert output.stdout == "red\n"
    assert "\x1b" not in (output.value or "")


async def test_invalid_text_is_shown_as_it_can_be(python) -> None:
    output = await python("import os\nos.write(1, b'\\xff\\xfe ok\\n')\nprint('\\udc80')\n'\\udc80'")
    assert "ok" in output.stdout
    assert output.error is None


@both_back_ends
async def test_stdin_is_empty(python) -> None:
    assert "EOFError" in ((await python("input()")).error or "")


@both_back_ends
async def test_the_context_is_a_variable(python) -> None:
    assert await python.value("context") == "[]"
    python.turn.cast_id = "c_2"
    python.turn.context = (ContextBlock("the text", title="a title", uri="file:///a"),)
    assert await python.value("context[0]['text'], context[0]['title'], len(context)") == "('the text', 'a title', 1)"
    python.turn.cast_id, python.turn.context = "c_3", ()
    assert await python.value("len(context)") == "1"


async def test_the_loom_is_an_object_where_it_is_shown(make) -> None:
    python = await make(medium=CodeMedium(loom=True))
    python.turn.turns = [{"id": f"t{n}", "utterance": {"content": "x" * n}} for n in range(120)]
    code = "len(loom), loom[0]['id'], loom[-1]['id'], len(list(loom)), [t['id'] for t in loom[3:5]]"
    assert await python.value(code) == "(120, 't0', 't119', 120, ['t3', 't4'])"
    assert "IndexError" in ((await python("loom[120]")).error or "")
    assert "NameError" in ((await (await make())("loom")).error or "")


async def test_a_loom_of_large_turns_is_read_in_smaller_pieces(make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cantrip_acp.sandbox.Worker.largest_answer", 50_000)
    python = await make(medium=CodeMedium(loom=True))
    python.turn.turns = [{"id": f"t{n}", "text": "x" * 20_000} for n in range(9)] + [{"id": "t9", "text": "x" * 60_000}]
    assert await python.value("import itertools\n[t['id'] for t in itertools.islice(loom, 9)][-1]") == "'t8'"
    assert "turn 9 of the loom cannot be read" in ((await python("loom[9]")).error or "")


@both_back_ends
async def test_threads_live_from_cell_to_cell(python) -> None:
    await python(
        "import threading, time\nticks = []\ndef tick():\n    while True:\n        ticks.append(1); time.sleep(0.005)\n"
        "threading.Thread(target=tick, daemon=True).start()\nwhile not ticks: time.sleep(0.005)"
    )
    first = int(await python.value("len(ticks)") or 0)
    await python("before = len(ticks)\nwhile len(ticks) == before: time.sleep(0.005)")
    assert 0 < first < int(await python.value("len(ticks)") or 0)


async def test_tasks_live_from_cell_to_cell(python) -> None:
    await python(
        "import asyncio\nasync def later():\n    await asyncio.sleep(0.01)\n    return 'late'\n"
        "task = asyncio.create_task(later())\nawait asyncio.sleep(0)"
    )
    assert await python.value("await task") == "'late'"
    assert await python.value("asyncio.run(later())") == "'late'"


async def test_generators_live_from_cell_to_cell(python) -> None:
    await python("def count():\n    n = 0\n    while True:\n        n += 1\n        yield n\nc = count(); next(c)")
    assert await python.value("next(c)") == "2"


async def test_pools_of_processes_work(python) -> None:
    code = "import multiprocessing as mp\ndef f(n): return n * n\n"
    code += "with mp.get_context('fork').Pool(2) as pool: r = pool.map(f, range(4))\nr"
    assert await python.value(code) == "[0, 1, 4, 9]"


@pytest.mark.parametrize(
    ("args", "error"),
    [
        ("{", "not valid JSON"),
        ("[]", "takes a JSON object"),
        ("{}", "missing required argument 'code'"),
        ('{"code": 3}', "must be text"),
        ('{"code": "1", "x": 2}', "unknown: 'x'"),
        ('{"code": "  "}', "empty"),
    ],
)
async def test_malformed_calls_are_observations(python, args: str, error: str) -> None:
    from cantrip_acp.types.messages import ToolCall

    output = await python.session.run(ToolCall("t", "python", args), python.turn)
    assert error in (output.error or "")
