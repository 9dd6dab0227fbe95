"""Output of a client session: a transcript for people, and JSON lines for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from cantrip_acp.acp.client.client import AgentError, Outcome, Session
from cantrip_acp.cli.render.terminal import Screen
from cantrip_acp.cli.render.tool_call import mapped, number, text
from cantrip_acp.cli.render.transcript import Transcript, duration, usage_line
from cantrip_acp.cli.session.permission import name_of
from cantrip_acp.text.sanitize import clean_line

_MOST_JUNK = 3


def loom_of(meta: Mapping[str, Any]) -> str | None:
    """Where a session's loom is, if the agent gives it in `_meta.cantrip.loom`."""
    return text(mapped(meta, "cantrip"), "loom") or None


def _many(count: int, what: str) -> str:
    return f"{count} {what}" + ("" if count == 1 else "s")


class Face(Protocol):
    """Shows what happens in a session. `failed` ends the turn, or the session if no turn runs."""

    def opened(self, about: Mapping[str, Any], session: Session) -> None: ...
    def prompted(self, words: str) -> None: ...
    def updated(self, session_id: str, update: Mapping[str, Any]) -> None: ...
    def idle(self) -> None: ...
    def asking(self, call: Mapping[str, Any]) -> None: ...
    def answered(
        self, call: Mapping[str, Any], options: Sequence[Mapping[str, Any]], answer: str | None, by: str
    ) -> None: ...
    def lent(self, action: str, path: str, refused: str | None, missing: bool) -> None: ...
    def heard(self, source: str, line: str) -> None: ...
    def remark(self, words: str) -> None: ...
    def ended(self, outcome: Outcome, seconds: float) -> None: ...
    def failed(self, error: Exception) -> None: ...


class TranscriptFace:
    """Output for people (see `transcript`). Errors and the agent's stderr go to `errors`."""

    def __init__(
        self, screen: Screen, errors: Screen, *, folder: Path, full: bool = False, verbose: bool = False
    ) -> None:
        self.screen = screen
        self.transcript = Transcript(screen, folder=folder, full=full)
        self._errors = errors
        self._verbose = verbose
        self._junk = 0

    def opened(self, about: Mapping[str, Any], session: Session) -> None:
        agent = mapped(about, "agentInfo")
        name = text(agent, "title") or text(agent, "name") or "agent"
        parts = [f"{clean_line(name, 60)} {clean_line(text(agent, 'version'), 30)}".strip(), "ACP 1"]
        if mode := text(session.modes, "currentModeId"):
            parts.append(f"mode {clean_line(mode, 30)}")
        dot = f" {self.screen.marks.dot} "
        self.screen.line((parts[0], "bold"), (dot + dot.join(parts[1:]), "dim"))
        self.screen.line(("session  ", "dim"), clean_line(session.id, 100), whole=True)
        self.screen.line(("folder   ", "dim"), str(session.folder), whole=True)
        if loom := loom_of(session.meta):
            self.screen.line(("loom     ", "dim"), clean_line(loom), whole=True)
        self.transcript.begun()

    def prompted(self, words: str) -> None:
        self.transcript.prompt(words)

    def updated(self, session_id: str, update: Mapping[str, Any]) -> None:
        self.transcript.update(update)

    def idle(self) -> None:
        self.transcript.idle()

    def asking(self, call: Mapping[str, Any]) -> None:
        self.transcript.show_call(call)

    def answered(
        self, call: Mapping[str, Any], options: Sequence[Mapping[str, Any]], answer: str | None, by: str
    ) -> None:
        self.transcript.settle()
        self.screen.line(("? ", "yellow"), "permission: ", (name_of(answer, options), "bold"), (by, "dim"), indent=2)

    def lent(self, action: str, path: str, refused: str | None, missing: bool) -> None:
        if missing and not self._verbose:
            return  # Agents often look for a file before they create it; the agent shows the result itself.
        if refused:
            self.transcript.note(f"the agent may not {action} a file of this client: {clean_line(refused)}", "yellow")
        elif self._verbose or action == "write":
            self.transcript.note(f"{action} by this client for the agent: {clean_line(path)}")

    def heard(self, source: str, line: str) -> None:
        if source == "stdout":
            self._junk += 1
            if self._junk > _MOST_JUNK and not self._verbose:
                return
            more = " (more of these are not shown)" if self._junk == _MOST_JUNK and not self._verbose else ""
            self._errors.line(
                (f"the agent printed what is no message on stdout{more}: {clean_line(line, 160)}", "yellow")
            )
        elif self._verbose:
            self._errors.line((f"agent: {line}", "dim"))

    def remark(self, words: str) -> None:
        self.transcript.note(words, "yellow")

    def ended(self, outcome: Outcome, seconds: float) -> None:
        self.transcript.finish()
        self.screen.blank()
        marks = self.screen.marks
        style = "bold green" if outcome.stop_reason == "end_turn" else "bold yellow"
        calls = self.transcript.calls
        ours = mapped(outcome.meta, "cantrip")
        parts = [_many(turns, "turn")] if (turns := number(ours, "turns")) else []
        parts += [_many(calls, "tool call")] if calls else []
        usage = outcome.usage or mapped(ours, "usage")
        parts += [*usage_line(usage, self.transcript.context), duration(seconds)]
        dot = f" {marks.dot} "
        self.screen.line((f"{marks.stop} {clean_line(outcome.stop_reason, 60)}", style), (dot + dot.join(parts), "dim"))

    def failed(self, error: Exception) -> None:
        self.transcript.finish()
        self.screen.flush()
        self._errors.line((f"cantrip: {error}", "red"))


class JsonFace:
    """Output for programs: one JSON object per line, each with an `event`; a `result` ends every turn."""

    def __init__(self) -> None:
        self._session: Session | None = None
        self._turn = 0

    def _print(self, event: str, **fields: object) -> None:
        sys.stdout.write(json.dumps({"event": event, **fields}, default=str) + "\n")
        sys.stdout.flush()

    def opened(self, about: Mapping[str, Any], session: Session) -> None:
        self._session = session
        self._print(
            "session",
            session_id=session.id,
            folder=str(session.folder),
            agent=about.get("agentInfo"),
            modes=session.modes or None,
            loom=loom_of(session.meta),
            meta=session.meta or None,
        )

    def prompted(self, words: str) -> None:
        self._turn += 1
        self._print("prompt", turn=self._turn, text=words)

    def updated(self, session_id: str, update: Mapping[str, Any]) -> None:
        self._print("update", session_id=session_id, update=update)

    def idle(self) -> None:
        """Does nothing: no output is ever held back."""

    def asking(self, call: Mapping[str, Any]) -> None:
        """Does nothing: one line is printed with the answer."""

    def answered(
        self, call: Mapping[str, Any], options: Sequence[Mapping[str, Any]], answer: str | None, by: str
    ) -> None:
        self._print("permission", tool_call=call, options=options, answer=answer)

    def lent(self, action: str, path: str, refused: str | None, missing: bool) -> None:
        self._print("file", action=action, path=path, refused=refused)

    def heard(self, source: str, line: str) -> None:
        self._print(source, line=line)

    def remark(self, words: str) -> None:
        self._print("note", text=words)

    def ended(self, outcome: Outcome, seconds: float) -> None:
        self._result(outcome.stop_reason, seconds, usage=outcome.usage or None, meta=outcome.meta or None)

    def failed(self, error: Exception) -> None:
        about: dict[str, object] = {"type": type(error).__name__, "message": str(error)}
        if isinstance(error, AgentError):
            about["stderr"] = list(error.stderr)
            about["code"] = getattr(error, "code", None)
        self._result(None, None, error=about)

    def _result(self, stop_reason: str | None, seconds: float | None, **fields: object) -> None:
        session = self._session
        self._print(
            "result",
            turn=self._turn,
            stop_reason=stop_reason,
            session_id=session.id if session else None,
            loom=loom_of(session.meta) if session else None,
            seconds=None if seconds is None else round(seconds, 3),
            **fields,
        )
