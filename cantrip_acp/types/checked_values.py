"""Base class and value checks for definitions, which are checked when they are made and never change.

`Definition` is the base of `Circle` and `Cantrip`. The functions check single values; their errors say what is wrong,
where, and what would be right. Recipes and the Python API use the same checks.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Generic, NoReturn, Self, TypeVar, overload

from cantrip_acp.types.errors import DefinitionError, Immutable

_Value = TypeVar("_Value")


class derived(Generic[_Value]):  # noqa: N801 - it is used as `functools.cached_property` is
    """A property that is computed on first read. The value is kept in the slot with the same name after a ``_``."""

    def __init__(self, compute: Callable[[Any], _Value]) -> None:
        self._compute = compute
        self._slot = f"_{compute.__name__}"
        self.__doc__ = compute.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type) -> _Value: ...
    def __get__(self, instance: object, owner: type) -> Any:
        if instance is None:
            return self
        try:
            return getattr(instance, self._slot)
        except AttributeError:
            value = self._compute(instance)
            object.__setattr__(instance, self._slot, value)
            return value

    def __set__(self, instance: Any, value: object) -> NoReturn:
        # Defining __set__ makes this a data descriptor, so that an assignment raises the owner's own error.
        refuse_change(instance, self._slot[1:])


def refuse_change(definition: object, name: str, value: object = None) -> NoReturn:
    """Raise `Immutable`. Every definition uses this as its ``__setattr__`` and ``__delattr__``."""
    kind = type(definition).__name__.lower()
    what = "the call is immutable" if name == "call" or kind == "call" else f"the {kind} is immutable"
    raise Immutable(f"{what}: {name!r} was fixed when the {kind} was made; use replace({name}=…) to make a new one")


class Definition:
    """A value with checked fields that cannot be changed. ``_arguments`` names the arguments of ``__init__``."""

    __slots__ = ("__weakref__",)
    _arguments: ClassVar[tuple[str, ...]] = ()

    __setattr__ = refuse_change
    __delattr__ = refuse_change

    def _set(self, **values: Any) -> None:
        """Set the fields; only ``__init__`` may call it."""
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _init_arguments(self) -> dict[str, Any]:
        """The arguments of ``__init__`` that would make the same value."""
        return {name: getattr(self, name) for name in self._arguments}

    def replace(self, **changes: Any) -> Self:
        """A copy with these fields changed. It is validated, and derived properties are computed again."""
        check_keys(changes, self._arguments, f"{type(self).__name__}.replace", what="field")
        return type(self)(**{**self._init_arguments(), **changes})

    __replace__ = replace

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self._init_arguments())


def _rebuild(kind: type[Any], given: Mapping[str, Any]) -> Any:
    return kind(**given)


def nearest(word: object, known: Iterable[str]) -> str:
    """``; did you mean 'x'?`` if a known word is similar, otherwise the list of known words."""
    words, text = sorted(known), str(word)
    near = difflib.get_close_matches(text, words, n=1) or [w for w in words if len(text) > 2 and text in w]
    if near:
        return f"; did you mean {near[0]!r}?"
    return f" (known: {', '.join(words)})" if words else " (it takes none)"


def check_keys(given: Iterable[object], known: Iterable[str], where: str, *, what: str = "key") -> None:
    """Raise `DefinitionError` for the first unknown key, and suggest the nearest known one."""
    words = tuple(known)
    for key in given:
        if key not in words:
            raise DefinitionError(f"unknown {what} {key!r} in {where}{nearest(key, words)}", rule="unknown-key")


def check_mapping(value: object, where: str) -> Mapping[str, Any]:
    """Return the value if it is a mapping; raise `DefinitionError` otherwise."""
    if not isinstance(value, Mapping):
        raise DefinitionError(f"{where} must be a mapping, not {short_repr(value)}")
    return value


def check_flag(value: object, where: str) -> bool:
    """Return the value if it is True or False. Other values that Python treats as true or false are refused."""
    if not isinstance(value, bool):
        raise DefinitionError(f"{where} must be true or false, not {short_repr(value)}")
    return value


def check_text(value: object, where: str, *, blank: bool = True) -> str:
    """Return the value if it is a text. With ``blank=False`` it must contain more than white space."""
    if not isinstance(value, str) or not (blank or value.strip()):
        raise DefinitionError(
            f"{where} must be {'a text' if blank else 'a text that is not blank'}, not {short_repr(value)}"
        )
    return value


def check_choice(value: object, words: tuple[str, ...], where: str) -> str:
    """Return the value if it is one of ``words``."""
    if not isinstance(value, str) or value not in words:
        hint = nearest(value, words) if isinstance(value, str) else f" (known: {', '.join(words)})"
        raise DefinitionError(
            f"{where} is {short_repr(value)}; it is one of {', '.join(words)}{hint if '?' in hint else ''}"
        )
    return value


def check_whole(value: object, where: str, low: int, high: int | None = None) -> int:
    """Return the value if it is a whole number from ``low`` to ``high``. Booleans are refused."""
    if isinstance(value, bool) or not isinstance(value, int) or value < low or (high is not None and value > high):
        span = f"of at least {low}" if high is None else f"from {low} to {high}"
        raise DefinitionError(f"{where} must be a whole number {span}, not {short_repr(value)}")
    return value


def check_number(
    value: object, where: str, low: float, high: float | None = None, *, above: bool = False
) -> int | float:
    """Return the value if it is a finite number from ``low`` (excluded with ``above``) to ``high``.

    Booleans are refused.
    """
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    number: Any = value
    if not good or (number <= low if above else number < low) or (high is not None and number > high):
        span = f"above {low:g}" if above else f"from {low:g}" if high is not None else f"of at least {low:g}"
        span += f" to {high:g}" if high is not None else ""
        raise DefinitionError(f"{where} must be a finite number {span}, not {short_repr(value)}")
    checked: int | float = number
    return checked


def short_repr(value: object) -> str:
    """A wrong value for an error message: short, and without the contents of objects, which may hold a secret."""
    if value is None or isinstance(value, bool | int | float):
        return repr(value)
    if isinstance(value, str):
        return repr(value) if len(value) <= _SHOWN else f"{value[:_SHOWN]!r}…"
    if isinstance(value, Mapping):
        return "a mapping"
    return "a list" if isinstance(value, list | tuple) else f"a value of type {type(value).__name__}"


_SHOWN = 60
