"""The loop: runs one cast of an entity, turn by turn (chapter 1).

A turn is: query, classify, execute, record. Then the cast terminates, is truncated or continues.
One `CastRun` is one cast. The order inside a turn is fixed, because everything else depends on it: query the crystal,
run its calls one after the other, write the turn to the loom (LOOM-1), add it to the messages, and only then report
it to readers and start the next turn.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import msgspec

from cantrip_acp.core import events
from cantrip_acp.core.errors import CantripError, ContextLimitError, CrystalError, LoomError, describe, interrupts
from cantrip_acp.core.folding.apply import make_more_room, make_room
from cantrip_acp.core.folding.policy import CHARS_PER_TOKEN
from cantrip_acp.core.history.continuation import take_context
from cantrip_acp.core.query_stream import Sink
from cantrip_acp.core.result import CastResult as CastResult
from cantrip_acp.core.scoring import Scoring
from cantrip_acp.core.turn_builder import TurnState
from cantrip_acp.crystals.contract import NO_USAGE, Query, RequestParameters, Response, ToolCall, Usage
from cantrip_acp.crystals.preload import prepared
from cantrip_acp.crystals.retry import ask
from cantrip_acp.loom.query.thread import answer
from cantrip_acp.loom.records.turn import (
    TERMINATIONS,
    CastRecord,
    ContextRecord,
    Output,
    Turn,
    Utterance,
    UtteranceRecord,
    VoidedAttempt,
    new_id,
    now,
)
from cantrip_acp.loom.records.turn_parts import joined
from cantrip_acp.mediums.program_events import Report
from cantrip_acp.mediums.text_program import MOST_PROBLEMS, TextPrograms
from cantrip_acp.telemetry import genai_spans, tracing
from cantrip_acp.text.json_data import thaw

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cantrip_acp.core.context_block import ContextBlock
    from cantrip_acp.core.entity import Entity
    from cantrip_acp.core.history.continuation import Point
    from cantrip_acp.core.wards import Wards

_ENDED = {
    "cancelled": "Cancelled",
    "parent_terminated": "Ended with its parent",
    "refusal": "The crystal refused",
    "error": "Failed",
}
"""Words for truncations that no ward caused."""


def _many(queries: int) -> str:
    return "1 query" if queries == 1 else f"{queries} queries"


_KEPT_WITHIN = 1.0
"""Seconds that the snapshot of the last turn may still take if the cast is stopped."""
_NOT_TAKEN = frozenset({400, 413, 415, 422})
"""HTTP statuses by which a provider says that it does not accept the request's content."""


class CastRun:
    """One cast, from its intent to its end."""

    def __init__(
        self,
        entity: Entity,
        intent: str,
        trace: tracing.Trace,
        blocks: Sequence[ContextBlock],
        resumed: Point | None = None,
    ) -> None:
        """``resumed`` is the place where another cast is continued; ``intent`` and ``blocks`` are then of that cast."""
        self.entity = entity
        self.id = new_id("c")
        self.intent = intent
        self.trace = trace
        self.blocks = tuple(blocks)
        self.resumed = resumed
        self.scoring = Scoring(entity.circle.score if entity.cantrip.scores else None, entity.loom, entity.redactor)
        call = entity.call
        asked = RequestParameters(call.temperature, call.top_p, call.seed, call.max_tokens)
        self.asked = asked if asked != RequestParameters() else None
        """The call's parameters, or None if it sets none."""
        self.usage = Usage()
        """The usage of this cast, including all its children."""
        self.below: Usage | None = None
        """The children's part of that usage; None if there were no children."""
        self.estimated = 0
        """Estimated tokens of queries whose usage is unknown, including children's. Wards on tokens count them too."""
        self.beside = NO_USAGE
        """Usage of the running query besides its response: failed attempts, and answers that broke the contract."""
        self.voided: list[VoidedAttempt] = []
        """What attempts of the running query had streamed before they broke off."""
        self.unpriced: dict[str, None] = {}
        """The models that reported no cost."""
        self.queries = (
            resumed.spent if resumed is not None and resumed.spent < (entity.circle.wards.max_turns or 1) else 0
        )
        self.turns = 0
        self._withdrawn = False
        self.stop_reason: str | None = None
        """Why the scope was cancelled, if it was. Set it before cancelling."""
        self._turn: TurnState | None = None
        self._sink: Sink | None = None
        """Receives the stream of the current query; None between queries."""
        self._ended = False
        """Whether the last turn, or the partial answer written instead of one, has ended the cast."""
        self._scope: anyio.CancelScope | None = None
        self._began = 0.0
        self._latest = math.inf
        self._gates: Counter[str] = Counter()
        self._words: str | None = None
        self._unclear = 0
        """How many responses in a row held a program that was not clear."""
        self._result: Any = None
        self._ids: dict[str, Any] = {"entity_id": entity.id, "cast_id": self.id, "depth": entity.depth}

    # The whole cast

    async def run(self, scope: anyio.CancelScope) -> CastResult:
        """Run the cast to its end.

        Raises `CrystalError` where a query failed and is not retried; the loom is complete before that.
        """
        await self._begin()
        reason, error = "error", None
        try:
            with scope:
                self._scope, self._latest, self._began = scope, scope.deadline, anyio.current_time()
                self.hold_to(self.entity.circle.wards)
                # The cast's start is in the loom. Whatever stops it from here on, its end is written too.
                await self._tell_start()
                with genai_spans.invoke_agent(self.entity, self.trace, self.id, self.intent) as span:
                    reason = await self._turns()
                    if span is not None:
                        span.ended(reason, self.usage, self._result)
            if scope.cancelled_caught:
                reason = self.stop_reason or "max_seconds"
                turn = self._turn
                await self._close_cut_turn(reason)
                if turn is not None:
                    await self._tell_cut_calls(turn)
                else:
                    self._write_partial(reason)
        except anyio.get_cancelled_exc_class():
            # The task that started this entity was cancelled. What happened until now is written all the same (COMP-9).
            reason = self.stop_reason or ("parent_terminated" if self.entity.depth else "cancelled")
            if self._turn is None:
                self._write_partial(reason)
            await self._close_cut_turn(reason)
            self._end(reason, None)
            raise
        except CrystalError as caught:
            error = caught
            reason = "error"
            if not self.turns and (caught.status in _NOT_TAKEN or isinstance(caught, ContextLimitError)):
                self._withdrawn = self.entity.context.withdraw()
            if not self._withdrawn:
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
        if self.turns:
            await self.scoring.end(self.entity.last_turn)
        await self._tell_end(result, error)
        if error is not None:
            raise error
        return result

    def hold_to(self, wards: Wards) -> None:
        """Apply the time limit that is in force now. It counts from the start of the cast."""
        if self._scope is not None and self.stop_reason is None:
            limit = math.inf if wards.max_seconds is None else self._began + wards.max_seconds
            self._scope.deadline = min(self._latest, limit)

    async def _begin(self) -> None:
        entity = self.entity
        loom = entity.loom
        if entity.birth is not None:
            entity.lineage.called(entity.birth.run.entity.lineage)
        if not tracing.prepared():
            await anyio.to_thread.run_sync(tracing.prepare)
        for contributor in entity.contributors if self.resumed is None else ():
            from cantrip_acp.core.context_block import CastInfo

            info = CastInfo(entity.id, self.id, self.intent, self.trace.trace_id, entity.context.pinned)
            try:
                self.blocks = (*self.blocks, *await contributor(info))
            except Exception as problem:
                if isinstance(problem, CantripError) or interrupts(problem):
                    raise
                name = getattr(contributor, "__qualname__", type(contributor).__name__)
                raise CantripError(
                    f"the cast did not start: the context contributor {name} failed: {describe(problem)}"
                ) from problem
        entity.root()
        birth = entity.birth
        where = self.resumed
        if where is not None and where.taken:
            entity.context = take_context(entity, where)
            entity.last_turn = where.turn_id
        loom.hold_cast(self.id)
        loom.append(
            CastRecord(
                id=self.id,
                event="start",
                entity_id=entity.id,
                cantrip_id=entity.cantrip_id,
                trace_id=self.trace.trace_id,
                timestamp=now(),
                intent=entity.redactor.text(self.intent),
                attributes={"crystal": entity.crystal.name, "model": entity.crystal.model, **self.trace.attributes},
                parent_turn_id=birth.turn_id if birth is not None else None,
                parent_call_id=birth.call_id if birth is not None else msgspec.UNSET,
                parent_call_index=msgspec.UNSET if birth is None or birth.index is None else birth.index,
                resumes=where.cast.id if where is not None else msgspec.UNSET,
            )
        )
        for block in self.blocks:
            text = entity.redactor.text(block.text)
            record = ContextRecord(new_id("x"), entity.id, self.id, block.source, block.title, text, block.uri, now())
            if block.attachment is not None:
                record = msgspec.structs.replace(record, mime=block.attachment.mime, data=block.attachment.data)
            loom.append(record)
        if where is None or where.begins:
            entity.context.begin(self.intent, self.blocks)
        else:
            # The same query is sent again, so its unfinished answer must go.
            entity.context.forget_partial()
        entity.begun = self.id

    async def _tell_start(self) -> None:
        if self.entity.hub.active:
            intent = self.entity.redactor.text(self.intent)
            await self.entity.hub.send(events.CastStarted(**self._ids, intent=intent, trace_id=self.trace.trace_id))
            for problem in (*self.entity.problems(), *self._known_unenforceable()):
                await self.entity.hub.send(events.Noticed(**self._ids, text=problem))

    async def _turns(self) -> str:
        """Run turn after turn until one ends the cast. Returns the reason."""
        try:
            return await self._one_by_one()
        except BaseException:
            # Raise what stopped the cast, not an error from the snapshot.
            with anyio.CancelScope(shield=True), contextlib.suppress(CantripError):
                await self.entity.state_kept(patience=0 if self.entity.ends_when_cut else _KEPT_WITHIN)
            raise

    async def _one_by_one(self) -> str:
        while True:
            await anyio.lowlevel.checkpoint()
            turn = TurnState(self, time.perf_counter())
            self.queries += 1
            turn.response = response = await self._answered(turn.id)
            if response.problem is not None:
                turn.response = response = self._with_patience(response)
            else:
                self._unclear = 0
            turn.used = used = response.usage.counted()
            self._turn = turn
            turn.beside, self.beside = self.beside, NO_USAGE
            turn.voided, self.voided = tuple(self.voided), []
            self.spend(used, said=len(response.content or "") + len(response.thinking or ""))
            self._keep_word(turn)
            if self.entity.hub.active:
                for notice in response.notices:
                    await self.entity.hub.send(events.Noticed(**self._ids, text=self.entity.redactor.text(notice)))
            if response.problem is not None:
                turn.outputs.append(Output(error=response.problem))
                if self.entity.hub.active:
                    await self.entity.hub.send(events.Noticed(**self._ids, text=response.problem))
            # None of the entity's code may run during this step, and a cell must start from the state of the snapshot.
            await self.entity.state_kept()
            await self._act(turn)
            reason = self._verdict(turn)
            self._turn = None
            record = self._write(turn, reason)
            self._ended = reason is not None
            await self.entity.keep_files(record)
            await self.scoring.turn(record if not turn.parts else joined((*turn.parts, record)))
            if turn.outputs and response.tool_calls:
                await self.entity.keep_state(record.id)
            if self.entity.hub.active:
                await self._tell_turn(record, response if not turn.parts else None)
            if self.entity.birth is not None:
                # Also if this cast has ended: the limits of the casts above apply to what all their children spend.
                self._stop_overspent(used)
            if reason is not None:
                await self.entity.state_kept()
                self._result = turn.answer if reason == "done" else answer(record)
                return reason

    def _verdict(self, turn: TurnState) -> str | None:
        """Why the cast ends with this turn, or None (LOOP-2, LOOP-3, LOOP-4, LOOP-6)."""
        wards, response = self.entity.circle.wards, turn.response
        if turn.finished:
            return "done"
        if response.refused:
            return "refusal"
        if not response.tool_calls and response.stop_reason == "length":
            # Cut at the crystal's own limit: half an answer is not a result.
            return "max_tokens"
        if not response.tool_calls and response.problem is None and not self.entity.require_done:
            return "text"
        if wards.max_total_tokens is not None and self.tokens >= wards.max_total_tokens:
            return "max_tokens"
        if wards.max_cost_usd is not None:
            # A cost limit that cannot be measured counts as reached at once.
            if turn.used.queries_without_cost or (self.usage.cost or 0.0) >= wards.max_cost_usd:
                return "max_cost"
        if self.queries >= (wards.max_turns or 1):
            return "max_turns"
        return None

    # One turn

    async def _answered(self, turn_id: str) -> Response:
        """Query the crystal. Fold first if the context has become too large (PROD-4)."""
        await make_room(self)
        try:
            return await self._ask(turn_id)
        except ContextLimitError as refusal:
            # The provider counts tokens differently. Try once more with a smaller context; if it cannot shrink, raise
            # the error.
            if not await make_more_room(self, refusal):
                raise
            if self._sink is not None:
                await self._sink.void(refusal)
            return await self._ask(turn_id)

    async def _ask(self, turn_id: str) -> Response:
        entity = self.entity
        call = entity.call
        query = Query(
            messages=entity.context.messages,
            tools=entity.tools,
            tool_choice=call.tool_choice or "auto",
            params=call,
            intent=self.intent,
            entity_id=entity.id,
            trace_id=self.trace.trace_id,
            request_id=new_id("q") if entity.names_requests else "",
        )
        sink = self._sink = Sink(self)
        if entity.hub.active:
            await entity.hub.send(events.QueryStarted(**self._ids, message_id=sink.message_id))
        await prepared(entity.crystal)
        with genai_spans.chat(entity, self.trace, query, sink.emit) as span:
            emit = sink.emit if span is None else span.emit

            def read(response: Response) -> Response:
                # Decided only now, because a recorded crystal writes its calls as text in some turns only.
                programs = TextPrograms.of(entity.circle.medium, entity.crystal, call.tool_choice, f"text_{turn_id}")
                return response if programs is None else programs.read(response)

            response = await ask(entity.crystal, query, emit, entity.retry, sink.notice, read, self._spend_beside)
            await sink.finish()
            entity.lineage.answered(query.request_id)
            if span is not None:
                span.answered(response, sink.attempt, self.beside)
            self._sink = None
            return response

    def _with_patience(self, response: Response) -> Response:
        """The response.

        If prose may end the cast, a program that stays unclear counts as prose after `MOST_PROBLEMS` tries.
        """
        self._unclear += 1
        if self._unclear > MOST_PROBLEMS and not self.entity.require_done:
            return msgspec.structs.replace(response, problem=None)
        return response

    async def _act(self, turn: TurnState) -> None:
        """Run the calls of an utterance in order; stop after done (D-003, CIRCLE-7)."""
        entity = self.entity
        medium = entity.circle.medium
        for index, call in enumerate(turn.response.tool_calls):
            if medium.tool is not None and call.gate == medium.tool:
                # The crystal may repeat its ids in later turns, but event ids must be unique.
                output = await self._program(turn, index, call)
                # Append only now: a delegation may have started another part of the turn, with its own outputs.
                turn.outputs.append(output)
            else:
                name = entity.circle.tool_names.get(call.gate, call.gate)
                await turn.gate(name, call.args, tool_call_id=call.id)
            if turn.finished:
                break

    async def _program(self, turn: TurnState, index: int, call: ToolCall) -> Output:
        """Run one program of the medium, unless an interceptor refuses it."""
        own = turn.program = ToolCall(f"{turn.id}.{index}", call.gate, call.args)
        entity = self.entity
        output = await entity.refused(own, self.id)
        if output is not None:
            await Report(own, turn, call.gate).end(output)
            return output
        session = await entity.session()
        with genai_spans.execute_tool(
            call.gate, self.trace, entity.redactor, call_id=call.id, args=call.args, entity_id=entity.id
        ) as span:
            output = await session.run(own, turn)
            if span is not None:
                span.ended(entity.circle.medium.observe(output), "program_error" if output.failed else None)
            return output

    def _keep_word(self, turn: TurnState) -> None:
        """Write the utterance before acting on it: if the process ends, nothing must be done twice.

        Not needed for a loom in memory, which ends with the process.
        """
        entity = self.entity
        if entity.loom.location is not None and turn.acts:
            entity.loom.append(turn.word(parent_id=entity.last_turn, sequence=entity.sequence + 1))

    def _write(self, turn: TurnState, reason: str | None) -> Turn:
        entity = self.entity
        record = self._append(turn.close(reason=reason, parent_id=entity.last_turn, sequence=entity.sequence + 1))
        # The crystal spoke once, so it sees one observation, even if delegations split the turn.
        entity.context.add(record if not turn.parts else joined((*turn.parts, record)))
        if turn.response.content:
            self._words = turn.response.content
        return record

    def _append(self, record: Turn) -> Turn:
        entity = self.entity
        entity.loom.append(record)
        entity.sequence += 1
        entity.last_turn = record.id
        self.turns += 1
        self._gates.update(record.gate_calls)
        return record

    async def close_part(self, turn: TurnState) -> None:
        """Write a turn up to the delegation that it has reached, and report it."""
        entity = self.entity
        first = not turn.parts
        # No await before this is in the loom: a second, concurrent delegation hangs on this record.
        record = self._append(
            turn.close_part(parent_id=entity.last_turn, sequence=entity.sequence + 1, output=entity.printed())
        )
        self._keep_word(turn)
        if entity.hub.active:
            await self._tell_turn(record, turn.response if first else None)

    @property
    def tokens(self) -> int:
        """The count for `max_total_tokens`: tokens that providers reported, plus an estimate for the others."""
        return (self.usage.total_tokens or 0) + self.estimated

    def spend(self, usage: Usage, *, said: int = 0, model: str | None = None) -> None:
        """Add a query's usage to this cast and to every cast above it, because parents pay for their children.

        ``said`` is the number of characters of its response, for an estimate where its usage is unknown. ``model`` is
        the model that was queried, if it is not the entity's.
        """
        estimated = 0
        if usage.queries_without_usage:
            asked = self.entity.context.tokens * usage.queries_without_usage + said // CHARS_PER_TOKEN
            estimated = max(0, asked - (usage.total_tokens or 0))
        unpriced = (model or self.entity.crystal.model) if usage.queries_without_cost else None
        run = self
        while True:
            run.usage = run.usage + usage
            run.entity.usage = run.entity.usage + usage
            run.estimated += estimated
            if unpriced is not None:
                run.unpriced[unpriced] = None
            if run.entity.birth is None:
                return
            run = run.entity.birth.run
            run.below = usage if run.below is None else run.below + usage

    def _spend_beside(self, usage: Usage) -> None:
        self.beside = self.beside + usage
        self.spend(usage)

    def _known_unenforceable(self) -> list[str]:
        """Problems with wards that are known at the start of the cast."""
        entity = self.entity
        if entity.circle.wards.max_cost_usd is None or getattr(entity.crystal, "priced", None) is not False:
            return []
        return [
            f"max_cost_usd cannot be enforced: what {entity.crystal.model} costs is not known, so the cast ends after the "
            "first query that uses tokens; give the crystal a price"
        ]

    def _warnings(self) -> tuple[str, ...]:
        """The wards of this cast that could not be enforced, or not exactly, and why."""
        wards, usage = self.entity.circle.wards, self.usage
        found = []
        if wards.max_cost_usd is not None and usage.queries_without_cost:
            models = ", ".join(self.unpriced) or self.entity.crystal.model
            known = f"${usage.cost:.6g} are known" if usage.cost is not None else "nothing of it is known"
            found.append(
                f"max_cost_usd cannot be enforced: the cost of {_many(usage.queries_without_cost)} of {models} is not known "
                f"({known}); give the crystal a price, or use a provider that reports usage."
            )
        if wards.max_total_tokens is not None and usage.queries_without_usage:
            found.append(
                f"max_total_tokens cannot be enforced exactly: the usage of {_many(usage.queries_without_usage)} was not "
                f"reported in full; it was estimated at {self.estimated:,} tokens."
            )
        return tuple(self.entity.redactor.text(each) for each in found)

    def _stop_overspent(self, usage: Usage) -> None:
        """Stop the highest cast above this one that has reached its token or cost limit.

        All casts below it end too (COMP-9).
        """
        over: tuple[CastRun, str] | None = None
        birth = self.entity.birth
        while birth is not None:
            above = birth.run
            wards = above.entity.circle.wards
            if wards.max_total_tokens is not None and above.tokens >= wards.max_total_tokens:
                over = (above, "max_tokens")
            elif wards.max_cost_usd is not None and (
                usage.queries_without_cost or (above.usage.cost or 0.0) >= wards.max_cost_usd
            ):
                over = (above, "max_cost")
            birth = above.entity.birth
        if over is not None:
            run, reason = over
            run.entity.cancel(reason)

    async def _close_cut_turn(self, reason: str) -> None:
        """Write the turn that a cancel or a time limit interrupted, with everything that happened in it."""
        turn, self._turn = self._turn, None
        if turn is not None:
            self._ended = True
            record = self._write(turn, "done" if turn.finished and reason != "parent_terminated" else reason)
            await self.entity.keep_files(record)

    def _write_partial(self, reason: str) -> None:
        """Write what was streamed of an answer that will not be finished.

        It is not a turn; the next query continues from it.

        It is written without text too, so that the crystal sees that its user's last message had no answer.
        """
        sink, self._sink = self._sink, None
        if self._ended:
            return
        self._ended = True
        entity = self.entity
        record = UtteranceRecord(
            new_id("u"),
            entity.last_turn,
            entity.cantrip_id,
            entity.id,
            self.id,
            entity.sequence + 1,
            sink.streamed() if sink is not None else Utterance(),
            usage=self.beside,
            model=entity.crystal.model if sink is not None else None,
            stop_reason=reason,
            partial=True,
            voided=tuple(self.voided),
        )
        entity.loom.append(record)
        entity.context.interrupt(record)
        if record.utterance.content:
            self._words = record.utterance.content

    async def _tell_cut_calls(self, turn: TurnState) -> None:
        """Send the end events of calls and of the program that were cancelled, as their records have them."""
        if not self.entity.hub.active:
            return
        for call in turn.cut:
            await self.entity.hub.send(
                events.GateFinished(
                    **self._ids,
                    call_id=call.call_id or "",
                    gate=call.gate,
                    result=call.result,
                    is_error=True,
                    via=call.parent_call_id or None,
                    annotations=call.annotations or {},
                )
            )
        if turn.cut_output is not None and turn.program is not None:
            await Report(turn.program, turn, turn.program.gate).end(turn.cut_output)

    # Endings and reports

    def _end(self, reason: str, error: BaseException | None) -> CastResult:
        entity = self.entity
        if entity.birth is not None:
            entity.lineage.returned(entity.birth.run.entity.lineage)
        terminated = reason in TERMINATIONS
        warnings = self._warnings()
        summary = None if terminated else self._digest(reason, warnings)
        result = CastResult(
            # A copy, so that callers who change the result do not change the record.
            thaw(self._result) if terminated else None,
            terminated,
            not terminated,
            reason,
            self.usage,
            self.turns,
            entity.id,
            self.id,
            self.trace.trace_id,
            summary,
            entity.loom.location,
            self.below,
            warnings,
        )
        entity.loom.append(
            CastRecord(
                id=self.id,
                event="end",
                entity_id=entity.id,
                cantrip_id=entity.cantrip_id,
                trace_id=self.trace.trace_id,
                timestamp=now(),
                result=self._result if terminated else None,
                summary=summary,
                reason=reason,
                error=entity.redactor.diagnostic(f"{type(error).__name__}: {error}") if error is not None else None,
                terminated=terminated,
                truncated=not terminated,
                turns=self.turns,
                usage=self.usage.record() | ({"children": self.below.record()} if self.below is not None else {}),
                withdrawn=self._withdrawn or msgspec.UNSET,
                warnings=warnings or msgspec.UNSET,
            )
        )
        return result

    def _digest(self, reason: str, warnings: Sequence[str]) -> str:
        """A summary of what was done before the cast was cut off, made by rule and without a query (LOOP-4)."""
        how = _ENDED.get(reason, f"Stopped by {reason}")
        parts = [f"{how} after {self.turns} turn{'s' if self.turns != 1 else ''}.", *warnings]
        if self._gates:
            parts.append("Gates called: " + ", ".join(f"{g} ×{n}" for g, n in self._gates.most_common(8)) + ".")
        if self._words:
            words = " ".join(self._words.split())
            parts.append(f"Last words: {words[:300]}{'…' if len(words) > 300 else ''}")
        return self.entity.redactor.text(" ".join(parts))

    async def _tell_turn(self, record: Turn, response: Response | None) -> None:
        hub = self.entity.hub
        if response is not None:
            await self._tell_usage(record.metadata.usage, response.usage.total_tokens)
        await hub.send(events.TurnEnded(**self._ids, turn=record))

    async def _tell_usage(self, usage: Usage, used: int | None = None) -> None:
        """``used`` is how full the window is by the provider's count. If it is None, an estimate is sent."""
        await self.entity.hub.send(
            events.UsageReported(
                **self._ids,
                usage=usage.record(),
                cumulative=self.entity.usage.record(),
                used=self.entity.context.tokens if used is None else used,
                size=self.entity.crystal.context_window,
            )
        )

    async def _tell_end(self, result: CastResult, error: CantripError | None) -> None:
        if not self.entity.hub.active:
            return
        if self.beside != NO_USAGE:
            # A query that failed or was cut off wrote no turn, but it is billed all the same.
            await self._tell_usage(self.beside)
        await self.entity.hub.send(
            events.CastEnded(
                **self._ids,
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
