"""The loop: runs one cast of an entity, turn by turn (chapter 1).

A turn is: query, classify, execute, record. Then the cast terminates, is truncated or continues.
One `CastRun` is one cast. The order inside a turn is fixed, because everything else depends on it: query the crystal
(`queries`), run its calls one after the other (`calls`; delegations beside each other), write the turn to the loom
(`cast_log`, LOOM-1), add it to the messages, and only then report it to readers and start the next turn.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import anyio.to_thread

from cantrip_acp.core.casting import ward_limits
from cantrip_acp.core.casting.calls import Calls
from cantrip_acp.core.casting.cast_log import CastLog
from cantrip_acp.core.casting.inbox import Inbox
from cantrip_acp.core.casting.queries import Queries
from cantrip_acp.core.casting.reports import Reports
from cantrip_acp.core.casting.spending import spend
from cantrip_acp.core.casting.time_limit import TimeLimit
from cantrip_acp.core.casting.turn_builder import TurnBuilder
from cantrip_acp.core.scoring import Scoring
from cantrip_acp.core.state import CastState, RunningQuery
from cantrip_acp.crystals.contract import requested
from cantrip_acp.loom.query.thread import answer
from cantrip_acp.loom.records.turn_parts import joined
from cantrip_acp.telemetry import genai_spans, tracing
from cantrip_acp.types import events
from cantrip_acp.types.context_block import Recorder
from cantrip_acp.types.errors import CantripError, CrystalError, LoomError
from cantrip_acp.types.messages import RequestParameters
from cantrip_acp.types.records import Output, Turn, new_id

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cantrip_acp.core.casting.gate_executor import GateExecutor
    from cantrip_acp.core.casting.result import CastResult
    from cantrip_acp.core.history.continuation import Point
    from cantrip_acp.core.lifecycle.medium_session import SessionKeeper
    from cantrip_acp.core.state import EntityState
    from cantrip_acp.types.context_block import ContextBlock

_SNAPSHOT_PATIENCE = 1.0
"""Seconds that the snapshot of the last turn may still take if the cast is stopped."""


class CastRun:
    """One cast, from its intent to its end."""

    def __init__(
        self,
        entity: EntityState,
        executor: GateExecutor,
        session: SessionKeeper,
        take_notices: Callable[[], list[str]],
        intent: str,
        trace: tracing.Trace,
        blocks: Sequence[ContextBlock],
        resumed: Point | None = None,
        reference: Any = None,
    ) -> None:
        """``take_notices`` returns problems that the user has not been told yet. ``resumed`` is the place from which another
        cast continues; the other arguments are then those of that cast."""
        self.entity = entity
        self.cast = CastState(new_id("c"), entity, intent, trace, tuple(blocks))
        self.limit = TimeLimit(self.cast)
        self._executor = executor
        self._session = session
        self._inbox = Inbox(self.cast, resumed, executor.services)
        self._log = CastLog(self.cast, resumed, reference)
        self._reports = Reports(self.cast, take_notices)
        self._queries = Queries(self.cast, self._inbox, executor.dynamic_gates)
        self._turn: TurnBuilder | None = None
        self._end: tuple[str, Any] | None = None
        """The reason of the end and the result, once the last turn is in the loom. From then on nothing changes them
        (LOOP-3)."""
        scorer = entity.circle.score if entity.cantrip.scores else None
        self._scoring = Scoring(scorer, entity.loom, intent, reference)
        parameters = requested(entity.cantrip.call)
        self.cast.parameters = parameters if parameters != RequestParameters() else None
        if resumed is not None:
            ward_limits.carry_over(self.cast, resumed)

    # The whole cast

    async def run(self) -> CastResult:
        """Run the cast to its end.

        Raises `CrystalError` if a query failed and is not retried; the loom is complete before that.
        """
        unread = await self._begin()
        scope = self.cast.scope
        reason, error, withdrawn = "error", None, False
        try:
            with scope:
                self.limit.start()
                # The cast's start is in the loom. Whatever stops it from here on, its end is written too.
                await self._reports.start(unread)
                with genai_spans.invoke_agent(self.entity, self.cast.trace, self.cast.id, self.cast.intent) as span:
                    reason = await self._run_and_snapshot()
                    if span is not None:
                        span.ended(reason, self.cast.spent.usage, self._end and self._end[1])
            if scope.cancelled_caught:
                reason = self._stopped_by("max_seconds")
                turn = self._turn
                await self._close_cut_turn(reason)
                if turn is not None:
                    await self._reports.cut_calls(turn)
                else:
                    self._write_partial(reason)
        except anyio.get_cancelled_exc_class():
            # The task that started this entity was cancelled. What happened until now is written all the same (COMP-9).
            reason = self._stopped_by("parent_terminated" if self.entity.depth else "cancelled")
            if self._turn is None:
                self._write_partial(reason)
            await self._close_cut_turn(reason)
            self._write_end(reason, None)
            raise
        except CrystalError as caught:
            error = caught
            reason = "error"
            if not self.cast.turns and caught.refuses_content:
                withdrawn = self.entity.context.withdraw()
            if not withdrawn:
                if caught.answer is not None and self._queries.stream is not None:
                    await self._queries.stream.void(caught)
                self._write_partial(reason)
        except BaseException as caught:
            # The most likely cause is a loom that cannot be written. Report the first error, not those that follow from
            # it.
            with contextlib.suppress(LoomError):
                if self._turn is not None:
                    self._log.turn(self._turn, "error")
                else:
                    self._write_partial("error")
            with contextlib.suppress(LoomError):
                self._write_end("error", caught)
            raise
        result = self._write_end(reason, error, withdrawn=withdrawn)
        if self.cast.turns:
            await self._scoring.end(self.entity.last_turn)
        if self._log.end_record is not None:
            await self._reports.end(self._log.end_record)
        if error is not None:
            raise error
        return result

    async def _begin(self) -> str | None:
        """Write the start of the cast. Returns a notice for the user about attachments that the model cannot read."""
        entity = self.entity
        if entity.parent is not None:
            entity.requests.called(entity.parent.cast.entity.requests)
        if not tracing.prepared():
            await anyio.to_thread.run_sync(tracing.prepare)
        await self._inbox.gather()
        for contributor in entity.cantrip.contributors:
            if isinstance(contributor, Recorder):
                entity.loom.observe(contributor.recorded)
        entity.write_root()
        self._log.start()
        unread = self._inbox.deliver_start()
        entity.last_cast = self.cast.id
        return unread

    async def _run_and_snapshot(self) -> str:
        """Run turn after turn until one ends the cast. Returns the reason."""
        try:
            return await self._run_turns()
        except BaseException:
            # Raise what stopped the cast, not an error from the snapshot.
            with anyio.CancelScope(shield=True), contextlib.suppress(CantripError):
                await self._session.finish_snapshot(patience=0 if self.entity.ends_when_cut else _SNAPSHOT_PATIENCE)
            raise

    async def _run_turns(self) -> str:
        calls = Calls(self.cast, self._executor, self._session)
        while True:
            await anyio.lowlevel.checkpoint()
            turn = TurnBuilder(self.entity, self.cast, self._executor, self.close_part)
            self.cast.spent.queries += 1
            turn.response = response = await self._queries.next(turn.id)
            turn.used = used = response.usage.counted()
            self._turn = turn
            turn.query, self.cast.query = self.cast.query, RunningQuery()
            spend(self.cast, used, response_chars=len(response.content or "") + len(response.thinking or ""))
            self._log.utterance(turn)
            for notice in response.notices:
                await self.cast.report(events.Noticed, text=notice)
            if response.problem is not None:
                turn.outputs.append(Output(error=response.problem))
                await self.cast.report(events.Noticed, text=response.problem)
            # None of the entity's code may run during this step, and a cell must start from the state of the snapshot.
            await self._session.finish_snapshot()
            if self.entity.checkpoints is not None and response.tool_calls:
                await self.entity.checkpoints.before_calls(response.tool_calls, self.entity.circle)
            await calls.run(turn)
            reason = ward_limits.end_reason(self.cast, turn)
            self._turn = None
            record = self._log.turn(turn, reason)
            if reason is not None:
                self._log.ended = True
                self._end = reason, turn.answer if reason == "done" else answer(record)
                self.limit.lift()
            await self._store_files(record)
            await self._scoring.turn(record if not turn.parts else joined((*turn.parts, record)))
            if turn.outputs and response.tool_calls:
                await self._session.start_snapshot(record.id)
            await self._reports.turn(record, response if not turn.parts else None)
            if self.entity.parent is not None:
                # Also if this cast has ended: the limits of the casts above include the spending of all their children.
                ward_limits.stop_overspent(self.entity, used)
            if reason is not None:
                await self._session.finish_snapshot()
                return reason

    async def close_part(self, turn: TurnBuilder) -> None:
        """Write a turn up to the delegation that it has reached, and report it."""
        first = not turn.parts
        # No await before this is in the loom: a second, concurrent delegation hangs on this record.
        record = self._log.part(turn, self._session.partial_output())
        await self._reports.turn(record, turn.response if first else None)

    async def _store_files(self, turn: Turn) -> None:
        """Keep the workspace's files as they are after a turn (``loom.files``)."""
        if self.entity.checkpoints is not None:
            await self.entity.checkpoints.store(turn, self.entity.circle)

    # Endings

    def _stopped_by(self, otherwise: str) -> str:
        """Why something stopped this cast; ``otherwise`` if no reason is known."""
        return self._end[0] if self._end is not None else self.cast.stop_reason or otherwise

    async def _close_cut_turn(self, reason: str) -> None:
        """Write the turn that a cancel or a time limit interrupted, with everything that happened in it."""
        turn, self._turn = self._turn, None
        if turn is not None:
            self._log.ended = True
            record = self._log.turn(turn, "done" if turn.finished and reason != "parent_terminated" else reason)
            await self._store_files(record)

    def _write_partial(self, reason: str) -> None:
        stream, self._queries.stream = self._queries.stream, None
        self._log.partial(stream, reason)

    def _write_end(self, reason: str, error: BaseException | None, *, withdrawn: bool = False) -> CastResult:
        entity = self.entity
        if entity.parent is not None:
            entity.requests.returned(entity.parent.cast.entity.requests)
        faults, self._executor.faults = self._executor.faults, []
        return self._log.end(
            reason,
            None if self._end is None else self._end[1],
            error,
            unenforced=ward_limits.at_end(entity, self.cast),
            faults=faults,
            withdrawn=withdrawn,
        )
