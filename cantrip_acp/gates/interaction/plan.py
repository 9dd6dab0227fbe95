"""``plan``: the entity publishes its plan, and the client shows each change (ACP, Agent Plan).

Each call sends the whole list. It controls nothing: it informs the reader and helps the entity.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cantrip_acp.core.errors import GateError
from cantrip_acp.core.events import PlanEntry
from cantrip_acp.gates.contract import Gate, GateContext, GateReply

MOST_ENTRIES = 100
LONGEST = 2_000
"""Characters of one entry."""
PRIORITIES = ("high", "medium", "low")
STATUSES = ("pending", "in_progress", "completed")


def entries_of(args: Mapping[str, Any]) -> list[PlanEntry]:
    """The plan entries of a call. Raises `GateError` for an empty entry."""
    entries = []
    for index, given in enumerate(args["entries"]):
        content = " ".join(given["content"].split())
        if not content:
            raise GateError(f"entry {index} has no content", "say in a few words what is to be done")
        entries.append(PlanEntry(content, given.get("priority", "medium"), given.get("status", "pending")))
    return entries


def _plan(args: Mapping[str, Any], context: GateContext) -> GateReply:
    entries = entries_of(args)
    said = _said(entries)
    return GateReply(f"plan: {said}", title=f"Plan, {said.replace('now: ', 'now ')}", plan=tuple(entries))


def _said(entries: list[PlanEntry]) -> str:
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
