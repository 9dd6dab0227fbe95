"""Command runner: each command runs as a task of its own. Its request waits for the task; cancelling the request does not.
A cancelled request is answered at once; the command is ended after that.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
from typing import TYPE_CHECKING, Any

from lsprotocol import types
from pygls.exceptions import JsonRpcException, JsonRpcInvalidParams

from cantrip_acp.core.errors import CantripError
from cantrip_acp.lsp.commands.arguments import Given
from cantrip_acp.lsp.commands.command_run import Work
from cantrip_acp.lsp.commands.registry import COMMANDS
from cantrip_acp.recipes.models.field_types import nearest

if TYPE_CHECKING:
    from cantrip_acp.lsp.commands.registry import Command
    from cantrip_acp.lsp.server.server import Server

_log = logging.getLogger(__name__)

REQUEST_FAILED = -32803
"""The protocol's error code for a request that was valid but failed."""


class Failed(JsonRpcException):
    """The error that the client gets for a failed command. ``data`` is for programs."""

    CODE = REQUEST_FAILED


async def execute(server: Server, params: types.ExecuteCommandParams) -> Any:
    """Run a command and return its answer. Raises `JsonRpcException`, which says what is wrong and what to do."""
    command = COMMANDS.get(params.command)
    if command is None:
        near = nearest(params.command, tuple(COMMANDS))
        raise JsonRpcInvalidParams(f"there is no command {params.command[:100]!r}{near}")
    given = Given(command, params.arguments)
    work = Work(server, command.title, params.work_done_token, quiet=command.quiet)
    task = server.beside(_done(server, command, given, work))
    work.holds(lambda: work.cancel(task.cancel))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if not task.done():
            work.cancel(task.cancel)
            task.add_done_callback(lambda ended: _unheard(server, command, ended))
        raise


async def _done(server: Server, command: Command, given: Given, work: Work) -> Any:
    ended: str | None = None
    try:
        function = getattr(importlib.import_module(command.module), command.function)
        return await function(server, given, work)
    except CantripError as error:
        ended = "failed"
        raise Failed(str(error), data={"error": type(error).__name__}) from error
    except JsonRpcException:
        ended = "failed"
        raise
    except asyncio.CancelledError:
        ended = "cancelled"
        raise
    except Exception as error:
        ended = "failed"
        _log.exception("%s failed", command.name)
        raise Failed(f"{command.name} failed: {type(error).__name__}: {error}") from error
    finally:
        work.end(ended)


def _unheard(server: Server, command: Command, task: asyncio.Task[Any]) -> None:
    """Nobody waits for the answer any more; show a late error to the user."""
    if task.cancelled() or (error := task.exception()) is None:
        return
    server.window_show_message(
        types.ShowMessageParams(types.MessageType.Error, f"{command.name} was cancelled, and then: {error}")
    )
