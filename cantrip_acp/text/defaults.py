"""Members that a value may leave out: a class of ours names them and says what is true without them.

Crystals, mediums and yools of other packages need not inherit that class.
"""

from __future__ import annotations

from typing import TypeVar

Base = TypeVar("Base")


def complete(given: object, base: type[Base]) -> Base:
    """``given`` if it inherits ``base``; else an object of ``base`` that has the public members of ``given``."""
    if isinstance(given, base):
        return given
    found = base()
    for name in dir(base):
        if not name.startswith("_") and hasattr(given, name):
            setattr(found, name, getattr(given, name))
    return found


def name_of(function: object) -> str:
    """The name of a function, or of the class of a callable object, for people."""
    return str(getattr(function, "__qualname__", type(function).__name__))
