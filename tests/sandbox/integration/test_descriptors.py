"""A process that may open no more files: commands and cells fail with a clear observation, and nothing stays open.

Each test lowers the limit of a process of its own. It leaves room for one more file at a time, so that every single place
that opens one fails once.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

_BEGIN = """
import asyncio, json, os, resource, sys
from pathlib import Path
from cantrip_acp.core.definition.circle import Circle
from cantrip_acp.crystals.contract import ToolCall
from cantrip_acp.types.records import GateRecord
from cantrip_acp.mediums.bash import BashMedium
from cantrip_acp.mediums.code.medium import CodeMedium

class Turn:
    entity_id, cast_id, depth, finished, listening = "e", "c", 0, False, False
    traceparent = f"00-{1:032x}-{1:016x}-01"
    context, folded, timed_out, ends_when_cut = (), 0, False, False
    def __init__(self, wards): self.wards = wards
    def history(self, start, count): return 0, []
    def shared_network(self): return None
    async def gate(self, name, args, *, via=None, own=None):
        return GateRecord(gate=name, args={}, result="pong", is_error=False)
    async def emit(self, event): pass
    def interrupted(self, output, report): pass

def held():
    return sorted(os.listdir("/proc/self/fd"), key=int)[:-1]

def children():
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()

class Room:
    # Room for `free` more descriptors. What this leaves free below the limit is filled first.
    def __init__(self, free): self.free = free
    def __enter__(self):
        self.soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        taken = [int(fd) for fd in held()]
        most = max(taken) + 1
        self.filled = []
        while len(held()) < most:
            fd = os.open("/", os.O_PATH)
            if fd >= most:
                os.close(fd)
                break
            self.filled.append(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most + self.free, hard))
    def __exit__(self, *_):
        resource.setrlimit(resource.RLIMIT_NOFILE, (self.soft, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        for fd in self.filled: os.close(fd)
"""

_SHELL = """
async def main():
    workspace = Path(sys.argv[1])
    wards = {"max_turns": 1, "bash_writable_paths": ["workspace"], **json.loads(sys.argv[2])}
    circle = Circle("bash", ["done", "echo"], wards, workspace=workspace)
    session = await BashMedium().open(circle, "e")
    turn = Turn(circle.wards)
    call = ToolCall("t", "bash", json.dumps({"command": "cantrip_echo --text x; echo ok"}))
    first = await session.run(call, turn)
    assert first.exit_code == 0, first
    # The helper of the proxy stays.
    before, seen, stays = held(), [], children()
    for free in range(40):
        with Room(free):
            output = await asyncio.wait_for(session.run(call, turn), 20)
        seen.append([output.exit_code, output.error or output.stderr])
        await asyncio.sleep(0)
        assert held() == before, (free, before, held())
        assert children() == stays, (free, children())
    last = await session.run(call, turn)
    print(json.dumps({"seen": seen, "last": [last.exit_code, last.error]}))
    await session.close()
asyncio.run(main())
"""

_CELL = """
async def main():
    workspace = Path(sys.argv[1])
    circle = Circle(CodeMedium(), ["done"], {"max_turns": 1}, workspace=workspace)
    turn = Turn(circle.wards)
    call = ToolCall("t", "python", json.dumps({"code": "print('ok')"}))
    warm = await CodeMedium().open(circle, "e")
    first = await warm.run(call, turn)
    assert first.error is None, first
    await warm.close()
    before, seen = held(), []
    for free in range(40):
        session = await CodeMedium().open(circle, "e")
        with Room(free):
            output = await asyncio.wait_for(session.run(call, turn), 20)
        seen.append([output.stdout, output.error])
        await session.close()
        assert held() == before, (free, before, held())
        assert not children(), (free, children())
    print(json.dumps({"seen": seen, "last": seen[-1]}))
asyncio.run(main())
"""


def run(program: str, *words: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", _BEGIN + program, *words], capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr, done.stderr[-4000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("wards", [{}, {"bash_network": ["localhost:9"]}])
def test_a_command_without_descriptors_is_an_observation_and_leaks_none(workspace: Path, wards: dict[str, Any]) -> None:
    (workspace / ".git").mkdir()
    (workspace / ".git" / "config").write_text("[http]\n  extraheader = secret\n")
    found = run(_SHELL, str(workspace), json.dumps(wards))
    failed = [words for code, words in found["seen"] if code is None]
    assert len(failed) > 5, found
    assert all("files open" in words and "ulimit -n" in words for words in failed), failed
    assert found["last"] == [0, None]


def test_a_cell_without_descriptors_is_an_observation_and_leaks_none(workspace: Path) -> None:
    found = run(_CELL, str(workspace))
    failed = [words for out, words in found["seen"] if out != "ok\n"]
    assert len(failed) > 5, found
    assert all("files open" in words and "ulimit -n" in words for words in failed), failed
    assert found["last"] == ["ok\n", None]


def test_what_cannot_be_looked_at_is_not_taken_for_harmless(workspace: Path) -> None:
    """Where a folder cannot be read for want of a descriptor, nobody knows what in it is protected or hidden."""
    (workspace / "sub").mkdir()
    (workspace / "sub" / ".env").write_text("KEY=1\n")
    program = """
from cantrip_acp.sandbox.policy.protected import Survey
from cantrip_acp.sandbox.policy.git_repositories import redacted_config
for look in (lambda: Survey(sys.argv[1]).refresh(), lambda: redacted_config(sys.argv[1])):
    with Room(0):
        try:
            found = repr(look())
        except OSError as error:
            found = error.strerror
    print(json.dumps(found)) if found != "Too many open files" else None
print(json.dumps("refused"))
"""
    assert run(program, str(workspace)) == "refused"
