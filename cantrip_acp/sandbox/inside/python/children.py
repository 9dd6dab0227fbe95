"""Child entities as values in a cell: `Cantrip(...)`, `cast`, `cast_batch`, `summon`, `send` and `dismiss`.

Here a child is only plain data. The host decides whether such a child is allowed, and runs it. Monty also reads the
part below the comment "What Monty reads begins here". So that part uses no inheritance, no properties and no generators.
"""

from __future__ import annotations

import builtins

from .gates import GateError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .gates import Gates

globals()["__builtins__"] = dict(vars(builtins))


def child_functions(gates: Gates) -> dict[str, Any]:
    """The functions and the class for cells, by name. They send requests to the host through ``gates``."""
    global _ask, _size
    _ask, _size = gates.call, gates.size
    return {"Cantrip": Cantrip} | {f.__name__: f for f in (cast, cast_batch, summon, send, dismiss)}


def _ask(gate: Any, args: Any) -> Any:
    raise RuntimeError("no host to ask")


def _size(data: Any) -> Any:
    raise RuntimeError("no host to ask")


# What Monty reads begins here.

_MOST_AT_ONCE = 8 * 1024 * 1024 - 65536


class Cantrip:
    """The description of a child. Nothing runs until it is cast or summoned.

    Cantrip(crystal=None, system_prompt=None, medium=None, gates=None, wards=None, max_depth=None). For arguments that are
    left out, the child uses the values of this circle. crystal is the name of a crystal in the recipe. gates are names, or
    {"name": …, "root": …}. wards can only be stricter than those of this circle. You can also write
    call={"system_prompt": …, "temperature": …} and circle={"medium": …, "gates": …, "wards": …}.
    """

    def __init__(
        self,
        crystal: Any = None,
        call: Any = None,
        circle: Any = None,
        *,
        system_prompt: Any = None,
        medium: Any = None,
        gates: Any = None,
        wards: Any = None,
        max_depth: Any = None,
    ) -> None:
        asked: Any = {}
        if isinstance(call, str):
            asked["system_prompt"] = call
        elif call is not None:
            rest = dict(call)
            if "system_prompt" in rest:
                asked["system_prompt"] = rest.pop("system_prompt")
            if rest:
                asked["call"] = rest
        if circle is not None:
            for key, value in dict(circle).items():
                if key not in ("medium", "gates", "wards"):
                    raise TypeError(f"a circle has medium, gates and wards, not {key!r}")
                asked[key] = value
        named = {"crystal": crystal, "system_prompt": system_prompt, "medium": medium, "gates": gates, "wards": wards}
        for key, value in {**named, "max_depth": max_depth}.items():
            if value is not None:
                asked[key] = value
        if "gates" in asked:
            asked["gates"] = list(asked["gates"])
        self.asked = asked

    def cast(self, intent: Any, context: Any = ...) -> Any:
        """Run a child of this kind once on an intent and return its `Result`. Raises GateError if it fails."""
        return cast(self, intent, context)

    def cast_batch(self, intents: Any) -> Any:
        """Run several children of this kind at the same time. intents: a list of intents, or of (intent, context) pairs."""
        made = [(self, each) if isinstance(each, str) else (self, *each) for each in intents]
        return cast_batch(made)

    def summon(self, context: Any = ...) -> Any:
        """Start a child of this kind that stays. Use `send` to give it intents."""
        return summon(self, context)

    def invoke(self, context: Any = ...) -> Any:
        """The same as summon."""
        return summon(self, context)

    def __repr__(self) -> Any:
        return "Cantrip(" + ", ".join([f"{key}={value!r}" for key, value in self.asked.items()]) + ")"


class Result:
    """The result of a child's cast: result, reason, usage, turns. In a batch also is_error and error if it failed."""

    def __init__(self, data: Any) -> None:
        self.result = data.get("result")
        self.reason = data.get("reason")
        self.usage = data.get("usage") or {}
        self.turns = data.get("turns") or 0
        self.entity_id = data.get("entity_id")
        self.is_error = bool(data.get("is_error"))
        self.error = data.get("error")

    def keys(self) -> Any:
        """The names of the fields, so that dict(result) returns plain data."""
        return ["result", "reason", "usage", "turns", "entity_id", "is_error", "error"]

    def __getitem__(self, key: Any) -> Any:
        return getattr(self, key)

    def __repr__(self) -> Any:
        if self.is_error:
            return f"Result(is_error=True, error={self.error!r})"
        return f"Result(result={self.result!r}, reason={self.reason!r}, turns={self.turns})"


class Child:
    """A child that was summoned. It keeps its history and the state of its medium from one send to the next."""

    def __init__(self, entity_id: Any) -> None:
        self.entity_id = entity_id

    def send(self, intent: Any) -> Any:
        """Give the child an intent, wait, and return its `Result`. Raises GateError if it fails."""
        return send(self, intent)

    def cast(self, intent: Any) -> Any:
        """The same as send."""
        return send(self, intent)

    def close(self) -> Any:
        """End the child."""
        dismiss(self)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> Any:
        dismiss(self)

    def __repr__(self) -> Any:
        return f"Child({self.entity_id!r})"


def cast(cantrip: Any, intent: Any = None, context: Any = ...) -> Any:
    """Run a child once on an intent and return its `Result`. Raises GateError if it fails.

    cast("intent") runs a child with the same settings as this entity. context is data for the child; it is never in the
    child's prompt.
    """
    if isinstance(cantrip, Child):
        if context is not ...:
            raise TypeError("a summoned child already has its context; put new data into the intent")
        return send(cantrip, intent)
    if isinstance(cantrip, str) and intent is None:
        cantrip, intent = Cantrip(), cantrip
    return Result(_ask("cantrip.cast", _request(cantrip, intent, context)))


def cast_batch(cantrip: Any, intents: Any = None) -> Any:
    """Run several children at the same time and return a list of `Result` in the same order.

    If a child fails, its `Result` has is_error and error. Use cast_batch(cantrip, [intent, …]) or cast_batch([request, …]).
    A request is an intent, (cantrip, intent), (cantrip, intent, context) or {"cantrip": …, "intent": …, "context": …}.
    """
    if intents is not None:
        return cantrip.cast_batch(intents)
    requests = [_item(each) for each in cantrip]
    results: Any = []
    page: Any = []
    size = 0
    for request in [*requests, None]:
        more = _size(request) if request is not None else 0
        if more > _MOST_AT_ONCE:
            raise ValueError(
                f"the request of child {len(results) + len(page)} is {more:,} bytes as JSON, and the limit is "
                f"{_MOST_AT_ONCE:,}: give the child a smaller part of the data"
            )
        if page and (request is None or size + more > _MOST_AT_ONCE):
            results = results + _batch_results(page, len(results))
            page, size = [], 0
        page.append(request)
        size += more + 1
    return results


def _batch_results(page: Any, before: Any) -> Any:
    try:
        answers = _ask("cantrip.cast_batch", {"requests": page})
    except GateError as error:
        if not before:
            raise
        # Return the earlier results, because those children have run and were paid for.
        answers = [{"is_error": True, "error": str(error)}] * len(page)
    return [Result(each) for each in answers]


def summon(cantrip: Any = None, context: Any = ...) -> Any:
    """Start a child that stays until it is dismissed or this entity ends. Use `send` to give it intents."""
    asked = dict(_value(cantrip).asked)
    if context is not ...:
        asked["context"] = context
    return Child(_ask("cantrip.summon", asked)["child"])


def send(child: Any, intent: Any) -> Any:
    """Give a summoned child an intent, wait, and return its `Result`. Raises GateError if it fails."""
    if not isinstance(child, Child):
        raise TypeError("send needs a summoned child: child = summon(Cantrip(...))")
    return Result(_ask("cantrip.send", {"child": child.entity_id, "intent": intent}))


def dismiss(child: Any) -> Any:
    """End a summoned child. Does nothing if it has already ended."""
    _ask("cantrip.dismiss", {"child": child.entity_id})


def _value(cantrip: Any) -> Any:
    if cantrip is None:
        return Cantrip()
    if isinstance(cantrip, dict):
        return Cantrip(**cantrip)
    if not isinstance(cantrip, Cantrip):
        raise TypeError(f"describe a child by a Cantrip(...), not by {cantrip!r}")
    return cantrip


def _request(cantrip: Any, intent: Any, context: Any) -> Any:
    if not isinstance(intent, str):
        raise TypeError(
            f"intent is required and must be text that says what the child has to do (INTENT-1), not {intent!r}"
        )
    made = {"intent": intent, **_value(cantrip).asked}
    if context is not ...:
        made["context"] = context
    return made


def _item(each: Any) -> Any:
    if isinstance(each, str):
        return _request(None, each, ...)
    if isinstance(each, dict):
        rest = dict(each)
        intent = rest.pop("intent", None)
        context = rest.pop("context", ...)
        return _request(rest.pop("cantrip") if "cantrip" in rest else rest, intent, context)
    cantrip, intent, *context = each
    return _request(cantrip, intent, context[0] if context else ...)
