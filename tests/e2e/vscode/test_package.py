"""The extension's unit tests, its package and what is in it. (`.ci/run` checks its types and runs its linter.)"""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from tests.e2e.vscode.workbench import EXTENSION, ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400), pytest.mark.xdist_group("vscode-page")]

ALLOWED = ("extension/dist/", "extension/languages/", "extension/media/")
"""What is shipped beside the files that every extension has; no sources, no tests, no modules."""


@pytest.fixture(scope="module")
def npm() -> str:
    """npm, with a node that the extension's tools run on and their modules installed."""
    found, node = shutil.which("npm"), shutil.which("node")
    if found is None or node is None:
        pytest.skip("npm is missing")
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    if tuple(map(int, version.lstrip("v").split(".")[:2])) < (20, 19):
        pytest.skip(f"the extension's tools need node 20.19 or later; this one is {version}")
    if not (EXTENSION / "node_modules" / "typescript").is_dir():
        pytest.skip("the extension's modules are not installed (npm ci in vscode-extension/)")
    return found


@pytest.mark.xdist_group("vscode-unit")
def test_its_unit_tests(npm: str) -> None:
    done = subprocess.run([npm, "run", "--silent", "test"], cwd=EXTENSION, capture_output=True, text=True, timeout=380)
    failed = [part for part in done.stdout.split("# Subtest: ") if re.match(r".*\n *not ok ", part)]
    assert done.returncode == 0, f"npm run test:\n{''.join(failed) or done.stdout[-6000:]}\n{done.stderr[-3000:]}"


def test_what_is_in_the_package(vsix: Path) -> None:
    with zipfile.ZipFile(vsix) as package:
        names = package.namelist()
        manifest = json.loads(package.read("extension/package.json"))
        schema = package.read("extension/dist/cantrip.schema.json")
    inside = [name for name in names if name.startswith("extension/")]
    assert {"extension/dist/extension.js", "extension/dist/uninstall.js"} <= set(inside)
    odd = [name for name in inside if not name.startswith(ALLOWED) and name.count("/") > 1]
    assert odd == []
    assert not [name for name in inside if name.endswith((".ts", ".map"))]
    # The licences of what is bundled, also of what is loaded later.
    with zipfile.ZipFile(vsix) as package:
        notices = package.read("extension/dist/notices.txt").decode()
    assert all(re.search(rf"^{name} [\d.]+ \(", notices, re.M) for name in ("mermaid", "katex", "marked", "zod"))
    # Fonts in one format, and no part of the first script.
    fonts = [name for name in inside if "/fonts/" in name]
    assert len(fonts) >= 20
    assert all(name.endswith(".woff2") for name in fonts)
    # The package itself, of this very checkout.
    (wheel,) = [name for name in inside if name.startswith("extension/dist/wheels/cantrip_acp-")]
    with zipfile.ZipFile(vsix) as package, zipfile.ZipFile(io.BytesIO(package.read(wheel))) as packed:
        assert packed.read("cantrip_acp/version.py") == (ROOT / "cantrip_acp/version.py").read_bytes()
    # The walkthrough starts with the chat.
    assert manifest["contributes"]["walkthroughs"][0]["steps"][0]["id"] == "chat"
    assert schema == (ROOT / "cantrip_acp/recipes/cantrip.schema.json").read_bytes()
    # Whatever the manifest names is there.
    contributes = manifest["contributes"]
    named = [manifest["main"], manifest["icon"]]
    named += [each["path"] for kind in ("grammars", "snippets") for each in contributes[kind]]
    named += [each[key] for each in contributes["languages"] for key in ["configuration"]]
    named += [icon for each in contributes["languages"] for icon in each["icon"].values()]
    named += [each["url"] for each in contributes["yamlValidation"]]
    named += [each["icon"] for each in contributes["viewsContainers"]["activitybar"]]
    for walkthrough in contributes.get("walkthroughs", []):
        for step in walkthrough["steps"]:
            named += [value for key, value in step["media"].items() if key != "altText" and isinstance(value, str)]
    missing = [name for name in named if f"extension/{name.removeprefix('./')}" not in names]
    assert missing == []


def test_the_versions_agree(vsix: Path) -> None:
    from cantrip_acp.version import __version__

    manifest = json.loads((EXTENSION / "package.json").read_text())
    assert manifest["version"] == __version__
    assert f'OLDEST = "{__version__}"' in (EXTENSION / "src/environment/program.ts").read_text()


def test_uninstalling_removes_what_the_setup_made_and_nothing_else(vsix: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(vsix) as package:
        package.extractall(tmp_path, ["extension/package.json", "extension/dist/uninstall.js"])
    extension = tmp_path / "extension"
    storage = tmp_path / "User/globalStorage/cantrip-acp.cantrip"

    def venv(at: Path, mark: Path | None) -> Path:
        (at / "lib").mkdir(parents=True)
        (at / "pyvenv.cfg").write_text("home = /usr/bin\n")
        (at / "lib64").symlink_to("lib")
        (at / "outside").symlink_to(tmp_path / "outside")
        if mark is not None:
            (at / ".made-by-cantrip-set-up").write_text(str(mark.resolve()))
        return at

    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/kept").write_text("")
    made = venv(storage / "venv", storage / "venv")
    own = venv(tmp_path / "own", None)
    copy = venv(tmp_path / "copy", storage / "venv")
    unlisted = venv(tmp_path / "unlisted", tmp_path / "unlisted")
    (tmp_path / "link").symlink_to(unlisted)
    listed = [made, own, copy, tmp_path / "link", tmp_path / "outside", tmp_path / "missing"]
    (extension / ".set-up.json").write_text(json.dumps([*map(str, listed), 7, "relative"]))
    node, script = json.loads((extension / "package.json").read_text())["scripts"]["vscode:uninstall"].split()
    # As the editor does it: the script by its path in the folder, in any current folder, with an argument of its own.
    command = [node, str(extension / script), "--type=extension-post-uninstall"]
    for _ in range(2):
        done = subprocess.run(command, cwd="/", capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")
        assert not storage.exists()
        assert all((each / "lib64").is_symlink() for each in (own, copy, unlisted))
        assert (tmp_path / "outside/kept").exists()
    # Without a list, nothing is removed.
    (extension / ".set-up.json").unlink()
    venv(made, made)
    assert subprocess.run(command, cwd="/", timeout=60).returncode == 0
    assert made.is_dir()
