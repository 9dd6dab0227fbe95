"""Gates as functions of a cell, and as commands of what it starts."""

from __future__ import annotations

import anyio
import pytest

from cantrip_acp import Call, Cantrip, Circle, ScriptedCrystal
from cantrip_acp.gates.contract import Gate
from cantrip_acp.types.errors import GateError
from tests.sandbox.integration.conftest import both_back_ends

pytestmark = pytest.mark.anyio


def place(path: str, line: int = 1, deep: bool = False) -> str:
    """Say where.

    More of it.
    """
    return f"{path}:{line}:{deep}"


@pytest.mark.parametrize(
    ("call", "args"),
    [
        ("place('a')", {"path": "a"}),
        ("place('a', 2, True)", {"path": "a", "line": 2, "deep": True}),
        ("place('a', deep=True)", {"path": "a", "deep": True}),
        ("place({'path': 'a', 'line': 3})", {"path": "a", "line": 3}),
        ("place({'path': 'a', 'lime': 3})", {"path": "a", "lime": 3}),
        ("place('a', None)", {"path": "a"}),
        ("place('a', line=...)", {"path": "a"}),
        ("place(__import__('pathlib').Path('/x'))", {"path": "/x"}),
        ("place('a', nope={1})", {"path": "a", "nope": [1]}),
    ],
)
async def test_arguments_in_every_way(make, call: str, args: object) -> None:
    python = await make(place=place)
    await python(call)
    assert python.turn.calls == [("place", args)]


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("place(1, 2, 3, 4)", "TypeError: place() takes 3 arguments, 4 were given"),
        ("place('a', path='b')", "TypeError: place() got two values for 'path'"),
        ("place(object())", "GateError: arguments of place are not JSON data: a object is not JSON data"),
        ("place(float('nan'))", "GateError: arguments of place are not JSON data"),
        ("a = []; a.append(a); place(a)", "GateError: arguments of place are not JSON data: Circular reference"),
        ("place('x' * 9_000_000)", "GateError: arguments of place are not JSON data: they are 9,000,0"),
    ],
)
async def test_what_is_no_call_does_not_leave_the_worker(make, call: str, error: str) -> None:
    python = await make(place=place)
    output = await python(call)
    assert error in (output.error or "")
    assert python.turn.calls == []


async def test_real_signatures_and_docstrings(make) -> None:
    python = await make(place=place)
    code = "import inspect\nstr(inspect.signature(place)), place.__doc__[:10], place.__name__"
    assert await python.value(code) == "('(path: str, line: int = 1, deep: bool = False)', 'Say where.', 'place')"


async def test_plain_data_comes_back(make) -> None:
    def tree() -> dict:
        return {"list": [1, 2.5, None, True], "text": "é\n\u2028\0", "empty": {}, "big": 10**30}

    python = await make(tree=tree)
    assert (
        await python.value("t = tree(); t['list'], t['text'], t['big']")
        == r"([1, 2.5, None, True], 'é\n\u2028\x00', 1000000000000000000000000000000)"
    )


@both_back_ends
async def test_large_results_arrive_whole(make) -> None:
    def large() -> str:
        return "é" * 3_000_000

    python = await make(large=large)
    assert await python.value("len(large()), len(large())") == "(3000000, 3000000)"


async def test_a_result_that_is_too_large_is_an_error(make, monkeypatch) -> None:
    monkeypatch.setattr("cantrip_acp.sandbox.Worker.largest_answer", 1000)

    def large() -> str:
        return "x" * 3000

    python = await make(large=large)
    assert "GateError: the gate's result is too large" in ((await python("large()")).error or "")


@both_back_ends
async def test_a_failure_is_a_gate_error_with_the_gates_words(make) -> None:
    def fail() -> None:
        raise GateError("it is broken: \n why")

    python = await make(fail=fail)
    code = "try:\n    fail()\nexcept GateError as e:\n    text = str(e)\ntext"
    assert await python.value(code) == r"'it is broken: \n why'"
    output = await python("fail()")
    assert (output.error or "").endswith("GateError: it is broken: \n why")
    assert "cantrip" not in (output.error or "")


@both_back_ends
async def test_threads_call_at_once(make) -> None:
    under_way, most = 0, 0
    together = anyio.Event()

    async def slow(n: int) -> int:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        if most == 8:
            together.set()
        with anyio.move_on_after(30):
            await together.wait()
        under_way -= 1
        return n * 2

    python = await make(slow=slow)
    code = "from concurrent.futures import ThreadPoolExecutor as Pool\nwith Pool(8) as pool: r = list(pool.map(slow, range(16)))\nr"
    assert await python.value(code) == str([n * 2 for n in range(16)])
    assert most == 8


async def test_tasks_call_by_threads(make) -> None:
    python = await make()
    code = "import asyncio\nawait asyncio.gather(*(asyncio.to_thread(echo, str(n)) for n in range(20)))"
    assert await python.value(code) == str([str(n) for n in range(20)])


@both_back_ends
async def test_commands_of_what_a_cell_starts(python) -> None:
    code = (
        "import subprocess\n"
        "subprocess.run('for n in 1 2 3 4 5; do cantrip_echo $n & done; wait', shell=True, capture_output=True, text=True).stdout"
    )
    for _ in range(3):
        assert sorted(eval(await python.value(code) or "")) == list("12345")
    assert len(python.turn.calls) == 15


@both_back_ends
async def test_slots_of_killed_calls_are_free_again(make) -> None:
    async def never() -> None:
        await anyio.sleep(600)

    python = await make(never=never)
    for _ in range(3):
        await python(
            "import subprocess, time\nfor n in range(30): subprocess.Popen(['cantrip_never'])\ntime.sleep(0.3)"
        )
    assert await python.value("subprocess.run(['cantrip_echo', 'x'], capture_output=True, timeout=60).stdout") == "b'x'"


@both_back_ends
async def test_a_shell_done_ends_the_cell(python) -> None:
    output = await python("import subprocess\nsubprocess.run(['cantrip_done', 'from a shell'])\nprint('more')")
    assert python.turn.answers == ["from a shell"]
    assert "more" not in output.stdout


async def test_gates_come_back_when_they_are_deleted(python) -> None:
    await python("del echo, done")
    assert await python.value("echo('still')") == "'still'"
    await python("echo = None")
    assert await python.value("echo is None") == "True"


@pytest.mark.parametrize(
    "code",
    [
        "done(ANSWER)",
        "done(ANSWER);",
        "submit_answer(ANSWER)",
        "try:\n    done(ANSWER)\nexcept Exception:\n    print('went on')",
        "try:\n    done(ANSWER)\nexcept:\n    print('went on')\nprint('went on')",
        "try:\n    done(ANSWER)\nexcept BaseException as e:\n    print('went on')\nprint('went on')",
        "while True:\n    try:\n        done(ANSWER)\n    except BaseException:\n        pass",
        "def f():\n    try:\n        done(ANSWER)\n    except:\n        return f()\nf()\nprint('went on')",
        "exec('''try:\\n  done(ANSWER)\\nexcept: pass\\nimport time; time.sleep(600)''')",
        "import contextlib, time\nwith contextlib.suppress(BaseException): done(ANSWER)\ntime.sleep(600)\nprint('went on')",
        "import threading\nt = threading.Thread(target=lambda: done(ANSWER)); t.start(); t.join()\nimport time; time.sleep(600)",
        "import asyncio\nasync def f(): done(ANSWER)\nawait asyncio.gather(f(), asyncio.sleep(600))\nprint('went on')",
    ],
)
async def test_done_stops_the_cell_at_once(python, code: str) -> None:
    with anyio.fail_after(60):
        output = await python("kept = 1\n" + code.replace("ANSWER", "{'n': [1, None]}"))
    assert python.turn.answers == [{"n": [1, None]}]
    assert "went on" not in output.stdout
    assert output.error is None
    python.turn.finished = False
    assert await python.value("kept") == "1"


@both_back_ends
async def test_no_gate_after_done(python) -> None:
    await python("import threading\nfor n in range(50): threading.Thread(target=echo, args=('x',)).start()\ndone(1)")
    calls = [name for name, _ in python.turn.calls]
    assert calls.count("done") == 1
    assert "echo" not in calls[calls.index("done") + 1 :]


@both_back_ends
async def test_the_clock_stands_while_gates_work(make) -> None:
    async def long() -> str:
        await anyio.sleep(2.5)
        return "waited"

    python = await make({"code_timeout_ms": 2000}, long=long)
    assert await python.value("long()") == "'waited'"


def scripted(*responses: dict, gates: tuple = ("done", "echo"), **options: object) -> Cantrip:
    crystal = ScriptedCrystal(list(responses), record_inputs=True)
    return Cantrip(crystal, Call(**options), Circle("code", gates, {"max_turns": 9}))  # type: ignore[arg-type]


@both_back_ends
async def test_through_the_loop_calls_are_recorded(back_end: str) -> None:
    cantrip = scripted({"code": "x = echo('a') + echo('b')"}, {"code": "done({'x': x})"})
    result = await cantrip.cast("go")
    assert (result.result, result.reason) == ({"x": "ab"}, "done")
    turns = [t for t in cantrip.loom.turns() if t.role == "crystal"]
    assert turns[0].gate_calls == ("echo", "echo")
    assert [r.result for r in turns[0].observation.results] == ["a", "b"]
    assert turns[0].utterance.code == "x = echo('a') + echo('b')"
    assert turns[1].gate_calls == ("done",)


async def test_a_direct_call_of_a_gate_still_works() -> None:
    cantrip = scripted(
        {"tool_calls": [{"gate": "echo", "args": {"text": "hi"}}, {"gate": "python", "args": {"code": "1 + 1"}}]},
        {"content": "fine"},
    )
    result = await cantrip.cast("go")
    assert result.result == "fine"
    said = [m.content for m in cantrip.crystal.invocations[1].messages if m.role == "tool"]  # type: ignore[union-attr]
    assert said == ["hi", "2"]


async def test_names_with_dots_are_mapped() -> None:
    gate = Gate.of(lambda: "yes", name="server.tool")
    result = await scripted({"code": "done(server_tool())"}, gates=("done", gate)).cast("go")
    assert result.result == "yes"


async def test_a_name_with_a_dot_says_the_name_of_the_function(make) -> None:
    python = await make(**{"notes.add": place, "notes.find": place, "other": place})
    output = await python("notes.add('a')")
    assert output.error.endswith(
        "NameError: name 'notes' is not defined\n[the gate notes.add is the function notes_add here]"
    )
    output = await python("notes")
    assert (
        "the gate notes.add is the function notes_add here; the gate notes.find is the function notes_find"
        in output.error
    )
    assert "[the gate" not in (await python("nothing")).error
    assert (await python("notes_add('a')")).error is None
