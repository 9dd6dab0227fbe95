"""What a client is told of usage that a provider does not report: that it is unknown, and never 0."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.support.acp_client import RawClient

UNKNOWN = {"content": "The answer.", "usage": {"prompt_tokens": None, "completion_tokens": None, "cost": None}}


def test_it_is_unknown_and_a_ward_that_needs_it_says_so(start: Callable[..., RawClient], folder: Path) -> None:
    agent = start([UNKNOWN], crystal={"context_window": 8000}, wards=[{"max_turns": 3}, {"max_cost_usd": 1}])
    session = agent.session(folder)
    reply = agent.prompt(session, "Go.")
    usage = reply["_meta"]["cantrip"]["usage"]
    assert [usage[name] for name in ("prompt_tokens", "completion_tokens", "total_tokens", "cost")] == [None] * 4
    for update in agent.updates("usage_update"):
        assert update.get("cost") is None
        assert update["used"] > 0, "what the window holds is estimated"
    ward = "max_cost_usd cannot be enforced: the cost of 1 query"
    assert ward in reply["_meta"]["cantrip"]["warnings"][0]
    assert ward in str(agent.seen), "the user sees it"
    agent.seen.clear()
    agent.prompt(session, "/cost")
    assert "tokens unknown, cost unknown" in agent.said()
    assert "$0" not in agent.said()
