"""Extensions of version 1 that a client gets only if it asks for them. Every message is checked against the published schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.fixtures.acp import DONE, Start

PLAN = {"tool_calls": [{"gate": "plan", "args": {"entries": [{"content": "Look", "status": "in_progress"}]}}]}
FOLDING: dict[str, Any] = {"folding": {"trigger_after_turns": 2, "keep_turns": 1}}
STEPS = [{"content": f"Step {n}.", "tool_calls": [{"gate": "echo", "args": {"text": f"word {n}"}}]} for n in range(3)]


def listed(agent: Any, session: str) -> dict[str, Any]:
    found = agent.call("session/list")["sessions"]
    return next(each for each in found if each["sessionId"] == session)


def prompted(agent: Any, session: str, text: str = "go") -> Path:
    """Send a prompt; returns the session's loom."""
    return Path(agent.prompt(session, text)["_meta"]["cantrip"]["loom"])


# --- titles


@pytest.mark.parametrize("is_open", [True, False])
def test_a_title_is_stored_listed_and_kept(start: Start, folder: Path, is_open: bool) -> None:
    agent = start([DONE, DONE])
    assert agent.initialize()["agentCapabilities"]["sessionCapabilities"]["title"] == {}
    session = agent.session(folder)
    loom = prompted(agent, session, "Fix the parser")
    if not is_open:
        agent.call("session/close", {"sessionId": session})
    agent.seen.clear()
    reply = agent.call("session/set_title", {"sessionId": session, "title": "  My\nparser\twork "})
    assert reply == {"title": "My parser work"}
    if is_open:
        changed = agent.until(lambda m: m.get("method") == "session/update")["params"]["update"]
        assert changed["title"] == "My parser work"
        assert changed["updatedAt"]
        agent.call("session/close", {"sessionId": session})
    assert listed(agent, session)["title"] == "My parser work"
    # The metadata file is only a copy: the loom has the title too.
    (loom.parent / f"{session}.session.json").unlink()
    assert listed(agent, session)["title"] == "My parser work"
    agent.seen.clear()
    agent.call("session/load", {"sessionId": session, "cwd": str(folder), "mcpServers": []})
    assert [each["title"] for each in agent.updates("session_info_update")] == ["My parser work"]
    agent.prompt(session, "Now write the printer")
    assert listed(agent, session)["title"] == "My parser work"


def test_small_talk_as_a_chosen_title_stays(start: Start, folder: Path) -> None:
    agent = start([DONE])
    session = agent.session(folder)
    agent.call("session/set_title", {"sessionId": session, "title": "hello"})
    agent.prompt(session, "Fix the parser")
    assert listed(agent, session)["title"] == "hello"


@pytest.mark.parametrize(("title", "stored"), [("a" * 500, "a" * 199 + "…"), ("\u202eabc\x07", "abc")])
def test_a_title_is_normalized(start: Start, folder: Path, title: str, stored: str) -> None:
    agent = start()
    assert agent.call("session/set_title", {"sessionId": agent.session(folder), "title": title}) == {"title": stored}


def test_titles_that_cannot_be_set(start: Start, folder: Path) -> None:
    agent = start()
    session = agent.session(folder)
    for title in ("", " \n\t", "\u200b", None, 3):
        assert agent.error("session/set_title", {"sessionId": session, "title": title})["code"] == -32602
    for unknown in ("sess_none", "../etc", ""):
        assert agent.error("session/set_title", {"sessionId": unknown, "title": "x"})["code"] == -32002


def test_the_time_of_the_last_activity_is_sent(start: Start, folder: Path) -> None:
    agent = start([DONE])
    session = agent.session(folder)
    agent.prompt(session, "Fix the parser")
    (live,) = agent.updates("session_info_update")
    assert live["updatedAt"].endswith("Z")
    agent.call("session/close", {"sessionId": session})
    agent.seen.clear()
    agent.call("session/load", {"sessionId": session, "cwd": str(folder), "mcpServers": []})
    (loaded,) = agent.updates("session_info_update")
    assert live["updatedAt"] <= loaded["updatedAt"]


# --- plans


@pytest.mark.parametrize("asked", [True, False])
def test_a_plan_has_an_id_if_the_client_asks(start: Start, folder: Path, asked: bool) -> None:
    agent = start([PLAN, DONE], gates=["plan", "done"], capabilities={"plan": {}} if asked else {})
    session = agent.session(folder)
    agent.prompt(session)
    (shown,) = agent.updates("plan_update" if asked else "plan")
    assert not agent.updates("plan" if asked else "plan_update")
    plan = shown["plan"] if asked else shown
    assert [entry["content"] for entry in plan["entries"]] == ["Look"]
    assert not asked or (plan["type"], plan["planId"]) == ("items", "plan")
    agent.call("session/close", {"sessionId": session})
    agent.seen.clear()
    agent.call("session/load", {"sessionId": session, "cwd": str(folder), "mcpServers": []})
    assert agent.updates("plan_update" if asked else "plan") == [shown]


# --- options


def options(found: list[dict[str, Any]]) -> dict[str, Any]:
    return {each["id"]: each["currentValue"] for each in found if each["type"] == "boolean"}


def test_a_boolean_option_is_there_for_clients_that_know_them(start: Start, folder: Path) -> None:
    plain = start()
    session = plain.call("session/new", {"cwd": str(folder), "mcpServers": []})
    assert options(session["configOptions"]) == {}
    asked = {"sessionId": session["sessionId"], "configId": "reuse_results", "type": "boolean", "value": False}
    assert plain.error("session/set_config_option", asked)["code"] == -32602


def test_a_boolean_option_is_kept(start: Start, folder: Path) -> None:
    agent = start([DONE], capabilities={"session": {"configOptions": {"boolean": {}}}})
    opened = agent.call("session/new", {"cwd": str(folder), "mcpServers": []})
    assert options(opened["configOptions"]) == {"reuse_results": True}
    session = opened["sessionId"]
    given = {"sessionId": session, "configId": "reuse_results", "type": "boolean"}
    assert agent.error("session/set_config_option", {**given, "value": "false"})["code"] == -32602
    reply = agent.call("session/set_config_option", {**given, "value": False})
    assert options(reply["configOptions"]) == {"reuse_results": False}
    agent.prompt(session)
    agent.call("session/close", {"sessionId": session})
    loaded = agent.call("session/load", {"sessionId": session, "cwd": str(folder), "mcpServers": []})
    assert options(loaded["configOptions"]) == {"reuse_results": False}


# --- summaries


def test_a_summary_is_shown_while_it_is_written(start: Start, folder: Path) -> None:
    summarizer = {"provider": "scripted", "responses": [{"chunks": ["They said ", "three words."]}] * 9}
    folding = {"crystals": {"short": summarizer}, "folding": {**FOLDING["folding"], "summarizer": "short"}}
    agent = start([*STEPS, {"content": "Done."}], capabilities={"session": {"compaction": {}}}, **folding)
    agent.prompt(agent.session(folder))
    first = agent.updates("compaction_update")[0]
    pieces = [u for u in agent.updates("compaction_summary_chunk") if u["compactionId"] == first["compactionId"]]
    assert "".join(piece["content"]["text"] for piece in pieces) == "They said three words."
    assert first["status"] == "completed"
    assert "They said three words." in first["summary"][0]["text"]
    kinds = [update["sessionUpdate"] for update in agent.updates() if "compactionId" in update]
    assert kinds[0] == "compaction_summary_chunk"


def test_no_pieces_of_a_summary_for_others(start: Start, folder: Path) -> None:
    summarizer = {"provider": "scripted", "responses": [{"content": "Three words."}] * 9}
    folding = {"crystals": {"short": summarizer}, "folding": {**FOLDING["folding"], "summarizer": "short"}}
    agent = start([*STEPS, {"content": "Done."}], **folding)
    agent.prompt(agent.session(folder))
    assert not agent.updates("compaction_summary_chunk")
    assert not agent.updates("compaction_update")


# --- system prompts

OWN = {"call": {"system_prompt": "You are the recipe's."}}


def prompts_in(loom: Path) -> list[str]:
    """The system prompts in the calls of a loom."""
    records = [json.loads(line) for line in loom.read_text().splitlines()]
    return [record["call"]["system_prompt"] for record in records if "call" in record]


def block(mode: str, *texts: str) -> dict[str, Any]:
    return {"systemPrompt": {"mode": mode, "content": [{"type": "text", "text": text} for text in texts]}}


@pytest.mark.parametrize(
    ("given", "result"),
    [
        (block("append", "Be brief.", "Be kind."), "You are the recipe's.\n\nBe brief.\n\nBe kind."),
        (block("override", "Be brief."), "Be brief."),
        ({"_meta": {"systemPrompt": "Be brief."}}, "Be brief."),
        ({"_meta": {"systemPrompt": {"append": "Be brief."}}}, "You are the recipe's.\n\nBe brief."),
        ({"systemPrompt": None, "_meta": {"systemPrompt": None}}, "You are the recipe's."),
        ({}, "You are the recipe's."),
    ],
)
def test_the_clients_system_prompt_is_part_of_the_call(start: Start, folder: Path, given: Any, result: str) -> None:
    agent = start([DONE, DONE, DONE], **OWN)
    session = agent.session(folder, **given)
    loom = prompted(agent, session)
    agent.call("session/close", {"sessionId": session})
    # The loom alone is enough.
    (loom.parent / f"{session}.session.json").unlink()
    again = {"sessionId": session, "cwd": str(folder), "mcpServers": []}
    agent.call("session/load", {**again, **given})
    assert set(prompts_in(prompted(agent, session))) == {result}
    forked = agent.call("session/fork", again)["sessionId"]
    assert prompts_in(prompted(agent, forked))[-1] == result


def test_a_system_prompt_never_changes_but_a_fork_may_have_its_own(start: Start, folder: Path) -> None:
    agent = start([DONE, DONE], **OWN)
    session = agent.session(folder, **block("append", "Be brief."))
    agent.prompt(session)
    again = {"sessionId": session, "cwd": str(folder), "mcpServers": []}
    for _ in range(2):
        assert agent.error("session/load", {**again, **block("append", "Be long.")})["code"] == -32602
        assert agent.error("session/resume", {**again, **block("override", "Be brief.")})["code"] == -32602
        agent.call("session/close", {"sessionId": session})
        agent.call("session/resume", {**again, **block("append", "Be brief.")})
    forked = agent.call("session/fork", {**again, **block("override", "Be long.")})["sessionId"]
    assert prompts_in(prompted(agent, forked))[-1] == "Be long."


@pytest.mark.parametrize(
    "wrong",
    [
        block("replace", "x"), block("append"), block("append", "  "), {"systemPrompt": "x"},
        {"systemPrompt": {"mode": "append", "content": [{"type": "image", "data": "", "mimeType": "image/png"}]}},
        {"_meta": {"systemPrompt": 3}}, {"_meta": {"systemPrompt": {"replace": "x"}}}, {"_meta": {"systemPrompt": ""}},
    ],
)  # fmt: skip
def test_a_system_prompt_that_cannot_be_applied_opens_no_session(start: Start, folder: Path, wrong: Any) -> None:
    agent = start()
    assert agent.error("session/new", {"cwd": str(folder), "mcpServers": [], **wrong})["code"] == -32602
    assert agent.call("session/list")["sessions"] == []
