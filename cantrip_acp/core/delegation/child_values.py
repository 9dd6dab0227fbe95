"""Children from values: host side of the code medium's `Cantrip(...)`, `cast`, `cast_batch`, `summon` and `send`.

The executor calls them like gates, with the same checks as ``call_agent``. No circle declares them and no crystal
sees them as tools. An entity has them if it has ``call_agent`` and its medium has values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import anyio

from cantrip_acp.core.delegation import persistent_child, run_child
from cantrip_acp.core.delegation.call_agent import MOST_IN_BATCH, preview, recorded_args, refusal_reply, turn_of
from cantrip_acp.core.delegation.request import CHILD_PROPERTIES, Request
from cantrip_acp.core.lifecycle import children
from cantrip_acp.gates.contract import Gate, GateContext, GateReply
from cantrip_acp.types.errors import ChildRefused

if TYPE_CHECKING:
    from cantrip_acp.core.casting.result import CastResult

_VALUE: Mapping[str, Any] = {
    **CHILD_PROPERTIES,
    "call": {
        "type": "object",
        "properties": {
            "temperature": {"type": "number"},
            "top_p": {"type": "number"},
            "top_k": {"type": "integer", "minimum": 1},
            "min_p": {"type": "number"},
            "max_tokens": {"type": "integer", "minimum": 1},
            "seed": {"type": "integer"},
            "stop": {"type": "array", "items": {"type": "string"}, "maxItems": 16},
            "tool_choice": {"enum": ["auto", "required", "none"]},
            "require_done_tool": {"type": "boolean"},
        },
        "additionalProperties": False,
    },
}
"""The properties of a child, as JSON Schema."""


def _schema(properties: Mapping[str, Any], *required: str) -> Mapping[str, Any]:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(required),
        "additionalProperties": False,
    }


def result_data(result: CastResult) -> dict[str, Any]:
    """A child's result, as data for its parent's code. Raises `ChildFailed` if that cast was cut off (COMP-8)."""
    answer = run_child.answer_of(result)
    return {"result": answer, **run_child.cast_data(result)}


async def _cast(args: Mapping[str, Any], context: GateContext) -> Any:
    turn = turn_of(context)
    try:
        (planned,) = await run_child.plan_children(turn, [Request.of(args)], context.call_id)
    except ChildRefused as why:
        return refusal_reply(why)
    return await run_child.run_child(turn, planned, context.call_id, result_data)


async def _cast_batch(args: Mapping[str, Any], context: GateContext) -> Any:
    turn = turn_of(context)
    try:
        planned = await run_child.plan_children(turn, [Request.of(each) for each in args["requests"]], context.call_id)
    except ChildRefused as why:
        return refusal_reply(why)
    return await run_child.run_children(turn, planned, context.call_id, result_data)


async def _summon(args: Mapping[str, Any], context: GateContext) -> Any:
    turn = turn_of(context)
    try:
        child = await persistent_child.summon(turn, Request.of({"intent": "summoned", **args}), context.call_id)
    except ChildRefused as why:
        return refusal_reply(why)
    return {"child": child.id}


async def _send(args: Mapping[str, Any], context: GateContext) -> Any:
    turn, request = turn_of(context), Request.of({"intent": args["intent"]})
    try:
        return result_data(await persistent_child.send(turn, args["child"], request.intent, context.call_id))
    except ChildRefused as why:
        return refusal_reply(why)


async def _dismiss(args: Mapping[str, Any], context: GateContext) -> Any:
    with anyio.CancelScope(shield=True):
        return await children.dismiss(turn_of(context).entity, args["child"])


def _preview_child(args: Mapping[str, Any], context: GateContext) -> GateReply:
    return GateReply(None, title=f"child {args['child']}")


def _gate(name: str, parameters: Mapping[str, Any], handler: Any, **more: Any) -> Gate:
    return Gate(f"cantrip.{name}", "", parameters, handler, kind="other", **more)


_CHILD_ID = {"child": {"type": "string", "maxLength": 200}}
_INTENT = CHILD_PROPERTIES["intent"]
_ONE = _schema(_VALUE, "intent")

CHILD_FUNCTIONS: Mapping[str, Gate] = {
    gate.name: gate
    for gate in (
        _gate("cast", _ONE, _cast, preview=preview, recorded=recorded_args),
        _gate(
            "cast_batch",
            _schema({"requests": {"type": "array", "maxItems": MOST_IN_BATCH, "items": _ONE}}, "requests"),
            _cast_batch,
            preview=preview,
            recorded=recorded_args,
        ),
        _gate("summon", _schema({k: v for k, v in _VALUE.items() if k != "intent"}), _summon, recorded=recorded_args),
        _gate("send", _schema({**_CHILD_ID, "intent": _INTENT}, "child", "intent"), _send, preview=preview),
        _gate("dismiss", _schema(_CHILD_ID, "child"), _dismiss, preview=_preview_child),
    )
}
"""The calls, by the names that they have in the loom (`gates.registry.child_functions` says which a circle has)."""
