"""The gate `ask_user` by a form of the client's (ACP, Elicitation); where it shows none, the question is said in the chat."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import anyio

from cantrip_acp.acp.elicitation import Form, ask, question
from cantrip_acp.acp.shown import IN_CHAT
from cantrip_acp.acp.translate import Reached
from cantrip_acp.core import events
from cantrip_acp.core.errors import GateError
from cantrip_acp.gates.contract import GateReply
from cantrip_acp.gates.interaction.ask_user import in_chat, title

if TYPE_CHECKING:
    from cantrip_acp.acp.wire import Connection
    from cantrip_acp.gates.contract import GateContext


class Questions:
    """Questions of one session's entities to its user."""

    def __init__(self, connection: Connection, session_id: str, *, forms: bool) -> None:
        self._connection = connection
        self._session_id = session_id
        self._forms = forms

    async def ask(self, args: Mapping[str, Any], context: GateContext) -> GateReply:
        """The gate's handler. Raises `GateError` where there is no answer."""
        asked, choices = args["question"], args.get("choices", ())
        direct = context.turn is not None and context.turn.depth == 0 and context.turn.listening
        if not self._forms:
            if not direct or context.turn is None:
                raise GateError(
                    "the user cannot be asked from here", "decide by what you know, or answer with the question"
                )
            said = in_chat(asked, choices)
            message_id = f"{context.call_id}:question"
            await context.turn.emit(
                events.Text(entity_id=context.entity_id, cast_id=context.cast_id, delta=said, message_id=message_id)
            )
            return GateReply(
                f"{IN_CHAT}, and this client takes an answer only with its user's next message. Do "
                "what does not depend on it, then end; the answer comes as the next intent"
            )
        if direct and context.turn is not None:
            # Behind everything that leads to it.
            reached = Reached(entity_id=context.entity_id, cast_id=context.cast_id, shown=anyio.Event())
            await context.turn.emit(reached)
            await reached.shown.wait()
        form = Form(
            message=asked,
            requested_schema=question("Answer", [(choice, choice) for choice in choices]),
            session_id=self._session_id,
            tool_call_id=context.call_id if direct else None,
        )
        answer = await ask(self._connection, form)
        if answer is None:
            raise GateError("the user gave no answer", "Decide by what you know, or end and say what you would need")
        return GateReply(answer, title=title(asked))
