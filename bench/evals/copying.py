"""The copy that is graded: what an entity left, as plain files and folders, with what the grader puts back.

What was left is taken as hostile: a link, a pipe or a program in the place of a folder must not lead the grader, which runs
outside of the sandbox, out of the copy.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path

from bench.evals.task import Task, put

_STEERING = frozenset(
    {
        "conftest.py",
        "pytest.ini",
        ".pytest.ini",
        "pytest.toml",
        ".pytest.toml",
        "tox.ini",
        "setup.cfg",
        "pyproject.toml",
    }
    | {"package.json", ".npmrc", "Makefile", "makefile", "GNUmakefile", "sitecustomize.py", "usercustomize.py"}
)
"""Files that say how tests are run."""
_LEFT_OUT = frozenset({".git", "__pycache__", "node_modules", ".venv", "venv", "env", ".env"})
"""Folders that are made by tools; an interpreter of the entity's making is none to judge with."""


def copied(task: Task, workspace: Path, copy: Path) -> None:
    """Make the copy, with what steers a test runner as the task has it, and its hidden tests in their places."""
    _tree(workspace, copy)
    ours = {name: text for name, text in task.files.items() if Path(name).name in _STEERING}
    lay({**ours, **task.hidden}, copy)


def lay(files: Mapping[str, str], copy: Path) -> None:
    """Write files into the copy, whatever stands in their places or on the way to them."""
    for name in files:
        way = copy
        parts = Path(name).parts
        for place, part in enumerate(parts, 1):
            way = way / part
            if way.is_symlink() or (way.exists() and way.is_dir() is (place == len(parts))):
                shutil.rmtree(way) if way.is_dir() and not way.is_symlink() else way.unlink()
    put(files, copy)


def _tree(source: Path, target: Path) -> None:
    """Files and folders, and no link, pipe, socket or device; nothing that steers, and no tool's folder."""
    target.mkdir(parents=True)
    waiting = [(str(source), str(target))]
    while waiting:
        here, there = waiting.pop()
        for entry in os.scandir(here):
            mode = entry.stat(follow_symlinks=False).st_mode
            place = os.path.join(there, entry.name)
            if stat.S_ISDIR(mode) and entry.name not in _LEFT_OUT:
                os.mkdir(place)
                waiting.append((entry.path, place))
            elif stat.S_ISREG(mode) and entry.name not in _STEERING:
                shutil.copy(entry.path, place, follow_symlinks=False)
