"""The type of a cast's result: a done gate that checks the answer, and the answer of a finished cast as a value.

An answer that does not fit is an error of ``done``. So the entity reads what is wrong and goes on, as after every error of
a gate, until its answer fits or a ward ends the cast.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from cantrip_acp.core.casting.result import CastResult
from cantrip_acp.core.definition.circle import Circle
from cantrip_acp.gates.contract import Gate, GateContext
from cantrip_acp.text.json_data import thaw
from cantrip_acp.text.python_types import PythonType, SchemaType
from cantrip_acp.types.errors import DefinitionError, GateError, NoResult

Value = TypeVar("Value")


class _TypedDone:
    """The handler of a done gate that checks its answer."""

    def __init__(self, gate: Gate, kind: PythonType[Any]) -> None:
        self.gate = gate
        """The done gate without a type."""
        self.kind = kind

    def __call__(self, args: Mapping[str, Any], context: GateContext) -> Any:
        try:
            self.kind.load(args["answer"])
        except ValueError as error:
            raise GateError(f"the answer is not a valid {self.kind.name}: {error}") from None
        return self.gate.handler(args, context)


def with_result_type(circle: Circle, kind: PythonType[Any] | None) -> Circle:
    """The circle with a done gate that takes only answers of a type. None removes the type again.

    Raises `DefinitionError` for a done gate of another package that has no argument ``answer``.
    """
    gates = circle.own_gates
    done = next((gate for gate in gates if gate.name == "done"), None)
    if done is None:
        return circle
    known = done.handler
    plain = known.gate if isinstance(known, _TypedDone) else done
    if kind is None:
        made = plain
    elif isinstance(known, _TypedDone) and known.kind is kind:
        made = done
    else:
        made = _typed(plain, kind, shown=circle.medium.tool is not None)
    return circle if made is done else circle.replace(gates=[made if gate is done else gate for gate in gates])


def _typed(gate: Gate, kind: PythonType[Any], *, shown: bool) -> Gate:
    """Give a done gate the schema of a result type. ``shown``: the medium describes gates in words, so the schema goes into
    the description."""
    if "answer" not in gate.properties:
        raise DefinitionError("result_type needs a done gate with the argument 'answer'", where="result_type")
    schema, parts = kind.schema()
    text = json.dumps({**schema, **({"$defs": parts} if parts else {})}, ensure_ascii=False)
    parameters = thaw(gate.parameters)
    before = parameters["properties"]["answer"].get("description")
    parameters["properties"]["answer"] = schema if before is None else {"description": before, **schema}
    if parts:
        parameters["$defs"] = {**parameters.get("$defs", {}), **parts}
    first, _, rest = gate.description.partition("\n")
    return replace(
        gate,
        parameters=parameters,
        description="\n".join(
            [f"{first} The answer must fit this JSON Schema: {text}", rest] if shown else [first, rest]
        ).rstrip(),
        handler=_TypedDone(gate, kind),
    )


def typed_result(result: CastResult[Any], kind: PythonType[Value] | None) -> CastResult[Value]:
    """The result of a cast with its answer as a value of the type. Raises `NoResult` if the cast ended without one."""
    if kind is None:
        return result
    if not result.terminated and isinstance(kind, SchemaType):
        # A recipe's schema is for programs that read how the cast ended; no Python type promises more.
        return result
    if not result.terminated:
        raise NoResult(
            f"the cast ended without a {kind.name} ({result.reason}, {result.turns} turns): {result.summary}",
            cast=result,
        )
    try:
        return replace(result, result=kind.load(result.result))
    except ValueError as error:
        # The circle's own done gate changed the answer, or the answer held a known secret, which was masked.
        raise NoResult(f"the recorded answer is not a valid {kind.name}: {error}", cast=result) from None
