"""A task: a small repository, what is asked, and how one sees whether it was done. One YAML file each, in ``tasks/``."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

FOLDER = Path(__file__).with_name("tasks")
KINDS = ("bug", "feature", "refactor", "question")
CHECKS = ("answer", "answer_lacks", "has", "lacks", "unchanged", "missing", "lines_at_most")
_KEYS = {"kind", "intent", "files", "hidden", "runner", "needs", "checks", "recorded", "children"}


@dataclass(frozen=True, slots=True)
class Task:
    """``files`` is the repository, ``hidden`` what the grader lays over it: tests that the entity never sees.

    ``checks`` is a list of mappings of one check to its value (`grading`), ``recorded`` a session that does the task, as a
    scripted crystal's responses. ``needs`` names programs without which the task is left out.
    """

    name: str
    kind: str
    intent: str
    files: Mapping[str, str]
    hidden: Mapping[str, str]
    runner: str | None
    needs: Sequence[str]
    checks: Sequence[Mapping[str, Any]]
    recorded: Sequence[Mapping[str, Any]]
    children: Sequence[Sequence[Mapping[str, Any]]]

    def lay(self, where: Path) -> None:
        """Make the repository: its files, in one commit of git's."""
        put(self.files, where)
        env = {
            "PATH": os.environ["PATH"],
            "HOME": "/nonexistent",
            "GIT_CONFIG_NOSYSTEM": "1",
            **{
                f"GIT_{who}_{what}": "evals@example.org"
                for who in ("AUTHOR", "COMMITTER")
                for what in ("NAME", "EMAIL")
            },
        }
        for words in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-qm", "The beginning"]):
            subprocess.run(["git", *words], cwd=where, env=env, check=True, capture_output=True)


def put(files: Mapping[str, str], where: Path) -> None:
    """Write files below a folder."""
    for name, text in files.items():
        path = where / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def read(path: Path) -> Task:
    """The task of a file. Raises ValueError with the file's name for what is none."""
    data = YAML(typ="safe").load(path.read_text(encoding="utf-8"))
    name = path.name.removesuffix(".yaml")
    if not isinstance(data, dict):
        raise ValueError(f"{path}: a task is a mapping")
    unknown = sorted(set(data) - _KEYS)
    missing = sorted({"kind", "intent", "files", "checks"} - set(data))
    if unknown or missing:
        raise ValueError(
            f"{path}: unknown {', '.join(unknown) or 'nothing'}; missing {', '.join(missing) or 'nothing'}"
        )
    if data["kind"] not in KINDS:
        raise ValueError(f"{path}: kind is one of {', '.join(KINDS)}, not {data['kind']!r}")
    for check in data["checks"]:
        if not isinstance(check, dict) or len(check) != 1 or next(iter(check)) not in CHECKS:
            raise ValueError(f"{path}: a check is one of {', '.join(CHECKS)}, not {check!r}")
    return Task(
        name=name,
        kind=data["kind"],
        intent=data["intent"].strip(),
        files=data["files"],
        hidden=data.get("hidden") or {},
        runner=data.get("runner"),
        needs=data.get("needs") or (),
        checks=data["checks"],
        recorded=data.get("recorded") or (),
        children=data.get("children") or (),
    )


def tasks(only: Sequence[str] = (), folder: Path = FOLDER) -> list[Task]:
    """All tasks, or those whose name begins with one of ``only``. Raises ValueError where there is none."""
    found = [read(path) for path in sorted(folder.glob("*.yaml"))]
    chosen = [task for task in found if not only or any(task.name.startswith(word) for word in only)]
    if not chosen:
        raise ValueError(f"no task is named so; there are {', '.join(task.name for task in found) or 'none'}")
    return chosen
