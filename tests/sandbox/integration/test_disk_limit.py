"""What everything in a block may write to disks, with real commands, cells and files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio

from cantrip_acp import Call, Cantrip, Circle
from cantrip_acp.crystals.scripted import ScriptedCrystal
from cantrip_acp.files import disk_limit
from cantrip_acp.files.disk_limit import DiskLimit
from tests.sandbox.integration.conftest import Make, both_back_ends


async def test_commands_may_write_so_much_to_the_disk_together(make: Make, workspace: Path) -> None:
    limit = DiskLimit(20_000_000)
    with disk_limit.in_force(limit):
        sandbox = make(bash_writable_paths=[str(workspace)])
        # A file in memory is not on the disk; and the same file again is written again.
        for words in ("head -c 30000000 /dev/zero > /tmp/memory", *["head -c 8000000 /dev/zero > part; sleep 1.5"] * 2):
            assert (await sandbox.run(words)).ended_because is None
        assert 16_000_000 <= limit.written < 17_000_000
        outcome = await sandbox.run("head -c 90000000 /dev/zero > large; sleep 20")
    assert outcome.ended_because == "it used more than the 20 MB that the step may write to disks (disk_quota_mb)"


async def test_a_command_that_is_quicker_than_the_first_look_counts(make: Make, workspace: Path) -> None:
    (workspace / "old").write_bytes(bytes(5_000_000))
    # The clock of files ticks every few milliseconds.
    await anyio.sleep(0.05)
    sandbox = make(bash_writable_paths=[str(workspace)])
    for left in range(5, -1, -1):
        limit = DiskLimit(20_000_000)
        with disk_limit.in_force(limit):
            await sandbox.run("head -c 8000000 /dev/zero > part")
        # It is told by the room on the disk, on which others write and delete at the same time.
        if 7_500_000 < limit.written < 9_000_000:
            break
        assert left, limit.written
        (workspace / "part").unlink()
    with disk_limit.in_force(limit):
        outcome = await sandbox.run("head -c 30000000 /dev/zero > more")
    assert outcome.ended_because is not None


async def cast(workspace: Path, medium: str, calls: Sequence[dict[str, Any]]) -> str:
    wards = {"max_turns": 9, "code_writable_paths": ["workspace"], "bash_writable_paths": ["workspace"]}
    circle = Circle(medium, ["done", "write_file"], wards, workspace=workspace)
    crystal = ScriptedCrystal(
        responses=[{"tool_calls": [{"id": "t", **call}]} for call in calls] + [{"content": "end"}]
    )
    async with Cantrip(crystal, Call(), circle).invoke() as entity:
        await entity.cast("go")
        turns = [turn for turn in entity.loom.turns() if turn.observation is not None]
    return json.dumps([str(turn.observation) for turn in turns])


async def test_cells_and_gates_that_write_count_too(workspace: Path) -> None:
    limit = DiskLimit(4_000_000)
    with disk_limit.in_force(limit):
        await cast(workspace, "code", [{"gate": "python", "args": {"code": "open('a', 'wb').write(bytes(3_000_000))"}}])
        assert 3_000_000 <= limit.written < 3_500_000
        assert limit.exceeded() is None
        write = {"gate": "write_file", "args": {"path": "b", "content": "x" * 2_000_000}}
        said = await cast(workspace, "conversation", [write])
    assert "was not written: that would be more than the 4 MB" in said
    assert not (workspace / "b").exists()
    assert limit.exceeded() is not None


@both_back_ends
async def test_a_cell_that_writes_too_much_is_stopped(back_end: str, workspace: Path) -> None:
    cell = "import time\nwhile True:\n    open('a', 'ab').write(bytes(1_000_000)); time.sleep(0.02)"
    with disk_limit.in_force(DiskLimit(5_000_000)):
        said = await cast(workspace, "code", [{"gate": "python", "args": {"code": cell}}])
    assert "more than the 5 MB that the step may write to disks (disk_quota_mb)" in said
