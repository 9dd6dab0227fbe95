"""Homes of commands live for the project: caches stay, and `cantrip gc` deletes what nobody uses any more."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from cantrip_acp.files.folder import Folder
from cantrip_acp.files.paths import persistent_home
from cantrip_acp.files.quarantine import Quarantine
from cantrip_acp.retention.plan import Plan, delete_items, make_plan
from cantrip_acp.retention.rules import DAY, Rules

HOLD = "import sys; from cantrip_acp.files.paths import persistent_home; print(persistent_home(sys.argv[1]), flush=True); input()"


def used(state: Path, workspace: Path, days: float) -> Path:
    """A home that a process used and left, days ago."""
    process = subprocess.run(
        [sys.executable, "-c", HOLD, str(workspace)], input="\n", capture_output=True, text=True, check=True
    )
    home = Path(process.stdout.strip())
    assert home.parent == state / "homes"
    (home / ".cache").mkdir()
    (home / ".cache" / "wheel").write_bytes(b"x" * 1000)
    marker = home.with_name(home.name + ".workspace")
    before = marker.stat().st_mtime - days * DAY
    os.utime(marker, (before, before))
    return home


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CANTRIP_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "state"


def plan_of(state: Path, rules: Rules | None = None) -> Plan:
    return make_plan(state, rules or Rules(90 * DAY))


def test_a_home_that_nobody_uses_goes(state: Path, tmp_path: Path) -> None:
    (here := tmp_path / "here").mkdir()
    (young := tmp_path / "young").mkdir()
    old, new = used(state, here, 91), used(state, young, 89)
    with closing(plan_of(state)) as plan:
        assert [(i.kind, i.name, i.size, i.why) for i in plan.to_delete] == [
            ("home folder", f"homes/{old.name}", 1000, "last used 91 days ago")
        ]
        assert [why for _, why, _ in delete_items(plan)] == [None]
    assert sorted(os.listdir(state / "homes")) == [new.name, new.name + ".workspace"]
    with closing(plan_of(state, Rules(None))) as plan:
        assert plan.items == [], "the age never deletes nothing"


def test_the_home_of_a_workspace_that_is_gone_goes_after_a_day(state: Path, tmp_path: Path) -> None:
    for name, days in (("a", 2.0), ("b", 0.5)):
        (tmp_path / name).mkdir()
        used(state, tmp_path / name, days)
        (tmp_path / name).rmdir()
    with closing(plan_of(state)) as plan:
        assert [i.why for i in plan.to_delete] == [f"its workspace {tmp_path / 'a'} is gone"]


def test_a_home_in_use_stays(state: Path, tmp_path: Path) -> None:
    home = used(state, tmp_path, 91)
    with (
        closing(plan_of(state)) as plan,
        subprocess.Popen(
            [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process,
    ):
        assert process.stdout is not None
        assert process.stdout.readline().strip() == str(home)
        marker = home.with_name(home.name + ".workspace")
        os.utime(marker, (0, 0))
        assert [why for _, why, _ in delete_items(plan)] == ["open in another process"], (
            "the process began after the plan"
        )
        with closing(plan_of(state)) as later:
            assert later.to_delete == []
            assert [i.kept for i in later.kept] == ["open in another process"]
        process.communicate("\n", timeout=30)
    assert (home / ".cache" / "wheel").exists()
    marker.write_bytes(os.fsencode(tmp_path))
    os.utime(marker, (0, 0))
    with closing(plan_of(state)) as plan:
        assert [why for _, why, _ in delete_items(plan)] == [None]


def test_folders_without_write_permission_and_links_are_no_obstacle(state: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("mine")
    outside.chmod(0o500)
    home = used(state, tmp_path, 91)
    (home / "link").symlink_to(outside)
    (module := home / "go" / "pkg" / "mod").mkdir(parents=True)
    (module / "x.go").write_text("package x")
    module.chmod(0o555)
    module.parent.chmod(0)
    with closing(plan_of(state)) as plan:
        assert [why for _, why, _ in delete_items(plan)] == [None]
    assert not home.exists()
    assert (outside / "file").read_text() == "mine"
    assert stat.S_IMODE(outside.stat().st_mode) == 0o500
    outside.chmod(0o700)


def test_the_home_of_the_present_process_counts_as_used_now(state: Path, tmp_path: Path) -> None:
    used(state, tmp_path, 91)
    persistent_home(tmp_path)
    with closing(plan_of(state)) as plan:
        assert plan.items == []


def test_what_waits_in_the_quarantine_for_long_goes(state: Path, tmp_path: Path) -> None:
    (workspace := tmp_path / "workspace").mkdir()
    for name in ("old", "new"):
        (workspace / f".npmrc-{name}").write_text(name)
        with Folder.top(workspace) as top:
            moved = Quarantine(workspace).take(
                top.fd, str(workspace), str(workspace / f".npmrc-{name}"), "why", "make it"
            )
        assert moved is not None
        if name == "old":
            record = Quarantine(workspace).folder / moved.id / "record.json"
            record.write_text(record.read_text().replace(str(moved.when)[:8], str(moved.when - 91 * DAY)[:8]))
    with closing(plan_of(state)) as plan:
        assert [(i.kind, i.why) for i in plan.to_delete] == [
            ("quarantined file", f"{workspace}/.npmrc-old, moved away 91 days ago")
        ]
        assert [why for _, why, _ in delete_items(plan)] == [None]
    assert [each.name for each in Quarantine(workspace).entries()] == [".npmrc-new"]
