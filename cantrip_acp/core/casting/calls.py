"""Calls: runs what an utterance calls, gates and programs, in order."""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING

import msgspec

from cantrip_acp.gates.contract import ProgramCall
from cantrip_acp.gates.registry import ALIASES, DELEGATION
from cantrip_acp.mediums.program_events import ProgramEvents
from cantrip_acp.telemetry import genai_spans
from cantrip_acp.types.messages import ToolCall
from cantrip_acp.types.records import Output

if TYPE_CHECKING:
    from cantrip_acp.core.casting.gate_executor import GateExecutor
    from cantrip_acp.core.casting.turn_builder import TurnBuilder
    from cantrip_acp.core.lifecycle.medium_session import SessionKeeper
    from cantrip_acp.core.state import CastState


class Calls:
    """Runs the gate calls and programs of one cast."""

    def __init__(self, cast: CastState, executor: GateExecutor, session: SessionKeeper) -> None:
        self.cast = cast
        self.entity = cast.entity
        self._executor = executor
        self._session = session

    async def run(self, turn: TurnBuilder) -> None:
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
                await turn.delegations.run(delegations)
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
            call.gate, self.cast.trace, call_id=call.id, args=call.args, entity_id=entity.id
        ) as span:
            files, text = entity.checkpoints, entity.circle.medium.code(own) or ""
            async with files.program(text, entity.circle) if files is not None else contextlib.nullcontext():
                output = await session.run(own, turn)
            if span is not None:
                span.ended(entity.circle.medium.observe(output), "program_error" if output.failed else None)
            return output

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
