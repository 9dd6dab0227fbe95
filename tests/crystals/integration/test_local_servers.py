"""Servers of the user's own that run on this machine: found, listed, offered, and the default where there is no key."""

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cantrip_acp.acp import login
from cantrip_acp.cli.command_table import cantrip
from cantrip_acp.crystals import keys
from cantrip_acp.crystals.contract import Delta, Query
from cantrip_acp.crystals.local import discovery
from cantrip_acp.crystals.local.discovery import NoServer, ServedModel, ask, find_running
from cantrip_acp.crystals.local.presets import LOCAL, PRESETS
from cantrip_acp.recipes import load
from cantrip_acp.recipes.build import crystal_choices
from cantrip_acp.recipes.build import crystals as recipe_crystals
from cantrip_acp.recipes.build.crystal_factory import KEYS, FactoryContext
from cantrip_acp.recipes.build.python_files import Files
from cantrip_acp.types.errors import CrystalError, DefinitionError, MissingKey
from cantrip_acp.types.messages import Message
from tests.support import openai_replies as openai
from tests.support.acp_client import RawClient
from tests.support.processes import CANTRIP
from tests.support.provider_server import Reply, Request, Wire, json_reply

VARIABLES = {
    "ollama": "OLLAMA_HOST",
    "vllm": "VLLM_BASE_URL",
    "lmstudio": "LMSTUDIO_BASE_URL",
    "llamacpp": "LLAMACPP_BASE_URL",
}
NOBODY = "http://127.0.0.1:9/v1"
"""Port 9 (discard), where nothing listens here."""


@pytest.fixture(autouse=True)
def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No key, and no server of the machine that runs the tests."""
    for names in (*KEYS.values(), ("CANTRIP_CRYSTAL", "CANTRIP_BASE_URL", "CANTRIP_API_KEY")):
        for name in names:
            monkeypatch.delenv(name, raising=False)
    for variable in VARIABLES.values():
        monkeypatch.setenv(variable, NOBODY.removesuffix("/v1") if variable == "OLLAMA_HOST" else NOBODY)
    discovery._cache = None
    yield
    discovery._cache = None


def listing(*names: str, **more: Any) -> Reply:
    return json_reply({"object": "list", "data": [{"id": name, "object": "model", **more} for name in names]})


def paths(answers: dict[str, Callable[[Request], Reply] | Reply]) -> Callable[[Request], Reply]:
    def answer(request: Request) -> Reply:
        found = answers.get(request.path)
        if found is None:
            return json_reply({"error": "not found"}, 404)
        return found if isinstance(found, Reply) else found(request)

    return answer


def ollama(request: Request) -> Reply:
    shown = {
        "qwen3:8b": {"capabilities": ["completion", "tools", "thinking"]},
        "llava:7b": {"capabilities": ["completion", "vision"]},
        "nomic-embed-text": {"capabilities": ["embedding"]},
    }
    if request.path == "/api/show":
        return json_reply(shown[request.json()["model"]])
    if request.path == "/api/ps":
        return json_reply({"models": [{"name": "llava:7b", "context_length": 8192}]})
    return listing(*shown) if request.path == "/v1/models" else json_reply({}, 404)


SERVERS: dict[str, tuple[Callable[[Request], Reply], list[ServedModel]]] = {
    "ollama": (
        ollama,
        [
            ServedModel("llava:7b", 8192, tools=False, images=True, reasoning=False, loaded=True),
            ServedModel("qwen3:8b", None, tools=True, images=False, reasoning=True, loaded=False),
        ],
    ),
    "vllm": (
        paths({"/v1/models": listing("Qwen/Qwen3-8B", max_model_len=32768)}),
        [ServedModel("Qwen/Qwen3-8B", 32768, loaded=True)],
    ),
    "lmstudio": (
        paths(
            {
                "/v1/models": listing("big", "small", "embedder"),
                "/api/v0/models": json_reply(
                    {
                        "data": [
                            {"id": "big", "type": "llm", "state": "not-loaded", "max_context_length": 131072},
                            {
                                "id": "small",
                                "type": "vlm",
                                "state": "loaded",
                                "max_context_length": 131072,
                                "loaded_context_length": 4096,
                                "capabilities": ["tool_use"],
                            },
                            {"id": "embedder", "type": "embeddings"},
                        ]
                    }
                ),
            }
        ),
        [
            ServedModel("small", 4096, tools=True, images=True, loaded=True),
            ServedModel("big", 131072, images=False, loaded=False),
        ],
    ),
    "llamacpp": (
        paths(
            {
                "/v1/models": listing("gemma.gguf", meta={"n_ctx_train": 131072}),
                "/props": json_reply(
                    {
                        "default_generation_settings": {"n_ctx": 65536},
                        "modalities": {"vision": True, "audio": False},
                        "chat_template_caps": {"supports_tools": True},
                    }
                ),
            }
        ),
        [ServedModel("gemma.gguf", 65536, tools=True, images=True, loaded=True)],
    ),
}


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Wire]]:
    started: list[Wire] = []

    def start(provider: str, answer: Callable[[Request], Reply] | None = None) -> Wire:
        wire = Wire(answer or SERVERS[provider][0])
        wire.__enter__()
        started.append(wire)
        monkeypatch.setenv(VARIABLES[provider], wire.url if provider == "ollama" else f"{wire.url}/v1")
        discovery._cache = None
        return wire

    yield start
    for wire in started:
        wire.__exit__(None, None, None)


@pytest.mark.parametrize("provider", SERVERS)
def test_what_a_server_reports(provider: str, serve: Callable[..., Wire]) -> None:
    serve(provider)
    assert list(ask(provider).models) == SERVERS[provider][1]


@pytest.mark.parametrize("provider", SERVERS)
def test_a_server_that_reports_nothing_but_names(provider: str, serve: Callable[..., Wire]) -> None:
    serve(provider, paths({"/v1/models": listing("plain")}))
    (model,) = ask(provider).models
    assert (model.name, model.context_window, model.tools) == ("plain", None, None)


@pytest.mark.parametrize(
    "answer",
    [
        lambda request: json_reply({"hello": "world"}),
        lambda request: json_reply(["a"]),
        lambda request: Reply(body=b"<html>", headers={"content-type": "text/html"}),
        lambda request: json_reply({}, 302, {"location": "http://127.0.0.1:9/"}),
        lambda request: json_reply({}, 401),
    ],
)
def test_something_else_at_that_port_is_no_server(answer: Any, serve: Callable[..., Wire]) -> None:
    serve("vllm", answer)
    with pytest.raises(NoServer):
        ask("vllm")
    assert find_running() == ()


def test_names_that_cannot_be_shown_are_left_out(serve: Callable[..., Wire]) -> None:
    serve("vllm", paths({"/v1/models": listing("good", "bad\x1b[31m", "two\nlines", "", "bidi\u202e", 7)}))  # type: ignore[arg-type]
    assert [model.name for model in ask("vllm").models] == ["good"]


def test_nothing_runs() -> None:
    assert find_running() == ()
    with pytest.raises(NoServer, match="refused"):
        ask("ollama")


# --- the command -----------------------------------------------------------------------------------------------------------


def test_the_command_lists_all(serve: Callable[..., Wire]) -> None:
    serve("vllm")
    serve("ollama")
    done = CliRunner().invoke(cantrip, ["models", "local"])
    assert done.exit_code == 0
    assert "vllm:Qwen/Qwen3-8B  (window 32.77k; loaded)" in done.output
    assert "ollama:qwen3:8b  (tools, reasoning)" in done.output
    assert "nomic" not in done.output
    assert "lmstudio: no server at" in done.output
    assert "start it with: lms server start" in done.output
    assert "another port? Set LMSTUDIO_BASE_URL, such as LMSTUDIO_BASE_URL=http://" in done.output


def test_the_command_as_json(serve: Callable[..., Wire]) -> None:
    serve("llamacpp")
    done = CliRunner().invoke(cantrip, ["models", "llamacpp", "--json"])
    (server,) = json.loads(done.output)["servers"]
    assert server["models"][0] == {
        "name": "gemma.gguf",
        "context_window": 65536,
        "tools": True,
        "images": True,
        "reasoning": None,
        "loaded": True,
    }


def test_the_command_says_how_to_start_one() -> None:
    done = CliRunner().invoke(cantrip, ["models", "ollama"], standalone_mode=False)
    assert done.return_value == 1
    assert "start it with: ollama serve" in done.output


# --- the default -----------------------------------------------------------------------------------------------------------


def recipe(folder: Path) -> Any:
    path = folder / "r.cantrip.yaml"
    path.write_text("circle: {gates: [done], wards: [{max_turns: 3}]}\n")
    return load(path)


def test_the_only_server_is_the_default(
    serve: Callable[..., Wire], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve("lmstudio")
    crystal = recipe_crystals.crystal_for(recipe(tmp_path))
    assert (crystal.name, crystal.model) == ("lmstudio", "small")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test-0123456789abcdefghij")
    assert recipe_crystals.crystal_for(recipe(tmp_path)).name == "openai"


def test_of_two_servers_the_user_chooses(serve: Callable[..., Wire], tmp_path: Path) -> None:
    serve("lmstudio")
    serve("vllm")
    with pytest.raises(MissingKey, match="CANTRIP_CRYSTAL=lmstudio:small or CANTRIP_CRYSTAL=vllm:Qwen/Qwen3-8B"):
        recipe_crystals.crystal_for(recipe(tmp_path))


def test_without_any_it_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(MissingKey, match="no local server answers"):
        recipe_crystals.crystal_for(recipe(tmp_path))


def test_sign_in_offers_a_running_server(serve: Callable[..., Wire], capsys: pytest.CaptureFixture[str]) -> None:
    serve("ollama")
    number = str(len(KEYS) + 1)
    assert login.sign_in(ask=lambda _: number, ask_hidden=lambda _: "not asked") == 0
    assert f"{number}  ollama:llava:7b, which runs on this machine and needs no key" in capsys.readouterr().err
    assert keys.setting("CANTRIP_CRYSTAL") == "ollama:llava:7b"


def test_the_demo_takes_it_before_the_embedded_model(serve: Callable[..., Wire]) -> None:
    said = openai.said("```python\nprint(17 * 23)\n```")
    answers: dict[str, Any] = {"/v1/models": listing("qwen, the: large one"), "/v1/chat/completions": said}
    wire = serve("vllm", paths(answers))
    done = subprocess.run([*CANTRIP, "demo", "--live"], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    assert f"The model is vllm:qwen, the: large one, from the server at {wire.url}/v1." in done.stdout
    assert "It printed 391." in done.stdout
    assert {each.json()["model"] for each in wire.requests if each.method == "POST"} == {"qwen, the: large one"}


def test_an_editor_offers_it(serve: Callable[..., Wire], tmp_path: Path) -> None:
    wire = serve("vllm")
    script = tmp_path / "s.yaml"
    script.write_text("responses: [{content: Hello., repeat: true}]\n")
    environment = dict.fromkeys(VARIABLES.values(), NOBODY) | {"OLLAMA_HOST": "127.0.0.1:9"}
    environment |= {"VLLM_BASE_URL": f"{wire.url}/v1", "CANTRIP_CRYSTAL": f"scripted:{script}"}
    agent = RawClient(env=environment)
    try:
        agent.initialize()
        session = agent.session(tmp_path)

        def offers(message: dict[str, Any]) -> bool:
            update = message.get("params", {}).get("update", {})
            options = update.get("configOptions", [])
            models = next((o["options"] for o in options if o["id"] == "model"), [])
            return "vllm:Qwen/Qwen3-8B" in [value["value"] for value in models]

        agent.until(offers)
        answer = agent.call(
            "session/set_config_option",
            {"sessionId": session, "configId": "model", "value": "vllm:Qwen/Qwen3-8B"},
        )
        model = next(o for o in answer["configOptions"] if o["id"] == "model")
        assert model["currentValue"] == "vllm:Qwen/Qwen3-8B"
    finally:
        agent.close()


def test_an_editor_signs_in_with_one(serve: Callable[..., Wire], tmp_path: Path) -> None:
    wire = serve("lmstudio")
    environment = dict.fromkeys(VARIABLES.values(), NOBODY) | {"OLLAMA_HOST": "127.0.0.1:9"}
    environment |= {"LMSTUDIO_BASE_URL": f"{wire.url}/v1", "CANTRIP_CONFIG_DIR": str(tmp_path / "config")}
    agent = RawClient(env=environment)
    try:
        agent.initialize()
        assert agent.call("logout") == {}
        model = agent.call("_cantrip/models/local")["models"][0]
        assert (model["crystal"], model["provider"], model["name"]) == ("lmstudio:small", "lmstudio", "small")
        for crystal in (None, 5, "ollama:small", "openai:gpt-5", "lmstudio:other\nOPENAI_API_KEY=x"):
            wrong = {"methodId": "local", "_meta": {"cantrip": {"crystal": crystal}}}
            assert agent.error("authenticate", wrong)["code"] == -32602
        assert not (tmp_path / "config").exists()
        agent.call("authenticate", {"methodId": "local", "_meta": {"cantrip": {"crystal": model["crystal"]}}})
        [saved] = (tmp_path / "config").rglob(".env")
        assert saved.read_text() == "# set by cantrip-acp --sign-in\nCANTRIP_CRYSTAL=lmstudio:small\n"
        session = agent.call("session/new", {"cwd": str(tmp_path), "mcpServers": []})
        chosen = next(option for option in session["configOptions"] if option["id"] == "model")
        assert chosen["currentValue"] == "lmstudio:small"
    finally:
        agent.close()


# --- presets ---------------------------------------------------------------------------------------------------------------


def need() -> FactoryContext:
    return FactoryContext(Path.cwd(), Files(), None, lambda path, text: DefinitionError(text))


async def ignored(delta: Delta) -> None:
    pass


def test_there_are_a_dozen_and_their_rows_make_sense() -> None:
    hosted = [preset for preset in PRESETS.values() if not preset.local]
    assert len(hosted) >= 12
    assert (
        len({preset.base_url for preset in PRESETS.values()}) == len({p.key for p in PRESETS.values()}) == len(PRESETS)
    )
    assert all(preset.base_url.startswith("https://") and preset.key.isupper() for preset in hosted)


@pytest.mark.parametrize("provider", [p.name for p in PRESETS.values() if not p.local])
def test_a_preset_knows_its_address_and_its_key(provider: str, monkeypatch: pytest.MonkeyPatch) -> None:
    preset = PRESETS[provider]
    monkeypatch.delenv(preset.key, raising=False)
    with pytest.raises(MissingKey, match=preset.key):
        recipe_crystals.make_crystal({"provider": provider, "model": "m"}, need())
    monkeypatch.setenv(preset.key, "sk-test-0123456789abcdefghij")
    crystal: Any = recipe_crystals.make_crystal({"provider": provider, "model": "m"}, need())
    assert (crystal.name, crystal.base_url) == (provider, preset.base_url)
    assert crystal.endpoint.api_key.reveal() == "sk-test-0123456789abcdefghij"
    assert crystal_choices.value_of(crystal) == f"{provider}:m"


@pytest.mark.parametrize(
    ("provider", "start"),
    [(name, PRESETS[name].start.format(model="m")) for name in LOCAL]
    + [("anthropic", "start it"), ("google", "start it"), ("openai", "no connection")],
)
async def test_a_refused_connection_to_this_machine_fails_at_once(
    provider: str, start: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    for names in KEYS.values():
        monkeypatch.setenv(names[0], "sk-test-0123456789abcdefghij")
    crystal: Any = recipe_crystals.make_crystal({"provider": provider, "model": "m"}, need())
    with pytest.raises(CrystalError) as caught:
        await crystal.query(Query([Message("user", "Hello")]), ignored)
    await crystal.aclose()
    assert start in str(caught.value)
    assert not caught.value.may_retry(None)


def test_a_client_signs_in_by_key_and_by_address(serve: Callable[..., Wire], tmp_path: Path) -> None:
    keyed: list[str | None] = []

    def answer(request: Any) -> Reply:
        keyed.append(request.headers.get("authorization"))
        if request.headers.get("authorization") != "Bearer key-of-nobody-1":
            return json_reply({}, 401)
        return paths({"/v1/models": listing("small", "large"), "/v1/chat/completions": openai.said("Hello.")})(request)

    wire = serve("vllm", answer)
    environment = dict.fromkeys(VARIABLES.values(), NOBODY) | {"OLLAMA_HOST": "127.0.0.1:9"}
    environment |= {"CANTRIP_CONFIG_DIR": str(tmp_path / "config"), "CANTRIP_STATE_DIR": str(tmp_path / "state")}
    agent = RawClient(env=environment)
    try:
        agent.initialize()
        offered = agent.call("_cantrip/sign_in/list")
        known = {each["provider"]: each for each in offered["providers"]}
        assert list(known)[:4] == ["anthropic", "openai", "google", "openrouter"]
        assert known["groq"] == {"provider": "groq", "hasKey": False, "needsModel": True}
        assert offered["embedded"][0]["crystal"] == "embedded:smollm2"

        address = wire.url.removeprefix("http://")
        asked = {"provider": "local", "key": "key-of-nobody-1", "baseUrl": address}
        for wrong, why in (
            ({"key": "key-of-nobody-2"}, "does not accept this key"),
            ({"key": ""}, "does not accept a request without a key"),
            ({"baseUrl": f"{address}/other"}, "lists no models: it answers 404"),
            ({"baseUrl": "ftp://x"}, "must be an address"),
            ({"baseUrl": "http://a:b@127.0.0.1:1/v1"}, "password"),
        ):
            assert why in agent.error("_cantrip/sign_in/models", {**asked, **wrong})["message"]
        served = agent.call("_cantrip/sign_in/models", asked)
        assert served["baseUrl"] == f"{wire.url}/v1"
        assert [model["name"] for model in served["models"]] == ["small", "large"]
        for wrong, why in (
            ({"model": ""}, "Name the model"),
            ({"model": "a\nOPENAI_API_KEY=x"}, "Name the model"),
            ({"key": "a b c d e f", "model": "small"}, "not a key"),
            ({"provider": "nobody", "model": "small"}, "no provider"),
            ({"provider": "groq", "key": "", "model": "small"}, "no key for groq"),
        ):
            assert why in agent.error("_cantrip/sign_in", {**asked, **wrong})["message"]
        assert not (tmp_path / "config").exists()

        reply = agent.call("_cantrip/sign_in", {**asked, "model": "small"})
        assert reply == {"crystal": "local:small", "overridden": []}
        [saved] = (tmp_path / "config").rglob(".env")
        assert saved.stat().st_mode & 0o777 == 0o600
        settings = keys.parse(saved.read_text())
        assert settings == {
            "LOCAL_BASE_URL": f"{wire.url}/v1", "LOCAL_API_KEY": "key-of-nobody-1", "CANTRIP_CRYSTAL": "local:small"
        }  # fmt: skip

        # New sessions have it, all models of the server can be chosen, and it is asked with the key.
        opened = agent.call("session/new", {"cwd": str(tmp_path), "mcpServers": []})
        model = next(option for option in opened["configOptions"] if option["id"] == "model")
        assert model["currentValue"] == "local:small"

        def offers(message: dict[str, Any]) -> bool:
            options = message.get("params", {}).get("update", {}).get("configOptions", [])
            models = next((o["options"] for o in options if o["id"] == "model"), [])
            return {"local:small", "local:large"} <= {value["value"] for value in models}

        session = opened["sessionId"]
        asked_before = len(wire.requests)
        refresh = agent.ask("_cantrip/models/refresh", {"sessionId": session})
        agent.until(offers)
        assert agent.answer(refresh)["result"] == {}
        assert len(wire.requests) == asked_before + 1
        agent.call("session/set_config_option", {"sessionId": session, "configId": "model", "value": "local:large"})
        agent.call("session/prompt", {"sessionId": session, "prompt": [{"type": "text", "text": "Hello?"}]})
        [post] = [request for request in wire.requests if request.method == "POST"]
        assert (post.json()["model"], keyed[-1]) == ("large", "Bearer key-of-nobody-1")

        # Another key replaces it, also in the session that is open; without one there is none.
        agent.call("_cantrip/sign_in", {**asked, "key": "key-of-nobody-2", "model": "large"})
        agent.error("session/prompt", {"sessionId": session, "prompt": [{"type": "text", "text": "Hello?"}]})
        assert keyed[-1] == "Bearer key-of-nobody-2"
        agent.call("_cantrip/sign_in", {**asked, "key": "", "model": "large"})
        assert "LOCAL_API_KEY" not in keys.parse(saved.read_text())
        # A provider with a default model needs no name; logout forgets all of it.
        reply = agent.call("_cantrip/sign_in", {"provider": "openai", "key": "sk-of-nobody-12345"})
        assert reply["crystal"].startswith("openai:")
        assert keys.parse(saved.read_text())["CANTRIP_CRYSTAL"] == "openai"
        agent.call("logout")
        assert keys.parse(saved.read_text()) == {}
    finally:
        agent.close()
    written = b"".join(file.read_bytes() for file in (tmp_path / "state").rglob("*") if file.is_file())
    assert b"key-of-nobody" not in written


def test_all_models_of_a_recipes_own_server_can_be_chosen(serve: Callable[..., Wire], tmp_path: Path) -> None:
    wire = serve("vllm", paths({"/v1/models": listing("small", "large")}))
    path = tmp_path / "r.cantrip.yaml"
    given = {
        "provider": "local",
        "model": "small",
        "base_url": f"{wire.url}/v1",
        "context_window": 4096,
        "tools": "text",
    }
    path.write_text(json.dumps({"crystal": given, "circle": {"gates": ["done"], "wards": [{"max_turns": 3}]}}))
    found = load(path)
    served = crystal_choices.served_choices(found, "local:small")
    assert [choice.value for choice in served] == ["local:small", "local:large"]
    offered = crystal_choices.list_choices(found, crystal_choices.make_chosen_crystal(found, None, None), served)
    assert {"local:small", "local:large"} <= {choice.value for choice in offered}
    crystal = crystal_choices.make_chosen_crystal(found, "local:large", None)
    assert (crystal.model, crystal.context_window) != ("large", 4096)
    assert crystal.model == "large"
    # The server is not there: nothing is offered, and nothing fails.
    path.write_text(path.read_text().replace(f"{wire.url}/v1", NOBODY))
    assert crystal_choices.served_choices(load(path), "local:small") == []


def test_a_recipe_without_a_model_asks_for_one(tmp_path: Path) -> None:
    (tmp_path / ".cantrip").mkdir()
    (tmp_path / ".cantrip/bare.cantrip.yaml").write_text("circle: {gates: [done], wards: [{max_turns: 3}]}\n")
    script = tmp_path / "scripted.cantrip.yaml"
    script.write_text(
        "crystal: {provider: scripted, responses: [{content: Hello., repeat: true}]}\n"
        "circle: {gates: [done], wards: [{max_turns: 3}]}\n"
    )
    environment = dict.fromkeys(VARIABLES.values(), NOBODY) | {"OLLAMA_HOST": "127.0.0.1:9"}
    environment |= {"CANTRIP_CONFIG_DIR": str(tmp_path / "config")}
    agent = RawClient("--recipe", str(script), env=environment)
    try:
        agent.initialize()
        session = agent.session(tmp_path)
        error = agent.error("session/set_config_option", {"sessionId": session, "configId": "recipe", "value": "bare"})
        # A client signs in for this code.
        assert error["code"] == -32000
        assert "no model: the recipe names none" in error["message"]
    finally:
        agent.close()
