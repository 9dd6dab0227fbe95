"""Children of a cast as somebody reads them: a line for what each was asked, each thing it did, and what it came to.

Children work beside each other, so their lines are whole lines under a number each, as deep in the page as in the tree.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cantrip_acp.core import events
from cantrip_acp.gates.contract import as_text
from cantrip_acp.text.sanitize import clean_line

if TYPE_CHECKING:
    from cantrip_acp.cli.screen import Screen
    from cantrip_acp.cli.transcript import Transcript

_LONGEST = 160


class ChildView:
    """The children of one cast, by the numbers of their birth: ``2``, and ``2.1`` for the first child of the second."""

    def __init__(self, screen: Screen, transcript: Transcript) -> None:
        self._screen = screen
        self._transcript = transcript
        self._numbers: dict[str, str] = {}
        self._born: dict[str, int] = {}

    def event(self, event: events.ChildEvent) -> None:
        """Show what happened to a child; most of a stream is not shown."""
        marks, inner = self._screen.marks, event.inner
        if isinstance(inner, events.CastStarted):
            self._line(event, marks.prompt, "magenta", inner.intent)
        elif isinstance(inner, events.GateCalled) and inner.gate != "done":
            self._line(event, marks.call, "dim", inner.title or inner.gate)
        elif isinstance(inner, events.GateFinished) and inner.is_error:
            self._line(event, marks.failed, "red", f"{inner.gate}: {as_text(inner.result)}")
        elif isinstance(inner, events.CommandStarted):
            self._line(event, marks.call, "dim", f"{inner.tool}: {inner.command}")
        elif isinstance(inner, events.CommandFinished) and inner.error:
            self._line(event, marks.failed, "red", inner.error)
        elif isinstance(inner, events.RetryScheduled):
            self._line(event, marks.waiting, "yellow", f"the query failed: {inner.error}; asking again {inner.when}")
        elif isinstance(inner, events.CastEnded):
            turns = f"{inner.turns} turn{'' if inner.turns == 1 else 's'}"
            if inner.terminated:
                self._line(event, marks.done, "green", f"{as_text(inner.result)} {marks.dot} {turns}")
            else:
                said = f": {inner.error}" if inner.error else ""
                self._line(event, marks.stop, "yellow", f"{inner.reason}{said} {marks.dot} {turns}")

    def _line(self, event: events.ChildEvent, mark: str, style: str, words: str) -> None:
        self._transcript.settle()
        number = self._number(event.path)
        line = clean_line(words, _LONGEST)
        self._screen.line((f"{number} ", "dim"), (f"{mark} ", style), line, indent=2 + 2 * len(event.path))

    def _number(self, path: tuple[str, ...]) -> str:
        found = self._numbers.get(path[-1])
        if found is None:
            above = path[-2] if len(path) > 1 else ""
            self._born[above] = self._born.get(above, 0) + 1
            start = f"{self._number(path[:-1])}." if above else ""
            found = self._numbers[path[-1]] = f"{start}{self._born[above]}"
        return found
