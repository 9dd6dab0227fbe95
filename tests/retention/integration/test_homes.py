"""Homes of commands live for the project: caches stay, and `cantrip gc` deletes what nobody uses any more."""

from __future__ import annotations

import os
import stat
import time
from contextlib import closing
from pathlib import Path

import pytest

from cantrip_acp.files.folder import Folder
from cantrip_acp.files.paths import persistent_home
from cantrip_acp.files.quarantine import Quarantine
from cantrip_acp.retention.plan import Plan, delete_items, make_plan
from cantrip_acp.retention.rules import DAY, Rules
from cantrip_acp.sandbox import Sandbox, SandboxOptions


def used(workspace: Path, days: float) -> Path:
    """A home that commands used, for the last time days ago."""
    home = Path(persistent_home(workspace))
    (home / ".cache").mkdir()
    (home / ".cache" / "wheel").write_bytes(b"x" * 1000)
    before = time.time() - days * DAY
    os.utime(home, (before, before))
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
    old, new = used(here, 91), used(young, 89)
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
        used(tmp_path / name, days)
        (tmp_path / name).rmdir()
    with closing(plan_of(state)) as plan:
        assert [i.why for i in plan.to_delete] == [f"its workspace {tmp_path / 'a'} is gone"]


@pytest.mark.sandbox
async def test_a_command_uses_its_home(state: Path, tmp_path: Path) -> None:
    home = used(tmp_path, 91)
    with closing(plan_of(state)) as plan:
        outcome = await Sandbox(SandboxOptions(), tmp_path, home_source=str(home)).run("cat ~/.cache/wheel")
        assert outcome.stdout == "x" * 1000
        assert [why for _, why, _ in delete_items(plan)] == ["used meanwhile"]
    for rules in (Rules(90 * DAY), Rules(60.0)):
        with closing(plan_of(state, rules)) as plan:
            assert plan.items == []


def test_folders_without_write_permission_and_links_are_no_obstacle(state: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("mine")
    outside.chmod(0o500)
    home = used(tmp_path, 91)
    (home / "link").symlink_to(outside)
    (module := home / "go" / "pkg" / "mod").mkdir(parents=True)
    (module / "x.go").write_text("package x")
    module.chmod(0o555)
    module.parent.chmod(0)
    os.utime(home, (0, 0))
    with closing(plan_of(state)) as plan:
        assert [why for _, why, _ in delete_items(plan)] == [None]
    assert not home.exists()
    assert (outside / "file").read_text() == "mine"
    assert stat.S_IMODE(outside.stat().st_mode) == 0o500
    outside.chmod(0o700)


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
