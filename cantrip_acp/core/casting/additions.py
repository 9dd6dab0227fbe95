"""Additions: what a cast's queries get besides its turns. Each is in the loom before the query that sees it.

These are new knowledge of the session, what the entity is to know of changed wards, and what the user sent meanwhile.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from cantrip_acp.core.context_block import KNOWLEDGE, CastInfo, record_of, unread_notice
from cantrip_acp.types import events
from cantrip_acp.types.errors import describe, interrupts
from cantrip_acp.types.records import DURING_CAST, NOTE, STEERING, ContextRecord

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from cantrip_acp.core.context_block import ContextBlock
    from cantrip_acp.core.history.continuation import Point
    from cantrip_acp.core.state import CastState


class Additions:
    """Adds to the context of one cast, before each of its queries."""

    def __init__(self, cast: CastState, resumed: Point | None, warn: Callable[[str], Awaitable[None]]) -> None:
        """``warn`` tells the user of a problem, once."""
        self._cast = cast
        self._entity = cast.entity
        self._resumed = resumed
        self._warn = warn

    async def before_query(self) -> None:
        """Add what is due before the next query."""
        await self._refresh_knowledge()
        self._tell_of_wards()
        await self._deliver_steering()

    def write(self, block: ContextBlock) -> ContextRecord:
        """Write the record of a block."""
        entity = self._entity
        record = record_of(block, entity.redactor.text(block.text), entity.id, self._cast.id, entity.crystal)
        entity.loom.append(record)
        return record

    async def _refresh_knowledge(self) -> None:
        """Ask the contributors what the session knows now."""
        entity, cast = self._entity, self._cast
        entity.context.settle()
        for contributor in entity.cantrip.contributors:
            refresh = getattr(contributor, "refresh", None)
            if refresh is None:
                continue
            info = CastInfo(entity.id, cast.id, cast.intent, cast.trace.trace_id, entity.context.pinned)
            try:
                block: ContextBlock | None = await refresh(info)
            except Exception as problem:
                if interrupts(problem):
                    raise
                # What it knew before is still in the context.
                name = getattr(contributor, "__qualname__", type(contributor).__name__)
                await self._warn(f"what the session knows is as before, because {name} failed: {describe(problem)}")
                continue
            if block is None:
                continue
            block = replace(block, source=KNOWLEDGE, text=entity.redactor.text(block.text))
            if not entity.context.knows_other(block):
                continue
            block = replace(block, after=self._place())
            self.write(block)
            entity.context.set_knowledge(block)

    def _tell_of_wards(self) -> None:
        """Tell the entity why it can do more or less than before, if the wards changed since it was told last (§4.6)."""
        note = self._entity.due_note
        if note is not None:
            self._add(replace(note, source=NOTE))

    async def _deliver_steering(self) -> None:
        """Give the crystal what the user sent since the last query."""
        cast, hub = self._cast, self._entity.hub
        waiting, cast.steering = cast.steering, []
        sent: list[ContextRecord] = []
        for message in waiting:
            for block in message.blocks:
                record = self._add(block if block.source in DURING_CAST else replace(block, source=STEERING))
                message.message_id = record.id
                if record.source == STEERING:
                    sent.append(record)
            message.delivered = True
        for record in sent if hub.active else ():
            await hub.send(events.Steered(**cast.ids, record=record))
        if hub.active and (unread := unread_notice(sent)):
            await hub.send(events.Noticed(**cast.ids, text=unread))

    def _add(self, block: ContextBlock) -> ContextRecord:
        """Write a block and add it after everything else in the context."""
        placed = replace(block, text=self._entity.redactor.text(block.text), after=self._place())
        record = self.write(placed)
        self._entity.context.steer(placed)
        return record

    def _place(self) -> str | None:
        """The turn after which something is added to the context now; None if this cast has none yet."""
        last, resumed = self._entity.last_turn, self._resumed
        # A cast that was cut before its first turn continues at the call, too.
        begins = resumed is None or resumed.begins or self._entity.loom.places[last].role == "call"
        return None if begins and not self._cast.turns else last
