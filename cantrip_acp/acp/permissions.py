"""Who may do what in a session: the interceptor that asks its user, and what the user said for good.

It stands in the chain of every entity of the session, children among them, and knows nothing of the wire: it makes a
`Question` and waits for an `Answer`. A refusal is an observation. What is allowed or refused for good holds for a gate and
a pattern of paths (a folder and what is below it; at the top of the workspace that folder's own files), for a host that is
fetched from, or for the words by which a command begins; a command that is more than one plain command is remembered by its
whole text alone.
"""

from __future__ import annotations

import inspect
import logging
import os.path
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import anyio.to_thread
import msgspec

from cantrip_acp.acp import modes
from cantrip_acp.acp.store import Granted
from cantrip_acp.errors import GateError
from cantrip_acp.events import Diff, Location
from cantrip_acp.gates.contract import GateReply

if TYPE_CHECKING:
    from cantrip_acp.gates.contract import GateInvocation, Proceed, ProgramCall
    from cantrip_acp.wards import Wards

log = logging.getLogger(__name__)

Answer = Literal["allow_once", "allow_always", "reject_once", "reject_always", "unasked"]
"""What came of a question; unasked where the client could not be asked."""

ALL = "*"


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """A call that needs its user's word. ``pattern`` is what would be remembered, ``shown`` how that is said to people.

    ``program`` is true of commands and cells, whose tool call nobody has heard of yet.
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
    text: str = ""
    cwd: str | None = None
    locations: tuple[Location, ...] = ()
    diffs: tuple[Diff, ...] = ()


class Permissions:
    """The permissions of one session. ``ask`` puts a question to its user; ``remember`` keeps what was said for good."""

    def __init__(self, ask: Callable[[Question], Awaitable[Answer]], remember: Callable[[Granted], None]) -> None:
        self.ask = ask
        self.remember = remember
        self.mode = modes.DEFAULT
        self.granted: list[Granted] = []

    lend: Callable[[GateInvocation], GateInvocation] | None = None
    """Gives a call over to the client where it has something better than we do: the files that are open in it."""

    async def __call__(self, invocation: GateInvocation, proceed: Proceed) -> GateReply:
        """The link in the chain of a gate's call."""
        if self.lend is not None:
            invocation = self.lend(invocation)
        gate = invocation.gate
        if modes.changes_something(gate):
            why = await self._gate(invocation)
            if why is not None:
                return GateReply(why, is_error=True, annotations={"permission": "refused"})
        return await proceed(invocation)

    async def program(self, call: ProgramCall) -> str | None:
        """Why a command or a cell may not run; None where it may."""
        if self.mode == modes.READ_ONLY and _writable(call):
            # A child that lives already has the wards that it was born with.
            return "refused: the session is in read-only mode, and this could change files"
        if self.mode != modes.ASK or not _asks(call):
            return None
        from cantrip_acp.acp import commandline

        prefix = commandline.prefix(call.text) if call.tool == "bash" else None
        pattern = f"={call.text}" if call.tool == "bash" else ALL
        shown = "this very command" if call.tool == "bash" else "every cell"
        if prefix is not None:
            pattern, shown = f"{prefix} {ALL}", f"commands that begin with `{prefix}`"
        question = Question(
            call_id=call.call_id,
            tool=call.tool,
            title=call.text,
            kind="execute",
            pattern=pattern,
            shown=shown,
            raw_input={"command" if call.tool == "bash" else "code": call.text},
            entity_id=call.entity_id,
            cast_id=call.cast_id,
            program=True,
            text=call.text,
            cwd=str(call.circle.workspace) if call.circle.workspace is not None else None,
        )
        verdict = self._said(call.tool, lambda p: call.tool != "bash" or _command_fits(call.text, p))
        return await self._decided(question, verdict)

    async def _gate(self, invocation: GateInvocation) -> str | None:
        gate, context = invocation.gate, invocation.context
        if self.mode == modes.TRUSTED:
            return None
        if self.mode == modes.READ_ONLY:
            return f"{gate.name} is refused: the session is in read-only mode, in which nothing is changed"
        title, locations = _seen(invocation)
        paths = [place.path for place in locations]
        if self.mode == modes.SANDBOXED and paths and _free(paths, context.wards):
            return None
        top = [str(folder) for folder in (context.workspace, *context.folders) if folder is not None]
        pattern, shown = _pattern(paths, top) if gate.covers is None else gate.covers(invocation.args)
        question = Question(
            call_id=invocation.call_id,
            tool=gate.name,
            title=title,
            kind=gate.kind,
            pattern=pattern,
            shown=f"{gate.name} {shown}".strip(),
            raw_input=invocation.args,
            entity_id=context.entity_id,
            cast_id=context.cast_id,
            text=_command_of(invocation),
            locations=locations,
            diffs=await _proposed(invocation),
        )
        if gate.covers is not None:
            verdict = self._said(gate.name, lambda p: p in (ALL, pattern))
        else:
            verdict = self._said(
                gate.name, lambda p: p == ALL or (bool(paths) and all(_fits(path, p) for path in paths))
            )
        why = await self._decided(question, verdict)
        if why is None and self._now() == modes.READ_ONLY:
            return f"{gate.name} is refused: the session was switched to read-only mode meanwhile"
        return why

    def _now(self) -> str:
        """The mode, which may be another one after a question."""
        return self.mode

    def _said(self, tool: str, fits: Callable[[str], bool]) -> bool | None:
        """What was said for good of such a call, a refusal before a permission; None where nothing was."""
        said = [g.allowed for g in self.granted if g.tool == tool and fits(g.pattern)]
        return None if not said else all(said)

    async def _decided(self, question: Question, verdict: bool | None) -> str | None:
        if verdict is True:
            return None
        if verdict is False:
            return f"{question.tool} is refused: the user does not want this in this session. Go on without it"
        answer = await self.ask(question)
        if answer in ("allow_always", "reject_always"):
            granted = Granted(question.tool, question.pattern, answer == "allow_always")
            self.granted.append(granted)
            self.remember(granted)
        if answer.startswith("allow"):
            return None
        if answer == "unasked":
            return (
                f"{question.tool} was not run: it needs the user's permission, and the client cannot ask for it. The user "
                "can switch the session to another mode"
            )
        return (
            f"the user refused this: {' '.join(question.title.split())[:200]}. Do not try the same in another way; go on "
            "without it, or say what you would need"
        )


def _seen(invocation: GateInvocation) -> tuple[str, tuple[Location, ...]]:
    """Title and locations of a call; its own name alone where its arguments have no preview."""
    gate = invocation.gate
    if gate.preview is None:
        return gate.name, ()
    try:
        seen = gate.preview(invocation.args, invocation.context)
    except Exception:
        # The gate itself says what is wrong with them.
        log.debug("no preview of %s", gate.name, exc_info=True)
        return gate.name, ()
    return seen.title or gate.name, tuple(seen.locations)


def _command_of(invocation: GateInvocation) -> str:
    """The command line of a gate that runs one, to be shown whole."""
    command = invocation.args.get("command") if invocation.gate.kind == "execute" else None
    return command if isinstance(command, str) else ""


def _free(paths: list[str], wards: Wards) -> bool:
    """Whether the sandbox could write all of these itself."""
    folders = [os.path.realpath(folder) for folder in (*wards.bash_writable_paths, *wards.code_writable_paths)]
    return all(any(_within(os.path.realpath(path), folder) for folder in folders) for path in paths)


def _asks(call: ProgramCall) -> bool:
    """Whether a program of this medium is asked for: a command, unless it is nothing but a gate's call (which asks for itself
    where it writes), and a cell that could write files."""
    if call.tool != "bash":
        return bool(call.circle.wards.code_writable_paths)
    from cantrip_acp.acp import commandline

    words = commandline.plain(call.text)
    if words is None:
        return True
    from cantrip_acp.mediums.bash import _SHELL_WORDS

    name = words[0]
    if name.startswith("cantrip_") and name.removeprefix("cantrip_") in call.circle.tool_names:
        return False
    return name not in call.circle.tool_names or name in _SHELL_WORDS


def _writable(call: ProgramCall) -> bool:
    wards = call.circle.wards
    return bool(wards.bash_writable_paths if call.tool == "bash" else wards.code_writable_paths)


def _command_fits(command: str, pattern: str) -> bool:
    """A pattern is ``=`` and a whole command, or the words at the beginning and `` *``."""
    if pattern.startswith("="):
        return pattern[1:] == command
    from cantrip_acp.acp import commandline

    words = pattern.removesuffix(f" {ALL}")
    return words != pattern and commandline.begins_with(command, words)


def _pattern(paths: list[str], tops: list[str]) -> tuple[str, str]:
    """What would be remembered of a write to these paths, and how it is said: their common folder, or any call."""
    if not paths:
        return ALL, "(any call)"
    folder = os.path.commonpath([os.path.dirname(path) for path in paths])
    if folder in tops or not any(_within(folder, top) for top in tops):
        # A whole project, or somewhere else: never everything below by one word.
        return os.path.join(folder, ALL), f"for files directly in {folder}"
    top = max((t for t in tops if _within(folder, t)), key=len)
    return os.path.join(folder, "**"), f"for files in {os.path.relpath(folder, top)}{os.sep}"


def _fits(path: str, pattern: str) -> bool:
    folder, name = os.path.split(pattern)
    if name == "**":
        return _within(path, folder)
    return name == ALL and os.path.dirname(path) == folder


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


async def _proposed(invocation: GateInvocation) -> tuple[Diff, ...]:
    """The changes that a call would make; none where they cannot be told, since the call itself will say why."""
    proposes = invocation.gate.proposes
    if proposes is None:
        return ()
    args: Mapping[str, Any] = invocation.args
    try:
        if inspect.iscoroutinefunction(proposes):
            found: tuple[Diff, ...] = await proposes(args, invocation.context)
            return found
        return await anyio.to_thread.run_sync(proposes, args, invocation.context)  # type: ignore[arg-type]
    except (GateError, OSError, UnicodeError):
        return ()
