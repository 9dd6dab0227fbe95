"""Services: commands that go on beside an entity's turns, in casts with a real sandbox."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from cantrip_acp import Call, Cantrip, Circle, Loom, ScriptedCrystal
from cantrip_acp.types.records import ContextRecord, Record, ServiceRecord, Turn

pytestmark = pytest.mark.sandbox

GATES = ["done", "start", "output", "stop"]
FETCH = "for i in $(seq 100); do curl -sS --noproxy '*' localhost:3000/page && break; sleep 0.1; done 2>/dev/null"


def bash(command: str) -> dict[str, Any]:
    return {"tool_calls": [{"gate": "bash", "args": {"command": command}}]}


def python(code: str) -> dict[str, Any]:
    return {"tool_calls": [{"gate": "python", "args": {"code": code}}]}


def cantrip(
    workspace: Path, script: list[Any], medium: str = "bash", wards: Any = (), loom: Loom | None = None
) -> Cantrip:
    circle = Circle(
        medium,
        [*GATES, "call_agent"],
        [{"max_turns": 30}, {"bash_writable_paths": ["workspace"]}, *wards],
        workspace=workspace,
    )
    return Cantrip(crystal=ScriptedCrystal(script), call=Call(), circle=circle, loom=loom)


def printed(entity: Any) -> str:
    """What the programs of an entity printed, and the results of its gates."""
    texts = []
    for record in entity.loom.records():
        if isinstance(record, Turn) and record.entity_id == entity.id:
            texts += [f"{o.stdout}{o.stderr}{o.error or ''}" for o in [record.observation.output] if o is not None]
            texts += [str(each.result) for each in record.observation.results if each.tool_call_id is not None]
    return "\n".join(texts)


def of_kind(entity: Any, kind: type[Record]) -> list[Any]:
    return [each for each in entity.loom.records() if isinstance(each, kind)]


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "page").write_text("from the service\n")
    return folder


async def test_commands_reach_a_service_on_localhost(workspace: Path) -> None:
    script = [
        # The command that starts it reaches it too: the services share the network of that command.
        bash(f"start 'python3 -m http.server 3000' --name web; {FETCH}"),
        bash(FETCH),
        bash("output web; output; stop web; output web"),
        bash("curl -sS --noproxy '*' -m 5 localhost:3000/page; cantrip_done ok"),
    ]
    async with cantrip(workspace, script).invoke() as entity:
        await entity.cast("serve")
        text = printed(entity)
        assert text.count("from the service") == 2
        assert "Serving HTTP on" in text
        assert "web (python3 -m http.server 3000): running for" in text
        assert "web (python3 -m http.server 3000) ended after" in text
        assert "stopped; exit status 143, SIGTERM" in text
        assert "Failed to connect to localhost" in text
        first, last = of_kind(entity, ServiceRecord)
        assert (first.event, first.name, first.command) == ("start", "web", "python3 -m http.server 3000")
        assert (last.event, last.id, last.exit_code, last.signal) == ("end", first.id, 143, "SIGTERM")


async def test_cells_reach_a_service(workspace: Path) -> None:
    code = """
name = start("python3 -m http.server 3000")
import time, urllib.request
for _ in range(100):
    try:
        print(urllib.request.urlopen("http://localhost:3000/page").read().decode())
        break
    except OSError:
        time.sleep(0.1)
print(output(name))
"""
    script = [
        python(code),
        python(code.replace('start("python3 -m http.server 3000")', "name")),
        python("done(stop(name))"),
    ]
    async with cantrip(workspace, script, "code").invoke() as entity:
        result = await entity.cast("serve")
        assert printed(entity).count("from the service") == 2
        assert "SIGTERM" in str(result.result)


async def test_a_conversation_has_them_as_tools(workspace: Path) -> None:
    script = [
        {"tool_calls": [{"gate": "start", "args": {"command": "echo one; sleep 100", "name": "build"}}]},
        {"tool_calls": [{"gate": "output", "args": {"id": "build", "wait_s": 20, "until": "one"}}]},
        {"tool_calls": [{"gate": "stop", "args": {"id": "build"}}]},
        {"tool_calls": [{"gate": "done", "args": {"answer": "ok"}}]},
    ]
    async with cantrip(workspace, script, "conversation").invoke() as entity:
        await entity.cast("build")
        assert "build\none\n[running for" in printed(entity)


async def test_an_end_is_told_once_and_a_running_one_at_the_next_cast(workspace: Path) -> None:
    script = [
        bash("start 'sleep 0.8; echo over; exit 3' --name job; start 'sleep 1000' --name db"),
        bash("sleep 1.5"),
        bash("output job"),
        bash("cantrip_done one"),
        bash("cantrip_done two"),
    ]
    async with cantrip(workspace, script).invoke() as entity:
        await entity.cast("first")
        await entity.cast("second")
        notes = [each.text for each in of_kind(entity, ContextRecord) if each.title == "Services"]
        assert len(notes) == 2
        assert notes[0].startswith("service job (sleep 0.8; echo over; exit 3) ended after")
        assert "exit status 3" in notes[0]
        assert notes[1].startswith("service db (sleep 1000) is running for")
        assert "over\n[ended after" in printed(entity)


async def test_a_command_that_cannot_run_is_an_error_with_its_output(workspace: Path) -> None:
    script = [
        bash("start no-such-program; echo status $?; output"),
        bash("start ' '; start a --name 'b c'; cantrip_done x"),
    ]
    async with cantrip(workspace, script).invoke() as entity:
        await entity.cast("go")
        text = printed(entity)
        assert "ended at once: exit status 127" in text
        assert "command not found" in text
        assert "status 1" in text
        assert "no services" in text
        assert "the name of a service has" in text


async def test_they_are_counted(workspace: Path) -> None:
    script = [bash("for i in 1 2 3; do start 'sleep 1000'; done; cantrip_done x")]
    async with cantrip(workspace, script, wards=[{"max_services": 2}]).invoke() as entity:
        await entity.cast("go")
        assert "2 services may run at once (max_services); these run: s1, s2" in printed(entity)
        assert len(of_kind(entity, ServiceRecord)) == 2


async def test_other_wards_end_them(workspace: Path) -> None:
    script = [bash("start 'sleep 1000' --name db"), bash("cantrip_done x"), bash("output; cantrip_done y")]
    async with cantrip(workspace, script).invoke() as entity:
        await entity.cast("first")
        entity.set_wards(entity.circle.wards.of([{"max_turns": 30}, {"bash_writable_paths": []}]))
        await entity.cast("second")
        assert "ended after" in printed(entity)
        assert of_kind(entity, ServiceRecord)[-1].why == "it was killed: what commands may do was changed"


async def test_a_child_has_none_of_its_parents(workspace: Path) -> None:
    child = [bash(f'output; {FETCH.replace("100", "3")}; cantrip_done "$(output)"')]
    script = [
        bash(f"start 'python3 -m http.server 3000' --name web; {FETCH}"),
        bash("call_agent 'look'; cantrip_done x"),
    ]
    made = cantrip(workspace, [script[0], script[1], *child])
    async with made.invoke() as entity:
        await entity.cast("go")
        whole = "\n".join(str(each) for each in entity.loom.records() if isinstance(each, Turn))
        assert "no services" in whole
        assert whole.count("from the service") == 1


async def test_a_fork_has_none_and_is_told(workspace: Path) -> None:
    script = [bash("start 'sleep 1000' --name db"), bash("cantrip_done x"), bash("output; cantrip_done y")]
    async with cantrip(workspace, script).invoke() as entity:
        await entity.cast("first")
        fork = await entity.fork()
        async with fork:
            await fork.cast("second")
            assert "no services" in printed(fork)
            (note,) = [each.text for each in of_kind(fork, ContextRecord) if each.entity_id == fork.id]
            assert note == "these services do not run any more, start them again if you need them: db (sleep 1000)"
        assert [each.name for each in entity.executor.services.running] == ["db"]


CHILD = """
import asyncio, sys
from pathlib import Path
from cantrip_acp import Call, Cantrip, Circle, Loom, ScriptedCrystal
call = lambda c: {"tool_calls": [{"gate": "bash", "args": {"command": c}}]}
async def main():
    wards = [{"max_turns": 9}, {"bash_writable_paths": ["workspace"]}]
    circle = Circle("bash", ["done", "start"], wards, workspace=sys.argv[1])
    service = "setsid sh -c 'touch alive; exec sleep 1000.%s' & sleep 1000" % sys.argv[3]
    crystal = ScriptedCrystal([call('start "%s" --name db; cantrip_done x' % service)])
    made = Cantrip(crystal=crystal, call=Call(), circle=circle, loom=Loom.open(sys.argv[2]))
    async with made.invoke(entity_id="e_killed") as e:
        await e.cast("go")
        print("ready", flush=True)
        await asyncio.sleep(1000)
asyncio.run(main())
"""


def processes_with(mark: str) -> list[int]:
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{name}/cmdline").read_bytes()
        except OSError:
            continue
        if mark.encode() in words and int(name) != os.getpid():
            found.append(int(name))
    return found


@contextmanager
def killed_session(workspace: Path, loom: Path) -> Iterator[str]:
    """A session in a process of its own that was killed while a service ran. Yields a mark of the service's processes."""
    mark = f"{time.time_ns()}"
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, str(workspace), str(loom), mark], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        wait_until(lambda: bool(processes_with(f"1000.{mark}")) and (workspace / "alive").exists())
        process.send_signal(signal.SIGKILL)
    yield mark


def wait_until(condition: Callable[[], bool], seconds: float = 20) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not come"
        time.sleep(0.02)


async def test_nothing_outlives_a_killed_session_and_the_loom_says_so(workspace: Path, tmp_path: Path) -> None:
    path = tmp_path / "work.jsonl"
    with killed_session(workspace, path) as mark:
        await anyio.to_thread.run_sync(wait_until, lambda: not processes_with(f"1000.{mark}"))
    loom = Loom.open(path)
    try:
        with_services = cantrip(workspace, [], loom=loom)
        assert [each.event for each in loom.records() if isinstance(each, ServiceRecord)] == ["start"]
        from cantrip_acp.core.forking.resume import resume_entity

        resumed = await anyio.to_thread.run_sync(resume_entity, with_services, loom, "e_killed")
        async with resumed.entity as entity:
            start, end = of_kind(entity, ServiceRecord)
            assert (end.event, end.id, end.why) == ("end", start.id, "the process of its session ended")
            (note,) = entity.executor.services.take_notes()
            assert note.startswith("these services do not run any more")
            assert "db (setsid" in note
    finally:
        loom.close()


async def test_closing_ends_them_even_if_they_refuse(workspace: Path) -> None:
    mark = f"1000.{time.time_ns()}"
    script = [
        bash(f"start \"trap '' TERM; (trap '' TERM; setsid sleep {mark}) & sleep {mark}\" --name deaf; cantrip_done x")
    ]
    async with cantrip(workspace, script).invoke() as entity:
        await entity.cast("go")
        await anyio.to_thread.run_sync(wait_until, lambda: len(processes_with(mark)) >= 2)
    assert processes_with(mark) == []
    assert of_kind(entity, ServiceRecord)[-1].why == "the session ended"
