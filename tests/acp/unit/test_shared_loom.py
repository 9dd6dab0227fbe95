"""Sessions of a recipe that names a database: one loom for all of them, in one agent and in several."""

from __future__ import annotations

from pathlib import Path

from cantrip_acp import Loom
from tests.support.fixtures.acp import DONE, Start


def test_sessions_and_agents_share_a_database(start: Start, folder: Path, tmp_path: Path) -> None:
    where = f"sqlite:{tmp_path / 'shared.db'}"
    agents = [start([DONE], loom={"store": "sqlite:shared.db"}) for _ in range(2)]
    for agent in agents:
        sessions = [agent.session(folder) for _ in range(2)]
        for session in sessions:
            assert agent.prompt(session)["_meta"]["cantrip"]["loom"] == where
    with Loom.open(where, readonly=True) as loom:
        assert not loom.problems
        casts = loom.casts()
        assert len(casts) == 4
        assert all(end is not None and end.terminated for _, end in casts)
        assert len({start.entity_id for start, _ in casts}) == 4


def test_a_database_that_cannot_be_opened_is_named(start: Start, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "shared.db").write_text("this is no database, but a long enough text" * 20)
    agent = start([DONE], loom={"store": "sqlite:shared.db"})
    error = agent.error("session/new", {"cwd": str(folder), "mcpServers": []})
    assert "shared.db: the file is not a SQLite database" in error["message"]


def test_an_export_of_a_session_in_a_database(start: Start, folder: Path, tmp_path: Path) -> None:
    agent = start([DONE], "--state-dir", str(tmp_path / "state"), loom={"store": f"sqlite:{tmp_path}/shared.db"})
    other, session = agent.session(folder), agent.session(folder)
    agent.prompt(session, "/export openai")
    assert "no turn yet" in agent.said()
    for each in (other, session):
        agent.prompt(each)
    agent.seen.clear()
    agent.prompt(session, "/export openai")
    target = tmp_path / "state" / "exports" / f"{session}.openai.jsonl"
    assert f"Wrote 1 row to `{target}`" in agent.said()
    assert target.read_text().count("\n") == 1
    assert list(folder.iterdir()) == []
