"""Demo setup: copies the sample project with a short git history, and puts the recipe beside it."""

from __future__ import annotations

import importlib.resources
import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

INTENT: Final = "The tests fail. Find out why, mend it, and show that they pass."

SUSPECT: Final = "pennywise/split.py"
"""The file with the bug, and the only one that the demo changes."""

_HISTORY: Final = (
    (
        "Count money in whole pennies",
        ["README.md", "Makefile", ".gitignore", "pennywise/__init__.py", "pennywise/money.py"],
    ),
    ("Split a bill evenly, or by weight", ["pennywise/split.py", "pennywise/__main__.py"]),
    ("Test that shares add up", ["tests"]),
)
_MILLISECONDS_A_WORD: Final = 45


@dataclass(frozen=True)
class Stage:
    """`project` is the project's copy, `recipe` the recipe to run on it; both are below one temporary folder."""

    project: Path
    recipe: Path
    script: tuple[Mapping[str, Any], ...]

    def files(self) -> dict[str, bytes]:
        """The project's files by path, without `.git` and `__pycache__`."""
        found = {}
        for folder, folders, names in os.walk(self.project):
            folders[:] = [name for name in folders if name not in (".git", "__pycache__")]
            for name in names:
                path = Path(folder, name)
                found[str(path.relative_to(self.project))] = path.read_bytes()
        return found


def set_stage(root: Path, *, slow: bool = False) -> Stage:
    """Copy everything below `root`, an empty folder. With `slow` the script speaks word by word, as a model does."""
    project = root / "pennywise"
    with importlib.resources.as_file(importlib.resources.files("cantrip_acp.demo")) as data:
        shutil.copytree(data / "project", project, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
        shutil.copy(data / "demo.cantrip.yaml", root)
        responses = _read_script(data / "session.yaml")
    (project / "gitignore").rename(project / ".gitignore")
    # JSON is also YAML. The script is written anew because its speed may differ.
    paced = [_paced(response) if slow else response for response in responses]
    (root / "session.yaml").write_text(json.dumps(paced, indent=1, ensure_ascii=False), encoding="utf-8")
    _commit(project)
    return Stage(project, root / "demo.cantrip.yaml", tuple(responses))


def _read_script(file: Path) -> list[dict[str, Any]]:
    from ruamel.yaml import YAML

    with file.open(encoding="utf-8") as stream:
        script: list[dict[str, Any]] = YAML(typ="safe", pure=True).load(stream)
    return script


def _paced(response: Mapping[str, Any]) -> dict[str, Any]:
    words = str(response.get("content", "")).split(" ")
    chunks = [word + " " for word in words[:-1]] + words[-1:]
    return {**response, "chunks": chunks, "delay_ms": _MILLISECONDS_A_WORD}


def _commit(project: Path) -> None:
    """Make a history of three commits, so that `git log` shows something. Without git there is none."""
    git = shutil.which("git")
    if git is None:
        return
    environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(project.parent),
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_SYSTEM": os.devnull,
        "LC_ALL": "C",
    }
    for person in ("AUTHOR", "COMMITTER"):
        environment |= {f"GIT_{person}_NAME": "Penny Wise", f"GIT_{person}_EMAIL": "penny@example.org"}

    def run(*arguments: str, when: str = "") -> None:
        dated = {"GIT_AUTHOR_DATE": when, "GIT_COMMITTER_DATE": when} if when else {}
        subprocess.run(
            [git, "-c", "init.defaultBranch=main", *arguments],
            cwd=project,
            env=environment | dated,
            check=True,
            capture_output=True,
            timeout=30,
        )

    run("init", "--quiet")
    for day, (message, paths) in enumerate(_HISTORY, 11):
        run("add", "--", *paths)
        run("commit", "--quiet", "--message", message, when=f"2026-03-{day}T10:00:00Z")
