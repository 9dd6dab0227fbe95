"""Turn builder: collects one turn while it runs, and makes its record (`gates.ports.TurnContext`)."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import msgspec

from cantrip_acp.core.running_calls import STOPPED_BY_USER
from cantrip_acp.crystals.contract import WEIGHTS_VARIABLE, CrystalBase, Response
from cantrip_acp.gates.registry import ALIASES, CHILD_FUNCTIONS, DELEGATION
from cantrip_acp.loom.records.turn_parts import together
from cantrip_acp.telemetry import tracing
from cantrip_acp.text.defaults import complete
from cantrip_acp.text.json_data import freeze, freeze_record
from cantrip_acp.types.errors import one_failure
from cantrip_acp.types.messages import RequestParameters, ToolCall
from cantrip_acp.types.records import (
    TERMINATIONS,
    GateRecord,
    Observation,
    Output,
    SentQuery,
    Turn,
    TurnMetadata,
    Utterance,
    UtteranceRecord,
    metadata_of,
    new_id,
    now,
)
from cantrip_acp.types.usage import NO_USAGE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from cantrip_acp.core.casting.gate_executor import GateExecutor
    from cantrip_acp.core.state import CastState, EntityState
    from cantrip_acp.gates.contract import Gate
    from cantrip_acp.gates.ports import Network, ProgramReport
    from cantrip_acp.gates.wards import Wards
    from cantrip_acp.types.events import Event
    from cantrip_acp.types.messages import SampledTokens


UNFINISHED = "interrupted: the command that made this call ended first; the call may have had its effect"
"""The result of a call that a program made and that has no result."""

STOPPED = "interrupted: the cast was stopped during this call, which may have had its effect"
"""The result of a call that the crystal made directly, if a cancel or a time limit interrupted it."""

CUT_OFF = "interrupted: the cast was stopped while the child was at work; what it had done is in the loom"
"""The result of a delegation whose parent was stopped."""


_NOTHING = Utterance()
_NO_RESPONSE = Response()


class _Group:
    """Delegations of one utterance that run beside each other."""

    __slots__ = ("results", "waiting")

    def __init__(self) -> None:
        self.results: list[list[GateRecord]] = []
        """The record of each call that has ended, in the order of the calls."""
        self.waiting: dict[str, anyio.Event] = {}
        """Set for each call when its children begin, or when it has ended without any."""


class Delegations:
    """The children of one turn that are at work. ``close_part`` writes the turn so far, before a child runs."""

    __slots__ = ("_children", "_close_part", "_group", "_hung", "_turn")

    def __init__(self, turn: TurnBuilder, close_part: Callable[[TurnBuilder], Awaitable[None]]) -> None:
        self._turn = turn
        self._close_part = close_part
        self._children = 0
        self._hung = False
        """Whether the loom has the turn that the running children hang on."""
        self._group: _Group | None = None

    @asynccontextmanager
    async def spawning(self, call_id: str) -> AsyncIterator[str]:
        """See `TurnBuilder.spawning`.

        The turn so far is written first, so that the loom never names a turn that is not in it (LOOM-1). Overlapping
        children hang on the turn that the first of them closed. What follows the last child is the next turn.
        """
        self._children += 1
        try:
            if not self._hung:
                self._hung = True
                await self._close_part(self._turn)
            if self._group is not None:
                self._group.waiting[call_id].set()
            yield self._turn.parts[-1].id
        finally:
            self._children -= 1
            self._end()

    def _end(self) -> None:
        """Begin the next turn, unless children still run or more calls of a group are to come."""
        if self._hung and not self._children and self._group is None:
            self._hung = False
            self._turn.started = time.perf_counter()

    async def run(self, calls: Sequence[ToolCall]) -> None:
        """Run delegations that follow each other directly beside each other; results are in the order of the calls.

        At most ``max_concurrent_children`` of them run at once. A call begins when the one before it has its children
        at work or has ended: so questions for permission come one after the other, and children have the numbers that
        they would have in a row.
        """
        turn, names = self._turn, self._turn.entity.circle.tool_names
        room = anyio.Semaphore(turn.wards.max_concurrent_children)
        group = self._group = _Group()

        async def run(call: ToolCall, kept: list[GateRecord], begun: anyio.Event) -> None:
            name = ALIASES.get(named := names.get(call.gate, call.gate), named)
            call_id = turn.number(name)
            group.waiting[call_id] = begun
            try:
                await turn.call(name, call.args, call_id, None, call.id, kept.append)
            finally:
                begun.set()
                room.release()

        try:
            with one_failure():
                async with anyio.create_task_group() as tasks:
                    for call in calls:
                        await room.acquire()
                        begun = anyio.Event()
                        group.results.append([])
                        tasks.start_soon(run, call, group.results[-1], begun)
                        await begun.wait()
        finally:
            self._group = None
            turn.results += [record for kept in group.results for record in kept]
            self._end()


class TurnBuilder:
    """One turn while it runs. Mediums see it as `gates.ports.TurnContext`."""

    __slots__ = (
        "_executor", "_utterance_cache", "answer", "cast", "cast_id", "context", "cut", "cut_output", "delegations",
        "depth", "entity", "entity_id", "finished", "gate_calls", "id", "outputs", "parts", "query", "response",
        "results", "started", "trace_id", "used",
    )  # fmt: skip

    def __init__(
        self,
        entity: EntityState,
        cast: CastState,
        executor: GateExecutor,
        close_part: Callable[[TurnBuilder], Awaitable[None]],
    ) -> None:
        self.entity = entity
        self.cast = cast
        self.entity_id, self.cast_id, self.trace_id = entity.id, cast.id, cast.trace.trace_id
        self.depth, self.context = entity.depth, cast.blocks
        self._executor = executor
        self.id = new_id("t")
        self.started = time.perf_counter()
        self.response = _NO_RESPONSE
        self.used = NO_USAGE
        """The usage of the response, with its unknown parts counted."""
        self.query = cast.query
        self.results: list[GateRecord] = []
        self.outputs: list[Output] = []
        self.gate_calls: list[str] = []
        self.cut: list[GateRecord] = []
        """The calls that were cancelled. Readers have not received end events for them."""
        self.cut_output: tuple[Output, ProgramReport] | None = None
        """The output of the program that was cancelled. Readers have not received its end event."""
        self.finished = False
        self.answer: Any = None
        self.parts: Sequence[Turn] = ()
        """The parts of this utterance that the loom already has. Each delegation closes a part."""
        self.delegations = Delegations(self, close_part)
        self._utterance_cache: Utterance | None = None

    @property
    def wards(self) -> Wards:
        return self.entity.circle.wards

    def shared_network(self) -> Network | None:
        return self._executor.shared_network()

    @property
    def traceparent(self) -> str:
        return tracing.traceparent(self.cast.trace)

    @property
    def ends_when_cut(self) -> bool:
        return self.entity.ends_when_cut

    @property
    def listening(self) -> bool:
        return self.entity.hub.active

    @property
    def folded(self) -> int:
        return len(self.entity.context.folded)

    def history(self, start: int, count: int) -> tuple[int, list[Any]]:
        entity = self.entity
        # An utterance that has delegated is already in the loom up to there, but it is not part of the history.
        behind = self.parts[0].parent_id if self.parts else entity.last_turn
        path = entity.loom.utterance_ids(behind) if behind else []
        return len(path), [msgspec.to_builtins(entity.loom.utterance_turn(ids)) for ids in path[start : start + count]]

    async def emit(self, event: Event) -> None:
        await self.entity.hub.send(event)

    def interrupted(self, output: Output, report: ProgramReport) -> None:
        output = msgspec.structs.replace(output, annotations={"stopped": True})
        self.outputs.append(output)
        self.cut_output = (output, report)

    async def stopped_program(self, report: ProgramReport) -> Output:
        """The output of a program that the user stopped. ``report`` sends the end event if the program had not begun."""
        if self.cut_output is None:
            return await report.end(Output(error=STOPPED_BY_USER, annotations={"stopped": True}))
        output, report = self.cut_output
        # If a cancel comes while readers get the end, the turn has the output all the same.
        output = self.outputs[-1] = msgspec.structs.replace(output, error=STOPPED_BY_USER)
        self.cut_output = (output, report)
        output = await report.end(output)
        self.cut_output = None
        self.outputs.pop()
        return output

    def spawning(self, call_id: str) -> AbstractAsyncContextManager[str]:
        """A context manager around the children of one call. Yields the id of the turn that they hang on (COMP-5)."""
        return self.delegations.spawning(call_id)

    def close_part(self, *, parent_id: str, sequence: int, output: Output | None) -> Turn:
        """The record of the turn so far. From here on this object is the turn that continues it."""
        if output is not None:
            self.outputs.append(output)
        record = self.close(reason=None, parent_id=parent_id, sequence=sequence)
        self.parts = (*self.parts, record)
        self.id = new_id("t")
        self.results, self.outputs, self.gate_calls = [], [], []
        return record

    async def gate(
        self,
        name: str,
        args: Mapping[str, Any] | str,
        *,
        via: str | None = None,
        tool_call_id: str | None = None,
        own: Gate | None = None,
    ) -> GateRecord:
        name = ALIASES.get(name, name)
        # Look the list up only then: a delegation may have started another part of the turn.
        return await self.call(
            name, args, self.number(name), via, tool_call_id, lambda record: self.results.append(record), own
        )

    def number(self, name: str) -> str:
        """Count a call of this gate, and return the id of the call in events."""
        call_id = f"{self.id}.g{len(self.gate_calls)}"
        self.gate_calls.append(name)
        return call_id

    async def call(
        self,
        name: str,
        args: Mapping[str, Any] | str,
        call_id: str,
        via: str | None,
        tool_call_id: str | None,
        keep: Callable[[GateRecord], None],
        own: Gate | None = None,
    ) -> GateRecord:
        def cut(record: GateRecord) -> None:
            # The effects of a call from before the cancel stay, so the turn must record them.
            why = STOPPED if via is None else UNFINISHED
            if (name in DELEGATION or name in CHILD_FUNCTIONS) and self.parts:
                why = CUT_OFF
            record = msgspec.structs.replace(record, result=why)
            keep(record)
            self.cut.append(record)

        record = await self._executor.execute(
            name,
            args,
            call_id=call_id,
            entity_id=self.entity.id,
            cast_id=self.cast.id,
            trace=self.cast.trace,
            tool_call_id=tool_call_id,
            via=via,
            program=self._program_index(via),
            own=own,
            turn=self,
            cut=cut,
        )
        keep(record)
        if name == "done" and not record.is_error and not self.finished:
            self.finished = True
            self.answer = record.result
        return record

    def _program_index(self, via: str | None) -> int | msgspec.UnsetType:
        """The place of the program ``via``, if the utterance has several programs."""
        if via is None or len(self.response.tool_calls) < 2:
            return msgspec.UNSET
        tool = self.entity.circle.medium.tool
        if sum(call.gate == tool for call in self.response.tool_calls) < 2:
            return msgspec.UNSET
        index = via.rpartition(".")[2]
        return int(index) if index.isdecimal() else msgspec.UNSET

    @property
    def has_effects(self) -> bool:
        """Whether the utterance may have effects outside the loom."""
        return any(call.gate != "done" for call in self.response.tool_calls)

    def utterance_record(self, *, parent_id: str, sequence: int) -> UtteranceRecord:
        """The utterance as the loom stores it before anything is executed.

        After a delegation, a record that more of it follows.
        """
        entity = self.entity
        response, circle = self.response, entity.circle
        names = [circle.tool_names.get(call.gate, call.gate) for call in response.tool_calls]
        gates, program = tuple([ALIASES.get(name, name) for name in names]), circle.medium.tool
        ids = (self.id, parent_id, entity.cantrip.id, entity.id, self.cast.id, sequence)
        if self.parts:
            return UtteranceRecord(*ids, _NOTHING, gates, program, self.parts[0].id, model=response.model)
        said = self._utterance()
        return UtteranceRecord(
            *ids,
            said,
            gates,
            program,
            None,
            self.used + self.query.extra_usage,
            response.model,
            response.stop_reason,
            request=self._request(),
            fingerprint=response.fingerprint,
            voided=tuple(self.query.voided),
            query=self.query.sent,
        )

    def _utterance(self) -> Utterance:
        """What the entity said, for the loom."""
        if self._utterance_cache is not None:
            return self._utterance_cache
        response = self.response
        medium = self.entity.circle.medium
        code = None
        if medium.tool is not None:
            programs = [medium.code(c) for c in response.tool_calls if c.gate == medium.tool]
            code = "\n".join(p for p in programs if p is not None) if programs else None
        provider = freeze(response.provider) if response.provider is not None else msgspec.UNSET
        by_text = True if response.text_calls and response.tool_calls else msgspec.UNSET
        calls = tuple(response.tool_calls)
        said = self._utterance_cache = Utterance(response.content, response.thinking, calls, code, provider, by_text)
        return said

    def _request(self) -> RequestParameters | None:
        """The parameters as they were sent. If the crystal does not report them, those of the call."""
        sent = self.response.request or self.cast.parameters
        if not complete(self.entity.crystal, CrystalBase).samples:
            # A script or a person has no weights.
            return sent
        if (sent is None or sent.weights is None) and (weights := os.environ.get(WEIGHTS_VARIABLE)):
            return msgspec.structs.replace(sent or RequestParameters(), weights=weights)
        return sent

    def _metadata(self, sampled: SampledTokens | msgspec.UnsetType = msgspec.UNSET) -> TurnMetadata:
        response = self.response
        own = self.used
        return metadata_of(
            own + self.query.extra_usage,
            duration_ms=max((time.perf_counter() - self.started) * 1000, 0.001),
            timestamp=now(),
            model=response.model or self.entity.crystal.model,
            trace_id=self.cast.trace.trace_id,
            stop_reason=response.stop_reason or msgspec.UNSET,
            sampled=sampled,
            context_tokens=msgspec.UNSET
            if self.query.extra_usage == NO_USAGE
            else None
            if own.queries_without_usage
            else own.total_tokens,
            request=self._request() or msgspec.UNSET,
            fingerprint=response.fingerprint or msgspec.UNSET,
            voided=tuple(self.query.voided) or msgspec.UNSET,
            query=self._query(),
        )

    def _query(self) -> SentQuery | msgspec.UnsetType:
        if (sent := self.query.sent) is None:
            return msgspec.UNSET
        self.entity.sent_queries.recorded(sent, self.id)
        return sent

    def close(self, *, reason: str | None, parent_id: str, sequence: int) -> Turn:
        """The turn's record for the loom."""
        if self.parts:
            return self._close_continuation(reason=reason, parent_id=parent_id, sequence=sequence)
        return Turn(
            id=self.id,
            parent_id=parent_id,
            cantrip_id=self.entity.cantrip.id,
            entity_id=self.entity.id,
            cast_id=self.cast.id,
            sequence=sequence,
            utterance=self._utterance(),
            observation=_observation(self.results, self.outputs),
            gate_calls=tuple(self.gate_calls),
            metadata=self._metadata(self._sampled_record()),
            terminated=reason in TERMINATIONS,
            truncated=reason is not None and reason not in TERMINATIONS,
            reason=reason,
        )

    def _close_continuation(self, *, reason: str | None, parent_id: str, sequence: int) -> Turn:
        """The record of what an utterance did after a delegation. Its text and usage are in the first part."""
        return Turn(
            id=self.id,
            parent_id=parent_id,
            cantrip_id=self.entity.cantrip.id,
            entity_id=self.entity.id,
            cast_id=self.cast.id,
            sequence=sequence,
            continues=self.parts[0].id,
            observation=_observation(self.results, self.outputs),
            gate_calls=tuple(self.gate_calls),
            metadata=TurnMetadata(
                duration_ms=max((time.perf_counter() - self.started) * 1000, 0.001),
                timestamp=now(),
                model=self.response.model or self.entity.crystal.model,
                trace_id=self.cast.trace.trace_id,
            ),
            terminated=reason in TERMINATIONS,
            truncated=reason is not None and reason not in TERMINATIONS,
            reason=reason,
        )

    def _sampled_record(self) -> SampledTokens | msgspec.UnsetType:
        """The response's tokens as the record stores them; usually absent."""
        if self.response.sampled is None:
            return msgspec.UNSET
        context = self.entity.context
        kept = self.entity.token_log.reduce(
            self.response.sampled, context.messages, len(context.folded), said=self._utterance()
        )
        return freeze_record(kept) if kept is not None else msgspec.UNSET


def _observation(results: Sequence[GateRecord], outputs: Sequence[Output]) -> Observation:
    frozen = [freeze_record(output) for output in outputs]
    return Observation(tuple(results), together(frozen), tuple(frozen) if len(frozen) > 1 else msgspec.UNSET)
