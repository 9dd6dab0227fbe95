"""`Recipe`, a checked recipe file, and functions that find and load recipes by name or path."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NoReturn

from cantrip_acp.files.paths import config_dir
from cantrip_acp.gates.confinement import one_line
from cantrip_acp.recipes import cache
from cantrip_acp.recipes.build.python_files import Files
from cantrip_acp.recipes.parse.document import SUFFIXES, TOML, Document, parse
from cantrip_acp.recipes.parse.problem_positions import KeyPath, Problem
from cantrip_acp.types.errors import DefinitionError, RecipeError

BUILT_IN = Path(__file__).with_name("builtin")

Source = Literal["path", "workspace", "user", "built-in"]


@dataclass(frozen=True, eq=False)
class Recipe:
    """One valid recipe file.

    ``file`` is its name in messages. ``data`` is the result of `parse.validation`. It may contain secrets (a crystal's
    headers), so no repr shows it, and a recipe cannot be pickled. ``files`` caches the bytes of the files that were
    read, so that trust is checked on the same bytes that are used.
    """

    name: str
    path: Path
    file: str
    source: Source
    data: Mapping[str, Any] = field(repr=False)
    raw: bytes = field(repr=False)
    files: Files = field(repr=False)
    state_dir: Path | None = field(default=None, repr=False)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a recipe may contain secrets, so it cannot be pickled; load it again from its path")

    @property
    def description(self) -> str:
        return str(self.data.get("description", ""))

    @cached_property
    def document(self) -> Document:
        """The text with source positions. It is parsed again if the data came from the cache."""
        return parse(self.raw, self.path, file=self.file)

    def problem(self, path: KeyPath, message: str, *, at_key: bool = False, rule: str = "schema") -> Problem:
        """A problem at a key, with file, line and column."""
        return self.document.problem(path, message, at_key=at_key, rule=rule)

    def error(self, path: KeyPath, message: str, *, at_key: bool = False, rule: str = "schema") -> RecipeError:
        return RecipeError(problems=[self.problem(path, message, at_key=at_key, rule=rule)])

    def path_of(self, name: str) -> Path:
        return self.path.parent / Path(name).expanduser()

    def independent(self) -> Recipe:
        """The recipe for one cast of a batch: it reads nothing from other sessions and leaves nothing for them."""
        memory = self.data.get("memory", {})
        return replace(self, data={**self.data, "memory": {**memory, "record": False, "sessions": 0, "alone": True}})


def is_path(name_or_path: str | os.PathLike[str]) -> bool:
    """Whether this is a file path, not the name of a recipe."""
    if not isinstance(name_or_path, str):
        return True
    separators = (os.sep, *([os.altsep] if os.altsep else []))
    return any(s in name_or_path for s in separators) or name_or_path.endswith((".yaml", ".yml", ".toml"))


def load(
    name_or_path: str | os.PathLike[str],
    workspace: Path | None = None,
    *,
    state_dir: Path | None = None,
    files: Files | None = None,
) -> Recipe:
    """See `recipes.load`."""
    files = files or Files()
    if is_path(name_or_path):
        path = Path(name_or_path).expanduser()
        return read(path, "path", files, file=str(name_or_path), state_dir=state_dir)
    name = str(name_or_path)
    for source, folder in folders(workspace):
        for suffix in SUFFIXES:
            path = folder / f"{name}{suffix}"
            if _plain_name(name) and path.is_file():
                return read(path, source, files, state_dir=state_dir)
        old = folder / f"{name}.cantrip.toml"
        if _plain_name(name) and old.is_file():
            raise DefinitionError(TOML.replace("FILE", str(old)), where=str(old))
    raise _not_found(name, workspace)


def built_in(name: str, *, state_dir: Path | None = None) -> Recipe:
    """Load a recipe of the package. A recipe of the workspace with the same name is ignored."""
    return read(BUILT_IN / f"{name}.cantrip.yaml", "built-in", Files(), state_dir=state_dir)


def folders(workspace: Path | None) -> list[tuple[Source, Path]]:
    """The folders in which names are searched, in order."""
    found: list[tuple[Source, Path]] = [("user", config_dir()), ("built-in", BUILT_IN)]
    return [("workspace", workspace / ".cantrip"), *found] if workspace is not None else found


def names(workspace: Path | None) -> dict[str, tuple[Source, Path]]:
    """Every recipe that can be used by name in this workspace: name to source and file. The first match is used."""
    found: dict[str, tuple[Source, Path]] = {}
    for source, folder in folders(workspace):
        for path in recipe_files(folder):
            found.setdefault(stem(path), (source, path))
    return found


def recipe_files(folder: Path) -> list[Path]:
    """The recipes directly in a folder, sorted by name. Empty if the folder cannot be read."""
    try:
        return sorted(p for p in folder.iterdir() if p.name.endswith(SUFFIXES) and stem(p) and p.is_file())
    except OSError:
        return []


def stem(path: Path) -> str:
    """The file name of a recipe without its suffix."""
    for suffix in (*SUFFIXES, ".yaml", ".yml", ".toml"):
        if path.name.endswith(suffix):
            return path.name.removesuffix(suffix)
    return path.name


def read(path: Path, source: Source, files: Files, *, file: str | None = None, state_dir: Path | None = None) -> Recipe:
    """Read a recipe file. Raises `DefinitionError` if it cannot be read, `RecipeError` if it is not valid."""
    shown = one_line(file if file is not None else str(path))
    if path.is_dir():
        raise DefinitionError("this is a folder; name a recipe file in it", where=shown)
    raw = files.read(path, shown)
    data = cache.canonical("recipe", raw, path, shown, state_dir)
    name = data.get("name") or stem(path)
    return Recipe(str(name), path, shown, source, data, raw, files, state_dir)


def _plain_name(name: str) -> bool:
    # A name longer than any file name would cause an error instead of "not found".
    short = len(name.encode("utf-8", "replace")) <= 200
    return bool(name) and short and not name.startswith(".") and "\0" not in name


def _not_found(name: str, workspace: Path | None) -> DefinitionError:
    known = names(workspace)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    looked = ", ".join("the built-in recipes" if s == "built-in" else str(f) for s, f in folders(workspace))
    return DefinitionError(
        f"no recipe is named {name!r}{hint} (looked in {looked}; known: {', '.join(sorted(known)) or 'none'}). "
        "To name a file, write its ending or a slash, such as ./word-count.cantrip.yaml"
    )
