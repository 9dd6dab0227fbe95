"""The wheel alone, in an environment that has never seen the source: it holds all that the package needs."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path
from typing import Any

import pytest

from cantrip_acp.version import __version__

ROOT = Path(__file__).resolve().parents[3]

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(importlib.util.find_spec("hatchling") is None, reason="hatchling, which builds it, is missing"),
]


def run(*argv: str | Path, cwd: Path, status: int = 0, stdin: str = "", **env: str) -> str:
    inherited = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        [str(each) for each in argv],
        cwd=cwd,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=200,
        env={**inherited, **env},
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of what git has, as a release is; with the build tools that are here, so without a network."""
    source = tmp_path_factory.mktemp("source")
    for name in _tracked():
        target = source / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target)
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", out, cwd=source)
    (built,) = out.glob("*.whl")
    return built


def _tracked() -> list[str]:
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("not a git checkout, so nobody knows what belongs to a release")
    wanted = ["cantrip_acp", "pyproject.toml", "README.md", "LICENSE"]
    listed = run("git", "-c", f"safe.directory={ROOT}", "ls-files", "-z", "--", *wanted, cwd=ROOT)
    return [name for name in listed.split("\0") if name and (ROOT / name).is_file()]


@pytest.fixture(scope="module")
def bin_folder(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The commands of an environment that has the wheel, and this one's libraries, but not its cantrip_acp."""
    venv = tmp_path_factory.mktemp("venv")
    run(sys.executable, "-m", "venv", "--without-pip", venv, cwd=venv)
    python = venv / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", "--no-index", wheel, cwd=venv)
    (site,) = venv.glob("lib/python*/site-packages")
    # A line of a .pth file adds a folder and reads no .pth file in it, so the editable install there is not found.
    (site / "libraries.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    where = run(python, "-c", "import cantrip_acp; print(cantrip_acp.__file__)", cwd=venv)
    assert Path(where.strip()).is_relative_to(venv), where
    return venv / "bin"


def test_every_file_of_the_package_is_in_it(wheel: Path) -> None:
    packed = set(zipfile.ZipFile(wheel).namelist())
    missing = {name for name in _tracked() if name.startswith("cantrip_acp/")} - packed
    assert not missing
    stray = [n for n in packed if not n.startswith(("cantrip_acp/", f"cantrip_acp-{__version__}.dist-info/"))]
    assert not stray
    assert not [name for name in packed if "__pycache__" in name or name.endswith(".pyc")]


def test_the_agent_answers(bin_folder: Path, tmp_path: Path) -> None:
    hello = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": 1}}
    out = run(bin_folder / "cantrip-acp", cwd=tmp_path, stdin=json.dumps(hello) + "\n")
    about: dict[str, Any] = json.loads(out)["result"]
    assert about["agentInfo"] == {"name": "cantrip-acp", "title": "Cantrip", "version": __version__}


def test_recipes_and_their_schema_are_there(bin_folder: Path, tmp_path: Path) -> None:
    cantrip = bin_folder / "cantrip"
    schema = json.loads(run(cantrip, "recipe", "schema", cwd=tmp_path))
    assert "circle" in schema["properties"]
    for name in ("familiar", "coding"):
        assert name in run(cantrip, "recipe", "show", name, cwd=tmp_path)


@pytest.mark.sandbox
@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_the_demo_and_the_page_of_a_loom(bin_folder: Path, tmp_path: Path) -> None:
    out = run(
        bin_folder / "cantrip", "demo", "--keep", cwd=tmp_path, TMPDIR=str(tmp_path), CANTRIP_STATE_DIR=str(tmp_path)
    )
    assert "end_turn" in out
    (loom,) = tmp_path.rglob("*.loom.jsonl")
    page = tmp_path / "page.html"
    run(bin_folder / "cantrip", "loom", "view", loom, "--html", page, cwd=tmp_path)
    text = page.read_text()
    assert text.lstrip().lower().startswith("<!doctype html>")
    assert "<script" in text
    assert len(text) > 20_000
