"""From a recipe's crystal to an endpoint: addresses, headers, keys and where each comes from; nothing heavy is imported."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cantrip_acp.crystals import keys
from cantrip_acp.crystals.contract import Delta, Query
from cantrip_acp.crystals.endpoint import Endpoint
from cantrip_acp.recipes import load
from cantrip_acp.recipes.build import crystals
from cantrip_acp.recipes.build.build import build
from cantrip_acp.recipes.build.crystal_factory import KEYS, FactoryContext
from cantrip_acp.recipes.build.providers import endpoint
from cantrip_acp.recipes.build.python_files import Files
from cantrip_acp.text.redaction import shared
from cantrip_acp.types.errors import CrystalError, DefinitionError, MissingKey
from cantrip_acp.types.messages import Message
from tests.support.provider_server import Wire, json_reply
from tests.support.recipe_writer import write

KEY = "sk-test-0123456789abcdefghij"


def recipe(crystal: str, wards: str = "[{max_turns: 3}]") -> str:
    return f"circle:\n  gates: [done]\n  wards: {wards}\n{crystal}"


def need(**more: Any) -> FactoryContext:
    return FactoryContext(
        Path.cwd(), Files(), None, lambda path, text: DefinitionError(text, where=".".join(map(str, path))), **more
    )


def made(provider: str, options: Mapping[str, Any] | None = None) -> Endpoint:
    return endpoint(provider, {"model": "m", **(options or {})}, need())


@pytest.mark.parametrize(("provider", "variable"), [(p, v) for p, names in KEYS.items() for v in names])
def test_a_key_of_the_environment(provider: str, variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, KEY)
    made_of_it = made(provider)
    if variable == "ANTHROPIC_AUTH_TOKEN":
        assert made_of_it.api_key is None
        assert made_of_it.plain_headers() == {"Authorization": f"Bearer {KEY}"}
    else:
        assert made_of_it.api_key is not None
        assert made_of_it.api_key.reveal() == KEY
    assert KEY not in repr(made_of_it)
    assert made_of_it.base_url is None


def test_without_a_key_it_says_what_to_set() -> None:
    with pytest.raises(MissingKey) as caught:
        made("google")
    assert "GEMINI_API_KEY or GOOGLE_API_KEY" in str(caught.value)
    assert str(keys.dotenv_file()) in str(caught.value)


def test_a_header_can_be_the_key() -> None:
    found = made("anthropic", {"headers": {"Authorization": "Bearer 0123456789"}})
    assert found.api_key is None


def test_a_variable_of_the_recipes_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-the-usual-one-0123456789")
    with pytest.raises(MissingKey, match="TEAM_KEY"):
        made("openai", {"api_key_env": "TEAM_KEY"})
    monkeypatch.setenv("TEAM_KEY", KEY)
    found = made("openai", {"api_key_env": "TEAM_KEY"}).api_key
    assert found is not None
    assert found.reveal() == KEY


def test_the_environments_address_stands_for_every_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANTRIP_BASE_URL", "http://127.0.0.1:9999/v1/")
    for provider in ("anthropic", "openai", "google", "openrouter", "ollama", "local"):
        found = made(provider, {"base_url": "https://elsewhere.example"})
        assert found.base_url == "http://127.0.0.1:9999/v1"
        assert found.api_key is None  # a gateway may want none


def test_local_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    assert made("ollama").base_url == "http://127.0.0.1:11434/v1"
    for host, address in (
        ("0.0.0.0", "http://127.0.0.1:11434/v1"),
        ("box:1234", "http://box:1234/v1"),
        ("https://box.example", "https://box.example:443/v1"),
        ("[::1]:11500", "http://[::1]:11500/v1"),
    ):
        monkeypatch.setenv("OLLAMA_HOST", host)
        assert made("ollama").base_url == address
    with pytest.raises(DefinitionError, match="needs base_url"):
        made("local")
    assert made("local", {"base_url": "http://[::1]:8000/v1"}).base_url == "http://[::1]:8000/v1"


def test_a_password_in_an_address_is_a_header(monkeypatch: pytest.MonkeyPatch) -> None:
    found = made("local", {"base_url": "https://me:pa%20ss-0123456789@gateway.example:8443/v1"})
    assert found.base_url == "https://gateway.example:8443/v1"
    assert found.plain_headers() == {"Authorization": "Basic bWU6cGEgc3MtMDEyMzQ1Njc4OQ=="}
    assert shared().text("pa ss-0123456789 and bWU6cGEgc3MtMDEyMzQ1Njc4OQ==") == "[redacted] and [redacted]"


@pytest.mark.parametrize(
    "address",
    ["ftp://x/v1", "https://", "https://x/?key=1", "https://x/#a", "http://x y/", "http://x:port/", "http://[x/"],
)
def test_an_address_that_is_none(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DefinitionError, match=r"^base_url: must"):
        made("local", {"base_url": address})
    monkeypatch.setenv("CANTRIP_BASE_URL", address)
    with pytest.raises(DefinitionError, match=r"^CANTRIP_BASE_URL: must"):
        made("anthropic")


def test_headers_of_recipe_and_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANTRIP_BASE_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("CANTRIP_HEADERS", "X-Team: blue\n\nx-route:  fast:lane ")
    found = made("openai", {"headers": {"X-Route": "slow", "X-Own": "mine"}})
    assert found.plain_headers() == {"x-route": "fast:lane", "X-Own": "mine", "X-Team": "blue"}
    assert "blue" not in repr(found)
    monkeypatch.setenv("CANTRIP_HEADERS", '{"X-Team": "green"}')
    assert made("openai").plain_headers() == {"X-Team": "green"}


@pytest.mark.parametrize("text", ["no colon", "Bad Name: x", '{"X": 1}', "{broken", "X: \x01secret-0123456789"])
def test_broken_headers_are_told_without_their_value(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANTRIP_BASE_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("CANTRIP_HEADERS", text)
    with pytest.raises(DefinitionError, match=r"^CANTRIP_HEADERS: ") as caught:
        made("openai")
    assert "secret-0123456789" not in str(caught.value)
    monkeypatch.delenv("CANTRIP_HEADERS")
    with pytest.raises(DefinitionError, match=r"^headers\.X-A: ") as caught:
        made("openai", {"headers": {"X-A": "secret-0123456789\r\nX-B: y"}})
    assert "secret-0123456789" not in str(caught.value)


# --- a key goes to its own address alone -------------------------------------------------------------------------------

OWN = {"anthropic": "ANTHROPIC_API_KEY", "openai": "OPENAI_API_KEY", "google": "GEMINI_API_KEY"}
VARIABLES = {"anthropic": "ANTHROPIC_BASE_URL", "openai": "OPENAI_BASE_URL", "google": "GOOGLE_GEMINI_BASE_URL"}


def everything_sent(wire: Wire) -> str:
    assert wire.requests
    return "\n".join(f"{r.path} {r.headers} {r.body!r}" for r in wire.requests)


async def asked(provider: str, options: Mapping[str, Any] | None = None) -> str:
    """What a server gets that stands in a provider's place; its answer is an error. The error's text comes back."""
    crystal = crystals.make_crystal({"provider": provider, "model": "m", **(options or {})}, need())
    try:
        await crystal.query(Query([Message("user", "Hello")]), ignored)
    except CrystalError as error:
        return str(error)
    finally:
        await crystal.aclose()  # type: ignore[attr-defined]
    raise AssertionError("the server answered 401")


async def ignored(delta: Delta) -> None:
    pass


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """An environment full of secrets; the list of them."""
    secrets = {
        **{names[0]: f"sk-{provider}-0123456789" for provider, names in KEYS.items()},
        "ANTHROPIC_AUTH_TOKEN": "token-anthropic-0123456789",
        "CANTRIP_HEADERS": "X-Team: header-of-cantrip-0123456789",
        "OPENAI_CUSTOM_HEADERS": "X-Own: header-of-openai-0123456789",
        "ANTHROPIC_CUSTOM_HEADERS": "X-Own: header-of-anthropic-0123456789",
        "OPENAI_ORG_ID": "org-0123456789",
        "OPENAI_PROJECT_ID": "project-0123456789",
        "CANTRIP_API_KEY": "key-of-the-gateway-0123456789",
    }
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
    return [value.rpartition(" ")[2] for value in secrets.values()]


def refusing() -> Wire:
    return Wire(lambda request: json_reply({"error": {"message": "who are you?"}}, 401))


@pytest.mark.parametrize("provider", ["anthropic", "openai", "google", "openrouter", "local", "ollama"])
async def test_a_recipes_address_gets_nothing_of_the_environment(provider: str, environment: list[str]) -> None:
    with refusing() as wire:
        said = await asked(provider, {"base_url": wire.url, "headers": {"X-Recipe": "mine"}})
    got = everything_sent(wire)
    assert "mine" in got
    assert [secret for secret in environment if secret in got] == []
    assert "api_key_env" in said


async def test_a_recipes_address_gets_the_key_that_the_recipe_names(environment: list[str]) -> None:
    with refusing() as wire:
        await asked("openai", {"base_url": wire.url, "api_key_env": "OPENROUTER_API_KEY"})
    assert [secret for secret in environment if secret in everything_sent(wire)] == ["sk-openrouter-0123456789"]


@pytest.mark.parametrize("provider", ["anthropic", "openai", "google", "openrouter", "local", "ollama"])
@pytest.mark.parametrize("options", [{}, {"api_key_env": "OPENAI_API_KEY"}, {"base_url": "https://elsewhere.example"}])
async def test_a_gateway_gets_its_own_key_alone(
    provider: str, options: dict[str, str], environment: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with refusing() as wire:
        monkeypatch.setenv("CANTRIP_BASE_URL", wire.url)
        await asked(provider, options)
        got = everything_sent(wire)
        assert [secret for secret in environment if secret in got] == [
            "header-of-cantrip-0123456789",
            "key-of-the-gateway-0123456789",
        ]
        wire.requests.clear()
        monkeypatch.delenv("CANTRIP_API_KEY")
        assert "set CANTRIP_API_KEY" in await asked(provider, options)
        assert [secret for secret in environment if secret in everything_sent(wire)] == ["header-of-cantrip-0123456789"]


@pytest.mark.parametrize("provider", list(VARIABLES))
async def test_an_address_of_the_environment_gets_its_providers_key(
    provider: str, environment: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with refusing() as wire:
        monkeypatch.setenv(VARIABLES[provider], wire.url)
        await asked(provider)
        got = everything_sent(wire)
        wanted = [f"sk-{provider}-0123456789", "header-of-cantrip-0123456789"]
        if provider != "google":
            wanted.append(f"header-of-{provider}-0123456789")
        found = [secret for secret in environment if secret in got and not secret.startswith(("org-", "project-"))]
        assert sorted(found) == sorted(wanted)


async def test_the_token_of_anthropic(environment: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with refusing() as wire:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", wire.url)
        monkeypatch.delenv("ANTHROPIC_API_KEY")
        await asked("anthropic")
        (request,) = wire.requests
    assert request.headers["authorization"] == "Bearer token-anthropic-0123456789"
    assert "x-api-key" not in request.headers


def test_what_the_recipe_says_of_its_model_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    plain = made("anthropic", {"model": "claude-haiku-4-5-20251001"})
    assert plain.info.known
    assert plain.info.context_window == 200_000
    said = made(
        "anthropic",
        {
            "model": "claude-haiku-4-5",
            "context_window": 5000,
            "price": {"input": 3, "output": 4, "above": 10, "long": {"input": 6, "output": 8}},
            "effort": "high",
        },
    )
    assert said.info.context_window == 5000
    assert said.info.price is not None
    assert said.info.price.long is not None
    assert said.info.price.long.output == 8
    assert said.info.images
    assert said.options == {"effort": "high"}


def test_a_limit_of_cost_needs_a_price(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    wards = "[{max_turns: 3}, {max_cost_usd: 0.5}]"
    path = write(tmp_path, recipe("crystal: openai:gpt-of-tomorrow\n", wards=wards))
    with pytest.raises(
        DefinitionError, match=r"max_cost_usd needs a price, and the price of openai:gpt-of-tomorrow is unknown"
    ):
        build(load(path), workspace=tmp_path)
    (tmp_path / "config").mkdir()
    monkeypatch.setenv("CANTRIP_CONFIG_DIR", str(tmp_path / "config"))
    (tmp_path / "config" / "models.toml").write_text("[openai.gpt-of-tomorrow]\nprice = {input = 1, output = 2}\n")
    assert endpoint("openai", {"model": "gpt-of-tomorrow"}, need(cost_limited=True)).info.price is not None


def test_an_untrusted_recipe_takes_no_env_file_of_the_workspace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".env").write_text(f"ANTHROPIC_API_KEY={KEY}\nCANTRIP_BASE_URL=http://evil.example\n")
    with pytest.raises(MissingKey):
        build(load(write(tmp_path, recipe("crystal: anthropic:claude-haiku-4-5\n"))), workspace=tmp_path)
    assert keys.setting("CANTRIP_BASE_URL") == ""


@pytest.mark.parametrize("provider", ["anthropic", "openai", "google", "openrouter", "ollama"])
def test_making_a_crystal_imports_no_sdk(provider: str, tmp_path: Path) -> None:
    """What a session's start waits for: neither an SDK nor what it stands on."""
    script = (
        "import sys; from pathlib import Path; from cantrip_acp.recipes.build import crystal_factory, crystals; "
        "from cantrip_acp.recipes.build.python_files import Files\n"
        "need = crystal_factory.FactoryContext(Path('.'), Files(), None, lambda p, m: RuntimeError(m))\n"
        f"crystal = crystals.make_crystal({{'provider': {provider!r}, 'model': 'm'}}, need)\n"
        "assert crystal.model, crystal\n"
        "print(*{n.partition('.')[0] for n in sys.modules})"
    )
    environment = {**os.environ, **{names[0]: KEY for names in KEYS.values()}}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr
    heavy = {"anthropic", "openai", "google", "httpx", "httpx2", "httpcore", "pydantic", "requests", "keyring"}
    assert not heavy & set(done.stdout.split())
