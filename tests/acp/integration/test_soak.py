"""A short soak: many prompts over many sessions leave nothing behind. `python -m bench soak` is the long one."""

from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from bench.agent import workspace
from bench.soak import soak
from tests.support.acp_client import RawClient


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
    # The state, and what sandboxes need once: the sentinel, the helper of the proxy, the supervisor of Unix sockets.
    assert seen.kept <= 10, seen.kept
    assert seen.left == 0


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_sessions_that_end_leave_no_memory_behind(start_process: Callable[..., RawClient], folder: Path) -> None:
    """Hundreds of prompts in sessions that are closed: what one session took is there for the next one."""
    agent = start_process([{"content": "hello " * 20, "when": "go", "repeat": True}], gates=["done"])
    process = psutil.Process(agent.process.pid)

    def live(sessions: int) -> None:
        for _ in range(sessions):
            session = agent.session(folder)
            for _ in range(10):
                agent.prompt(session, "go on")
            agent.call("session/close", {"sessionId": session})
            agent.seen.clear()

    live(20)
    before, open_files = process.memory_info().rss, process.num_fds()
    live(40)
    # 400 prompts later; a session alone takes more than this while it lives.
    assert process.memory_info().rss - before < 2_000_000
    assert process.num_fds() <= open_files + 1
