"""Files and folders that a recipe names: lists them and reports what is wrong with them. None of them is executed."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cantrip_acp.lsp.recipes.lint import LintMessage
from cantrip_acp.recipes.build.python_files import Files
from cantrip_acp.recipes.parse import names
from cantrip_acp.recipes.parse.problem_positions import KeyPath, Mend
from cantrip_acp.types.errors import DefinitionError


def named(data: Any) -> Iterator[tuple[KeyPath, str, str]]:
    """Every file that a recipe names relative to its own folder: key path, name, and kind (prompt, script or python)."""
    if not isinstance(data, dict):
        return
    call, circle = data.get("call"), data.get("circle")
    if isinstance(call, dict) and isinstance(call.get("system_prompt_file"), str):
        yield ("call", "system_prompt_file"), call["system_prompt_file"], "prompt"
    if isinstance(data.get("result_schema"), str):
        yield ("result_schema",), data["result_schema"], "schema"
    listed: list[tuple[KeyPath, Any]] = [(("crystal",), data.get("crystal"))]
    others = data.get("crystals")
    listed += [(("crystals", name), each) for name, each in others.items()] if isinstance(others, dict) else []
    for path, crystal in listed:
        if isinstance(crystal, str) and crystal.startswith("scripted:"):
            yield path, crystal.removeprefix("scripted:"), "script"
        elif isinstance(crystal, dict) and isinstance(crystal.get("script"), str):
            yield (*path, "script"), crystal["script"], "script"
    if not isinstance(circle, dict):
        return
    listed_gates = circle.get("gates")
    for index, gate in enumerate(listed_gates if isinstance(listed_gates, list) else ()):
        if isinstance(gate, dict) and isinstance(gate.get("python"), str):
            yield ("circle", "gates", index, "python"), gate["python"], "python"
    score = circle.get("score")
    if isinstance(score, dict) and isinstance(score.get("python"), str):
        yield ("circle", "score", "python"), score["python"], "python"


def roots(data: Any) -> Iterator[tuple[KeyPath, str]]:
    """Every folder that limits a file gate, relative to the session's folder."""
    circle = data.get("circle") if isinstance(data, dict) else None
    listed = circle.get("gates") if isinstance(circle, dict) else None
    for index, gate in enumerate(listed if isinstance(listed, list) else ()):
        if isinstance(gate, dict) and gate.get("name") in names.FILE_GATES and isinstance(gate.get("root"), str):
            yield ("circle", "gates", index, "root"), gate["root"]


def path_beside(folder: Path, name: str) -> Path:
    """The path of a file that a recipe in ``folder`` names."""
    return Path(os.path.normpath(folder / os.path.expanduser(name)))


def problems(data: Mapping[str, Any], folder: Path, workspace: Path) -> Iterator[LintMessage]:
    """The problems of named files: missing, or not usable. ``folder`` is the recipe's folder, ``workspace`` the one to cast
    it in."""
    for path, name, kind in named(data):
        if not name.strip() or "\0" in name:
            continue
        file = path_beside(folder, name)
        if not file.exists():
            yield LintMessage(path, "missing-file", f"there is no file {file}", "error", mend=Mend("create"))
        elif not file.is_file():
            yield LintMessage(path, "missing-file", f"{file} is not a file", "error")
        elif kind == "python":
            yield from _python(path, file)
    for path, name in roots(data):
        if not name.strip() or "\0" in name:
            continue
        root = path_beside(workspace, "." if name == "workspace" else name)
        if not root.is_dir():
            what = "is not a folder" if root.exists() else "is not there"
            text = f"the folder {root} {what}; roots are relative to the session's folder"
            yield LintMessage(path, "missing-file", text, mend=None if root.exists() else Mend("create"))


def _python(path: KeyPath, file: Path) -> Iterator[LintMessage]:
    try:
        source = Files().read(file)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(source, str(file), "exec", dont_inherit=True)
    except DefinitionError as error:
        yield LintMessage(path, "broken-file", str(error), "error")
    except SyntaxError as error:
        yield LintMessage(path, "broken-file", f"{file.name}, line {error.lineno or 1}: {error.msg}", "error")
    except ValueError as error:
        yield LintMessage(path, "broken-file", f"{file.name}, line 1: {error}", "error")
