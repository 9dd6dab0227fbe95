"""The gate ``plan``: the entity publishes its plan, and the client shows each change (ACP, Agent Plan).

Each call sends the whole list. The plan only informs the reader and helps the entity. It does not control anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cantrip_acp.gates.contract import Gate, GateContext, GateReply
from cantrip_acp.types.errors import GateError
from cantrip_acp.types.events import PlanEntry, plan_entries

MOST_ENTRIES = 100
LONGEST = 2_000
"""The most characters of one entry."""
PRIORITIES = ("high", "medium", "low")
STATUSES = ("pending", "in_progress", "completed")


def _plan(args: Mapping[str, Any], context: GateContext) -> GateReply:
    try:
        entries = plan_entries(args)
    except ValueError as problem:
        raise GateError(str(problem), "describe the step in a few words") from None
    said = _summary(entries)
    return GateReply(f"plan: {said}", title=f"Plan, {said.replace('now: ', 'now ')}", plan=entries)


def _summary(entries: Sequence[PlanEntry]) -> str:
    if not entries:
        return "empty"
    done = sum(entry.status == "completed" for entry in entries)
    now = next((entry.content for entry in entries if entry.status == "in_progress"), "")
    text = f"{done} of {len(entries)} done"
    return f"{text}; now: {now[:120]}" if now else text


def _preview(args: Mapping[str, Any], context: GateContext) -> GateReply:
    return GateReply(None, title=f"Plan of {len(args['entries'])} entries")


PLAN = Gate(
    name="plan",
    description=(
        "Show the user your plan: a list of {content, status: pending | in_progress | completed, priority: high | medium | "
        "low}. Give the whole list every time, with what is completed; it replaces the one before. An empty list takes it away."
    ),
    parameters={
        "type": "object",
        "properties": {
            "entries": {
                "type": "array",
                "maxItems": MOST_ENTRIES,
                "description": 'The steps in order, such as [{"content": "Run the tests", "status": "in_progress"}].',
                "items": {
                    "type": "object",
                    "properties": {
                        "content": {
                            "type": "string",
                            "minLength": 1,
                            "maxLength": LONGEST,
                            "description": "What is to be done, in a few words.",
                        },
                        "priority": {"enum": list(PRIORITIES), "default": "medium"},
                        "status": {"enum": list(STATUSES), "default": "pending"},
                    },
                    "required": ["content"],
                    "additionalProperties": False,
                },
            }
        },
        "required": ["entries"],
        "additionalProperties": False,
    },
    handler=_plan,
    kind="think",
    preview=_preview,
)
