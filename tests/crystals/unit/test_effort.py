"""An effort that a model does not take: the nearest one is asked for in its place, once, and the user is told."""

from collections.abc import Callable
from typing import Any

import pytest

from cantrip_acp import Call, Cantrip, Circle
from cantrip_acp.crystals.anthropic.crystal import AnthropicCrystal
from cantrip_acp.crystals.catalog.types import ModelInfo
from cantrip_acp.crystals.contract import Query
from cantrip_acp.crystals.endpoint import Endpoint
from cantrip_acp.crystals.keys import Secret
from cantrip_acp.crystals.local.crystal import LocalCrystal
from cantrip_acp.crystals.openai.openrouter import OpenRouterCrystal
from cantrip_acp.crystals.openai.responses_api import OpenAICrystal
from cantrip_acp.types import events
from cantrip_acp.types.errors import CrystalError
from cantrip_acp.types.messages import Message
from tests.support import anthropic_replies as anthropic
from tests.support import openai_replies as openai
from tests.support.provider_server import Reply, Request, Wire

KEY = "sk-test-0123456789abcdefghij"
ADAPTIVE = ModelInfo(thinking="adaptive", reasoning=True, sampling=False, known=True, max_output=128_000)


def endpoint(wire: Wire, effort: str, provider: str = "openai", path: str = "/v1", **more: Any) -> Endpoint:
    options = {"effort": effort, **more.pop("options", {})}
    return Endpoint(provider, openai.MODEL, wire.url + path, Secret(KEY), options=options, **more)


def responses(wire: Wire, effort: str) -> Any:
    return OpenAICrystal(endpoint(wire, effort, options={"api": "responses"}))


def chat(wire: Wire, effort: str) -> Any:
    return OpenAICrystal(endpoint(wire, effort, options={"api": "chat"}))


def local(wire: Wire, effort: str) -> Any:
    return LocalCrystal(endpoint(wire, effort, "vllm"))


def openrouter(wire: Wire, effort: str) -> Any:
    return OpenRouterCrystal(endpoint(wire, effort, "openrouter"))


def claude(wire: Wire, effort: str) -> Any:
    return AnthropicCrystal(endpoint(wire, effort, "anthropic", "", info=ADAPTIVE))


def sent(request: Request) -> str | None:
    body = request.json()
    places = [body.get("reasoning_effort"), (body.get("reasoning") or {}).get("effort")]
    return next((e for e in [*places, (body.get("output_config") or {}).get("effort")] if e), None)


OPENAI = "Unsupported value: 'reasoning.effort' does not support '{}' with this model. Supported values are: {}."
ANTHROPIC = "output_config.effort: Input should be {1} (got '{0}')"
WIRES: dict[Callable[[Wire, str], Any], tuple[str, Callable[[str], Reply], Callable[[], Reply]]] = {
    responses: (
        OPENAI,
        lambda words: openai.refusal(400, words, "unsupported_value"),
        lambda: openai.responds(openai.message_item("ok")),
    ),
    chat: (
        OPENAI.replace("reasoning.effort", "reasoning_effort"),
        lambda w: openai.refusal(400, w),
        lambda: openai.said("ok"),
    ),
    local: ("reasoning_effort '{}' is not one of {}", lambda w: openai.refusal(400, w), lambda: openai.said("ok")),
    openrouter: ("invalid effort '{}', must be one of {}", lambda w: openai.refusal(400, w), lambda: openai.said("ok")),
    claude: (ANTHROPIC, lambda words: anthropic.refusal(400, "invalid_request_error", words), anthropic.says),
}


@pytest.mark.parametrize("make", WIRES)
@pytest.mark.parametrize(
    ("asked", "taken", "nearest"),
    [
        ("xhigh", ["low", "medium", "high"], "high"),
        ("max", ["none", "low", "medium", "high", "xhigh"], "xhigh"),
        ("minimal", ["low", "high"], "low"),
        ("none", ["low", "medium"], "low"),
        ("medium", ["low", "high"], "low"),
    ],
)
async def test_the_nearest_is_asked_for(
    make: Callable[[Wire, str], Any], asked: str, taken: list[str], nearest: str
) -> None:
    words, refuse, answer = WIRES[make]
    text = words.format(asked, ", ".join(f"'{effort}'" for effort in taken))
    if make is claude and asked in ("none", "minimal"):
        asked, taken, nearest = "xhigh", ["low", "max"], "max"  # the Messages API is never sent the smallest two
        text = words.format(asked, "'low' or 'max'")
    with Wire([refuse(text), answer(), answer()]) as wire:
        crystal = make(wire, asked)
        first = await crystal.query(Query([Message("user", "Hi")]), ignored)
        second = await crystal.query(Query([Message("user", "Hi")]), ignored)
        await crystal.aclose()
        assert [sent(request) for request in wire.requests] == [asked, nearest, nearest]
    assert len(first.notices) == 1
    assert f"does not support the effort {asked}; {nearest} is used" in first.notices[0]
    assert second.notices == ()


async def ignored(delta: Any) -> None: ...


async def test_it_is_tried_once() -> None:
    words = OPENAI.format("xhigh", "'low', 'high'")
    with Wire([openai.refusal(400, words), openai.refusal(400, words.replace("xhigh", "high"))]) as wire:
        crystal = responses(wire, "xhigh")
        with pytest.raises(CrystalError, match="does not support 'high'"):
            await crystal.query(Query([Message("user", "Hi")]), ignored)
        await crystal.aclose()
        assert len(wire.requests) == 2


async def test_a_refusal_that_names_no_values_is_the_error() -> None:
    with Wire([openai.refusal(400, "reasoning effort is not available for this account")]) as wire:
        crystal = responses(wire, "xhigh")
        with pytest.raises(CrystalError, match="not available"):
            await crystal.query(Query([Message("user", "Hi")]), ignored)
        await crystal.aclose()


async def test_the_user_is_told() -> None:
    words = OPENAI.format("xhigh", "'low', 'high'")
    with Wire([openai.refusal(400, words), openai.responds(openai.message_item("ok"))]) as wire:
        cantrip = Cantrip(responses(wire, "xhigh"), Call(), Circle(gates=["done"], wards=[{"max_turns": 2}]))
        async with cantrip.cast_stream("go") as stream:
            told = [event.text async for event in stream if isinstance(event, events.Noticed)]
    assert len(told) == 1
    assert "high is used" in told[0]
