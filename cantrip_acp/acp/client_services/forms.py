"""Forms and pages: asks the user through the client, for the gate `ask_user`, MCP servers and sign-in (ACP, Elicitation).

A form must not ask for a secret (the protocol forbids that). A form that the user declines, cancels or fills in wrongly
counts as no answer. If the client has no forms, the gate `ask_user` asks in the chat.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import anyio
import msgspec

from cantrip_acp.acp.render.event_translator import Checkpoint
from cantrip_acp.acp.wire.connection import Disconnected
from cantrip_acp.acp.wire.jsonrpc import RpcError
from cantrip_acp.gates.contract import GateReply
from cantrip_acp.gates.interaction.ask_user import question_text, title
from cantrip_acp.text.logs import logger
from cantrip_acp.types import events
from cantrip_acp.types.errors import GateError

if TYPE_CHECKING:
    from cantrip_acp.acp.protocol import ClientAbilities
    from cantrip_acp.acp.wire.connection import Connection
    from cantrip_acp.gates.contract import GateContext
    from cantrip_acp.gates.mcp.declaration import ServerQuestion


log = logger(__name__)

METHOD = "elicitation/create"
MAX_ANSWER = 100_000
"""The largest number of characters of an answer. The rest is cut."""


class Form(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True):
    """A form with one field. It belongs to a session (and perhaps a tool call) or to a request that is still open."""

    message: str
    requested_schema: Mapping[str, Any]
    session_id: str | None = None
    tool_call_id: str | None = None
    request_id: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    mode: str = msgspec.field(default_factory=lambda: "form")


class FormResult(msgspec.Struct):
    action: str
    content: Mapping[str, Any] | None = None


class Page(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True):
    """A page that the user is asked to open. It belongs to a session (and perhaps a tool call) or to an open request."""

    message: str
    url: str
    elicitation_id: str
    session_id: str | None = None
    tool_call_id: str | None = None
    request_id: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    mode: str = msgspec.field(default_factory=lambda: "url")

    def __repr__(self) -> str:
        # The address can hold a key.
        return f"Page(elicitation_id={self.elicitation_id!r})"


class PageDone(msgspec.Struct, rename="camel"):
    """Parameters of ``elicitation/complete``."""

    elicitation_id: str


async def ask_to_open(connection: Connection, page: Page) -> str:
    """Ask the user to open a page. Returns the action: accept, decline or cancel."""
    try:
        result: FormResult = await connection.request(METHOD, page, FormResult)
    except (RpcError, Disconnected) as problem:
        log.warning("the client did not show a page: %s", problem)
        return "cancel"
    return result.action


class SessionQuestions:
    """Shows the questions of a session's MCP servers (`gates.mcp.declaration.ServerQuestions`)."""

    def __init__(self, connection: Connection, session_id: str, client: ClientAbilities, context: GateContext) -> None:
        self._connection = connection
        self._session_id = session_id
        self._client = client
        self._context = context

    async def ask(self, question: ServerQuestion) -> tuple[str, Mapping[str, Any] | None]:
        if not (self._client.urls if question.url else self._client.forms):
            return "decline", None
        call_id = self._context.call_id if await after_earlier_events(self._context) else None
        where: dict[str, Any] = {"session_id": self._session_id, "tool_call_id": call_id}
        message = f"{question.server}: {question.message}"
        if question.url:
            page = Page(message=message, url=question.url, elicitation_id=question.id, **where)
            return await ask_to_open(self._connection, page), None
        form = Form(message=message, requested_schema=question.schema, **where)
        try:
            result: FormResult = await self._connection.request(METHOD, form, FormResult)
        except (RpcError, Disconnected) as problem:
            log.warning("the client did not show a form: %s", problem)
            return "cancel", None
        return result.action, result.content

    def complete(self, question_id: str) -> None:
        self._connection.notify_now("elicitation/complete", PageDone(question_id))


async def after_earlier_events(context: GateContext) -> bool:
    """Wait until all earlier events of a call were shown. Returns whether the client knows the call; it does not know calls
    of children."""
    if context.turn is None or context.turn.depth or not context.turn.listening:
        return False
    checkpoint = Checkpoint(entity_id=context.entity_id, cast_id=context.cast_id, reached=anyio.Event())
    await context.turn.emit(checkpoint)
    await checkpoint.reached.wait()
    return True


_FIELD = "answer"


def form_schema(title: str, choices: Sequence[tuple[str, str]] = (), *, default: str = "") -> dict[str, Any]:
    """The JSON Schema of a form with one field. The field is free text, or one of ``choices`` (value and label)."""
    field: dict[str, Any] = {"type": "string", "title": title}
    if choices:
        field["oneOf"] = [{"const": value, "title": shown} for value, shown in choices]
    else:
        field["minLength"] = 1
    if default:
        field["default"] = default
    return {"type": "object", "properties": {_FIELD: field}, "required": [_FIELD]}


async def ask_with_form(connection: Connection, form: Form) -> str | None:
    """Show a form and return the user's answer. None if the user gave no valid answer, or the form could not be shown."""
    return (await _action_and_answer(connection, form))[1]


async def _action_and_answer(connection: Connection, form: Form) -> tuple[str, str | None]:
    try:
        result: FormResult = await connection.request(METHOD, form, FormResult)
    except RpcError as problem:
        log.warning("the client did not show a form: %s", problem)
        return "cancel", None
    except Disconnected:
        return "cancel", None
    if result.action != "accept" or result.content is None:
        return result.action, None
    answer = result.content.get(_FIELD)
    if not isinstance(answer, str) or not answer.strip():
        return result.action, None
    choices = form.requested_schema["properties"][_FIELD].get("oneOf")
    if choices is not None and answer not in {choice["const"] for choice in choices}:
        return result.action, None
    return result.action, answer[:MAX_ANSWER]


class UserQuestions:
    """The gate `ask_user` for the entities of one session."""

    def __init__(self, connection: Connection, session_id: str, *, forms: bool) -> None:
        self._connection = connection
        self._session_id = session_id
        self._forms = forms

    async def ask(self, args: Mapping[str, Any], context: GateContext) -> GateReply:
        """The gate's handler. A question without an answer is an error that says whether the user skipped it."""
        question, choices = args["question"], args.get("choices", ())
        direct = context.turn is not None and context.turn.depth == 0 and context.turn.listening
        if not self._forms:
            if not direct or context.turn is None:
                raise GateError(
                    "the user cannot be asked from here",
                    "decide by what you know, or return the question as your answer",
                )
            text = question_text(question, choices)
            message_id = f"{context.call_id}:question"
            await context.turn.emit(
                events.Text(entity_id=context.entity_id, cast_id=context.cast_id, delta=text, message_id=message_id)
            )
            return GateReply(
                "the question is in the chat now. The user can answer only with the next message. Do the work that does not "
                "depend on the answer, then end. The answer comes as the next intent",
                annotations={events.ASKED_IN_CHAT: text},
            )
        direct = await after_earlier_events(context)
        form = Form(
            message=question,
            requested_schema=form_schema("Answer", [(choice, choice) for choice in choices]),
            session_id=self._session_id,
            tool_call_id=context.call_id if direct else None,
        )
        action, answer = await _action_and_answer(self._connection, form)
        if answer is None:
            skipped = action == "decline"
            why = "the user skipped the question" if skipped else "the user gave no answer"
            notes = {"error": why, events.QUESTION: "skipped" if skipped else "unanswered"}
            advice = "Decide by what you know, or end and say what you need"
            return GateReply(f"{why}. {advice}", is_error=True, title=title(question), annotations=notes)
        return GateReply(answer, title=title(question), annotations={events.QUESTION: "answered"})
