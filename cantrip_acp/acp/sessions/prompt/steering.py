"""Messages of the user for the running prompt of a session (``_session/steering``). One that comes too late for the last query
becomes the intent of another cast of the same prompt."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec import Struct

from cantrip_acp.acp import protocol as acp
from cantrip_acp.acp.render.notices import notice
from cantrip_acp.text.redaction import beginning
from cantrip_acp.types.errors import EntityIdle

if TYPE_CHECKING:
    from cantrip_acp.acp.sessions.session_interface import OpenSession
    from cantrip_acp.core.state import SteeringMessage
    from cantrip_acp.types.context_block import ContextBlock
    from cantrip_acp.types.events import CastStarted


class _Message(Struct, frozen=True):
    """A message of the user. ``sent`` is None if it came before a cast ran."""

    intent: str
    blocks: tuple[ContextBlock, ...]
    sent: SteeringMessage | None


class Steering:
    """The messages for the running prompt of one session that no query contains yet."""

    def __init__(self, session: OpenSession) -> None:
        self._session = session
        self._messages: list[_Message] = []
        self.late = False
        """Whether the intent of the next cast is a message that came too late."""

    def add(self, intent: str, blocks: tuple[ContextBlock, ...]) -> None:
        sent = None
        with suppress(EntityIdle):
            sent = self._session.entity.steer(intent, context=blocks)
        self._messages.append(_Message(intent, blocks, sent))

    def take(self) -> tuple[str, tuple[ContextBlock, ...]] | None:
        """Remove and return the next message that no query contains, as an intent with its context. None if there is none."""
        self._forget_delivered()
        if not self._messages:
            return None
        self.late, message = True, self._messages.pop(0)
        return message.intent, message.blocks

    def show_late(self, started: CastStarted) -> None:
        """Show a message that became a cast, if the client wants messages to appear where the entity reads them."""
        late, self.late = self.late, False
        if late and self._session.client.queues_prompts:
            meta = {"cantrip": {"steering": True}}
            said = acp.UserMessageChunk(acp.TextContent(started.intent), f"{started.cast_id}:intent", meta)
            self._session.send_now(said)

    def report_undelivered(self) -> None:
        """Tell the user about messages that the entity never received, because the prompt was cancelled or failed."""
        self._forget_delivered()
        for each in self._messages:
            text = beginning(" ".join(each.intent.split()), 500)
            told = f"This message did not reach the agent before the prompt ended: {text}"
            self._session.send_now(notice(told, self._session.client))
        self._messages.clear()

    def _forget_delivered(self) -> None:
        self._messages = [each for each in self._messages if each.sent is None or not each.sent.delivered]
