"""Worker for modules that an entity wrote: compiles them, lists their public functions, and calls the functions.

The worker handles one module or call at a time, and no code runs between them. The modules are named
``cantrip_acp.hot.*`` only in this process, where the two packages above them are empty. The description of a function
has its signature, its docstring, and the JSON Schema of its arguments. The host does not trust this description: it
reads only the parts that it understands, and checks names itself.
"""

from __future__ import annotations

import builtins
import inspect
import os
import sys
import types
import typing

from .cells import Sources
from .code_worker import _find_packages, _move, _Streams
from .interrupts import Interrupts
from .value_repr import describe, restore_builtins
from .wire import Codec, Wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

globals()["__builtins__"] = dict(vars(builtins))

_OURS = os.path.dirname(__file__)
_LARGEST = 1_048_576
"""The maximum size of a result in bytes of JSON."""
_MOST_TEXT = 12_000


def main(inward: int, outward: int) -> None:
    """Serve the host: read commands from ``inward`` and write to ``outward``, two descriptors. Never returns."""
    interrupts = Interrupts()
    interrupts.begin()
    codec = Codec()
    wire = Wire(_move(inward), _move(outward), codec, interrupts)
    worker = ModuleWorker(wire, codec, interrupts, wire.command())
    wire.send({"t": "ready", "python": sys.version.split()[0], "executable": sys.executable})
    worker.serve()


class ModuleWorker:
    """The loaded modules and their functions."""

    def __init__(self, wire: Wire, codec: Codec, interrupts: Interrupts, settings: dict[str, Any]) -> None:
        self._wire = wire
        self._codec = codec
        self._interrupts = interrupts
        self._streams = _Streams()
        self._sources = Sources()
        self._functions: dict[str, dict[str, ModuleFunction]] = {}
        # There are no gates in this worker, so no code can raise GateError.
        del builtins.GateError  # type: ignore[attr-defined]
        self._builtins = dict(vars(builtins))
        sys.argv[:] = [""]
        sys.modules["__main__"] = type(sys)("__main__")
        _find_packages(settings)
        for name in ("cantrip_acp", "cantrip_acp.hot"):
            self._package(name)

    def _package(self, name: str) -> None:
        if name not in sys.modules:
            package: Any = type(sys)(name)
            package.__path__ = []
            self._put(name, package)

    def _put(self, name: str, module: Any) -> None:
        sys.modules[name] = module
        above, _, last = name.rpartition(".")
        if above:
            setattr(sys.modules[above], last, module)

    def serve(self) -> None:
        """Serve commands. When the host is gone, reading a command ends the process."""
        while True:
            try:
                self._interrupts.end()
                command = self._wire.command()
                work = self._load if command.get("t") == "load" else self._call
                self._answer(command, work)
            except KeyboardInterrupt:
                # The interrupt came after the end of its call.
                continue

    def _answer(self, command: dict[str, Any], work: Any) -> None:
        """Run a command and send the result. Every error that a module raises is reported."""
        self._streams.restore()
        interrupts = self._interrupts
        interrupts.begin()
        said: dict[str, Any] = {}
        try:
            interrupts.running = True
            try:
                said = work(command)
            finally:
                interrupts.running = False
        except ModuleError as problem:
            said = {"error": str(problem)}
        except BaseException as failure:  # noqa: BLE001 - a module may exit, be interrupted, or raise anything
            interrupts.running = False
            said = {"error": self._error_text(failure)}
        restore_builtins(self._builtins)
        interrupts.end()
        self._streams.flush()
        if not self._wire.here:
            os._exit(1)
        error = said.pop("error", None)
        kind = "loaded" if command["t"] == "load" else "answer"
        self._wire.send({"t": kind, "call": command["call"], "error": error and error[:_MOST_TEXT], **said})

    def _error_text(self, failure: BaseException) -> str:
        try:
            self._interrupts.running = True
            try:
                return describe(failure, _OURS)
            finally:
                self._interrupts.running = False
        except BaseException:  # noqa: BLE001 - only the type of the first error is left to report
            self._interrupts.running = False
            return type(failure).__name__

    def _load(self, command: dict[str, Any]) -> dict[str, Any]:
        """Load a module. It replaces a module of the same name only if it can be loaded."""
        name: str = command["module"]
        file = f"<{name}>"
        *above, _ = name.split(".")
        for depth in range(len(above)):
            self._package(".".join(above[: depth + 1]))
        module: Any = type(sys)(name)
        module.__file__ = file
        module.__package__ = ".".join(above)
        before = sys.modules.get(name)
        if hasattr(before, "__path__"):
            # The old module may have submodules. Keep those.
            module.__path__ = []
            vars(module).update({k: v for k, v in vars(before).items() if sys.modules.get(f"{name}.{k}") is v})
        texts = self._sources.all()
        self._sources.add(file, command["source"])
        self._put(name, module)
        try:
            exec(compile(command["source"], file, "exec", dont_inherit=True), vars(module))
            found = module_functions(module, command["taken"])
        except BaseException:
            if before is not None:
                self._put(name, before)
                self._sources.add(file, texts.get(file, ""))
            else:
                sys.modules.pop(name, None)
                vars(sys.modules[".".join(above)]).pop(name.rpartition(".")[2], None)
            raise
        self._functions[name] = {each.name: each for each in found}
        return {"gates": [each.record() for each in found]}

    def _call(self, command: dict[str, Any]) -> dict[str, Any]:
        function = self._functions[command["module"]][command["gate"]]
        result = function.call(command["args"])
        try:
            size = len(self._codec.encode(result))
        except (TypeError, ValueError, RecursionError) as problem:
            return {"error": f"{function.name} returned a value that is not JSON data: {problem}"}
        if size > _LARGEST:
            return {"error": f"{function.name} returned {size:,} bytes of JSON; the limit is {_LARGEST:,}"}
        return {"result": result}


_NAMES: dict[Any, str] = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}
_LISTS = ("Sequence", "MutableSequence", "Collection", "Iterable", "Set")
_MOST_DOC = 4_000
_MOST_DEFAULT = 1_000
_DEEPEST = 6


class ModuleError(Exception):
    """A function of a module cannot be a gate, or there is none. The text says why."""


class ModuleFunction:
    """One function of a module that is offered as a gate."""

    def __init__(self, name: str, function: Any) -> None:
        self.name = name
        self._function = function
        self._signature = inspect.signature(function)
        try:
            hints = typing.get_type_hints(function)
        except Exception:  # noqa: BLE001 - an annotation may be any expression
            hints = {}
        self._parameters = [self._parameter(each, hints) for each in self._signature.parameters.values()]

    def _parameter(self, parameter: inspect.Parameter, hints: dict[str, Any]) -> dict[str, Any]:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise ModuleError(f"function {self.name} takes *args or **kwargs; a gate needs parameters with names")
        made: dict[str, Any] = {
            "name": parameter.name,
            "schema": schema(hints.get(parameter.name)),
            "required": parameter.default is parameter.empty,
        }
        if not made["required"] and _is_small_json(parameter.default):
            made["default"] = parameter.default
        return made

    def record(self) -> dict[str, Any]:
        """The description that is sent to the host."""
        doc = inspect.getdoc(self._function) or ""
        return {"name": self.name, "doc": doc[:_MOST_DOC], "parameters": self._parameters}

    def call(self, args: dict[str, Any]) -> Any:
        """Call the function with the arguments by name. Raises the errors of the function."""
        positional, named = [], {}
        for parameter in self._signature.parameters.values():
            if parameter.name not in args:
                continue
            if parameter.kind is parameter.POSITIONAL_ONLY:
                positional.append(args[parameter.name])
            else:
                named[parameter.name] = args[parameter.name]
        result = self._function(*positional, **named)
        if inspect.iscoroutine(result):
            import asyncio

            result = asyncio.run(result)
        return list(result) if inspect.isgenerator(result) else result


def module_functions(module: types.ModuleType, taken: dict[str, str]) -> list[ModuleFunction]:
    """The functions in ``__all__``, or else all public functions that the module defines.

    ``taken``: the names that cannot be used, each with the reason. Raises `ModuleError`.
    """
    scope = vars(module)
    listed = scope.get("__all__")
    if listed is None:
        names = [n for n, v in scope.items() if n[:1] != "_" and _is_own(v, module.__name__)]
    elif isinstance(listed, (list, tuple)) and all(isinstance(n, str) for n in listed):
        names = list(dict.fromkeys(listed))
    else:
        raise ModuleError("__all__ must be a list of names")
    found = []
    for name in names:
        value = scope.get(name)
        if not isinstance(value, types.FunctionType):
            raise ModuleError(f"__all__ names {name!r}, which is not a function of the module")
        why = taken.get(name) or (
            None if name.isascii() and name[:7] != "cantrip" else "a name must be ASCII and must not begin with cantrip"
        )
        if why is not None:
            raise ModuleError(f"function {name} cannot be a gate: {why}; rename it, or leave it out of __all__")
        found.append(ModuleFunction(name, value))
    if not found:
        raise ModuleError("the module offers no functions: define public functions, or name functions in __all__")
    return found


def _is_own(value: Any, module: str) -> bool:
    return isinstance(value, types.FunctionType) and value.__module__ == module


def schema(hint: Any, depth: int = 0) -> dict[str, Any]:
    """Convert a type hint to the subset of JSON Schema that the host accepts; {} for any other hint."""
    if depth > _DEEPEST:
        return {}
    if isinstance(hint, type) and hint in _NAMES:
        return {"type": _NAMES[hint]}
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return schema(arguments[0], depth)
    if origin is typing.Literal:
        plain = [a for a in arguments if isinstance(a, (str, int, float, bool, type(None)))]
        return {"enum": plain} if len(plain) == len(arguments) else {}
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [schema(a, depth + 1) for a in arguments]}
    kind = origin or hint
    if not isinstance(kind, type):
        return {}
    if issubclass(kind, dict) or kind.__name__ in ("Mapping", "MutableMapping"):
        return {"type": "object"}
    if issubclass(kind, (list, tuple, set, frozenset)) or kind.__name__ in _LISTS:
        items = schema(arguments[0], depth + 1) if arguments else {}
        return {"type": "array", "items": items} if items else {"type": "array"}
    return {}


def _is_small_json(value: Any) -> bool:
    try:
        return len(Codec().encode(value)) <= _MOST_DEFAULT
    except (TypeError, ValueError, RecursionError):
        return False
