"""The user's folders: where the platform wants them."""

import subprocess
import sys
from pathlib import Path

import platformdirs
import pytest

from cantrip_acp.files.paths import config_dir, state_dir


@pytest.mark.parametrize("said", [None, "", "  ", "relative/path", "~/x", "/somewhere/else", " /padded "])
def test_they_are_those_of_platformdirs(said: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("CANTRIP_STATE_DIR")
    for variable in ("XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        if said is None:
            monkeypatch.delenv(variable, raising=False)
        else:
            monkeypatch.setenv(variable, said)
    assert state_dir() == platformdirs.user_state_path("cantrip")
    assert config_dir() == platformdirs.user_config_path("cantrip")


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere platformdirs says where")
def test_they_are_found_without_a_library() -> None:
    script = "import sys; from cantrip_acp.files.paths import own; own(); print('platformdirs' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
