"""MCP connection of one entity to one server: connects, lists the tools, calls them, and closes with the entity.

A separate task holds the connection, because it stays open for many turns. If the server has ended, the next call starts it
again, but only a few times.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import httpx2
import mcp_types
from mcp.client import Client
from mcp.shared.exceptions import MCPError

from cantrip_acp.files.paths import private
from cantrip_acp.gates.mcp import install, transport
from cantrip_acp.gates.mcp.declaration import McpServer
from cantrip_acp.gates.mcp.user_process import UserProcess
from cantrip_acp.gates.mcp.user_questions import UserQuestions
from cantrip_acp.gates.sandbox_options import sandbox_options
from cantrip_acp.sandbox import Sandbox, Service, clean, ensure_checked, interpreter, machine
from cantrip_acp.text.logs import logger
from cantrip_acp.text.redaction import ending, shared
from cantrip_acp.types.errors import CantripError, GateError, SandboxError
from cantrip_acp.version import __version__

if TYPE_CHECKING:
    from cantrip_acp.gates.contract import CircleView
    from cantrip_acp.types.styled import Styled

log = logger(__name__)
# The SDK logs failures with tracebacks and data. Callers already get these failures as errors.
logging.getLogger("mcp").setLevel(logging.CRITICAL)
# httpx2 logs each request with its whole URL, which may contain secrets.
logging.getLogger("httpx2").setLevel(logging.WARNING)

MOST_TOOLS = 500
_MOST_PAGES = 50
_BRIEF = 160
"""Characters of a reason in a few words."""
_RESTARTS = 3
_LEAVES_WITHIN = 8.0
"""The most seconds to wait for a connection to close. The SDK needs up to six seconds to end a process."""


class McpError(CantripError):
    """A server cannot be reached, or has ended. The text names the server. ``brief`` is the reason in a few words, without it."""

    def __init__(self, text: str, *, brief: str = "") -> None:
        text, brief = map(shared().diagnostic, (text, brief))
        super().__init__(text)
        self.brief = brief[:_BRIEF]


_STDERR_LOOKS = 40
"""The number of checks, every 10 ms, for more error output of a server about a failed call."""
_STDERR_QUIET = 4
"""After so many looks without more of it, it is complete."""


class Connection:
    """A connection to one server. `open` it, `call` its ``tools``, and always `close` it."""

    def __init__(self, server: McpServer, circle: CircleView) -> None:
        self.server = server
        self.tools: list[mcp_types.Tool] = []
        self.left_out: str | None = None
        """A message if some tools were left out; else None."""
        self.last_error: str | None = None
        """The last failure since the server was started; else None."""
        self._circle = circle
        self._client: Client | None = None
        self._task: asyncio.Task[None] | None = None
        self._opening = anyio.Lock()
        self._ready: asyncio.Future[None] | None = None
        self._close_requested = asyncio.Event()
        self._closed_event = asyncio.Event()
        self._starts = 0
        self._service: Service | UserProcess | None = None
        self._status: int | None = None
        self._closed = False
        self._questions = UserQuestions(server)
        self.server.hide(shared())

    @property
    def alive(self) -> bool:
        """Whether the connection is open."""
        return self._client is not None and not self._closed_event.is_set()

    @property
    def stderr_tail(self) -> str:
        """The end of the standard error of the server's program; empty for a server over HTTP."""
        return self._service.stderr_tail if self._service is not None else ""

    async def stderr_since(self, before: str) -> str:
        """The text that the program has added to its standard error since it ended with ``before``, at most 2,000 characters."""
        # The answer to a call can arrive before what the server wrote earlier, because that has a pipe of its own.
        last, quiet = self.stderr_tail, 0
        for _ in range(_STDERR_LOOKS):
            await anyio.sleep(0.01)
            quiet = quiet + 1 if self.stderr_tail == last else 0
            last = self.stderr_tail
            # A traceback comes in many pieces, and its last line is the one that matters.
            if quiet >= (_STDERR_QUIET if last != before else 10):
                break
        new = last.removeprefix(before) if len(last) >= len(before) else last
        return _without_boxes(new).strip()[-2000:]

    async def restart(self) -> None:
        """Restart the server, and forget its earlier failures. Raises `McpError`."""
        async with self._opening:
            self._starts = 0
            await self._open()

    async def open(self) -> None:
        """Connect to the server and list its tools. Raises `McpError`."""
        async with self._opening:
            if not self.alive:
                await self._open()

    async def _open(self) -> None:
        if self._closed:
            raise self._error("has been closed")
        await self._end()
        self._starts += 1
        self._status = None
        self._close_requested, self._closed_event = asyncio.Event(), asyncio.Event()
        self._ready = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._hold_connection(), name=f"mcp {self.server.name}")
        try:
            with anyio.fail_after(self.server.start_s):
                await asyncio.shield(self._ready)
            self.last_error = None
        except TimeoutError:
            # What is known of it, before it is ended.
            why = self._describe_failure(None)
            await self._end()
            raise self._error(f"did not start within {self.server.start_s:g} s (start_s): {why}") from None
        except McpError:
            await self._end()
            raise
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._end()
            raise

    async def _hold_connection(self) -> None:
        """Keep the connection open until it must close or the server ends."""
        ready = self._ready
        assert ready is not None
        why: BaseException | None = None
        try:
            # If the server closes the connection between calls, the next call detects it.
            async with Client(
                _TransportAdapter(self._open_transport()),
                list_roots_callback=self._list_roots,
                client_info=mcp_types.Implementation(name="cantrip-acp", version=__version__),
                logging_callback=self._on_log_message,
                elicitation_callback=self._questions.on_question if self.server.asks_user else None,
                message_handler=self._on_message,
                cache=None,
            ) as client:
                await self._list_tools(client)
                self._client = client
                if not ready.done():
                    ready.set_result(None)
                await self._close_requested.wait()
        except asyncio.CancelledError as cancelled:
            why = cancelled
        except BaseException as error:  # noqa: BLE001
            # Every error (also an exception group) is reported to the caller of `open`.
            why = error
        finally:
            self._client = None
            self._closed_event.set()
            if not ready.done():
                ready.set_exception(self._error(f"cannot be reached: {self._describe_failure(why)}"))
                # Mark the exception as retrieved, because the caller may have stopped waiting.
                ready.exception()

    @asynccontextmanager
    async def _open_transport(self) -> AsyncIterator[Any]:
        server, circle = self.server, self._circle
        if server.transport == "http":
            opened: Any = transport.over_http(server, self._set_http_status)
        elif server.transport == "sse":
            opened = transport.over_sse(server, self._set_http_status)
        elif server.sandboxed:
            await ensure_checked()
            sandbox = await anyio.to_thread.run_sync(_sandbox, server, circle)
            argv = [server.command, *server.args]
            # A program that cannot download says so at once, and does not try until the time is over.
            offline = install.is_installed(server) or install.needs_install(server, circle.wards)
            self._service = Service(sandbox, argv, install.environment(server) if offline else server.env)
            opened = transport.over_stdio(self._service)
        else:
            workspace = circle.workspace
            self._service = UserProcess(server, str(workspace) if workspace is not None else None)
            opened = transport.over_stdio(self._service)
        async with opened as streams:
            yield streams

    async def _list_tools(self, client: Client) -> None:
        found: list[mcp_types.Tool] = []
        cursor: str | None = None
        for _ in range(_MOST_PAGES):
            page = await client.list_tools(cursor=cursor)
            found += page.tools
            cursor = page.next_cursor
            if cursor is None or len(found) > MOST_TOOLS:
                break
        self.left_out = None
        if len(found) > MOST_TOOLS or cursor is not None:
            self.left_out = f"offers more than {MOST_TOOLS} tools; only the first {MOST_TOOLS} are used"
        self.tools = found[:MOST_TOOLS]

    async def _list_roots(self, context: object) -> mcp_types.ListRootsResult:
        folders = [f for f in (self._circle.workspace, *self._circle.folders) if f is not None]
        roots = [mcp_types.Root(uri=Path(f).as_uri(), name=f.name) for f in folders]
        return mcp_types.ListRootsResult(roots=roots)

    async def _on_log_message(self, params: mcp_types.LoggingMessageNotificationParams) -> None:
        log.debug("MCP server %s: %s", self.server.name, str(params.data)[:1000])

    async def _on_message(self, message: object) -> None:
        if isinstance(message, mcp_types.ElicitCompleteNotification):
            self._questions.complete(message.params.elicitation_id)

    async def call(
        self, tool: str, args: Mapping[str, Any], *, traceparent: str | None = None
    ) -> mcp_types.CallToolResult:
        """Call a tool. Raises `GateError` with the server's name and the reason if there is no answer."""
        if not self.alive:
            if self._starts > _RESTARTS:
                raise GateError(str(self._error(f"has ended {self._starts} times, so it is not started again")))
            try:
                await self.open()
            except McpError as error:
                raise GateError(str(error)) from None
        client = self._client
        if client is None:
            raise GateError(str(self._error("is not connected")))
        meta: Any = {"traceparent": traceparent} if traceparent else None
        self._questions.begin_call()
        try:
            with anyio.fail_after(self.server.call_s):
                try:
                    return await client.call_tool(tool, dict(args), meta=meta)
                except MCPError as error:
                    if not await self._questions.open_pages(error):
                        raise
                return await client.call_tool(tool, dict(args), meta=meta)
        except TimeoutError:
            why = self._describe_failure(None)
            raise GateError(str(self._error(f"did not answer {tool} within {self.server.call_s:g} s: {why}"))) from None
        except MCPError as error:
            if await self._is_gone(error):
                raise GateError(str(self._error(f"ended during {tool}: {self._describe_failure(error)}"))) from None
            raise GateError(str(self._error(f"refused {tool}: {_one_line_error(error)}"))) from None
        except (
            ValueError,
            RuntimeError,
            LookupError,
            OSError,
            anyio.ClosedResourceError,
            anyio.BrokenResourceError,
        ) as error:
            if await self._is_gone(error):
                raise GateError(str(self._error(f"ended during {tool}: {self._describe_failure(error)}"))) from None
            raise GateError(str(self._error(f"sent an invalid answer to {tool}: {_one_line_error(error)}"))) from None
        finally:
            self._questions.end_call()

    async def _is_gone(self, error: BaseException) -> bool:
        """Whether a call failed because the server ended. Then mark the connection as closed, so that the next call starts
        the server again."""
        service = self._service
        if service is not None:
            with anyio.move_on_after(0.2):
                await service.gone()
        closed = isinstance(error, MCPError) and error.code == mcp_types.CONNECTION_CLOSED
        gone = closed or self._closed_event.is_set() or (service is not None and service.end_reason is not None)
        if gone:
            self._closed_event.set()
        return gone

    async def close(self) -> None:
        """Close the connection and end the server's process. Safe to call twice."""
        self._closed = True
        with anyio.CancelScope(shield=True):
            await self._end()

    async def _end(self) -> None:
        task, self._task = self._task, None
        if task is None:
            return
        self._close_requested.set()
        if self._ready is not None and not self._ready.done():
            task.cancel()
        done, _ = await asyncio.wait({task}, timeout=_LEAVES_WITHIN)
        if not done:
            task.cancel()
            await asyncio.wait({task}, timeout=_LEAVES_WITHIN)

    def _set_http_status(self, status: int) -> None:
        self._status = status

    def _describe_failure(self, error: BaseException | None) -> str:
        """Say why the server ended, with the last lines of its standard error."""
        if install.needs_install(self.server, self._circle.wards):
            # The program's own error about the missing network would only hide this reason.
            return (
                f"it is not installed: {self.server.command} downloads it when it starts. Install it once: "
                "`cantrip recipe install` with the name of the recipe, or `cantrip cast` in a terminal, which asks"
            )
        parts: list[str] = []
        service = self._service
        error = _first_error(error)
        cut = error is None or (isinstance(error, MCPError) and error.code == mcp_types.CONNECTION_CLOSED)
        if cut and service is not None and service.end_reason is not None:
            parts.append(service.end_reason)
        elif error is not None:
            parts.append(_one_line_error(error))
        if self._status is not None:
            text = f"HTTP status {self._status} {httpx2.codes.get_reason_phrase(self._status)}".rstrip()
            parts.append(text + ("; check the configured headers" if self._status in (401, 403) else ""))
        words = service.stderr_tail if service is not None else ""
        if words:
            parts.append(f"the end of its standard error: {ending(words, 1000)}")
        if cut and isinstance(service, Service):
            parts.append(f"it ran in the sandbox ({_describe_network(self._circle)})")
        return "; ".join(parts) or ("it said nothing" if error is None else "it ended")

    def _error(self, why: str) -> McpError:
        error = McpError(f"MCP server {self.server.name!r} {why}", brief=why.partition(";")[0])
        self.last_error = str(error)
        return error


async def install_server(
    server: McpServer, circle: CircleView, tell: Callable[[str], None] = lambda line: None
) -> None:
    """Download a server with the network of its registry. Raises `McpError` with the reason if that fails."""
    await ensure_checked()
    home = private(install.home_of(server))
    tell(f"installing MCP server {server.name!r}")
    network = tuple(circle.wards.bash_network) if isinstance(circle.wards.bash_network, tuple) else ()
    options = replace(
        sandbox_options(circle.wards), bash_network=(*network, *install.hosts(server)), bash_writable_paths=()
    )
    output: list[str] = []

    async def take(stream: str, text: Styled) -> None:
        output.append(text.text)

    sandbox = Sandbox(options, None, home_source=str(home))
    outcome = await sandbox.run(
        shlex.join(install.download(server)),
        environment=install.download_environment(server),
        timeout_ms=install.INSTALL_SECONDS * 1000,
        listener=take,
    )
    if outcome.exit_code != 0:
        why = outcome.ended_because or f"exit status {outcome.exit_code}"
        words = ending(clean("".join(output)).strip(), 1000)
        raise McpError(f"MCP server {server.name!r} cannot be installed: {why}; its last output: {words}")
    install.mark_installed(server)
    tell(f"installed MCP server {server.name!r}")


def _without_boxes(words: str) -> str:
    """Remove the boxes that rich draws around the source in a traceback, and keep the error."""
    kept = [line for line in words.splitlines() if line.strip()[:1] not in ("│", "╭", "╰", "┃", "|")]
    return "\n".join(line.rstrip() for line in kept if line.strip()) or words


class _TransportAdapter:
    """Adapts a transport to the context manager that the SDK expects."""

    def __init__(self, opened: Any) -> None:
        self._opened = opened

    async def __aenter__(self) -> Any:
        return await self._opened.__aenter__()

    async def __aexit__(self, *raised: Any) -> Any:
        return await self._opened.__aexit__(*raised)


def _sandbox(server: McpServer, circle: CircleView) -> Sandbox:
    """Make the same sandbox as for the circle's commands. If the command is a path to Python, its files are visible.

    A server that was installed (`install_server`) has the home folder with what was downloaded.
    """
    host = machine()
    if "/" in server.command:
        base = str(circle.workspace) if circle.workspace is not None else None
        program = os.path.join(base or "/", os.path.expanduser(server.command))
        if interpreter.is_python(os.path.realpath(program)):
            host = interpreter.find(program, host, base).on(host)
    home = str(install.home_of(server)) if install.is_installed(server) else None
    return Sandbox(sandbox_options(circle.wards), circle.workspace, host=host, home_source=home)


def _describe_network(circle: CircleView) -> str:
    network = circle.wards.bash_network
    if network is True:
        return "with the network open"
    if network:
        return f"with the network open to {', '.join(network)}"
    return "without a network: bash_network in the recipe's limits opens one"


def _first_error(error: BaseException | None) -> BaseException | None:
    """Return the first error inside nested exception groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _one_line_error(error: BaseException) -> str:
    error = _first_error(error) or error
    if isinstance(error, SandboxError | MCPError):
        text = str(error)
    elif isinstance(error, FileNotFoundError):
        text = f"the program {error.filename!r} was not found"
    else:
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return " ".join(text.split())[:500]
