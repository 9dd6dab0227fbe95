"""Programs that the user runs where the entity would: ``!command`` in `cantrip repl`, and `cantrip sandbox run --python`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import anyio
import msgspec

from cantrip_acp.types.records import Output

if TYPE_CHECKING:
    from cantrip_acp.cli.render.cast_output import CastText
    from cantrip_acp.core.context_block import ContextBlock
    from cantrip_acp.core.definition.circle import Circle
    from cantrip_acp.core.definition.wards import Wards
    from cantrip_acp.core.entity import Entity
    from cantrip_acp.core.ports import ProgramReport
    from cantrip_acp.types.events import Event
    from cantrip_acp.types.records import GateRecord


_STOPPED = "the user stopped the command"


class TurnWithoutEntity:
    """The turn that a program runs in. Its gate calls are real, but no entity, loom or event stream belongs to it."""

    folded = 0

    def __init__(self, circle: Circle) -> None:
        from cantrip_acp.core.event_hub import EventHub
        from cantrip_acp.gates.executor import GateExecutor
        from cantrip_acp.telemetry import tracing
        from cantrip_acp.text.redaction import shared

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
        self._executor = GateExecutor(circle, hub=EventHub(), redactor=shared())
        self._calls = 0

    @property
    def traceparent(self) -> str:
        return self._trace.traceparent()

    def history(self, start: int, count: int) -> tuple[int, list[Any]]:
        return 0, []

    async def gate(self, name: str, args: Mapping[str, Any] | str, *, via: str | None = None) -> GateRecord:
        self._calls += 1
        record = await self._executor.execute(
            name, args, call_id=f"g{self._calls}", entity_id=self.entity_id, cast_id=self.cast_id, trace=self._trace
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
    """Shows what the program does, as a command of the entity is shown."""

    def __init__(self, circle: Circle, output: CastText) -> None:
        super().__init__(circle)
        self.listening = True
        self.partial: tuple[Output, ProgramReport] | None = None
        self._output = output

    async def emit(self, event: Event) -> None:
        self._output.show_event(event)

    def interrupted(self, output: Output, report: ProgramReport) -> None:
        """A stop has ended the program. ``report`` shows what it still printed, and its end."""
        self.partial = output, report


class UserShell:
    """Runs the user's commands in the sandbox in which commands of the entity run: with the same wards, which the mode may have
    narrowed, the same folders and the same network. There are no gates in it. Its methods run in the entity's thread.
    """

    def __init__(self, entity: Entity, output: CastText) -> None:
        self._entity = entity
        self._output = output
        self._scope: anyio.CancelScope | None = None
        self._stopped = False
        self._count = 0

    def begin(self) -> None:
        """Forget earlier stops. Call it before `run` and `stop`, in any thread."""
        self._stopped = False

    async def run(self, command: str) -> ContextBlock:
        """Run a command and show it. Returns what the entity reads of it before the next intent.

        Raises `SandboxMissing`, and `DefinitionError` for wards that cannot be enforced.
        """
        from cantrip_acp.core.context_block import ContextBlock
        from cantrip_acp.core.definition.circle import Circle
        from cantrip_acp.mediums.bash import BashMedium
        from cantrip_acp.text.redaction import shared
        from cantrip_acp.types.messages import ToolCall

        own, medium = self._entity.circle, BashMedium()
        circle = Circle("bash", [], own.wards, workspace=own.workspace, folders=own.folders)
        self._count += 1
        call, turn = (
            ToolCall(f"!{self._count}", "bash", json.dumps({"command": command})),
            _ShownTurn(circle, self._output),
        )
        output = Output(error=_STOPPED)
        with anyio.CancelScope() as self._scope:
            if self._stopped:
                self._scope.cancel()
            session = await medium.open(circle, self._entity.id)
            try:
                output = await session.run(call, turn)
            finally:
                self._scope = None
                await session.close()
        if turn.partial is not None:
            output = msgspec.structs.replace(turn.partial[0], error=_STOPPED)
            await turn.partial[1].end(output)
        elif output.error == _STOPPED:
            # It had not begun, so nothing else says so.
            self._output.show_line(_STOPPED)
        text = shared().text(f"$ {command}\n{medium.observe(output)}")
        return ContextBlock(text, title="a command that the user ran in the sandbox", source="user")

    def stop(self) -> None:
        """Stop the command, also if it has not begun. What it has printed stays."""
        self._stopped = True
        if self._scope is not None:
            self._scope.cancel()
