"""The gate ``shell``: runs one command in the circle's sandbox, for entities whose medium is not a shell.

It has the wards of a command of the bash medium, and the same undo. Each entity has one sandbox for its calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import anyio

from cantrip_acp.gates.contract import Gate, GateContext, GateReply, GateSession
from cantrip_acp.gates.registry import TIMEOUT
from cantrip_acp.types.errors import CantripError, GateError
from cantrip_acp.types.events import signal_name
from cantrip_acp.types.records import Location

if TYPE_CHECKING:
    from cantrip_acp.gates.contract import CircleView, GateRegistrar
    from cantrip_acp.gates.wards import Wards
    from cantrip_acp.sandbox import Outcome, Running, Sandbox


class CommandSession:
    """Runs commands of a gate for one entity, one after the other, in one sandbox."""

    def __init__(self, circle: CircleView) -> None:
        self._sandbox: Sandbox | None = None
        self._wards: Wards | None = None
        self._lock = anyio.Lock()

    async def run(self, command: str, context: GateContext, timeout_ms: int, **options: Any) -> Outcome:
        """Run a command. ``options``: further arguments of `Sandbox.run`.

        A host that is not listed is a question, whose time does not count. Raises `GateError` if the command cannot run.
        """
        from cantrip_acp.gates.web.network_question import asker

        try:
            async with self._lock:
                sandbox = await self._get_sandbox(context)
                return await sandbox.run(
                    command, timeout_ms=timeout_ms, ask=asker(context.turn, context.call_id), **options
                )
        except GateError:
            raise
        except CantripError as problem:
            raise GateError(f"the command cannot be run: {problem}") from None

    async def _get_sandbox(self, context: GateContext) -> Sandbox:
        """Return the sandbox for the current wards, which may have changed since the last command."""
        if self._sandbox is None or self._wards != context.wards:
            from cantrip_acp.gates.sandbox_options import command_sandbox

            self._sandbox = await command_sandbox(context.wards, context.workspace, context.folders)
            self._wards = context.wards
        # Commands reach what a service listens to.
        self._sandbox.join(context.services.shared if context.services is not None else None)
        return self._sandbox

    async def close(self) -> None:
        """Drop the sandbox. There is no process to kill, because each ends with its call."""
        self._sandbox = None


class ShellSession(CommandSession):
    """The gate's session for one entity."""

    async def call(self, args: Mapping[str, Any], context: GateContext) -> GateReply:
        """Run the command. A command that fails is a normal result. Raises `GateError` if it cannot be run."""
        from cantrip_acp.sandbox import explain_refusals

        command = args["command"]
        if not command.strip() or "\0" in command:
            raise GateError("a command needs text without NUL characters")
        most = context.wards.bash_timeout_ms
        limit = min(most, int(float(args["timeout_s"]) * 1000)) if "timeout_s" in args else most
        started: list[Running] = []
        outcome = await self.run(command, context, limit, started=started.append)
        refused = explain_refusals(lambda: started[0].policy, f"{outcome.stdout}\n{outcome.stderr}")
        between = "\n" if refused and outcome.stderr and not outcome.stderr.endswith("\n") else ""
        result: dict[str, Any] = {
            "ok": outcome.exit_code == 0,
            "exit_code": outcome.exit_code,
            "stdout": outcome.stdout,
            "stderr": f"{outcome.stderr}{between}{refused}",
            "seconds": round(outcome.duration_ms / 1000, 2),
        }
        if notes := _notes(outcome, limit):
            result["note"] = "; ".join(notes)
        return GateReply(result, title=_title(args))


def _notes(outcome: Outcome, limit: int) -> list[str]:
    notes = []
    if outcome.timed_out:
        notes.append(f"stopped after {limit / 1000:g} seconds; start runs what takes longer")
    elif outcome.ended_because:
        notes.append(f"stopped: {outcome.ended_because}")
    elif outcome.exit_code and (signal := signal_name(outcome.exit_code)) is not None:
        notes.append(f"ended by {signal}")
    if outcome.warning:
        notes.append(outcome.warning)
    if outcome.truncated:
        notes.append("output was shortened in the middle; write it to a file and look at parts of it")
    return notes


def _title(args: Mapping[str, Any]) -> str:
    line = " ".join(str(args["command"]).split())
    return f"$ {line if len(line) <= 120 else line[:120] + '…'}"


def _preview(args: Mapping[str, Any], context: GateContext) -> GateReply:
    places = (Location(str(context.workspace)),) if context.workspace is not None else ()
    return GateReply(None, title=_title(args), locations=places)


def command_line(args: Mapping[str, Any], context: GateContext) -> str:
    return str(args["command"])


def covers_command(args: Mapping[str, Any]) -> tuple[str, str]:
    """A lasting permission is for exactly this command."""
    command = " ".join(str(args["command"]).split())
    return f"={args['command']}", f"with the command {command[:100]}"


def _open_session(registrar: GateRegistrar, circle: CircleView) -> GateSession:
    return ShellSession(circle)


def _no_session(args: Mapping[str, Any], context: GateContext) -> Any:
    raise GateError("shell works only in a running entity, because it needs the entity's sandbox")


SHELL = Gate(
    name="shell",
    description=(
        "Run one shell command in the sandbox, in the workspace, and wait for its end. Returns ok, exit_code, stdout, stderr and "
        "seconds. Each call is a new shell: files stay, nothing else does."
    ),
    parameters={
        "type": "object",
        "properties": {
            "command": {"type": "string", "minLength": 1, "description": "The command, as you would type it."},
            "timeout_s": {**TIMEOUT, "description": "Seconds; a ward may give fewer."},
        },
        "required": ["command"],
        "additionalProperties": False,
    },
    handler=_no_session,
    writes=True,
    kind="execute",
    main_text="command",
    preview=_preview,
    runs=command_line,
    covers=covers_command,
    opens=_open_session,
)
