"""The gates ``call_agent`` and ``call_agent_batch`` (§5.1, §5.2, D-002)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cantrip_acp.core.delegation.request import CHILD_SCHEMA, Request, recorded_data
from cantrip_acp.gates.confinement import quoted
from cantrip_acp.gates.contract import Gate, GateContext, GateReply
from cantrip_acp.types.errors import ChildRefused, GateError

if TYPE_CHECKING:
    from cantrip_acp.core.casting.turn_builder import TurnBuilder
    from cantrip_acp.gates.wards import Wards

MOST_IN_BATCH = 10_000
"""Maximum number of requests in one batch."""


async def _call_agent(args: Mapping[str, Any], context: GateContext) -> Any:
    from cantrip_acp.core.delegation import run_child

    turn = turn_of(context)
    try:
        (planned,) = await run_child.plan_children(turn, [Request.of(args)], context.call_id)
    except ChildRefused as why:
        return refusal_reply(why)
    return await run_child.run_child(turn, planned, context.call_id)


async def _call_agent_batch(args: Mapping[str, Any], context: GateContext) -> Any:
    from cantrip_acp.core.delegation import run_child

    turn = turn_of(context)
    requests = [Request.of({"intent": each} if isinstance(each, str) else each) for each in args["requests"]]
    try:
        planned = await run_child.plan_children(turn, requests, context.call_id)
    except ChildRefused as why:
        return refusal_reply(why)
    return await run_child.run_children(turn, planned, context.call_id)


def turn_of(context: GateContext) -> TurnBuilder:
    """The turn that spawns the child. Raises `GateError` outside of a turn."""
    from cantrip_acp.core.casting.turn_builder import TurnBuilder

    if not isinstance(context.turn, TurnBuilder):
        raise GateError("a child can only be started during a turn, and no turn is running here")
    return context.turn


def refusal_reply(why: ChildRefused) -> GateReply:
    """A refusal as the error observation of a call."""
    return GateReply(str(why), is_error=True, annotations={"child_refused": why.ward})


def preview(args: Mapping[str, Any], context: GateContext) -> GateReply:
    """The title of a call, for an editor."""
    if "requests" in args:
        return GateReply(None, title=f"{len(args['requests'])} children")
    return GateReply(None, title=f"Delegate {quoted(_one_line(args['intent']))}")


def _one_line(text: str) -> str:
    line = " ".join(text[:400].split())
    return line if len(line) <= 80 else line[:79] + "…"


def recorded_args(args: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments for the record of the call. Large data are replaced by their size, hash and first characters."""
    if "requests" in args:
        requests = args["requests"]
        if isinstance(requests, list):
            return {**args, "requests": [recorded_args(r) if isinstance(r, Mapping) else r for r in requests]}
        return args
    return {**args, "context": recorded_data(args["context"])} if "context" in args else args


def _describe_limits(gate: Gate, wards: Wards) -> Gate:
    """The gate with the limits for children in its description, so that the parent knows them before it asks."""
    facts = [f"Children may nest {wards.max_depth} deep" if wards.max_depth > 1 else "Children cannot spawn their own"]
    if gate.name == "call_agent_batch":
        facts.append(f"{wards.max_concurrent_children} run at once")
    if wards.max_children_total is not None:
        facts.append(f"{wards.max_children_total} are possible in all")
    names = gate.dependencies.get("crystals")
    if names:
        facts.append(f"their crystal may be yours or {', '.join(map(repr, names))}")
    if wards.child_medium_allowlist is not None:
        facts.append(f"their medium may be {', '.join(wards.child_medium_allowlist) or 'none'}")
    if wards.child_gate_allowlist is not None:
        facts.append(f"their gates may be {', '.join(wards.child_gate_allowlist) or 'done alone'}")
    if wards.child_gate_denylist:
        facts.append(f"they must not have {', '.join(wards.child_gate_denylist)}")
    if wards.child_max_turns_ceiling is not None:
        facts.append(f"declare max_turns of at most {wards.child_max_turns_ceiling}")
    if wards.child_max_depth_ceiling is not None:
        facts.append(f"declare max_depth of at most {wards.child_max_depth_ceiling}")
    return replace(gate, description=f"{gate.description} {'; '.join(facts)}.")


CALL_AGENT = Gate(
    name="call_agent",
    description="Spawn a child entity for a task of its own, wait for it, and get its answer. It starts with nothing but "
    "its intent and context, has your gates or fewer, and fails with an error where it gives no answer.",
    parameters=CHILD_SCHEMA,
    handler=_call_agent,
    main_text="intent",
    json_input=True,
    kind="other",
    preview=preview,
    recorded=recorded_args,
    warded=_describe_limits,
)

CALL_AGENT_BATCH = Gate(
    name="call_agent_batch",
    description="Spawn several children that work beside each other: for each its intent, or an object with the arguments of "
    "call_agent. Gives their answers as a list in the order of the requests; in the place of one that failed is "
    '{"is_error": true, "error": "…"}.',
    parameters={
        "type": "object",
        "properties": {
            "requests": {
                "type": "array",
                "maxItems": MOST_IN_BATCH,
                "items": {"anyOf": [dict(CHILD_SCHEMA), {"type": "string", "minLength": 1}]},
                "description": "One object with the arguments of call_agent for each child, or its intent alone.",
            }
        },
        "required": ["requests"],
        "additionalProperties": False,
    },
    handler=_call_agent_batch,
    main_text="requests",
    json_input=True,
    kind="other",
    preview=preview,
    recorded=recorded_args,
    warded=_describe_limits,
)
