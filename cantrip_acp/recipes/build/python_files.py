"""Loads gates and scoring functions from the Python files of a recipe. Paths are relative to the recipe.

Such a file is code of the recipe's owner. It runs on the host when a cantrip is built from a trusted recipe, and
exactly the checked bytes run. Its folder is not on the import path. It may import modules and packages of its folder:
`imported` finds them in its text, they are read and trusted like the file itself, and an import statement gets those
bytes. A module that only ``importlib`` would find there is not found.

For ``gates: [{python: gates.py}]`` the file exports the list ``GATES``, else the names in ``__all__``. Each of them is
a `Gate` or a function, which becomes a gate (a function that is not a coroutine function runs in a thread). Without
``GATES`` and ``__all__``, the file exports every public `Gate` and every public function with the decorator `gate`:

    from cantrip_acp import gate

    @gate
    def count_words(text: str) -> int:
        "Count the words of a text."
        return len(text.split())
"""

from __future__ import annotations

import ast
import builtins
import hashlib
import inspect
import linecache
import os
import stat
import sys
import traceback
import types
from collections.abc import Iterator, Mapping, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any, Literal

from cantrip_acp.core.scoring import Scorer
from cantrip_acp.gates.contract import Gate
from cantrip_acp.gates.function_gates import gate_options, is_function, is_marked
from cantrip_acp.recipes.parse.document import MAX_BYTES
from cantrip_acp.types.errors import DefinitionError

_PREFIX = "_cantrip_gates_"
_PACKAGE = "__init__.py"


def load(path: Path, files: Files) -> list[Gate]:
    """The gates of a file, in the file's order. Raises `DefinitionError` with file and line of the error."""
    module = run_file(path, files)
    found = list(_exported(module, path))
    if not found:
        raise DefinitionError(
            "exports no gate: list functions in GATES = [...], or put @gate before them", where=str(path)
        )
    seen: set[str] = set()
    for gate in found:
        if gate.name in seen:
            raise DefinitionError(f"exports two gates with the name {gate.name!r}", where=str(path))
        seen.add(gate.name)
    return found


def run_file(path: Path, files: Files) -> types.ModuleType:
    """Run a trusted file's checked bytes as a module. Raises `DefinitionError` with file and line."""
    raw = files.read(path)
    beside = dict(imported(path, files))
    # The name is unique, so that it conflicts with no other module. Dataclasses and type hints need it in sys.modules.
    digest = hashlib.sha256(str(path).encode() + b"\0" + raw)
    for source in beside.values():
        digest.update(hashlib.sha256(files.read(source)).digest())
    name = _PREFIX + digest.hexdigest()[:24]
    module = types.ModuleType(name)
    before = {key: sys.modules.pop(key) for key in (name, *(f"{name}.{each}" for each in beside)) if key in sys.modules}
    module.__file__ = str(path)
    finder = _Beside(name, {each: (source, files.read(source)) for each, source in beside.items()})
    if beside:
        finder.install()
        # With a path the module is a package, whose modules are those beside it.
        module.__package__, module.__path__ = name, []
    sys.modules[name] = module
    try:
        finder.run(module, path, raw)
    except (Exception, SystemExit) as error:
        # The file's code may raise any exception.
        for key in [key for key in sys.modules if key == name or key.startswith(f"{name}.")]:
            del sys.modules[key]
        sys.modules.update(before)
        raise DefinitionError(
            f"cannot be loaded: {type(error).__name__}: {error}", where=_where_raised(error, path)
        ) from error
    return module


class _Beside:
    """Imports the modules beside a file as modules of ``package``, from bytes that were read before.

    So two recipes can have modules of the same name, and nothing is added to the import path. The class is a finder and a
    loader without the base classes of `importlib.abc`, whose import takes several milliseconds.
    """

    def __init__(self, package: str, sources: Mapping[str, tuple[Path, bytes]]) -> None:
        self.package = package
        self._sources = sources
        self._scope = {**vars(builtins), "__import__": self._import}

    def install(self) -> None:
        """Register this finder, in place of an earlier one of the same package."""
        others = [each for each in sys.meta_path if not (isinstance(each, _Beside) and each.package == self.package)]
        sys.meta_path[:] = [*others, self]

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, name = fullname.partition(".")
        if package != self.package or name not in self._sources:
            return None
        source, _ = self._sources[name]
        loader: Any = self
        spec = ModuleSpec(fullname, loader, origin=str(source), is_package=source.name == _PACKAGE)
        spec.has_location = True
        return spec

    def create_module(self, spec: ModuleSpec) -> types.ModuleType | None:
        """Return None: Python makes its usual module."""
        return None

    def exec_module(self, module: types.ModuleType) -> None:
        self.run(module, *self._sources[module.__name__.partition(".")[2]])

    def run(self, module: types.ModuleType, path: Path, raw: bytes) -> None:
        """Run the bytes of a file in its module."""
        linecache.checkcache(str(path))
        vars(module)["__builtins__"] = self._scope
        code = compile(raw, str(path), "exec", dont_inherit=True)
        exec(code, vars(module))  # noqa: S102 - a trusted recipe's own code, which is what it names the file for

    def _import(
        self,
        name: str,
        globals: Mapping[str, Any] | None = None,  # noqa: A002 - the names of `__import__`
        locals: Mapping[str, Any] | None = None,  # noqa: A002
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> types.ModuleType:
        """The ``__import__`` of the files: a name of the folder comes before an installed one, as in a script."""
        first = name.partition(".")[0]
        if level or first not in self._sources:
            return builtins.__import__(name, globals, locals, fromlist or (), level)
        found = builtins.__import__(f"{self.package}.{name}", globals, locals, fromlist or (), 0)
        return found if fromlist else sys.modules[f"{self.package}.{first}"]


def imported(path: Path, files: Files) -> Iterator[tuple[str, Path]]:
    """The modules of a file's folder that it imports, directly and through each other: name and file.

    Import statements at any place of the text count. A file that cannot be read or parsed imports nothing: the error is
    reported when it runs.
    """
    folder, seen = path.parent, set[str]()
    waiting: list[tuple[str, Path]] = [("", path)]
    while waiting:
        name, file = waiting.pop()
        package = name if file.name == _PACKAGE or not name else name.rpartition(".")[0]
        for wanted in _import_names(file, files, package):
            parts = wanted.split(".")
            for end in range(1, len(parts) + 1):
                part = ".".join(parts[:end])
                source = _source(folder.joinpath(*parts[:end]))
                if source is None:
                    break
                if part not in seen:
                    seen.add(part)
                    waiting.append((part, source))
                    yield part, source


def _source(place: Path) -> Path | None:
    return next((file for file in (place / _PACKAGE, place.with_name(f"{place.name}.py")) if file.is_file()), None)


def _import_names(path: Path, files: Files, package: str) -> Iterator[str]:
    """Every name that could be a module in the import statements of a file, relative to the folder of the gate file."""
    try:
        tree = ast.parse(files.read(path))
    except (DefinitionError, SyntaxError, ValueError, RecursionError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".") if node.level and package else []
            if node.level - 1 > len(above):
                continue
            start = [*above[: len(above) - (node.level - 1)], *(node.module or "").split(".")]
            base = ".".join(part for part in start if part)
            yield from ([base] if base else [])
            yield from (f"{base}.{alias.name}".lstrip(".") for alias in node.names if alias.name != "*")


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
            if (isinstance(value, Gate) or is_marked(value)) and not name.startswith("_"):
                yield _gate(value, name, path)


def _gate(value: Any, name: str, path: Path) -> Gate:
    if isinstance(value, Gate):
        return value
    if not is_function(value):
        raise DefinitionError(f"{name} is neither a Gate nor a function but a {type(value).__name__}", where=str(path))
    try:
        return Gate.of(value, **gate_options(value))
    except DefinitionError as error:
        where = f"{value.__code__.co_filename}:{value.__code__.co_firstlineno}"
        raise DefinitionError(str(error), where=where) from error


# A scoring function from a recipe's Python file: ``circle: {score: {python: score.py, at: turn}}``, relative to the
# recipe.
# Like a file of gates, it is the recipe owner's code and runs on the host, for trusted recipes only. It exports one
# function ``score`` of a `Turn` (``at: turn``) or of a `Thread` (``at: cast``); see `cantrip_acp.core.scoring`. For
# example, a score of 1.0 for the turn that terminates, and -0.1 for each other turn.


def load_score(path: Path, files: Files, at: Literal["turn", "cast"]) -> Scorer:
    """The scorer of a file. Raises `DefinitionError` with file and line of the error."""
    function = vars(run_file(path, files)).get("score")
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
