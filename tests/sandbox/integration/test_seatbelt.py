"""The back end for macOS where it differs: processes, limits, private folders, failing closed. And the table in bubblewrap.

What every back end must do is in the other files of this folder, in the tests with the mark `both_back_ends`.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import shlex
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from cantrip_acp.cli.errors import run as command_line
from cantrip_acp.files import scratch_copy
from cantrip_acp.sandbox import (
    GateWire,
    Sandbox,
    SandboxOptions,
    Worker,
    WorkerCallbacks,
    interpreter,
    machine,
    messages,
)
from cantrip_acp.sandbox.launch import availability, macos_processes, self_test
from cantrip_acp.sandbox.launch.macos_processes import GroupTree, processes
from cantrip_acp.sandbox.policy.policy import MIB
from cantrip_acp.sandbox.worker.child_processes import GroupProcesses
from cantrip_acp.types.errors import SandboxError, SandboxMissing
from tests.sandbox.integration.conftest import Make
from tests.sandbox.unit import test_seatbelt_table as table
from tests.support.waiting import wait_for

ROOT = Path(__file__).parents[3]
on_linux = pytest.mark.skipif(sys.platform == "darwin", reason="a program stands in for sandbox-exec")
with_seatbelt = pytest.mark.parametrize("back_end", ["seatbelt"], indirect=True)


def program(folder: Path, text: str) -> str:
    path = folder / "sandbox-exec"
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)
    return str(path)


OPEN = 'while [ "$1" = -D ] || [ "$1" = -f ]; do shift 2; done; exec "$@"'
"""A sandbox-exec that runs the command without any sandbox. Only for commands that do no harm."""


@pytest.fixture
def replaced(back_end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    def use(text: str) -> None:
        # It becomes the command, as sandbox-exec does.
        monkeypatch.setattr(GroupTree, "command_process", lambda tree: tree.pid)
        monkeypatch.setattr(availability.find_sandbox_exec, "__defaults__", (program(tmp_path, text),))

    return use


@on_linux
@with_seatbelt
async def test_what_left_the_group_of_its_command_is_ended(make: Make, replaced: object) -> None:
    """Without a process namespace the host finds them: by the group, by their parents, by the mark in the environment."""
    replaced(OPEN)  # type: ignore[operator]
    outcome = await make().run(
        "(setsid sleep 1000 & echo $!); set -m; sleep 1000 & echo $!; (env -i setsid sleep 1000 & echo $!); exit 4"
    )
    assert outcome.exit_code == 4, outcome
    started = [int(pid) for pid in outcome.stdout.split()]
    assert len(started) == 3
    left = {pid for pid, row in processes().items() if pid in started and "sleep 1000" in row.words}
    # Without parent, group and environment nothing says whose it is. On a Mac its sandbox does.
    assert left <= {started[2]}
    for pid in left:
        os.kill(pid, signal.SIGKILL)


@on_linux
@with_seatbelt
def test_the_group_ends_when_we_are_killed(back_end: str, tmp_path: Path) -> None:
    code = (
        "import asyncio\nfrom cantrip_acp.sandbox import SandboxOptions\n"
        "from cantrip_acp.sandbox.launch import availability\nfrom cantrip_acp.sandbox.launch.sandbox import Sandbox\n"
        "availability.back_end = lambda: 'seatbelt'\n"
        f"availability.find_sandbox_exec.__defaults__ = ({program(tmp_path, OPEN)!r},)\n"
        "async def show(stream, text): print(text.text, flush=True)\n"
        "asyncio.run(Sandbox(SandboxOptions(), None).run('echo $$; sleep 1000 & wait', listener=show))\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=ROOT) as owner:
        assert owner.stdout is not None
        leader = int(owner.stdout.readline())
        owner.kill()
    wait_for(lambda: all(row.group != leader for row in processes().values()))


@on_linux
@with_seatbelt
@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("echo 'sandbox-exec: sandbox_apply: Operation not permitted' >&2; exit 71", "allows no further sandbox"),
        ("echo 'sandbox-exec: profile:3: unbound variable: x' >&2; exit 65", "unbound variable: x"),
        ("exit 0", "it ended without a message"),
    ],
)
async def test_a_sandbox_exec_that_fails_is_no_result(make: Make, replaced: object, text: str, cause: str) -> None:
    replaced(text)  # type: ignore[operator]
    with pytest.raises(SandboxError, match=cause):
        await make().run("echo hi")


@with_seatbelt
def test_without_sandbox_exec_nothing_runs(back_end: str, monkeypatch: pytest.MonkeyPatch, workspace: Path) -> None:
    monkeypatch.setattr(availability.find_sandbox_exec, "__defaults__", ("/nowhere/sandbox-exec",))
    with pytest.raises(SandboxMissing, match="sandbox-exec is missing"):
        Sandbox(SandboxOptions(), workspace)


@on_linux
@with_seatbelt
async def test_the_medium_does_not_run_where_an_attack_is_not_stopped(
    back_end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What stands in for sandbox-exec has its own numbers of processes and tells upper from lower case. All else is stopped."""
    results = {result.name: result.held for result in await self_test.run_attacks()}
    assert {name for name, held in results.items() if not held} == {"left", "make_git_case", "host"}
    assert len(results) == 10
    monkeypatch.setattr(self_test, "_checked", False)
    with pytest.raises(SandboxMissing, match="does not protect this machine"):
        await self_test.ensure_checked()


@on_linux
@with_seatbelt
def test_doctor_runs_the_attacks(back_end: str, capsys: pytest.CaptureFixture[str]) -> None:
    command_line(["doctor", "--json"])
    found = {row["name"]: row for row in json.loads(capsys.readouterr().out)["findings"]}
    assert found["sandbox.program"]["text"].startswith("sandbox-exec (")
    assert found["sandbox.read_outside"]["state"] == "ok"
    assert found["sandbox.left"]["state"] == "missing"


@with_seatbelt
async def test_a_command_has_folders_of_its_own_that_end_with_it(make: Make) -> None:
    box = make()
    first = await box.run("echo x > $HOME/x; echo x > $TMPDIR/x; echo $HOME $TMPDIR; ls -A $HOME")
    home, temporary = first.stdout.split()[:2]
    assert not os.path.exists(home)
    assert not os.path.exists(temporary)
    assert (await box.run("ls -A $HOME $TMPDIR | grep -x x")).exit_code == 1


@with_seatbelt
async def test_limits_of_a_command(make: Make) -> None:
    outcome = await make().run("ulimit -c; ulimit -n; ulimit -f; ulimit -t")
    core, files, size, seconds = outcome.stdout.split()
    assert (core, int(files)) == ("0", max(4096, resource.getrlimit(resource.RLIMIT_NOFILE)[0]))
    assert int(size) == 1024 * 1024 * MIB // 1024
    assert int(seconds) >= 20


@with_seatbelt
@pytest.mark.parametrize(
    ("command", "changed", "because"),
    [
        ("for n in 1 2 3 4 5 6 7 8 9; do sleep 100 & done; wait", {"processes": 3}, "more than 3 processes"),
        ("head -c 3000000 /dev/zero > $TMPDIR/x; sleep 100", {"temporary": 2 * MIB}, "more than 2 MiB in its private"),
        (
            "x=$(head -c 150000000 /dev/zero | tr '\\0' x); sleep 100",
            {"memory": 64 * MIB},
            "more than 64 MiB of memory",
        ),
    ],
)
async def test_a_command_that_uses_too_much_is_ended(
    make: Make, command: str, changed: dict[str, int], because: str
) -> None:
    box = make()
    prepared = box.prepared()
    policy = replace(prepared.policy, limits=replace(prepared.policy.limits, **changed))
    box._prepared = replace(prepared, policy=policy)
    outcome = await box.run(command)
    assert because in (outcome.ended_because or ""), outcome
    assert outcome.exit_code is None


@with_seatbelt
async def test_what_a_command_left_in_the_folder_of_requests_is_not_there_for_the_next(
    back_end: str, tmp_path: Path
) -> None:
    (tmp_path / "wire").mkdir()
    wire = GateWire({}, str(tmp_path / "wire"))
    box = Sandbox(SandboxOptions(bash_timeout_ms=20_000), None, wire=wire)

    async def call(name: str, args: dict[str, object]) -> tuple[object, bool]:
        return "", False

    fill = f"cd {wire.folder}/requests && mkdir -p 3/deep && echo x > 3/deep/x && ln -s /etc/passwd 4 && echo x > 5; ls"
    assert (await box.run(fill, call=call)).stdout.split() == ["3", "4", "5"]
    assert (await box.run(f"ls -A {wire.folder}/requests", call=call)).stdout == ""
    assert Path("/etc/passwd").exists()


@on_linux
@with_seatbelt
async def test_hosts_are_reached_through_a_port_of_the_command(make: Make) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    script = (
        'ask() { exec 3<>"/dev/tcp/127.0.0.1/${HTTP_PROXY##*:}"; printf "GET http://127.0.0.1:%s/ HTTP/1.1\\r\\n'
        'Host: 127.0.0.1:%s\\r\\n\\r\\n" $1 $1 >&3; IFS= read -r line <&3; echo "$line"; }; '
        f"ask {port}; ask {port + 1}; echo $HTTP_PROXY"
    )
    async with server:
        outcome = await make(bash_network=[f"127.0.0.1:{port}"]).run(script)
    allowed, refused, address = outcome.stdout.splitlines()
    assert " 204 " in allowed
    assert " 403 " in refused
    assert not address.endswith(":21128")


@with_seatbelt
async def test_commands_that_should_write_to_a_copy_do_not_run(make: Make, tmp_path: Path) -> None:
    """The copy cannot be shown in the place of the folder, so the command would write to the folder itself."""
    box = make(writable=True)
    with pytest.raises(SandboxError, match="cannot write to copies"):
        box.write_to_copies(str(tmp_path))
    copies = scratch_copy.Copies(str(tmp_path))
    with scratch_copy.in_force(copies), pytest.raises(SandboxError, match="cannot write to copies"):
        make(writable=True)


class Cells:
    """A code worker, and what it has said. ``run`` runs a cell and returns its value."""

    def __init__(self, box: Sandbox) -> None:
        self.said: list[messages.Message] = []
        callbacks = WorkerCallbacks(output=lambda stream, data: None, said=self.said.append)
        self.worker = Worker(box, interpreter.find(None, box.host), 512, callbacks)

    async def run(self, code: str) -> str | None:
        self.worker.send({"t": "run", "cell": 1, "name": "<cell>", "code": code, "token": "t"})
        self.worker.thaw()
        while not self.said and self.worker.broken is None:
            await self.worker.tree.changed()
        ended = self.said.pop()
        assert isinstance(ended, messages.CellEnded)
        assert ended.error is None, ended.error
        return ended.value


def code_sandbox() -> Sandbox:
    return Sandbox(SandboxOptions(), None, host=interpreter.find(None, machine()).on(machine()))


@on_linux
@with_seatbelt
async def test_what_a_cell_left_running_is_ended_where_the_worker_leads_the_group(replaced: object) -> None:
    """As on a Mac: sandbox-exec becomes the worker, and nothing but `ps` finds what left its group."""
    replaced(OPEN)  # type: ignore[operator]
    cells = Cells(code_sandbox())
    worker = cells.worker
    private = worker._private
    assert private is not None
    try:
        await worker.start({"gates": []}, {})
        assert worker.pid == worker.tree.group
        code = (
            "import subprocess\n[subprocess.Popen(['sleep', '1000'], start_new_session=s).pid for s in (False, True)]"
        )
        left = [int(pid) for pid in (await cells.run(code) or "").strip("[]").split(",")]
        found = processes()
        assert [found[pid].group == worker.pid for pid in left] == [True, False]
        assert await worker.freeze()
        found = processes()
        assert found.keys().isdisjoint(left)
        assert found[worker.pid].stopped
        assert await cells.run("1 + 1") == "2"
        assert await worker.freeze()
    finally:
        worker.close()
    assert all(row.group != worker.pid for row in processes().values())
    assert not os.path.exists(private.folder)


@on_linux
@with_seatbelt
def test_a_worker_that_is_stopped_between_cells_ends_when_we_are_killed(back_end: str, tmp_path: Path) -> None:
    code = (
        "import asyncio\nfrom cantrip_acp.sandbox.launch import availability\n"
        "from cantrip_acp.sandbox.worker.host_side import Worker\n"
        "from tests.sandbox.integration.test_seatbelt import Cells, code_sandbox\n"
        "availability.back_end = lambda: 'seatbelt'\n"
        f"availability.find_sandbox_exec.__defaults__ = ({program(tmp_path, OPEN)!r},)\n"
        "async def main():\n    cells = Cells(code_sandbox())\n    await cells.worker.start({'gates': []}, {})\n"
        "    assert await cells.worker.freeze()\n"
        "    print(cells.worker.pid, flush=True)\n    await asyncio.sleep(100)\n"
        "asyncio.run(main())\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=ROOT) as owner:
        assert owner.stdout is not None
        leader = int(owner.stdout.readline())
        assert processes()[leader].stopped
        owner.kill()
    wait_for(lambda: all(row.group != leader for row in processes().values()))


@on_linux
@with_seatbelt
async def test_without_ps_nothing_counts_as_ended(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody knows then what a command or a cell has left running."""
    cells = Cells(code_sandbox())
    try:
        await cells.worker.start({"gates": []}, {})
        assert await cells.run("1 + 1") == "2"
        assert await cells.worker.freeze()
        monkeypatch.setattr(GroupProcesses, "KILL_WITHIN", 0.1)
        monkeypatch.setattr(macos_processes, "PS", str(tmp_path / "nowhere"))
        assert await cells.run("1 + 1") == "2"
        assert not await cells.worker.freeze()
        assert cells.worker.broken == "its child processes could not be killed"
    finally:
        cells.worker.close()
    assert not cells.worker.tree.status.gone
    outcome = await make().run("echo hi")
    assert (outcome.exit_code, outcome.ended_because) == (None, "not all of its processes could be ended")
    (tmp_path / "ps").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "ps").chmod(0o755)
    monkeypatch.setattr(macos_processes, "PS", str(tmp_path / "ps"))
    assert (await make().run("sleep 100")).ended_because is not None
    second = Cells(code_sandbox()).worker
    with pytest.raises(SandboxError, match="ps did not list the processes"):
        await second.start({"gates": []}, {})
    second.close()


@on_linux
@with_seatbelt
async def test_a_worker_does_not_start_where_sandbox_exec_fails(replaced: object) -> None:
    replaced("echo 'sandbox-exec: sandbox_apply: Operation not permitted' >&2; exit 71")  # type: ignore[operator]
    worker = Cells(code_sandbox()).worker
    with pytest.raises(SandboxMissing, match="allows no further sandbox"):
        await worker.start({"gates": []}, {})
    worker.close()


@on_linux
async def test_the_table_in_the_real_bubblewrap(tmp_path: Path) -> None:
    """The decisions that the table takes from bubblewrap's arguments are those of bubblewrap."""
    table.tree(tmp_path)
    # A new file beside the workspace would be made in the private /tmp that this folder is in.
    # And `bin` of an old environment is a copy (test_environment_programs.py).
    paths = {path for path in (*table.FILES, *table.NEW) if path != "new" and "/.venv/bin/" not in path}
    rows = [(operation, path) for operation, path in table.rows(tmp_path) if path in paths]
    for name in ("read-only", "writable", "the folder above writable"):
        wards = table.POLICIES[name]
        writable = tuple(str(tmp_path / p) for p in wards.get("bash_writable_paths", ()))
        box = Sandbox(
            SandboxOptions(bash_writable_paths=writable), tmp_path / "work", more_readable=(str(tmp_path / "more"),)
        )
        mounts = table.Mounts(box.arguments())
        script = "".join(
            f"{{ {_TRY[operation].format(shlex.quote(str(tmp_path / path)))}; }} 2>/dev/null && echo yes || echo no\n"
            for operation, path in rows
        )
        seen = (await box.run(script)).stdout.split()
        expected = ["yes" if mounts.allows(operation, str(tmp_path / path)) else "no" for operation, path in rows]
        assert len(seen) == len(rows) > 100
        wrong = [(*row, real) for row, real, wanted in zip(rows, seen, expected, strict=True) if real != wanted]
        assert wrong == [], name


_TRY = {
    "read": "grep -q 'content of' {0}",
    "write": ": >> {0}",
    "chmod": "chmod u+w {0}",
    "delete": "mv {0} {0}.moved && mv {0}.moved {0}",
    "make": "mkdir {0} && rmdir {0}",
}
"""A command for each operation of the table, which changes nothing that stays."""
