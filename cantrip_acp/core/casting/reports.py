"""Reports: the events that tell of a cast's start, its turns and its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cantrip_acp.core.casting import ward_limits
from cantrip_acp.types import events
from cantrip_acp.types.usage import NO_USAGE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cantrip_acp.core.casting.turn_builder import TurnBuilder
    from cantrip_acp.core.state import CastState
    from cantrip_acp.crystals.contract import Response
    from cantrip_acp.types.records import CastRecord, Turn
    from cantrip_acp.types.usage import Usage


class Reports:
    """Sends the events of one cast. Nothing is sent without a reader (`CastState.report`)."""

    def __init__(self, cast: CastState, take_notices: Callable[[], Sequence[str]]) -> None:
        """``take_notices`` returns problems that the user has not been told yet."""
        self.cast = cast
        self._take_notices = take_notices
        self.entity = cast.entity

    async def start(self, unread: str | None) -> None:
        if self.entity.hub.active:
            await self.cast.report(events.CastStarted, intent=self.cast.intent, trace_id=self.cast.trace.trace_id)
            for problem in (*filter(None, [unread]), *self._take_notices(), *ward_limits.known_at_start(self.entity)):
                await self.cast.report(events.Noticed, text=problem)

    async def cut_calls(self, turn: TurnBuilder) -> None:
        """Send the end events of the calls and the program that were cancelled, as their records have them."""
        for call in turn.cut:
            await self.cast.report(events.GateFinished, call_id=call.call_id or "", record=call)
        if turn.cut_output is not None:
            output, report = turn.cut_output
            await report.end(output)

    async def turn(self, record: Turn, response: Response | None) -> None:
        if response is not None:
            await self.usage(record.metadata.usage, response.usage.total_tokens)
        await self.cast.report(events.TurnEnded, turn=record)

    async def usage(self, usage: Usage, used: int | None = None) -> None:
        """``used`` is how full the window is by the provider's count. If it is None, an estimate is sent."""
        if self.entity.hub.active:
            await self.cast.report(
                events.UsageReported,
                usage=usage,
                cumulative=self.entity.usage,
                used=self.entity.context.tokens if used is None else used,
                size=self.entity.crystal.context_window,
            )

    async def end(self, record: CastRecord) -> None:
        if self.cast.query.extra_usage != NO_USAGE:
            # A query that failed or was cut off wrote no turn, but it is billed all the same.
            await self.usage(self.cast.query.extra_usage)
        await self.cast.report(events.CastEnded, record=record, loom=self.entity.loom.location)
