"""Gates from a recipe's Python file: ``gates: [{python: gates.py}]``, the path relative to the recipe.

The file is code of the recipe's owner and runs on the host, when a cantrip is built of a recipe that trust has let pass;
the bytes that run are those that were judged. It stands alone: its folder is not on the import path, so nothing beside it
that nobody judged comes with it.

What it exports: the list ``GATES`` where there is one, else the names in ``__all__``, each a `Gate` or a plain function (made
a gate by `Gate.of`; one that is not a coroutine runs in a thread); where there is neither, every public `Gate` of the module:

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
import sys
import traceback
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cantrip_acp.core.errors import DefinitionError
from cantrip_acp.gates.contract import Gate
from cantrip_acp.recipes.files import Files

_PREFIX = "_cantrip_gates_"


def load(path: Path, files: Files) -> list[Gate]:
    """The gates of a file, in its order. Raises `DefinitionError` with the file and line of what is wrong."""
    module = run_file(path, files.read(path))
    found = list(_exported(module, path))
    if not found:
        raise DefinitionError(
            "exports no gate: list functions in GATES = [...], or put @Gate.of before them", where=str(path)
        )
    seen: set[str] = set()
    for gate in found:
        if gate.name in seen:
            raise DefinitionError(f"exports two gates of the name {gate.name!r}", where=str(path))
        seen.add(gate.name)
    return found


def run_file(path: Path, raw: bytes) -> types.ModuleType:
    """The module of a trusted file, from the bytes that were judged. Raises `DefinitionError` with file and line."""
    # A name of its own, so that it stands in nobody's way and nobody in its; and known by it while it lives, since
    # dataclasses and type hints look there.
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
        # A stranger's module may raise anything.
        if before is None:
            del sys.modules[name]
        else:
            sys.modules[name] = before
        raise DefinitionError(
            f"cannot be loaded: {type(error).__name__}: {error}", where=_place(error, path)
        ) from error
    return module


def _place(error: BaseException, path: Path) -> str:
    """The file, and its line where the error came from there."""
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
                raise DefinitionError(f"__all__ names {name!r}, which is not there", where=str(path))
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
        # An annotation that names what is not there.
        raise DefinitionError(f"{value.__name__} cannot be made a gate: {error}", where=where) from error
