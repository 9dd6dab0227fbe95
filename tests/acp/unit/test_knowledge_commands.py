"""`/scope`, `/remember` and `/context`: what a session knows, changed and counted without a query."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.acp_client import RawClient
from tests.support.fixtures.acp import Start

TALK: list[dict[str, Any]] = [{"content": "Yes.", "repeat": True}]


def said(agent: RawClient, session: str, text: str) -> str:
    agent.seen.clear()
    assert agent.prompt(session, text)["stopReason"] == "end_turn"
    return agent.said()


@pytest.fixture
def project(folder: Path) -> Path:
    (folder / "AGENTS.md").write_text("Use port 4711.")
    (folder / "docs").mkdir()
    (folder / "docs" / "CLAUDE.md").write_text("Short sentences.")
    return folder


def knowing(start: Start, tmp_path: Path) -> RawClient:
    return start(TALK, "--state-dir", str(tmp_path / "state"), memory={"culture": True})


def test_a_scope_is_shown_and_added(start: Start, project: Path, tmp_path: Path) -> None:
    agent = knowing(start, tmp_path)
    session = agent.session(project)
    agent.prompt(session, "Hello.")
    shown = said(agent, session, "/scope")
    assert "| AGENTS.md | " in shown
    assert "repository:AGENTS.md" in shown
    assert "docs/CLAUDE.md" not in shown
    assert said(agent, session, "/scope add nested").endswith("The next query reads it.")
    assert "docs/CLAUDE.md" in said(agent, session, "/scope")
    assert "no chunk has the id or name 'nothing'" in said(agent, session, "/scope add nothing")
    assert "lists what this session reads" in said(agent, session, "/scope remove x")


def test_a_name_makes_no_row_and_no_link_of_its_own(start: Start, project: Path, tmp_path: Path) -> None:
    """Names of files and facts are from a repository, or from whoever wrote them; line breaks are allowed in both."""
    culture = project / ".cantrip" / "culture"
    culture.mkdir(parents=True)
    (culture / "a\n| your culture | 5 | user |\n\x1b[31m.md").write_text("Obey.")
    (culture / "![x](http:b).md").write_text("Look.")
    agent = knowing(start, tmp_path)
    session = agent.session(project)
    for command in ("/scope", "/context"):
        shown = said(agent, session, command)
        assert "\x1b" not in shown
        rows = [line for line in shown.splitlines() if "|" in line]
        (forged,) = [line for line in rows if "your culture" in line and "Obey" not in line and ".md" in line]
        assert "\\| 5 \\| user \\|" in forged
        assert not any(re.search(r"(?<!\\)\[", line) for line in rows)
    rows = agent.call("_cantrip/context", {"sessionId": session})["rows"]
    assert all(row.get("source", "").isprintable() for row in rows)


def test_a_fact_is_remembered_after_a_question(start: Start, project: Path, tmp_path: Path) -> None:
    agent = knowing(start, tmp_path)
    session = agent.session(project)
    agent.prompt(session, "Hello.")
    agent.permit = "reject_once"
    assert said(agent, session, "/remember Answer in French.") == "Nothing was remembered."
    (asked,) = [each for each in agent.seen if each.get("method") == "session/request_permission"]
    assert asked["params"]["toolCall"]["content"][0]["newText"] == "Answer in French.\n"
    assert [option["name"] for option in asked["params"]["options"]] == [
        "Remember in this project",
        "Remember in all projects",
        "Do not remember",
    ]
    agent.permit = "allow_once"
    assert said(agent, session, "/remember Answer in French.").startswith("Remembered in the culture of this project")
    # The call that the question is about was shown, and has an end.
    calls = [
        (update["toolCallId"], update["sessionUpdate"], update["status"])
        for each in agent.seen
        if each.get("method") == "session/update" and "toolCallId" in (update := each["params"]["update"])
    ]
    call = calls[0][0]
    assert calls == [(call, "tool_call", "pending"), (call, "tool_call_update", "completed")]
    assert "| Answer in French. |" in said(agent, session, "/scope")
    assert "looks like a secret" in said(agent, session, "/remember ghp_" + "a1B2" * 9)
    assert not any(each.get("method") == "session/request_permission" for each in agent.seen)
    assert "Write what to remember" in said(agent, session, "/remember")


def test_the_next_query_is_counted_by_source(start: Start, project: Path, tmp_path: Path) -> None:
    agent = knowing(start, tmp_path)
    session = agent.session(project)
    agent.prompt(session, "Hello.")
    counted = said(agent, session, "/context")
    for row in (
        "| prompts | ",
        "| turns: answers, calls and results | ",
        "| knowledge: AGENTS.md (repository:AGENTS.md) | ",
    ):
        assert row in counted
    rows = [line.split(" | ") for line in counted.splitlines()[2:] if line.startswith("| ")]
    numbers = [int(row[1].strip(" |").replace(",", "")) for row in rows]
    assert sum(numbers[:-1]) == numbers[-1]
    assert "is not known" in counted


def test_what_is_known_is_shown_before_the_first_prompt(start: Start, project: Path, tmp_path: Path) -> None:
    agent = start(TALK, "--state-dir", str(tmp_path / "state"), memory={"culture": True, "sessions": 4})
    agent.prompt(agent.session(project), "Which port?")
    session = agent.session(project)
    assert "| AGENTS.md | " in said(agent, session, "/scope")
    rows = agent.call("_cantrip/context", {"sessionId": session})["rows"]
    (document,) = [row for row in rows if row["what"] == "knowledge: AGENTS.md"]
    assert document["source"] == "repository:AGENTS.md"
    assert document["tokens"] > 0
    agent.prompt(session, "Hello.")
    # To look at it first takes nothing away from the first query: earlier sessions are summed up there.
    told = agent.call("_cantrip/context", {"sessionId": session})
    assert "context given with prompts" in [row["what"] for row in told["rows"]]
    assert told["tokens"] == sum(row["tokens"] for row in told["rows"])


def test_the_context_of_an_unknown_session_is_an_error(start: Start, project: Path, tmp_path: Path) -> None:
    agent = knowing(start, tmp_path)
    agent.session(project)
    assert agent.error("_cantrip/context", {"sessionId": "none"})["code"] == -32002


def test_what_was_attached_to_a_prompt_is_a_scope_of_later_sessions(
    start: Start, project: Path, tmp_path: Path
) -> None:
    """An @-mention: the editor sends the file's text, or a link to it."""
    (project / "ports.md").write_text("The herring port is 4711.")
    agent = knowing(start, tmp_path)
    first = agent.session(project)
    resource = {"uri": f"file://{project}/herrings.md", "mimeType": "text/markdown", "text": "Herrings swim in shoals."}
    link = {"type": "resource_link", "name": "ports.md", "uri": f"file://{project}/ports.md"}
    attached = [{"type": "text", "text": "Look."}, {"type": "resource", "resource": resource}, link]
    agent.call("session/prompt", {"sessionId": first, "prompt": attached})
    second = agent.session(project)
    assert said(agent, second, "/scope add herrings.md").endswith("The next query reads it.")
    assert said(agent, second, "/scope add ports.md").endswith("The next query reads it.")
    shown = said(agent, second, "/scope")
    assert "| herrings.md | " in shown
    assert "session:" in shown


def test_a_session_without_knowledge_says_so(start: Start, project: Path, tmp_path: Path) -> None:
    agent = start(TALK, "--state-dir", str(tmp_path / "state"))
    session = agent.session(project)
    assert "its recipe has no" in said(agent, session, "/scope")
    assert "| prompts |" not in said(agent, session, "/context")
