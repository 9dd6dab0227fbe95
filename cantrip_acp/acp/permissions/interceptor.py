"""Permission interceptor: decides which calls of a session may run, and asks the user where needed.

It runs in the gate chain of every entity of the session, including children. It knows nothing of the wire: it makes a
`Question` and waits for an `Answer`. A refusal is an observation for the entity. A call that would fail anyway is not
asked about: it fails as usual.
An "always" answer applies to a gate or a medium's tool, and to a pattern (`patterns`) or to what the gate itself names
(a host, this command). An "always reject" holds in every mode; an "always allow" only saves the question.
When the mode changes, or another answer also decides an open question, that question is settled by the new state.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import anyio
import anyio.to_thread
import msgspec

from cantrip_acp.acp.permissions import patterns
from cantrip_acp.acp.permissions.patterns import ALL
from cantrip_acp.acp.sessions import modes
from cantrip_acp.acp.sessions.session_store import Grant
from cantrip_acp.core.errors import describe
from cantrip_acp.core.events import Diff, Location
from cantrip_acp.gates.contract import GateReply
from cantrip_acp.gates.web.named_hosts import NamedHosts
from cantrip_acp.text.redaction import shared

if TYPE_CHECKING:
    from cantrip_acp.gates.contract import GateInvocation, Proceed, ProgramCall

log = logging.getLogger(__name__)

Answer = Literal["allow_once", "allow_always", "reject_once", "reject_always", "unasked"]
"""The answer to a question; ``unasked`` where the client could not be asked."""

Decide = Callable[[], "GateReply | bool | None"]
"""Decides a call by the present state: True to allow it, a `GateReply` to refuse it, None to ask the user."""

_FOR_PEOPLE = {
    "rejected": "you rejected this",
    "rejected_always": "you rejected this for the whole session",
    "refused": "the session is in read-only mode",
    "unasked": "you could not be asked",
}


def _refusal(permission: str, why: str, said: str = "") -> GateReply:
    """A refusal: ``why`` is for the entity, ``said`` for people."""
    return GateReply(
        why, is_error=True, annotations={"permission": permission, "error": said or _FOR_PEOPLE[permission]}
    )


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """A call that needs the user's permission. ``pattern`` is what would be remembered; ``shown`` describes it for people.

    ``program`` is true for commands and cells: the client has not seen their tool call yet.
    """

    call_id: str
    tool: str
    title: str
    kind: str
    pattern: str
    shown: str
    raw_input: Any
    entity_id: str
    cast_id: str
    program: bool = False
    child: str | None = None
    """The child's display name, where the call comes from a child."""
    text: str = ""
    cwd: str | None = None
    locations: tuple[Location, ...] = ()
    diffs: tuple[Diff, ...] = ()


class _OpenQuestion:
    """A question without an answer yet."""

    def __init__(self, decide: Decide) -> None:
        self.decide = decide
        self.scope = anyio.CancelScope()


class Permissions:
    """The permissions of one session. ``ask`` asks the user; ``remember`` saves an "always" answer."""

    def __init__(self, ask: Callable[[Question], Awaitable[Answer]], remember: Callable[[Grant], None]) -> None:
        self.ask = ask
        self.remember = remember
        self.mode = modes.DEFAULT
        self.granted: list[Grant] = []
        self.hosts = NamedHosts()
        self._open: list[_OpenQuestion] = []

    route: Callable[[GateInvocation], GateInvocation] | None = None
    """Replaces a call by one that goes to the client, where the client has a better source: the files open in the editor."""

    def forget(self) -> None:
        """Delete all "always" answers."""
        self.granted.clear()

    def settle_open_questions(self) -> None:
        """Settle the open questions that a new mode or a new "always" answer decides."""
        for each in self._open:
            if each.decide() is not None:
                each.scope.cancel()

    async def __call__(self, invocation: GateInvocation, proceed: Proceed) -> GateReply:
        """The interceptor in the chain of a gate call."""
        if self.route is not None:
            invocation = self.route(invocation)
        gate = invocation.gate
        if modes.changes_something(gate):
            why = await self._check_gate(invocation)
            if why is not None:
                return why
        return await proceed(invocation)

    async def program(self, call: ProgramCall) -> GateReply | None:
        """The refusal of a command or a cell; None where it may run."""
        shell = call.tool == "bash"

        def decide() -> GateReply | bool | None:
            if self.mode == modes.READ_ONLY and _can_write(call):
                # A child that already runs keeps the wards that it was started with.
                return _refusal("refused", "refused: the session is in read-only mode, and this could change files")
            said = self._remembered_answer(
                call.tool, lambda p: patterns.command_matches(call.text, p) if shell else p == ALL
            )
            if said is None or said is True:
                return True if said or self.mode != modes.ASK or not _needs_permission(call) else None
            return said

        pattern, shown = patterns.pattern_of_command(call.text) if shell else (ALL, "every cell")
        question = Question(
            call_id=call.call_id,
            tool=call.tool,
            title=call.text,
            kind="execute",
            pattern=pattern,
            shown=shown,
            raw_input={"command" if shell else "code": call.text},
            entity_id=call.entity_id,
            cast_id=call.cast_id,
            program=True,
            text=call.text,
            cwd=str(call.circle.workspace) if call.circle.workspace is not None else None,
        )
        return await self._decide(question, decide)

    async def _check_gate(self, invocation: GateInvocation) -> GateReply | None:
        """The refusal of a gate call; None where it may run."""
        gate, context = invocation.gate, invocation.context
        title, locations = _preview_of(invocation)
        paths = [place.path for place in locations]
        top = [str(folder) for folder in (context.workspace, *context.folders) if folder is not None]
        pattern, shown = patterns.pattern_of_paths(paths, top) if gate.covers is None else gate.covers(invocation.args)

        def fits(said: str) -> bool:
            return said in (ALL, pattern) if gate.covers is not None else patterns.paths_match(paths, said)

        def decide() -> GateReply | bool | None:
            if self.mode == modes.READ_ONLY:
                return _refusal(
                    "refused", f"{gate.name} is refused: the session is in read-only mode, in which nothing is changed"
                )
            said = self._remembered_answer(gate.name, fits)
            if said is not None:
                return said
            if (self.mode == modes.TRUSTED and self.hosts.names(invocation)) or (
                self.mode == modes.SANDBOXED and paths and patterns.writable_in_sandbox(paths, context.wards)
            ):
                return True
            return None

        now = decide()
        if now is not None:
            return now if isinstance(now, GateReply) else None
        question = Question(
            call_id=invocation.call_id,
            tool=gate.name,
            title=title,
            kind=gate.kind,
            pattern=pattern,
            shown=f"{patterns.gate_word(gate.name)} {shown}".strip(),
            raw_input=invocation.args,
            entity_id=context.entity_id,
            cast_id=context.cast_id,
            text=await _command_of(invocation),
            locations=locations,
            # Raises the error that the call would fail with in any case; then nobody is asked.
            diffs=await _proposed_diffs(invocation),
        )
        why = await self._decide(question, decide)
        if why is None and _preview_of(invocation)[1] != locations:
            moved = f"{title} leads somewhere else now than when you were asked"
            again = f"{gate.name} is refused: {title} leads somewhere else now than when the user was asked. Try again"
            return _refusal("refused", again, moved)
        return why

    def _remembered_answer(self, tool: str, fits: Callable[[str], bool]) -> GateReply | bool | None:
        """The "always" answer for such a call: a rejection wins over a permission. None where there is none."""
        said = [g.allowed for g in self.granted if g.tool == tool and fits(g.pattern)]
        if not said:
            return None
        why = f"{tool} is refused: the user does not want this in this session. Go on without it"
        return all(said) or _refusal("rejected_always", why)

    async def _decide(self, question: Question, decide: Decide) -> GateReply | None:
        """The refusal of a call, by the present state or by the user's answer; None where it may run."""
        while (now := decide()) is None:
            answer = await self._ask_user(question, decide)
            if answer is not None:
                return self._apply_answer(question, answer, decide)
        return now if isinstance(now, GateReply) else None

    async def _ask_user(self, question: Question, decide: Decide) -> Answer | None:
        """The user's answer; None where it is no longer needed."""
        waiting = _OpenQuestion(decide)
        self._open.append(waiting)
        try:
            with waiting.scope:
                return await self.ask(question)
        finally:
            self._open.remove(waiting)
        return None

    def _apply_answer(self, question: Question, answer: Answer, decide: Decide) -> GateReply | None:
        """Apply an answer."""
        if answer in ("allow_always", "reject_always"):
            allowed = answer == "allow_always"
            self.granted.append(Grant(question.tool, question.pattern, allowed))
            # A pattern that holds a secret is saved masked, so the user is asked again when the session is reopened.
            self.remember(Grant(question.tool, shared().text(question.pattern), allowed))
            self.settle_open_questions()
        if answer.startswith("allow"):
            # The mode may have changed meanwhile to one in which no answer allows this call.
            now = decide()
            return now if isinstance(now, GateReply) else None
        if answer == "unasked":
            return _refusal(
                "unasked",
                f"{question.tool} was not run: it needs the user's permission, and the client cannot ask for it. The user "
                "can switch the session to another mode",
            )
        return _refusal(
            "rejected_always" if answer == "reject_always" else "rejected",
            f"the user refused this: {' '.join(question.title.split())[:200]}. Do not try the same in another way; go on "
            "without it, or say what you would need",
        )


def _preview_of(invocation: GateInvocation) -> tuple[str, tuple[Location, ...]]:
    """Title and locations of a call; only the gate's name where its arguments have no preview."""
    gate = invocation.gate
    if gate.preview is None:
        return gate.name, ()
    try:
        seen = gate.preview(invocation.args, invocation.context)
        return seen.title or gate.name, tuple(seen.locations)
    except Exception as error:  # noqa: BLE001
        # The gate itself reports what is wrong with the arguments.
        log.debug("no preview of %s: %s", gate.name, shared().diagnostic(describe(error)))
        return gate.name, ()


async def _command_of(invocation: GateInvocation) -> str:
    """The full command line that a call would run. Raises `GateError` where the call would fail anyway."""
    gate = invocation.gate
    if gate.runs is not None:
        return await anyio.to_thread.run_sync(gate.runs, invocation.args, invocation.context)
    command = invocation.args.get("command") if gate.kind == "execute" else None
    return command if isinstance(command, str) else ""


def _needs_permission(call: ProgramCall) -> bool:
    """Whether the user is asked about a program of this medium.

    Yes for a command, unless it is only a gate's call (the gate asks itself where it writes), and for a cell that
    could write files.
    """
    if call.tool != "bash":
        return bool(call.circle.wards.code_writable_paths)
    from cantrip_acp.acp.permissions import shell_parse

    words = shell_parse.plain_words(call.text)
    if words is None:
        return True
    from cantrip_acp.mediums.bash import _SHELL_WORDS

    name = words[0]
    if name.startswith("cantrip_") and name.removeprefix("cantrip_") in call.circle.tool_names:
        return False
    return name not in call.circle.tool_names or name in _SHELL_WORDS


def _can_write(call: ProgramCall) -> bool:
    wards = call.circle.wards
    return bool(wards.bash_writable_paths if call.tool == "bash" else wards.code_writable_paths)


async def _proposed_diffs(invocation: GateInvocation) -> tuple[Diff, ...]:
    """The changes that a call would make. Raises `GateError` where the call would fail anyway."""
    proposes = invocation.gate.proposes
    if proposes is None:
        return ()
    args: Mapping[str, Any] = invocation.args
    try:
        if inspect.iscoroutinefunction(proposes):
            found: tuple[Diff, ...] = await proposes(args, invocation.context)
            return found
        return await anyio.to_thread.run_sync(proposes, args, invocation.context)  # type: ignore[arg-type]
    except (OSError, UnicodeError):
        # The call itself reports this better.
        return ()
