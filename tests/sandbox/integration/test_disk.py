"""A turn that fills the disk, on a small file system in a mount namespace of the test's own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = """
import json, os, sys
from pathlib import Path
import anyio
from cantrip_acp import Call, Cantrip, Circle
from cantrip_acp.crystals.scripted import ScriptedCrystal

async def main():
    disk, medium, calls = Path(sys.argv[1]), sys.argv[2], json.loads(sys.stdin.read())
    for number, size in enumerate(json.loads(sys.argv[3])):
        (disk / f"filled{number}").write_bytes(b"x" * size)
    wards = {"max_turns": 9, "bash_writable_paths": ["workspace"], "code_writable_paths": ["workspace"]}
    circle = Circle(medium, ["done", "write_file"], wards, workspace=disk)
    crystal = ScriptedCrystal(responses=[{"tool_calls": [{"id": "t", **call}]} for call in calls] + [{"content": "end"}])
    entity = Cantrip(crystal, Call(), circle).invoke()
    result = await entity.cast("go")
    seen = []
    for turn in entity.loom.turns():
        if turn.role == "crystal" and turn.observation is not None:
            output = turn.observation.output
            seen.append(output.error if output is not None else [r.result for r in turn.observation.results])
    disks = os.statvfs(disk)
    print(json.dumps({"seen": seen, "free": disks.f_bavail * disks.f_frsize, "names": sorted(os.listdir(disk))}))
    await entity.close()
anyio.run(main)
"""
_WRITE = "for n in $(seq 1000); do head -c 1000000 /dev/zero > part$n; sleep 0.02; done"
_CELL = "import time\nfor n in range(1000):\n    open(f'part{n}', 'wb').write(bytes(1000000)); time.sleep(0.02)"


def run(folder: Path, medium: str, calls: list[dict[str, Any]], *, filled: tuple[int, ...] = (), **env: str) -> Any:
    disk = folder / "disk"
    disk.mkdir()
    words = [sys.executable, "-c", PROGRAM, str(disk), medium, json.dumps(filled)]
    script = 'mount -t tmpfs -o size=64m none "$1" && shift && exec "$@"'
    own = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-Urm"]
    done = subprocess.run(
        [*own, "sh", "-c", script, "sh", str(disk), *words],
        input=json.dumps(calls), capture_output=True, text=True, timeout=120, check=False, env={**os.environ, **env},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.fixture(autouse=True)
def _namespace() -> None:
    own = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-Urm"]
    if shutil.which("unshare") is None or subprocess.run([*own, "true"], check=False, capture_output=True).returncode:
        pytest.skip("mount namespaces cannot be made here")


def bash(command: str) -> dict[str, Any]:
    return {"gate": "bash", "args": {"command": command}}


def test_a_command_that_fills_the_disk_is_stopped_and_says_so(tmp_path: Path) -> None:
    found = run(tmp_path, "bash", [bash(_WRITE), bash("echo small > note; cat note")], CANTRIP_MIN_FREE_MB="20")
    stopped, *_ = found["seen"]
    assert "the command was killed" in stopped
    assert "MiB free, and a turn leaves at least 20 MiB" in stopped
    assert "What was written is still there" in stopped
    assert found["free"] > 10 * 2**20
    assert "note" in found["names"]


def test_one_that_is_quicker_than_the_look_says_so_too(tmp_path: Path) -> None:
    """By default 5 % of a small disk stay free: 3 of 64 MiB."""
    found = run(tmp_path, "bash", [bash("head -c 70000000 /dev/zero > big; true")])
    assert "a turn leaves at least 3 MiB" in found["seen"][0]


def test_a_cell_that_fills_the_disk_is_stopped_and_says_so(tmp_path: Path) -> None:
    found = run(tmp_path, "code", [{"gate": "python", "args": {"code": _CELL}}], CANTRIP_MIN_FREE_MB="20")
    assert "a turn leaves at least 20 MiB" in found["seen"][0]
    assert found["free"] > 10 * 2**20


def test_a_gate_refuses_a_file_that_would_fill_the_disk(tmp_path: Path) -> None:
    large = {"gate": "write_file", "args": {"path": "large.txt", "content": "x" * 1_900_000}}
    small = {"gate": "write_file", "args": {"path": "small.txt", "content": "x"}}
    found = run(tmp_path, "conversation", [large, small], filled=(45_000_000,), CANTRIP_MIN_FREE_MB="20")
    assert "would leave less than 20 MiB free" in str(found["seen"][0])
    assert found["names"] == ["filled0", "small.txt"]


def test_a_disk_that_is_full_already_still_takes_small_work_and_the_check_can_be_off(tmp_path: Path) -> None:
    found = run(tmp_path, "bash", [bash("echo x > note")], filled=(60_000_000,), CANTRIP_MIN_FREE_MB="1000")
    assert found["seen"][0] is None
    other = tmp_path / "other"
    other.mkdir()
    assert run(other, "bash", [bash("head -c 62000000 /dev/zero > big")], CANTRIP_MIN_FREE_MB="0")["seen"][0] is None


def test_a_setting_that_is_no_number_says_so(tmp_path: Path) -> None:
    """Nothing runs in its place, not even without the check."""
    with pytest.raises(AssertionError, match="CANTRIP_MIN_FREE_MB must be a number of MiB, 0 or more, not 'much'"):
        run(tmp_path, "bash", [bash("echo x")], CANTRIP_MIN_FREE_MB="much")
