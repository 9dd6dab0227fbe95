"""The gate shell: commands in the sandbox beside Python, with the wards of the circle."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import anyio
import pytest

from cantrip_acp import Call, Cantrip, Circle, ScriptedCrystal
from cantrip_acp.types.records import GateRecord, Turn

pytestmark = pytest.mark.sandbox


def cell(code: str) -> dict[str, Any]:
    return {"tool_calls": [{"gate": "python", "args": {"code": code}}]}


def entity(workspace: Path, *script: Any, medium: str = "code", gates: Any = ("done", "shell"), **wards: Any) -> Any:
    given = {"max_turns": 9, "bash_writable_paths": ["workspace"]} | wards
    circle = Circle(medium, list(gates), [{name: value} for name, value in given.items()], workspace=workspace)
    return Cantrip(crystal=ScriptedCrystal([*script]), call=Call(), circle=circle).invoke()


def records(entity: Any) -> list[GateRecord]:
    turns = [each for each in entity.loom.records() if isinstance(each, Turn)]
    return [record for turn in turns for record in turn.observation.results if record.gate == "shell"]


async def results(workspace: Path, *commands: str, **options: Any) -> list[Any]:
    """The results of commands, each in a cell of its own."""
    script = [cell(f"shell({command!r})") for command in commands]
    async with entity(workspace, *script, cell("done('ok')"), **options) as one:
        assert (await one.cast("Work.")).result == "ok"
        return [record.result for record in records(one)]


async def test_a_command_writes_and_its_result_is_data(workspace: Path) -> None:
    first, second, third = await results(
        workspace,
        "mkdir out; echo hello > out/file; echo no >&2; exit 3",
        "cat out/file; pwd",
        "echo ${X-unset}; kill $$",
    )
    assert (first["ok"], first["exit_code"], first["stdout"], first["stderr"]) == (False, 3, "", "no\n")
    assert (second["ok"], second["stdout"]) == (True, f"hello\n{workspace}\n")
    assert (third["stdout"], third["note"]) == ("unset\n", "ended by SIGTERM")
    assert (workspace / "out" / "file").read_text() == "hello\n"


async def test_python_goes_on_with_the_result(workspace: Path) -> None:
    code = "names = [shell(f'echo {n} > {n}; ls ?')['stdout'].split() for n in ('a', 'b')]\ndone(names)"
    async with entity(workspace, cell(code)) as one:
        assert (await one.cast("Work.")).result == [["a"], ["a", "b"]]


async def test_the_wards_of_the_circle_hold(workspace: Path) -> None:
    (found,) = await results(
        workspace, "echo x > file; echo y > ~/home; curl -sS https://example.org", bash_writable_paths=[]
    )
    assert "Read-only file system" in found["stderr"]
    assert "nobody can be asked here" in found["stderr"], "the network is a question, and nobody is there"
    assert not (workspace / "file").exists()
    (found,) = await results(workspace, "sleep 60", bash_timeout_ms=300)
    assert found["exit_code"] is None
    assert found["note"] == "stopped after 0.3 seconds; start runs what takes longer"
    (found,) = await results(workspace, "head -c 3000000 /dev/zero | tr '\\0' x", bash_max_output_bytes=10_000)
    assert len(found["stdout"]) < 11_000
    assert "output was shortened in the middle" in found["note"]


async def test_a_refused_write_is_explained(workspace: Path) -> None:
    (workspace / ".vscode").mkdir()
    (found,) = await results(workspace, "echo x > .vscode/tasks.json")
    assert "cantrip: .vscode is protected here, because" in found["stderr"]


async def test_a_time_limit_of_the_call_and_wrong_arguments(workspace: Path) -> None:
    code = (
        "print(shell('sleep 60', timeout_s=0.3)['note'])\n"
        "for bad in ({'command': ' '}, {'command': 'a\\0b'}, {'command': 'x', 'timeout_s': -1}, {}, {'command': 5}):\n"
        "    try: shell(**bad); print('ran')\n"
        "    except GateError as error: print(error)\n"
        "done('ok')"
    )
    async with entity(workspace, cell(code)) as one:
        result = await one.cast("Work.")
        turn = next(each for each in one.loom.records() if isinstance(each, Turn) and each.observation.output)
        assert result.result == "ok", turn.observation.output
        lines = turn.observation.output.stdout.splitlines()
    assert lines[0].startswith("stopped after 0.3 seconds")
    assert "ran" not in lines
    assert sum("NUL" in line for line in lines) == 2, lines


async def test_a_cancel_kills_the_command(workspace: Path) -> None:
    command = "echo $$ > started; (setsid sleep 300 & echo go > go; wait)"
    async with entity(workspace, cell(f"shell({command!r})")) as one:
        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                group.start_soon(one.cast, "Work.")
                while not (workspace / "go").exists():
                    await anyio.sleep(0.02)
                began = time.monotonic()
                group.cancel_scope.cancel()
        assert time.monotonic() - began < 20
    marks = [path for path in Path("/proc").glob("[0-9]*/cmdline") if _reads(path) == b"sleep\x00300\x00"]
    assert marks == []


def _reads(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


async def test_a_command_reaches_a_service(workspace: Path) -> None:
    (workspace / "page").write_text("served\n")
    code = (
        "start('python3 -m http.server 3456 --bind 127.0.0.1', name='web')\n"
        "get = 'for i in $(seq 100); do curl -sS localhost:3456/page && break; sleep 0.1; done 2>/dev/null'\n"
        "got = shell(get)\n"
        "done(got['stdout'])"
    )
    async with entity(workspace, cell(code), gates=["done", "shell", "start", "output", "stop"]) as one:
        assert (await one.cast("Work.")).result == "served\n"


async def test_in_a_conversation_it_is_a_tool(workspace: Path) -> None:
    script = [
        {"tool_calls": [{"gate": "shell", "args": {"command": "echo x > file; cat file"}}]},
        {"content": "Ready."},
    ]
    async with entity(workspace, *script, medium="conversation") as one:
        assert (await one.cast("Work.")).result == "Ready."
        (record,) = records(one)
    assert record.result["stdout"] == "x\n"
    assert record.title == "$ echo x > file; cat file"
