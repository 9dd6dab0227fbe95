"""Query stream: turns the pieces and the retries of a model response into events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cantrip_acp.crystals.contract import Response
from cantrip_acp.text.redaction import Pieces, beginning
from cantrip_acp.types import events
from cantrip_acp.types.errors import CrystalError
from cantrip_acp.types.records import Rejection, Utterance, VoidedAttempt, new_id

if TYPE_CHECKING:
    from cantrip_acp.core.state import CastState, EntityState
    from cantrip_acp.crystals.contract import Delta

VOID_LIMIT = 4000
"""Characters that a loom keeps of a void attempt's text, and of its thinking."""


class QueryStream:
    """Receives the pieces and retries of one query. Each query has a new one."""

    __slots__ = ("_cast", "_entity", "_kind", "_masked", "_streamed", "attempt", "message_id")

    def __init__(self, entity: EntityState, cast: CastState) -> None:
        self._entity = entity
        self._cast = cast
        self.attempt = 1
        self.message_id = new_id("m")
        self._kind = "text"
        self._streamed: dict[str, list[str]] = {}
        # A secret may be split over several pieces.
        self._masked = Pieces()

    async def emit(self, delta: Delta) -> None:
        if not delta.text:
            return
        self._streamed.setdefault(delta.kind, []).append(delta.text)
        if not self._entity.hub.active:
            return
        if delta.kind != self._kind:
            await self.finish()
            self._kind = delta.kind
        await self._send(self._masked.feed(delta.text))

    def streamed(self) -> Utterance:
        """The text and the thinking received so far."""
        said = {kind: "".join(pieces) for kind, pieces in self._streamed.items()}
        return Utterance(said.get("text"), said.get("thought"))

    async def finish(self) -> None:
        """Send the text that was held back for masking: no more pieces of this kind will follow."""
        await self._send(self._masked.end())

    async def _send(self, text: str) -> None:
        if text:
            kind = events.Text if self._kind == "text" else events.Thought
            await self._entity.hub.send(kind(**self._cast.ids, delta=text, message_id=self.message_id))

    async def void(self, error: CrystalError) -> str:
        """Record what was streamed of this attempt, or its rejected answer, as void, and report it to readers.

        Returns the error's text.
        """
        said, message = self.streamed(), str(error)
        self._masked.end()
        self._streamed = {}
        shown = bool(said.content or said.thinking)
        if isinstance(error.answer, Response):
            self._cast.query.voided.append(self._rejected(error, error.answer, beginning(message, VOID_LIMIT)))
        elif shown:
            content, thinking = (text and beginning(text, VOID_LIMIT) for text in (said.content, said.thinking))
            self._cast.query.voided.append(
                VoidedAttempt(self.attempt, beginning(message, VOID_LIMIT), content, thinking)
            )
        if shown:
            if self._entity.hub.active:
                await self._entity.hub.send(
                    events.Voided(**self._cast.ids, message_id=self.message_id, attempt=self.attempt, error=message)
                )
        return message

    def _rejected(self, error: CrystalError, answer: Response, message: str) -> VoidedAttempt:
        """The record of a complete answer that was rejected."""
        entity = self._entity
        sampled = answer.sampled
        if sampled is not None:
            context = entity.context
            said = (answer.content, answer.thinking)
            sampled = entity.token_log.reduce_rejected(sampled, context.messages, len(context.folded), said=said)
        spoke = bool(answer.content and answer.content.strip())
        why: Rejection = "malformed" if answer.tool_calls else "no_call" if spoke else "empty"
        if why == "empty" and answer.stop_reason == "length":
            why = "cut"
        return VoidedAttempt(
            self.attempt,
            message,
            answer.content,
            answer.thinking,
            rejected=why,
            stop_reason=answer.stop_reason,
            usage=answer.usage.counted(),
            request=answer.request or self._cast.parameters,
            sampled=sampled,
            asked_again=error.asked_again,
        )

    async def notice(self, delay_s: float, error: CrystalError) -> None:
        """Mark the attempt as void and announce the next one."""
        message = await self.void(error)
        if self._entity.hub.active:
            await self._entity.hub.send(
                events.RetryScheduled(
                    **self._cast.ids,
                    message_id=self.message_id,
                    attempt=self.attempt,
                    delay_s=delay_s,
                    error=message,
                    status=error.status,
                )
            )
        self.attempt += 1
        self._kind = "text"
        self.message_id = new_id("m")
        if self._entity.hub.active:
            started = events.QueryStarted(**self._cast.ids, message_id=self.message_id, attempt=self.attempt)
            await self._entity.hub.send(started)
