"""The lines that a user of `cantrip repl` types while a cast runs: they wait, or reach the entity before its next query."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from cantrip_acp.acp.sessions.prompt_queue import parse_queue_command, queue_text
from cantrip_acp.types.errors import CrystalError, EntityIdle

if TYPE_CHECKING:
    from cantrip_acp.core.entity import Entity
    from cantrip_acp.core.state import SteeringMessage


class _Line:
    """A line that waits. ``message`` is set when the next query gets it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.message: SteeringMessage | None = None


class TypedLines:
    """The lines that wait, first one first. ``show`` prints a note. While a cast runs, only its thread uses this object."""

    def __init__(self, entity: Entity, show: Callable[[str], None]) -> None:
        self._entity = entity
        self._show = show
        self._lines: list[_Line] = []

    def before(self, typed: Iterator[str]) -> Iterator[str]:
        """Yield the lines that wait, and then one that the user types, again and again."""
        while True:
            if self._lines:
                line = self._lines.pop(0).text
                self._show(f"next: {line.partition(chr(10))[0]}")
                yield line
                continue
            text = next(typed, None)
            if text is None:
                return
            yield text

    def waiting(self) -> list[str]:
        """The lines that wait."""
        return [line.text for line in self._lines]

    def put_first(self, text: str) -> None:
        """Add a line before all that wait."""
        self._lines.insert(0, _Line(text))

    async def read(self) -> None:
        """Read lines until the cast ends. A line that answers a question is left to the question."""
        from cantrip_acp.crystals.human import terminal

        try:
            with terminal(question=False) as typed:
                earlier = ""
                while True:
                    text = await typed.line("")
                    if text.endswith("\\"):
                        earlier += text[:-1] + "\n"
                        continue
                    self._take(earlier + text)
                    earlier = ""
        except CrystalError:
            # The end of input, or the terminal is gone. The cast goes on.
            return

    def _take(self, text: str) -> None:
        words = text.strip()
        if not words or self.command(words):
            return
        self._lines.append(_Line(words))
        number = len(self._lines)
        self._show(f"waits as {number}: {words}  (/queue now {number} sends it before the next query)")

    def command(self, words: str) -> bool:
        """Run ``/queue`` or ``/now``. Returns False for any other line."""
        name, _, rest = words.partition(" ")
        if name == "/now":
            if rest.strip():
                self._lines.insert(0, line := _Line(rest.strip()))
                self._send(line)
            else:
                self._show("type the message: /now TEXT")
            return True
        if name != "/queue":
            return False
        self._forget_delivered()
        try:
            action, number, text = parse_queue_command(rest, len(self._lines))
        except ValueError as problem:
            self._show(str(problem))
            return True
        if action == "now":
            self._send(self._lines[number])
        elif action != "list":
            line = self._lines[number]
            if line.message is not None:
                self._entity.withdraw(line.message)
                line.message = None
            if action == "remove":
                self._lines.remove(line)
            else:
                line.text = text
        self._show(queue_text([(line.text, line.message is not None) for line in self._lines]))
        return True

    def _send(self, line: _Line) -> None:
        """Give a line to the entity before its next query. If no cast runs, it is the next intent."""
        self._lines.remove(line)
        self._lines.insert(sum(each.message is not None for each in self._lines), line)
        if line.message is None:
            try:
                line.message = self._entity.steer(line.text)
            except EntityIdle:
                # It is the next intent, and `before` says so.
                return
            self._show(f"sent with the next query: {line.text}")

    def _forget_delivered(self) -> None:
        self._lines = [line for line in self._lines if line.message is None or not line.message.delivered]

    def cast_ended(self) -> None:
        """Keep the lines that no query saw for the next cast."""
        self._forget_delivered()
        for line in self._lines:
            line.message = None

    def clear(self) -> None:
        """Remove all lines after the user stopped the cast, and say which."""
        lines, self._lines = self._lines, []
        for line in lines:
            self._show(f"not started: {line.text}")
