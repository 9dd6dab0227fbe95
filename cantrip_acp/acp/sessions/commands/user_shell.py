"""Programs that the user runs where the entity would: the slash command ``/run``, and `cantrip sandbox run --python`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from cantrip_acp.types.records import Output

if TYPE_CHECKING:
    from cantrip_acp.acp.sessions.session_interface import OpenSession
    from cantrip_acp.core.definition.circle import Circle
    from cantrip_acp.gates.contract import Gate
    from cantrip_acp.gates.ports import Network, ProgramReport
    from cantrip_acp.gates.wards import Wards
    from cantrip_acp.types.context_block import ContextBlock
    from cantrip_acp.types.events import Event
    from cantrip_acp.types.records import GateRecord


_STOPPED = "the user stopped the command"


class TurnWithoutEntity:
    """The turn that a program runs in. Its gate calls are real, but no entity, loom or event stream belongs to it."""

    ends_when_cut = False
    folded = 0

    def __init__(self, circle: Circle) -> None:
        from cantrip_acp.core.casting.gate_executor import GateExecutor
        from cantrip_acp.core.event_hub import EventHub
        from cantrip_acp.telemetry import tracing

        self.wards: Wards = circle.wards
        self.entity_id = "e_shell"
        self.cast_id = "c_shell"
        self.depth = 0
        self.finished = False
        self.listening = False
        self.context: tuple[ContextBlock, ...] = ()
        self.answers: list[Any] = []
        self._trace = tracing.trace_from(None)
        self.trace_id = self._trace.trace_id
        self._executor = GateExecutor(circle, hub=EventHub())
        self._calls = 0

    def shared_network(self) -> Network | None:
        return None

    @property
    def traceparent(self) -> str:
        return self._trace.traceparent()

    def history(self, start: int, count: int) -> tuple[int, list[Any]]:
        return 0, []

    async def gate(
        self, name: str, args: Mapping[str, Any] | str, *, via: str | None = None, own: Gate | None = None
    ) -> GateRecord:
        self._calls += 1
        record = await self._executor.execute(
            name,
            args,
            call_id=f"g{self._calls}",
            entity_id=self.entity_id,
            cast_id=self.cast_id,
            trace=self._trace,
            own=own,
        )
        if name == "done" and not record.is_error:
            self.finished = True
            self.answers.append(record.result)
        return record

    async def emit(self, event: Event) -> None:
        return None

    def interrupted(self, output: Output, report: ProgramReport) -> None:
        return None


class _ShownTurn(TurnWithoutEntity):
    """Shows a program to the user in the same way as commands of the entity."""

    def __init__(self, circle: Circle, session: OpenSession) -> None:
        super().__init__(circle)
        self.listening = True
        self.begun = False
        self.partial: tuple[Output, ProgramReport] | None = None
        self._session = session

    def shared_network(self) -> Network | None:
        return self._session.entity.executor.shared_network()

    async def emit(self, event: Event) -> None:
        self.begun = True
        translator = self._session.translator
        await self._session.send([*translator.translate(event), *(translator.flush() if translator.dirty else ())])

    def interrupted(self, output: Output, report: ProgramReport) -> None:
        """Show the last output and the end of a program after a stop. ``report`` sends the end event."""
        self.partial = output, report


async def run_command(session: OpenSession, command: str) -> str:
    """Run a command of the user where commands of the entity run: with the same wards, which the mode may have narrowed, the
    same folders and the same network, and without gates. The entity reads its output before the next intent.

    Returns a text for the user if the command was stopped before it began. Raises `SandboxMissing`, and `DefinitionError` for
    wards that cannot be enforced.
    """
    from cantrip_acp.core.definition.circle import Circle
    from cantrip_acp.mediums.bash import BashMedium
    from cantrip_acp.types.context_block import ContextBlock
    from cantrip_acp.types.messages import ToolCall
    from cantrip_acp.types.records import new_id

    own, medium = session.entity.circle, BashMedium()
    circle = Circle("bash", [], own.wards, workspace=own.workspace, folders=own.folders)
    call = ToolCall(new_id("run"), "bash", json.dumps({"command": command}))
    turn, output = _ShownTurn(circle, session), Output(error=_STOPPED)

    async def run() -> None:
        nonlocal output
        opened = await medium.open(circle, session.entity.id)
        try:
            output = await opened.run(call, turn)
        finally:
            await opened.close()

    await session.prompts.until_cancelled(run)
    if turn.partial is not None:
        output = msgspec.structs.replace(turn.partial[0], error=_STOPPED)
        await turn.partial[1].end(output)
    text = f"$ {command}\n{medium.observe(output)}"
    session.notes.context.append(ContextBlock(text, title="a command that the user ran in the sandbox", source="user"))
    return "" if turn.begun else _STOPPED
