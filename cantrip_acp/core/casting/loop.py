"""The loop: runs one cast of an entity, turn by turn (chapter 1).

A turn is: query, classify, execute, record. Then the cast terminates, is truncated or continues.
One `CastRun` is one cast. The order inside a turn is fixed, because everything else depends on it: query the crystal,
run its calls one after the other (delegations beside each other), write the turn to the loom (LOOM-1), add it to the
messages, and only then report it to readers and start the next turn.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections import Counter
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import msgspec

from cantrip_acp.core.casting import enforcement
from cantrip_acp.core.casting.additions import Additions
from cantrip_acp.core.casting.query_stream import QueryStream, with_masked_names
from cantrip_acp.core.casting.result import CastResult, without_calls
from cantrip_acp.core.casting.turn_builder import TurnBuilder
from cantrip_acp.core.context_block import CastInfo, unread_notice
from cantrip_acp.core.folding.apply import make_more_room, make_room, may_be_overflow
from cantrip_acp.core.history.continuation import rebuild_context
from cantrip_acp.core.scoring import Scoring
from cantrip_acp.core.state import CastState
from cantrip_acp.crystals.contract import CUTS, Query, Response, requested
from cantrip_acp.crystals.http_clients import prepare
from cantrip_acp.crystals.retry import query_with_retries
from cantrip_acp.gates.contract import ProgramCall
from cantrip_acp.gates.registry import ALIASES, DELEGATION
from cantrip_acp.loom.query.thread import answer
from cantrip_acp.loom.records.turn_parts import joined
from cantrip_acp.mediums.program_events import ProgramEvents
from cantrip_acp.mediums.text_program import MOST_PROBLEMS, TextPrograms
from cantrip_acp.telemetry import genai_spans, tracing
from cantrip_acp.text.json_data import thaw
from cantrip_acp.types import events
from cantrip_acp.types.errors import CantripError, ContextLimitError, CrystalError, LoomError, describe, interrupts
from cantrip_acp.types.messages import RequestParameters, ToolCall
from cantrip_acp.types.records import (
    TERMINATIONS,
    CastRecord,
    ContextRecord,
    Output,
    Turn,
    Utterance,
    UtteranceRecord,
    new_id,
    now,
)
from cantrip_acp.types.usage import NO_USAGE, Usage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cantrip_acp.core.context_block import ContextBlock
    from cantrip_acp.core.definition.wards import Wards
    from cantrip_acp.core.history.continuation import Point
    from cantrip_acp.core.lifecycle.medium_session import SessionKeeper
    from cantrip_acp.core.state import EntityState
    from cantrip_acp.gates.executor import GateExecutor
    from cantrip_acp.types.messages import ToolDefinition

_ENDED = {
    "cancelled": "Cancelled",
    "parent_terminated": "Ended with its parent",
    "refusal": "The crystal refused",
    "error": "Failed",
    "output_limit": "The provider cut the answer at its limit",
}
"""Words for truncations that no ward caused."""


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
        """``take_notices`` returns problems that were not reported yet, for the user. ``resumed`` is the place where another
        cast is continued; the other arguments are then of that cast.
        """
        self.entity = entity
        self.cast = CastState(new_id("c"), entity, intent, trace, tuple(blocks))
        self._executor = executor
        self._session = session
        self._take_notices = take_notices
        self._resumed = resumed
        self._reference = reference
        scorer = entity.circle.score if entity.cantrip.scores else None
        self._scoring = Scoring(scorer, entity.loom, entity.redactor, intent, reference)
        parameters = requested(entity.call)
        self.cast.parameters = parameters if parameters != RequestParameters() else None
        if resumed is not None:
            enforcement.carry_over(self.cast, resumed)
        self._withdrawn = False
        self._turn: TurnBuilder | None = None
        self._stream: QueryStream | None = None
        """Receives the stream of the current query; None between queries."""
        self._ended = False
        """Whether the last turn, or the partial answer written instead of one, has ended the cast."""
        self._reason: str | None = None
        """How the cast ends, once its last turn is in the loom. Nothing changes that any more (LOOP-3)."""
        self._running = False
        self._waiting = 0
        self._waiting_since = 0.0
        self._started_at = 0.0
        self._latest_deadline = math.inf
        self._gate_counts: Counter[str] = Counter()
        self._last_text: str | None = None
        self._warned: set[str] = set()
        self._additions = Additions(self.cast, resumed, self._warn_once)
        self._context: list[ContextRecord] = []
        self._unclear = 0
        """How many responses in a row held a program that was not clear."""
        self._result: Any = None

    # The whole cast

    async def run(self) -> CastResult:
        """Run the cast to its end.

        Raises `CrystalError` if a query failed and is not retried; the loom is complete before that.
        """
        await self._begin()
        scope = self.cast.scope
        reason, error = "error", None
        try:
            with scope:
                self._running, self._latest_deadline, self._started_at = True, scope.deadline, anyio.current_time()
                self.entity.hub.waits = self.wait
                self.set_wards(self.entity.circle.wards)
                # The cast's start is in the loom. Whatever stops it from here on, its end is written too.
                await self._send_start()
                with genai_spans.invoke_agent(self.entity, self.cast.trace, self.cast.id, self.cast.intent) as span:
                    reason = await self._run_and_snapshot()
                    if span is not None:
                        span.ended(reason, self.cast.usage, self._result)
            if scope.cancelled_caught:
                reason = self._reason or self.cast.stop_reason or "max_seconds"
                turn = self._turn
                await self._close_cut_turn(reason)
                if turn is not None:
                    await self._send_cut_calls(turn)
                else:
                    self._write_partial(reason)
        except anyio.get_cancelled_exc_class():
            # The task that started this entity was cancelled. What happened until now is written all the same (COMP-9).
            reason = (
                self._reason or self.cast.stop_reason or ("parent_terminated" if self.entity.depth else "cancelled")
            )
            if self._turn is None:
                self._write_partial(reason)
            await self._close_cut_turn(reason)
            self._end(reason, None)
            raise
        except CrystalError as caught:
            error = caught
            reason = "error"
            if not self.cast.turns and caught.refuses_content:
                self._withdrawn = self.entity.context.withdraw()
            if not self._withdrawn:
                if caught.answer is not None and self._stream is not None:
                    await self._stream.void(caught)
                self._write_partial(reason)
        except BaseException as caught:
            # The most likely cause is a loom that cannot be written. Report the first error, not those that follow from
            # it.
            with contextlib.suppress(LoomError):
                if self._turn is not None:
                    self._write(self._turn, "error")
                else:
                    self._write_partial("error")
            with contextlib.suppress(LoomError):
                self._end("error", caught)
            raise
        result = self._end(reason, error)
        if self.cast.turns:
            await self._scoring.end(self.entity.last_turn)
        await self._send_end(result, error)
        if error is not None:
            raise error
        return result

    def set_wards(self, wards: Wards) -> None:
        """Apply the time limit that is in force now. It counts from the start of the cast."""
        if self._running and self.cast.stop_reason is None and not self._waiting and self._reason is None:
            limit = math.inf if wards.max_seconds is None else self._started_at + wards.max_seconds
            self.cast.scope.deadline = min(self._latest_deadline, limit)

    def wait(self, waiting: bool) -> None:
        """A reader of events keeps the cast waiting, or does so no more. That is no time of the cast (§7.4)."""
        self._waiting += 1 if waiting else -1
        if waiting and self._waiting == 1:
            self._waiting_since = anyio.current_time()
            self.cast.scope.deadline = self._latest_deadline
        elif not self._waiting:
            self._started_at += anyio.current_time() - self._waiting_since
            self.set_wards(self.entity.circle.wards)

    async def _begin(self) -> None:
        entity = self.entity
        loom = entity.loom
        parent = entity.parent
        if parent is not None:
            entity.requests.called(parent.cast.entity.requests)
        if not tracing.prepared():
            await anyio.to_thread.run_sync(tracing.prepare)
        for contributor in entity.cantrip.contributors if self._resumed is None else ():
            info = CastInfo(entity.id, self.cast.id, self.cast.intent, self.cast.trace.trace_id, entity.context.pinned)
            try:
                self.cast.blocks = (*self.cast.blocks, *await contributor(info))
            except Exception as problem:
                if isinstance(problem, CantripError) or interrupts(problem):
                    raise
                name = getattr(contributor, "__qualname__", type(contributor).__name__)
                raise CantripError(
                    f"the cast did not start: the context contributor {name} failed: {describe(problem)}"
                ) from problem
        for contributor in entity.cantrip.contributors:
            recorded = getattr(contributor, "recorded", None)
            if recorded is not None:
                loom.observe(recorded)
        entity.write_root()
        where = self._resumed
        if where is not None and where.taken:
            entity.context = rebuild_context(entity, where)
            entity.last_turn = where.turn_id
        loom.lock_cast(self.cast.id)
        loom.append(
            CastRecord(
                id=self.cast.id,
                event="start",
                entity_id=entity.id,
                cantrip_id=entity.cantrip_id,
                trace_id=self.cast.trace.trace_id,
                timestamp=now(),
                intent=entity.redactor.text(self.cast.intent),
                attributes={
                    "crystal": entity.crystal.name,
                    "model": entity.crystal.model,
                    **({} if getattr(entity.crystal, "samples", True) else {"sampled": False}),
                    **self.cast.trace.attributes,
                },
                parent_turn_id=parent.turn_id if parent is not None else None,
                parent_call_id=parent.call_id if parent is not None else msgspec.UNSET,
                parent_call_index=msgspec.UNSET if parent is None or parent.index is None else parent.index,
                resumes=where.cast.id if where is not None else msgspec.UNSET,
                reference=msgspec.UNSET if self._reference is None else entity.redactor.data(self._reference),
            )
        )
        self._context = [self._additions.write(block) for block in self.cast.blocks]
        if where is None or where.begins:
            entity.context.begin(self.cast.intent, self.cast.blocks)
        else:
            # The same query is sent again, so its unfinished answer must go.
            entity.context.forget_partial()
        entity.last_cast = self.cast.id

    async def _send_start(self) -> None:
        if self.entity.hub.active:
            intent = self.entity.redactor.text(self.cast.intent)
            await self.entity.hub.send(
                events.CastStarted(**self.cast.ids, intent=intent, trace_id=self.cast.trace.trace_id)
            )
            unread = unread_notice(self._context)
            for problem in (*filter(None, [unread]), *self._take_notices(), *enforcement.known_at_start(self.entity)):
                await self.entity.hub.send(events.Noticed(**self.cast.ids, text=problem))

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
        while True:
            await anyio.lowlevel.checkpoint()
            turn = TurnBuilder(self.entity, self.cast, self._executor, self.close_part)
            self.cast.queries += 1
            turn.response = response = await self._query(turn.id)
            if response.problem is not None:
                turn.response = response = self._count_unclear(response)
            else:
                self._unclear = 0
            turn.used = used = response.usage.counted()
            self._turn = turn
            turn.extra_usage, self.cast.extra_usage = self.cast.extra_usage, NO_USAGE
            turn.voided, self.cast.voided = tuple(self.cast.voided), []
            self.cast.spend(used, response_chars=len(response.content or "") + len(response.thinking or ""))
            self._write_utterance(turn)
            if self.entity.hub.active:
                for notice in response.notices:
                    await self.entity.hub.send(events.Noticed(**self.cast.ids, text=self.entity.redactor.text(notice)))
            if response.problem is not None:
                turn.outputs.append(Output(error=response.problem))
                if self.entity.hub.active:
                    await self.entity.hub.send(events.Noticed(**self.cast.ids, text=response.problem))
            # None of the entity's code may run during this step, and a cell must start from the state of the snapshot.
            await self._session.finish_snapshot()
            if self.entity.checkpoints is not None and response.tool_calls:
                await self.entity.checkpoints.before_calls(response.tool_calls, self.entity.circle)
            await self._execute_calls(turn)
            reason = self._end_reason(turn)
            self._turn = None
            record = self._write(turn, reason)
            if reason is not None:
                self._ended, self._reason = True, reason
                self._result = turn.answer if reason == "done" else answer(record)
                self.cast.scope.deadline = self._latest_deadline
            await self._store_files(record)
            await self._scoring.turn(record if not turn.parts else joined((*turn.parts, record)))
            if turn.outputs and response.tool_calls:
                await self._session.start_snapshot(record.id)
            if self.entity.hub.active:
                await self._send_turn(record, response if not turn.parts else None)
            if self.entity.parent is not None:
                # Also if this cast has ended: the limits of the casts above apply to what all their children spend.
                enforcement.stop_overspent(self.entity, used)
            if reason is not None:
                await self._session.finish_snapshot()
                return reason

    def _end_reason(self, turn: TurnBuilder) -> str | None:
        """Why the cast ends with this turn, or None (LOOP-2, LOOP-3, LOOP-4, LOOP-6)."""
        wards, response = self.entity.circle.wards, turn.response
        if turn.finished:
            return "done"
        if response.refused:
            return "refusal"
        if not response.tool_calls and response.stop_reason in CUTS and not self.entity.require_done:
            # Cut at the crystal's own limit, or as it repeated itself: half an answer is not a result.
            return "output_limit"
        if not response.tool_calls and response.problem is None and not self.entity.require_done:
            return "text"
        if wards.max_total_tokens is not None and self.cast.tokens >= wards.max_total_tokens:
            return "max_tokens"
        if wards.max_cost_usd is not None:
            # A cost limit that cannot be measured counts as reached at once.
            if turn.used.queries_without_cost or self.cast.cost >= wards.max_cost_usd:
                return "max_cost"
        if self.cast.queries >= (wards.max_turns or 1):
            return "max_turns"
        return None

    # One turn

    async def _query(self, turn_id: str) -> Response:
        """Query the crystal. Fold first if the context has become too large (PROD-4)."""
        await self._additions.before_query()
        await make_room(self.entity, self.cast)
        try:
            return await self._query_once(turn_id)
        except CrystalError as refusal:
            unknown = may_be_overflow(self.entity, refusal)
            if not unknown and not isinstance(refusal, ContextLimitError):
                raise
            # The provider counts tokens differently. Try once more with a smaller context; if it cannot shrink, raise
            # the error.
            if not await make_more_room(self.entity, self.cast, refusal):
                raise
            if unknown:
                await self._warn_once(
                    f"The messages may be too long for the model, so they are folded and sent once more ({refusal})."
                )
            if self._stream is not None:
                await self._stream.void(refusal)
            return await self._query_once(turn_id)

    async def _warn_once(self, text: str) -> None:
        if text in self._warned:
            return
        self._warned.add(text)
        if self.entity.hub.active:
            await self.entity.hub.send(events.Noticed(**self.cast.ids, text=self.entity.redactor.text(text)))

    async def _query_once(self, turn_id: str) -> Response:
        entity = self.entity
        call = entity.call
        query = Query(
            messages=entity.context.messages,
            tools=self._tools(),
            tool_choice=call.tool_choice or "auto",
            params=call,
            intent=self.cast.intent,
            entity_id=entity.id,
            trace_id=self.cast.trace.trace_id,
            request_id=new_id("q") if entity.names_requests else "",
        )
        self.cast.sent = entity.describe_query(query)
        stream = self._stream = QueryStream(entity, self.cast)
        if entity.hub.active:
            await entity.hub.send(events.QueryStarted(**self.cast.ids, message_id=stream.message_id))
        await prepare(entity.crystal)
        with genai_spans.chat(entity, self.cast.trace, query, stream.emit) as span:
            emit = stream.emit if span is None else span.emit

            def read(response: Response) -> Response:
                # Decided only now, because a recorded crystal writes its calls as text in some turns only.
                programs = TextPrograms.of(
                    entity.circle.medium, entity.crystal, call.tool_choice, f"text_{turn_id}", query.tools
                )
                return with_masked_names(response if programs is None else programs.read(response), entity.redactor)

            response = await query_with_retries(
                entity.crystal, query, emit, entity.retry, stream.notice, read, self._spend_extra
            )
            await stream.finish()
            entity.requests.answered(query.request_id)
            if span is not None:
                span.answered(response, stream.attempt, self.cast.extra_usage)
            self._stream = None
            if response.refused_media:
                self.cast.sent = entity.leave_out(query, response.refused_media)
            return response

    def _count_unclear(self, response: Response) -> Response:
        """The response.

        If prose may end the cast, a program that stays unclear counts as prose after `MOST_PROBLEMS` tries.
        """
        self._unclear += 1
        if self._unclear > MOST_PROBLEMS and not self.entity.require_done:
            return msgspec.structs.replace(response, problem=None)
        return response

    async def _execute_calls(self, turn: TurnBuilder) -> None:
        """Run the calls of an utterance in order; stop after done (D-003, CIRCLE-7).

        Delegations that follow each other directly run beside each other.
        """
        entity, calls = self.entity, turn.response.tool_calls
        medium, index, names = entity.circle.medium, 0, entity.circle.tool_names
        self._executor.announce(
            [(names.get(call.gate, call.gate), call.args) for call in calls],
            entity_id=entity.id,
            cast_id=self.cast.id,
            trace_id=self.cast.trace.trace_id,
            turn=turn,
        )
        while index < len(calls) and not turn.finished:
            call = calls[index]
            delegations = list(itertools.takewhile(self._delegates, calls[index:]))
            if len(delegations) > 1:
                await turn.delegate(delegations)
                index += len(delegations)
                continue
            if medium.tool is not None and call.gate == medium.tool:
                # The crystal may repeat its ids in later turns, but event ids must be unique.
                output = await self._run_program(turn, index, call)
                # Append only now: a delegation may have started another part of the turn, with its own outputs.
                turn.outputs.append(output)
            else:
                name = entity.circle.tool_names.get(call.gate, call.gate)
                await turn.gate(name, call.args, tool_call_id=call.id)
            index += 1

    def _delegates(self, call: ToolCall) -> bool:
        name = self.entity.circle.tool_names.get(call.gate, call.gate)
        return ALIASES.get(name, name) in DELEGATION

    async def _run_program(self, turn: TurnBuilder, index: int, call: ToolCall) -> Output:
        """Run one program of the medium, unless an interceptor refuses it."""
        own = ToolCall(f"{turn.id}.{index}", call.gate, call.args)
        output: Output | None = None
        with self.entity.running_calls.stoppable(own.id):
            output = await self._run_allowed_program(turn, own, call)
        return output if output is not None else await turn.stopped_program(ProgramEvents(own, turn, call.gate))

    async def _run_allowed_program(self, turn: TurnBuilder, own: ToolCall, call: ToolCall) -> Output:
        entity = self.entity
        output = await self._refusal(own)
        if output is not None:
            await ProgramEvents(own, turn, call.gate).end(output)
            return output
        session = await self._session.open()
        with genai_spans.execute_tool(
            call.gate, self.cast.trace, entity.redactor, call_id=call.id, args=call.args, entity_id=entity.id
        ) as span:
            files, text = entity.checkpoints, entity.circle.medium.code(own) or ""
            async with files.program(text, entity.circle) if files is not None else contextlib.nullcontext():
                output = await session.run(own, turn)
            if span is not None:
                span.ended(entity.circle.medium.observe(output), "program_error" if output.failed else None)
            return output

    def _write_utterance(self, turn: TurnBuilder) -> None:
        """Write the utterance before acting on it: if the process ends, nothing must be done twice.

        Not needed for a loom in memory, which ends with the process.
        """
        entity = self.entity
        if entity.loom.location is not None and turn.has_effects:
            entity.loom.append(turn.utterance_record(parent_id=entity.last_turn, sequence=entity.sequence + 1))

    def _write(self, turn: TurnBuilder, reason: str | None) -> Turn:
        entity = self.entity
        record = self._append(turn.close(reason=reason, parent_id=entity.last_turn, sequence=entity.sequence + 1))
        self.cast.turns += 1
        # The crystal spoke once, so it sees one observation, even if delegations split the turn.
        entity.context.add(record if not turn.parts else joined((*turn.parts, record)))
        if turn.response.content:
            self._last_text = turn.response.content
        return record

    def _append(self, record: Turn) -> Turn:
        entity = self.entity
        entity.loom.append(record)
        entity.sequence += 1
        entity.last_turn = record.id
        self._gate_counts.update(record.gate_calls)
        return record

    def _tools(self) -> tuple[ToolDefinition, ...]:
        """The tools for the next query: the circle's tools.

        If the medium has no tool of its own, gates that were added later are included, because the entity could not
        call them otherwise.
        """
        circle = self.entity.circle
        if circle.medium.tool is not None:
            return circle.tools
        return circle.tools + self._executor.dynamic_gates.definitions

    async def _refusal(self, call: ToolCall) -> Output | None:
        """Ask the interceptors about a program. Returns the output of a refusal; None if it may run."""
        entity = self.entity
        if not self._executor.asks_about_programs:
            return None
        text = entity.circle.medium.code(call)
        if text is None:
            return None
        program = ProgramCall(call.gate, text, call.id, entity.circle, entity.id, self.cast.id, entity.depth)
        reply = await self._executor.program_refusal(program)
        if reply is None:
            return None
        return Output(error=str(reply.result), annotations=reply.annotations or msgspec.UNSET)

    async def _store_files(self, turn: Turn) -> None:
        """Keep the workspace's files as they are after a turn (``loom.files``)."""
        if self.entity.checkpoints is not None:
            await self.entity.checkpoints.store(turn, self.entity.circle)

    async def close_part(self, turn: TurnBuilder) -> None:
        """Write a turn up to the delegation that it has reached, and report it."""
        entity = self.entity
        first = not turn.parts
        # No await before this is in the loom: a second, concurrent delegation hangs on this record.
        record = self._append(
            turn.close_part(
                parent_id=entity.last_turn, sequence=entity.sequence + 1, output=self._session.partial_output()
            )
        )
        self._write_utterance(turn)
        if entity.hub.active:
            await self._send_turn(record, turn.response if first else None)

    def _spend_extra(self, usage: Usage) -> None:
        self.cast.extra_usage = self.cast.extra_usage + usage
        self.cast.spend(usage)

    async def _close_cut_turn(self, reason: str) -> None:
        """Write the turn that a cancel or a time limit interrupted, with everything that happened in it."""
        turn, self._turn = self._turn, None
        if turn is not None:
            self._ended = True
            record = self._write(turn, "done" if turn.finished and reason != "parent_terminated" else reason)
            await self._store_files(record)

    def _write_partial(self, reason: str) -> None:
        """Write what was streamed of an answer that will not be finished.

        It is not a turn; the next query continues from it.

        It is written without text too, so that the crystal sees that its user's last message had no answer.
        """
        stream, self._stream = self._stream, None
        if self._ended:
            return
        self._ended = True
        entity = self.entity
        record = UtteranceRecord(
            new_id("u"),
            entity.last_turn,
            entity.cantrip_id,
            entity.id,
            self.cast.id,
            entity.sequence + 1,
            stream.streamed() if stream is not None else Utterance(),
            usage=self.cast.extra_usage,
            model=entity.crystal.model if stream is not None else None,
            stop_reason=reason,
            partial=True,
            voided=tuple(self.cast.voided),
        )
        entity.loom.append(record)
        entity.context.interrupt(record)
        if record.utterance.content:
            self._last_text = record.utterance.content

    async def _send_cut_calls(self, turn: TurnBuilder) -> None:
        """Send the end events of calls and of the program that were cancelled, as their records have them."""
        if not self.entity.hub.active:
            return
        for call in turn.cut:
            finished = events.GateFinished(**self.cast.ids, call_id=call.call_id or "", record=call)
            await self.entity.hub.send(finished)
        if turn.cut_output is not None:
            output, report = turn.cut_output
            await report.end(output)

    # Endings and reports

    def _end(self, reason: str, error: BaseException | None) -> CastResult:
        entity = self.entity
        if entity.parent is not None:
            entity.requests.returned(entity.parent.cast.entity.requests)
        terminated = reason in TERMINATIONS
        unenforced = enforcement.at_end(entity, self.cast)
        faults, self._executor.faults = self._executor.faults, []
        warnings = (*unenforced, *map(entity.redactor.text, entity.source_problems), *faults)
        result = CastResult(
            # A copy, so that callers who change the result do not change the record.
            thaw(self._result) if terminated else None,
            terminated,
            not terminated,
            reason,
            self.cast.usage,
            self.cast.turns,
            entity.id,
            self.cast.id,
            self.cast.trace.trace_id,
            None if terminated else self._summary(reason, unenforced),
            entity.loom.location,
            self.cast.children_usage,
            warnings,
        )
        entity.loom.append(
            CastRecord(
                id=self.cast.id,
                event="end",
                entity_id=entity.id,
                cantrip_id=entity.cantrip_id,
                trace_id=self.cast.trace.trace_id,
                timestamp=now(),
                result=self._result if terminated else None,
                summary=result.summary,
                reason=reason,
                error=entity.redactor.diagnostic(f"{type(error).__name__}: {error}") if error is not None else None,
                terminated=terminated,
                truncated=not terminated,
                turns=self.cast.turns,
                usage=self.cast.usage.record()
                | ({"children": self.cast.children_usage.record()} if self.cast.children_usage is not None else {}),
                withdrawn=self._withdrawn or msgspec.UNSET,
                warnings=warnings or msgspec.UNSET,
            )
        )
        return result

    def _summary(self, reason: str, warnings: Sequence[str]) -> str:
        """A summary of what was done before the cast was cut off, made by rule and without a query (LOOP-4)."""
        how = _ENDED.get(reason, f"Stopped by {reason}")
        parts = [f"{how} after {self.cast.turns} turn{'s' if self.cast.turns != 1 else ''}.", *warnings]
        if self._gate_counts:
            parts.append("Gates called: " + ", ".join(f"{g} ×{n}" for g, n in self._gate_counts.most_common(8)) + ".")
        if words := without_calls(self._last_text or ""):
            parts.append(f"Last words: {words[:300]}{'…' if len(words) > 300 else ''}")
        return self.entity.redactor.text(" ".join(parts))

    async def _send_turn(self, record: Turn, response: Response | None) -> None:
        hub = self.entity.hub
        if response is not None:
            await self._send_usage(record.metadata.usage, response.usage.total_tokens)
        await hub.send(events.TurnEnded(**self.cast.ids, turn=record))

    async def _send_usage(self, usage: Usage, used: int | None = None) -> None:
        """``used`` is how full the window is by the provider's count. If it is None, an estimate is sent."""
        await self.entity.hub.send(
            events.UsageReported(
                **self.cast.ids,
                usage=usage.record(),
                cumulative=self.entity.usage.record(),
                used=self.entity.context.tokens if used is None else used,
                size=self.entity.crystal.context_window,
            )
        )

    async def _send_end(self, result: CastResult, error: CantripError | None) -> None:
        if not self.entity.hub.active:
            return
        if self.cast.extra_usage != NO_USAGE:
            # A query that failed or was cut off wrote no turn, but it is billed all the same.
            await self._send_usage(self.cast.extra_usage)
        await self.entity.hub.send(
            events.CastEnded(
                **self.cast.ids,
                result=result.result,
                terminated=result.terminated,
                truncated=result.truncated,
                reason=result.reason,
                usage=result.usage.record(),
                trace_id=result.trace_id,
                turns=result.turns,
                loom=result.loom,
                warnings=result.warnings,
                error=self.entity.redactor.diagnostic(str(error)) if error is not None else None,
            )
        )
