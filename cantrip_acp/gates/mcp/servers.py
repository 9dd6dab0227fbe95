"""MCP servers: the declaration of one (how to start or reach it, how far it is trusted), and all servers of an entity.

They are opened in parallel: a slow or broken one delays no other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import parse_qsl, quote, quote_plus, urlsplit

import anyio
import anyio.to_thread

from cantrip_acp.core.errors import CantripError, DefinitionError
from cantrip_acp.gates.contract import Gate
from cantrip_acp.text.redaction import Redactor, looks_secret

if TYPE_CHECKING:
    from cantrip_acp.gates.contract import CircleView
    from cantrip_acp.gates.mcp.connection import Connection

Transport = Literal["stdio", "http", "sse"]

START_SECONDS = 15.0
CALL_SECONDS = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class McpServer:
    """One server.

    ``transport`` stdio: ``command`` with ``args`` is started in the session's sandbox, with ``env`` added to the
    sandbox's environment; where ``sandboxed`` is False, it runs as the user. ``http`` (streamable HTTP) and ``sse``:
    ``url`` is reached from the host with ``headers``. ``trusted``: believe the server's statement that a tool only
    reads. ``start_s`` and ``call_s``: seconds allowed for its start, and for an answer to a call.
    Raises `DefinitionError` for an empty name, an invalid URL, or parts that do not fit the transport.
    """

    name: str
    transport: Transport = "stdio"
    command: str = ""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)
    url: str = field(default="", repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)
    sandboxed: bool = True
    trusted: bool = False
    required: bool = False
    start_s: float = START_SECONDS
    call_s: float = CALL_SECONDS

    def __post_init__(self) -> None:
        if not gate_name_part(self.name):
            raise self._error(f"its name {self.name[:100]!r} has no letter or digit")
        if self.transport == "stdio":
            if not self.command.strip() or "\0" in self.command:
                raise self._error("command is required: the program to start")
            if any("\0" in text for text in (*self.args, *self.env.keys(), *self.env.values())):
                raise self._error("args and env cannot hold a NUL character")
            bad = next((name for name in self.env if not name or "=" in name), None)
            if bad is not None:
                raise self._error(f"{bad!r} is no name of a variable")
        else:
            parts = urlsplit(self.url)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise self._error("url must begin with http:// or https:// and name a host")
            bad = next((n for n, v in self.headers.items() if not n.isascii() or set(n + v) & set("\r\n\0")), None)
            if bad is not None:
                raise self._error(f"the header {bad!r} cannot be sent")

    def _error(self, why: str) -> DefinitionError:
        return DefinitionError(f"MCP server {self.name[:100]!r}: {why}")

    @property
    def prefix(self) -> str:
        """The prefix of its gates' names."""
        return gate_name_part(self.name)

    def hide(self, redactor: Redactor) -> None:
        """Register its secrets with a redactor: header values, values with secret names, and keys in the URL."""
        secrets = [value for name, value in self.env.items() if looks_secret(name)]
        for value in self.headers.values():
            secrets += [value, value.rpartition(" ")[2]]
        for before, argument in zip(("", *self.args), self.args, strict=False):
            name, equals, value = argument.partition("=")
            if equals and _is_secret_name(name):
                secrets.append(value)
            elif before.startswith("-") and "=" not in before and _is_secret_name(before):
                secrets.append(argument)
        secrets += _secrets_in_url(self.url)
        redactor.add(*secrets)

    def record(self) -> dict[str, Any]:
        """The data that a loom or a list may keep; without values of variables and headers."""
        shown: dict[str, Any] = {"name": self.name, "transport": self.transport}
        if self.transport == "stdio":
            shown |= {"command": self.command, "args": list(self.args), "env": sorted(self.env)}
            shown["sandboxed"] = self.sandboxed
        else:
            parts = urlsplit(self.url)
            port = f":{parts.port}" if parts.port else ""
            shown |= {"url": f"{parts.scheme}://{parts.hostname}{port}{parts.path}", "headers": sorted(self.headers)}
        return shown


def _secrets_in_url(url: str) -> list[str]:
    """Parts of a URL that look like secrets: user and password, values with secret names, and long words of letters
    and digits."""
    parts = urlsplit(url)
    found = [parts.password or parts.username or ""]
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if _is_secret_name(name) or _KEY.fullmatch(value):
            # Also in the encoded forms that are sent.
            found += [value, quote(value, safe=""), quote_plus(value)]
    found += [piece for piece in parts.path.split("/") if _KEY.fullmatch(piece)]
    return found


def _is_secret_name(name: str) -> bool:
    """Whether an option or a field is for a secret: ``--api-key``, ``accessToken``."""
    return looks_secret(re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[^A-Za-z0-9]+", "_", name))


_KEY = re.compile(r"(?=[^/]*[0-9])(?=[^/]*[A-Za-z])[^/\s]{20,}")


def gate_name_part(name: str) -> str:
    """A name as part of a gate's name: letters, digits and ``_``, with a letter or ``_`` first; empty where none is
    left."""
    found = re.sub(r"[^A-Za-z0-9_]+", "_", name).strip("_")[:64]
    return f"_{found}" if found[:1].isdigit() else found


def unique_prefixes(servers: Sequence[McpServer]) -> list[str]:
    """The prefixes of several servers, in order, made unique by a number at the end."""
    taken: list[str] = []
    for server in servers:
        prefix, number = server.prefix, 2
        while prefix in taken:
            prefix, number = f"{server.prefix}_{number}", number + 1
        taken.append(prefix)
    return taken


class McpServers:
    """Servers to open for an entity; an immutable value. `open` connects to them."""

    def __init__(self, servers: Iterable[McpServer]) -> None:
        self.servers: Sequence[McpServer] = tuple(servers)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, McpServers) and self.servers == other.servers

    def __hash__(self) -> int:
        return hash(self.servers)

    def __bool__(self) -> bool:
        return bool(self.servers)

    async def open(self, circle: CircleView) -> OpenServers:
        """Connect to all, each within its own time limit. Raises `McpError` where a required one cannot be reached."""
        # Importing the SDK takes a second, which must not block an event loop with other sessions.
        await anyio.to_thread.run_sync(_import)
        from cantrip_acp.gates.mcp.connection import Connection, McpError

        opened = OpenServers()
        failures: dict[int, McpError] = {}
        connections = [Connection(server, circle) for server in self.servers]

        async def one(index: int) -> None:
            try:
                await connections[index].open()
            except McpError as error:
                failures[index] = error

        try:
            async with anyio.create_task_group() as group:
                for index in range(len(connections)):
                    group.start_soon(one, index)
            for index, prefix in enumerate(unique_prefixes(self.servers)):
                opened.take(connections[index], prefix, failures.get(index))
        except BaseException:
            with anyio.CancelScope(shield=True):
                for connection in connections:
                    await connection.close()
            raise
        required = next((f for i, f in failures.items() if self.servers[i].required), None)
        if required is not None:
            await opened.close()
            raise required
        return opened


class OpenServers:
    """The opened servers: ``gates``, and ``problems`` as messages that each name a server. Always `close` it."""

    def __init__(self) -> None:
        self.gates: list[Gate] = []
        self.problems: list[str] = []
        self._connections: list[Connection] = []

    def take(self, connection: Connection, prefix: str, failure: CantripError | None) -> None:
        """Add one server's tools, or its error."""
        from cantrip_acp.gates.mcp.tools import gates

        self._connections.append(connection)
        if failure is not None:
            self.problems.append(str(failure))
            return
        found, problems = gates(connection, prefix)
        self.gates += found
        name = f"MCP server {connection.server.name!r}"
        self.problems += [f"{name}: {problem}" for problem in problems]
        if connection.left_out is not None:
            self.problems.append(f"{name} {connection.left_out}")
        if not found and not problems:
            self.problems.append(f"{name} offers no tools")

    async def close(self) -> None:
        """Close all, with everything that they started. Safe to call twice."""
        with anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as group:
                for connection in self._connections:
                    group.start_soon(connection.close)


def _import() -> None:
    import cantrip_acp.gates.mcp.connection
    import cantrip_acp.gates.mcp.tools  # noqa: F401
