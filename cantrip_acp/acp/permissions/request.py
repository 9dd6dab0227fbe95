"""Permission requests: sends a question to the client and returns the user's answer (ACP, Requesting Permission).

The client must get all earlier updates before the request. So a `PermissionAsked` event goes through the entity's event
stream first, and the request is sent when that event arrives. A client that never answers blocks only that turn.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from cantrip_acp.acp import protocol as acp
from cantrip_acp.acp.permissions.edits import Decision
from cantrip_acp.acp.render.event_translator import title_of_child_call
from cantrip_acp.acp.render.formatting import (
    code_block,
    file_locations,
    headline,
    text_content,
    title_with_counts,
    truncate_end,
)
from cantrip_acp.acp.wire.connection import Disconnected
from cantrip_acp.acp.wire.jsonrpc import RpcError
from cantrip_acp.text.logs import logger
from cantrip_acp.types import events

if TYPE_CHECKING:
    from cantrip_acp.acp.permissions.interceptor import Question
    from cantrip_acp.acp.render.event_translator import title_of_child_call
from cantrip_acp.acp.wire.connection import Connection

log = logger(__name__)

METHOD = "session/request_permission"
WITH_REASON = "reject_with_reason"


class PermissionAsked(events.Event, frozen=True, kw_only=True, tag="permission"):
    """Marks the place of a question among the events. ``reached`` is set when all earlier events were sent."""

    question: Any
    reached: Any


async def ask_client(
    connection: Connection, session_id: str, question: Question, *, forms: bool = False
) -> Decision | None:
    """Ask the user through the client. Returns None if the client cancelled the question.

    A rejection may have a reason: the client sends it as ``_meta.cantrip.reason`` of the outcome, or, if it shows ``forms``,
    the user chooses to write one in a form.

    """
    content: list[acp.ToolContent] = [acp.Diff(d.path, d.old_text, d.new_text) for d in question.diffs]
    if question.text:
        language = "python" if question.tool == "python" else "sh"
        content.append(text_content(code_block(truncate_end(escape_invisible(question.text)), language)))
    title = title_with_counts(escape_invisible(question.title), question.diffs)
    call = acp.PermissionToolCall(
        tool_call_id=question.call_id,
        title=title if question.child is None else title_of_child_call(title, question.child),
        kind=question.kind,
        name=question.tool,
        status="pending",
        content=content or None,
        locations=file_locations(question.locations),
        raw_input=question.raw_input,
    )
    options = options_of(question, forms=forms)
    outcome = await outcome_of(connection, acp.RequestPermission(session_id, call, options))
    if outcome.outcome == "cancelled":
        return None
    reason = outcome.note("reason")
    if outcome.option_id == WITH_REASON and not reason:
        from cantrip_acp.acp.client_services.forms import Form, ask_with_form, form_schema

        message = f"Why do you reject this? The agent reads your answer.\n\n{headline(title)}"
        form = Form(message=message, requested_schema=form_schema("Reason"), session_id=session_id)
        reason = await ask_with_form(connection, form) or ""
    offered = {"unasked", *(option.option_id for option in options)} - {WITH_REASON}
    answer = outcome.option_id if outcome.option_id in offered else "reject_once"
    return Decision(answer, reason)  # type: ignore[arg-type]


def options_of(question: Question, *, forms: bool = False) -> list[acp.PermissionOption]:
    """The answers that a user can choose. With ``forms`` one of them leads to a form for a reason."""
    with_reason = [acp.PermissionOption(WITH_REASON, "Reject, with a reason…", "reject_once")] if forms else []
    if question.edits:
        return [
            acp.PermissionOption("allow_once", "Allow all", "allow_once"),
            # Nothing is allowed by this, but it is no rejection either.
            acp.PermissionOption("each", "Look at each", "allow_once"),
            acp.PermissionOption("reject_once", "Reject all", "reject_once"),
            *with_reason,
        ]
    if question.host:
        return _options_of_host(question, with_reason)
    pattern = headline(escape_invisible(question.pattern_text))
    allowing = headline(escape_invisible(question.allowing_text))
    step = [acp.PermissionOption("allow_step", "Allow all edits of this step", "allow_once")]
    return [
        acp.PermissionOption("allow_once", "Allow", "allow_once"),
        *(step if question.step else []),
        acp.PermissionOption("allow_always", f"Always allow {allowing}", "allow_always"),
        acp.PermissionOption("reject_once", "Reject", "reject_once"),
        *with_reason,
        acp.PermissionOption("reject_always", f"Always reject {pattern}", "reject_always"),
    ]


def _options_of_host(question: Question, with_reason: list[acp.PermissionOption]) -> list[acp.PermissionOption]:
    host = question.host
    all_of_them = ", ".join(name if port == 443 else f"{name}:{port}" for name, port in question.registries)
    registries = f"Allow the registries of this project: {all_of_them}"
    return [
        acp.PermissionOption("allow_once", "Allow for this command", "allow_once"),
        acp.PermissionOption("allow_always", f"Allow {host} in this session", "allow_always"),
        acp.PermissionOption("allow_project", f"Allow {host} in this project", "allow_always"),
        *([acp.PermissionOption("allow_registries", registries, "allow_always")] if all_of_them else []),
        acp.PermissionOption("reject_once", "Refuse", "reject_once"),
        *with_reason,
        acp.PermissionOption("reject_always", f"Refuse {host} in this session", "reject_always"),
    ]


_INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0e\ufeff\uffa0\ufff0-\ufffb\U000e0000-\U000e0fff]"
)


def escape_invisible(text: str) -> str:
    """Replace invisible characters, and characters that change the text direction, by escapes.

    People decide by this text, so it must not hide anything.

    >>> escape_invisible("rm \u202egpj.a")
    'rm \\\\u202egpj.a'
    """
    return text if text.isascii() and text.isprintable() else _INVISIBLE.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


async def choose(connection: Connection, request: acp.RequestPermission) -> str | None:
    """Send a permission request. Returns the id of the chosen option, ``unasked`` if the client could not ask, or None if
    the client cancelled the question."""
    outcome = await outcome_of(connection, request)
    return None if outcome.outcome == "cancelled" else outcome.option_id


async def outcome_of(connection: Connection, request: acp.RequestPermission) -> acp.PermissionOutcome:
    """Send a permission request. Returns ``cancelled``, or ``selected`` with an option: ``unasked`` if the client could not
    ask, ``reject_once`` if its answer is none that the protocol knows."""
    try:
        answer: acp.PermissionAnswer = await connection.request(METHOD, request, acp.PermissionAnswer)
    except RpcError as problem:
        log.warning("the client could not ask the user for permission: %s", problem)
        return acp.PermissionOutcome("selected", "unasked")
    except Disconnected:
        return acp.PermissionOutcome("selected", "unasked")
    outcome = answer.outcome
    if outcome.outcome == "cancelled" or (outcome.outcome == "selected" and outcome.option_id is not None):
        return outcome
    return acp.PermissionOutcome("selected", "reject_once")
