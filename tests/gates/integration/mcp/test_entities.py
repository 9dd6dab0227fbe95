"""Servers' tools in entities: in every medium, under wards, in forks and replays, gone with the entity."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import anyio
import pytest

from cantrip_acp import Cantrip, Circle, ScriptedCrystal
from cantrip_acp.core.forking.replay import replay
from cantrip_acp.gates.mcp.connection import McpError
from cantrip_acp.gates.mcp.declaration import McpServer
from cantrip_acp.gates.mcp.servers import McpServers
from cantrip_acp.loom.loom import Loom
from cantrip_acp.types import events

pytestmark = pytest.mark.anyio


def cantrip(program: str, folder: Path, *script: Any, medium: str = "conversation", **options: Any) -> Cantrip:
    server = McpServer(name="tools", command=sys.executable, args=(program,), start_s=60, **options.pop("server", {}))
    wards = [{"max_turns": 9}, *options.pop("wards", [])]
    circle = Circle(medium, ["done", *options.pop("gates", [])], wards, workspace=folder)
    return Cantrip(ScriptedCrystal(list(script)), circle=circle, sources=[McpServers([server])], **options)


def calls(*named: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    return {"tool_calls": [{"gate": gate, "args": args} for gate, args in named]}


@pytest.mark.parametrize(
    ("medium", "says"),
    [
        ("conversation", [calls(("tools.add", {"a": 2, "b": 3})), calls(("done", {"answer": "5"}))]),
        ("bash", [{"bash": "cantrip_done $(tools_add 2 3)"}]),
        ("code", [{"code": "done(str(tools_add(a=2, b=3)))"}]),
    ],
)
async def test_a_tool_is_a_gate_in_every_medium(program: str, tmp_path: Path, medium: str, says: list[Any]) -> None:
    loom = Loom.memory()
    result = await cantrip(program, tmp_path, *says, medium=medium, loom=loom).cast("Add.")
    assert result.result == "5"
    turns = loom.thread(loom.leaves()[-1])
    record = next(r for t in turns for r in t.observation.results if r.gate == "tools.add")
    assert (record.args, record.result, record.is_error) == ({"a": 2, "b": 3}, 5, False)
    declared = loom.cantrip(turns.leaf.cantrip_id)
    assert declared is not None
    assert "tools.add" in [gate["name"] for gate in declared.circle["gates"]]


async def test_arguments_are_checked_before_the_server_is_asked(program: str, tmp_path: Path) -> None:
    spell = cantrip(program, tmp_path, calls(("tools.add", {"a": 2})), calls(("done", {"answer": "x"})))
    async with spell.invoke() as entity:
        await entity.cast("Add.")
        first = entity.loom.thread(entity.last_turn)[1]
    assert first.observation.results[0].is_error
    assert "missing required argument 'b' of gate tools.add(a, b)" in first.observation.results[0].result


async def test_a_ward_takes_a_tool_away(program: str, tmp_path: Path) -> None:
    script = [calls(("tools.add", {"a": 1, "b": 1})), calls(("done", {"answer": "x"}))]
    spell = cantrip(program, tmp_path, *script, wards=[{"remove_gate": ["tools.add"]}])
    async with spell.invoke() as entity:
        await entity.cast("Add.")
        first = entity.loom.thread(entity.last_turn)[1]
        assert "tools.echo" in entity.circle.gates
    (record,) = first.observation.results
    assert "gate not available: 'tools.add'" in record.result
    assert record.annotations["error"] == "there is no gate 'tools.add' here. The ward remove_gate removes it."


async def test_an_empty_list_is_a_list(tmp_path: Path) -> None:
    source = Path(__file__).parents[3] / "support" / "plain_mcp_server.py"
    empty = '    return {"content": [], "structuredContent": {"result": []}, "isError": False}\n'
    changed = source.read_text().replace("def fail(why: str) -> Any:\n", f"def fail(why: str) -> Any:\n{empty}")
    (tmp_path / "toolserver.py").write_text(changed)
    script = [calls(("tools.fail", {"why": "x"})), calls(("done", {"answer": "ok"}))]
    async with cantrip(str(tmp_path / "toolserver.py"), tmp_path, *script).invoke() as entity:
        await entity.cast("Go on.")
        assert entity.loom.thread(entity.last_turn)[1].observation.results[0].result == []


async def test_what_cannot_be_reached_is_told_and_the_entity_goes_on(tmp_path: Path) -> None:
    circle = Circle(gates=["done"], wards=[{"max_turns": 2}], workspace=tmp_path)
    broken = McpServers([McpServer(name="broken", command="no-such-program-here")])
    spell = Cantrip(ScriptedCrystal([calls(("done", {"answer": "ok"}))]), circle=circle, sources=[broken])
    async with spell.cast_stream("Go on.") as stream:
        told = [event.text async for event in stream if isinstance(event, events.Noticed)]
    assert stream.result.result == "ok"
    assert len(told) == 1
    assert "MCP server 'broken' cannot be reached" in told[0]
    assert stream.result.warnings == tuple(told)


async def test_a_result_says_why_a_server_did_not_start_and_so_does_a_call_of_its_gate(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import sys\nprint('set NOTES_DIR', file=sys.stderr)\nsys.exit(3)\n")
    circle = Circle(gates=["done"], wards=[{"max_turns": 3}], workspace=tmp_path)
    broken = McpServers([McpServer(name="notes", command=sys.executable, args=("broken.py",))])
    script = [calls(("notes.add", {"text": "x"})), calls(("done", {"answer": "ok"}))]
    loom = Loom.memory()
    spell = Cantrip(ScriptedCrystal([*script, *script]), circle=circle, sources=[broken], loom=loom)
    async with spell.invoke() as entity:
        for result in [await entity.cast("Go on."), await entity.cast("Again.")]:
            (warning,) = result.warnings
            for part in ("MCP server 'notes'", "exit status 3", "set NOTES_DIR", "correct this and start again"):
                assert part in warning
            assert result.record()["warnings"] == [warning]
        record = loom.thread(entity.last_turn)[1].observation.results[0]
    assert record.result.startswith("gate not available: 'notes.add'. This circle has: done.")
    assert "set NOTES_DIR" in record.result


async def test_people_see_what_the_server_wrote_to_its_standard_error_when_its_tool_failed(tmp_path: Path) -> None:
    source = Path(__file__).parents[3] / "support" / "plain_mcp_server.py"
    told = source.read_text().replace(
        "def fail(why: str) -> Any:\n",
        "def fail(why: str) -> Any:\n    print('no disk', file=sys.stderr, flush=True)\n",
    )
    (tmp_path / "toolserver.py").write_text(told)
    script = [calls(("tools.fail", {"why": "broken"})), calls(("done", {"answer": "ok"}))]
    async with cantrip(str(tmp_path / "toolserver.py"), tmp_path, *script).cast_stream("Go on.") as stream:
        ended = [event.record async for event in stream if isinstance(event, events.GateFinished)]
    assert ended[0].is_error
    assert "no disk" not in ended[0].result
    assert ended[0].annotations["error"] == f"{ended[0].result}\nthe server's standard error: no disk"


async def test_the_cause_of_a_fault_in_a_tool_is_shown_and_not_the_box_around_it(tmp_path: Path) -> None:
    # The official SDK logs with rich, which draws boxes around the source.
    source = (
        "from mcp.server import MCPServer\nserver = MCPServer('tools')\n"
        "@server.tool()\ndef fail(why: str) -> str:\n    'Fails.'\n    return {}['beer']\nserver.run('stdio')\n"
    )
    (tmp_path / "toolserver.py").write_text(source)
    script = [calls(("tools.fail", {"why": "broken"})), calls(("done", {"answer": "ok"}))]
    async with cantrip(str(tmp_path / "toolserver.py"), tmp_path, *script).cast_stream("Go on.") as stream:
        ended = [event.record async for event in stream if isinstance(event, events.GateFinished)]
    shown = ended[0].annotations["error"]
    assert "KeyError: 'beer'" in shown
    assert "│" not in shown
    assert str(tmp_path) not in ended[0].result


async def test_one_that_is_required_fails_the_cast(tmp_path: Path) -> None:
    circle = Circle(gates=["done"], wards=[{"max_turns": 2}], workspace=tmp_path)
    broken = McpServers([McpServer(name="broken", command="no-such-program-here", required=True)])
    with pytest.raises(McpError, match="'broken' cannot be reached"):
        await Cantrip(ScriptedCrystal([]), circle=circle, sources=[broken]).cast("Go on.")


async def test_a_cancel_does_not_wait_for_a_server(tmp_path: Path) -> None:
    circle = Circle(gates=["done"], wards=[{"max_turns": 2}], workspace=tmp_path)
    silent = McpServers([McpServer(name="silent", command="sleep", args=("1000",), start_s=100)])
    spell = Cantrip(ScriptedCrystal([calls(("done", {"answer": "ok"}))]), circle=circle, sources=[silent])
    async with spell.invoke() as entity:
        began = time.monotonic()
        async with anyio.create_task_group() as group:
            results: list[Any] = []

            async def run() -> None:
                results.append(await entity.cast("Wait."))

            group.start_soon(run)
            await anyio.sleep(1)
            assert entity.cancel()
        assert results[0].reason == "cancelled"
        assert time.monotonic() - began < 30


async def test_a_fork_has_the_tools_too_and_a_recorded_replay_needs_no_server(program: str, tmp_path: Path) -> None:
    loom = Loom.memory()
    cell = {"code": "total = tools_add(a=2, b=3)"}
    spell = cantrip(program, tmp_path, cell, {"code": "done(str(total))"}, medium="code", loom=loom)
    result = await spell.cast("Add.")
    assert result.result == "5"
    turns = list(loom.thread(loom.leaves()[-1]))
    again = cantrip(program, tmp_path, {"code": "done(str(total + tools_add(a=total, b=1)))"}, medium="code", loom=loom)
    fork = await again.fork(turns[1].id, state="auto")
    try:
        assert (await fork.cast("Add more.")).result == "11"
    finally:
        await fork.close()
    gone = cantrip(str(tmp_path / "gone.py"), tmp_path, medium="code", loom=loom)
    replayed = await replay(gone, loom, turns[-1].id, recorded_gates=True)
    assert replayed.divergence is None
    assert replayed.turns == 2
