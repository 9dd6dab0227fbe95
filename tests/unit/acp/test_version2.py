"""A client of the draft of version 2 asks: it is answered in version 1, and can go on in that."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.acp_client import RawClient
from tests.support.fixtures.acp import DONE

# As the draft has it: `info` and `capabilities` in the place of `clientInfo` and `clientCapabilities`.
HELLO = {"protocolVersion": 2, "info": {"name": "tests", "version": "1"}, "capabilities": {"elicitation": {"form": {}}}}


@pytest.mark.parametrize("first", [True, False])
def test_it_is_answered_in_version_1_and_may_go_on(start: Callable[..., RawClient], folder: Path, first: bool) -> None:
    agent = start([DONE], initialized=not first)
    # The answer is checked against version 1's published schema as it comes.
    answer = agent.call("initialize", HELLO)
    assert answer["protocolVersion"] == 1
    assert answer["agentInfo"]["name"] == "cantrip-acp"
    # It says once more what it can do, now in version 1's words; nothing of the draft's words counted as that.
    assert agent.initialize(session={"notices": {}})["protocolVersion"] == 1
    assert agent.prompt(agent.session(folder))["stopReason"] == "end_turn"


def test_a_client_that_goes_on_at_once_is_one_that_can_do_nothing_special(
    start: Callable[..., RawClient], folder: Path
) -> None:
    agent = start([DONE], initialized=False)
    agent.call("initialize", HELLO)
    assert agent.prompt(agent.session(folder))["stopReason"] == "end_turn"
    assert {m.get("method") for m in agent.seen} <= {None, "session/update"}


def test_what_only_the_draft_has_is_refused(start: Callable[..., RawClient], folder: Path) -> None:
    agent = start([DONE])
    session = agent.session(folder)
    for method in ("auth/login", "auth/logout", "tool_call/cancel", "terminal/cancel"):
        assert agent.error(method, {"sessionId": session})["code"] == -32601
