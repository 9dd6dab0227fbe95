"""Models that the table lacks, what a recipe says of a model, and names that are wrong or retired: as requests go out."""

import contextlib
from pathlib import Path
from typing import Any

import pytest

from cantrip_acp import Call, Cantrip, Circle
from cantrip_acp.crystals.catalog import lookup
from cantrip_acp.crystals.contract import Crystal, Query, Response, takes
from cantrip_acp.recipes import inspect
from cantrip_acp.recipes.build import crystal_choices, crystals
from cantrip_acp.recipes.build.crystal_factory import FactoryContext
from cantrip_acp.recipes.build.python_files import Files
from cantrip_acp.types import events
from cantrip_acp.types.errors import ContextLimitError, CrystalError, DefinitionError
from cantrip_acp.types.messages import Attachment, Message
from tests.support import anthropic_replies as anthropic
from tests.support import openai_replies as openai
from tests.support.provider_server import Hold, Reply, Wire

KEY = "sk-test-0123456789abcdefghij"


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CANTRIP_CONFIG_DIR", str(tmp_path))
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "MY_KEY"):
        monkeypatch.setenv(name, KEY)


def made(**options: Any) -> Any:
    def error(path: Any, message: str) -> DefinitionError:
        return DefinitionError(message)

    return crystals.make_crystal(options, FactoryContext(Path.cwd(), Files(), None, error))


async def ask(crystal: Crystal, *messages: Message) -> Response:
    async def ignored(delta: Any) -> None: ...

    try:
        return await crystal.query(Query(list(messages) or [Message("user", "Hi")]), ignored)
    finally:
        await crystal.aclose()  # type: ignore[attr-defined]


async def told(crystal: Crystal) -> list[str]:
    cantrip = Cantrip(crystal, Call(), Circle(gates=["done"], wards=[{"max_turns": 2}]))
    found: list[str] = []
    with contextlib.suppress(CrystalError):
        async with cantrip.cast_stream("go") as stream:
            async for event in stream:
                found += [event.text] if isinstance(event, events.Noticed) else []
    return found


# Families


@pytest.mark.parametrize(
    ("provider", "model", "family", "expected"),
    [
        ("anthropic", "claude-opus-6", "Claude 5.5 and later", {"thinking": "always", "context_window": 1_000_000}),
        ("anthropic", "claude-haiku-6-20270301", "Claude 4.7 and later", {"thinking": "adaptive", "sampling": False}),
        ("anthropic", "claude-opus-4-4", "Claude 4", {"thinking": "budget", "context_window": 200_000}),
        ("openai", "gpt-7-sol", "GPT-6 and later", {"max_input": 922_000, "sampling": False, "images": True}),
        ("openai", "gpt-5-turbo", "GPT-5", {"max_input": 272_000, "reasoning": True}),
        ("google", "models/gemini-5-neon", "Gemini 4 and later", {"audio": True, "reasoning": True}),
        ("openrouter", "anthropic/claude-opus-6.1:beta", "Claude 5.5 and later", {"images": True}),
        ("openrouter", "deepseek/deepseek-v5", "DeepSeek V4 and later", {"reasoning": True, "images": False}),
        ("groq", "moonshotai/kimi-k4", "Kimi", {"images": True}),
        ("ollama", "gemma5:27b", "Gemma 4 and later", {"images": True, "context_window": None}),
        ("vllm", "Qwen/Qwen9-VL", "Qwen VL", {"context_window": None, "images": True}),
    ],
)
def test_a_family_tells_of_a_model_that_no_table_has(
    provider: str, model: str, family: str, expected: dict[str, Any]
) -> None:
    info = lookup.look_up(provider, model)
    assert (info.known, info.family) == (False, family)
    assert {name: getattr(info, name) for name in expected} == expected
    assert info.price is None or provider == "ollama", "no price is ever assumed"


def test_names_of_no_family_are_unknown() -> None:
    for provider, model in (("openai", "gpt-35-turbo"), ("anthropic", "claude"), ("google", "gemini-of-tomorrow")):
        assert lookup.look_up(provider, model, remark=False).family == "", model


def test_the_remark_names_the_family(caplog: pytest.LogCaptureFixture) -> None:
    lookup.look_up("openai", "gpt-8-remarked")
    assert "gpt-8-remarked is in no table" in caplog.text
    assert "family GPT-6 and later" in caplog.text


def test_the_users_word_stands_over_a_family(tmp_path: Path) -> None:
    (tmp_path / "models.toml").write_text("[openai.gpt-7-sol]\ncontext_window = 5000\n")
    info = lookup.look_up("openai", "gpt-7-sol")
    assert (info.known, info.context_window, info.images) == (True, 5000, True)


async def test_an_unknown_claude_is_asked_as_its_family_is() -> None:
    with Wire([anthropic.says()]) as wire:
        crystal = made(provider="anthropic", model="claude-opus-6", base_url=wire.url, api_key_env="MY_KEY")
        await ask(crystal)
        body = wire.requests[0].json()
    assert body["thinking"]["type"] == "adaptive"
    assert body["max_tokens"] == 64_000
    assert "temperature" not in body


# What a recipe says of a model


@pytest.mark.parametrize(("api", "reply"), [("responses", openai.responds), ("chat", openai.said)])
async def test_verbosity(api: str, reply: Any) -> None:
    answer: Reply = reply(openai.message_item("ok")) if api == "responses" else reply("ok")
    with Wire([answer]) as wire:
        options = {"base_url": f"{wire.url}/v1", "api_key_env": "MY_KEY", "api": api, "verbosity": "low"}
        await ask(made(provider="openai", model="gpt-6.1-sol", **options))
        body = wire.requests[0].json()
    assert (body["text"]["verbosity"] if api == "responses" else body["verbosity"]) == "low"


async def test_images_of_a_model_that_nobody_knows() -> None:
    picture = "iVBORw0KGgo="
    message = Message("user", "Look", attachments=(Attachment("image", "image/png", picture),))
    for images in (True, False):
        with Wire([openai.said("ok")]) as wire:
            crystal = made(provider="local", model="mine", base_url=f"{wire.url}/v1", images=images)
            await ask(crystal, message)
            assert (picture in wire.requests[0].body.decode()) is images


async def test_a_server_that_says_nothing_for_timeout_s() -> None:
    with Wire([Reply(stream=[Hold()])]) as wire:
        crystal = made(provider="local", model="mine", base_url=f"{wire.url}/v1", timeout_s=1)
        with pytest.raises(CrystalError, match="1 second"):
            await ask(crystal)


async def test_a_prompt_beyond_the_largest_input_is_not_sent() -> None:
    with Wire([openai.said("ok")]) as wire:
        options = {"base_url": f"{wire.url}/v1", "context_window": 100_000, "max_input": 1000}
        crystal = made(provider="local", model="mine", **options)
        assert (crystal.context_window, crystal.max_input) == (100_000, 1000)
        words = " ".join(f"word{n}" for n in range(5000))
        with pytest.raises(ContextLimitError) as caught:
            await ask(crystal, Message("user", words))
        assert caught.value.limit == 1000
        assert wire.requests == []


def test_a_window_of_the_recipe_drops_the_tables_largest_input() -> None:
    larger = made(provider="openai", model="gpt-6.1-sol", context_window=2_000_000)
    assert (larger.context_window, larger.max_input) == (2_000_000, None)
    assert made(provider="openai", model="gpt-6.1-sol").max_input == 922_000


# Efforts


@pytest.mark.parametrize(
    ("model", "asked", "sent"),
    [
        ("gpt-6.1-sol", "none", "low"),
        ("gpt-5.1", "max", "high"),
        ("gpt-5-pro", "low", "high"),
        ("gpt-7-sol", "minimal", "low"),
    ],
)
async def test_an_effort_that_the_table_says_is_not_taken_is_never_sent(model: str, asked: str, sent: str) -> None:
    with Wire([openai.responds(openai.message_item("ok"))]) as wire:
        options = {"base_url": f"{wire.url}/v1", "api_key_env": "MY_KEY", "api": "responses", "effort": asked}
        notices = await told(made(provider="openai", model=model, **options))
        assert [request.json()["reasoning"]["effort"] for request in wire.requests][:1] == [sent]
    assert notices[0].startswith(f"openai:{model} does not support the effort {asked}; {sent} is used")
    assert len([text for text in notices if "effort" in text]) == 1


def test_editors_offer_the_efforts_of_the_model() -> None:
    assert crystal_choices.efforts_of(made(provider="openai", model="gpt-6.1-sol")) == (
        "low",
        "medium",
        "high",
        "xhigh",
        "max",
    )
    assert crystal_choices.efforts_of(made(provider="openai", model="gpt-5-pro")) == ("high",)
    assert crystal_choices.efforts_of(made(provider="anthropic", model="claude-opus-4-6")) == (
        "none",
        "low",
        "medium",
        "high",
        "max",
    )
    assert crystal_choices.efforts_of(made(provider="openai", model="gpt-4o")) == ()


# Misspelled and retired


@pytest.mark.parametrize(
    ("provider", "model", "meant"),
    [
        ("anthropic", "claude-sonet-5-5", "claude-sonnet-5-5"),
        ("anthropic", "cluade-opus-5-5", "claude-opus-5-5"),
        ("openai", "gpt-6.1-sool", "gpt-6.1-sol"),
        ("openai", "gpt-6.1-tera", "gpt-6.1-terra"),
        ("google", "gemini-3.8-flsh", "gemini-3.8-flash"),
        ("openrouter", "anthropic/claude-sonet-5.5", "anthropic/claude-sonnet-5.5"),
        ("openrouter", "z-ai/glmm-5.3", "z-ai/glm-5.3"),
    ],
)
def test_a_misspelled_name(provider: str, model: str, meant: str) -> None:
    assert lookup.remark(provider, model) == f"no model {provider}:{model} is known; did you mean {meant!r}?"


@pytest.mark.parametrize(
    ("provider", "model"),
    [
        ("anthropic", "claude-sonnet-5-6"),
        ("anthropic", "claude-opus-7"),
        ("anthropic", "claude-sonnet-5-5"),
        ("openai", "gpt-6.3-sol"),
        ("openai", "gpt-7-luna"),
        ("openai", "gpt-6-nova"),
        ("google", "gemini-4.1-flash"),
        ("openrouter", "anthropic/claude-opus-6.2"),
        ("openrouter", "someone/a-model-of-their-own"),
        ("local", "claude-sonet-5-5"),
    ],
)
def test_another_version_or_another_model_is_no_misspelling(provider: str, model: str) -> None:
    assert lookup.remark(provider, model) == ""


def test_a_retired_model_names_its_successor() -> None:
    assert lookup.remark("anthropic", "claude-opus-4-20250514") == (
        "anthropic:claude-opus-4-20250514 was retired on 2026-06-15; use claude-opus-4-8"
    )
    assert lookup.remark("openai", "o1").endswith("was retired on 2026-10-23; use gpt-5.6-sol")
    assert lookup.remark("openrouter", "google/gemini-2.0-flash").endswith("use gemini-3.5-flash")


def test_recipe_check_notes_it(tmp_path: Path) -> None:
    path = tmp_path / "r.cantrip.yaml"
    path.write_text(
        "name: r\ncrystal: anthropic:claude-sonet-5-5\ncrystals:\n  old: {provider: openai, model: o1}\n"
        "  new: openai:gpt-9-sol\ncall: {}\ncircle:\n  gates: [done]\n  wards: [{max_turns: 3}]\n"
    )
    report = inspect.check(path)
    assert report.ok
    assert len(report.notes) == 2
    assert report.notes[0].startswith(f"{path}:2:")
    assert "did you mean 'claude-sonnet-5-5'?" in report.notes[0]
    assert "crystals.old.model" in report.notes[1]
    assert "use gpt-5.6-sol" in report.notes[1]


async def test_a_cast_begins_with_it_and_a_404_repeats_it(monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = anthropic.refusal(404, "not_found_error", "model: claude-sonet-5-5")
    with Wire([refusal, refusal]) as wire:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", wire.url)
        crystal = made(provider="anthropic", model="claude-sonet-5-5")
        assert "did you mean 'claude-sonnet-5-5'?" in (await told(crystal))[0]
        with pytest.raises(CrystalError, match=r"404 .*did you mean 'claude-sonnet-5-5'"):
            await ask(made(provider="anthropic", model="claude-sonet-5-5"))


async def test_a_404_of_a_recipes_server_tells_it_though_the_cast_does_not() -> None:
    with Wire([openai.refusal(404, "The model `gpt-6.1-sool` does not exist")]) as wire:
        crystal = made(
            provider="openai", model="gpt-6.1-sool", base_url=f"{wire.url}/v1", api_key_env="MY_KEY", api="chat"
        )
        assert crystal.remarks == ()
        with pytest.raises(CrystalError, match=r"did you mean 'gpt-6\.1-sol'"):
            await ask(crystal)


def test_a_crystal_says_whether_its_model_takes_images_and_the_recipe_overrules_the_catalog() -> None:
    local = {"provider": "vllm", "model": "unknown-of-any-family", "base_url": "http://127.0.0.1:9/v1"}
    assert takes(made(**local), "image") is False
    assert takes(made(**local, images=True), "image") is True
    assert takes(made(provider="anthropic", model="claude-opus-6"), "image") is True
    assert takes(made(provider="scripted", responses=[{"content": "x"}]), "image") is None
