"""The lines that a user types while a turn runs: they wait, or reach the agent before its next query."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator

from cantrip_acp.acp.sessions.prompt.prompt_queue import parse_queue_command, queue_text
from cantrip_acp.types.errors import CrystalError

ENDS_LATER = "quits when this turn and what waits has ended; Ctrl-C stops it"


class _Line:
    """A waiting line. ``sent``: the agent has it, and reads it before its next query."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.sent = False


class TypedLines:
    """The waiting lines, oldest first. ``show`` prints a note. ``steer`` gives the running turn a message; it returns False
    if none runs. The coroutines run in the protocol's thread."""

    def __init__(self, show: Callable[[str], None], steer: Callable[[str], Awaitable[bool]]) -> None:
        self._show = show
        self._steer = steer
        self._lines: list[_Line] = []
        self.input_ended = False
        """Whether Ctrl-D was pressed while a turn ran, at a terminal that cannot move its cursor."""

    def before(self, typed: Iterator[str]) -> Iterator[str]:
        """Yield the waiting lines, then each line that the user types."""
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

    async def read(self) -> None:
        """Read lines until the turn ends. Lines that answer a question are left to the question."""
        from cantrip_acp.crystals.human import terminal

        try:
            with terminal(question=False) as typed:
                earlier = ""
                while True:
                    text = await typed.line("")
                    if text.endswith("\\"):
                        earlier += text[:-1] + "\n"
                        continue
                    await self._take(earlier + text)
                    earlier = ""
        except CrystalError:
            # The end of input, or the terminal is gone. The turn goes on.
            self.input_ended = True
            self._show(ENDS_LATER)

    async def _take(self, text: str) -> None:
        words = text.strip()
        if not words or await self.command(words):
            return
        self._lines.append(_Line(words))
        number = len(self._lines)
        self._show(f"waits as {number}: {words}  (/queue now {number} sends it before the next query)")

    async def command(self, words: str) -> bool:
        """Run ``/queue`` or ``/now``. Returns False for any other line."""
        name, _, rest = words.partition(" ")
        if name == "/now":
            if rest.strip():
                self._lines.insert(0, line := _Line(rest.strip()))
                await self._send(line)
            else:
                self._show("type the message: /now TEXT")
            return True
        if name != "/queue":
            return False
        try:
            action, number, text = parse_queue_command(rest, len(self._lines))
        except ValueError as problem:
            self._show(str(problem))
            return True
        if action == "now":
            await self._send(self._lines[number])
        elif action != "list" and self._lines[number].sent:
            self._show("it was sent already")
        elif action == "remove":
            del self._lines[number]
        elif action == "edit":
            self._lines[number].text = text
        self._show(queue_text([(line.text, line.sent) for line in self._lines]))
        return True

    async def _send(self, line: _Line) -> None:
        """Give a line to the running turn. If none runs, `before` yields it as the next prompt."""
        self._lines.remove(line)
        self._lines.insert(sum(each.sent for each in self._lines), line)
        if not line.sent and await self._steer(line.text):
            line.sent = True
            self._show(f"sent with the next query: {line.text}")

    def delivered(self, text: str) -> None:
        """Note that the agent has read a message of the user."""
        line = next((each for each in self._lines if each.sent and each.text == text), None)
        if line is not None:
            self._lines.remove(line)

    def turn_ended(self) -> None:
        """Forget what was sent: the agent has read it, or has told that it did not."""
        self._lines = [line for line in self._lines if not line.sent]

    def clear(self) -> None:
        """Remove all lines after the user stopped the turn, and say which."""
        lines, self._lines = self._lines, []
        for line in lines:
            self._show(f"not started: {line.text}")
