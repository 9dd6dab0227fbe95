"""The tests of `tests/core/unit/test_fork_group.py` that start processes."""

from __future__ import annotations

from pathlib import Path

from tests.core.unit.test_fork_group import Answering, begun, spell
from tests.support.git_repositories import repository, users_state


async def test_each_fork_has_its_own_worktree(tmp_path: Path) -> None:
    where = repository(tmp_path / "project")
    cantrip = spell(Answering(), where)
    turn = await begun(cantrip)
    before = users_state(where)
    group = await cantrip.fork_group(turn, "write it", samples=3, worktree=tmp_path / "sides")
    assert [sample.error for sample in group.samples] == [None] * 3
    for number, sample in enumerate(group.samples, 1):
        assert sample.worktree == str(tmp_path / "sides" / str(number))
        assert (Path(sample.worktree) / "new.txt").read_text() == sample.entity_id
    assert users_state(where) == before
