"""Output of a cast, for ``cantrip cast`` and ``cantrip loom fork --cast``: text for people, or JSON lines."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cantrip_acp.cli import json_errors
from cantrip_acp.cli.render.display import duration
from cantrip_acp.cli.render.from_events import EventTranslator
from cantrip_acp.cli.render.renderer import Renderer
from cantrip_acp.cli.render.terminal import Screen
from cantrip_acp.crystals.human import working_clock
from cantrip_acp.gates.contract import as_text
from cantrip_acp.text.sanitize import clean_line
from cantrip_acp.types import events
from cantrip_acp.types.errors import GateFault

if TYPE_CHECKING:
    from cantrip_acp.core.casting.result import CastResult
    from cantrip_acp.types.usage import Usage


class CastJson:
    """Prints one JSON object per line, each with an ``event``. The last one is ``result`` (`events.as_json`)."""

    def __init__(self) -> None:
        self.ended = False

    def show_event(self, event: events.Event) -> None:
        self._print(events.as_json(event))
        if isinstance(event, events.CastEnded):
            self._end()

    def _end(self) -> None:
        self.ended = True
        json_errors.ended()

    def show_error(self, error: str, *, entity_id: str, usage: Usage, loom: str | None) -> None:
        """Print the last line of a cast that failed before it could report its own end."""
        if not self.ended:
            about: dict[str, Any] = {"result": None, "terminated": False, "truncated": True, "reason": "error"}
            about |= {"usage": usage.record(), "entity_id": entity_id, "trace_id": None, "loom": loom, "error": error}
            self._print({"event": "result", **about})
            self._end()

    def _print(self, line: Mapping[str, Any]) -> None:
        # ASCII only: a lone surrogate from a crystal would end the stream with an encoding error.
        sys.stdout.write(json.dumps(line, default=str) + "\n")
        sys.stdout.flush()


class CastText:
    """Output for people: text and thoughts, commands with their output, gate calls, changes, and a line per turn."""

    def __init__(self, screen: Screen, folder: Path, *, full: bool = False) -> None:
        self.screen = screen
        # Durations do not include the time in which a question waits for the user.
        self.renderer = Renderer(screen, folder=folder, full=full, clock=working_clock)
        self._translator = EventTranslator(dot=screen.marks.dot)
        self._started = working_clock()
        self._noticed: set[str] = set()
        if sys.stderr.isatty():
            # The end of the cast shows them; a line between the others would tear the screen.
            warnings.filterwarnings("ignore", category=GateFault)

    def show_intent(self, words: str) -> None:
        """Show the user's intent at the beginning of a cast."""
        self.renderer.show_prompt(words)
        self.begin()

    def begin(self) -> None:
        """Measure the duration of a cast from now on."""
        self._started = working_clock()

    def show_event(self, event: events.Event) -> None:
        if isinstance(event, events.Noticed):
            self._noticed.add(event.text)
        for item in self._translator.translate(event):
            self.renderer.show(item)
        self.screen.flush()

    def show_result(self, result: CastResult) -> None:
        """Show how the cast ended: the answer (if not shown yet), the reason, the usage, and where the loom is."""
        self.renderer.end_turn()
        if result.reason != "text" and result.result is not None:
            self.screen.blank()
            flow = self.screen.flow(self.screen.marks.message, mark_style="bold green")
            flow.feed(as_text(result.result))
            flow.close()
        elif result.summary and result.truncated:
            self.renderer.show_note(clean_line(result.summary, 2000), "yellow")
        for warning in result.warnings:
            # The summary of a truncated cast contains the warnings about wards.
            if warning not in self._noticed and warning not in (result.summary or ""):
                self.renderer.show_note(clean_line(warning, 2000), "yellow")
        self.screen.blank()
        style = "bold green" if result.terminated else "bold yellow"
        dot = f" {self.screen.marks.dot} "
        turns = f"{result.turns} turn{'' if result.turns == 1 else 's'}"
        parts = [turns, *result.usage.words(), duration(working_clock() - self._started)]
        self.screen.line((f"{self.screen.marks.stop} {result.reason}", style), (dot + dot.join(parts), "dim"))
        self.show_loom(result.loom)
        self.screen.flush()

    def show_loom(self, loom: str | None) -> None:
        """Show where the loom of a cast is. It is shown for failed casts too."""
        if loom:
            self.screen.line(("loom     ", "dim"), loom)
            self.screen.flush()

    def show_cancelled(self) -> None:
        """Show that the cast was cancelled before it had a result."""
        self.renderer.end_turn()
        self.screen.line((f"{self.screen.marks.stop} cancelled", "bold yellow"))
        self.screen.flush()
