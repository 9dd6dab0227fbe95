"""`cantrip models`, and what `cantrip doctor` says of providers: where keys came from, never what they are."""

import json
from pathlib import Path

import pytest

from cantrip_acp.cli.commands import doctor
from cantrip_acp.cli.commands.doctor import Finding
from tests.support.command_line import run
from tests.support.provider_server import Request, Wire, json_reply

KEY = "sk-doctor-0123456789abcdefgh"


def test_models(tmp_path: Path) -> None:
    done = run("models", "anthropic", cwd=tmp_path)
    assert done.status == 0, done.err
    assert "claude-opus-5-5" in done.out
    assert "gpt-" not in done.out
    assert "models.toml" in done.out
    data = json.loads(run("models", "--json", cwd=tmp_path).out)
    assert data["defaults"]["openai"]
    assert {m["provider"] for m in data["models"]} >= {"anthropic", "openai", "google", "openrouter", "ollama"}
    assert all(m["known"] for m in data["models"])


def test_a_model_that_nobody_knows(tmp_path: Path) -> None:
    done = run("models", "openai:gpt-of-tomorrow", cwd=tmp_path)
    assert done.status == 0
    assert "assumed: the model is unknown" in done.out


def test_an_unknown_provider(tmp_path: Path) -> None:
    done = run("models", "antropic", cwd=tmp_path)
    assert done.status == 2
    assert "did you mean 'anthropic'" in done.err


def test_the_users_own_table(tmp_path: Path) -> None:
    (tmp_path / "models.toml").write_text("[openai.mine]\ncontext_window = 123000\n")
    done = run("models", "openai", cwd=tmp_path, CANTRIP_CONFIG_DIR=str(tmp_path))
    assert "123k" in done.out
    (tmp_path / "models.toml").write_text("[openai.mine]\ncontext = 123000\n")
    done = run("models", "openai", cwd=tmp_path, CANTRIP_CONFIG_DIR=str(tmp_path))
    assert done.status == 2
    assert "openai.mine: unknown key 'context'" in done.err


def looked(*, probe: bool = False) -> dict[str, Finding]:
    return {finding.name: finding for finding in doctor.check_providers(probe=probe)}


def test_doctor_says_where_a_key_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert looked()["providers"].state == "choice"
    monkeypatch.setenv("CANTRIP_CONFIG_DIR", str(tmp_path))
    monkeypatch.setenv("GEMINI_API_KEY", KEY)
    (tmp_path / ".env").write_text(f"OPENAI_API_KEY={KEY}-2\n")
    (tmp_path / ".env").chmod(0o644)
    monkeypatch.setenv("CANTRIP_BASE_URL", "http://me:hidden-0123456789@127.0.0.1:1/v1")
    monkeypatch.setenv("CANTRIP_HEADERS", "X-Secret-Header: hidden-0123456789")
    found = looked()
    assert found["provider.google"].text == "GEMINI_API_KEY from the environment"
    assert found["provider.openai"].text == f"OPENAI_API_KEY from {tmp_path / '.env'}"
    assert found["crystal"].text.startswith("openai:gpt-")
    assert found["keys.file"].state == "note"
    assert found["gateway"].text.startswith(
        "requests to every provider are sent to http://127.0.0.1:1/v1, with a login"
    )
    assert found["headers"].text.startswith("each request has the headers X-Secret-Header")
    assert "0123456789" not in str(found)
    (tmp_path / ".env").chmod(0o600)
    monkeypatch.setenv("CANTRIP_CRYSTAL", "ollama:qwen3")
    found = looked()
    assert found["keys.file"].state == "ok"
    assert found["crystal"].text.startswith("ollama:qwen3")


def test_doctor_says_that_a_provider_of_the_table_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANTRIP_CONFIG_DIR", str(tmp_path))
    (tmp_path / "models.toml").write_text("[opnai.m]\ncontext_window = 3\n[openai.m]\ncontext_window = 3\n")
    found = looked()["models.provider"]
    assert (found.state, "opnai" in found.text, "openai" in found.mend) == ("note", True, True)
    (tmp_path / "models.toml").write_text("[openai.m]\ncontext_window = 3\n")
    assert "models.provider" not in looked()


def test_doctor_names_a_variable_that_nothing_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANTRIP_STATEDIR", "/nowhere")
    found = looked()["environment"]
    assert found.state == "note"
    assert found.text == "CANTRIP_STATEDIR is set, but nothing reads it; did you mean 'CANTRIP_STATE_DIR'?"
    monkeypatch.delenv("CANTRIP_STATEDIR")
    monkeypatch.setenv("CANTRIP_CONTEXT", "/some/file")
    assert "environment" not in looked()


def test_doctor_asks_the_providers(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(request: Request) -> object:
        good = request.headers.get("authorization") == f"Bearer {KEY}"
        return json_reply({"data": []}) if good else json_reply({"error": f"no: {KEY}"}, 401)

    with Wire(answer) as wire:  # type: ignore[arg-type]
        monkeypatch.setenv("CANTRIP_BASE_URL", wire.url)
        monkeypatch.setenv("CANTRIP_API_KEY", KEY)
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
        found = looked(probe=True)
    assert found["probe.openai"].state == "ok"
    assert "openai answers (" in found["probe.openai"].text
    assert found["probe.anthropic"].state == "note"
    assert "refuses the key (401)" in found["probe.anthropic"].text
    assert "probe.google" not in found
    assert KEY not in str(found)
