"""Pinned files of turns: from every medium, for every turn that changed some, never at the cost of a cast (LOOM-4)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from cantrip_acp import Cantrip, Circle, Loom, ScriptedCrystal
from cantrip_acp.core.lifecycle.checkpoints import delete_checkpoints
from cantrip_acp.loom.records.turn import FilesRecord
from tests.support.git_repositories import git, plant, repository, users_state


def does(gate: str, **args: Any) -> dict[str, Any]:
    return {"tool_calls": [{"gate": gate, "args": args}]}


def spell(where: Path, said: list[Any], *, medium: str = "conversation", files: bool = True, **wards: Any) -> Cantrip:
    circle = Circle(
        medium,
        ["done", "write_file", "read_file"],
        [{"max_turns": 20, **wards}],
        workspace=where,
    )
    return Cantrip(ScriptedCrystal(said), circle=circle, loom_settings={"files": files})


def kept(loom: Loom) -> list[FilesRecord]:
    return [record for record in loom.records() if isinstance(record, FilesRecord)]


@pytest.fixture
def where(tmp_path: Path) -> Path:
    return repository(tmp_path / "project")


async def test_a_turn_that_changed_files_is_pinned(where: Path) -> None:
    before = users_state(where)
    said = [
        does("read_file", path="kept.txt"),
        does("write_file", path="new.txt", content="one\n"),
        does("read_file", path="new.txt"),
        does("write_file", path="new.txt", content="two\n"),
        does("done", answer="ok"),
    ]
    cantrip = spell(where, said)
    result = await cantrip.cast("Write.")
    assert result.result == "ok"
    loom = cantrip.loom
    turns = [turn for turn in loom.turns() if turn.role == "crystal"]
    records = kept(loom)
    assert [record.turn_id for record in records] == [turns[0].id, turns[1].id, turns[3].id]
    assert all(record.error is None and record.repository == str(where) for record in records)
    one, two, three = (str(record.commit) for record in records)
    assert git(where, "show", f"{two}:new.txt") == "one"
    assert git(where, "show", f"{three}:new.txt") == "two"
    assert "new.txt" not in git(where, "ls-tree", "--name-only", one)
    assert loom.files_at(turns[4].id) == records[2]
    assert loom.files_at(turns[2].id) == records[1]
    (where / "new.txt").unlink()
    assert users_state(where) == before


@pytest.mark.sandbox
@pytest.mark.parametrize(
    ("medium", "program", "wards"),
    [
        ("bash", does("bash", command="echo made > made.txt; rm kept.txt"), {"bash_writable_paths": ["workspace"]}),
        ("code", does("python", code="open('made.txt', 'w').write('made\\n')"), {"code_writable_paths": ["workspace"]}),
        ("code", does("python", code="write_file('made.txt', 'made\\n')"), {}),
    ],
)
async def test_from_programs(where: Path, medium: str, program: Any, wards: dict[str, Any]) -> None:
    cantrip = spell(where, [program, does("done", answer="ok")], medium=medium, **wards)
    await cantrip.cast("Make it.")
    (record,) = kept(cantrip.loom)
    assert git(where, "show", f"{record.commit}:made.txt") == "made"


async def test_it_is_off_by_default(where: Path) -> None:
    cantrip = spell(where, [does("write_file", path="a", content="a"), does("done", answer="ok")], files=False)
    await cantrip.cast("Write.")
    assert kept(cantrip.loom) == []
    assert git(where, "for-each-ref", "refs/cantrip") == ""


async def test_what_cannot_be_pinned_is_recorded_once_and_fails_nothing(tmp_path: Path) -> None:
    said = [
        does("write_file", path="a", content="a"),
        does("write_file", path="b", content="b"),
        does("done", answer="ok"),
    ]
    cantrip = spell(tmp_path, said)
    result = await cantrip.cast("Write.")
    assert result.result == "ok"
    (record,) = kept(cantrip.loom)
    assert "not in a git repository" in str(record.error)
    assert record.commit is None


async def test_a_hostile_repository_runs_nothing(tmp_path: Path, where: Path) -> None:
    plant(where, marker := tmp_path / "ran")
    cantrip = spell(where, [does("write_file", path="a.txt", content="a"), does("done", answer="ok")])
    await cantrip.cast("Write.")
    assert kept(cantrip.loom)[0].error is None
    assert not marker.exists()


@pytest.mark.sandbox
async def test_a_turn_that_was_cut_off_is_pinned_too(where: Path) -> None:
    command = "echo half > half.txt; touch started; sleep 60"
    cantrip = spell(where, [does("bash", command=command)], medium="bash", bash_writable_paths=["workspace"])
    async with cantrip.invoke() as entity, anyio.create_task_group() as group:

        async def stop() -> None:
            while not (where / "started").exists():
                await anyio.sleep(0.02)
            entity.cancel()

        group.start_soon(stop)
        result = await entity.cast("Begin.")
        assert result.reason == "cancelled"
    (record,) = kept(cantrip.loom)
    assert git(where, "show", f"{record.commit}:half.txt") == "half"


async def test_pins_are_forgotten_with_their_loom(where: Path) -> None:
    cantrip = spell(where, [does("write_file", path="a", content="a"), does("done", answer="ok")])
    await cantrip.cast("Write.")
    other = spell(where, [does("write_file", path="a", content="b"), does("done", answer="ok")])
    await other.cast("Write.")
    (told,) = delete_checkpoints(cantrip.loom)
    assert told.startswith("refs/cantrip/loom_")
    assert len(git(where, "for-each-ref", "refs/cantrip").splitlines()) == 1
    assert delete_checkpoints(cantrip.loom) == []


@pytest.mark.parametrize("address", ["own.loom.jsonl", "sqlite:own.db"])
async def test_a_loom_in_the_workspace_is_in_no_pin_of_its_own(where: Path, address: str) -> None:
    """Each turn makes it grow, so that each pin would hold all of it once more, and every turn have changed a file."""
    kind, _, name = address.rpartition(":")
    said = [
        does("write_file", path="own.db.md", content="one\n"),
        {"tool_calls": [{"gate": "write_file", "args": {"path": "own.db.md", "content": "one\n"}}]},
        does("done", answer=1),
    ]
    with Loom.open(f"{kind}:{where / name}" if kind else where / name) as loom:
        cantrip = spell(where, said)
        async with cantrip.invoke(loom=loom) as entity:
            await entity.cast("Write.")
        (record,) = kept(loom)
        assert record.missing == ()
        files = git(where, "ls-tree", "-r", "--name-only", str(record.commit)).split()
    assert "own.db.md" in files
    assert name not in files
