"""The tests of `tests/acp/unit/test_permission_scope.py` that start processes."""

from pathlib import Path
from typing import Any

import pytest

from tests.acp.unit.test_permission_scope import END, asked, question
from tests.support.acp_client import SOON
from tests.support.fixtures.acp import Start


@pytest.mark.sandbox
def test_a_command_that_waits_is_settled_by_the_mode(start: Start, folder: Path) -> None:
    for mode, made in (("read-only", False), ("sandboxed", True)):
        agent = start(
            [{"bash": "touch made"}, END],
            medium="bash", gates=["done"], wards=[{"max_turns": 5}, {"bash_writable_paths": ["."]}],
        )  # fmt: skip
        agent.permit = None
        session = agent.session(folder, mode="ask")
        prompt = agent.start_prompt(session)
        question(agent)
        agent.call("session/set_mode", {"sessionId": session, "modeId": mode})
        if not any(m.get("id") == prompt and "method" not in m for m in agent.seen):
            agent.answer(prompt)
        assert (folder / "made").exists() == made


@pytest.mark.sandbox
def test_a_word_on_a_command_stays_in_its_folder(start: Start, folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    (folder / "src").mkdir()
    other.mkdir()
    shell: dict[str, Any] = {
        "medium": "bash", "gates": ["done", "write_file"], "wards": [{"max_turns": 9}, {"bash_writable_paths": ["."]}],
    }  # fmt: skip
    state = str(tmp_path / "state")
    script = [{"bash": "rm -f x"}, {"bash": "write_file src/a.txt one"}, {"bash": "cantrip_done ok"}]
    agent = start(script, "--state-dir", state, **shell)
    agent.permit = "allow_always"
    session = agent.session(folder, mode="ask")
    agent.prompt(session)
    first = asked(agent)
    assert len(first) == 2
    assert agent.hang_up() < SOON
    for cwd, questions in ((folder, 0), (other, 1)):
        again = start([*script, *script, *script], "--state-dir", state, **shell)
        again.call("session/resume", {"sessionId": session, "cwd": str(cwd), "mcpServers": []})
        again.permit = "reject_once"
        again.prompt(session)
        assert asked(again)[:questions] == first[:questions]
        assert bool(asked(again)) == bool(questions)
        assert again.hang_up() < SOON
