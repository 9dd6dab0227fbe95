"""Where editors cannot be had, it is said why, once, and nothing is left behind."""

import shutil
import time
from pathlib import Path

import pytest

from tests.editors import debian


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.mark.skipif(shutil.which("apt-get") is None, reason="no apt-get to try it with")
@pytest.mark.skipif(not debian.KEYRING.exists(), reason="no keyring of Debian's to try it with")
def test_a_mirror_that_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(debian, "MIRROR", "http://127.0.0.1:9/debian")
    monkeypatch.setattr(debian, "PATIENCE_S", 60)
    with pytest.raises(debian.Unavailable, match=r"cannot be had from http://127\.0\.0\.1:9"):
        debian.root()
    began = time.monotonic()
    with pytest.raises(debian.Unavailable, match=r"127\.0\.0\.1:9"):
        debian.root()
    assert time.monotonic() - began < 1
    assert not list((tmp_path / "cantrip-tests").glob("*.tmp"))


def test_a_disk_that_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debian, "SPACE", 1 << 60)
    with pytest.raises(debian.Unavailable, match=r"^no |MiB are free"):
        debian.root()


def test_a_machine_without_apt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(debian.Unavailable, match="no apt-get"):
        debian.root()
