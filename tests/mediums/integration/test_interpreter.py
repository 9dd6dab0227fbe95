"""`code_python`: which Python runs the cells, and what one that came with a repository may show."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cantrip_acp.mediums.code.medium import CodeMedium
from cantrip_acp.recipes import inspect, load
from cantrip_acp.recipes.build.build import build
from cantrip_acp.types.errors import DefinitionError, RecipeError
from tests.support import processes

pytestmark = pytest.mark.anyio

RECIPE = """
crystal: {{provider: scripted, responses: [{{code: "done(1)"}}]}}
circle:
  medium: {medium}
  {key}
  gates: [done]
  wards: [{{max_turns: 3}}]
"""


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    (folder / ".cantrip").mkdir(parents=True)
    return folder


def venv(folder: Path, *options: str) -> Path:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", *options, str(folder)], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "only_here.py").write_text("x = 'from the venv'\n")
    return folder


def write(workspace: Path, key: str, medium: str = "code") -> Path:
    path = workspace / ".cantrip" / "theirs.cantrip.yaml"
    path.write_text(RECIPE.format(key=key, medium=medium))
    return path


@pytest.mark.parametrize("name", ["venv", ".venv", "./.venv", ".venv/bin/python", "venv-by-link"])
@pytest.mark.parametrize("options", [(), ("--copies",)], ids=["links", "copies"])
async def test_the_workspaces_own(make, workspace: Path, name: str, options: tuple[str, ...]) -> None:
    made = venv(workspace / ".venv", *options)
    (made / ".env").write_text("TOKEN=1")
    if name == "venv-by-link":
        link = workspace.parent / "link"
        link.symlink_to(workspace)
        workspace, name = link, "venv"
    python = await make(medium=CodeMedium(python=name), workspace=workspace)
    assert await python.value("import only_here\nonly_here.x") == "'from the venv'"
    assert await python.value("import sys\nsys.prefix") == repr(os.path.realpath(workspace / ".venv"))
    run = "import subprocess as s\ns.run(['python', '-c', 'import only_here; print(only_here.x)'], capture_output=True, text=True)"
    assert "from the venv" in (await python.value(f"{run}.stdout") or "")
    # It shows what an environment is made of, and nothing beside.
    workspace = workspace.resolve()
    assert await python.value(f"import os\nsorted(os.listdir({str(workspace)!r}))") == "['.venv']"
    assert await python.value(f"os.path.exists('{workspace}/.venv/.env')") == "False"


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("code_python: venv", "no virtual environment in"),
        ("code_python: /nowhere/python", "/nowhere/python does not exist"),
        ("code_python: no-such-python", "no program 'no-such-python' on PATH"),
        ("code_python: broken", "is a link to /nowhere/python3, which cannot be run"),
        ("code_python: plain", "not a virtual environment"),
    ],
)
def test_one_that_is_not_there_is_said_before_anything_runs(workspace: Path, key: str, words: str) -> None:
    (workspace / "plain").mkdir()
    (workspace / "broken" / "bin").mkdir(parents=True)
    (workspace / "broken" / "bin" / "python3").symlink_to("/nowhere/python3")
    path = write(workspace, key)
    with pytest.raises(RecipeError, match=r"5:16: circle.code_python: ") as caught:
        build(load(str(path)), workspace=workspace)
    assert words in str(caught.value)
    assert "python3 -m venv .venv" in str(caught.value)
    report = inspect.check(path, workspace=workspace)
    assert report.ok
    assert words in report.notes[0]


def test_where_it_is_there_nothing_is_said(workspace: Path) -> None:
    venv(workspace / ".venv")
    path = write(workspace, "code_python: venv")
    cantrip = build(load(str(path)), workspace=workspace)
    assert cantrip.circle.record()["code_python"] == "venv"
    assert inspect.check(path, workspace=workspace).notes == ()


@pytest.mark.parametrize("medium", ["bash", "monty", "conversation"])
@pytest.mark.parametrize("key", ["code_python: venv", "loom: true"])
def test_other_mediums_have_none(workspace: Path, medium: str, key: str) -> None:
    report = inspect.check(write(workspace, key, medium))
    name = key.partition(":")[0]
    assert (
        f"circle.{name}: {name} can be used only with the code medium; this circle has the medium {medium}"
        in report.problems[0]
    )


def plant(workspace: Path, what: str) -> str:
    """A workspace that names something else as its Python; what a recipe would call it."""
    secret = workspace.parent / "private"
    (secret / "lib").mkdir(parents=True)
    (secret / "bin").mkdir()
    (secret / "bin" / "notes").write_text("SECRET")
    (secret / "bin" / "notes").chmod(0o755)
    (secret / "pyvenv.cfg").write_text("home = /usr/bin\n")
    folder = workspace / ".venv"
    if what == "a link to a file":
        (folder / "bin").mkdir(parents=True)
        (folder / "pyvenv.cfg").write_text("home = /usr/bin\n")
        (folder / "bin" / "python3").symlink_to(secret / "bin" / "notes")
    elif what == "a link to a folder":
        folder.symlink_to(secret)
        shutil.copy(sys.executable, secret / "bin" / "python3")
    elif what == "a folder of programs by a link":
        folder.mkdir()
        (folder / "pyvenv.cfg").write_text("home = /usr/bin\n")
        (folder / "bin").symlink_to(secret / "bin")
    elif what == "the workspace itself":
        (workspace / "bin").mkdir()
        (workspace / "pyvenv.cfg").write_text("home = /usr/bin\n")
        (workspace / "bin" / "python3").symlink_to(sys.executable)
        return "."
    elif what == "no environment":
        (folder / "bin").mkdir(parents=True)
        shutil.copy("/bin/true", folder / "bin" / "python3")
    return ".venv"


@pytest.mark.parametrize(
    "what",
    [
        "a link to a file",
        "a link to a folder",
        "a folder of programs by a link",
        "the workspace itself",
        "no environment",
    ],
)
def test_what_a_repository_cannot_pass_off_as_its_python(workspace: Path, what: str) -> None:
    chosen = plant(workspace, what)
    for each in (chosen, f"{chosen}/bin/python3"):
        with pytest.raises(RecipeError, match="code_python"):
            build(load(str(write(workspace, f"code_python: {each}"))), workspace=workspace)


async def test_other_links_of_an_environment_show_nothing(make, workspace: Path) -> None:
    made = venv(workspace / ".venv")
    secret = workspace.parent / "private"
    secret.mkdir()
    (secret / "key").write_text("SECRET")
    (made / "bin" / "tool").symlink_to(secret / "key")
    (made / "share").symlink_to(secret)
    (made / "pyvenv.cfg").write_text((made / "pyvenv.cfg").read_text() + f"home = {secret}\n")
    python = await make(medium=CodeMedium(python="venv"), workspace=workspace)
    assert await python.value(f"import os\nos.path.exists({str(secret)!r})") == "False"
    assert "Error" in ((await python(f"open('{made}/bin/tool')")).error or "")


@pytest.mark.parametrize(
    ("key", "allowed"),
    [
        ("code_python: venv", True),
        ("code_python: .venv", True),
        ("code_python: .venv/bin/python", True),
        ("code_python: python3", True),
        ("loom: true", True),
        ("code_python: /usr/bin/python3", False),
        ("code_python: ../other/venv", False),
        ("code_python: ~/venv", False),
        ("code_python: link/bin/python", False),
        ("code_python: ./link", False),
        ("code_python: ..", False),
    ],
)
def test_trust(workspace: Path, key: str, allowed: bool) -> None:
    from cantrip_acp.recipes.trust import demands

    venv(workspace / ".venv")
    (workspace / "link").symlink_to(workspace.parent)
    recipe = load(str(write(workspace, key)))
    found = list(demands(recipe.data, recipe.path.parent, workspace))
    expected = [] if allowed else [(("circle", "code_python"), "the interpreter is outside the workspace")]
    assert found == expected


def of_version(version: str) -> str:
    """A Python of that version on this machine, as pyenv or the system have it."""
    home = os.environ.get("PYENV_ROOT", os.path.expanduser("~/.pyenv"))
    found = sorted(Path(home).glob(f"versions/{version}.*/bin/python{version}"))
    program = str(found[0]) if found else shutil.which(f"python{version}")
    if program is None or ".pyenv/shims" in program:
        pytest.skip(f"there is no Python {version} here")
    return program


@pytest.mark.parametrize("version", ["2.7", "3.6", "3.9"])
async def test_an_old_python_says_so(make, version: str) -> None:
    python = await make(medium=CodeMedium(python=of_version(version)))
    error = (await python("1")).error or ""
    assert "set code_python of the circle to a Python that works" in error
    assert version == "2.7" or f"this is Python {version}" in error


@pytest.mark.parametrize("version", ["3.10", "3.12", "3.13"])
async def test_other_pythons_work(make, version: str) -> None:
    python = await make(medium=CodeMedium(python=of_version(version)))
    # It is the one that was asked for, whichever runs these tests.
    found = await python.value("import sys, asyncio\nx = [1]\n'.'.join(map(str, sys.version_info[:2]))")
    assert found == repr(version)
    assert await python.value("await asyncio.sleep(0, echo(text='a'))") == "'a'"
    assert "ZeroDivisionError" in ((await python("def f():\n    1 / 0\nf()")).error or "")
    taken = await python.session.snapshot()
    await python.session.restore(taken)
    assert await python.value("x, await asyncio.sleep(0, echo('a'))") == "([1], 'a')"


def test_the_command_line(workspace: Path) -> None:
    venv(workspace / ".venv")
    command = [sys.executable, "-m", "cantrip_acp.cli.main", "sandbox", "run", "--python"]

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return processes.run([*command, *words], cwd=workspace, capture_output=True, text=True, timeout=60, check=False)

    assert run("--code-python", "venv", "--", "import only_here; only_here.x").stdout == "=> 'from the venv'\n"
    missing = run("--code-python", "nowhere", "--", "1")
    assert (missing.returncode, "no program 'nowhere' on PATH" in missing.stderr) == (2, True)
    write(workspace, "code_python: venv\n  loom: true")
    by_recipe = run("--recipe", "theirs", "--", "import only_here; only_here.x, len(loom)")
    assert by_recipe.stdout == "=> ('from the venv', 0)\n", by_recipe.stderr


def test_without_a_workspace_there_is_no_venv() -> None:
    from cantrip_acp.core.definition.circle import Circle

    circle = Circle(CodeMedium(python="venv"), ["done"], {"max_turns": 1})
    with pytest.raises(DefinitionError, match="there is no workspace"):
        circle.medium.check(circle)  # type: ignore[attr-defined]
