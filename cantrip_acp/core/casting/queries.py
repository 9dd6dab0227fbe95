"""Queries: asks the crystal for the next response, and folds before that where the context has become too large."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from cantrip_acp.core.casting.query_stream import QueryStream
from cantrip_acp.core.casting.spending import spend
from cantrip_acp.core.folding.apply import make_more_room, make_room, may_be_overflow
from cantrip_acp.crystals.contract import Query, Response
from cantrip_acp.crystals.http_clients import prepare
from cantrip_acp.crystals.retry import query_with_retries
from cantrip_acp.mediums.text_program import MOST_PROBLEMS, TextPrograms
from cantrip_acp.telemetry import genai_spans
from cantrip_acp.types import events
from cantrip_acp.types.errors import ContextLimitError, CrystalError
from cantrip_acp.types.usage import Usage

if TYPE_CHECKING:
    from cantrip_acp.core.casting.inbox import Inbox
    from cantrip_acp.core.state import CastState
    from cantrip_acp.gates.dynamic_gates import DynamicGates
    from cantrip_acp.types.messages import ToolDefinition


class Queries:
    """The queries of one cast."""

    def __init__(self, cast: CastState, inbox: Inbox, dynamic_gates: DynamicGates) -> None:
        """``dynamic_gates`` are the gates that the entity added during its life."""
        self.cast = cast
        self.entity = cast.entity
        self._inbox = inbox
        self._dynamic_gates = dynamic_gates
        self.stream: QueryStream | None = None
        """Receives the stream of the current query; None between queries."""
        self._unclear = 0
        """The number of responses in a row with an unclear program."""

    async def next(self, turn_id: str) -> Response:
        """Query the crystal. Fold first if the context has become too large (PROD-4)."""
        await self._inbox.before_query()
        await make_room(self.entity, self.cast)
        try:
            response = await self._once(turn_id)
        except CrystalError as refusal:
            unknown = may_be_overflow(self.entity, refusal)
            if not unknown and not isinstance(refusal, ContextLimitError):
                raise
            # The provider counts tokens differently. Try once more with a smaller context; if it cannot shrink, raise
            # the error.
            if not await make_more_room(self.entity, self.cast, refusal):
                raise
            if unknown:
                await self._inbox.warn(
                    f"The messages may be too long for the model, so they are folded and sent once more ({refusal})."
                )
            if self.stream is not None:
                await self.stream.void(refusal)
            response = await self._once(turn_id)
        return self._counted(response)

    async def _once(self, turn_id: str) -> Response:
        entity = self.entity
        call = entity.cantrip.call
        query = Query(
            messages=entity.context.messages,
            tools=self._tools(),
            tool_choice=call.tool_choice or "auto",
            params=call,
            intent=self.cast.intent,
            entity_id=entity.id,
            trace_id=self.cast.trace.trace_id,
            request_id=entity.requests.next_id(),
        )
        self.cast.query.sent = entity.sent_queries.describe(query, entity.cantrip.circle.tools)
        stream = self.stream = QueryStream(entity, self.cast)
        await self.cast.report(events.QueryStarted, message_id=stream.message_id)
        await prepare(entity.crystal)
        with genai_spans.chat(entity, self.cast.trace, query, stream.emit) as span:
            emit = stream.emit if span is None else span.emit

            def on_failed(usage: Usage) -> None:
                self.cast.query.extra_usage = self.cast.query.extra_usage + usage
                spend(self.cast, usage)

            def read(response: Response) -> Response:
                # Decided only now, because a recorded crystal writes its calls as text in some turns only.
                programs = TextPrograms.of(
                    entity.circle.medium, entity.crystal, call.tool_choice, f"text_{turn_id}", query.tools
                )
                return response if programs is None else programs.read(response)

            response = await query_with_retries(
                entity.crystal, query, emit, entity.cantrip.retry, stream.notice, read, on_failed
            )
            await stream.finish()
            entity.requests.answered(query.request_id)
            if span is not None:
                span.answered(response, stream.attempt, self.cast.query.extra_usage)
            self.stream = None
            if response.refused_media:
                # From this query on.
                entity.context.leave_out(response.refused_media)
                query = msgspec.structs.replace(query, messages=entity.context.messages)
                sent = entity.sent_queries.describe(query, entity.cantrip.circle.tools)
                self.cast.query.sent = msgspec.structs.replace(sent, refused=response.refused_media)
            return response

    def _counted(self, response: Response) -> Response:
        """Count the response, and return it as prose if its program stays unclear after `MOST_PROBLEMS` tries and prose may
        end the cast."""
        self._unclear = self._unclear + 1 if response.problem is not None else 0
        if self._unclear > MOST_PROBLEMS and not self.entity.require_done:
            return msgspec.structs.replace(response, problem=None)
        return response

    def _tools(self) -> tuple[ToolDefinition, ...]:
        """The tools for the next query.

        If the medium has no tool of its own, they include gates that were added later, because the entity could not call
        these otherwise.
        """
        circle = self.entity.circle
        if circle.medium.tool is not None:
            return circle.tools
        return circle.tools + self._dynamic_gates.definitions
