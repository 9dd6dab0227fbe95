"""Forks that work in a worktree: the files of the turn, the circle moved there, the user's own left alone (LOOM-4)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cantrip_acp import Cantrip, Circle, ScriptedCrystal
from cantrip_acp.core.forking import worktree
from cantrip_acp.core.lifecycle.checkpoints import delete_checkpoints
from cantrip_acp.files.paths import state_dir
from cantrip_acp.git import worktrees
from cantrip_acp.git.repository import Repository
from cantrip_acp.types.errors import GitError, SandboxError
from cantrip_acp.types.records import ForkRecord
from tests.support.git_repositories import git, plant, repository, users_state


def does(gate: str, **args: Any) -> dict[str, Any]:
    return {"tool_calls": [{"gate": gate, "args": args}]}


def spell(
    where: Path,
    said: list[Any],
    medium: str = "conversation",
    gates: tuple[Any, ...] = (),
    files: bool = True,
    **wards: Any,
) -> Cantrip:
    circle = Circle(medium, ["done", "write_file", "read_file", *gates], [{"max_turns": 20, **wards}], workspace=where)
    return Cantrip(ScriptedCrystal(said), circle=circle, loom_settings={"files": files})


def linked(where: Path) -> list[str]:
    found = Repository.of(where)
    assert found is not None
    return worktrees.linked(found)


@pytest.fixture
def where(tmp_path: Path) -> Path:
    return repository(tmp_path / "project")


async def written(cantrip: Cantrip) -> list[str]:
    """Ids of the turns of a cast."""
    await cantrip.cast("Write.")
    return [turn.id for turn in cantrip.loom.turns() if turn.role == "crystal"]


END = does("done", answer="ok")
TWICE = [does("write_file", path="src/new.txt", content=text) for text in ("one\n", "two\n")] + [
    does("done", answer="ok")
]


async def test_a_fork_finds_the_files_of_its_turn(tmp_path: Path, where: Path) -> None:
    cantrip = spell(where, TWICE)
    first, *_ = await written(cantrip)
    (where / "src" / "new.txt").write_text("later\n")
    before = users_state(where)
    said = [
        does("read_file", path="src/new.txt"),
        does("write_file", path="src/new.txt", content="fork\n"),
        does("done", answer="forked"),
    ]
    side = tmp_path / "side"
    fork = await cantrip.with_crystal(ScriptedCrystal(said)).fork(first, worktree=side)
    async with fork:
        result = await fork.cast("Read it.")
        assert result.result == "forked"
    assert users_state(where) == before
    turns = [turn for turn in cantrip.loom.turns() if turn.entity_id == fork.id]
    assert "one" in str(turns[0].observation.results[0].result)
    assert (side / "src" / "new.txt").read_text() == "fork\n"
    record = cantrip.loom.fork_of(fork.id)
    assert record is not None
    assert record.worktree == str(side)
    assert record.commit == git(where, "rev-parse", "HEAD")
    assert not any(line.startswith("files: as they are now") for line in record.missing)
    assert any("ignores" in line for line in record.missing)
    # The fork's own turns are pinned in turn, and a fork of it has those files.
    again = await cantrip.with_crystal(ScriptedCrystal([])).fork(turns[1].id, worktree=tmp_path / "again")
    await again.close()
    assert (tmp_path / "again" / "src" / "new.txt").read_text() == "fork\n"
    told = delete_checkpoints(cantrip.loom)
    assert linked(where) == []
    assert not side.exists()
    assert len([line for line in told if line.startswith("files of ")]) == 2
    assert len(told) == 4
    assert not list((state_dir() / "checkpoints").glob("*.db"))
    assert git(where, "for-each-ref", "refs/cantrip") == ""


async def test_by_itself_it_lies_in_the_state_folder(
    tmp_path: Path, where: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CANTRIP_STATE_DIR", str(tmp_path / "state"))
    cantrip = spell(where, TWICE)
    first, *_ = await written(cantrip)
    async with await cantrip.fork(first, worktree=True) as fork:
        assert fork.circle.workspace == tmp_path / "state" / "worktrees" / f"project-{fork.id}"
        assert (fork.circle.workspace / "src" / "new.txt").read_text() == "one\n"


async def test_roots_and_wards_move_with_the_workspace(tmp_path: Path, where: Path) -> None:
    circle = Circle(
        "conversation",
        ["done", {"name": "write_file", "root": "src"}, {"name": "read_file", "root": str(tmp_path)}],
        [{"max_turns": 5, "bash_writable_paths": ["workspace", "src", "/tmp"], "code_readable_paths": [str(where)]}],
        workspace=where / "src",
    )
    moved = worktree.move_circle(circle, str(where), "/new/place")
    assert moved.workspace == Path("/new/place/src")
    assert moved.wards.bash_writable_paths == ("/new/place/src", "/new/place/src/src", "/tmp")
    assert moved.wards.code_readable_paths == ("/new/place",)
    assert str(moved.gates["write_file"].dependencies["root"]) == "/new/place/src/src"
    assert str(moved.gates["read_file"].dependencies["root"]) == str(tmp_path)
    assert str(circle.gates["write_file"].dependencies["root"]) == str(where / "src" / "src")


@pytest.mark.sandbox
async def test_a_shell_works_there_and_in_the_users_folder_no_more(tmp_path: Path, where: Path) -> None:
    said = [does("bash", command="echo one > made.txt"), does("done", answer="ok")]
    cantrip = spell(where, said, "bash", bash_writable_paths=["workspace"])
    first, _ = await written(cantrip)
    side = tmp_path / "side"
    command = f"pwd; cat made.txt; git status --short; echo two > made.txt; echo x > {where}/escaped"
    fork = await cantrip.with_crystal(ScriptedCrystal([does("bash", command=command), END])).fork(first, worktree=side)
    async with fork:
        await fork.cast("Look.")
    output = next(t for t in cantrip.loom.turns() if t.entity_id == fork.id).observation.output
    assert output is not None
    assert output.stdout.splitlines() == [str(side), "one", "?? made.txt"]
    assert (side / "made.txt").read_text() == "two\n"
    assert (where / "made.txt").read_text() == "one\n"
    assert not (where / "escaped").exists()


@pytest.mark.sandbox
async def test_code_that_runs_again_leaves_the_files_as_they_were(tmp_path: Path, where: Path) -> None:
    appends = "n = globals().get('n', 0) + 1\nopen('log.txt', 'a').write(f'{n}\\n')"
    said = [does("python", code=appends), does("python", code=appends), does("done", answer="ok")]
    cantrip = spell(where, said, "code", code_writable_paths=["workspace"])
    turns = await written(cantrip)
    assert (where / "log.txt").read_text() == "1\n2\n"
    side = tmp_path / "side"
    fork = await cantrip.with_crystal(ScriptedCrystal([does("python", code="print(n)"), END])).fork(
        turns[1], worktree=side, state="replay"
    )
    async with fork:
        assert (side / "log.txt").read_text() == "1\n2\n"
        await fork.cast("Print it.")
    output = next(t for t in cantrip.loom.turns() if t.entity_id == fork.id).observation.output
    assert output is not None
    assert output.stdout == "2\n"
    assert (where / "log.txt").read_text() == "1\n2\n"


async def test_what_cannot_be_had_is_said_and_leaves_nothing(tmp_path: Path, where: Path) -> None:
    cantrip = spell(where, TWICE)
    first, *_ = await written(cantrip)
    side = tmp_path / "side"
    plain = spell(where, list(TWICE), files=False)
    unpinned, *_ = await written(plain)
    with pytest.raises(GitError, match="no files were kept at turn"):
        await plain.fork(unpinned, worktree=side)
    delete_checkpoints(cantrip.loom)
    with pytest.raises(GitError, match=r"no files of .* were kept"):
        await cantrip.fork(first, worktree=side)
    (tmp_path / "plain").mkdir()
    elsewhere = spell(tmp_path / "plain", list(TWICE))
    ours, *_ = await written(elsewhere)
    with pytest.raises(GitError, match="is not in a git repository"):
        await elsewhere.fork(ours, worktree=side)
    assert not side.exists()
    assert linked(where) == []


@pytest.mark.sandbox
async def test_a_fork_that_fails_takes_its_worktree_along(tmp_path: Path, where: Path) -> None:
    cantrip = spell(where, [does("python", code="x = 1"), does("done", answer="ok")], "code")
    first, _ = await written(cantrip)
    before = users_state(where)
    with pytest.raises(SandboxError, match="no snapshot"):
        await cantrip.fork(first, worktree=tmp_path / "side", state="snapshot")
    assert not (tmp_path / "side").exists()
    assert linked(where) == []
    assert users_state(where) == before
    assert not any(isinstance(record, ForkRecord) for record in cantrip.loom.records())


async def test_a_hostile_repository_runs_nothing(tmp_path: Path, where: Path) -> None:
    plant(where, marker := tmp_path / "ran")
    cantrip = spell(where, TWICE)
    first, *_ = await written(cantrip)
    async with await cantrip.fork(first, worktree=tmp_path / "side"):
        assert (tmp_path / "side" / "src" / "new.txt").read_text() == "one\n"
    delete_checkpoints(cantrip.loom)
    assert not marker.exists()


async def test_what_forks_do_elsewhere_never_becomes_the_files_of_the_turn(where: Path) -> None:
    cantrip = spell(where, list(TWICE))
    first, _, _ = await written(cantrip)
    loom, origin = cantrip.loom, cantrip.loom.files_at(first)
    (where / "src/new.txt").write_text("the user's\n")
    # One fork works beside the project, and one in it, where the user has changed the file meanwhile.
    for number, beside in enumerate((True, False)):
        made = spell(where, [does("write_file", path="other.txt", content="x"), END])
        place = where.parent / f"fork{number}" if beside else False
        async with await made.fork(first, loom=loom, worktree=place) as fork:
            await fork.cast("Again.")
        assert loom.files_at(first) == origin
    async with await spell(where, [END]).fork(first, loom=loom, worktree=where.parent / "last") as fork:
        assert (where.parent / "last/src/new.txt").read_text() == "one\n"


async def test_a_first_turn_of_a_fork_that_changes_nothing_keeps_its_files(where: Path) -> None:
    cantrip = spell(where, list(TWICE))
    first, _, _ = await written(cantrip)
    same = does("write_file", path="src/new.txt", content="one\n")
    async with await spell(where, [same, END]).fork(first, loom=cantrip.loom, worktree=where.parent / "fork") as fork:
        await fork.cast("Again.")
        unchanged = next(turn for turn in cantrip.loom.thread(fork.last_turn).turns if turn.entity_id == fork.id)
        kept = cantrip.loom.files_at(unchanged.id)
    assert kept is not None
    assert (kept.turn_id, kept.workspace) == (unchanged.id, str(where.parent / "fork"))
