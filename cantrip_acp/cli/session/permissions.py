"""Permission requests on the command line.

`cantrip client` answers an agent's requests by the rules of `--allow` (`Policy`), or asks the user (`questions`).
Commands print on stderr what is allowed without asking. `cantrip cast --ask` asks in the terminal; `--allow-host` allows
hosts. A request to any other host is refused, or the user is asked.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal, cast

import anyio
import click

from cantrip_acp.cli.render.from_acp import get_text
from cantrip_acp.cli.render.terminal import Screen
from cantrip_acp.text.sanitize import clean_line
from cantrip_acp.types.errors import CrystalError, GateError
from cantrip_acp.types.events import QUESTION

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from cantrip_acp.acp.permissions.allowed import Allowed
    from cantrip_acp.acp.permissions.edits import Answer, Decision
    from cantrip_acp.acp.permissions.interceptor import Permissions, Question
    from cantrip_acp.cli.render.terminal import Screen
    from cantrip_acp.core.cantrip import Cantrip
    from cantrip_acp.core.definition.cantrip_definition import CantripDefinition
    from cantrip_acp.core.definition.circle import Circle
    from cantrip_acp.gates.contract import GateContext, GateInvocation, GateReply, Proceed
    from cantrip_acp.gates.web.named_hosts import NamedHosts

Allow = Literal["ask", "once", "always", "never"]

# For each rule, the kinds of option (ACP, PermissionOptionKind) that it chooses, best first.
_WANTED: Final[Mapping[str, tuple[str, ...]]] = {
    "once": ("allow_once", "allow_always"),
    "always": ("allow_always", "allow_once"),
    "never": ("reject_once", "reject_always"),
}


RULES: Final = ("ask", "once", "always", "never")
KINDS: Final = ("read", "edit", "delete", "move", "search", "execute", "think", "fetch", "switch_mode", "other")
"""The kinds of tool calls (ACP, ToolKind)."""


@dataclass(frozen=True)
class Policy:
    """The rules for permission requests: a general rule, and rules for kinds of tool calls."""

    rule: Allow = "ask"
    kinds: Mapping[str, Allow] = field(default_factory=dict)

    @classmethod
    def of(cls, given: Sequence[str]) -> Policy:
        """Parse the values `RULE` and `KIND=RULE` of `--allow`. Raises ValueError with an error text for the user."""
        rule: Allow = "ask"
        kinds: dict[str, Allow] = {}
        for each in given:
            kind, equals, value = each.rpartition("=")
            if value not in RULES:
                raise ValueError(f"{each!r}: {value!r} is not one of {', '.join(RULES)}")
            if not equals:
                rule = cast("Allow", value)
            elif kind in KINDS:
                kinds[kind] = cast("Allow", value)
            else:
                raise ValueError(f"{each!r}: {kind!r} is not a kind of tool call; use one of {', '.join(KINDS)}")
        return cls(rule, kinds)

    def rule_for(self, call: Mapping[str, Any]) -> Allow:
        """The rule for a tool call. A call without a kind counts as `other`."""
        return self.kinds.get(get_text(call, "kind") or "other", self.rule)

    def option_for(self, call: Mapping[str, Any]) -> str:
        """The command line option with the rule for a tool call."""
        kind = get_text(call, "kind") or "other"
        return f"--allow {kind}={self.kinds[kind]}" if kind in self.kinds else f"--allow {self.rule}"


def choose_option(rule: Allow, options: Sequence[Mapping[str, Any]]) -> str | None:
    """The id of the option that a rule chooses. None (the answer is "cancelled") if no option fits.

    The rule `ask` means no, because there is nobody to ask.
    """
    for kind in _WANTED["never" if rule == "ask" else rule]:
        for option in options:
            if option.get("kind") == kind and isinstance(option.get("optionId"), str):
                return str(option["optionId"])
    return None


ask_option = click.option(
    "--ask",
    "ask",
    is_flag=True,
    help="Ask before each write and each command. Needs a terminal.",
)

allow_host_option = click.option(
    "--allow-host",
    "allow_hosts",
    multiple=True,
    metavar="HOST",
    help="Allow requests of the gate fetch and of commands to HOST (example.org, localhost:3000). May be repeated.",
)

_WAYS: Final = (
    "The user can name it by its address in the intent, or with --allow-host {host}; --ask asks before each request"
)
_LONGEST: Final = 2000
_MOMENT_S: Final = 0.05
"""Seconds to wait before a question, so that earlier output is printed first."""
_MOST_LINES: Final = 60
"""Maximum lines of a command or a change that a question shows."""


def require_terminal(option: str = "--ask") -> None:
    """Raise `click.UsageError` if stdin is not a terminal, because then nobody can answer."""
    try:
        asked = os.isatty(0)
    except OSError:
        asked = False
    if not asked:
        raise click.UsageError(
            f"{option} needs a terminal on standard input. Omit {option} to allow everything that the recipe allows, or remove "
            "the writing gates and paths from the recipe"
        )


def named_hosts(hosts: Sequence[str] = ()) -> NamedHosts:
    """The hosts of ``--allow-host``. Hosts in the intents are added when the intents come. Raises DefinitionError."""
    from cantrip_acp.gates.web.named_hosts import NamedHosts

    made = NamedHosts(_WAYS)
    made.allow(hosts)
    return made


def permissions(hosts: NamedHosts, folder: Path, state_dir: Path, screen: Screen | None = None) -> Permissions:
    """An interceptor that asks in the terminal, like a session of an editor in the mode `ask`.

    ``screen`` shows the questions; standard error by default. Paths in ``folder`` are shown relative to it. ``state_dir``
    keeps the answers for the project.
    """
    from cantrip_acp.acp.permissions.interceptor import Permissions
    from cantrip_acp.acp.sessions.options.modes import ASK
    from cantrip_acp.acp.sessions.session_store import Grant
    from cantrip_acp.cli.render.terminal import Screen

    asks = TerminalQuestions(screen or Screen(sys.stderr), folder).ask
    made = Permissions(asks, lambda granted: None, state_dir=state_dir)
    made.mode, made.hosts = ASK, hosts
    made.granted = [Grant("fetch", pattern, True) for pattern in sorted(hosts.patterns)]
    return made


def print_allowed(
    cantrip: CantripDefinition, circle: Circle, hosts: NamedHosts, *, ask: bool, sandboxed: bool = False
) -> None:
    """Print on stderr what is allowed without asking. ``sandboxed`` is the mode of a session that the user continues."""
    from cantrip_acp.acp.permissions.allowed import allowed_of

    if sandboxed:
        lines = [
            "asks before writes outside of the sandbox's writable folders, commands with every host, and requests to other hosts"
        ]
    elif ask:
        lines = [clean_line(describe_asking(circle, hosts.allowed), _LONGEST)]
    else:
        lines = describe_allowed(allowed_of(cantrip, circle, hosts.allowed))
    screen = Screen(sys.stderr) if sys.stderr.isatty() else None
    for number, line in enumerate(lines):
        shown = f"cantrip: {line}" if number == 0 else f"  {line}"
        if screen is not None:
            screen.line(shown)
        else:
            click.echo(shown, err=True)


def describe_allowed(table: Allowed) -> list[str]:
    """The table as lines, the first of them a heading. Only that one if nothing can be changed."""
    if table.nothing:
        return ["allows nothing that changes files or reaches the network"]
    what = f"{table.programs} in the sandbox" if table.programs else "calls of its gates"
    head = f"allows without asking {what}; --ask asks before each write and command:"
    return [head, *(f"{title:<11}{clean_line(text, _LONGEST)}" for title, text in table.rows())]


def describe_asking(circle: Circle, hosts: Sequence[str] = ()) -> str:
    """Describe what ``--ask`` asks about, and what still happens without a question."""
    program = {"code": "Python in the sandbox", "monty": "restricted Python in the sandbox"}.get(circle.medium.name)
    free = [f"{program}, which writes no files of yours"] if program and not circle.wards.code_writable_paths else []
    fetching = any(gate.kind == "fetch" for gate in circle.gates.values())
    free += [f"calls of fetch to {', '.join(hosts)}"] if fetching and hosts else []
    return "asks before each write and each command" + (f"; {'; '.join(free)} without asking" if free else "")


class TerminalQuestions:
    """Asks the user at this process's terminal, one question at a time. ``screen`` shows the questions, with paths relative
    to ``folder``."""

    def __init__(self, screen: Screen, folder: Path) -> None:
        self._screen, self._folder = screen, folder
        self._one = anyio.Lock()

    async def ask(self, question: Question) -> Decision:
        """Ask and return the answer, which is one key. The key ``r`` is a "no" with a reason, which the entity reads.

        The end of input means no. Ctrl-C cancels the cast and the question.
        """
        from cantrip_acp.acp.permissions.edits import Decision
        from cantrip_acp.acp.permissions.request import options_of
        from cantrip_acp.cli.session.questions import Questions

        options = [{"optionId": o.option_id, "name": o.name, "kind": o.kind} for o in options_of(question)]
        async with self._one:
            await anyio.sleep(_MOMENT_S)
            self._show(question)
            try:
                chosen, notes = await Questions(self._screen).permission({}, options)
            except CrystalError:
                # Refuse, because the terminal is gone or its input has ended.
                return Decision("reject_once")
        return Decision(cast("Answer", chosen), notes.get("reason", ""))

    def _show(self, question: Question) -> None:
        from cantrip_acp.acp.permissions.request import escape_invisible
        from cantrip_acp.cli.render.renderer import relative_path, unified_diff

        screen = self._screen
        screen.end_message()
        title = escape_invisible(" ".join(question.title.split()))
        screen.blank()
        screen.line(
            ("? ", "bold yellow"), (f"{question.tool}: ", "bold"), title if question.host or not question.text else ""
        )
        lines = escape_invisible(question.text).splitlines() if question.text else []
        for line in lines[:_MOST_LINES]:
            screen.line_with_bar(line, indent=4)
        if len(lines) > _MOST_LINES:
            screen.line((f"… {len(lines) - _MOST_LINES:,} more lines …", "dim italic"), indent=4)
        for diff in question.diffs:
            old = None if diff.old_text is None else escape_invisible(diff.old_text)
            path, new = relative_path(diff.path, self._folder), escape_invisible(diff.new_text)
            for line, style in unified_diff(path, old, new, limit=_MOST_LINES):
                screen.line_with_bar(line, style, indent=4)


class TerminalAnswers:
    """Answers the gate `ask_user` at this process's terminal. It is an interceptor of the entity."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._one = anyio.Lock()

    async def __call__(self, invocation: GateInvocation, proceed: Proceed) -> GateReply:
        from cantrip_acp.gates.interaction.ask_user import ASK_USER

        if invocation.gate.handler is ASK_USER.handler:
            invocation = replace(invocation, gate=replace(invocation.gate, handler=self._ask))
        return await proceed(invocation)

    async def _ask(self, args: Mapping[str, Any], context: GateContext) -> GateReply:
        from cantrip_acp.acp.client_services.forms import form_schema
        from cantrip_acp.acp.permissions.request import escape_invisible
        from cantrip_acp.cli.session.questions import Questions
        from cantrip_acp.gates.contract import GateReply
        from cantrip_acp.gates.interaction.ask_user import title

        def shown(text: str) -> str:
            return escape_invisible(text)

        question = args["question"]
        schema = form_schema("Answer", [(choice, shown(choice)) for choice in args.get("choices", ())])
        async with self._one:
            await anyio.sleep(_MOMENT_S)
            self._screen.end_message()
            try:
                found = await Questions(self._screen).form(shown(question), schema)
            except CrystalError:
                found = None  # The terminal is gone or its input has ended.
        if found is None:
            raise GateError("the user gave no answer", "Decide by what you know, or end and say what you need")
        return GateReply(found["answer"], title=title(question), annotations={QUESTION: "answered"})


def with_answers(cantrip: Cantrip, screen: Screen) -> Cantrip:
    """The cantrip, with the gate `ask_user` asking at this process's terminal."""
    return cantrip.for_session((), TerminalAnswers(screen))
