"""Permission interceptor: decides which calls of a session may run, and asks the user if necessary.

It is an interceptor of every entity of the session, including children. It makes a `Question` and waits for an
`Answer`; the module `request` sends the question to the client. The entity sees a refusal as the result of its call. If
a call would fail in any case, the user is not asked.

An "always" answer applies to one gate or tool of a medium, and to a pattern (`patterns`) or to something that the gate
names, such as a host. "Always reject" holds in every mode. "Always allow" only means that the user is not asked again.
A new mode or another answer may also decide a question that is still open. Then the question is withdrawn.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import msgspec

from cantrip_acp.acp.permissions import patterns
from cantrip_acp.acp.permissions.edits import Decision, Edit, Edits, follow
from cantrip_acp.acp.permissions.patterns import ALL
from cantrip_acp.acp.sessions.options import modes
from cantrip_acp.acp.sessions.session_store import Grant
from cantrip_acp.gates.contract import GateReply
from cantrip_acp.gates.registry import SANDBOXED
from cantrip_acp.gates.web.named_hosts import NamedHosts
from cantrip_acp.gates.web.network_question import BASH_NETWORK, allowed, pattern_of_host, shown_host
from cantrip_acp.text.logs import logger
from cantrip_acp.types.errors import DefinitionError, GateError, describe
from cantrip_acp.types.records import Diff, Location

if TYPE_CHECKING:
    from pathlib import Path

    from cantrip_acp.gates.contract import GateInvocation, Proceed, ProgramCall
    from cantrip_acp.gates.web.registries import Host

log = logger(__name__)


Decide = Callable[[], "GateReply | bool | None"]
"""Decides a call by the mode and the remembered answers: True allows it, a `GateReply` refuses it, None asks the user."""

_FOR_PEOPLE = {
    "rejected": "you rejected this",
    "rejected_always": "you rejected this for the whole session",
    "unasked": "you could not be asked",
}


def _refusal(permission: str, for_entity: str, for_people: str = "", reason: str = "") -> GateReply:
    """A refused call, with a text for the entity, a text for people, and the user's reason."""
    annotations = {"permission": permission, "error": for_people or _FOR_PEOPLE[permission]}
    if reason:
        annotations |= {"error": f"{annotations['error']}: {reason}", "reason": reason}
    return GateReply(for_entity, is_error=True, annotations=annotations)


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """A call that needs the user's permission.

    ``pattern`` is stored with an "always" answer, and ``pattern_text`` describes it for people. ``parts`` are the patterns
    that "always allow" stores in its place, for a command of several plain ones; ``parts_text`` describes them. ``program``
    is true for commands and cells: their tool call was not sent to the client yet.
    """

    call_id: str
    tool: str
    title: str
    kind: str
    pattern: str
    pattern_text: str
    raw_input: Any
    entity_id: str
    cast_id: str
    program: bool = False
    child: str | None = None
    """The display name of the child that makes the call, or None."""
    text: str = ""
    cwd: str | None = None
    locations: tuple[Location, ...] = ()
    diffs: tuple[Diff, ...] = ()
    parts: tuple[str, ...] = ()
    parts_text: str = ""
    edits: int = 0
    """The number of calls, if the question is about several edits together."""
    step: bool = False
    """Whether the call is an edit of a running program, whose edits may be allowed together."""
    host: str = ""
    """The host and port, if the question is whether a command may reach it."""
    registries: tuple[Host, ...] = ()
    """The hosts of the project's registries, if that host is one of them."""

    @property
    def allowing_text(self) -> str:
        """What "always allow" covers, for people."""
        return self.parts_text or self.pattern_text


class _OpenQuestion:
    """A question that waits for its answer. Cancelling ``scope`` withdraws it."""

    def __init__(self, decide: Decide) -> None:
        self.decide = decide
        self.scope = anyio.CancelScope()


class Permissions:
    """The permissions of one session. ``ask`` asks the user, and ``remember`` saves an "always" answer. ``route`` redirects a
    call to the client, for example to the files that are open in the editor. ``without_checkpoints`` is told why no file can be
    restored. ``state_dir`` has the hosts that commands of a project may
    reach (`recipes.trust.Ledger`).
    """

    def __init__(
        self,
        ask: Callable[[Question], Awaitable[Decision]],
        remember: Callable[[Grant], None],
        route: Callable[[GateInvocation], GateInvocation] | None = None,
        without_checkpoints: Callable[[str], None] = lambda why: None,
        state_dir: Path | None = None,
    ) -> None:
        self.ask = ask
        self.remember = remember
        self.route = route
        self._state_dir = state_dir
        self.without_checkpoints = without_checkpoints
        self.mode = modes.FALLBACK
        self.granted: list[Grant] = []
        self.hosts = NamedHosts()
        self._open: list[_OpenQuestion] = []
        self._edits: dict[str, Edits] = {}
        """The edits of the present utterance, by entity."""
        self._steps: dict[str, str] = {}
        """The program whose edits are allowed, by entity."""

    def forget(self, workspace: Path | None) -> int:
        """Delete all "always" answers, with those for the project. Returns how many there were."""
        count = len(self.granted) + len(self.hosts_of_project(workspace))
        self.granted.clear()
        if self._state_dir is not None and workspace is not None:
            from cantrip_acp.recipes.trust import Ledger

            Ledger(self._state_dir).forget_hosts(workspace)
        return count

    def settle_open_questions(self) -> None:
        """Withdraw the open questions that a new mode or a new "always" answer decides."""
        for each in self._open:
            if each.decide() is not None:
                each.scope.cancel()

    def coming(self, invocations: Sequence[GateInvocation], entity_id: str, depth: int) -> None:
        """Note the edits of an utterance, before the first of them runs. ``depth`` is 0 for the session's entity."""
        if depth == 0:
            # No child runs at this moment.
            self._edits.clear()
        self._edits.pop(entity_id, None)
        if len(invocations) > 1:
            self._edits[entity_id] = Edits(invocations)

    async def __call__(self, invocation: GateInvocation, proceed: Proceed) -> GateReply:
        """Intercept a gate call: redirect it to the client if possible, and refuse it or let it run."""
        if self.route is not None:
            invocation = self.route(invocation)
        gate = invocation.gate
        if modes.changes_something(gate):
            refused = await self._check_gate(invocation)
            if refused is not None:
                return refused
        if gate is BASH_NETWORK:
            return allowed(self._why_allowed(invocation))
        return await proceed(invocation)

    def _why_allowed(self, invocation: GateInvocation) -> str:
        """For how long a host of the network is allowed, for the record."""
        pattern = invocation.gate.covers(invocation.args)[0] if invocation.gate.covers is not None else ""
        if self.hosts.names(invocation):
            return "by --allow-host"
        if pattern in self.hosts_of_project(invocation.context.workspace):
            return "for this project"
        kept = any(each.tool == invocation.gate.name and each.pattern == pattern for each in self.granted)
        return "for this session" if kept else "for this command"

    def hosts_of_project(self, workspace: Path | None) -> frozenset[str]:
        """The patterns of the hosts that commands in this folder may reach, by answers for the project."""
        if self._state_dir is None or workspace is None:
            return frozenset()
        from cantrip_acp.recipes.trust import Ledger

        try:
            return Ledger(self._state_dir).hosts(workspace)
        except DefinitionError as error:
            log.warning("%s", error)
            return frozenset()

    async def program(self, call: ProgramCall) -> GateReply | None:
        """Check a command or a cell. Returns the refusal, or None if it may run."""
        shell = call.tool == "bash"
        parts = patterns.patterns_of_parts(call.text) if shell else []

        def decide() -> GateReply | bool | None:
            if modes.changes_nothing(self.mode) and _can_write(call):
                # A child that already runs still has the wards of its start.
                why = f"refused: the session is in {self.mode} mode, and this could change files"
                return _refusal("refused", why, f"the session is in {self.mode} mode")
            remembered = self._remembered_answer(
                call.tool, lambda p: patterns.command_matches(call.text, p) if shell else p == ALL
            )
            if remembered is None and parts:
                remembered = self._remembered_parts(call.tool, parts)
            if remembered is None or remembered is True:
                asks = self.mode == modes.ASK or (self.mode == modes.SANDBOXED and _has_open_network(call))
                return True if remembered or not asks or not _needs_permission(call) else None
            return remembered

        pattern, pattern_text = patterns.pattern_of_command(call.text) if shell else (ALL, "every cell")
        # Only what has no rule yet, so that the option names what is new.
        unknown = [part for part in parts if self._remembered_parts(call.tool, [part]) is None]
        question = Question(
            call_id=call.call_id,
            tool=call.tool,
            title=call.text,
            kind="execute",
            pattern=pattern,
            pattern_text=pattern_text,
            raw_input={"command" if shell else "code": call.text},
            entity_id=call.entity_id,
            cast_id=call.cast_id,
            program=True,
            text=call.text,
            cwd=str(call.circle.workspace) if call.circle.workspace is not None else None,
            parts=tuple(unknown),
            parts_text=patterns.describe_parts(unknown) if unknown else "",
        )
        return await self._decide(question, decide)

    async def _check_gate(self, invocation: GateInvocation) -> GateReply | None:
        """Check a gate call. Returns the refusal, or None if it may run."""
        gate, context = invocation.gate, invocation.context
        title, locations = _preview_of(invocation)
        (pattern, pattern_text), decide = self._rule_of(invocation, locations)
        now = decide()
        if now is not None:
            return now if isinstance(now, GateReply) else None
        question = Question(
            call_id=invocation.call_id,
            tool=gate.name,
            title=title,
            kind=gate.kind,
            pattern=pattern,
            pattern_text=f"{patterns.gate_word(gate.name)} {pattern_text}".strip(),
            raw_input=invocation.args,
            entity_id=context.entity_id,
            cast_id=context.cast_id,
            text=await _command_of(invocation),
            locations=locations,
            # Raises if the call would fail in any case. Then the user is not asked.
            diffs=await _proposed_diffs(invocation),
            step=_is_step(invocation, pattern),
        )
        if gate is BASH_NETWORK:
            question = await _about_host(invocation, question)
        together = await self._decide_together(invocation, question, decide)
        if together is not None:
            why = self._apply_answer(question, together, decide)
        else:
            why = await self._decide(question, decide, invocation.via, context.workspace)
        if why is None and _preview_of(invocation)[1] != locations:
            return _refusal(
                "refused",
                f"{gate.name} is refused: {title} now leads to another place than when the user was asked. Try again",
                f"{title} now leads to another place than when you were asked",
            )
        if why is None and context.known is not None:
            for diff in question.diffs:
                if diff.old_text is not None:
                    context.known.showed(diff.path, diff.old_text)
        return why

    def _rule_of(self, invocation: GateInvocation, locations: tuple[Location, ...]) -> tuple[tuple[str, str], Decide]:
        """The pattern of a gate call with its description, and the rule that decides the call without a question."""
        gate, context = invocation.gate, invocation.context
        paths = [place.path for place in locations]
        top = [str(folder) for folder in (context.workspace, *context.folders) if folder is not None]
        pattern, pattern_text = (
            patterns.pattern_of_paths(paths, top) if gate.covers is None else gate.covers(invocation.args)
        )

        def fits(stored_pattern: str) -> bool:
            return (
                stored_pattern in (ALL, pattern)
                if gate.covers is not None
                else patterns.paths_match(paths, stored_pattern)
            )

        def decide() -> GateReply | bool | None:
            if modes.changes_nothing(self.mode):
                return _refusal(
                    "refused",
                    f"{gate.name} is refused: the session is in {self.mode} mode, in which nothing is changed",
                    f"the session is in {self.mode} mode",
                )
            remembered = self._remembered_answer(gate.name, fits)
            if remembered is not None:
                return remembered
            if gate is BASH_NETWORK:
                known = self.hosts.names(invocation) or pattern in self.hosts_of_project(context.workspace)
                return True if known else None
            if _is_step(invocation, pattern) and self._steps.get(context.entity_id) == invocation.via:
                return True
            if (self.mode == modes.TRUSTED and self.hosts.names(invocation)) or (
                self.mode == modes.SANDBOXED and _stays_in_sandbox(invocation, paths)
            ):
                return True
            return None

        return (pattern, pattern_text), decide

    async def _decide_together(self, invocation: GateInvocation, question: Question, decide: Decide) -> Decision | None:
        """The answer for an edit that was asked about together with others, at the first edit that needs a question. None if
        it needs a question of its own."""
        edits = self._edits.get(question.entity_id)
        if edits is None or invocation.via is not None or not question.diffs:
            return None
        if not edits.asked:
            edits.asked = True
            shown, decides = await self._edits_to_ask(edits, invocation, question)
            if shown:
                shown.insert(0, Edit(invocation.gate.name, invocation.args, question.diffs))
                edits.shown = shown
                edits.decision = await self._ask_user(
                    _question_about(shown, question), lambda: self._all_decided([decide, *decides])
                )
                if edits.decision is not None and edits.decision.answer == "each":
                    edits.decision = None
        return edits.take(invocation, question.diffs)

    async def _edits_to_ask(
        self, edits: Edits, first: GateInvocation, question: Question
    ) -> tuple[list[Edit], list[Decide]]:
        """The later edits of the utterance that would also need a question, each with its changes after those before it."""
        texts = {diff.path: diff.new_text for diff in question.diffs}
        shown, decides = [], []
        for call in edits.later(first):
            routed = self.route(call) if self.route is not None else call
            _, locations = _preview_of(routed)
            _, decide = self._rule_of(routed, locations)
            try:
                same = {path: text for path, text in texts.items() if any(path == place.path for place in locations)}
                diffs = follow(call, same) if same else await _proposed_diffs(routed)
            except GateError:
                # It fails by itself when it runs.
                continue
            if not diffs:
                # What it changes is not known, so everything after it in these files is not known either.
                continue
            texts |= {diff.path: diff.new_text for diff in diffs}
            if decide() is None:
                shown.append(Edit(call.gate.name, call.args, diffs))
                decides.append(decide)
        return shown, decides

    @staticmethod
    def _all_decided(decides: Sequence[Decide]) -> GateReply | bool | None:
        return None if any(decide() is None for decide in decides) else True

    def _remembered_answer(self, tool: str, fits: Callable[[str], bool]) -> GateReply | bool | None:
        """The "always" answer for a call, or None. A rejection wins over a permission."""
        remembered = [g.allowed for g in self.granted if g.tool == tool and fits(g.pattern)]
        if not remembered:
            return None
        why = f"{tool} is refused: the user does not want this in this session. Go on without it"
        return all(remembered) or _refusal("rejected_always", why)

    def _remembered_parts(self, tool: str, parts: Sequence[str]) -> GateReply | bool | None:
        """The "always" answers for the parts of a command. A rejected part rejects it, and each part must be allowed."""
        answers = [self._remembered_answer(tool, part.__eq__) for part in parts]
        rejected = next((each for each in answers if isinstance(each, GateReply)), None)
        return rejected if rejected is not None else True if all(answers) else None

    async def _decide(
        self, question: Question, decide: Decide, via: str | None = None, workspace: Path | None = None
    ) -> GateReply | None:
        """Decide a call by the state of the session, or by the user's answer. Returns the refusal, or None."""
        while (now := decide()) is None:
            decision = await self._ask_user(question, decide)
            if decision is not None:
                if decision.answer == "allow_step" and question.step and via is not None:
                    self._steps[question.entity_id] = via
                if decision.answer in ("allow_project", "allow_registries"):
                    self._allow_hosts(question, decision.answer, workspace)
                return self._apply_answer(question, decision, decide)
        return now if isinstance(now, GateReply) else None

    async def _ask_user(self, question: Question, decide: Decide) -> Decision | None:
        """Ask the user. Returns the answer, or None if the question was withdrawn."""
        waiting = _OpenQuestion(decide)
        self._open.append(waiting)
        try:
            with waiting.scope:
                return await self.ask(question)
        finally:
            self._open.remove(waiting)
        return None

    def _allow_hosts(self, question: Question, answer: str, workspace: Path | None) -> None:
        """Allow a host, or all registries, in every session of the project; in this session if that cannot be stored."""
        found = [pattern_of_host(*each) for each in question.registries] if answer == "allow_registries" else []
        hosts = found or [question.pattern]
        if self._state_dir is not None and workspace is not None:
            from cantrip_acp.recipes.trust import Ledger

            try:
                Ledger(self._state_dir).allow_hosts(workspace, hosts)
                self.settle_open_questions()
                return
            except (DefinitionError, OSError) as error:
                log.warning("the answer holds for this session alone: %s", describe(error))
        for pattern in hosts:
            self.granted.append(Grant(question.tool, pattern, True))
            self.remember(self.granted[-1])
        self.settle_open_questions()

    def _apply_answer(self, question: Question, decision: Decision, decide: Decide) -> GateReply | None:
        """Apply an answer. Returns the refusal of the call, or None if it may run."""
        answer, reason = decision.answer, decision.reason
        if answer in ("allow_always", "reject_always"):
            allowed = answer == "allow_always"
            for pattern in (question.parts if allowed else ()) or (question.pattern,):
                self.granted.append(Grant(question.tool, pattern, allowed))
                # A pattern with a secret, which is masked where it is saved, matches nothing when the session is loaded again.
                self.remember(self.granted[-1])
            self.settle_open_questions()
        if answer.startswith("allow"):
            # The user may have switched to a mode in which no answer allows this call.
            now = decide()
            return now if isinstance(now, GateReply) else None
        if answer == "unasked":
            return _refusal(
                "unasked",
                f"{question.tool} was not run: it needs the user's permission, and the client cannot ask for it. The user "
                "can switch the session to another mode",
            )
        refused = f"the user refused this: {' '.join(question.title.split())[:200]}."
        advice = (
            f"The user's reason: {reason}\nDo what the reason asks, and do not try the same in another way"
            if reason
            else "Do not try the same in another way; go on without it, or say what you would need"
        )
        return _refusal(
            "rejected_always" if answer == "reject_always" else "rejected",
            f"{refused} {advice}",
            reason=reason,
        )


def _is_step(invocation: GateInvocation, pattern: str) -> bool:
    """Whether a call is an edit of a program, and not of a protected file, which always has its own question."""
    return invocation.via is not None and invocation.gate.kind == "edit" and not pattern.startswith("=")


def _question_about(shown: Sequence[Edit], first: Question) -> Question:
    """One question about several edits. ``first`` is the question about the first alone, and its call shows them all."""
    diffs = tuple(diff for edit in shown for diff in edit.diffs)
    files = len({diff.path for diff in diffs})
    title = f"{len(shown)} edits in {files} file{'' if files == 1 else 's'}"
    places = tuple(dict.fromkeys(Location(diff.path) for diff in diffs))
    return msgspec.structs.replace(
        first,
        title=title,
        kind="edit",
        pattern="",
        pattern_text="",
        raw_input=None,
        text="",
        locations=places,
        diffs=diffs,
        edits=len(shown),
    )


def _preview_of(invocation: GateInvocation) -> tuple[str, tuple[Location, ...]]:
    """Title and locations of a call. If there is no preview, the title is the name of the gate."""
    gate = invocation.gate
    if gate.preview is None:
        return gate.name, ()
    try:
        preview = gate.preview(invocation.args, invocation.context)
        return preview.title or gate.name, tuple(preview.locations)
    except Exception as error:  # noqa: BLE001
        # When the gate runs, it reports what is wrong with the arguments.
        log.debug("no preview of %s: %s", gate.name, describe(error))
        return gate.name, ()


async def _command_of(invocation: GateInvocation) -> str:
    """The full command line that a call would run. Raises `GateError` if the call would fail in any case."""
    gate = invocation.gate
    if gate.runs is not None:
        return await anyio.to_thread.run_sync(gate.runs, invocation.args, invocation.context)
    command = invocation.args.get("command") if gate.kind == "execute" else None
    return command if isinstance(command, str) else ""


def _needs_permission(call: ProgramCall) -> bool:
    """Whether the mode `ask` asks about this program.

    It asks about a cell that could write files, and about a command. It does not ask about a command that only calls a
    gate, because that gate call is checked separately.
    """
    if call.tool != "bash":
        return bool(call.circle.wards.code_writable_paths)
    from cantrip_acp.text import shell_parse

    words = shell_parse.plain_words(call.text)
    if words is None:
        return True
    from cantrip_acp.mediums.bash import _SHELL_WORDS

    name = words[0]
    if name.startswith("cantrip_") and name.removeprefix("cantrip_") in call.circle.tool_names:
        return False
    return name not in call.circle.tool_names or name in _SHELL_WORDS


def _has_open_network(call: ProgramCall) -> bool:
    """Whether a command reaches every host. With a list, or without a network, the proxy asks about a host when it is wanted."""
    return call.tool == "bash" and call.circle.wards.bash_network is True


def _stays_in_sandbox(invocation: GateInvocation, paths: Sequence[str]) -> bool:
    """Whether a call changes only what the sandbox could change anyway, and reaches no host that was not asked about."""
    wards = invocation.context.wards
    if invocation.gate.name in SANDBOXED:
        return wards.bash_network is not True
    return bool(paths) and patterns.writable_in_sandbox(paths, wards)


async def _about_host(invocation: GateInvocation, question: Question) -> Question:
    """The question about a host, with the registries of the project if the host is one of them."""
    host, workspace = shown_host(invocation.args), invocation.context.workspace
    found: tuple[Host, ...] = ()
    if workspace is not None:
        from cantrip_acp.gates.web.registries import registries_of

        found = await anyio.to_thread.run_sync(registries_of, workspace)
    if (invocation.args["host"], invocation.args["port"]) not in found or len(found) < 2 or invocation.args["address"]:
        found = ()
    asked = {name: value for name, value in invocation.args.items() if name != "command" and value}
    return msgspec.structs.replace(question, pattern_text=host, host=host, registries=found, raw_input=asked)


def _can_write(call: ProgramCall) -> bool:
    wards = call.circle.wards
    return bool(wards.bash_writable_paths if call.tool == "bash" else wards.code_writable_paths)


async def _proposed_diffs(invocation: GateInvocation) -> tuple[Diff, ...]:
    """The file changes that a call would make. Raises `GateError` if the call would fail in any case."""
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
        # When the gate runs, it reports this problem with a better message.
        return ()
