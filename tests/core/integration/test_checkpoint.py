"""Checkpoints of turns: from every medium, for every turn that changed files, never at the cost of a cast (LOOM-4)."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import anyio
import pytest

from cantrip_acp import Cantrip, Circle, Loom, ScriptedCrystal
from cantrip_acp.checkpoints import watcher
from cantrip_acp.checkpoints.store import Entry, Store
from cantrip_acp.core.lifecycle.checkpoints import delete_checkpoints
from cantrip_acp.core.lifecycle.saved_files import chain_key
from cantrip_acp.files.paths import state_dir
from cantrip_acp.gates.contract import Gate
from cantrip_acp.types.records import FilesRecord
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
    return Cantrip(ScriptedCrystal(said), circle=circle, loom_settings={} if files else {"files": False})


def kept(loom: Loom) -> list[FilesRecord]:
    """The records of changed files, without the one of the start."""
    return [record for record in loom.records() if isinstance(record, FilesRecord) and record.changed != 0]


def text(record: FilesRecord, path: str) -> str | None:
    """A file's content at a checkpoint; None if it was absent."""
    with Store(str(record.workspace), create=False) as store:
        entry: Entry | None = store.tree(str(record.checkpoint)).get(path)
        return None if entry is None else store.content(entry.hash).decode()


@pytest.fixture(params=["repository", "folder"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A project: in a git repository, and in none."""
    if request.param == "repository":
        return repository(tmp_path / "project")
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "kept.txt").write_text("kept\n")
    return tmp_path / "project"


async def test_a_turn_that_changed_files_is_kept(where: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_git = (where / ".git").exists()
    before = users_state(where) if in_git else None
    monkeypatch.setenv("PATH", "/nonexistent")  # git is not needed
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
    assert [record.turn_id for record in records] == [turns[1].id, turns[3].id]
    assert all(record.error is None and record.workspace == str(where) for record in records)
    assert [text(record, "new.txt") for record in records] == ["one\n", "two\n"]
    assert text(records[0], "kept.txt") == "kept\n"
    assert loom.files_at(turns[4].id) == records[1]
    assert loom.files_at(turns[2].id) == records[0]
    (where / "new.txt").unlink()
    monkeypatch.undo()
    if in_git:
        assert users_state(where) == before
        assert git(where, "for-each-ref", "refs/cantrip") == ""


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
    assert text(record, "made.txt") == "made\n"
    assert (text(record, "kept.txt") is None) == (medium == "bash")


async def test_a_recipe_can_turn_it_off(where: Path) -> None:
    cantrip = spell(where, [does("write_file", path="a", content="a"), does("done", answer="ok")], files=False)
    await cantrip.cast("Write.")
    assert kept(cantrip.loom) == []
    assert not list((state_dir() / "checkpoints").glob("*.db"))


async def test_what_cannot_be_kept_is_recorded_once_and_fails_nothing(
    where: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher, "MOST_FILES", 0)
    said = [
        does("write_file", path="a", content="a"),
        does("write_file", path="b", content="b"),
        does("done", answer="ok"),
    ]
    cantrip = spell(where, said)
    result = await cantrip.cast("Write.")
    assert result.result == "ok"
    (record,) = kept(cantrip.loom)
    assert "more than 0 files" in str(record.error)


async def test_a_hostile_repository_runs_nothing(tmp_path: Path) -> None:
    where = repository(tmp_path / "project")
    plant(where, marker := tmp_path / "ran")
    cantrip = spell(where, [does("write_file", path="a.txt", content="a"), does("done", answer="ok")])
    await cantrip.cast("Write.")
    assert kept(cantrip.loom)[0].error is None
    assert not marker.exists()


@pytest.mark.sandbox
async def test_a_turn_that_was_cut_off_is_kept_too(where: Path) -> None:
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
    assert text(record, "half.txt") == "half\n"


async def test_checkpoints_go_with_their_loom(where: Path) -> None:
    cantrip = spell(where, [does("write_file", path="a", content="a"), does("done", answer="ok")])
    await cantrip.cast("Write.")
    other = spell(where, [does("write_file", path="a", content="b"), does("done", answer="ok")])
    await other.cast("Write.")
    (told,) = delete_checkpoints(cantrip.loom)
    assert told.startswith(f"files of {where} ")
    (record,) = kept(other.loom)
    assert text(record, "a") == "b"
    with Store(where, create=False) as store:
        assert store.last(*chain_key(str(kept(cantrip.loom)[0].ref))) is None
    assert delete_checkpoints(cantrip.loom) == []
    assert len(delete_checkpoints(other.loom)) == 1
    assert not list((state_dir() / "checkpoints").glob("*.db"))


@pytest.mark.parametrize("address", ["own.loom.jsonl", "sqlite:own.db"])
async def test_a_loom_in_the_workspace_is_not_kept(where: Path, address: str) -> None:
    """Each turn makes it grow, so that each checkpoint would hold all of it once more, and every turn have changed a file."""
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
        with Store(where, create=False) as store:
            files = store.tree(str(record.checkpoint))
    assert "own.db.md" in files
    assert name not in files


async def test_children_at_work_at_the_same_time_own_what_they_write(where: Path) -> None:
    """What one child has half done when another begins its calls is not taken for the user's, so an undo reaches it."""
    begun, over = anyio.Event(), anyio.Event()

    async def slowly() -> str:
        """Write a file and the start of a shared one, and take time."""
        (where / "slow.txt").write_text("slow")
        (where / "shared.txt").write_text("slow, half")
        begun.set()
        await over.wait()
        (where / "shared.txt").write_text("slow, whole")
        return "ok"

    async def quickly() -> str:
        """Write in the meantime."""
        (where / "shared.txt").write_text("quick")
        (where / "quick.txt").write_text("quick")
        over.set()
        return "ok"

    async def wait() -> str:
        """Wait until the other child has begun to write."""
        await begun.wait()
        return "ok"

    gates = [
        "done",
        "call_agent",
        *[dataclasses.replace(Gate.of(each), writes=True) for each in (slowly, quickly)],
        Gate.of(wait),
    ]
    delegations = [{"gate": "call_agent", "args": {"intent": each}} for each in ("slow", "quick")]
    crystal = ScriptedCrystal(
        [{"tool_calls": delegations}, does("done", answer="ok")],
        children=[
            [does("slowly"), does("done", answer="ok")],
            [does("wait"), does("quickly"), does("done", answer="ok")],
        ],
    )
    before = (where / "kept.txt").read_text()
    async with Cantrip(
        crystal, circle=Circle("conversation", gates, [{"max_turns": 9}], workspace=where)
    ).invoke() as entity:
        with anyio.fail_after(60):
            await entity.cast("Write.")
        assert entity.checkpoints is not None
        history = await entity.checkpoints.history()
        owners = {path: change.by for change in history.chain for path in change.changes if change.by != "start"}
        assert owners == {"slow.txt": "turn", "shared.txt": "turn", "quick.txt": "turn"}
        plan = await entity.checkpoints.plan(history.undo())
        await entity.checkpoints.restore(plan)
    assert not any((where / name).exists() for name in ("slow.txt", "shared.txt", "quick.txt"))
    assert (where / "kept.txt").read_text() == before
