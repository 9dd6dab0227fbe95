"""Where keys are found: the environment, the user's own .env, the keyring; and what never counts."""

import json
import logging
import os
import sys
import time
from pathlib import Path

import pytest

from cantrip_acp.crystals import keys
from cantrip_acp.recipes.build.crystal_factory import KEYS
from cantrip_acp.text.redaction import shared

VALUE = "sk-keytest-0123456789abcdef"


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CANTRIP_CONFIG_DIR", str(tmp_path))
    monkeypatch.setattr(keys, "_silent_until", 0.0)
    return tmp_path


def dotenv(config: Path, text: str, mode: int = 0o600) -> None:
    path = config / ".env"
    path.write_text(text)
    path.chmod(mode)


def keyring(config: Path, monkeypatch: pytest.MonkeyPatch, **held: str) -> None:
    """A real back end of the keyring in a file, with these in it."""
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyrings.alt.file.PlaintextKeyring")
    monkeypatch.setenv("XDG_DATA_HOME", str(config / "data"))
    import subprocess

    for name, value in held.items():
        script = f"import keyring; keyring.set_password('cantrip', {name!r}, {value!r})"
        subprocess.run([sys.executable, "-c", script], check=True)


def test_the_environment_comes_first(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dotenv(config, "GEMINI_API_KEY=of-the-file-0123456789\n")
    monkeypatch.setenv("GOOGLE_API_KEY", VALUE)
    found = keys.find(KEYS["google"])
    assert found is not None
    assert (found.name, found.secret.reveal(), found.source) == ("GOOGLE_API_KEY", VALUE, "the environment")
    assert VALUE not in repr(found)


def test_then_the_users_file(config: Path) -> None:
    dotenv(config, f"# mine\nexport OPENAI_API_KEY='{VALUE}' # old\nCANTRIP_CRYSTAL=openai:m\n")
    found = keys.find(KEYS["openai"])
    assert found is not None
    assert found.secret.reveal() == VALUE
    assert found.source == str(config / ".env")
    assert keys.setting("CANTRIP_CRYSTAL") == "openai:m"
    dotenv(config, "OPENAI_API_KEY=another-one-0123456789\n")
    changed = keys.find(KEYS["openai"])
    assert changed is not None
    assert changed.secret.reveal() == "another-one-0123456789"


def test_every_secret_of_the_file_is_redacted(config: Path) -> None:
    dotenv(config, "SOME_TOKEN=tok-of-something-else-77\nCANTRIP_CRYSTAL=ollama:a-long-model-name\n")
    keys.dotenv()
    assert shared().text("tok-of-something-else-77 ollama:a-long-model-name") == "[redacted] ollama:a-long-model-name"


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("A=b", "b"),
        (" export A = b ", "b"),
        ("A='b # c'", "b # c"),
        ('A="b" # c', "b"),
        ("A=b#c", "b#c"),
        ("A=b # c", "b"),
        ("A=$B", "$B"),
        ("A=b=c", "b=c"),
        ("A=", ""),
        ("A='b", "b"),
        ("#A=b", None),
        ("A", None),
        ("1A=b", None),
    ],
)
def test_a_line(line: str, value: str | None) -> None:
    assert keys.parse(f"\n{line}\r\nZ=1").get("A") == value
    assert keys.parse(f"\n{line}\r\nZ=1")["Z"] == "1"


def test_a_file_that_others_can_read_is_told(config: Path, caplog: pytest.LogCaptureFixture) -> None:
    dotenv(config, f"OPENAI_API_KEY={VALUE}\n", 0o644)
    assert keys.find(KEYS["openai"]) is not None
    assert "can be read by other users of this machine; to fix this, run: chmod 600" in caplog.text
    assert VALUE not in caplog.text
    caplog.clear()
    keys.find(KEYS["openai"])
    assert not caplog.text


def test_what_is_no_file_has_no_keys(config: Path) -> None:
    os.mkfifo(config / ".env")
    assert keys.dotenv() == {}
    (config / ".env").unlink()
    (config / ".env").mkdir()
    assert keys.dotenv() == {}


def test_the_keyring_is_last(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keyring(config, monkeypatch, OPENAI_API_KEY=VALUE)
    found = keys.find(KEYS["openai"])
    assert found is not None
    assert (found.secret.reveal(), found.source) == (VALUE, "the system's keyring")
    assert keys.find_first_provider(KEYS) == ("openai", found)
    assert keys.find(KEYS["anthropic"]) is None
    dotenv(config, "OPENAI_API_KEY=of-the-file-0123456789\n")
    nearer = keys.find(KEYS["openai"])
    assert nearer is not None
    assert nearer.source.endswith(".env")
    assert "keyring" not in sys.modules or "keyring.core" not in sys.modules


@pytest.mark.timing
def test_a_keyring_that_hangs_is_one_without_keys(
    config: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    (config / "hanging_ring.py").write_text(
        """
import time
from keyring.backend import KeyringBackend

class Keyring(KeyringBackend):
    priority = 1
    def get_password(self, service, name):
        time.sleep(600)
    set_password = delete_password = get_password
"""
    )
    monkeypatch.setenv("PYTHONPATH", str(config))
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "hanging_ring.Keyring")
    monkeypatch.setattr(keys, "KEYRING_SECONDS", 1.0)
    begun = time.monotonic()
    assert keys.find(KEYS["openai"]) is None
    assert keys.find(KEYS["openai"]) is None  # not asked again at once
    assert time.monotonic() - begun < 10
    assert "did not answer: TimeoutExpired" in caplog.text


def test_a_keyring_in_the_workspace_is_none(config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (workspace / "keyring.py").write_text(
        f"open({str(tmp_path / 'ran')!r}, 'w')\ndef get_password(*a): return {VALUE!r}\n"
    )
    monkeypatch.chdir(workspace)
    assert keys.find(KEYS["openai"]) is None
    assert not (tmp_path / "ran").exists()


def test_a_broken_back_end_has_no_keys(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "no.such.Backend")
    assert keys.find(KEYS["openai"]) is None
    assert json.dumps(keys.dotenv()) == "{}"
