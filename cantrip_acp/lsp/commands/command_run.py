"""One run of a command: shows its progress in the client, and can be cancelled.
Progress goes to the token of the client's request, or to a new token if the client lets servers create them.
Reports are sent at most every `EVERY_S` seconds; the last one is always sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from lsprotocol import types
from pygls.exceptions import JsonRpcException, JsonRpcInvalidParams

from cantrip_acp.lsp.commands.arguments import CommandArguments
from cantrip_acp.lsp.commands.registry import COMMANDS
from cantrip_acp.recipes.models.field_types import nearest
from cantrip_acp.text.logs import logger
from cantrip_acp.types.errors import CantripError

if TYPE_CHECKING:
    from cantrip_acp.lsp.commands.registry import Command
    from cantrip_acp.lsp.server.language_server import Server

_log = logger(__name__)

EVERY_S = 0.05
"""Seconds between two reports."""
LONGEST = 240
"""The longest report, in characters."""


class CommandRun:
    """One run of a command. Use it only in the server's event loop (other threads: `loop.call_soon_threadsafe`)."""

    def __init__(self, server: Server, title: str, token: str | int | None, *, quiet: bool = False) -> None:
        self._server = server
        self.title = title
        self.cancelled = False
        self._token = token
        self._begun = False
        self._ended = False
        self._message: str | None = None
        self._sent: str | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._listeners: list[Callable[[], None]] = []
        self._cancel: Callable[[], None] | None = None
        if token is not None:
            self._begin(token)
        elif not quiet and server.makes_progress:
            server.keep(self._create())

    def report(self, message: str) -> None:
        """Report progress, in a few words on one line."""
        self._message = " ".join(message.split())[:LONGEST]
        if self._begun and self._timer is None and not self._ended:
            self._timer = asyncio.get_running_loop().call_later(EVERY_S, self._report)

    def on_cancel(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` on cancel, or now if it was cancelled already. Without a listener, cancel ends the command's task."""
        self._listeners.append(listener)
        if self.cancelled:
            listener()

    def cancel(self, otherwise: Callable[[], object]) -> None:
        """Cancel the run. ``otherwise`` is called if the command has no listener."""
        if self.cancelled or self._ended:
            return
        self.cancelled = True
        self._message = "cancelling…"
        self._report()
        for listener in self._listeners:
            listener()
        if not self._listeners:
            otherwise()

    def end(self, message: str | None = None) -> None:
        """End the progress; later reports are dropped."""
        if self._ended:
            return
        self._ended = True
        if self._timer is not None:
            self._timer.cancel()
        if self._token is not None:
            self._server.works.pop(self._token, None)
        if self._begun:
            last = message if message is not None else self._message
            self._send_progress(types.WorkDoneProgressEnd(message=last[:LONGEST] if last else None))

    def set_cancel(self, cancel: Callable[[], None]) -> None:
        """Set the function to call when the client cancels the progress."""
        self._cancel = cancel
        if self._token is not None:
            self._server.works[self._token] = cancel

    async def _create(self) -> None:
        token = f"cantrip-{uuid4().hex[:12]}"
        with contextlib.suppress(Exception):
            # If the client refuses or never answers, it sees no progress, but the command continues.
            asked = self._server.protocol.send_request_async(
                types.WINDOW_WORK_DONE_PROGRESS_CREATE, types.WorkDoneProgressCreateParams(token)
            )
            await asyncio.wait_for(asked, 10)
            if not self._ended:
                self._token = token
                assert self._cancel is not None  # `holds` is called before anything is awaited
                self._server.works[token] = self._cancel
                self._begin(token)

    def _begin(self, token: str | int) -> None:
        self._token, self._begun, self._sent = token, True, self._message
        self._send_progress(types.WorkDoneProgressBegin(self.title, cancellable=True, message=self._message))

    def _report(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._begun and not self._ended and self._message != self._sent:
            self._sent = self._message
            self._send_progress(types.WorkDoneProgressReport(message=self._message, cancellable=not self.cancelled))

    def _send_progress(
        self, value: types.WorkDoneProgressBegin | types.WorkDoneProgressReport | types.WorkDoneProgressEnd
    ) -> None:
        assert self._token is not None
        self._server.protocol.notify(types.PROGRESS, types.ProgressParams(self._token, value))


REQUEST_FAILED = -32803
"""The protocol's error code for a request that was valid but failed."""


class CommandFailed(JsonRpcException):
    """The error that the client gets for a failed command. ``data`` is for programs."""

    CODE = REQUEST_FAILED


async def execute(server: Server, params: types.ExecuteCommandParams) -> Any:
    """Run a command and return its answer. Raises `JsonRpcException`, which says what is wrong and what to do."""
    command = COMMANDS.get(params.command)
    if command is None:
        near = nearest(params.command, tuple(COMMANDS))
        raise JsonRpcInvalidParams(f"there is no command {params.command[:100]!r}{near}")
    given = CommandArguments(command, params.arguments)
    work = CommandRun(server, command.title, params.work_done_token, quiet=command.quiet)
    task = server.start_task(_run(server, command, given, work))
    work.set_cancel(lambda: work.cancel(task.cancel))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if not task.done():
            work.cancel(task.cancel)
            task.add_done_callback(lambda ended: _show_late_error(server, command, ended))
        raise


async def _run(server: Server, command: Command, given: CommandArguments, work: CommandRun) -> Any:
    ended: str | None = None
    try:
        function = getattr(importlib.import_module(command.module), command.function)
        return await function(server, given, work)
    except CantripError as error:
        ended = "failed"
        raise CommandFailed(str(error), data={"error": type(error).__name__}) from error
    except JsonRpcException:
        ended = "failed"
        raise
    except asyncio.CancelledError:
        ended = "cancelled"
        raise
    except Exception as error:
        ended = "failed"
        _log.exception("%s failed", command.name)
        raise CommandFailed(f"{command.name} failed: {type(error).__name__}: {error}") from error
    finally:
        work.end(ended)


def _show_late_error(server: Server, command: Command, task: asyncio.Task[Any]) -> None:
    """Show a late error to the user, because nobody waits for the answer any more."""
    if task.cancelled() or (error := task.exception()) is None:
        return
    server.window_show_message(
        types.ShowMessageParams(types.MessageType.Error, f"{command.name} was cancelled, and then: {error}")
    )
