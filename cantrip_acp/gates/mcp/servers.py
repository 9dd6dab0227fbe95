"""MCP servers of one entity: opens all of them in parallel, so that a slow or broken server does not delay the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from cantrip_acp.files.installation import install_command
from cantrip_acp.gates.contract import Gate, SourceBase
from cantrip_acp.gates.mcp.declaration import McpServer, unique_prefixes
from cantrip_acp.text.redaction import ending
from cantrip_acp.types.errors import CantripError, DefinitionError

if TYPE_CHECKING:
    from cantrip_acp.gates.contract import CircleView
    from cantrip_acp.gates.mcp.connection import Connection, McpError


class McpServers(SourceBase):
    """The servers to open for an entity. It is an immutable value; `open` connects to them."""

    def __init__(self, servers: Iterable[McpServer], *, client_told: set[str] | None = None) -> None:
        """``client_told``: set this if the servers come from the settings of a client. Their failures are then reported in
        one short text, and only if that text is not yet in this set, to which it is added."""
        self.servers = tuple(servers)
        self.client_told = client_told

    @property
    def from_client(self) -> bool:
        """Whether the servers come from the settings of a client, not from a recipe."""
        return self.client_told is not None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, McpServers) and self.servers == other.servers

    def __hash__(self) -> int:
        return hash(self.servers)

    def __bool__(self) -> bool:
        return bool(self.servers)

    async def open(self, circle: CircleView) -> OpenServers:
        """Connect to all servers, each with its own time limit. Raises `McpError` if a required server cannot be reached,
        and `DefinitionError` if one is required and the SDK is not installed."""
        if (missing := sdk_missing()) is not None:
            if any(server.required for server in self.servers):
                raise DefinitionError(missing)
            opened = OpenServers()
            opened.problems.append(missing)
            return opened
        # Importing the SDK takes a second. Do it in a thread, because the event loop may have other sessions.
        await anyio.to_thread.run_sync(import_sdk)
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
                opened.add(connections[index], prefix, failures.get(index))
        except BaseException:
            with anyio.CancelScope(shield=True):
                for connection in connections:
                    await connection.close()
            raise
        if self.client_told is not None:
            opened.problems = _told_once(_summary(self.servers, failures, opened.problems), self.client_told)
        required = next((f for i, f in failures.items() if self.servers[i].required), None)
        if required is not None:
            await opened.close()
            raise required
        return opened


def _summary(servers: Sequence[McpServer], failures: Mapping[int, McpError], problems: Sequence[str]) -> list[str]:
    """Join the failures to one short text; `OpenServers.status` has the details. Other problems stay."""
    if not failures:
        return list(problems)
    reasons = [f"{servers[index].name} {failure.brief}" for index, failure in sorted(failures.items())]
    what = (
        "An MCP server from your settings does"
        if len(reasons) == 1
        else f"{len(reasons)} MCP servers from your settings do"
    )
    mine = {f"{failure}{_MISSING}" for failure in failures.values()}
    text = f"{what} not run, so the tools are missing: {'; '.join(reasons)}."
    return [text, *(problem for problem in problems if problem not in mine)]


def _told_once(problems: Sequence[str], told: set[str]) -> list[str]:
    new = [problem for problem in problems if problem not in told]
    told.update(new)
    return new


_MISSING = ". Its tools are missing: correct this and start again"


class OpenServers:
    """The opened servers: their ``gates``, and ``problems`` as messages with the server's name. Always `close` it."""

    def __init__(self) -> None:
        self.gates: list[Gate] = []
        self.problems: list[str] = []
        self._connections: list[Connection] = []
        self._prefixes: list[str] = []

    @property
    def connections(self) -> Sequence[Connection]:
        """The connections in the order of the servers, including failed ones. Empty if the SDK is not installed."""
        return self._connections

    def status(self, index: int) -> dict[str, Any]:
        """The state of one server: ``state`` (running, failed, stopped), ``error``, ``output`` (the end of its standard
        error) and ``tools`` with the names of their gates."""
        if not self._connections:
            return {"state": "failed", "error": "; ".join(self.problems), "output": "", "tools": []}
        from cantrip_acp.gates.mcp.tools import gates

        connection = self._connections[index]
        found, problems = gates(connection, self._prefixes[index])
        error = connection.last_error or "; ".join([*problems, *([connection.left_out] if connection.left_out else [])])
        state = "running" if connection.alive else "failed" if connection.last_error else "stopped"
        tools = [{"gate": gate.name, "description": gate.description} for gate in found]
        return {"state": state, "error": error, "output": ending(connection.stderr_tail, 4096), "tools": tools}

    def add(self, connection: Connection, prefix: str, failure: CantripError | None) -> None:
        """Add one server's tools, or its error."""
        from cantrip_acp.gates.mcp.tools import gates

        self._connections.append(connection)
        self._prefixes.append(prefix)
        if failure is not None:
            self.problems.append(f"{failure}{_MISSING}")
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
        """Close all connections and end the servers' processes. Safe to call twice."""
        with anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as group:
                for connection in self._connections:
                    group.start_soon(connection.close)


def sdk_missing() -> str | None:
    """What to install, if the SDK of MCP is not installed."""
    if find_spec("mcp") is not None:
        return None
    return f"MCP servers need the package mcp, not installed here; install it with: {install_command('mcp')}"


def to_install(sources: Iterable[object], circle: CircleView) -> list[McpServer]:
    """The servers of these gate sources that must be installed before they can start in a circle."""
    declared = [server for source in sources if isinstance(source, McpServers) for server in source.servers]
    if not declared or sdk_missing() is not None:
        return []
    from cantrip_acp.gates.mcp.install import needs_install

    return [server for server in declared if needs_install(server, circle.wards)]


def import_sdk() -> None:
    """Import the modules that use the SDK. It takes a second, so call this in a thread."""
    import cantrip_acp.gates.mcp.connection
    import cantrip_acp.gates.mcp.tools  # noqa: F401
