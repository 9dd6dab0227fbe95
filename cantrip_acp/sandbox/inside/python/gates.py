"""Gates as Python functions in a cell, and the entity's own history as ``loom``. The host answers the calls.

The functions have the names, signatures and docstrings of the gates. A call takes keywords, positional arguments in
the order of the schema, or one mapping of all arguments. It returns plain data. If a gate fails, the function raises a
`GateError` with the gate's text. The host checks the arguments, as for every medium.
"""

from __future__ import annotations

import builtins
import sys

from .interrupts import Done, DoneInThread, Interrupts
from .lazy_imports import when_imported
from .wire import Wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

globals()["__builtins__"] = dict(vars(builtins))

_TYPES = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "array": "list", "object": "dict"}


class GateError(Exception):
    """A gate has failed. The text is that of the gate."""


# For the entity, GateError is a builtin. Errors and pickles show the module, so set it.
GateError.__module__ = "builtins"
builtins.GateError = GateError  # type: ignore[attr-defined]


class _LeftOut:
    """The default of an optional argument that accepts None as a value. ``help`` shows it as ``...``."""

    def __repr__(self) -> str:
        return "..."


LEFT_OUT = _LeftOut()


class Gates:
    """Makes the gate functions of one circle. ``functions``: the functions by name."""

    def __init__(
        self, specs: list[dict[str, Any]], wire: Wire, interrupts: Interrupts, flush: Callable[[], None]
    ) -> None:
        self._wire = wire
        self._interrupts = interrupts
        self._flush = flush
        self.functions: dict[str, Any] = {}
        self._specs: dict[str, dict[str, Any]] = {}
        self._gained: list[str] = []
        for spec in specs:
            self._add(spec["shown"], spec)
        if "done" in self.functions:
            done = next(s for s in specs if s["shown"] == "done")
            self._add("submit_answer", {**done, "description": "The same as done."})
        for older, name in (("call_entity", "call_agent"), ("call_entity_batch", "call_agent_batch")):
            found = next((s for s in specs if s["name"] == name), None)
            if found is not None and older not in self.functions:
                self._add(older, {**found, "description": f"The older name of {name}."})
        when_imported("inspect", self._sign)

    def set_added(self, specs: list[dict[str, Any]]) -> tuple[dict[str, Any], list[str]]:
        """Replace the gates that were added to those of the circle.

        Returns the functions by name, and the names of removed functions.
        """
        for name in self._gained:
            del self.functions[name], self._specs[name]
        gone = [n for n in self._gained if all(n != spec["shown"] for spec in specs)]
        self._gained = [spec["shown"] for spec in specs]
        for spec in specs:
            self._add(spec["shown"], spec)
        inspect = sys.modules.get("inspect")
        if inspect is not None and hasattr(inspect, "Signature"):
            self._sign(inspect)
        return {name: self.functions[name] for name in self._gained}, gone

    def name_of(self, value: Any) -> str | None:
        """The name of one of these functions; None for any other value."""
        name = getattr(value, "__name__", None)
        return name if isinstance(name, str) and self.functions.get(name) is value else None

    def _add(self, shown: str, spec: dict[str, Any]) -> None:
        properties: dict[str, Any] = spec["parameters"].get("properties") or {}
        required = frozenset(spec["parameters"].get("required") or ())
        gate = spec["name"]

        def function(*args: Any, **named: Any) -> Any:
            return self.call(gate, arguments(shown, properties, required, args, named))

        function.__name__ = function.__qualname__ = shown
        function.__module__ = "gates"
        function.__doc__ = spec.get("description") or None
        self.functions[shown] = function
        self._specs[shown] = spec

    def size(self, data: Any) -> int:
        """The number of bytes of the data as JSON. Raises TypeError or ValueError if it has no JSON form."""
        return self._wire.size(data)

    def call(self, gate: str, args: dict[str, Any]) -> Any:
        """Ask the host to call a gate and return its result. Raises `GateError`, and `Done` if ``done`` has succeeded."""
        if not self._wire.here:
            raise GateError(
                f"{gate} cannot be called from a forked process; call it in the cell, or run its shell command"
            )
        self._flush()
        try:
            reply = self._wire.ask({"t": "call", "gate": gate, "args": args})
        except (TypeError, ValueError, RecursionError) as error:
            raise GateError(f"arguments of {gate} are not JSON data: {error}") from None
        if reply.get("stop"):
            self._interrupts.finish()
            raise Done if self._interrupts.in_main else DoneInThread
        if reply.get("error"):
            text = reply.get("result")
            raise GateError(text if isinstance(text, str) else str(text))
        return reply.get("result")

    def _sign(self, inspect: Any) -> None:
        """Set the signatures of the functions. Called when `inspect` is imported."""
        for name, function in self.functions.items():
            parameters = self._specs[name]["parameters"]
            required = parameters.get("required") or ()
            made, optional = [], False
            for each, schema in (parameters.get("properties") or {}).items():
                if not each.isidentifier():
                    break
                # After an optional parameter, Python requires a default for all parameters.
                optional = optional or each not in required
                kind = _TYPES.get(schema.get("type")) if isinstance(schema.get("type"), str) else None
                made.append(
                    inspect.Parameter(
                        each,
                        inspect.Parameter.POSITIONAL_OR_KEYWORD,
                        default=_default(schema) if optional else inspect.Parameter.empty,
                        annotation=getattr(builtins, kind) if kind else inspect.Parameter.empty,
                    )
                )
            try:
                function.__signature__ = inspect.Signature(made)
            except ValueError:
                continue


def arguments(
    shown: str, properties: dict[str, Any], required: frozenset[str], args: tuple[Any, ...], named: dict[str, Any]
) -> dict[str, Any]:
    """Make a gate's arguments from those of a function call. Raises TypeError. ``shown``: the function's name."""
    order = list(properties)
    if len(args) == 1 and not named and isinstance(args[0], dict) and _is_all(args[0], properties, required):
        return dict(args[0])
    if len(args) > len(order):
        raise TypeError(f"{shown}() takes {len(order)} argument{'s' * (len(order) != 1)}, {len(args)} were given")
    given: dict[str, Any] = {}
    for name, value in (*zip(order, args, strict=False), *named.items()):
        if name in given:
            raise TypeError(f"{shown}() got two values for {name!r}")
        if (
            value is ...
            or value is LEFT_OUT
            or (value is None and name not in required and not _takes_null(properties.get(name, {})))
        ):
            continue
        given[name] = value
    return given


def _is_all(value: dict[Any, Any], properties: dict[str, Any], required: frozenset[str]) -> bool:
    """Whether a single argument is a mapping of all arguments, and not the first argument."""
    if not all(isinstance(key, str) for key in value):
        return False
    if not properties or (value and set(value) <= set(properties) and required <= set(value)):
        return True
    first = next(iter(properties.values())).get("type")
    return isinstance(first, str) and first != "object"


def _default(schema: dict[str, Any]) -> Any:
    """The default that a signature shows for an optional argument. To pass it has the same effect as to omit it."""
    if "default" in schema:
        return schema["default"]
    return LEFT_OUT if _takes_null(schema) else None


def _takes_null(schema: dict[str, Any]) -> bool:
    """Whether None is a value of this argument, and does not mean that the argument was omitted."""
    if "type" not in schema and "anyOf" not in schema and "enum" not in schema:
        return True
    kinds = schema.get("type")
    options = schema.get("anyOf") or ()
    return kinds == "null" or (isinstance(kinds, list) and "null" in kinds) or any(map(_takes_null, options))


_TURNS_AT_ONCE = 50


class LoomView:
    """The turns of this entity, oldest first, read-only (LOOM-11): ``loom[0]``, ``len(loom)``, ``for turn in loom``.

    Each turn is a dict with the fields of the turn's record. It is a copy. With ``upto``, only the first ``upto`` turns
    are visible.
    """

    def __init__(self, wire: Wire, upto: int | None = None) -> None:
        self._wire = wire
        self._upto = upto

    def _page(self, start: int, count: int) -> dict[str, Any]:
        if self._upto is not None:
            count = max(0, min(count, self._upto - start))
        found = self._request(start, count)
        if self._upto is not None:
            found["length"] = min(found["length"], self._upto)
        return found

    def _request(self, start: int, count: int) -> dict[str, Any]:
        while True:
            reply = self._wire.ask({"t": "loom", "start": start, "count": count})
            found: dict[str, Any] | str = reply["result"]
            if isinstance(found, dict) and not reply.get("error"):
                return found
            if count <= 1:
                raise RuntimeError(f"turn {start} of the loom cannot be read: {found}")
            # Turns may be large, and the size of an answer is limited. So ask for fewer turns.
            count //= 2

    def __len__(self) -> int:
        return int(self._page(0, 0)["length"])

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        place = index if index >= 0 else index + len(self)
        turns = self._page(place, 1)["turns"] if place >= 0 else []
        if not turns:
            raise IndexError(f"the loom has {len(self)} turns; there is no turn {index}")
        return turns[0]

    def __iter__(self) -> Iterator[Any]:
        start = 0
        while turns := self._page(start, _TURNS_AT_ONCE)["turns"]:
            yield from turns
            start += len(turns)

    def turns(self) -> list[Any]:
        """All turns as a list."""
        return list(self)

    def __repr__(self) -> str:
        name = "loom" if self._upto is None else "folded_turns"
        return f"<{name}: {len(self)} turns; {name}[i] and iteration give each turn as a dict>"
