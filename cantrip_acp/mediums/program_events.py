"""Program events: reports a running command or cell to readers, with secrets masked.

A secret is masked even if it is split over two pieces of output.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from cantrip_acp.text.program_output import UNFINISHED, UNFINISHED_PART
from cantrip_acp.text.redaction import shared
from cantrip_acp.types import events
from cantrip_acp.types.styled import Styled, join

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cantrip_acp.gates.contract import CircleView
    from cantrip_acp.gates.ports import TurnContext
    from cantrip_acp.types.messages import ToolCall
    from cantrip_acp.types.records import Output

_MAX_PIECES = 1000
"""Maximum number of pieces of both streams whose order is recorded."""


class ProgramEvents:
    """The events of one call of a medium's tool. ``tool`` is bash or python."""

    def __init__(self, call: ToolCall, turn: TurnContext, tool: str) -> None:
        self._ids: dict[str, Any] = {"entity_id": turn.entity_id, "cast_id": turn.cast_id, "depth": turn.depth}
        self._call = call
        self._turn = turn
        self._tool = tool
        self._redactor = shared()
        self._pending = {"stdout": Styled(""), "stderr": Styled("")}
        self._order: list[int] = []
        self._unsent: list[tuple[str, Styled]] = []

    async def start(self, command: str, circle: CircleView) -> None:
        if self._turn.listening:
            await self._turn.emit(
                events.CommandStarted(
                    **self._ids,
                    call_id=self._call.id,
                    command=command,
                    tool=self._tool,
                    cwd=str(circle.workspace) if circle.workspace is not None else None,
                )
            )

    async def output(self, stream: str, text: Styled) -> None:
        if stream in (UNFINISHED, UNFINISHED_PART):
            # A secret could begin in an unfinished part.
            if self._turn.listening and (stream == UNFINISHED or not self._redactor.active):
                event = events.CommandProgress(
                    **self._ids, call_id=self._call.id, line=text.text, styles=text.changes or msgspec.UNSET
                )
                await self._turn.emit(event)
            return
        if self._redactor.active:
            whole = join([self._pending[stream], text])
            cut = self._redactor.settled(whole.text)
            text, self._pending[stream] = whole.part(0, cut), whole.part(cut, len(whole.text))
        await self._send(stream, text)

    async def _send(self, stream: str, text: Styled) -> None:
        if text.text:
            await self._emit(stream, self._ordered_text(stream, text))

    def _ordered_text(self, stream: str, text: Styled) -> Styled:
        """The text as readers see it, of which the order counts the characters."""
        text = self._redactor.masked(text)
        length = len(text.text) if stream == "stdout" else -len(text.text)
        if self._order and self._order[-1] * length > 0:
            self._order[-1] += length
        elif len(self._order) <= _MAX_PIECES:
            self._order.append(length)
        return text

    async def _emit(self, stream: str, text: Styled) -> None:
        if self._turn.listening:
            name: Any = stream
            event = events.CommandOutput(
                **self._ids,
                call_id=self._call.id,
                stream=name,
                data=text.text,
                styles=text.changes or msgspec.UNSET,
            )
            await self._turn.emit(event)

    def ordered(self, output: Output) -> Output:
        """The output with the order in which readers saw its streams, if that is not stdout and then stderr."""
        order = self._order
        if len(order) < 2 or len(order) > _MAX_PIECES or (len(order) == 2 and order[0] > 0):
            return output
        return msgspec.structs.replace(output, order=tuple(order))

    def interrupted(self, output: Output, rest: Mapping[str, Styled]) -> None:
        """Report a program that a cancel stopped. ``rest`` is the printed output that was not sent yet, by stream; `end`
        sends it after the turn was written."""
        for stream, text in rest.items():
            whole = join([self._pending[stream], text])
            if whole.text:
                self._unsent.append((stream, self._ordered_text(stream, whole)))
            self._pending[stream] = Styled("")
        self._turn.interrupted(self.ordered(output), self)

    async def end(self, output: Output) -> Output:
        """Send the end event. Returns the output with the order of its streams, for the loom."""
        for stream, text in self._unsent:
            await self._emit(stream, text)
        for stream, rest in self._pending.items():
            await self._send(stream, rest)
        ordered = self.ordered(output)
        await self._send("stdout", Styled(events.value_line(output)))
        if self._turn.listening:
            await self._turn.emit(
                events.CommandFinished(call_id=self._call.id, tool=self._tool, record=output, **self._ids)
            )
        return ordered
