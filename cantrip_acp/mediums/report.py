"""What readers hear of one command or cell while it runs. Secrets are masked, also where a piece of output ends within one."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

from cantrip_acp import events
from cantrip_acp.redaction import shared

if TYPE_CHECKING:
    from cantrip_acp.circle import Circle
    from cantrip_acp.crystals.contract import ToolCall
    from cantrip_acp.loom.turn import Output
    from cantrip_acp.mediums.contract import TurnContext

_HELD = 4096
"""Characters of an unfinished line that are held back from readers while a secret could begin in it."""


class Report:
    """The events of one call of a medium's tool. ``tool`` is bash or python."""

    def __init__(self, call: ToolCall, turn: TurnContext, tool: str) -> None:
        self._ids: dict[str, Any] = {"entity_id": turn.entity_id, "cast_id": turn.cast_id, "depth": turn.depth}
        self._call = call
        self._turn = turn
        self._tool = tool
        self._redactor = shared()
        self._held = {"stdout": "", "stderr": ""}

    async def start(self, command: str, circle: Circle) -> None:
        if self._turn.listening:
            await self._turn.emit(
                events.CommandStarted(
                    **self._ids,
                    call_id=self._call.id,
                    command=self._redactor.text(command),
                    tool=self._tool,
                    cwd=str(circle.workspace) if circle.workspace is not None else None,
                )
            )

    async def output(self, stream: str, text: str) -> None:
        if self._redactor.active:
            whole = self._held[stream] + text
            cut = whole.rfind("\n") + 1
            if len(whole) - cut > _HELD:
                cut = len(whole)
            text, self._held[stream] = whole[:cut], whole[cut:]
        await self._send(stream, text)

    async def _send(self, stream: str, text: str) -> None:
        if text and self._turn.listening:
            name: Any = stream
            await self._turn.emit(
                events.CommandOutput(**self._ids, call_id=self._call.id, stream=name, data=self._redactor.text(text))
            )

    async def end(self, output: Output, *, timed_out: bool = False) -> None:
        for stream, rest in self._held.items():
            await self._send(stream, rest)
        exit_code = output.exit_code
        if self._tool == "python":
            # A cell has no status and a command no value: readers of either see what a terminal would show.
            exit_code = 0 if output.error is None else 1
            if output.value is not None:
                await self._send("stdout", f"=> {output.value}\n")
        if self._turn.listening:
            await self._turn.emit(
                events.CommandFinished(
                    **self._ids,
                    call_id=self._call.id,
                    exit_code=exit_code,
                    signal=signal_name(exit_code),
                    truncated=output.truncated,
                    timed_out=timed_out,
                    error=self._redactor.text(output.error) if output.error is not None else None,
                )
            )


def signal_name(exit_code: int | None) -> str | None:
    """The signal in an exit status as shells give it (128 and the number), None where there is none."""
    if exit_code is None or not 128 < exit_code <= 128 + 64:
        return None
    try:
        return signal.Signals(exit_code - 128).name
    except ValueError:
        return None
