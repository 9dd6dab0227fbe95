"""Efforts of Claude and Gemini on the wire: every one that the table names for a model, one that it does not take, and one
that the provider refuses."""

from pathlib import Path
from typing import Any

import pytest

from cantrip_acp.crystals.catalog import lookup
from cantrip_acp.recipes.build.crystal_factory import FactoryContext
from cantrip_acp.recipes.build.providers import crystal
from cantrip_acp.recipes.build.python_files import Files
from cantrip_acp.types.errors import DefinitionError
from tests.support import anthropic_replies as anthropic
from tests.support import google_replies as google
from tests.support.provider_server import Wire

SUMMARIZED = {"type": "adaptive", "display": "summarized"}
CLAUDE_BUDGETS = {"minimal": 1024, "low": 2048, "medium": 8192, "high": 16384, "xhigh": 32768, "max": 49152}
GEMINI_BUDGETS = {"none": 0, "minimal": 512, "low": 2048, "medium": 8192, "high": 24576, "max": 32768}
ADDRESSES = {"anthropic": "ANTHROPIC_BASE_URL", "google": "GOOGLE_GEMINI_BASE_URL"}
KEYS = {"anthropic": "ANTHROPIC_API_KEY", "google": "GEMINI_API_KEY"}


def made(provider: str, model: str, effort: str) -> Any:
    """A crystal as a recipe makes it."""
    need = FactoryContext(
        Path.cwd(), Files(), None, lambda path, text: DefinitionError(text, where=".".join(map(str, path)))
    )
    return crystal(provider, {"model": model, "effort": effort}, need)


async def sent(provider: str, model: str, effort: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, tuple[str, ...]]:
    """The body of a request, and what the user is told when a cast begins."""
    side: Any = anthropic if provider == "anthropic" else google
    with Wire(side.checked([side.says("ok")])) as wire:
        monkeypatch.setenv(ADDRESSES[provider], wire.url)
        monkeypatch.setenv(KEYS[provider], side.KEY if provider == "google" else "sk-ant-0123456789abcdefghij")
        asked = made(provider, model, effort)
        await side.ask(asked)
        return wire.requests[0].json(), asked.remarks


def claude_fields(thinking: str, effort: str) -> tuple[Any, Any]:
    """``thinking`` and ``output_config``, as the Messages API documents them."""
    if thinking == "budget":
        budget = CLAUDE_BUDGETS.get(effort)
        return (None if budget is None else {"type": "enabled", "budget_tokens": budget}), None
    return ({"type": "disabled"}, None) if effort == "none" else (SUMMARIZED, {"effort": effort})


def gemini_fields(model: str, effort: str) -> Any:
    """``thinkingConfig``, as the Gemini API documents it."""
    if model.startswith("gemini-2.5"):
        budget = 128 if model.endswith("-pro") and effort in ("none", "minimal") else GEMINI_BUDGETS[effort]
        if model.endswith("-pro") and effort == "minimal":
            budget = 512
        return {"includeThoughts": budget != 0, "thinkingBudget": budget}
    return {"includeThoughts": True, "thinkingLevel": effort.upper()}


def of_table(provider: str) -> list[tuple[str, str, str]]:
    found = [
        (name, info.thinking or "", info.efforts) for p, name, info in lookup.list_models(provider) if p == provider
    ]
    every = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
    return [(name, thinking, effort) for name, thinking, efforts in found for effort in efforts or every]


@pytest.mark.parametrize(("model", "thinking", "effort"), of_table("anthropic"))
async def test_each_effort_of_claude(model: str, thinking: str, effort: str, monkeypatch: pytest.MonkeyPatch) -> None:
    body, told = await sent("anthropic", model, effort, monkeypatch)
    assert (body.get("thinking"), body.get("output_config")) == claude_fields(thinking, effort)
    assert "temperature" not in body
    assert not any("effort" in each for each in told)
    if thinking == "budget" and effort != "none":
        assert body["max_tokens"] > body["thinking"]["budget_tokens"]


@pytest.mark.parametrize(("model", "thinking", "effort"), of_table("google"))
async def test_each_effort_of_gemini(model: str, thinking: str, effort: str, monkeypatch: pytest.MonkeyPatch) -> None:
    body, told = await sent("google", model, effort, monkeypatch)
    assert body["generationConfig"]["thinkingConfig"] == gemini_fields(model, effort)
    assert not any("effort" in each for each in told)


@pytest.mark.parametrize(
    ("provider", "model", "asked", "nearest"),
    [
        ("anthropic", "claude-sonnet-5-5", "none", "low"),
        ("anthropic", "claude-fable-5", "minimal", "low"),
        ("anthropic", "claude-opus-4-6", "xhigh", "high"),
        ("anthropic", "claude-haiku-5-5", "minimal", "low"),
        ("google", "gemini-3.8-flash", "minimal", "low"),
        ("google", "gemini-3.8-flash", "max", "high"),
        ("google", "gemini-3.5-flash", "none", "minimal"),
        ("google", "gemini-4-argon", "max", "high"),
        ("google", "gemini-4-hydrogen", "max", "xhigh"),
        ("google", "gemini-2.5-flash", "max", "high"),
    ],
)
async def test_one_that_the_model_does_not_take(
    provider: str, model: str, asked: str, nearest: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    body, told = await sent(provider, model, asked, monkeypatch)
    if provider == "anthropic":
        thinking = lookup.look_up(provider, model).thinking or ""
        assert (body.get("thinking"), body.get("output_config")) == claude_fields(thinking, nearest)
    else:
        assert body["generationConfig"]["thinkingConfig"] == gemini_fields(model, nearest)
    [notice] = [each for each in told if "effort" in each]
    assert notice.startswith(f"{provider}:{model} does not support the effort {asked}; {nearest} is used (supported: ")


# --- what the provider refuses

LEVELS = "Unable to submit request because thinking_level {} is not supported by this model. Supported: {}."


@pytest.mark.parametrize(
    ("words", "options", "first", "then", "notice"),
    [
        (LEVELS.format("MINIMAL", "LOW, HIGH"), {"effort": "minimal"}, "MINIMAL", "LOW", "minimal; low is used (supported: low"),
        (LEVELS.format("XHIGH", "minimal, low or medium"), {"effort": "max"}, "XHIGH", "MEDIUM", "xhigh; medium is used"),
        (LEVELS.format("MEDIUM", "HIGH"), {"effort": "medium"}, "MEDIUM", "HIGH", "medium; high is used"),
        ("Thinking level MEDIUM is not supported for this model.", {"effort": "medium"}, "MEDIUM", "HIGH", "medium; high is used"),
        ("Thinking level is not supported for this model.", {"effort": "low"}, "LOW", None, "low; it decides by itself"),
        (
            "The thinking budget 99999 is invalid. Please choose a value between 512 and 24576.",
            {"thinking_budget": 99999}, 99999, 24576, "budget of 99,999 tokens; 24,576 is used",
        ),
        (
            "Budget 0 is invalid. This model only works in thinking mode.",
            {"thinking_budget": 0}, 0, None, "budget of 0 tokens; it decides by itself",
        ),
    ],
)  # fmt: skip
async def test_gemini_refuses(words: str, options: dict[str, Any], first: Any, then: Any, notice: str) -> None:
    replies = [google.refusal(400, words), google.says("one"), google.says("two")]
    with Wire(google.checked(replies)) as wire:
        c = google.crystal(wire.url, "gemini-5-nano", **options)
        one, _ = await google.ask(c)
        two, _ = await google.ask(c)
        configs = [request.json()["generationConfig"]["thinkingConfig"] for request in wire.requests]
    values = [config.get("thinkingLevel", config.get("thinkingBudget")) for config in configs]
    assert values == [first, then, then], "it is refused once"
    assert configs[1]["includeThoughts"] is True
    assert len(one.notices) == 1
    assert notice in one.notices[0]
    assert two.notices == ()


@pytest.mark.parametrize(
    ("asked", "named", "nearest"),
    [("xhigh", "'low', 'medium' or 'high'", "high"), ("max", "'low' and 'xhigh'", "xhigh"), ("low", "'high'", "high")],
)
async def test_claude_refuses(asked: str, named: str, nearest: str) -> None:
    refusal = anthropic.refusal(
        400, "invalid_request_error", f"output_config.effort: Input should be {named} (got '{asked}')"
    )
    with Wire(anthropic.checked([refusal, anthropic.says("one"), anthropic.says("two")])) as wire:
        info = lookup.look_up("anthropic", "claude-sonnet-5-5")
        c = anthropic.crystal(wire.url, "claude-sonnet-5-5", info=info, effort=asked)
        one, _ = await anthropic.ask(c)
        two, _ = await anthropic.ask(c)
        assert [request.json()["output_config"]["effort"] for request in wire.requests] == [asked, nearest, nearest]
    assert len(one.notices) == 1
    assert f"does not support the effort {asked}; {nearest} is used" in one.notices[0]
    assert two.notices == ()
