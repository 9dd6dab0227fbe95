"""Client terminals: runs the gate `client_terminal` in a terminal of the client (ACP, Terminals).

Each call creates a terminal, shows it in the tool call, waits for the command, and releases the terminal. If the call
fails or is cancelled, a background task kills the command and releases the terminal, so that a cancel does not wait for
the client.
"""

from __future__ import annotations

import stat
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import msgspec

from cantrip_acp.acp.render.event_translator import TerminalOpened
from cantrip_acp.acp.wire.connection import Disconnected
from cantrip_acp.acp.wire.jsonrpc import RpcError
from cantrip_acp.gates.confinement import Root
from cantrip_acp.gates.contract import GateReply
from cantrip_acp.gates.files.file_content import valid_unicode
from cantrip_acp.gates.interaction.client_terminal import SECONDS
from cantrip_acp.text.logs import logger
from cantrip_acp.types.errors import GateError

if TYPE_CHECKING:
    from cantrip_acp.acp.wire.connection import Connection
    from cantrip_acp.gates.contract import GateContext
    from cantrip_acp.types.records import Diff

log = logger(__name__)

OUTPUT_BYTES = 100_000
"""The largest number of bytes of a command's output. Of a longer output only the end is kept."""
REQUEST_SECONDS = 20.0
"""Seconds that a client may take to create, read or release a terminal."""


class CreateTerminal(msgspec.Struct, rename="camel"):
    session_id: str
    command: str
    args: list[str]
    cwd: str
    output_byte_limit: int


class TerminalParams(msgspec.Struct, rename="camel"):
    session_id: str
    terminal_id: str


class CreatedTerminal(msgspec.Struct, rename="camel"):
    terminal_id: str


class ExitStatus(msgspec.Struct, rename="camel"):
    exit_code: int | None = None
    signal: str | None = None


class TerminalOutput(msgspec.Struct, rename="camel"):
    output: str
    truncated: bool = False
    exit_status: ExitStatus | None = None


class ClientTerminals:
    """The terminals that a client offers to one session."""

    def __init__(self, connection: Connection, session_id: str) -> None:
        self._connection = connection
        self._session_id = session_id

    def proposes(self, args: Mapping[str, Any], context: GateContext) -> tuple[Diff, ...]:
        """The diffs for the permission request: always empty. Raises `GateError` if ``cwd`` is not allowed."""
        _check_cwd(args.get("cwd", "."), context)
        return ()

    async def run(self, args: Mapping[str, Any], context: GateContext) -> GateReply:
        """The gate's handler. Raises `GateError` if the client fails."""
        cwd = _check_cwd(args.get("cwd", "."), context)
        create = CreateTerminal(self._session_id, "/bin/sh", ["-c", args["command"]], cwd, OUTPUT_BYTES)
        created: CreatedTerminal = await self._request("terminal/create", create, CreatedTerminal)
        terminal = TerminalParams(self._session_id, created.terminal_id)
        released = False
        try:
            if context.turn is not None and context.turn.listening:
                opened = TerminalOpened(
                    entity_id=context.entity_id,
                    cast_id=context.cast_id,
                    depth=context.turn.depth,
                    call_id=context.call_id,
                    terminal_id=created.terminal_id,
                )
                await context.turn.emit(opened)
            status, timed_out = ExitStatus(), False
            try:
                seconds = float(args.get("seconds", SECONDS))
                status = await self._request("terminal/wait_for_exit", terminal, ExitStatus, seconds)
            except TimedOut:
                timed_out = True
                await self._request("terminal/kill", terminal, Any)
            output: TerminalOutput = await self._request("terminal/output", terminal, TerminalOutput)
            released = True
            await self._request("terminal/release", terminal, Any)
        finally:
            if not released:
                self._connection.start_task(partial(self._kill_and_release, terminal))
        if output.exit_status is not None and status.exit_code is None and status.signal is None:
            status = output.exit_status
        text = valid_unicode(output.output)
        result = {
            "output": text[-OUTPUT_BYTES:],
            "exit_code": status.exit_code,
            "signal": status.signal,
            "truncated": output.truncated or len(text) > OUTPUT_BYTES,
            "timed_out": timed_out,
        }
        return GateReply(result, title=args["command"])

    async def _kill_and_release(self, terminal: TerminalParams) -> None:
        """Kill the command and release the terminal, in the background."""
        for method in ("terminal/kill", "terminal/release"):
            try:
                await self._request(method, terminal, Any)
            except GateError as problem:
                log.info("a terminal of the client could not be closed: %s", problem)

    async def _request(self, method: str, params: Any, shape: Any, seconds: float = REQUEST_SECONDS) -> Any:
        try:
            with anyio.fail_after(seconds):
                return await self._connection.request(method, params, shape)
        except TimeoutError:
            raise TimedOut(f"the editor did not answer {method} within {seconds:g} seconds") from None
        except Disconnected:
            raise GateError("the editor has disconnected, so its terminal is closed") from None
        except RpcError as problem:
            message = " ".join(problem.message.split())[:300]
            raise GateError(f"the editor's terminal failed: {message} ({method}, {problem.code})") from None


class TimedOut(GateError):
    """The client did not answer in time."""


def _check_cwd(path: str, context: GateContext) -> str:
    with Root.of(context).find(path) as place:
        if place.status is None or not stat.S_ISDIR(place.status.st_mode):
            raise GateError(f"{place.shown!r} is not a folder; cwd must be the folder in which the command runs")
        return place.absolute
