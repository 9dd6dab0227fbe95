"""The families of providers side by side: for each one its crystal, and how its server answers, refuses and checks requests."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cantrip_acp.crystals.anthropic.crystal import AnthropicCrystal
from cantrip_acp.crystals.catalog.types import UNKNOWN, ModelInfo
from cantrip_acp.crystals.contract import Crystal
from cantrip_acp.crystals.endpoint import Endpoint
from cantrip_acp.crystals.google.crystal import GoogleCrystal
from cantrip_acp.crystals.keys import Secret
from cantrip_acp.crystals.local.crystal import LocalCrystal
from cantrip_acp.crystals.openai.openrouter import OpenRouterCrystal
from cantrip_acp.crystals.openai.responses_api import OpenAICrystal
from tests.support import anthropic_replies, google_replies, openai_replies
from tests.support.provider_server import Reply, Request, sse_reply


@dataclass(frozen=True)
class Family:
    """``call`` and ``say`` make the server's answers, ``refuse`` its error, ``problem`` says why it would refuse a request."""

    name: str
    make: Callable[[Endpoint], Crystal]
    model: str
    path: str
    call: Callable[[str, Mapping[str, Any], str], Reply]
    say: Callable[[str], Reply]
    refuse: Callable[[int, str], Reply]
    problem: Callable[[Request], str | None]
    options: Mapping[str, Any]

    def crystal(self, url: str, info: ModelInfo = UNKNOWN, **options: Any) -> Crystal:
        provider = self.name.partition("-")[0]
        key = Secret("key-0123456789")
        options = {**self.options, **options}
        return self.make(Endpoint(provider, self.model, url + self.path, key, info=info, options=options))


def _chat_call(name: str, args: Mapping[str, Any], call_id: str) -> Reply:
    call = openai_replies.call_delta(0, call_id, name, json.dumps(args))
    return openai_replies.chat_stream(call, finish="tool_calls")


def _chat_problem(request: Request) -> str | None:
    return openai_replies.refused(request, ("usage", "reasoning", "provider"))


def _google_call(name: str, args: Mapping[str, Any], call_id: str) -> Reply:
    part = google_replies.call(name, dict(args), id=call_id or None, sign="c2lnbg==")
    counted = google_replies.usage(10, 2)
    return sse_reply([google_replies.chunk(part), google_replies.chunk(finish="STOP", usageMetadata=counted)])


def _chat(name: str, make: Callable[[Endpoint], Crystal], model: str = openai_replies.MODEL, **options: Any) -> Family:
    return Family(
        name,
        make,
        model,
        "/v1",
        _chat_call,
        openai_replies.said,
        openai_replies.refusal,
        _chat_problem,
        options,
    )


FAMILIES = {
    each.name: each
    for each in (
        _chat("local", LocalCrystal),
        _chat("mistral", LocalCrystal),
        _chat("moonshot", LocalCrystal, "kimi-k2.7"),
        _chat("openai-chat", OpenAICrystal, api="chat"),
        _chat("openrouter", OpenRouterCrystal),
        Family(
            "openai-responses",
            OpenAICrystal,
            openai_replies.MODEL,
            "/v1",
            lambda name, args, call_id: openai_replies.responds(
                openai_replies.call_item(call_id, name, json.dumps(args))
            ),
            lambda text: openai_replies.responds(openai_replies.message_item(text)),
            openai_replies.refusal,
            openai_replies.refused,
            {"api": "responses"},
        ),
        Family(
            "anthropic",
            AnthropicCrystal,
            anthropic_replies.MODEL,
            "",
            lambda name, args, call_id: anthropic_replies.calls(name, args, id=call_id),
            anthropic_replies.says,
            lambda status, text: anthropic_replies.refusal(status, "invalid_request_error", text),
            anthropic_replies.problem,
            {},
        ),
        Family(
            "google",
            GoogleCrystal,
            google_replies.MODEL,
            "",
            _google_call,
            google_replies.says,
            google_replies.refusal,
            google_replies.problem,
            {},
        ),
    )
}
