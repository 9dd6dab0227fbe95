"""`dataclass` for a quick start: the standard library's, but each method is compiled when it is first called.

The standard library compiles about six functions for each class, which takes 0.3 ms. An agent that starts has a hundred such
classes, and makes objects of few of them. Everything but the time is the standard library's: `fields`, `replace`, `asdict`,
slots, pattern matching, pickles, signatures.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls=None, /, *, frozen=False, eq=True, **options):
        """`dataclasses.dataclass` with its options `frozen`, `eq`, `slots`, `kw_only` and `weakref_slot`."""

        def wrap(given):
            if any("__dataclass_fields__" in vars(base) for base in given.__mro__[1:]):
                return dataclasses.dataclass(given, frozen=frozen, eq=eq, **options)
            return _lazy(given, frozen, eq, options)

        return wrap if cls is None else wrap(cls)


def _lazy(given: type, frozen: bool, eq: bool, options: dict[str, Any]) -> Any:
    own = set(vars(given))
    if given.__doc__ is None:
        # Otherwise the standard library computes the signature for it.
        given.__doc__ = f"{given.__qualname__}(...)"
    made: Any = dataclasses.dataclass(init=False, repr=False, eq=False, **options)(given)
    params = made.__dataclass_params__
    params.init, params.repr, params.eq, params.frozen = True, True, eq, frozen
    wanted = ["__init__", "__repr__"]
    if eq:
        wanted.append("__eq__")
        if frozen and ("__hash__" not in own or ("__eq__" in own and vars(given)["__hash__"] is None)):
            made.__hash__ = _later(made, "__hash__")
        elif "__hash__" not in own:
            made.__hash__ = None
    for name in wanted:
        if name not in own:
            setattr(made, name, _later(made, name))
    if "__init__" not in own:
        made.__signature__ = _Signature()
    if frozen:
        made.__setattr__, made.__delattr__ = _refuse_to_set, _refuse_to_delete
        if options.get("slots"):
            made.__getstate__, made.__setstate__ = _getstate, _setstate
    return made


def _later(made: Any, name: str) -> Any:
    """A method that compiles the real one, puts that in its own place and calls it."""

    def method(self: Any, /, *args: Any, **named: Any) -> Any:
        return _compile(made, name)(self, *args, **named)

    method.__name__, method.__qualname__ = name, f"{made.__qualname__}.{name}"
    method._is_later = True  # type: ignore[attr-defined]
    return method


def _compile(made: Any, name: str) -> Any:
    """The real method of the class, which is put in the place of the one that compiles it."""
    found = vars(made)[name]
    if not hasattr(found, "_is_later"):
        return found
    compiled = _init(made) if name == "__init__" else vars(_twin(made, name))[name]
    compiled.__qualname__ = f"{made.__qualname__}.{name}"
    setattr(made, name, compiled)
    return compiled


def _init(made: Any) -> Any:
    """The class's ``__init__``, which is the method that is needed first and most often."""
    frozen, slots = made.__dataclass_params__.frozen, "__slots__" in vars(made)
    space: dict[str, Any] = {"_set": object.__setattr__, "_FACTORY": _FACTORY}
    places: list[str] = []
    named: list[str] = []
    body: list[str] = []
    fields = dataclasses.fields(made)
    for field in fields:
        name = value = field.name
        if field.default_factory is not dataclasses.MISSING:
            space[f"_make_{name}"] = field.default_factory
            default, value = "=_FACTORY", f"_make_{name}()"
            if field.init:
                value += f" if {name} is _FACTORY else {name}"
        elif field.default is not dataclasses.MISSING:
            space[f"_default_{name}"] = field.default
            default = f"=_default_{name}"
            if not field.init:
                value = f"_default_{name}" if slots else ""
        else:
            default = ""
            if not field.init:
                value = ""
        if field.init:
            (named if field.kw_only else places).append(name + default)
        if value:
            body.append(f"_set(self, {name!r}, {value})" if frozen else f"self.{name} = {value}")
    if hasattr(made, "__post_init__"):
        body.append("self.__post_init__()")
    parameters = ", ".join(["self", *places, *(["*", *named] if named else [])])
    exec(f"def __init__({parameters}):\n " + "\n ".join(body or ["pass"]), space)  # noqa: S102 - names of fields alone
    made_init = space["__init__"]
    made_init.__annotations__ = {field.name: field.type for field in fields if field.init} | {"return": None}
    made_init.__module__ = made.__module__
    return made_init


class _Factory:
    def __repr__(self) -> str:
        return "<factory>"


_FACTORY = _Factory()
"""The default of a parameter whose value a factory makes."""


def _twin(made: Any, name: str) -> Any:
    """A class with the same fields, and the method. The standard library compiled it."""
    space: dict[str, Any] = {"__module__": made.__module__, "__qualname__": made.__qualname__, "__doc__": "."}
    space["__annotations__"] = {field.name: field.type for field in dataclasses.fields(made)}
    for field in dataclasses.fields(made):
        kept = {key: getattr(field, key) for key in ("init", "repr", "hash", "compare", "kw_only")}
        space[field.name] = dataclasses.field(**kept)
    return dataclasses.dataclass(
        frozen=made.__dataclass_params__.frozen, init=False, repr=name == "__repr__", eq=name in ("__eq__", "__hash__")
    )(type(made.__name__, (), space))


class _Signature:
    """The signature of a class, made when it is read (`inspect.signature`)."""

    def __get__(self, instance: object, owner: Any) -> Any:
        import inspect

        made = next(each for each in owner.__mro__ if "__init__" in vars(each))
        whole = inspect.signature(_compile(made, "__init__"))
        return whole.replace(parameters=list(whole.parameters.values())[1:])


def _refuse_to_set(self: Any, name: str, value: object) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_to_delete(self: Any, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def _getstate(self: Any) -> list[Any]:
    return [getattr(self, field.name) for field in dataclasses.fields(self)]


def _setstate(self: Any, state: list[Any]) -> None:
    for field, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)
