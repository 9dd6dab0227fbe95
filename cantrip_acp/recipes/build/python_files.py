"""Loads gates and scoring functions from the Python files of a recipe. Paths are relative to the recipe.

Such a file is code of the recipe's owner. It runs on the host when a cantrip is built from a trusted recipe, and
exactly the checked bytes run. Its folder is not on the import path, so it cannot import unchecked files.

For ``gates: [{python: gates.py}]`` the file exports the list ``GATES``, else the names in ``__all__``. Each of them is
a `Gate` or a plain function, which `Gate.of` makes a gate (a function that is not a coroutine function runs in a
thread). Without ``GATES`` and ``__all__``, the file exports every public `Gate` of the module:

    from cantrip_acp import Gate

    @Gate.of
    def count_words(text: str) -> int:
        "Count the words of a text."
        return len(text.split())
"""

from __future__ import annotations

import hashlib
import inspect
import linecache
import os
import stat
import sys
import traceback
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from cantrip_acp.core.errors import DefinitionError
from cantrip_acp.core.scoring import Scorer
from cantrip_acp.gates.contract import Gate
from cantrip_acp.recipes.parse.document import MAX_BYTES

_PREFIX = "_cantrip_gates_"


def load(path: Path, files: Files) -> list[Gate]:
    """The gates of a file, in the file's order. Raises `DefinitionError` with file and line of the error."""
    module = run_file(path, files.read(path))
    found = list(_exported(module, path))
    if not found:
        raise DefinitionError(
            "exports no gate: list functions in GATES = [...], or put @Gate.of before them", where=str(path)
        )
    seen: set[str] = set()
    for gate in found:
        if gate.name in seen:
            raise DefinitionError(f"exports two gates with the name {gate.name!r}", where=str(path))
        seen.add(gate.name)
    return found


def run_file(path: Path, raw: bytes) -> types.ModuleType:
    """Run a trusted file's checked bytes as a module. Raises `DefinitionError` with file and line."""
    # The name is unique, so that it conflicts with no other module. Dataclasses and type hints need it in sys.modules.
    name = _PREFIX + hashlib.sha256(str(path).encode() + b"\0" + raw).hexdigest()[:24]
    module = types.ModuleType(name)
    module.__file__ = str(path)
    linecache.checkcache(str(path))
    before = sys.modules.get(name)
    sys.modules[name] = module
    try:
        code = compile(raw, str(path), "exec", dont_inherit=True)
        exec(code, vars(module))  # noqa: S102 - a trusted recipe's own code, which is what it names the file for
    except (Exception, SystemExit) as error:
        # The file's code may raise any exception.
        if before is None:
            del sys.modules[name]
        else:
            sys.modules[name] = before
        raise DefinitionError(
            f"cannot be loaded: {type(error).__name__}: {error}", where=_where_raised(error, path)
        ) from error
    return module


def _where_raised(error: BaseException, path: Path) -> str:
    """The file, with the line if the error was raised in the file."""
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return f"{path}:{error.lineno or 1}"
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
    return f"{path}:{lines[-1]}" if lines and lines[-1] else str(path)


def _exported(module: types.ModuleType, path: Path) -> Iterator[Gate]:
    scope = vars(module)
    if "GATES" in scope:
        listed = scope["GATES"]
        if not isinstance(listed, list | tuple):
            raise DefinitionError(f"GATES must be a list, not {type(listed).__name__}", where=str(path))
        for index, value in enumerate(listed):
            yield _gate(value, f"GATES[{index}]", path)
    elif "__all__" in scope:
        for name in scope["__all__"]:
            if name not in scope:
                raise DefinitionError(f"__all__ names {name!r}, which the file does not define", where=str(path))
            yield _gate(scope[name], str(name), path)
    else:
        for name, value in scope.items():
            if isinstance(value, Gate) and not name.startswith("_"):
                yield value


def _gate(value: Any, name: str, path: Path) -> Gate:
    if isinstance(value, Gate):
        return value
    if not inspect.isfunction(value):
        raise DefinitionError(f"{name} is neither a Gate nor a function but a {type(value).__name__}", where=str(path))
    where = f"{value.__code__.co_filename}:{value.__code__.co_firstlineno}"
    try:
        return Gate.of(value, blocking=not inspect.iscoroutinefunction(value))
    except DefinitionError as error:
        raise DefinitionError(str(error), where=where) from error
    except (NameError, TypeError) as error:
        # For example, an annotation names something that does not exist.
        raise DefinitionError(f"{value.__name__} cannot be made a gate: {error}", where=where) from error


# A scoring function from a recipe's Python file: ``circle: {score: {python: score.py, at: turn}}``, relative to the
# recipe.
# Like a file of gates, it is the recipe owner's code and runs on the host, for trusted recipes only. It exports one
# function ``score`` of a `Turn` (``at: turn``) or of a `Thread` (``at: cast``); see `cantrip_acp.core.scoring`. For
# example, a score of 1.0 for the turn that terminates, and -0.1 for each other turn.


def load_score(path: Path, files: Files, at: Literal["turn", "cast"]) -> Scorer:
    """The scorer of a file. Raises `DefinitionError` with file and line of the error."""
    function = vars(run_file(path, files.read(path))).get("score")
    if not inspect.isfunction(function):
        what = "defines no function with the name score" if function is None else "has a score that is not a function"
        raise DefinitionError(f"{what}; write: def score({'turn' if at == 'turn' else 'thread'}): ...", where=str(path))
    return Scorer(function, name=f"{path.name}:score", at=at)


# Files of a recipe, each read once: the checked bytes are the bytes that are used.


class Files:
    """Reads files and remembers their bytes."""

    def __init__(self) -> None:
        self._sources: dict[Path, bytes] = {}

    def read(self, path: Path, shown: str | None = None) -> bytes:
        """The content of a regular file. Raises `DefinitionError` with the reason if it cannot be read."""
        key = Path(os.path.realpath(path))
        if key not in self._sources:
            self._sources[key] = _read(path, shown if shown is not None else str(path))
        return self._sources[key]

    def hold(self, path: Path, raw: bytes) -> None:
        """Use ``raw`` as the content of a file, for example the unsaved text in an editor."""
        self._sources[Path(os.path.realpath(path))] = raw


def _read(path: Path, shown: str) -> bytes:
    try:
        # O_NONBLOCK: without it, opening a named pipe would wait for a writer, maybe without end.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise DefinitionError("not a regular file", where=shown)
            raw = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise DefinitionError("no such file", where=shown) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise DefinitionError(f"cannot be read: {reason}", where=shown) from None
    if len(raw) > MAX_BYTES:
        raise DefinitionError(
            f"too large: a recipe and each file that it names may have at most {MAX_BYTES:,} bytes", where=shown
        )
    return raw
