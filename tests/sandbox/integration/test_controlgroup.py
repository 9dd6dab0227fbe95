"""Finding a delegated part of the control group tree, told by files as the kernel writes them; and a real group if there is one."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from cantrip_acp.sandbox import runtime
from cantrip_acp.sandbox.launch import sandbox
from cantrip_acp.sandbox.launch.control_groups import ControlGroup, cpu_parent, find_parent, limits_memory
from tests.sandbox.integration.conftest import Make


def layout(base: Path, own: str, controllers: dict[str, str]) -> tuple[str, str]:
    """A control group file system, a ``mountinfo`` that mounts it and a ``cgroup`` that places us."""
    root = base / "cgroup"
    for folder in ["", *controllers]:
        path = root / folder
        path.mkdir(parents=True, exist_ok=True)
        for name in ("cgroup.procs", "cgroup.subtree_control"):
            (path / name).write_text("")
    for folder, text in controllers.items():
        (root / folder / "cgroup.subtree_control").write_text(text)
    (base / "mountinfo").write_text(
        "24 1 0:22 / /proc rw shared:1 - proc proc rw\n"
        f"30 1 0:26 / {root} rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
    )
    (base / "own").write_text(f"12:memory:/elsewhere\n0::{own}\n")
    return str(base / "mountinfo"), str(base / "own")


def test_a_users_session(tmp_path: Path) -> None:
    user = "user.slice/user@1000.service/app.slice"
    files = layout(tmp_path, f"/{user}/editor.scope", {user: "memory pids\n", f"{user}/editor.scope": ""})
    assert find_parent(*files) == str(tmp_path / "cgroup" / user)


@pytest.mark.parametrize("controllers", ["", "memory\n", "pids cpu\n"])
def test_a_tree_without_both_limits_is_none(tmp_path: Path, controllers: str) -> None:
    assert find_parent(*layout(tmp_path, "/a/b", {"a": controllers, "a/b": "memory pids"})) is None


def test_version_one_and_places_outside(tmp_path: Path) -> None:
    (tmp_path / "mountinfo").write_text("30 1 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n")
    (tmp_path / "own").write_text("4:memory:/x\n")
    assert find_parent(str(tmp_path / "mountinfo"), str(tmp_path / "own")) is None
    assert find_parent(*layout(tmp_path, "/../../outside", {"a": "memory pids"})) is None
    assert find_parent("/nonexistent", "/nonexistent") is None


def test_limits_are_written_as_the_kernel_reads_them(tmp_path: Path) -> None:
    group = ControlGroup(str(tmp_path), "one", memory=1_000_000, processes=41)
    assert group.add_process(1234) is group
    written = {p.name: p.read_text() for p in (tmp_path / "one").iterdir()}
    assert written == {"pids.max": "42", "memory.max": "1000000", "memory.oom.group": "1", "cgroup.procs": "1234"}
    (tmp_path / "one/memory.events").write_text("low 0\noom 1\noom_kill 3\n")
    assert group.exceeded()


def test_processor_time_is_limited_where_its_controller_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = os.mkdir

    def with_controller(path: str) -> None:
        made(path)
        Path(path, "cpu.max").write_text("max 100000")

    monkeypatch.setattr(os, "mkdir", with_controller)
    ControlGroup(str(tmp_path), "one", memory=1_000_000, processes=41, cpu_percent=60)
    assert (tmp_path / "one/cpu.max").read_text() == "60000 100000"


@pytest.mark.parametrize(("percent", "nice"), [(100, 0), (95, 1), (60, 7), (1, 16)])
async def test_a_command_with_a_share_of_a_processor_lets_others_go_first(make: Make, percent: int, nice: int) -> None:
    nice = max(nice, os.nice(0))
    assert (await make(sandbox_cpu_percent=percent).run("nice; (nice)")).stdout == f"{nice}\n{nice}\n"


async def test_a_real_group_bounds_a_command(make: Make) -> None:
    if sandbox.control_groups() is None:
        pytest.skip("no control group is delegated to this user")
    outcome = await make(sandbox_max_processes=20).run("for i in $(seq 40); do sleep 5 & done; wait")
    assert "fork" in outcome.stderr


async def test_a_sandbox_is_in_its_group_from_its_first_instant_and_we_are_not(make: Make) -> None:
    parent = sandbox.control_groups()
    if parent is None or limits_memory(parent):
        pytest.skip("no group here takes single threads")
    before = Path("/proc/thread-self/cgroup").read_text()
    # Another test's may still be ending.
    groups = set(Path(parent).glob(f"{runtime().token}-*"))
    outcome = await make().run("cat /proc/self/cgroup /proc/1/cgroup")
    assert Path("/proc/thread-self/cgroup").read_text() == before
    places = [line.split(":")[2] for line in outcome.stdout.splitlines() if ":pids:" in line]
    # It sees its own group as the root of all: it was there when its namespaces were made.
    assert places == ["/", "/"]
    assert not set(Path(parent).glob(f"{runtime().token}-*")) - groups


def test_version_one_bounds_processes(tmp_path: Path) -> None:
    root = tmp_path / "pids"
    (root / "us").mkdir(parents=True)
    (root / "us" / "tasks").write_text("")
    (tmp_path / "mountinfo").write_text(f"30 1 0:26 / {root} rw,nosuid shared:4 - cgroup cgroup rw,pids\n")
    (tmp_path / "own").write_text("8:pids:/us\n4:memory:/elsewhere\n0::/\n")
    parent = find_parent(str(tmp_path / "mountinfo"), str(tmp_path / "own"))
    assert parent == str(root / "us")
    assert not limits_memory(parent)
    ControlGroup(parent, "one", memory=1, processes=41)
    assert {p.name for p in (root / "us" / "one").iterdir()} == {"pids.max"}


async def test_the_kernel_gives_a_command_its_part_of_one_processor(make: Make) -> None:
    parent = sandbox.control_groups()
    folder = cpu_parent() if parent is not None and not limits_memory(parent) else parent
    if folder is None or not list(Path(folder).glob("cpu.*")):
        pytest.skip("no control group here limits processor time")
    busy = "timeout 2 sh -c 'while :; do :; done'"
    outcome = await make(sandbox_cpu_percent=20).run(f"for i in 1 2 3; do {busy} & done; wait; times")
    minutes, seconds = re.findall(r"(\d+)m([\d.]+)s", outcome.stdout)[2]
    # Three loops of two seconds would use all processors of the machine: two seconds or more.
    assert int(minutes) * 60 + float(seconds) < 1.0
    assert not list(Path(folder).glob(f"{runtime().token}-*"))
