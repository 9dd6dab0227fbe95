"""Inbox: what a cast's queries get besides its turns. Each is in the loom before the query that sees it.

These are the context that contributors give, new knowledge of the session, what the entity is to know of changed wards, and
what the user sent meanwhile.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from cantrip_acp.crystals.contract import cannot_read
from cantrip_acp.loom.base import as_kept
from cantrip_acp.text.defaults import name_of
from cantrip_acp.types import events
from cantrip_acp.types.context_block import (
    KNOWLEDGE,
    CastInfo,
    ContextBlock,
    KnowledgeSource,
    block_of,
    record_of,
    unread_notice,
)
from cantrip_acp.types.errors import CantripError, describe, interrupts
from cantrip_acp.types.records import DURING_CAST, NOTE, STEERING, ContextRecord

if TYPE_CHECKING:
    from cantrip_acp.core.history.continuation import Point
    from cantrip_acp.core.state import CastState
    from cantrip_acp.gates.services import Services


class Inbox:
    """Adds new information to the context of one cast: at its start, and before each query."""

    def __init__(self, cast: CastState, resumed: Point | None, services: Services | None = None) -> None:
        self._services = services
        self._cast = cast
        self._entity = cast.entity
        self._resumed = resumed
        self._warned: set[str] = set()

    async def gather(self) -> None:
        """Ask the contributors for blocks that belong before the intent."""
        entity, cast = self._entity, self._cast
        for contributor in entity.cantrip.contributors if self._resumed is None else ():
            try:
                cast.blocks = (*cast.blocks, *await contributor(self._info()))
            except Exception as problem:
                if isinstance(problem, CantripError) or interrupts(problem):
                    raise
                name = name_of(contributor)
                raise CantripError(
                    f"the cast did not start: the context contributor {name} failed: {describe(problem)}"
                ) from problem

    def deliver_start(self) -> str | None:
        """Write the blocks, and put them and the intent into the messages. Returns a notice for the user about attachments
        that the model cannot read."""
        context, cast, resumed = self._entity.context, self._cast, self._resumed
        records = [self._write(block) for block in cast.blocks]
        # The model reads exactly the texts in the records.
        cast.blocks = tuple(map(block_of, records))
        if resumed is None or resumed.begins:
            context.begin(cast.intent, cast.blocks)
        else:
            # The same query is sent again, so its unfinished answer must go.
            context.forget_partial()
        return unread_notice(records)

    async def warn(self, text: str) -> None:
        """Show the user a problem, once."""
        if text not in self._warned:
            self._warned.add(text)
            await self._cast.report(events.Noticed, text=text)

    def _info(self) -> CastInfo:
        entity, cast = self._entity, self._cast
        return CastInfo(entity.id, cast.id, cast.intent, cast.trace.trace_id, entity.context.pinned)

    async def before_query(self) -> None:
        """Add knowledge, notes on wards and steering messages that have arrived since the last query."""
        await self._refresh_knowledge()
        self._tell_of_wards()
        self._tell_of_services()
        await self._deliver_steering()

    def _write(self, block: ContextBlock) -> ContextRecord:
        entity = self._entity
        attachment, crystal = block.attachment, entity.crystal
        unread = attachment is not None and cannot_read(crystal, attachment)
        return entity.loom.append(record_of(block, entity.id, self._cast.id, crystal.model if unread else None))

    async def _refresh_knowledge(self) -> None:
        """Ask the contributors for new knowledge of the session, and update the context."""
        entity = self._entity
        entity.context.settle()
        for contributor in entity.cantrip.contributors:
            if not isinstance(contributor, KnowledgeSource):
                continue
            try:
                block = await contributor.refresh(self._info())
            except Exception as problem:
                if interrupts(problem):
                    raise
                # What it knew before is still in the context.
                name = name_of(contributor)
                await self.warn(f"what the session knows is as before, because {name} failed: {describe(problem)}")
                continue
            if block is None:
                continue
            # Compared with what the record of the last one says.
            block = as_kept(replace(block, source=KNOWLEDGE))
            if not entity.context.knowledge.differs(block):
                continue
            block = replace(block, after=self._place())
            self._write(block)
            entity.context.set_knowledge(block)

    def _tell_of_wards(self) -> None:
        """Tell the entity why it can do more or less than before, if the wards changed since its last note (§4.6)."""
        note = self._entity.due_note
        if note is not None:
            self._add(replace(note, source=NOTE))

    def _tell_of_services(self) -> None:
        """Tell the entity which services have ended since its last query, and at the start of a cast, which run."""
        notes = self._services.take_notes() if self._services is not None else []
        if self._services is not None and self._cast.spent.queries == 1:
            notes += self._services.remind()
        if notes:
            self._add(ContextBlock("\n".join(notes), "Services", NOTE))

    async def _deliver_steering(self) -> None:
        """Add the messages that the user sent since the last query."""
        cast = self._cast
        waiting, cast.steering = cast.steering, []
        sent: list[ContextRecord] = []
        for message in waiting:
            for block in message.blocks:
                record = self._add(block if block.source in DURING_CAST else replace(block, source=STEERING))
                message.message_id = record.id
                if record.source == STEERING:
                    sent.append(record)
            message.delivered = True
        for record in sent:
            await cast.report(events.Steered, record=record)
        if unread := unread_notice(sent):
            await cast.report(events.Noticed, text=unread)

    def _add(self, block: ContextBlock) -> ContextRecord:
        """Write a block and add it after everything else in the context."""
        record = self._write(replace(block, after=self._place()))
        self._entity.context.steer(block_of(record))
        return record

    def _place(self) -> str | None:
        """The turn after which new context is recorded; None if this cast has no turn yet."""
        last, resumed = self._entity.last_turn, self._resumed
        # A cast that was cut before its first turn continues at the call, too.
        begins = resumed is None or resumed.begins or self._entity.loom.places[last].role == "call"
        return None if begins and not self._cast.turns else last
