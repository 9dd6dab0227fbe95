"""The ACP agent: the table of methods, and one connection from start to end (ACP, Overview).

`serve` runs the agent over any two streams. It answers -32601 to a method that it lacks, and does not
advertise it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from cantrip_acp.acp import protocol as acp
from cantrip_acp.acp.errors import auth_required
from cantrip_acp.acp.initialize import AUTH_METHOD, TERMINAL_METHOD, accepts_version, initialize_result
from cantrip_acp.acp.sessions.factory import CantripFactory, Recipes, SessionFactory
from cantrip_acp.acp.sessions.handlers import Sessions
from cantrip_acp.acp.sessions.session_store import SessionStore
from cantrip_acp.acp.wire.byte_streams import byte_streams
from cantrip_acp.acp.wire.connection import Connection, Method, Request
from cantrip_acp.acp.wire.jsonrpc import AUTH_REQUIRED, INTERNAL_ERROR, INVALID_REQUEST, RpcError, invalid_params
from cantrip_acp.core.errors import CantripError, MissingKey
from cantrip_acp.files import paths

log = logging.getLogger(__name__)

_NEED_A_KEY = frozenset({"session/new", "session/load", "session/resume", "session/fork"})

TURN_GRACE = 0.5
"""Seconds that cancelled turns have to end after the client closed the connection."""

REQUEST_GRACE = 3.0
"""Seconds that other requests have when no turn runs: the client may have piped a few requests into the agent."""


class Agent:
    """The agent of one connection. ``greeted`` holds the parameters of an ``initialize`` that was already answered."""

    def __init__(self, recipes: Recipes, state_dir: Path, *, greeted: dict[str, Any] | None = None) -> None:
        self._recipes = recipes
        self._sessions = Sessions(SessionFactory(recipes, SessionStore(state_dir)))
        self._initialized = False
        self._signed_out = False
        if greeted is not None:
            self._set_client(greeted.get("clientCapabilities"))

    def methods(self) -> dict[str, Method]:
        """The methods of ACP version 1 that this agent has, and `session/fork`, which is not stable yet."""
        return {
            "initialize": Method(acp.Initialize, self._initialize),
            "authenticate": Method(acp.Authenticate, self._authenticate),
            "logout": Method(acp.Logout, self._logout),
            "session/new": Method(acp.NewSession, self._sessions.new),
            "session/load": Method(acp.LoadSession, self._sessions.load),
            "session/resume": Method(acp.LoadSession, self._sessions.resume),
            "session/fork": Method(acp.LoadSession, self._sessions.fork),
            "session/list": Method(acp.ListSessions, self._sessions.list),
            "session/close": Method(acp.OneSession, self._sessions.close),
            "session/delete": Method(acp.OneSession, self._sessions.delete),
            "session/set_mode": Method(acp.SetMode, self._sessions.set_mode),
            "session/set_model": Method(acp.SetModel, self._sessions.set_model),
            "session/set_config_option": Method(acp.SetConfigOption, self._sessions.set_option),
            "session/prompt": Method(acp.Prompt, self._sessions.prompt),
            "session/cancel": Method(acp.Cancel, self._sessions.cancel, notification=True),
        }

    def admit(self, method: str) -> None:
        """Check that a request may come now: ``initialize`` must be first (ACP, Initialization).

        Raises `RpcError` where the request comes too early, or where it needs a key and the user has signed out.
        """
        if not self._initialized and method != "initialize":
            raise RpcError(
                INVALID_REQUEST,
                f"Invalid request: {method} came before initialize; send initialize first",
                {"method": method},
            )
        if self._signed_out and method in _NEED_A_KEY:
            raise RpcError(
                AUTH_REQUIRED,
                "Authentication required: you have signed out; choose a way to sign in again",
                {"methodId": AUTH_METHOD},
            )

    async def serve(
        self, connection: Connection, *, patient: bool = False, ending: Callable[[float], None] | None = None
    ) -> None:
        """Serve until the client closes the connection. Afterwards no turn runs, no process is left, and every loom is
        closed.

        ``patient`` is for input from a file: its end means that no more requests come, not that the client is gone.
        ``ending`` is called when the end begins, with the seconds that requests still have.
        """
        self._sessions.context.connection = connection

        def hang_up() -> float:
            turns = self._sessions.running()
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
                await self._sessions.close_all()

    # --- methods -----------------------------------------------------------------------------------------------------

    def _initialize(self, params: acp.Initialize, request: Request) -> dict[str, Any]:
        if not accepts_version(params.protocol_version):
            missing = params.protocol_version is None
            raise invalid_params(
                "required, and missing" if missing else "must be an integer from 0 up", "protocolVersion"
            )
        self._set_client(params.client_capabilities)
        return initialize_result(params.client_capabilities)

    def _set_client(self, capabilities: Any) -> None:
        self._sessions.context.client = acp.ClientAbilities.of(capabilities)
        self._initialized = True

    async def _authenticate(self, params: acp.Authenticate, request: Request) -> dict[str, Any]:
        """Check whether a key exists. Keys come from the environment, so there is nothing else to do."""
        known = [AUTH_METHOD, *([TERMINAL_METHOD] if self._sessions.context.client.auth_terminal else [])]
        if params.method_id not in known:
            raise invalid_params(f"unknown method {params.method_id[:100]!r}; known: {', '.join(known)}", "methodId")
        before, self._recipes.signed_out = self._recipes.signed_out, False
        try:
            await anyio.to_thread.run_sync(self._recipes.cantrip, Path.cwd())
        except MissingKey as missing:
            self._recipes.signed_out = before
            raise auth_required(missing) from None
        except CantripError as problem:
            # Sign-in is only about keys; session/new reports all other problems of a recipe.
            log.info("authenticate: %s", problem)
        self._signed_out = False
        return {}

    async def _logout(self, params: acp.Logout, request: Request) -> dict[str, Any]:
        """Delete the keys that were entered at a terminal. Open sessions continue; new ones that need a key need
        `authenticate` first."""
        from cantrip_acp.acp.login import sign_out

        try:
            await anyio.to_thread.run_sync(sign_out)
        except OSError as problem:
            raise RpcError(INTERNAL_ERROR, f"The key cannot be taken away: {problem.strerror or problem}") from None
        self._recipes.signed_out = True
        try:
            await anyio.to_thread.run_sync(self._recipes.cantrip, Path.cwd())
            self._signed_out = False
        except MissingKey:
            self._signed_out = True
        except CantripError as problem:
            # Session/new reports all other problems of a recipe, after the user was asked for a key.
            log.info("logout: %s", problem)
        return {}


async def serve(
    reader: Any,
    writer: Any,
    *,
    recipe: str | None = None,
    state_dir: Path | str | None = None,
    cantrips: CantripFactory | None = None,
) -> None:
    """Serve ACP over two streams until the reader ends. This embeds the agent in your program.

    ``reader`` and ``writer`` are anyio byte streams, asyncio's `StreamReader` and `StreamWriter`, binary files or file
    descriptors; they stay open. ``recipe`` and ``state_dir`` are the options of the command line. ``cantrips`` makes
    the cantrip of each session in place of a recipe. Nothing must be started before, and nothing is left running
    afterwards.
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
    """Make an agent that takes its cantrips from a recipe: the named one, else the built-in one. See `Recipes` in
    `sessions.factory`."""
    folder = paths.state_dir(state_dir)
    return Agent(Recipes(recipe, folder, cantrips), folder, greeted=greeted)
