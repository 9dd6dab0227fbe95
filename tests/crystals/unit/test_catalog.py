"""The table of models: what it says, under which names a model is found, and how a user corrects it."""

import json
from pathlib import Path

import msgspec
import pytest

from cantrip_acp.crystals.catalog import lookup
from cantrip_acp.crystals.catalog.types import UNKNOWN, ModelInfo, Price
from cantrip_acp.crystals.catalog.unsupported_params import EFFORTS
from cantrip_acp.types.errors import DefinitionError
from cantrip_acp.types.usage import Usage


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CANTRIP_CONFIG_DIR", str(tmp_path))
    return tmp_path


def test_what_ships_is_whole() -> None:
    data = json.loads(lookup.SHIPPED.read_bytes())
    assert data["date"]
    assert data["sources"]
    for provider, models in data["models"].items():
        for model, entry in models.items():
            info = msgspec.convert(entry, ModelInfo)
            assert set(entry) <= set(ModelInfo.__struct_fields__) - {"known", "family"} | {"from"}, model
            assert set(entry["from"]) <= set(data["sources"]), model
            assert list(info.efforts) == [effort for effort in EFFORTS if effort in info.efforts], model
            assert bool(info.efforts) <= info.reasoning, model
            assert (info.max_input or 0) < (info.context_window or 1), model
            assert not info.successor or lookup.look_up(provider, info.successor).known, model
            if provider not in ("ollama", "embedded"):
                assert info.context_window is not None, model
                assert info.context_window >= (info.max_output or 0), model
                assert info.price is not None, model
                assert info.price.output >= info.price.input > 0, model
                if info.price.long is not None:
                    assert info.price.above, model
                    assert info.price.long.input > info.price.input, model
    for provider, model in data["defaults"].items():
        assert lookup.look_up(provider, model).known, (provider, model)


@pytest.mark.parametrize(
    ("provider", "model", "like"),
    [
        ("anthropic", "claude-haiku-4-5-20251001", "claude-haiku-4-5"),
        ("anthropic", "claude-opus-5-5-latest", "claude-opus-5-5"),
        ("openai", "gpt-5.4-2026-03-05", "gpt-5.4"),
        ("openai", "gpt-5.4-mini-2026-03-17", "gpt-5.4-mini"),
        ("google", "models/gemini-2.5-flash-preview-09-2025", "gemini-2.5-flash"),
        ("google", "gemini-2.5-pro-001", "gemini-2.5-pro"),
        ("openrouter", "z-ai/glm-5.3:nitro", "z-ai/glm-5.3"),
        ("ollama", "qwen3:30b-a3b", "qwen3"),
        ("local", "Qwen3", "qwen3"),
        ("local", "Qwen/Qwen3", "qwen3"),
    ],
)
def test_names_of_one_model(provider: str, model: str, like: str) -> None:
    assert lookup.look_up(provider, model).known
    assert lookup.look_up(provider, model) == lookup.look_up(provider, like)


def test_a_makers_model_at_openrouter() -> None:
    for there, provider, here in (
        ("anthropic/claude-opus-5.5", "anthropic", "claude-opus-5-5"),
        ("anthropic/claude-sonnet-4.6:beta", "anthropic", "claude-sonnet-4-6"),
        ("openai/gpt-6-sol", "openai", "gpt-6-sol"),
        ("google/gemini-2.5-pro", "google", "gemini-2.5-pro"),
    ):
        assert lookup.look_up("openrouter", there) == lookup.look_up(provider, here)


def test_longer_names_are_not_taken_for_shorter_ones() -> None:
    assert lookup.look_up("openai", "gpt-4o-mini").price != lookup.look_up("openai", "gpt-4o").price
    giant = lookup.look_up("openai", "gpt-4o-giant")
    assert (giant.known, giant.price, giant.family) == (False, None, "GPT-4o and 4.1")
    assert lookup.look_up("anthropic", "claude") == UNKNOWN


def test_an_unknown_model_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        assert lookup.look_up("google", "gemini-of-tomorrow") == UNKNOWN
    assert len([r for r in caplog.records if "gemini-of-tomorrow" in r.getMessage()]) == 1
    lookup.look_up("local", "my-own-model")
    assert "my-own-model" not in caplog.text


def test_what_runs_here_costs_nothing_and_what_runs_there_is_not_known() -> None:
    assert lookup.look_up("ollama", "some-model").price == Price()
    assert lookup.look_up("ollama", "gpt-oss:120b-cloud").price is None
    assert lookup.look_up("local", "some-model").price is None


def test_a_long_prompt_costs_what_long_says() -> None:
    price = lookup.look_up("openai", "gpt-6.1-sol").price
    assert price is not None
    assert price.cost(Usage(272_000, 1000)) == pytest.approx(0.272 * 2 + 0.001 * 10)
    assert price.cost(Usage(272_001, 1000)) == pytest.approx(0.272001 * 4 + 0.001 * 15)
    opus = lookup.look_up("anthropic", "claude-opus-5-5").price
    assert opus is not None
    read = Usage(100_000, 2000, cached_tokens=80_000, cache_write_tokens=15_000)
    assert opus.cost(read) == pytest.approx((5_000 * 4 + 80_000 * 0.2 + 15_000 * 5 + 2000 * 20) / 1e6)


def test_the_users_word_stands_over_ours(config: Path) -> None:
    ours = lookup.look_up("anthropic", "claude-opus-5-5")
    (config / "models.toml").write_text(
        """
[anthropic.claude-opus-5-5]
context_window = 500_000
[anthropic.claude-of-mine]
images = true
price = {input = 1, output = 2, above = 1000, long = {input = 2, output = 4}}
[ollama.qwen3]
context_window = 32768
[gateway."big-one"]
context_window = 10
[defaults]
anthropic = "claude-of-mine"
"""
    )
    changed = lookup.look_up("anthropic", "claude-opus-5-5")
    assert changed.context_window == 500_000
    assert msgspec.structs.replace(changed, context_window=ours.context_window) == ours
    mine = lookup.look_up("anthropic", "claude-of-mine-20270101")
    assert mine.known
    assert mine.images
    assert mine.price is not None
    assert lookup.look_up("ollama", "qwen3:8b").context_window == 32768
    assert lookup.look_up("ollama", "qwen3:8b").reasoning
    assert lookup.default("anthropic") == "claude-of-mine"
    assert lookup.default("openai") == "gpt-6.1-sol"
    assert ("gateway", "big-one") in {(p, m) for p, m, _ in lookup.list_models()}
    # A changed file counts from the next look-up on.
    (config / "models.toml").write_text("[anthropic.claude-opus-5-5]\ncontext_window = 4\n")
    assert lookup.look_up("anthropic", "claude-opus-5-5").context_window == 4


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[anthropic", "cannot be read"),
        ("anthropic = 3", "anthropic must be a table of models"),
        ("[anthropic]\nm = 3", "anthropic.m: a model must be a table"),
        ("[anthropic.m]\ncontext = 3", "anthropic.m: unknown key 'context' .*context_window"),
        ("[anthropic.m]\ncontext_window = 'many'", "anthropic.m: Expected `int"),
        ("[defaults]\nanthropic = 3", "defaults.anthropic: a default must be the name"),
        ("[anthropic.m]\nknown = true", "unknown key 'known'"),
        ("[anthropic.m]\ncontext_window = -3", "anthropic.m: context_window must be a number of tokens"),
        ("[anthropic.m]\nmax_output = 0", "anthropic.m: max_output must be a number of tokens"),
        ("[anthropic.m]\nprice = {input = -1}", "anthropic.m: price.input must be 0 or more, not -1"),
        ("[anthropic.m]\nprice = {output = nan}", "anthropic.m: price.output"),
        ("[anthropic.m]\nprice = {above = 1, long = {input = -2}}", "anthropic.m: price.input"),
    ],
)
def test_a_broken_table_names_its_place(config: Path, text: str, says: str) -> None:
    (config / "models.toml").write_text(text)
    with pytest.raises(DefinitionError, match=says) as caught:
        lookup.look_up("anthropic", "m")
    assert str(config / "models.toml") in str(caught.value)
