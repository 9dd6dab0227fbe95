"""The agent: which methods there are, what each checks, and the sessions of one connection (ACP, Overview).

`serve` runs it over any two streams. A method that this version does not have is not advertised and answers -32601.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import anyio.to_thread

from cantrip_acp import folders, telemetry
from cantrip_acp.acp import protocol as acp
from cantrip_acp.acp.content import read_prompt
from cantrip_acp.acp.envelope import (
    AUTH_REQUIRED,
    INTERNAL_ERROR,
    INVALID_REQUEST,
    RESOURCE_NOT_FOUND,
    RpcError,
    invalid_params,
)
from cantrip_acp.acp.handshake import AUTH_METHOD, HOW_TO_GET_A_CRYSTAL, accepts_version, initialize_result
from cantrip_acp.acp.session import Session, check_folder
from cantrip_acp.acp.streams import byte_streams
from cantrip_acp.acp.wire import Connection, Method, Request
from cantrip_acp.errors import CantripError, MissingKey
from cantrip_acp.loom.loom import Loom
from cantrip_acp.loom.stores.address import is_address
from cantrip_acp.redaction import shared

if TYPE_CHECKING:
    from cantrip_acp.cantrip import Cantrip
    from cantrip_acp.entity import Entity

log = logging.getLogger(__name__)

CantripFactory = Callable[[Path], "Cantrip"]
"""Makes a session's cantrip for its folder. Runs in a thread; raises `MissingKey` where no crystal can be had."""

TURN_GRACE = 0.5
"""Seconds that cancelled turns have to end in after the client hung up."""

REQUEST_GRACE = 3.0
"""Seconds that other requests have where no turn runs: somebody may have piped a few into us."""

_UNNAMED = telemetry.Trace("")


class Agent:
    """One connection's agent. ``greeted`` holds the parameters of an ``initialize`` that was answered already."""

    def __init__(self, cantrips: CantripFactory, state_dir: Path, *, greeted: dict[str, Any] | None = None) -> None:
        self._cantrips = cantrips
        self._state_dir = state_dir
        self._sessions: dict[str, Session] = {}
        self._client = acp.ClientAbilities()
        self._initialized = False
        self._connection: Connection | None = None
        if greeted is not None:
            self._meet(greeted.get("clientCapabilities"))

    def methods(self) -> dict[str, Method]:
        """The methods of version 1 that this agent has."""
        return {
            "initialize": Method(acp.Initialize, self._initialize),
            "authenticate": Method(acp.Authenticate, self._authenticate),
            "session/new": Method(acp.NewSession, self._new_session),
            "session/prompt": Method(acp.Prompt, self._prompt),
            "session/cancel": Method(acp.Cancel, self._cancel, notification=True),
        }

    def admit(self, method: str) -> None:
        """Nothing comes before ``initialize`` (ACP, Initialization)."""
        if not self._initialized and method != "initialize":
            raise RpcError(
                INVALID_REQUEST,
                f"Invalid request: {method} came before initialize; send initialize first",
                {"method": method},
            )

    async def serve(
        self, connection: Connection, *, patient: bool = False, ending: Callable[[float], None] | None = None
    ) -> None:
        """Serve until the client hangs up; then no turn runs, no process is left, every loom is closed.

        ``patient`` is for input from a file, where the end says that nothing more is asked, not that nobody is there.
        ``ending`` is called when the end begins, with the seconds that requests still have.
        """
        self._connection = connection

        def hang_up() -> float:
            turns = [session for session in self._sessions.values() if session.running]
            grace = TURN_GRACE if turns else REQUEST_GRACE
            if ending is not None:
                ending(grace)
            for session in turns:
                session.cancel()
            return grace

        try:
            await connection.run(hang_up, patient=patient)
        finally:
            with anyio.CancelScope(shield=True):
                async with anyio.create_task_group() as tasks:
                    for session in self._sessions.values():
                        tasks.start_soon(session.close)

    # --- methods -----------------------------------------------------------------------------------------------------

    def _initialize(self, params: acp.Initialize, request: Request) -> dict[str, Any]:
        if not accepts_version(params.protocol_version):
            missing = params.protocol_version is None
            raise invalid_params(
                "required, and missing" if missing else "must be an integer from 0 up", "protocolVersion"
            )
        self._meet(params.client_capabilities)
        return initialize_result()

    def _meet(self, capabilities: Any) -> None:
        self._client = acp.ClientAbilities.of(capabilities)
        self._initialized = True

    async def _authenticate(self, params: acp.Authenticate, request: Request) -> dict[str, Any]:
        """Keys come from the environment, so there is nothing to do but to look whether one is there."""
        if params.method_id != AUTH_METHOD:
            raise invalid_params(f"unknown method {params.method_id[:100]!r}; known: {AUTH_METHOD}", "methodId")
        try:
            await anyio.to_thread.run_sync(self._cantrips, Path.cwd())
        except MissingKey as missing:
            raise _auth_required(missing) from None
        except CantripError as problem:
            # Whatever else is wrong with a recipe is no matter of signing in; session/new says it.
            log.info("authenticate: %s", problem)
        return {}

    async def _new_session(self, params: acp.NewSession, request: Request) -> acp.SessionState:
        assert self._connection is not None
        trace = telemetry.trace_from(params.meta if isinstance(params.meta, dict) else None, default=_UNNAMED)
        named = trace if trace is not _UNNAMED else None
        session_id = f"sess_{os.urandom(12).hex()}"
        entity = await self._built(params.cwd, session_id)
        session = Session(session_id, entity, self._connection, self._client, named)
        self._sessions[session_id] = session
        connection = self._connection
        # Behind the reply, which waits for nothing of it.
        request.after.append(lambda: connection.beside(session.warm))
        refused = _not_supported(params)
        if refused:
            # Behind the reply: the client cannot know the session before.
            request.after.append(lambda: session.show(_notice(refused, self._client)))
        about: dict[str, Any] = {
            "cantrip": {"recipe": entity.cantrip.name, "entity_id": entity.id, "loom": entity.loom.location}
        }
        if named is not None:
            about["cantrip_trace_id"] = named.trace_id
        return acp.SessionState(session_id=session_id, meta=about)

    async def _built(self, cwd: str, session_id: str) -> Entity:
        """`_build` in a thread; of a request that was cancelled meanwhile nothing is left."""
        with anyio.CancelScope(shield=True):
            entity = await anyio.to_thread.run_sync(self._build, cwd, session_id)
        try:
            await anyio.lowlevel.checkpoint_if_cancelled()
        except anyio.get_cancelled_exc_class():
            _discard(entity.loom)
            raise
        return entity

    def _build(self, cwd: str, session_id: str) -> Entity:
        """The entity of a new session, with a loom of its own. Runs in a thread: it reads files."""
        workspace = check_folder(cwd)
        try:
            cantrip = self._cantrips(workspace)
            store = cantrip.loom_settings.get("store", "jsonl")
            if store == "memory":
                return cantrip.invoke(loom=Loom.memory())
            where: Path | str = store
            if not is_address(store):
                where = folders.private(self._state_dir / "looms") / f"{session_id}.loom.jsonl"
            return cantrip.invoke(loom=Loom.open(where, fsync=bool(cantrip.loom_settings.get("fsync", False))))
        except MissingKey as missing:
            raise _auth_required(missing) from None
        except (CantripError, OSError) as problem:
            text = shared().diagnostic(str(problem))
            raise RpcError(
                INTERNAL_ERROR,
                f"The session cannot be opened: {text}",
                {"error": type(problem).__name__, "details": text, "where": getattr(problem, "where", None)},
            ) from None

    def _prompt(self, params: acp.Prompt, request: Request) -> Awaitable[acp.PromptResult]:
        session = self._session(params.session_id)
        intent, context = read_prompt(params.prompt)
        trace = telemetry.trace_from(params.meta if isinstance(params.meta, dict) else None, default=session.trace)
        trace = replace(trace, conversation=session.id)
        return session.prompt(intent, context, trace, request)

    def _cancel(self, params: acp.Cancel, request: Request) -> None:
        self._session(params.session_id).cancel()

    def _session(self, session_id: str) -> Session:
        session = self._sessions.get(session_id)
        if session is None:
            shown = session_id[:100]
            raise RpcError(
                RESOURCE_NOT_FOUND, f"Resource not found: there is no session {shown!r}", {"sessionId": shown}
            )
        return session


async def serve(
    reader: Any,
    writer: Any,
    *,
    recipe: str | None = None,
    state_dir: Path | str | None = None,
    cantrips: CantripFactory | None = None,
) -> None:
    """Serve ACP over two streams until the reader ends: the agent inside a program of yours.

    ``reader`` and ``writer`` are anyio byte streams, asyncio's `StreamReader` and `StreamWriter`, binary files or
    descriptors; they stay open. ``recipe`` and ``state_dir`` are those of the command line; ``cantrips`` makes each
    session's cantrip in place of a recipe. Nothing needs to be started before, and nothing is left behind.
    """
    receive, send, patient = byte_streams(reader, writer)
    agent = agent_for(recipe, state_dir, cantrips=cantrips)
    await agent.serve(Connection(receive, send, agent.methods(), admit=agent.admit), patient=patient)


def agent_for(
    recipe: str | None,
    state_dir: Path | str | None,
    *,
    cantrips: CantripFactory | None = None,
    greeted: dict[str, Any] | None = None,
) -> Agent:
    """An agent that takes its cantrips from a recipe: the named one, else the built-in.

    A recipe named by a path was chosen by whoever started the agent, so it is trusted; one found by name is not.
    """
    folder = folders.state_dir(state_dir)
    if cantrips is None:
        from cantrip_acp.recipes import load_for_session

        named_by_path = recipe is not None and (os.sep in recipe or recipe.endswith((".yaml", ".yml", ".toml")))
        # Relative to where the agent was started, not to a session's folder.
        chosen = os.path.abspath(os.path.expanduser(recipe)) if recipe is not None and named_by_path else recipe

        def cantrips(workspace: Path) -> Cantrip:
            return load_for_session(chosen, workspace, folder, trusted=named_by_path)

    return Agent(cantrips, folder, greeted=greeted)


def _discard(loom: Loom) -> None:
    """Close a loom that nothing was written to, and take its file away; a database has others' turns too."""
    loom.close()
    if loom.location is not None and not is_address(loom.location):
        Path(loom.location).unlink(missing_ok=True)


def _auth_required(missing: MissingKey) -> RpcError:
    text = shared().diagnostic(str(missing)).rstrip(".")
    return RpcError(
        AUTH_REQUIRED, f"Authentication required: {text}. {HOW_TO_GET_A_CRYSTAL}", {"methodId": AUTH_METHOD}
    )


def _not_supported(params: acp.NewSession) -> str:
    """What the client asked for and this version does not have, in words for its user; empty where there is nothing."""
    parts = []
    if params.mcp_servers:
        names = ", ".join(server.name for server in params.mcp_servers)
        parts.append(f"MCP servers are not supported by this version of the agent, so these were not started: {names}.")
    if params.additional_directories:
        folders = ", ".join(params.additional_directories)
        parts.append(
            f"Additional folders are not supported by this version of the agent and are out of reach: {folders}."
        )
    return " ".join(parts)


def _notice(text: str, client: acp.ClientAbilities) -> acp.Update:
    if client.notices:
        return acp.Notice("warning", "Not available in this session", text)
    return acp.AgentMessageChunk(acp.TextContent(text), "notice")
