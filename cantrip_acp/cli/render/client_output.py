"""Output of `cantrip client`: a transcript for people (`ClientText`), or JSON lines for programs (`ClientJson`)."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from cantrip_acp.acp.client.client import AgentError, AgentRefused, Outcome, Session
from cantrip_acp.cli import json_errors
from cantrip_acp.cli.render.display import duration
from cantrip_acp.cli.render.from_acp import UpdateTranslator, get_int, get_mapping, get_text, usage_of
from cantrip_acp.cli.render.renderer import Renderer
from cantrip_acp.cli.render.terminal import Screen
from cantrip_acp.cli.session.questions import option_name
from cantrip_acp.crystals.human import working_clock
from cantrip_acp.text.sanitize import clean_line

_MOST_JUNK = 3


def loom_of(meta: Mapping[str, Any]) -> str | None:
    """Where a session's loom is, if the agent gives it in `_meta.cantrip.loom`."""
    return get_text(get_mapping(meta, "cantrip"), "loom") or None


def _many(count: int, what: str) -> str:
    return f"{count} {what}" + ("" if count == 1 else "s")


class ClientOutput(Protocol):
    """Shows what happens in a session. `show_error` ends the turn, or the session if no turn runs."""

    def show_session(self, about: Mapping[str, Any], session: Session) -> None: ...
    def show_prompt(self, words: str) -> None: ...
    def show_update(self, session_id: str, update: Mapping[str, Any]) -> None: ...
    def flush_text(self) -> None: ...
    def show_permission_request(self, call: Mapping[str, Any]) -> None: ...
    def show_permission_answer(
        self, call: Mapping[str, Any], options: Sequence[Mapping[str, Any]], answer: str | None, by: str
    ) -> None: ...
    def end_question(self) -> None: ...
    def show_file_access(self, action: str, path: str, refused: str | None, missing: bool) -> None: ...
    def show_line(self, source: str, line: str) -> None: ...
    def show_note(self, words: str) -> None: ...
    def show_attached(self, names: Sequence[str]) -> None: ...
    def show_outcome(self, outcome: Outcome, seconds: float) -> None: ...
    def show_error(self, error: Exception) -> None: ...


class ClientText:
    """Output for people. Errors and the agent's stderr go to `errors`. `own`: the agent is in this process, and what it says
    of an answer (its reason, its usage) is shown instead of what every agent says."""

    def __init__(
        self,
        screen: Screen,
        errors: Screen,
        *,
        folder: Path,
        full: bool = False,
        verbose: bool = False,
        own: bool = False,
    ) -> None:
        self.screen = screen
        self.own = own
        # Durations do not include the time in which a question waits for the user.
        self.renderer = Renderer(screen, folder=folder, full=full, clock=working_clock)
        self._translator = UpdateTranslator(own=own, dot=screen.marks.dot)
        self._context: Mapping[str, Any] = {}
        self._errors = errors
        self._verbose = verbose
        self._junk = 0

    def show_session(self, about: Mapping[str, Any], session: Session) -> None:
        if self.own:
            return
        agent = get_mapping(about, "agentInfo")
        name = get_text(agent, "title") or get_text(agent, "name") or "agent"
        parts = [f"{clean_line(name, 60)} {clean_line(get_text(agent, 'version'), 30)}".strip(), "ACP 1"]
        if mode := get_text(session.modes, "currentModeId"):
            parts.append(f"mode {clean_line(mode, 30)}")
        dot = f" {self.screen.marks.dot} "
        self.screen.line((parts[0], "bold"), (dot + dot.join(parts[1:]), "dim"))
        self.screen.line(("session  ", "dim"), clean_line(session.id, 100), whole=True)
        self.screen.line(("folder   ", "dim"), str(session.folder), whole=True)
        if loom := loom_of(session.meta):
            self.screen.line(("loom     ", "dim"), clean_line(loom), whole=True)
        # The most that the recipe allows: the mode decides which of these calls need a question.
        for title, texts in get_mapping(get_mapping(session.meta, "cantrip"), "allowed").items():
            shown = "; ".join(text for text in texts if isinstance(text, str)) if isinstance(texts, list) else ""
            if shown or title != "own_gates":
                empty = "nothing" if title == "writes" else "none"
                label = clean_line(title.replace("_", " "), 20)
                self.screen.line((f"{label:<8} ", "dim"), clean_line(shown, 2000) or empty)
        self.renderer.begin_output()

    def show_prompt(self, words: str) -> None:
        self.renderer.show_prompt(words)

    def show_update(self, session_id: str, update: Mapping[str, Any]) -> None:
        if get_text(update, "sessionUpdate") == "usage_update":
            self._context = update
        for item in self._translator.translate(update):
            self.renderer.show(item)
        self.screen.flush()

    def flush_text(self) -> None:
        self.renderer.flush_text()

    def show_permission_request(self, call: Mapping[str, Any]) -> None:
        self.renderer.show_call(self._translator.call(call))

    def show_permission_answer(
        self, call: Mapping[str, Any], options: Sequence[Mapping[str, Any]], answer: str | None, by: str
    ) -> None:
        self.renderer.close_open_output()
        self.screen.line(
            ("? ", "yellow"), "permission: ", (option_name(answer, options), "bold"), (by, "dim"), indent=2
        )

    def end_question(self) -> None:
        """End a question that was withdrawn, while the cursor is still behind it."""
        self.screen.blank()

    def show_file_access(self, action: str, path: str, refused: str | None, missing: bool) -> None:
        if missing and not self._verbose:
            return  # Agents often check whether a file exists before they create it. That is not an error.
        if refused:
            self.renderer.show_note(
                f"the agent may not {action} a file of this client: {clean_line(refused)}", "yellow"
            )
        elif self._verbose or action == "write":
            self.renderer.show_note(f"{action} by this client for the agent: {clean_line(path)}")

    def show_line(self, source: str, line: str) -> None:
        if source == "stdout":
            self._junk += 1
            if self._junk > _MOST_JUNK and not self._verbose:
                return
            more = " (more of these are not shown)" if self._junk == _MOST_JUNK and not self._verbose else ""
            self._errors.line(
                (f"the agent printed a line on stdout that is not a message{more}: {clean_line(line, 160)}", "yellow")
            )
        elif self._verbose:
            self._errors.line((f"agent: {line}", "dim"))

    def show_note(self, words: str) -> None:
        self.renderer.show_note(words, "yellow")
        self.screen.flush()

    def show_attached(self, names: Sequence[str]) -> None:
        self.show_lines(f"attached {', '.join(names)}")

    def show_lines(self, text: str) -> None:
        """Show a remark about the user's input."""
        for line in text.splitlines():
            self.renderer.show_note(clean_line(line, 300))
        self.screen.flush()

    def show_answer(self, text: str) -> None:
        """Show the answer of a command, which is Markdown."""
        self.renderer.close_open_output()
        self.screen.blank()
        if self.screen.terminal:
            self.screen.print_rendered(self.screen.markdown(text))
        else:
            for line in text.splitlines():
                self.screen.line(line)
        self.screen.flush()

    def show_outcome(self, outcome: Outcome, seconds: float) -> None:
        self.renderer.end_turn()
        ours = get_mapping(outcome.meta, "cantrip")
        if self.own and get_text(ours, "command"):
            self.screen.flush()
            return
        reason = (get_text(ours, "reason") if self.own else "") or outcome.stop_reason
        if self.own and outcome.stop_reason not in ("end_turn", "cancelled") and (summary := get_text(ours, "summary")):
            self.renderer.show_note(clean_line(summary, 2000), "yellow")
        self.screen.blank()
        marks = self.screen.marks
        style = "bold green" if outcome.stop_reason == "end_turn" else "bold yellow"
        calls = 0 if self.own else self.renderer.call_count
        parts = [_many(turns, "turn")] if (turns := get_int(ours, "turns")) else []
        parts += [_many(calls, "tool call")] if calls else []
        usage = outcome.usage or get_mapping(ours, "usage")
        parts += usage_of(get_mapping(ours, "usage")).words() if self.own else usage_line(usage, self._context)
        parts.append(duration(seconds))
        dot = f" {marks.dot} "
        self.screen.line((f"{marks.stop} {clean_line(reason, 60)}", style), (dot + dot.join(parts), "dim"))
        self.screen.flush()

    def end_turn(self) -> None:
        """End a turn without an outcome."""
        self.renderer.end_turn()
        self.screen.flush()

    def text_of(self, error: Exception) -> str:
        """The text of an error for people. Refusals of our own agent are shown without the words of the protocol."""
        data = error.data if self.own and isinstance(error, AgentRefused) else None
        about = data if isinstance(data, Mapping) else {}
        return get_text(about, "details") or get_text(about, "problem") or str(error)

    def show_error(self, error: Exception) -> None:
        self.end_turn()
        self._errors.line((f"cantrip: {self.text_of(error)}", "red"))


class ClientJson:
    """Output for programs: one JSON object per line, each with an `event`; a `result` ends every turn."""

    def __init__(self) -> None:
        self._session: Session | None = None
        self._turn = 0

    def _print(self, event: str, **fields: object) -> None:
        sys.stdout.write(json.dumps({"event": event, **fields}, default=str) + "\n")
        sys.stdout.flush()

    def show_session(self, about: Mapping[str, Any], session: Session) -> None:
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

    def show_prompt(self, words: str) -> None:
        self._turn += 1
        self._print("prompt", turn=self._turn, text=words)

    def show_update(self, session_id: str, update: Mapping[str, Any]) -> None:
        self._print("update", session_id=session_id, update=update)

    def flush_text(self) -> None:
        """Do nothing, because all output is printed at once."""

    def show_permission_request(self, call: Mapping[str, Any]) -> None:
        """Do nothing, because `show_permission_answer` prints the request too."""

    def show_permission_answer(
        self, call: Mapping[str, Any], options: Sequence[Mapping[str, Any]], answer: str | None, by: str
    ) -> None:
        self._print("permission", tool_call=call, options=options, answer=answer)

    def end_question(self) -> None:
        """Do nothing, because a program is never asked."""

    def show_file_access(self, action: str, path: str, refused: str | None, missing: bool) -> None:
        self._print("file", action=action, path=path, refused=refused)

    def show_line(self, source: str, line: str) -> None:
        self._print(source, line=line)

    def show_note(self, words: str) -> None:
        self._print("note", text=words)

    def show_attached(self, names: Sequence[str]) -> None:
        """Do nothing: the prompt names the files."""

    def show_outcome(self, outcome: Outcome, seconds: float) -> None:
        self._result(outcome.stop_reason, seconds, usage=outcome.usage or None, meta=outcome.meta or None)

    def show_error(self, error: Exception) -> None:
        about: dict[str, object] = {"type": type(error).__name__, "message": str(error)}
        if isinstance(error, AgentError):
            about["stderr"] = list(error.stderr)
            about["code"] = error.code
        self._result(None, None, error=about)

    def _result(self, stop_reason: str | None, seconds: float | None, **fields: object) -> None:
        json_errors.ended()
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


def usage_line(usage: Mapping[str, Any], context: Mapping[str, Any]) -> list[str]:
    """Tokens and cost as text, if the agent reports them in the reply to the prompt or in the last `usage_update`."""
    parts = []
    # Each pair has the key in ACP and the key in our own `_meta.cantrip.usage`.
    taken, given, cached = (
        next((value for key in keys if (value := get_int(usage, key)) is not None), None)
        for keys in (
            ("inputTokens", "prompt_tokens"),
            ("outputTokens", "completion_tokens"),
            ("cachedReadTokens", "cached_tokens"),
        )
    )
    if taken is not None or given is not None:
        words = f"{taken or 0:,} tokens in, {given or 0:,} out"
        parts.append(f"{words} ({cached:,} cached)" if cached else words)
    used, size = get_int(context, "used"), get_int(context, "size")
    if used is not None and size:
        parts.append(f"context {used:,} of {size:,} ({used * 100 // size}%)")
    cost = get_mapping(context, "cost")
    # An agent that does not know the context window sends no `usage_update`. Ours then sends the cost with its tokens.
    amount = cost.get("amount", usage.get("cost"))
    if isinstance(amount, int | float) and not isinstance(amount, bool):
        currency = clean_line(get_text(cost, "currency"), 8) or "USD"
        parts.append(f"${amount:.4f}" if currency == "USD" else f"{amount:.4f} {currency}")
    return parts
