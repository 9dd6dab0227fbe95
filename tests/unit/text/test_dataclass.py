"""The dataclasses of a quick start behave as those of the standard library."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable
from dataclasses import KW_ONLY, FrozenInstanceError, asdict, astuple, field, fields, replace
from typing import Any, ClassVar

import pytest

from cantrip_acp.text.dataclass import dataclass as lazy


def make(dataclass: Any) -> tuple[type, ...]:
    @dataclass(frozen=True, slots=True)
    class Point:
        x: int
        y: int = 2
        tags: list[str] = field(default_factory=list, compare=False)
        hidden: str = field(default="h", repr=False, kw_only=True)
        kind: ClassVar[str] = "point"

        def __post_init__(self) -> None:
            if self.x < 0:
                raise ValueError("x is negative")

    @dataclass(slots=True)
    class Open:
        """With a docstring."""

        a: int
        _: KW_ONLY
        b: str = "b"
        made: int = field(default=0, init=False)

    @dataclass(frozen=True, eq=False)
    class Identity:
        a: int

    @dataclass(frozen=True)
    class Own:
        a: int

        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 7

        def __repr__(self) -> str:
            return "own"

    @dataclass(slots=True, weakref_slot=True, kw_only=True)
    class Named:
        a: int
        b: int = 1

    @dataclass(frozen=True, slots=True)
    class Child(Point):
        z: int = 3

    return Point, Open, Identity, Own, Named, Child


def outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except (TypeError, ValueError, AttributeError) as error:
        return type(error), str(error)


USES: list[Callable[..., Any]] = [
    lambda Point, *_: repr(Point(1)),
    lambda Point, *_: Point(1),
    lambda Point, *_: repr(Point(1, y=5, hidden="x")),
    lambda Point, *_: Point(),
    lambda Point, *_: Point(1, 2, [], "too many"),
    lambda Point, *_: Point(-1),
    lambda Point, *_: (Point(1) == Point(1, tags=["not compared"]), Point(1) == Point(2), Point(1) == (1, 2)),
    lambda Point, *_: hash(Point(1)) == hash(Point(1)) == hash((1, 2, "h")),
    lambda Point, *_: setattr(Point(1), "x", 2),
    lambda Point, *_: delattr(Point(1), "x"),
    lambda Point, *_: repr(replace(Point(1), x=4)),
    lambda Point, *_: (asdict(Point(1)), astuple(Point(1))),
    lambda Point, *_: [(f.name, f.default, f.init, f.kw_only) for f in fields(Point)],
    lambda Point, *_: (Point.__slots__, Point.__match_args__, hasattr(Point(1), "__dict__")),
    lambda Point, *_: repr(copy.copy(Point(1, tags=["a"]))) + repr(copy.deepcopy(Point(1, tags=["a"]))),
    lambda Point, *_: str(inspect.signature(Point)),
    lambda Point, Open, *_: str(inspect.signature(Open)) + str(Open.__doc__),
    lambda Point, Open, *_: repr(Open(1, b="c")),
    lambda Point, Open, *_: Open(1, "c"),
    lambda Point, Open, *_: hash(Open(1)),
    lambda Point, Open, *_: (Open(1) == Open(1), Open(1) == Open(2)),
    lambda Point, Open, *_: setattr(Open(1), "a", 2),
    lambda Point, Open, Identity, *_: (Identity(1) == Identity(1), len({Identity(1), Identity(1)}), repr(Identity(1))),
    lambda Point, Open, Identity, Own, *_: (Own(1) == Own(2), hash(Own(1)), repr(Own(1))),
    lambda Point, Open, Identity, Own, Named, *_: (repr(Named(a=1)), Named.__weakref__ is not None),
    lambda Point, Open, Identity, Own, Named, *_: Named(1),
    lambda *kinds: repr(kinds[5](1, z=4)) + str(kinds[5](1) == kinds[0](1)) + str(inspect.signature(kinds[5])),
    lambda *kinds: kinds[5](-1),
    lambda *kinds: setattr(kinds[5](1), "x", 2),
]  # fmt: skip


@pytest.mark.parametrize("use", USES, ids=range(len(USES)))
def test_it_is_as_the_standard_librarys(use: Callable[..., Any]) -> None:
    ours, theirs = outcome(lambda: use(*make(lazy))), outcome(lambda: use(*make(dataclasses.dataclass)))
    assert repr(ours) == repr(theirs)


@lazy(frozen=True, slots=True)
class Pickled:
    a: int
    b: str = "b"


def test_pickles_and_frozen_errors() -> None:
    assert pickle.loads(pickle.dumps(Pickled(1))) == Pickled(1)
    with pytest.raises(FrozenInstanceError):
        Pickled(1).a = 2  # type: ignore[misc]


def test_a_method_is_compiled_when_it_is_first_called() -> None:
    @lazy(frozen=True, slots=True)
    class Late:
        a: int

    assert hasattr(vars(Late)["__init__"], "_is_later")
    Late(1)
    assert not hasattr(vars(Late)["__init__"], "_is_later")
    assert hasattr(vars(Late)["__eq__"], "_is_later")
    assert Late(1) == Late(1)
    assert not hasattr(vars(Late)["__eq__"], "_is_later")
