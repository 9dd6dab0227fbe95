"""A short soak: many prompts over many sessions leave nothing behind. `python -m bench soak` is the long one."""

from pathlib import Path

import pytest

from bench.agent import workspace
from bench.soak import soak


@pytest.mark.sandbox
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_nothing_grows() -> None:
    with workspace("responses: [{content: hello, repeat: true}]\n") as (folder, environment):
        assert isinstance(folder, Path)
        seen = soak(folder, environment, sessions=8, prompts=120, every=10)
    assert sum(seen.reasons.values()) == 120, seen.reasons
    assert not [reason for reason in seen.reasons if reason.startswith("error")], seen.reasons
    # What is said stays in each session's context: some growth is the point of it.
    assert seen.slope() < 60_000, seen.memory
    assert seen.kept <= 8, seen.kept
    assert seen.left == 0
