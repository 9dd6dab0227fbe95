"""The version is the same everywhere, and the script that sets it finds every place."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from cantrip_acp.version import __version__
from tools import release

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    files = [
        "cantrip_acp/version.py",
        "CHANGELOG.md",
        "vscode-extension/CHANGELOG.md",
        "tools/release.py",
        *release.PLACES,
    ]
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def run(folder: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "tools/release.py", *argv], cwd=folder, capture_output=True, text=True)


def test_all_files_have_the_version() -> None:
    assert release.problems() == []


def test_a_file_that_is_forgotten_is_named(copy: Path) -> None:
    for place in release.PLACES:
        before = (copy / place).read_text()
        (copy / place).write_text(before.replace(__version__, "9.9.9"))
        done = run(copy, "check")
        assert (done.returncode, done.stderr.split(":")[0]) == (1, place)
        (copy / place).write_text(before)
    assert run(copy, "check").returncode == 0


def test_a_version_is_set_everywhere(copy: Path) -> None:
    done = run(copy, "set", "12.3.4")
    # The extension's changelog is written by hand.
    assert done.stderr == "vscode-extension/CHANGELOG.md: its first section is not 12.3.4\n"
    log = copy / "vscode-extension" / "CHANGELOG.md"
    log.write_text(log.read_text().replace("# Changelog\n", "# Changelog\n\n## 12.3.4\n\nNew.\n", 1))
    assert run(copy, "check", "--tag", "v12.3.4").returncode == 0
    assert "the tag is v1.0.0" in run(copy, "check", "--tag", "v1.0.0").stderr
    changes = (copy / "CHANGELOG.md").read_text()
    assert re.search(r"^## \[Unreleased\]\n\n## \[12\.3\.4\] - \d{4}-\d\d-\d\d\n\n### Added", changes, re.MULTILINE)
    changed = {name for name in release.PLACES if (copy / name).read_text() != (ROOT / name).read_text()}
    assert changed == set(release.PLACES)
    # Versions of other packages stay.
    lock, now = (ROOT / "vscode-extension/package-lock.json"), (copy / "vscode-extension/package-lock.json")
    assert lock.read_text().count(f'"{__version__}"') - now.read_text().count(f'"{__version__}"') == 2


def test_only_a_tag_is_uploaded() -> None:
    jobs = YAML(typ="safe").load((ROOT / ".github" / "workflows" / "release.yml").read_text())["jobs"]
    assert [step["run"] for step in jobs["build"]["steps"] if step.get("run", "").startswith("make")] == [
        "make release-dry-run"
    ]
    for name, job in jobs.items():
        if name != "build":
            assert (job["if"], job["environment"]) == ("github.ref_type == 'tag'", "release"), name
    assert not re.search(r"secrets\.", str(jobs["build"]))


class _Index(BaseHTTPRequestHandler):
    """A package index with one package."""

    def do_GET(self) -> None:
        name = self.path.strip("/").split("/")[-1]
        body = f'<a href="{name}-9.9.tar.gz">{name}-9.9.tar.gz</a>'.encode() if name == self.server.taken else b""  # type: ignore[attr-defined]
        self.send_response(200 if body else 404)
        self.send_header("content-type", "text/html")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(
    ("taken", "says"),
    [
        ("cantrip-acp", "has releases on the package index (9.9)"),
        ("other", "is free on the package index"),
        (None, "is unknown"),
    ],
)
def test_a_dry_run_says_whose_the_name_is(taken: str | None, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    with ThreadingHTTPServer(("127.0.0.1", 0), _Index) as server:
        server.taken = taken  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/simple")
        if taken is None:
            server.shutdown()
            server.server_close()
        assert says in release.left_for_an_owner()[0]
        if taken is not None:
            server.shutdown()
