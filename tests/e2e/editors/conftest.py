"""Editors, a folder to open in them, and the files of ``editors/`` laid where a user would lay them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.editors import debian_packages as debian
from tests.e2e.editors.editor_processes import Emacs, Home, Neovim

RECIPE = """\
name: count
description: Counts words.
crystal: {provider: scripted, script: count.script.yaml}
call:
  system_prompt: You count words.
circle:
  medium: conversation
  gates: [done, list_dir]
  wards:
    - max_turns: 4
"""
SCRIPT = """\
responses:
  - {content: Let me look., tool_calls: [{gate: list_dir, args: {path: .}}]}
  - {tool_calls: [{gate: done, args: {answer: three words}}]}
"""
BROKEN = RECIPE.replace("medium: conversation", "medium: conversatoin").replace("name: count\n", "name: broken\n")
SLOW_SCRIPT = """\
responses:
  - {content: One., tool_calls: [{gate: list_dir, args: {path: .}}], delay_ms: 60000}
  - {tool_calls: [{gate: done, args: {answer: late}}]}
"""


@pytest.fixture(scope="session")
def editors() -> debian.Root:
    """Current editors; where they cannot be had, the tests that want them are skipped and say why."""
    try:
        return debian.root()
    except debian.Unavailable as why:
        pytest.skip(str(why))


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A folder with recipes: one that works, one that is broken, a slow one."""
    folder = tmp_path / "project"
    (folder / ".git").mkdir(parents=True)
    (folder / "count.cantrip.yaml").write_text(RECIPE)
    (folder / "count.script.yaml").write_text(SCRIPT)
    (folder / "broken.cantrip.yaml").write_text(BROKEN)
    (folder / "slow.cantrip.yaml").write_text(RECIPE.replace("count.script", "slow.script"))
    (folder / "slow.script.yaml").write_text(SLOW_SCRIPT)
    return folder


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """Somebody's home folder, with nothing in it yet."""
    return Home(tmp_path / "home")


@pytest.fixture
def neovim(editors: debian.Root, home: Home, workspace: Path) -> Neovim:
    return Neovim(editors, home, workspace)


@pytest.fixture
def emacs(editors: debian.Root, home: Home, workspace: Path) -> Emacs:
    return Emacs(editors, home, workspace)
