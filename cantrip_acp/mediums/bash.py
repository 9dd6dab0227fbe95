"""The bash medium: runs one shell command at a time, always in a sandbox.

No process of a command outlives it. Files stay where ``bash_writable_paths`` allows writing. Gates are commands at
the front of PATH (`read_file notes.txt`). Each one also exists with the prefix ``cantrip_``, because a shell has its
own `echo`, `test` and `done`. `cantrip_done TEXT` ends the cast.
"""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import msgspec

from cantrip_acp.gates.contract import NOTHING
from cantrip_acp.gates.ports import MediumBase
from cantrip_acp.gates.registry import ALIASES, DELEGATION
from cantrip_acp.mediums.code.prompt import seconds
from cantrip_acp.mediums.contract import SessionBase
from cantrip_acp.mediums.program_events import ProgramEvents
from cantrip_acp.types.errors import SandboxError, SandboxMissing
from cantrip_acp.types.events import signal_name
from cantrip_acp.types.messages import ToolCall, ToolDefinition
from cantrip_acp.types.records import Output
from cantrip_acp.types.styled import Styled, join

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cantrip_acp.gates.contract import CircleView, Gate
    from cantrip_acp.gates.ports import TurnContext
    from cantrip_acp.gates.wards import Wards
    from cantrip_acp.sandbox import Outcome, Running, Sandbox

_PARAMETERS: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "command": {"type": "string", "description": "The shell command, as you would type it; several lines are fine."}
    },
    "required": ["command"],
    "additionalProperties": False,
}
_SUBMIT = "SUBMIT: "


class BashMedium(MediumBase):
    """Commands in a shell. The sandbox's rules come from the circle's wards alone."""

    name = "bash"
    tool: str | None = "bash"
    tag = "bash"

    def tools(self, circle: CircleView) -> tuple[ToolDefinition, ...]:
        text = (
            "Run one shell command in the sandbox and see its output and exit status. Each call is a new shell in the "
            "workspace: directory and variables do not carry over, files do."
        )
        return (ToolDefinition(name="bash", description=text, parameters=_PARAMETERS),)

    def presentation(self, circle: CircleView) -> str | None:
        return present(circle)

    async def open(self, circle: CircleView, entity_id: str) -> BashSession:
        """Open a session.

        Raises `SandboxMissing` if this machine cannot run a sandbox, `DefinitionError` for wards that cannot be
        enforced.
        """
        from cantrip_acp.sandbox import ensure_checked

        await ensure_checked()
        # In a thread, because scanning a large workspace takes time.
        return await anyio.to_thread.run_sync(BashSession, circle)

    def arguments(self, program: str) -> str:
        """The arguments of a tool call with this command."""
        return msgspec.json.encode({"command": program}).decode()

    def code(self, call: ToolCall) -> str | None:
        command = _command(call.args)
        return command if isinstance(command, str) else None

    def observe(self, output: Output) -> str:
        parts = []
        if output.stdout:
            parts.append(output.stdout)
        if output.stderr:
            parts.append(f"[stderr]\n{output.stderr}")
        text = "\n".join(p.rstrip("\n") for p in parts)
        notes = []
        if output.error:
            notes.append(output.error)
        if output.exit_code:
            notes.append(f"exit status {output.exit_code}{_signal_note(output.exit_code)}")
        if output.truncated:
            notes.append("output was shortened in the middle; write it to a file and look at parts of it")
        if not text and not notes:
            return "(no output)"
        return "\n".join(filter(None, [text, *(f"[{n}]" for n in notes)]))


class BashSession(SessionBase):
    """The shell of one entity: a sandbox, made with the first command, that runs commands one after the other."""

    def __init__(self, circle: CircleView, make: Callable[..., Sandbox] | None = None) -> None:
        """``make`` builds the sandbox. Only tests of the loop pass it; circles, recipes and settings cannot."""
        from cantrip_acp.files.paths import persistent_home, private_folders
        from cantrip_acp.gates.interaction.read_context import as_text
        from cantrip_acp.gates.sandbox_options import sandbox_options
        from cantrip_acp.sandbox import GateWire, Sandbox, runtime

        self._circle = circle
        gates = {shown: circle.gates[name] for shown, name in circle.tool_names.items()} | dict(
            circle.removed_delegation_gates
        )
        self._wire = GateWire(gates, runtime().make_folder("wire"), aliases=ALIASES) if gates else None
        self.sandbox: Sandbox = (make or Sandbox)(
            sandbox_options(circle.wards),
            circle.workspace,
            wire=self._wire,
            home_source=persistent_home(circle.workspace) if circle.wards.bash_home == "persistent" else None,
            private=private_folders(),
            more_readable=tuple(os.path.realpath(folder) for folder in circle.folders),
        )
        self._lock = anyio.Lock()
        self._running: list[Running] = []
        if circle.data is not NOTHING and self._wire is not None:
            with open(
                os.path.join(self._wire.folder, "context"), "w", encoding="utf-8", errors="surrogatepass"
            ) as file:
                file.write(as_text(circle.data))

    async def run(self, call: ToolCall, turn: TurnContext) -> Output:
        """Run the command of one call. Its errors are in the output; `SandboxMissing` is raised."""
        command = _command(call.args)
        if not isinstance(command, str):
            return Output(error=command.text)
        async with self._lock:
            try:
                return await self._run(command, call, turn)
            finally:
                self._running = []

    async def _run(self, command: str, call: ToolCall, turn: TurnContext) -> Output:
        from cantrip_acp.gates.web.network_question import asker
        from cantrip_acp.sandbox import explain_refusals

        report = ProgramEvents(call, turn, "bash")
        await report.start(command, self._circle)
        running = self._running = []

        async def gate(name: str, args: dict[str, object]) -> tuple[object, bool]:
            if _finished(turn):
                return "the cast is finished: no gate can be called any more", True
            # The time limit of the command does not count while a child runs.
            with running[0].pause_timeout() if name in DELEGATION else nullcontext():
                record = await turn.gate(name, args, via=call.id)
            if _finished(turn):
                running[0].end("done")
                # Give no answer: a dying shell that got one would run on until the kill reaches it (D-003).
                await anyio.sleep_forever()
            return record.result, record.is_error

        self.sandbox.join(turn.shared_network())
        try:
            outcome = await self.sandbox.run(
                command,
                listener=report.output,
                environment=self._environment(turn),
                call=gate,
                started=running.append,
                ask=asker(turn, call.id),
            )
        except SandboxMissing:
            raise
        except SandboxError as error:
            output = Output(error=str(error))
            await report.end(output)
            return output
        except anyio.get_cancelled_exc_class():
            if running:
                partial = _output(running[0].partial(), "the command was stopped by a cancel")
                report.interrupted(partial, running[0].rest())
            else:
                report.interrupted(Output(error="the command was not run: a cancel came first"), {})
            raise
        refused = explain_refusals(lambda: running[0].policy, f"{outcome.stdout}\n{outcome.stderr}")
        if refused and not turn.finished:
            await report.output("stderr", Styled(refused))
            end = "" if not outcome.stderr or outcome.stderr.endswith("\n") else "\n"
            stderr = join([Styled(outcome.stderr, outcome.styles[1]), Styled(f"{end}{refused}")])
            outcome = replace(outcome, stderr=stderr.text, styles=(outcome.styles[0], stderr.changes))
        output = _output(outcome, _why(outcome, turn))
        output = await report.end(output)
        if turn.wards.bash_submit and output.exit_code == 0 and outcome.last_line.startswith(_SUBMIT.rstrip()):
            await self._submit(outcome.last_line, call, turn)
        return output

    async def _submit(self, line: str, call: ToolCall, turn: TurnContext) -> None:
        """Turn the output line ``SUBMIT: text`` into a call of done, if the ward allows it."""
        if not turn.finished:
            await turn.gate("done", {"answer": line.removeprefix(_SUBMIT.rstrip()).strip()}, via=call.id)

    def _environment(self, turn: TurnContext) -> dict[str, str]:
        if self._circle.data is NOTHING or self._wire is None:
            return _trace(turn)
        return {**_trace(turn), "CANTRIP_CONTEXT": f"{self._wire.inside}/context"}

    def so_far(self) -> Output | None:
        """The output of the running command since the last call; None if none runs."""
        if not self._running:
            return None
        stdout, stderr, truncated = self._running[0].so_far()
        return Output.of(stdout, stderr, truncated=truncated, unfinished=True)

    @property
    def sandbox_pid(self) -> int:
        return self._running[0].pid if self._running else 0

    def gates_added(self, gates: Mapping[str, Gate]) -> None:
        """Add gates as commands, also for a command that is already running."""
        if self._wire is not None:
            self._wire.set_added_gates(gates)

    async def close(self) -> None:
        if self._wire is not None:
            self._wire.remove()


def present(circle: CircleView) -> str:
    """The capability block. It depends only on the circle, so it is the same on every query (CIRCLE-11)."""
    from cantrip_acp.sandbox import gate_usage

    wards = circle.wards
    lines = [
        "You act by running shell commands with the `bash` tool. Each call is one command in a fresh shell inside a sandbox.",
        "",
        "What holds there:",
    ]
    if circle.workspace is not None:
        lines.append(f"- The workspace is {circle.workspace}. Commands start there and can read it.")
    if circle.folders:
        lines.append(f"- These folders belong to it and can be read as well: {', '.join(map(str, circle.folders))}.")
    lines.append(f"- {_writable_text(wards, circle)}")
    lines += [
        "- Nothing else outlives a command: no variables, no directory changes, no background processes"
        + (", except what `start` starts" if "start" in circle.gates else "")
        + ". "
        f"{_temporary()} and the home "
        + (
            "folder are private and empty at the start of each command."
            if wards.bash_home == "private"
            else f"folder are private; the home folder keeps its files, {_temporary()} is emptied after each command."
        ),
        f"- {_git_text(wards)}",
        "- Editor, agent and shell configuration (.vscode, .idea, .zed, .cantrip, .mcp.json, .bashrc …) is read-only, present or "
        "not. A .env has masked values; other files with secrets (keys) read as a note that they are hidden, unless git "
        "tracks them.",
        f"- {_network_text(wards)}",
        "- Standard input is empty: a program that asks a question gets no answer.",
        f"- A command may run {seconds(wards.bash_timeout_ms)}, and then it is stopped with its output kept. "
        f"Of its output you see up to {wards.bash_max_output_bytes:,} bytes, the beginning and the end.",
    ]
    commands = []
    for shown, name in circle.tool_names.items():
        gate = circle.gates[name]
        command = f"cantrip_{shown}" if shown in _SHELL_WORDS else shown
        first = gate.description.split("\n")[0].strip()
        commands.append(f"- `{gate_usage(gate, command)}`" + (f": {first}" if first else ""))
    if circle.data is not NOTHING:
        lines += ["- The data that was given with the task is in the file `$CANTRIP_CONTEXT` (read-only)."]
    if commands:
        lines += [
            "",
            "These commands reach outside of the sandbox for you. Relative paths in their arguments start at the workspace, "
            "wherever the shell is. `NAME --help` tells more; each is also there as `cantrip_NAME`:",
            *commands,
        ]
    if "done" in circle.gates:
        lines += ["", "When the task is finished, run `cantrip_done 'your answer'`: it ends the task at once."]
    if wards.bash_submit:
        lines += ["A command that succeeds and whose last line of output is `SUBMIT: your answer` ends it as well."]
    return "\n".join(lines)


_SHELL_WORDS = frozenset(
    {
        "alias", "bg", "bind", "break", "builtin", "case", "cd", "command", "compgen", "complete", "continue",
        "declare", "dirs", "disown", "do", "done", "echo", "elif", "else", "enable", "esac", "eval", "exec", "exit",
        "export", "false", "fc", "fg", "fi", "for", "function", "getopts", "hash", "help", "history", "if", "in",
        "jobs", "kill", "let", "local", "logout", "mapfile", "popd", "printf", "pushd", "pwd", "read", "readarray",
        "readonly", "return", "select", "set", "shift", "shopt", "source", "suspend", "test", "then", "time",
        "times", "trap", "true", "type", "typeset", "ulimit", "umask", "unalias", "unset", "until", "wait", "while",
    }
)  # fmt: skip
"""Words that the shell uses itself. A gate with such a name is reached only by its ``cantrip_`` form."""


def _temporary() -> str:
    """The private folder for temporary files. On macOS nothing can be shown in the place of /tmp."""
    return "$TMPDIR" if sys.platform == "darwin" else "/tmp"


def _git_text(wards: Wards) -> str:
    if not wards.git_writes or not wards.bash_writable_paths:
        return "Version control data (.git) is read-only."
    return (
        "git works (add, commit, branch, stash, merge, rebase, worktree). Hooks, and settings that could run a program, stay as "
        "they were after a command; a line of the output says so. Commits are not signed."
    )


def _writable_text(wards: Wards, circle: CircleView) -> str:
    paths = wards.bash_writable_paths
    if not paths:
        return f"No file outside of {_temporary()} and the home folder can be written."
    if circle.workspace is not None and str(circle.workspace) in paths:
        others = [p for p in paths if p != str(circle.workspace)]
        more = f", and so can {', '.join(others)}" if others else ""
        return f"Files in the workspace can be written{more}; what is written stays."
    return f"Files can be written in {', '.join(paths)}; what is written there stays. Everything else is read-only."


def _network_text(wards: Wards) -> str:
    network = wards.bash_network
    if network is True:
        return "The network is available."
    if not network:
        return (
            "There is no network, not even to this machine. A request by HTTP or HTTPS to another host waits until the user, if "
            "there is one to ask, has allowed that host; else it fails with status 403 and the reason."
        )
    assert isinstance(network, tuple)
    return (
        f"Of the network these hosts can be reached, by HTTP and TLS and nothing else: {', '.join(network)}. A proxy "
        "does it, which curl, git, pip, npm and most programs find by themselves (HTTP_PROXY, HTTPS_PROXY). Another "
        "host waits until the user, if there is one to ask, has allowed it, and is else refused with status 403; names cannot "
        "be looked up and other connections fail."
    )


class _Malformed:
    """The error for arguments that hold no command."""

    def __init__(self, text: str) -> None:
        self.text = text


def _command(args: str) -> str | _Malformed:
    try:
        value = msgspec.json.decode(args) if args.strip() else {}
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        return _Malformed(f"the arguments of bash are not valid JSON: {error}")
    if not isinstance(value, dict):
        return _Malformed(f'bash takes a JSON object such as {{"command": "ls"}}, not {type(value).__name__}')
    command = value.get("command")
    if command is None:
        return _Malformed("missing required argument 'command' of bash")
    if not isinstance(command, str):
        return _Malformed(f"argument 'command' of bash must be text, not {type(command).__name__}")
    unknown = sorted(set(value) - {"command"})
    if unknown:
        return _Malformed(f"bash takes 'command' alone; unknown: {', '.join(map(repr, unknown))}")
    if not command.strip():
        return _Malformed("the command is empty")
    if "\0" in command:
        return _Malformed("a command cannot hold a NUL character")
    return command


def _finished(turn: TurnContext) -> bool:
    """Whether done has succeeded. This may become true during an await."""
    return turn.finished


def _output(outcome: Outcome, error: str | None) -> Output:
    return Output.of(
        Styled(outcome.stdout, outcome.styles[0]),
        Styled(outcome.stderr, outcome.styles[1]),
        exit_code=outcome.exit_code,
        error=error,
        truncated=outcome.truncated,
        timed_out=outcome.timed_out or msgspec.UNSET,
    )


def _why(outcome: Outcome, turn: TurnContext) -> str | None:
    """A message to add to the exit status, or None."""
    if turn.finished:
        return None
    if outcome.ended_because is None:
        return outcome.warning
    if outcome.timed_out:
        return (
            f"timed out after {seconds(turn.wards.bash_timeout_ms)} (bash_timeout_ms); the command and everything that it "
            "started was killed, its output until then is above"
        )
    return f"the command was killed: {outcome.ended_because}"


def _trace(turn: TurnContext) -> dict[str, str]:
    return {"TRACEPARENT": turn.traceparent}


def _signal_note(exit_code: int) -> str:
    name = signal_name(exit_code)
    return f", {name}" if name is not None else ""
