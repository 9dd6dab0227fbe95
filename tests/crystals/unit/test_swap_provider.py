"""The swap (CRYSTAL-6): one recipe, its one line changed, and the same thing happens with every provider."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cantrip_acp.recipes import load
from cantrip_acp.recipes.build.build import build
from cantrip_acp.recipes.build.crystal_factory import KEYS
from tests.support import anthropic_replies as anthropic
from tests.support import google_replies as google
from tests.support import openai_replies as openai
from tests.support.provider_server import Wire

KEY = "sk-swap-0123456789abcdefgh"

Answers = Callable[[], Any]


def by_anthropic() -> Any:
    echo = anthropic.calls("echo", {"text": "hello"})
    return anthropic.checked([echo, anthropic.calls("done", {"answer": 42}, id="toolu_2")])


def by_google() -> Any:
    def called(name: str, args: dict[str, Any]) -> Any:
        part = google.call(name, args, sign="c2lnbmVk")
        return google.stream(google.chunk(part, finish="STOP", usageMetadata=google.usage(10, 2)))

    return google.checked([called("echo", {"text": "hello"}), called("done", {"answer": 42})])


def by_chat() -> Any:
    def called(name: str, args: str) -> Any:
        return openai.chat_stream(
            openai.call_delta(0, f"call_{name}", name, args), finish="tool_calls", usage=openai.counts()
        )

    return openai.strict(
        called("echo", '{"text": "hello"}'),
        called("done", '{"answer": 42}'),
        extra=("usage", "reasoning", "provider"),
    )


def by_responses() -> Any:
    return openai.strict(
        openai.responds(openai.call_item("call_1", "echo", '{"text": "hello"}')),
        openai.responds(openai.call_item("call_2", "done", '{"answer": 42}')),
    )


LINES: dict[str, Answers] = {
    "anthropic:claude-haiku-4-5": by_anthropic,
    "google:gemini-2.5-flash": by_google,
    "openai:gpt-4.1-mini": by_chat,
    "{provider: openai, model: gpt-5.4-mini}": by_responses,
    "{provider: openai, model: gpt-5.4-mini, api: responses}": by_responses,
    "openrouter:z-ai/glm-5.3": by_chat,
    "ollama:qwen3": by_chat,
    "local:my-model": by_chat,
}


def what_happened(loom: Any) -> list[Any]:
    turns = [msgspec.to_builtins(turn) for thread in loom.threads() for turn in thread.acted]
    return [
        (
            [(r["gate"], r["result"], r["is_error"]) for r in turn["observation"]["results"]],
            list(turn["gate_calls"]),
            turn["reason"],
            turn["utterance"]["content"],
            [c["gate"] for c in turn["utterance"]["tool_calls"]],
        )
        for turn in turns
    ]


@pytest.mark.parametrize("line", LINES)
async def test_one_line(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "r.cantrip.yaml"
    path.write_text(
        f"crystal: {line}\n"
        "call: {system_prompt: You answer., temperature: 0.5}\n"
        "circle: {gates: [done, echo], wards: [{max_turns: 5}]}\n"
    )
    for names in KEYS.values():
        monkeypatch.setenv(names[0], KEY)
    with Wire(LINES[line]()) as wire:
        # The SDKs append their own paths; those of OpenAI's kind end in the version.
        spoken = "" if line.startswith(("anthropic", "google")) else "/v1"
        monkeypatch.setenv("CANTRIP_BASE_URL", wire.url + spoken)
        cantrip = build(load(path), workspace=tmp_path)
        result = await cantrip.cast("What is it?")
    assert (result.result, result.reason, result.turns) == (42, "done", 2)
    assert result.usage.prompt_tokens > 0
    assert what_happened(cantrip.loom) == [
        ([("echo", "hello", False)], ["echo"], None, None, ["echo"]),
        ([("done", 42, False)], ["done"], "done", None, ["done"]),
    ]
    assert all(b"You answer." in request.body for request in wire.requests)
    if not line.startswith(("local", "openrouter")):
        assert result.usage.cost is not None
