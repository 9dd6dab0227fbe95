"""Asking a session's user for more than yes or no: a form that the client shows (ACP, Elicitation).

Only where the client offers forms. A form never asks for a secret: the protocol forbids it, and keys have other ways.
What comes back is checked here; a form that is declined, cancelled or answered wrongly is no answer.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from cantrip_acp.acp.envelope import RpcError
from cantrip_acp.acp.wire import Disconnected

if TYPE_CHECKING:
    from cantrip_acp.acp.wire import Connection

log = logging.getLogger(__name__)

METHOD = "elicitation/create"
LONGEST = 100_000
"""Characters of one answer that are taken."""


class Form(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True):
    """A question of one field, tied to a session (and a tool call in it) or to a request that is still open."""

    message: str
    requested_schema: Mapping[str, Any]
    session_id: str | None = None
    tool_call_id: str | None = None
    request_id: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    mode: str = msgspec.field(default_factory=lambda: "form")


class Filled(msgspec.Struct):
    action: str
    content: Mapping[str, Any] | None = None


FIELD = "answer"


def question(title: str, choices: Sequence[tuple[str, str]] = ()) -> dict[str, Any]:
    """The schema of a form with one field: a text, or one of ``choices`` (value and how it is shown)."""
    field: dict[str, Any] = {"type": "string", "title": title}
    if choices:
        field["oneOf"] = [{"const": value, "title": shown} for value, shown in choices]
    else:
        field["minLength"] = 1
    return {"type": "object", "properties": {FIELD: field}, "required": [FIELD]}


async def ask(connection: Connection, form: Form) -> str | None:
    """What the user answered; None where there is no answer: declined, cancelled, not one of the choices, or no such client."""
    try:
        filled: Filled = await connection.request(METHOD, form, Filled)
    except RpcError as problem:
        log.warning("the client did not show a form: %s", problem)
        return None
    except Disconnected:
        return None
    if filled.action != "accept" or filled.content is None:
        return None
    answer = filled.content.get(FIELD)
    if not isinstance(answer, str) or not answer.strip():
        return None
    choices = form.requested_schema["properties"][FIELD].get("oneOf")
    if choices is not None and answer not in {choice["const"] for choice in choices}:
        return None
    return answer[:LONGEST]
