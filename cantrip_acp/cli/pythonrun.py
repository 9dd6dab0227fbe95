"""`cantrip sandbox run --python`: one program exactly as the code medium would run it, as a cell of its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from cantrip_acp.cli.sandbox import Printer
    from cantrip_acp.core.circle import Circle
    from cantrip_acp.core.context import ContextBlock
    from cantrip_acp.core.events import Event
    from cantrip_acp.core.wards import Wards
    from cantrip_acp.loom.records.turn import GateRecord, Output


def program(words: tuple[str, ...], folder: Path) -> str:
    """The text of a program: of a file below ``folder``, or the words themselves."""
    if len(words) == 1 and "\n" not in words[0]:
        path = folder / words[0]
        if path.is_file():
            return path.read_text(encoding="utf-8")
    return " ".join(words)


class LoneTurn:
    """A turn without an entity: gates are called for real, and nobody hears of events."""

    folded = 0

    def __init__(self, circle: Circle) -> None:
        from cantrip_acp import telemetry
        from cantrip_acp.core.events import EventHub
        from cantrip_acp.gates.executor import GateExecutor
        from cantrip_acp.text.redaction import shared

        self.wards: Wards = circle.wards
        self.entity_id = "e_shell"
        self.cast_id = "c_shell"
        self.depth = 0
        self.finished = False
        self.listening = False
        self.context: tuple[ContextBlock, ...] = ()
        self.answers: list[Any] = []
        self._trace = telemetry.trace_from(None)
        self._executor = GateExecutor(circle, hub=EventHub(), redactor=shared())
        self._calls = 0

    @property
    def trace_id(self) -> str:
        return self._trace.trace_id

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

    def interrupted(self, output: Output) -> None:
        return None


async def run(circle: Circle, code: str, printer: Printer) -> int:
    """Run it and say how it ended: 0, 1 where it failed or was stopped, 124 where it ran out of time."""
    import json

    from cantrip_acp.crystals.contract import ToolCall
    from cantrip_acp.gates.contract import as_text
    from cantrip_acp.mediums.code.session import CodeSession

    turn = LoneTurn(circle)
    session = await circle.medium.open(circle, turn.entity_id)
    assert isinstance(session, CodeSession)
    session.tap = printer
    printer.stop = session.end
    try:
        output = await session.run(ToolCall("t", "python", json.dumps({"code": code})), turn)
    finally:
        await session.close()
    printer.finish()
    if printer.reader_left:
        return 1
    if output.value is not None:
        click.echo(f"=> {output.value}")
    if turn.answers:
        click.echo(as_text(turn.answers[0]))
        return 0
    if output.error is None:
        return 0
    click.echo(output.error, err=True)
    return 124 if output.timed_out is True else 1
