"""The MCP server: serves the tools with the official SDK, on stdio or on HTTP behind a token."""

from __future__ import annotations

import hmac
import json
import logging
import os
import resource
import secrets
import socket
import stat
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import anyio
import mcp_types as types
import uvicorn
from mcp.server.caching import CacheHint
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.exceptions import MCPError
from uvicorn.protocols.http.h11_impl import H11Protocol

from cantrip_acp.text.logs import logger
from cantrip_acp.text.redaction import shared
from cantrip_acp.tuplespace.mcp_edge.answers import Answers, ToolError
from cantrip_acp.tuplespace.mcp_edge.tools import TOOLS
from cantrip_acp.types.errors import DefinitionError
from cantrip_acp.version import __version__

if TYPE_CHECKING:
    import asyncio

    from mcp.server.context import ServerRequestContext
    from starlette.types import ASGIApp, Receive, Scope, Send

# The SDK logs what clients do wrong, with their data. Clients get these errors as answers.
logging.getLogger("mcp").setLevel(logging.CRITICAL)

PATH: Final = "/mcp"
_INSTRUCTIONS: Final = (
    "Gives work to workers and reads their receipts. catalog.list_by_lane says what there is, tuple.dispatch puts a unit of work "
    "into a lane, tuple.observe waits for its end, and receipt.get returns the result. The same work is done only once."
)
_TOOLS_FRESH_MS: Final = 3_600_000
_LONGEST_LINE: Final = 4 * 1024 * 1024
_MOST_SESSIONS: Final = 1000
_GRACE_S: Final = 2
"""How long open HTTP connections have to end."""
_SHORTEST_TOKEN: Final = 16
_STRANGERS: Final = 64
"""The maximum number of connections that have not sent the token yet. If there are more, the oldest is closed."""
_ACCEPTED: Final = 16
"""How many connections are accepted at once."""
_STRANGER_S: Final = 10
"""How long a connection may be open before it shows the token."""


def build_server(answers: Answers, *, plain_names: bool = False) -> Server[Any]:
    """The server of the SDK, with exactly the tools of `tools.py`.

    ``plain_names`` is for clients that refuse names with a dot: the tools and all texts about them have ``_`` in its place.
    """
    spelled = {each["name"]: each["name"].replace(".", "_") if plain_names else each["name"] for each in TOOLS}

    def spell(text: str) -> str:
        for name, spelling in spelled.items():
            text = text.replace(name, spelling)
        return text

    names = {spelling: name for name, spelling in spelled.items()}
    tools = [
        types.Tool(
            name=each["name"],
            title=each["title"],
            description=each["description"],
            input_schema=each["input"],
            output_schema=each["output"],
            annotations=types.ToolAnnotations(
                read_only_hint=not each["writes"],
                destructive_hint=False,
                idempotent_hint=True,
                open_world_hint=each["writes"],
            ),
        )
        for each in json.loads(spell(json.dumps(TOOLS)))
    ]

    async def list_tools(
        ctx: ServerRequestContext[Any], params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        return types.ListToolsResult(tools=tools)

    async def call_tool(ctx: ServerRequestContext[Any], params: types.CallToolRequestParams) -> types.CallToolResult:
        number = 0

        async def progress(message: str) -> None:
            nonlocal number
            number += 1
            await ctx.session.report_progress(number, message=message)

        if params.name not in names:
            known = ", ".join(names)
            raise MCPError(code=types.INVALID_PARAMS, message=f"no tool is named {params.name!r}; there are {known}")
        failed = False
        try:
            answer = await answers.call(names[params.name], params.arguments or {}, progress)
        except ToolError as error:
            answer, failed = {"hint": str(error)}, True
        answer = shared().masked(answer)
        if "hint" in answer:
            answer["hint"] = spell(answer["hint"])
        if failed:
            return types.CallToolResult(content=[types.TextContent(type="text", text=answer["hint"])], is_error=True)
        # Clients that know no structured content read the text.
        text = "not modified" if "not_modified" in answer else json.dumps(answer, ensure_ascii=False)
        return types.CallToolResult(content=[types.TextContent(type="text", text=text)], structured_content=answer)

    return Server(
        "cantrip",
        version=__version__,
        title="Cantrip tuple-space",
        instructions=spell(_INSTRUCTIONS),
        cache_hints={"tools/list": CacheHint(ttl_ms=_TOOLS_FRESH_MS, scope="public")},
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


async def serve_stdio(answers: Answers, *, plain_names: bool = False) -> None:
    """Serve on stdin and stdout until stdin ends. Can be cancelled. Other output to stdout goes to stderr meanwhile."""
    server = build_server(answers, plain_names=plain_names)
    stdin = os.dup(0)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    try:
        # The SDK's own reader waits in a thread that cannot be cancelled.
        lines = cast("anyio.AsyncFile[str]", _Lines(stdin))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(answers.run)
            async with stdio_server(stdin=lines) as (reading, writing):
                await server.run(reading, writing, server.create_initialization_options())
            tasks.cancel_scope.cancel()
    finally:
        os.dup2(stdin, 0)
        os.close(stdin)


class _Lines:
    """The lines of a file descriptor, as text."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __aiter__(self) -> AsyncIterator[str]:
        return self._read()

    async def _read(self) -> AsyncIterator[str]:
        pending = b""
        while True:
            # A regular file cannot be waited for, and need not be.
            with suppress(PermissionError):
                await anyio.wait_readable(self._fd)
            piece = os.read(self._fd, 65536)
            if not piece:
                if pending:
                    yield pending.decode(errors="replace")
                return
            *whole, pending = (pending + piece).split(b"\n")
            for line in whole:
                yield line.decode(errors="replace")
            if len(pending) > _LONGEST_LINE:
                logger(__name__).error("stdin has a line of more than %d bytes; the server ends", _LONGEST_LINE)
                return


def read_token(file: Path | None, state: Path) -> tuple[str, Path, str | None]:
    """The token in ``file``, or in the state folder, where it is created if missing.

    Returns the token, its file, and a warning if others can read it. Raises `DefinitionError`.
    """
    path = file if file is not None else state / "mcp-token"
    if file is None:
        with suppress(FileExistsError):
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with open(fd, "w", encoding="ascii") as opened:
                opened.write(secrets.token_urlsafe(32) + "\n")
    try:
        token = path.read_text(encoding="ascii").strip()
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        raise DefinitionError(f"cannot read the token: {error.strerror}", where=str(path)) from None
    except UnicodeDecodeError:
        raise DefinitionError("the token has characters that are not ASCII", where=str(path)) from None
    if len(token) < _SHORTEST_TOKEN or not token.isprintable() or " " in token:
        raise DefinitionError(
            f"the token must be one word of at least {_SHORTEST_TOKEN} characters. Make one: openssl rand -hex 32",
            where=str(path),
        )
    shared().add(token)
    open_to = f"{path}: other users can read the token; run chmod 600 {path}" if mode & 0o077 else None
    return token, path, open_to


def listen(host: str, port: int) -> socket.socket:
    """Open the listening socket. Raises `DefinitionError`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sends small answers without delay only if the socket names its protocol; `socket.create_server` does not.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(128)
        return listening
    except OSError as error:
        listening.close()
        reason = error.strerror or str(error)
        raise DefinitionError(f"cannot listen on {host} port {port}: {reason}; name another --port or --host") from None


class HttpServer:
    """Serves HTTP on a listening socket. Each request needs the token, and a Host and Origin of this server.

    ``names`` are further host names under which clients reach it; ``origins`` are pages that may call it from a browser.
    """

    def __init__(
        self,
        answers: Answers,
        listening: socket.socket,
        token: str,
        *,
        names: Sequence[str] = (),
        origins: Sequence[str] = (),
        plain_names: bool = False,
    ) -> None:
        self._answers = answers
        self._socket = listening
        address, port = listening.getsockname()[:2]
        own = {"127.0.0.1", "localhost", "[::1]", f"[{address}]" if ":" in address else address}
        hosts = [f"{name}:{port}" for name in sorted(own)] + [each for name in names for each in (name, f"{name}:*")]
        app = build_server(answers, plain_names=plain_names).streamable_http_app(
            streamable_http_path=PATH,
            max_sessions=_MOST_SESSIONS,
            transport_security=TransportSecuritySettings(
                allowed_hosts=hosts,
                allowed_origins=[*(f"http://{name}:{port}" for name in sorted(own)), *origins],
            ),
        )
        guard = _TokenGuard(app, token)
        config = uvicorn.Config(
            guard,
            http=cast("type[asyncio.Protocol]", partial(_Connection, guard)),
            log_config=None,
            access_log=False,
            server_header=False,
            # A client could name another address in a header, and the guard knows connections by their address.
            proxy_headers=False,
            ws="none",
            timeout_graceful_shutdown=_GRACE_S,
            # Some times so many are open before the guard has closed the first of them. Without a descriptor asyncio would
            # try again for each, with a traceback on stderr.
            backlog=_ACCEPTED,
        )
        # Its errors are about single connections.
        logging.getLogger("uvicorn").setLevel(logging.CRITICAL)
        self._server = _Uvicorn(config)
        self.url = f"http://{f'[{address}]' if ':' in address else address}:{port}{PATH}"

    async def run(self) -> None:
        """Serve until `stop` is called."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._answers.run)
            await self._server.serve(sockets=[self._socket])
            tasks.cancel_scope.cancel()

    def stop(self) -> None:
        """Accept no more connections. Waiting calls are answered, then `run` returns."""
        self._answers.stop()
        self._server.should_exit = True


class _Uvicorn(uvicorn.Server):
    """A server that leaves signals to the command."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for each in sockets or ():
            # asyncio's backlog is also how many it accepts at once; more may wait in the kernel.
            each.listen(socket.SOMAXCONN)


class _Connection(H11Protocol):
    """A connection that must send the token soon. Uvicorn waits for the head of a request without a limit, so any program of
    the machine could use up all descriptors with unfinished requests."""

    def __init__(self, guard: _TokenGuard, **given: Any) -> None:
        super().__init__(**given)
        self._guard = guard

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._guard.opened(self)
        self._limit = self.loop.call_later(_STRANGER_S, self._guard.close_stranger, self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._limit.cancel()
        self._guard.closed(self)
        super().connection_lost(exc)


class _TokenGuard:
    """Lets only requests with the token through. It knows the connections that have not sent it yet, the oldest first."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token = token.encode()
        self._strangers: dict[Any, _Connection] = {}
        self._most = min(_STRANGERS, max(1, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4))

    def opened(self, connection: _Connection) -> None:
        self._strangers[connection.client] = connection
        if len(self._strangers) > self._most:
            self.close_stranger(next(iter(self._strangers.values())))

    def closed(self, connection: _Connection) -> None:
        self._strangers.pop(connection.client, None)

    def close_stranger(self, connection: _Connection) -> None:
        """Close a connection, unless it has sent the token meanwhile."""
        if self._strangers.pop(connection.client, None) is not None:
            connection.transport.abort()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._allowed(scope):
            body = json.dumps(
                {"error": "the token is missing or wrong; send the header Authorization: Bearer TOKEN"}
            ).encode()
            headers = [
                (b"content-type", b"application/json"),
                (b"content-length", str(len(body)).encode()),
                (b"www-authenticate", b"Bearer"),
            ]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            await send({"type": "http.response.body", "body": body})
            return
        if scope["type"] == "http":
            self._strangers.pop(scope["client"], None)
        await self._app(scope, receive, send)

    def _allowed(self, scope: Scope) -> bool:
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(given) != 1:
            return False
        scheme, _, token = given[0].partition(b" ")
        return scheme.lower() == b"bearer" and hmac.compare_digest(token.strip(), self._token)
