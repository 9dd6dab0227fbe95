"""OpenRouter: its headers, its costs, its reasoning given back, its ways to fail."""

from __future__ import annotations

import json

import pytest

from cantrip_acp.crystals.catalog.types import UNKNOWN, ModelInfo, Price
from cantrip_acp.crystals.endpoint import Endpoint
from cantrip_acp.crystals.keys import Secret
from cantrip_acp.crystals.openai.openrouter import OWN_ADDRESS, OpenRouterCrystal, joined
from cantrip_acp.types.call import Call
from cantrip_acp.types.errors import CrystalError
from cantrip_acp.types.messages import Message, ToolCall
from tests.support.openai_replies import (
    DONE,
    READ,
    USER,
    asked,
    call_delta,
    chat_stream,
    chunk,
    counts,
    refusal,
    said,
    strict,
    text,
    turn,
)
from tests.support.provider_server import Wire, sse, sse_reply

EXTRA = ("usage", "reasoning", "provider")
"""Fields of a request that are OpenRouter's own."""
PROCESSING = b": OPENROUTER PROCESSING\n\n"


def crystal(
    wire: Wire, model: str = "openai/gpt-test", info: ModelInfo = UNKNOWN, **options: object
) -> OpenRouterCrystal:
    end = Endpoint(
        "openrouter", model, f"{wire.url}/api/v1", Secret("sk-or-0123456789abcdef"), info=info, options=options
    )
    return OpenRouterCrystal(end)


async def test_what_is_asked() -> None:
    with Wire(strict(said(), said(), extra=EXTRA)) as wire:
        params = Call(max_tokens=50, temperature=0.3)
        await asked(crystal(wire, effort="high", routing={"order": ["azure"]}), params=params, entity_id="e")
        await asked(crystal(wire, thinking_budget=2000))
        request = wire.requests[0]
        budget = wire.requests[1].json()
    body = request.json()
    assert request.path == "/api/v1/chat/completions"
    assert request.headers["x-title"] == "cantrip-acp"
    assert request.headers["http-referer"].startswith("https://")
    assert body["usage"] == {"include": True}
    assert body["reasoning"] == {"effort": "high"}
    assert body["provider"] == {"order": ["azure"]}
    assert body["max_tokens"] == 50
    assert not {"stream_options", "prompt_cache_key", "reasoning_effort", "max_completion_tokens", "store"} & set(body)
    assert budget["reasoning"] == {"max_tokens": 2000}


def test_its_own_address_and_headers_of_the_recipe() -> None:
    made = OpenRouterCrystal(Endpoint("openrouter", "m"))
    assert made.sdk.base_url == OWN_ADDRESS


async def test_a_recipe_names_its_own_application() -> None:
    with Wire([said()]) as wire:
        headers = {"x-title": Secret("my application")}
        await asked(OpenRouterCrystal(Endpoint("openrouter", "m", f"{wire.url}/v1", headers=headers)))
        assert wire.requests[0].headers["x-title"] == "my application"


async def test_comments_and_costs() -> None:
    usage = counts(100, 10, cached=40, cost=0.0123, cost_details={"upstream_inference_cost": 0.5})
    pieces = [
        PROCESSING,
        PROCESSING,
        chunk({"content": "Hel"}),
        PROCESSING,
        chunk({"content": "lo"}),
        chunk({}, "stop"),
    ]
    with Wire([sse_reply([*pieces, chunk(None, usage=usage), DONE])]) as wire:
        response, shown = await asked(crystal(wire, info=ModelInfo(price=Price(1, 1))))
    assert text(shown) == "Hello"
    assert response.usage.cost == 0.0123, "what it says that it cost, not what the table says"
    assert response.usage.cached_tokens == 40


async def test_the_bill_of_ones_own_key_at_the_provider_is_added() -> None:
    usage = counts(cost=0.01, is_byok=True, cost_details={"upstream_inference_cost": 0.5})
    with Wire([chat_stream({"content": "x"}, usage=usage)]) as wire:
        response, _ = await asked(crystal(wire))
    assert response.usage.cost == pytest.approx(0.51)


async def test_reasoning_goes_back_as_it_was() -> None:
    def detail(**more: object) -> bytes:
        return chunk(
            {"content": "", "reasoning": more.get("text"), "reasoning_details": [{"index": 0, **more}]}, check=False
        )

    pieces = [
        detail(type="reasoning.text", text="Let me ", format="anthropic-claude-v1"),
        detail(type="reasoning.text", text="think.", format="anthropic-claude-v1"),
        detail(type="reasoning.text", signature="sig==", format="anthropic-claude-v1"),
        chunk(
            {"reasoning_details": [{"type": "reasoning.encrypted", "data": "sealed", "id": "r", "index": 1}]},
            check=False,
        ),
        chunk(call_delta(0, "call_a", "read_file", "{}")),
        chunk({}, "tool_calls"),
        DONE,
    ]
    details = [
        {
            "index": 0,
            "type": "reasoning.text",
            "text": "Let me think.",
            "format": "anthropic-claude-v1",
            "signature": "sig==",
        },
        {"type": "reasoning.encrypted", "data": "sealed", "id": "r", "index": 1},
    ]
    with Wire(strict(sse_reply(pieces), said(), extra=EXTRA)) as wire:
        made = crystal(wire)
        first, shown = await asked(made, tools=(READ,))
        assert first.thinking == text(shown, "thought") == "Let me think."
        history = turn(*first.tool_calls, provider=first.provider, thinking=first.thinking)
        await asked(made, USER, *history, tools=(READ,))
        sent = wire.requests[1].json()["messages"][1]
    assert first.provider == {"family": "openrouter", "reasoning_details": details}
    assert sent["reasoning_details"] == details


def test_joined_leaves_what_is_whole() -> None:
    whole = [
        {"type": "reasoning.text", "text": "a", "index": 0},
        {"type": "reasoning.text", "text": "b", "index": 1},
        {"type": "reasoning.encrypted", "data": "x", "index": 2},
        {"type": "reasoning.encrypted", "data": "y", "index": 2},
        {"type": "reasoning.new", "thing": 1},
    ]
    assert joined(whole) == whole
    assert whole[0]["text"] == "a", "what came in is not changed"


async def test_reasoning_of_another_family_stays_out() -> None:
    with Wire(strict(said(), extra=EXTRA)) as wire:
        history = turn(ToolCall("a", "read_file"), provider={"family": "local", "reasoning_details": [1]})
        await asked(crystal(wire), USER, *history, tools=(READ,))
        assert "reasoning_details" not in wire.requests[0].json()["messages"][1]


@pytest.mark.parametrize(
    ("error", "status", "retryable", "words"),
    [
        ({"code": 502, "message": "Provider returned error"}, 502, True, "Provider returned error"),
        ({"code": 429, "message": "Rate limited"}, 429, True, "Rate limited"),
        ({"code": 402, "message": "Insufficient credits"}, 402, False, "credit"),
        ({"code": "server_error", "message": "Provider disconnected"}, 500, True, "disconnected"),
        (
            {
                "code": 400,
                "message": "Provider returned error",
                "metadata": {"raw": '{"detail":"bad tool schema"}', "provider_name": "Azure"},
            },
            400,
            False,
            "Azure",
        ),
        ({"code": 403, "message": "Flagged", "metadata": {"reasons": ["x"]}}, 403, False, "Flagged"),
        ({}, 500, True, "error"),
    ],
)
async def test_an_error_in_the_middle_of_a_stream(error: dict, status: int, retryable: bool, words: str) -> None:
    broken = {
        "id": "c",
        "object": "chat.completion.chunk",
        "error": error,
        "choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": "error"}],
    }
    with Wire([sse_reply([PROCESSING, chunk({"content": "Half"}), sse(broken), DONE])]) as wire:
        with pytest.raises(CrystalError, match=words) as caught:
            await asked(crystal(wire))
    assert caught.value.may_retry() is retryable
    assert caught.value.status in (status, None)


async def test_an_error_of_a_choice() -> None:
    error = {"code": 503, "message": "No instances"}
    choice = {"index": 0, "delta": {}, "finish_reason": "error", "error": error}
    with Wire([sse_reply([sse({"choices": [choice]}), DONE])]) as wire:
        with pytest.raises(CrystalError, match="No instances") as caught:
            await asked(crystal(wire))
    assert caught.value.status == 503


async def test_models_without_tools_are_asked_in_text() -> None:
    answer = 'Yes.\n```tool_call\n{"name": "read_file", "arguments": {"path": "a"}}\n```'
    with Wire(strict(refusal(404, "No endpoints found that support tool use."), said(answer), extra=EXTRA)) as wire:
        response, _ = await asked(crystal(wire), tools=(READ,))
        assert "tools" not in wire.requests[1].json()
    assert [(c.gate, json.loads(c.args)) for c in response.tool_calls] == [("read_file", {"path": "a"})]


async def test_cache_points_for_models_that_need_them() -> None:
    system = [Message("system", "You are A.", kind="call"), Message("system", "Tools.", kind="capabilities")]
    with Wire([said(), said(), said()]) as wire:
        await asked(crystal(wire, "anthropic/claude-x"), *system, USER)
        await asked(
            crystal(wire, "anthropic/claude-x"), *system, USER, *turn(ToolCall("a", "read_file")), tools=(READ,)
        )
        await asked(crystal(wire, "openai/gpt-x"), *system, USER)
        first, second, third = (request.json()["messages"] for request in wire.requests)
    assert marked(first) == [1, 2]
    assert marked(second) == [1, 4]
    assert marked(third) == []
    assert plain(first) == plain(second)[:3], "marks apart, one query's messages begin the next one's"


@pytest.mark.parametrize(
    ("model", "marks"),
    [
        ("qwen/qwen3.8-max", [1, 2]),
        ("~anthropic/claude-x", [1, 2]),
        ("google/gemini-3.8-flash", []),
        ("x-ai/grok-4.7", []),
    ],
)
async def test_cache_points_by_family(model: str, marks: list[int]) -> None:
    system = [Message("system", "You are A.", kind="call"), Message("system", "Tools.", kind="capabilities")]
    with Wire([said()]) as wire:
        await asked(crystal(wire, model), *system, USER)
        assert marked(wire.requests[0].json()["messages"]) == marks


def marked(messages: list[dict]) -> list[int]:
    return [i for i, m in enumerate(messages) if "cache_control" in json.dumps(m)]


def plain(messages: list[dict]) -> list[tuple[str, str]]:
    return [
        (m["role"], "".join(p["text"] for p in m["content"]) if isinstance(m["content"], list) else m["content"])
        for m in messages
    ]
