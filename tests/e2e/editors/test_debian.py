"""Where editors cannot be had, it is said why, once, and nothing is left behind."""

import shutil
import time
from pathlib import Path

import pytest

from tests.e2e.editors import debian_packages as debian


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.mark.skipif(shutil.which("apt-get") is None, reason="no apt-get to try it with")
@pytest.mark.skipif(not debian.KEYRING.exists(), reason="no keyring of Debian's to try it with")
def test_a_mirror_that_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(debian, "mirror", lambda: "http://127.0.0.1:9/debian")
    monkeypatch.setattr(debian, "PATIENCE_S", 60)
    with pytest.raises(debian.Unavailable, match=r"cannot be had from http://127\.0\.0\.1:9"):
        debian.root()
    began = time.monotonic()
    with pytest.raises(debian.Unavailable, match=r"127\.0\.0\.1:9"):
        debian.root()
    assert time.monotonic() - began < 30
    assert not list((tmp_path / "cantrip-tests").glob("*.tmp"))


@pytest.mark.skipif(shutil.which("apt-get") is None, reason="no apt-get to try it with")
@pytest.mark.parametrize(
    ("sources", "expected"),
    [
        (
            "deb https://download.example/linux/debian {codename} stable\n"
            "deb http://127.0.0.1:9/corp/remote/ {codename} main\n"
            "deb http://127.0.0.1:9/corp/remote/ {codename}-updates main\n"
            "deb http://127.0.0.1:9/corp/security/ {codename}-security main\n",
            "http://127.0.0.1:9/corp/remote",
        ),
        ("deb http://127.0.0.1:9/debian stable main\n", "http://127.0.0.1:9/debian"),
        ("deb https://download.example/tool any main\n", None),
    ],
)
def test_the_mirror_is_that_of_apt(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, sources: str, expected: str | None
) -> None:
    codename = debian._os_release().get("VERSION_CODENAME", "")
    if debian._os_release().get("ID") != "debian":
        pytest.skip("this machine is no Debian")
    (tmp_path / "sources.list").write_text(sources.format(codename=codename))
    (tmp_path / "lists" / "partial").mkdir(parents=True)
    (tmp_path / "apt.conf").write_text(
        f'Dir::Etc::sourcelist "{tmp_path}/sources.list";\n'
        'Dir::Etc::sourceparts "-";\n'
        f'Dir::State::lists "{tmp_path}/lists";\n'
    )
    monkeypatch.setenv("APT_CONFIG", str(tmp_path / "apt.conf"))
    if expected is None:
        with pytest.raises(debian.Unavailable, match="names no mirror of Debian"):
            debian.mirror()
    else:
        assert debian.mirror() == expected


def test_a_disk_that_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debian, "SPACE", 1 << 60)
    with pytest.raises(debian.Unavailable, match=r"^no |MiB are free"):
        debian.root()


def test_a_machine_without_apt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(debian.Unavailable, match="no apt-get"):
        debian.root()
