"""A protected name that a program could not make or change: the output says why, and says nothing of other failures."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from cantrip_acp import Cantrip, Circle, ScriptedCrystal
from tests.support.fixtures.core import done

pytestmark = pytest.mark.sandbox


def read(folder: Path, medium: str, program: str, **wards: Any) -> str:
    """What an entity reads of one program."""
    script = [{"bash" if medium == "bash" else "code": program}, done()]
    paths = {"bash_writable_paths": ["workspace"], "code_writable_paths": ["workspace"]}
    circle = Circle(medium, ["done"], {"max_turns": 2, **paths, **wards}, workspace=folder)
    cantrip = Cantrip(ScriptedCrystal(script), circle=circle)
    cantrip.cast_sync("Go.")
    output = cantrip.loom.threads()[0].acted[0].observation.output
    assert output is not None
    return f"{output.stdout}\n{output.stderr}\n{output.error or ''}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / ".vscode").mkdir()
    (tmp_path / ".vscode" / "tasks.json").write_text("{}")
    (tmp_path / "locked").mkdir()
    (tmp_path / "plain").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("medium", "program", "name", "reason"),
    [
        ("bash", "echo {} > .vscode/settings.json", ".vscode", "the editor runs the tasks"),
        ("bash", "rm -rf .vscode", ".vscode", "the editor runs the tasks"),
        ("bash", "mv .vscode other; true", ".vscode", "the editor runs the tasks"),
        ("code", "open('.vscode/settings.json', 'w')", ".vscode", "the editor runs the tasks"),
    ],
)
def test_the_output_says_why(folder: Path, medium: str, program: str, name: str, reason: str) -> None:
    found = read(folder, medium, program)
    lines = [line for line in found.splitlines() if line.startswith("cantrip:")]
    assert len(lines) == 1, found
    assert lines[0].startswith(f"cantrip: {name} is protected here, because {reason}")
    assert "only a person changes it" in lines[0]


@pytest.mark.parametrize(
    ("medium", "program", "name", "reason"),
    [
        ("bash", "echo a > .npmrc", ".npmrc", "a build tool reads it for every command"),
        ("bash", "mkdir .cursor && echo made", ".cursor", "a coding agent runs the hooks"),
        ("bash", "git init -q . && git config core.pager evil", ".git", "git of the user could run what it names"),
        ("code", "open('.npmrc', 'w')", ".npmrc", "a build tool reads it for every command"),
        ("code", "import os\nos.makedirs('.vscode.d/.vscode')", ".vscode.d/.vscode", "the editor runs the tasks"),
    ],
)
def test_the_output_says_what_was_moved_away(folder: Path, medium: str, program: str, name: str, reason: str) -> None:
    found = read(folder, medium, program)
    lines = [line for line in found.splitlines() if line.startswith("cantrip:")]
    assert len(lines) == 1, found
    assert lines[0].startswith(f"cantrip: moved away {name} ({reason}")
    assert "the user can keep or drop it: cantrip quarantine keep " in lines[0]
    assert not (folder / name).exists()


@pytest.mark.parametrize(
    ("medium", "program"),
    [
        ("bash", "git init -q . && git add -A && echo made"),
        ("code", "import os; os.system('git init . 2>&1')"),
        ("bash", "echo a > /usr/x; echo b > /etc/passwd; mkdir /new"),
        ("bash", "cat plain; echo x > plain"),
        ("bash", "cat .vscode; ls .vscode; cat .vscode/tasks.json"),
        ("bash", "echo 'Permission denied'; echo .npmrc"),
        ("bash", "cat nothing.npmrc; rm my.git; cat .gitignore"),
        ("bash", "chmod 0 locked; echo x > locked/.npmrc.bak; ls locked; chmod 755 locked"),
        ("bash", "echo fine > notes.txt"),
        ("code", "open('/usr/x', 'w')"),
        ("code", "open('plain')"),
        ("code", "1 / 0"),
    ],
)
def test_no_other_failure_is_explained(folder: Path, medium: str, program: str) -> None:
    assert "cantrip:" not in read(folder, medium, program)


def test_what_a_recipe_allows_is_not_explained(folder: Path) -> None:
    assert "cantrip:" not in read(folder, "bash", "echo a > .npmrc && cat .npmrc", allow_protected=[".npmrc"])
    assert os.path.exists(folder / ".npmrc")
