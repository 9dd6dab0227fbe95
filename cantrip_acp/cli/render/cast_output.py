"""Cast output of ``cantrip cast`` and ``cantrip repl``: as text for people, or as JSON lines."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cantrip_acp.cli.render.child_output import ChildView
from cantrip_acp.cli.render.terminal import Flow, Screen
from cantrip_acp.cli.render.transcript import Transcript, duration
from cantrip_acp.core import events
from cantrip_acp.gates.contract import as_text
from cantrip_acp.text.redaction import shared
from cantrip_acp.text.sanitize import clean_line

if TYPE_CHECKING:
    from cantrip_acp.core.result import CastResult
    from cantrip_acp.crystals.contract import Usage


class JsonFace:
    """Prints one JSON object per line, each with an ``event``. The last one is ``result`` (`events.as_json`)."""

    def __init__(self) -> None:
        self.ended = False

    def event(self, event: events.Event) -> None:
        self._print(events.as_json(event))
        self.ended = self.ended or isinstance(event, events.CastEnded)

    def failed(self, error: str, *, entity_id: str, usage: Usage, loom: str | None) -> None:
        """Print the last line of a cast that failed before it could report its own end."""
        if not self.ended:
            about: dict[str, Any] = {"result": None, "terminated": False, "truncated": True, "reason": "error"}
            about |= {"usage": usage.record(), "entity_id": entity_id, "trace_id": None, "loom": loom, "error": error}
            self._print({"event": "result", **about})

    def _print(self, line: Mapping[str, Any]) -> None:
        # ASCII only: a lone surrogate from a crystal would end the stream with an encoding error.
        sys.stdout.write(json.dumps(line, default=str) + "\n")
        sys.stdout.flush()


class TextFace:
    """Output for people: text and thoughts, commands with their output, gate calls, changes, and a line per turn."""

    def __init__(self, screen: Screen, folder: Path, *, full: bool = False) -> None:
        self.screen = screen
        self.transcript = Transcript(screen, folder=folder, full=full)
        self.children = ChildView(screen, self.transcript)
        self._begun = time.monotonic()
        self._done: list[dict[str, Any]] = []
        # Commands that ended because ``done`` was called in them: they were stopped, but did not fail.
        self._answered: set[str | None] = set()
        self._started: set[str] = set()
        self._half_line = False

    def intent(self, words: str) -> None:
        """Show the user's intent at the beginning of a cast."""
        self.transcript.prompt(shared().text(words))
        self._begun = time.monotonic()

    def event(self, event: events.Event) -> None:
        if isinstance(event, events.ChildEvent):
            self.children.event(event)
            self.screen.flush()
            return
        update = _update(event)
        if isinstance(event, events.GateCalled | events.GateStarted | events.GateFinished) and event.gate == "done":
            self._finish(event, update)
        elif update is not None:
            if isinstance(event, events.CommandFinished) and event.call_id in self._answered:
                update["status"] = "completed"
            if isinstance(event, events.CommandOutput):
                self._half_line = not event.data.endswith("\n")
            elif isinstance(event, events.CommandStarted):
                self._half_line = False
                self._started.add(event.call_id)
            elif isinstance(event, events.CommandFinished) and event.call_id not in self._started:
                # The user refused the command, so it never started. The question above shows it.
                self.transcript.update(_call("tool_call", event.call_id, {"title": "not run", "kind": "execute"}))
            elif isinstance(event, events.CommandFinished) and event.error and self._half_line:
                update["_meta"]["terminal_output"]["data"] = f"\n{event.error}\n"
            self.transcript.update(update)
        elif isinstance(event, events.RetryScheduled):
            status = f" ({event.status})" if event.status else ""
            self.transcript.note(
                f"the query failed{status}: {clean_line(event.error)}; asking again {event.when}",
                "yellow",
            )
        elif isinstance(event, events.Voided):
            self.transcript.note(f"attempt {event.attempt} broke off: what it said above does not count", "yellow")
        elif isinstance(event, events.Noticed):
            self.transcript.note(clean_line(event.text), "yellow")
        elif isinstance(event, events.Folded):
            which = "turn 1 was" if event.last == event.first else f"turns {event.first} to {event.last} were"
            self.transcript.note(f"{which} folded")
        elif isinstance(event, events.TurnEnded):
            self._turn(event)
        self.screen.flush()

    def _finish(self, event: events.Event, update: dict[str, Any] | None) -> None:
        """Show ``done`` as the answer at the end of the cast, not as a call, unless it fails."""
        if update is not None:
            self._done.append(update)
        if isinstance(event, events.GateFinished):
            for held in self._done if event.is_error else ():
                self.transcript.update(held)
            if not event.is_error:
                self._answered.add(event.via)
            self._done = []

    def _turn(self, event: events.TurnEnded) -> None:
        turn = event.turn
        meta = turn.metadata
        parts = [f"turn {turn.sequence}", duration(meta.duration_ms / 1000), *meta.usage.words()]
        self.transcript.note(f" {self.screen.marks.dot} ".join([*parts, turn.id]))

    def ended(self, result: CastResult, *, show_loom: bool = True) -> None:
        """Show how the cast ended: the answer (if not shown yet), the reason, the usage, and where the loom is."""
        self.transcript.finish()
        if result.reason != "text" and result.result is not None:
            self.screen.blank()
            flow = Flow(self.screen, self.screen.marks.message, mark_style="bold green")
            flow.feed(as_text(result.result))
            flow.close()
        elif result.summary and result.truncated:
            self.transcript.note(clean_line(result.summary, 2000), "yellow")
        if result.terminated:
            # The summary of a truncated cast already contains the warnings.
            for warning in result.warnings:
                self.transcript.note(clean_line(warning, 2000), "yellow")
        self.screen.blank()
        style = "bold green" if result.terminated else "bold yellow"
        dot = f" {self.screen.marks.dot} "
        turns = f"{result.turns} turn{'' if result.turns == 1 else 's'}"
        parts = [turns, *result.usage.words(), duration(time.monotonic() - self._begun)]
        self.screen.line((f"{self.screen.marks.stop} {result.reason}", style), (dot + dot.join(parts), "dim"))
        if show_loom:
            self.kept(result.loom)
        self.screen.flush()

    def kept(self, loom: str | None) -> None:
        """Show where the loom of a cast is. It is shown for failed casts too."""
        if loom:
            self.screen.line(("loom     ", "dim"), loom)
            self.screen.flush()

    def stopped(self) -> None:
        """Show that the cast was cancelled before it had a result."""
        self.transcript.finish()
        self.screen.line((f"{self.screen.marks.stop} cancelled", "bold yellow"))
        self.screen.flush()


def money(dollars: float) -> str:
    """US dollars; six digits for amounts below a tenth of a cent."""
    return f"${dollars:.4f}" if dollars >= 0.001 or not dollars else f"${dollars:.6f}"


def _update(event: events.Event) -> dict[str, Any] | None:
    """The event as an ACP update for the transcript. None if the event is shown in another way, or not at all."""
    if isinstance(event, events.Text | events.Thought):
        kind = "agent_message_chunk" if isinstance(event, events.Text) else "agent_thought_chunk"
        content = {"type": "text", "text": event.delta}
        return {"sessionUpdate": kind, "messageId": event.message_id, "content": content}
    if isinstance(event, events.PlanChanged):
        return {"sessionUpdate": "plan", "entries": [{"content": e.content, "status": e.status} for e in event.entries]}
    if isinstance(event, events.GateCalled):
        about: dict[str, Any] = {"title": event.title or event.gate, "kind": event.kind, "status": "pending"}
        about |= {"locations": [_place(p) for p in event.locations], "rawInput": event.args}
        return _call("tool_call", event.call_id, about, event.via)
    if isinstance(event, events.GateStarted):
        return _call("tool_call_update", event.call_id, {"status": "in_progress"})
    if isinstance(event, events.GateFinished):
        diffs = [{"type": "diff", "path": d.path, "oldText": d.old_text, "newText": d.new_text} for d in event.diffs]
        about = {"status": "failed" if event.is_error else "completed", "rawOutput": event.result}
        if diffs:
            about["content"] = diffs
        if event.title:
            about["title"] = event.title
        if event.locations:
            about["locations"] = [_place(p) for p in event.locations]
        return _call("tool_call_update", event.call_id, about, event.via)
    if isinstance(event, events.CommandStarted):
        about = {
            "title": event.tool,
            "kind": "execute",
            "status": "in_progress",
            "rawInput": {"command": event.command},
        }
        return _call("tool_call", event.call_id, about)
    if isinstance(event, events.CommandOutput):
        output = {"terminal_output": {"terminal_id": event.call_id, "data": event.data}}
        return _call("tool_call_update", event.call_id, {"_meta": output})
    if isinstance(event, events.CommandFinished):
        failed = event.exit_code != 0 or event.timed_out or event.error is not None
        about = {"status": "failed" if failed else "completed"}
        about["rawOutput"] = {"exit_code": event.exit_code}
        meta: dict[str, Any] = {}
        if event.error:
            # For example a traceback, which no piece of the output contained.
            meta["terminal_output"] = {"terminal_id": event.call_id, "data": f"{event.error}\n"}
        if event.signal:
            meta["terminal_exit"] = {"signal": event.signal}
        if meta:
            about["_meta"] = meta
        return _call("tool_call_update", event.call_id, about)
    return None


def _call(kind: str, call_id: str, about: dict[str, Any], via: str | None = None) -> dict[str, Any]:
    update = {"sessionUpdate": kind, "toolCallId": call_id, **about}
    if via is not None:
        update["_meta"] = {"cantrip": {"via": via}}
    return update


def _place(location: events.Location) -> dict[str, Any]:
    return {"path": location.path} | ({"line": location.line} if location.line is not None else {})
