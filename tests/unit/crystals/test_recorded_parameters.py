"""Each turn records the sampling parameters that were sent, and the model that served, as the wire had them."""

from __future__ import annotations

from typing import Any

import pytest

from cantrip_acp import Call, Cantrip, Circle, RetryPolicy
from cantrip_acp.loom.records.turn import Turn
from tests.support.provider_server import Reply, Wire, json_reply
from tests.unit.crystals.test_usage import KINDS, crystal, whole

pytestmark = pytest.mark.anyio

CALL = Call(temperature=0.25, seed=7, max_tokens=321)


async def turn_of(kind: str, *replies: Reply) -> tuple[Turn, dict[str, Any]]:
    """The turn that a query leaves, and the last request as the provider received it."""
    with Wire(list(replies)) as wire:
        circle = Circle(gates=["done"], wards=[{"max_turns": 3}])
        cantrip = Cantrip(crystal(kind, wire.url), CALL, circle, retry=RetryPolicy(base_s=0.01))
        await cantrip.cast("Hi")
        sent = wire.requests[-1].json()
    (turn,) = [t for t in cantrip.loom.turns() if t.role == "crystal"]
    return turn, sent.get("generationConfig", sent)


def received(sent: dict[str, Any]) -> tuple[Any, ...]:
    limits = ("max_tokens", "max_completion_tokens", "max_output_tokens", "maxOutputTokens")
    limit = next((sent[name] for name in limits if name in sent), None)
    return sent.get("temperature"), sent.get("top_p", sent.get("topP")), sent.get("seed"), limit


def recorded(turn: Turn) -> tuple[Any, ...]:
    asked = turn.metadata.request
    assert asked
    return asked.temperature, asked.top_p, asked.seed, asked.max_tokens


@pytest.mark.parametrize("kind", KINDS)
async def test_what_was_sent_is_recorded(kind: str) -> None:
    turn, sent = await turn_of(kind, whole(kind))
    # Anthropic's Messages and OpenAI's Responses have no seed.
    seed = 7 if kind in ("chat", "google") else None
    assert recorded(turn) == received(sent) == (0.25, None, seed, 321)
    assert turn.metadata.model


@pytest.mark.parametrize("kind", KINDS)
async def test_a_parameter_that_was_refused_is_not_recorded(kind: str) -> None:
    words = "Unsupported parameter: 'temperature' is not supported with this model."
    refusal = {"error": {"message": words, "type": "invalid_request_error", "code": 400, "status": "INVALID_ARGUMENT"}}
    turn, sent = await turn_of(kind, json_reply(refusal, 400), whole(kind))
    assert recorded(turn) == received(sent)
    assert recorded(turn)[0] is None
    assert recorded(turn)[3] == 321
