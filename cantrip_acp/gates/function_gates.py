"""Gates from functions: the decorator `gate`, and the schema of a function's parameters."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypedDict, TypeVar, Unpack, overload

from cantrip_acp.text.defaults import name_of
from cantrip_acp.text.python_types import PythonType
from cantrip_acp.types.errors import DefinitionError, GateError

_OPTIONS = "__cantrip_gate__"
"""The attribute of a decorated function: the options of its gate."""

Function = TypeVar("Function", bound=Callable[..., Any])
Made = TypeVar("Made")


class GateOptions(TypedDict, total=False):
    """The options of `gate`. See the fields of `Gate`."""

    name: str
    description: str
    pure: bool
    writes: bool
    kind: str
    ephemeral: bool | Literal["after_use"]
    blocking: bool


@overload
def gate(function: Function, /) -> Function: ...
@overload
def gate(**options: Unpack[GateOptions]) -> Callable[[Function], Function]: ...
def gate(function: Any = None, /, **options: Any) -> Any:
    """Mark a function as a gate. It stays an ordinary function, and ``gates=[function]`` gives it to an entity.

    The schema comes from the annotations, the description from the docstring. Parameters and the returned value may be
    pydantic models, dataclasses and TypedDicts. Keyword-only parameters are not for the entity: ``context`` gets the
    `GateContext`, the others are dependencies. A function without ``async`` runs in a thread.

    Options: ``name`` and ``description`` in place of the function's own; ``pure=True`` if the same arguments always give the
    same result; ``writes=True`` if a call changes something, so that modes ask; ``kind``, how editors show it (`KINDS`);
    ``ephemeral=True`` to show the model a placeholder from the next query on; ``blocking=False`` to run it without a thread.

    >>> @gate
    ... def add(a: int, b: int) -> int:
    ...     "Add two numbers."
    ...     return a + b
    >>> @gate(name="notes.save", writes=True)
    ... async def save(text: str) -> str:
    ...     "Save a note."
    ...     return "saved"
    >>> add(1, 2), gate_options(save)
    (3, {'blocking': False, 'name': 'notes.save', 'writes': True})
    """
    wrong = options.keys() - GateOptions.__annotations__.keys()
    if wrong:
        raise DefinitionError(
            f"gate() has no option {min(wrong)!r} (options: {', '.join(GateOptions.__annotations__)})",
            rule="unknown-key",
        )

    def mark(function: Any) -> Any:
        if not is_function(function):
            raise DefinitionError(f"@gate is for functions, not for a value of type {type(function).__name__}")
        setattr(function, _OPTIONS, options)
        return function

    return mark if function is None else mark(function)


def is_function(value: object) -> bool:
    """Whether a gate can be made of this value: a function or a method."""
    return inspect.isfunction(value) or inspect.ismethod(value)


def is_marked(value: object) -> bool:
    """Whether the value is a function with the decorator `gate`."""
    return is_function(value) and hasattr(value, _OPTIONS)


def gate_options(function: Callable[..., Any]) -> dict[str, Any]:
    """The options of `Gate.of` for a function that a program gave as a gate: those of `gate`, and whether it needs a thread."""
    return {"blocking": not inspect.iscoroutinefunction(function), **getattr(function, _OPTIONS, {})}


def gate_from_function(
    cls: Callable[..., Made], function: Callable[..., Any], name: str | None, options: Mapping[str, Any]
) -> Made:
    """Implements `Gate.of`. ``cls`` is `Gate`."""
    options = {**getattr(function, _OPTIONS, {}), **options, **({} if name is None else {"name": name})}
    shown = name_of(function).rpartition(".")[2]
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError) as error:
        raise DefinitionError(f"gate function {shown!r} has an annotation that cannot be read: {error}") from error
    parameters = _Parameters(shown)
    required: list[str] = []
    bound: dict[str, Any] = {}
    injected: list[str] = []
    declared: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        hint = hints.get(parameter.name, Any)
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise DefinitionError(f"gate function {shown!r} must name its parameters, not *args or **kwargs")
        if parameter.kind is parameter.KEYWORD_ONLY:
            injected.append(parameter.name)
            if parameter.name != "context":
                declared[parameter.name] = _plain_schema(hint) or {}
            if parameter.default is not parameter.empty:
                bound[parameter.name] = parameter.default
            continue
        if getattr(hint, "__qualname__", "") == "GateContext":
            raise DefinitionError(
                f"parameter {parameter.name!r} of gate function {shown!r} would be an argument that the model writes; for the "
                "context of the call, put a * before it: def gate(..., *, context: GateContext)"
            )
        if parameter.default is parameter.empty:
            required.append(parameter.name)
        parameters.add(parameter, hint)

    def handler(args: Mapping[str, Any], context: Any) -> Any:
        extra = {n: context if n == "context" else context.dependencies[n] for n in injected}
        return function(**parameters.load(args), **extra)

    return cls(
        **{
            "name": function.__name__,
            "description": inspect.getdoc(function) or "",
            "parameters": parameters.schema(required),
            "handler": handler,
            "needs": tuple(name for name in injected if name != "context" and name not in bound),
            "options": declared,
            **options,
            "dependencies": {**bound, **options.get("dependencies", {})},
        }
    )


class _Parameters:
    """The parameters of a function that are an entity's arguments."""

    def __init__(self, function: str) -> None:
        self._function = function
        self._properties: dict[str, Any] = {}
        self._parts: dict[str, Any] = {}
        """The definitions that the properties refer to (``$defs``)."""
        self._types: dict[str, PythonType] = {}
        """The types of the parameters that do not take JSON data as they are."""

    def add(self, parameter: inspect.Parameter, hint: Any) -> None:
        name = parameter.name
        schema = _plain_schema(hint)
        if schema is None:
            self._types[name] = kind = PythonType(hint, f"parameter {name!r} of gate function {self._function!r}")
            schema, parts = kind.schema()
            if any(self._parts.get(key, part) != part for key, part in parts.items()):
                raise DefinitionError(
                    f"gate function {self._function!r} uses two different types with the same name; rename one of them"
                )
            self._parts |= parts
        if parameter.default is not parameter.empty and _is_plain(parameter.default):
            schema["default"] = parameter.default
        self._properties[name] = schema

    def schema(self, required: list[str]) -> dict[str, Any]:
        """The JSON Schema of all arguments."""
        parts = {"$defs": self._parts} if self._parts else {}
        whole = {"type": "object", "properties": self._properties, "required": required, "additionalProperties": False}
        return whole | parts

    def load(self, args: Mapping[str, Any]) -> Mapping[str, Any]:
        """The arguments as values of their types. Raises `GateError`, which the entity reads."""
        loaded = dict(args)
        for name, kind in self._types.items():
            if name in args:
                try:
                    loaded[name] = kind.load(args[name])
                except ValueError as error:
                    raise GateError(f"argument {name!r} is not valid: {error}") from None
        return loaded


_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}


def _plain_schema(hint: Any) -> dict[str, Any] | None:
    """The schema of a type whose values are JSON data; None for all other types."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is None and hint in _TYPES:
        return {"type": _TYPES[hint]}
    if hint is Any or hint is object:
        return {}
    if hint is list:
        return {"type": "array"}
    if origin is list:
        items = _plain_schema(arguments[0])
        return None if items is None else {"type": "array", "items": items}
    if origin is dict or hint is dict:
        values = [_plain_schema(each) for each in arguments[1:]]
        if None in values:
            return None
        return {"type": "object", **({"additionalProperties": values[0]} if values and values[0] else {})}
    if origin is typing.Literal:
        return {"enum": list(arguments)}
    if origin in (typing.Union, types.UnionType):
        cases = [_plain_schema(each) for each in arguments]
        return None if None in cases else {"anyOf": cases}
    if origin is typing.Annotated and all(isinstance(note, str) for note in arguments[1:]):
        schema = _plain_schema(arguments[0])
        return None if schema is None else {**schema, "description": " ".join(arguments[1:])}
    return None


def _is_plain(default: Any) -> bool:
    return default is None or isinstance(default, str | int | float | list | tuple | dict)
