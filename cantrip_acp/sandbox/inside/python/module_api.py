"""API of a module: its public functions with signature, docstring, and the JSON Schema of their arguments.

The host does not trust this list: it reads only what it understands, and checks names itself.
"""

from __future__ import annotations

import builtins
import inspect
import types
import typing

from .wire import Codec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

globals()["__builtins__"] = dict(vars(builtins))

_NAMES: dict[Any, str] = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}
_LISTS = ("Sequence", "MutableSequence", "Collection", "Iterable", "Set")
_MOST_DOC = 4_000
_MOST_DEFAULT = 1_000
_DEEPEST = 6


class OfferError(Exception):
    """A module's list of functions is invalid; the text says why."""


class Offered:
    """One function. ``call`` takes its arguments as a mapping."""

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
            raise OfferError(f"function {self.name} takes *args or **kwargs; a gate names its parameters")
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
        """Call the function. Raises what it raises."""
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


def offers(module: types.ModuleType, taken: dict[str, str]) -> list[Offered]:
    """The functions in ``__all__``, else each public function defined in the module.

    ``taken`` are names that cannot be used, with the reasons. Raises `OfferError`.
    """
    scope = vars(module)
    listed = scope.get("__all__")
    if listed is None:
        names = [n for n, v in scope.items() if n[:1] != "_" and _is_own(v, module.__name__)]
    elif isinstance(listed, (list, tuple)) and all(isinstance(n, str) for n in listed):
        names = list(dict.fromkeys(listed))
    else:
        raise OfferError("__all__ must be a list of names")
    found = []
    for name in names:
        value = scope.get(name)
        if not isinstance(value, types.FunctionType):
            raise OfferError(f"__all__ names {name!r}, which is no function of the module")
        why = taken.get(name) or (
            None if name.isascii() and name[:7] != "cantrip" else "names are ASCII, and not cantrip…"
        )
        if why is not None:
            raise OfferError(f"function {name} cannot be a gate: {why}; rename it, or leave it out of __all__")
        found.append(Offered(name, value))
    if not found:
        raise OfferError("the module offers nothing: define public functions, or name functions in __all__")
    return found


def _is_own(value: Any, module: str) -> bool:
    return isinstance(value, types.FunctionType) and value.__module__ == module


def schema(hint: Any, depth: int = 0) -> dict[str, Any]:
    """Convert a type hint to the small JSON Schema subset of the host; {} for anything else."""
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
