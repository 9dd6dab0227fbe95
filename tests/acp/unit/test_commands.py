"""Slash commands: answered without a query, and without a trace in what the crystal sees."""

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from cantrip_acp.loom.loom import Loom
from tests.support.acp_client import RawClient
from tests.support.fixtures.acp import Start

NAMES = [
    "loom",
    "fork",
    "changes",
    "undo",
    "redo",
    "restore",
    "fold",
    "reward",
    "wards",
    "context",
    "scope",
    "remember",
    "run",
    "services",
    "cost",
    "recipe",
    "export",
    "queue",
    "help",
]
TALK: list[dict[str, Any]] = [
    {"content": f"Answer {n}.", "usage": {"prompt_tokens": 100, "completion_tokens": 10, "cost": 0.01}}
    for n in range(6)
]


def said(agent: RawClient, session: str, text: str) -> str:
    agent.seen.clear()
    assert agent.prompt(session, text)["stopReason"] == "end_turn"
    return agent.said()


@pytest.fixture
def talked(start: Start, folder: Path, tmp_path: Path) -> tuple[RawClient, str]:
    agent = start(TALK, "--state-dir", str(tmp_path / "state"))
    session = agent.session(folder)
    for number in range(3):
        agent.prompt(session, f"Question {number}?")
    return agent, session


def test_they_are_told_behind_the_reply(start: Start, folder: Path) -> None:
    agent = start()
    agent.session(folder)
    agent.next()
    (update,) = agent.updates("available_commands_update")
    assert [command["name"] for command in update["availableCommands"]] == NAMES


def test_each_answers_without_a_query(talked: tuple[RawClient, str], tmp_path: Path) -> None:
    agent, session = talked
    help_ = said(agent, session, "/help")
    assert all(f"/{name}" in help_ for name in NAMES)
    assert "3 turns" in said(agent, session, "/loom")
    assert "max_turns" in said(agent, session, "/wards")
    cost = said(agent, session, "/cost")
    assert "$0.0300" in cost
    assert "300 tokens in" in cost
    assert "scripted:scripted" in said(agent, session, "/recipe")
    # The script was not asked meanwhile.
    assert said(agent, session, "on") == "Answer 3."
    with Loom.open(tmp_path / "state" / "looms" / f"{session}.loom.jsonl", readonly=True) as loom:
        assert "/help" not in json.dumps([start.intent for start, _ in loom.casts()])
    # What is no command is for the entity.
    assert said(agent, session, "/nonsense") == "Answer 4."
    assert said(agent, session, "/ help") == "Answer 5."


def test_reward(talked: tuple[RawClient, str], tmp_path: Path) -> None:
    agent, session = talked
    assert "the reward 1" in said(agent, session, "/reward 1")
    assert "the reward 0.5" in said(agent, session, '/reward 0.5 2 "well done"')
    for wrong in ("/reward", "/reward much", "/reward nan", "/reward 1 99"):
        assert "reward 1 " not in said(agent, session, wrong)
    with Loom.open(tmp_path / "state" / "looms" / f"{session}.loom.jsonl", readonly=True) as loom:
        assert [turn.reward for turn in loom.turns() if turn.role == "crystal"] == [None, 0.5, 1.0]


def test_fold(talked: tuple[RawClient, str], tmp_path: Path) -> None:
    agent, session = talked
    assert "2 earlier turns" in said(agent, session, "/fold")
    assert "nothing to fold" in said(agent, session, "/fold")
    assert "/fold 3" in said(agent, session, "/fold x")
    assert said(agent, session, "on") == "Answer 3."
    with Loom.open(tmp_path / "state" / "looms" / f"{session}.loom.jsonl", readonly=True) as loom:
        assert [turn.role for turn in loom.turns()] == ["call", "crystal", "crystal", "crystal", "fold", "crystal"]


def test_fork(talked: tuple[RawClient, str], folder: Path) -> None:
    agent, session = talked
    answer = said(agent, session, "/fork 2")
    forked = answer.partition("session `")[2].partition("`")[0]
    assert forked.startswith("sess_")
    assert "no turn '9'" in said(agent, session, "/fork 9")
    agent.seen.clear()
    loaded = agent.call("session/load", {"sessionId": forked, "cwd": str(folder), "mcpServers": []})
    assert loaded["_meta"]["cantrip"]["turns"] == 2
    assert agent.said() == "Answer 0.Answer 1."


def test_export(talked: tuple[RawClient, str]) -> None:
    agent, session = talked
    assert "openai" in said(agent, session, "/export")
    assert "unknown export format" in said(agent, session, "/export nonsense")
    answer = said(agent, session, "/export openai")
    assert answer.startswith("Wrote 1 row to `")
    assert Path(answer.partition("`")[2].partition("`")[0]).read_text().count("\n") == 1
    archive = Path(said(agent, session, "/export inspect").partition("`")[2].partition("`")[0])
    assert (archive.suffix, zipfile.is_zipfile(archive)) == (".eval", True)


def test_before_anything_was_said(start: Start, folder: Path) -> None:
    agent = start(TALK)
    session = agent.session(folder)
    assert "0 turns" in said(agent, session, "/loom")
    for text in ("/fork", "/reward 1"):
        assert "no turn yet" in said(agent, session, text)
    assert "nothing to fold" in said(agent, session, "/fold")
    assert said(agent, session, "hello") == "Answer 0."


def test_names_in_any_case_and_mistyped(talked: tuple[RawClient, str]) -> None:
    agent, session = talked
    assert "$0.0300" in said(agent, session, "/COST")
    assert "$0.0300" in said(agent, session, "  /Cost\n")
    assert "the reward 1" in said(agent, session, "/reward\t1")
    for typed, meant in (
        ("/costs", "/cost"),
        ("/hlep", "/help"),
        ("/compact", "/fold"),
        ("/usage", "/cost"),
        ("/Forks", "/fork"),
    ):
        assert f"did you mean `{meant}`" in said(agent, session, typed)
    # A path, or more than a word, is for the entity.
    assert said(agent, session, "/costs/of is a folder") == "Answer 3."
    assert said(agent, session, "/etc/hosts") == "Answer 4."


@pytest.mark.parametrize(
    ("offered", "kind"),
    [({"compaction": {}}, "compaction_update"), ({"notices": {}}, "notice"), ({}, "agent_thought_chunk")],
)
def test_a_fold_that_was_asked_for_is_shown(start: Start, folder: Path, offered: Any, kind: str) -> None:
    agent = start(TALK, capabilities={"session": offered})
    session = agent.session(folder)
    for number in range(3):
        agent.prompt(session, f"Question {number}?")
    answer = said(agent, session, "/fold")
    assert "2 earlier turns" in answer
    (shown,) = agent.updates(kind)
    kinds = [update["sessionUpdate"] for update in agent.updates()]
    assert kinds.index(kind) < kinds.index("agent_message_chunk")
    if kind == "compaction_update":
        agent.seen.clear()
        agent.call("session/load", {"sessionId": session, "cwd": str(folder), "mcpServers": []})
        assert [update["summary"] for update in agent.updates(kind)] == [shown["summary"]]
