"""Plan mode: the entity cannot change anything and ends with a plan, which the user approves, edits or returns (docs/sessions.md).

A plan is the part of an answer that begins with a heading ``# Plan``. The user decides on it by a permission request. An
approved plan, as the user edited it, becomes the intent of the next cast of the same prompt, in the mode that the user
chose. Comments become the intent of another cast in plan mode. So the loom has all of it, and it works in every medium.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

from cantrip_acp.acp import protocol as acp
from cantrip_acp.acp.permissions.request import escape_invisible, outcome_of
from cantrip_acp.acp.render.formatting import text_content, truncate_end
from cantrip_acp.acp.sessions.options import modes
from cantrip_acp.types.context_block import WARDS, ContextBlock

if TYPE_CHECKING:
    from collections.abc import Callable

    from cantrip_acp.acp.wire.connection import Connection

INSTRUCTION = ContextBlock(
    "This session is in plan mode: look at what you need, but nothing can be changed. If the task needs changes, end with an "
    "answer that holds the plan: a line `# Plan`, and below it, in Markdown and up to the end of the answer, what you will "
    "change, in which files, in which order, and how you will check it. The user approves, edits or returns the plan. Do not "
    "start the work before. A question that needs no changes gets a plain answer without that line.",
    "Plan mode",
    "session",
)
"""The instruction that the entity reads before each intent in plan mode."""

APPROVALS: tuple[tuple[str, Literal["allow_once", "allow_always"], str], ...] = (
    (modes.SANDBOXED, "allow_always", "Yes, and change files in the sandbox freely"),
    (modes.ASK, "allow_once", "Yes, and ask before each change"),
    (modes.TRUSTED, "allow_always", "Yes, and do not ask"),
)
"""The modes in which an approved plan can be carried out: the mode, the kind of the option, and its name."""

_HEADING = re.compile(r"^#{1,3}[ \t]+plan\b", re.IGNORECASE | re.MULTILINE)
_APPROVED = "I approve this plan"
_EDIT, _COMMENT = "edit_plan", "return_with_comments"


def mode_note(mode: str) -> tuple[ContextBlock, ContextBlock]:
    """The notes that tell an entity and its children which mode holds now."""
    described = next(each.description for each in modes.MODES if each.id == mode)
    text = (
        f"The user switched this session to the mode {modes.name_of(mode)!r}: {described} This replaces what you were told "
        "about your environment before."
    )
    child = ContextBlock(text, "Mode", "session", f"{WARDS}{mode}")
    return (replace(child, text=f"{text}\n\n{INSTRUCTION.text}") if mode == modes.PLAN else child), child


def plan_in(answer: Any) -> str | None:
    """The plan in the answer of a cast; None if it has none."""
    found = _HEADING.search(answer) if isinstance(answer, str) else None
    return answer[found.start() :].strip() if found is not None else None


def approved_intent(plan: str, mode: str, *, edited: bool) -> str:
    """The intent with which the entity carries out a plan."""
    changed = " after an edit; this text is what holds" if edited else ""
    return f"{_APPROVED}{changed}. The mode is now {modes.name_of(mode)!r}. Carry it out.\n\n{plan}"


def shown_intent(intent: str, said: str) -> str:
    """The intent for people: without the plan that it approves, if ``said`` already ended with that plan."""
    head, _, plan = intent.partition("\n\n")
    return head if head.startswith(_APPROVED) and plan and said.rstrip().endswith(plan.rstrip()) else intent


def returned_intent(comments: str) -> str:
    """The intent with which the entity makes another plan."""
    return f"I return your plan with comments. Make it again and end with the new plan.\n\n{comments}"


class PlanDecision(Struct, frozen=True):
    """The user's decision on a plan. ``mode`` is set for an approved plan, ``comments`` for a plan returned with comments."""

    plan: str
    mode: str | None = None
    comments: str = ""
    edited: bool = False
    cancelled: bool = False

    @property
    def intent(self) -> str | None:
        """The intent of the next cast; None if there is none."""
        if self.mode is not None:
            return approved_intent(self.plan, self.mode, edited=self.edited)
        return returned_intent(self.comments) if self.comments else None


async def ask_about_plan(
    connection: Connection, session_id: str, call_id: str, plan: str, show: Callable[[acp.Update], None], *, forms: bool
) -> PlanDecision:
    """Ask the user about a plan. ``show`` sends an update of the session.

    The id of an option is the mode in which the plan is carried out. A client may send ``_meta.cantrip.plan`` (the edited
    plan) and ``_meta.cantrip.reason`` (comments) with its choice. If it shows ``forms``, two options ask for them.
    """
    call = acp.PermissionToolCall(
        tool_call_id=call_id, title="Carry out this plan?", kind="switch_mode", status="pending"
    )
    show(
        acp.ToolCall(
            tool_call_id=call_id,
            title=call.title,
            kind=call.kind,
            status=call.status,
            content=_shown(plan),
            raw_input={"plan": plan},
        )
    )
    options = [acp.PermissionOption(mode, name, kind) for mode, kind, name in APPROVALS]
    if forms:
        options += [
            acp.PermissionOption(_EDIT, "Edit the plan first…", "allow_once"),
            acp.PermissionOption(_COMMENT, "No, with comments…", "reject_once"),
        ]
    options.append(acp.PermissionOption(modes.PLAN, "No, keep planning", "reject_once"))
    decision = await _decide(connection, acp.RequestPermission(session_id, call, options), plan)
    show(
        acp.ToolCallUpdate(
            tool_call_id=call_id,
            title=f"Plan approved: {modes.name_of(decision.mode)}" if decision.mode is not None else "Plan returned",
            kind="switch_mode",
            status="completed" if decision.mode is not None else "failed",
            content=[*_shown(decision.plan), *([text_content(decision.comments)] if decision.comments else [])],
        )
    )
    return decision


async def _decide(connection: Connection, request: acp.RequestPermission, plan: str) -> PlanDecision:
    edited = False
    while True:
        request.tool_call.content, request.tool_call.raw_input = _shown(plan), {"plan": plan}
        outcome = await outcome_of(connection, request)
        if outcome.outcome == "cancelled":
            return PlanDecision(plan, cancelled=True)
        changed = outcome.note("plan")
        if outcome.option_id == _EDIT and not changed:
            message = "Edit the plan. The agent gets what you leave here."
            changed = await _form(connection, request.session_id, message, "Plan", plan)
        if changed and changed != plan:
            edited, plan = True, changed
        if outcome.option_id == _EDIT:
            continue
        if any(outcome.option_id == mode for mode, _, _ in APPROVALS):
            return PlanDecision(plan, outcome.option_id, edited=edited)
        comments = outcome.note("reason")
        if outcome.option_id == _COMMENT and not comments:
            comments = await _form(connection, request.session_id, "What should be different in the plan?", "Comments")
        return PlanDecision(plan, comments=comments)


async def _form(connection: Connection, session_id: str, message: str, title: str, text: str = "") -> str:
    from cantrip_acp.acp.client_services.forms import Form, ask_with_form, form_schema

    form = Form(message=message, requested_schema=form_schema(title, default=text), session_id=session_id)
    return (await ask_with_form(connection, form) or "").strip()


def _shown(plan: str) -> list[acp.ToolContent]:
    return [text_content(truncate_end(escape_invisible(plan)))]
