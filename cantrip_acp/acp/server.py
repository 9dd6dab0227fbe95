"""The ACP agent: the table of its methods, and `serve`, which runs the agent over two streams (ACP, Overview).

A method that is not in the table gets the error -32601, and the agent does not advertise it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import anyio
import anyio.to_thread
from msgspec.structs import replace

from cantrip_acp.acp import protocol as acp
from cantrip_acp.acp.errors import auth_required
from cantrip_acp.acp.initialize import (
    AUTH_METHOD,
    LOCAL_METHOD,
    PAGE_METHOD,
    TERMINAL_METHOD,
    accepts_version,
    asks_for_v2,
    negotiated_result,
)
from cantrip_acp.acp.model_providers import ModelProviders
from cantrip_acp.acp.sessions import session_methods as one
from cantrip_acp.acp.sessions.agent import Agent
from cantrip_acp.acp.sessions.factory import CantripFactory, Recipes, SessionFactory
from cantrip_acp.acp.sessions.session_store import SessionStore
from cantrip_acp.acp.wire.byte_streams import byte_streams
from cantrip_acp.acp.wire.connection import Connection, Method, Request
from cantrip_acp.acp.wire.jsonrpc import (
    AUTH_REQUIRED,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    RpcError,
    invalid_params,
    meta_of,
)
from cantrip_acp.files import paths
from cantrip_acp.text.logs import logger
from cantrip_acp.types.errors import CantripError, MissingKey

if TYPE_CHECKING:
    from cantrip_acp.acp.v2.agent import AgentV2

log = logger(__name__)

_NEED_A_KEY = frozenset({"session/new", "session/load", "session/resume", "session/fork"})

TURN_GRACE = 0.5
"""Seconds that cancelled turns get to end after the client closed the connection."""

REQUEST_GRACE = 3.0
"""Seconds that open requests get after the end if no turn runs. A script may pipe a few requests into the agent."""


class Server:
    """Serves one connection: ``initialize``, the ways to sign in, and the methods of its `Agent`.

    ``initialize_params`` are the parameters of ``initialize`` if that request was already answered, else None.
    """

    def __init__(self, factory: SessionFactory, *, initialize_params: dict[str, Any] | None = None) -> None:
        self._recipes = factory.recipes
        self._agent = Agent(factory)
        self._providers = ModelProviders()
        self._initialized = False
        self._signed_out = False
        self._version = 1
        self._shows_queue = False
        self._connection: Connection | None = None
        self._v2: AgentV2 | None = None
        self._methods: dict[str, Method] = {}
        if initialize_params is not None:
            self._set_client(initialize_params)
        self._update_methods()

    def methods(self) -> dict[str, Method]:
        """The methods that are allowed now. The mapping changes with the client's version, and when the user signs in or out."""
        return self._methods

    def _v1_methods(self) -> dict[str, Method]:
        """The methods of ACP version 1 that this agent has, and those that are not stable yet."""
        of = self._agent.of_session
        return {
            **self._methods_of_both_versions(),
            "initialize": Method(acp.Initialize, self._initialize),
            "authenticate": Method(acp.Authenticate, self._authenticate),
            "logout": Method(acp.Logout, self._logout),
            "session/new": Method(acp.NewSession, self._agent.new),
            "session/load": Method(acp.LoadSession, self._agent.load),
            "session/resume": Method(acp.LoadSession, self._agent.resume),
            "session/fork": Method(acp.LoadSession, self._agent.forks.fork),
            "session/close": Method(acp.SessionParams, self._agent.close),
            "session/set_mode": Method(acp.SetMode, of(one.set_mode)),
            "session/set_model": Method(acp.SetModel, of(one.set_model)),
            "session/set_config_option": Method(acp.SetConfigOption, of(one.set_option)),
            "session/prompt": Method(acp.Prompt, self._agent.prompt),
            # The name of this extension is shared with other agents.
            "_session/steering": Method(acp.Prompt, self._agent.steer),
        }

    def _methods_of_both_versions(self) -> dict[str, Method]:
        """The methods that are the same in both versions: some of the protocol, and extensions of our own."""
        of = self._agent.of_session
        return {
            **self._providers.methods(),
            "session/list": Method(acp.ListSessions, self._agent.list),
            "session/set_title": Method(acp.SetTitle, self._agent.set_title),
            "session/delete": Method(acp.SessionParams, self._agent.delete),
            "session/cancel": Method(acp.Cancel, self._agent.cancel, notification=True),
            "_cantrip/context": Method(acp.SessionParams, of(one.next_query)),
            "_cantrip/queue/list": Method(acp.SessionParams, of(one.queue_list)),
            "_cantrip/queue/edit": Method(acp.QueueEdit, of(one.queue_edit)),
            "_cantrip/queue/remove": Method(acp.QueueEntry, of(one.queue_remove)),
            "_cantrip/queue/send_now": Method(acp.QueueEntry, of(one.queue_send_now)),
            "_cantrip/tool_call/cancel": Method(acp.CancelToolCall, of(one.cancel_tool_call)),
            "_cantrip/mcp/list": Method(acp.SessionParams, of(one.mcp_list)),
            "_cantrip/mcp/restart": Method(acp.McpRestart, of(one.mcp_restart)),
            "_cantrip/services/list": Method(acp.SessionParams, of(one.services_list)),
            "_cantrip/services/output": Method(acp.ServiceParams, of(one.services_output)),
            "_cantrip/services/stop": Method(acp.ServiceParams, of(one.services_stop)),
            "_cantrip/models/local": Method(acp.Incoming, self._local_models),
            "_cantrip/models/refresh": Method(acp.SessionParams, of(one.refresh_models)),
            "_cantrip/sign_in/list": Method(acp.Incoming, self._sign_in_list),
            "_cantrip/sign_in/models": Method(acp.ServedModels, self._served_models),
            "_cantrip/sign_in": Method(acp.SignIn, self._sign_in),
            **{f"_cantrip/{name}": Method(acp.FileRequest, of(one.files)) for name in one.FILE_METHODS},
        }

    def _update_methods(self) -> None:
        """Update the mapping that the connection uses: before ``initialize`` only that method (ACP, Initialization), and
        after a sign-out no new session that needs a key."""
        served = self._v2_methods() if self._version == 2 else self._v1_methods()
        if not self._initialized:
            refused = Method(Any, self._refuse_before_initialize)
            served = {name: each if each.notification else refused for name, each in served.items()}
            served["initialize"] = Method(acp.Initialize, self._initialize)
        elif self._signed_out:
            served |= dict.fromkeys(_NEED_A_KEY, Method(Any, self._refuse_signed_out))
        self._methods.clear()
        self._methods |= served

    def _refuse_before_initialize(self, params: Any, request: Request) -> Any:
        raise RpcError(
            INVALID_REQUEST,
            f"Invalid request: {request.method} came before initialize; send initialize first",
            {"method": request.method},
        )

    def _refuse_signed_out(self, params: Any, request: Request) -> Any:
        raise RpcError(
            AUTH_REQUIRED,
            "Authentication required: you have signed out; choose a way to sign in again",
            {"methodId": AUTH_METHOD},
        )

    async def serve(
        self, connection: Connection, *, finish_requests: bool = False, on_end: Callable[[float], None] | None = None
    ) -> None:
        """Serve until the client closes the connection. Then all turns and processes are stopped and all looms closed.

        Set ``finish_requests`` if the input is a file: at its end the open requests are still answered. ``on_end`` is
        called when the shutdown begins, with the seconds that open requests still get.
        """
        self._connection = self._agent.connection = connection
        self._providers.activate()
        if self._version == 2:
            self._speak_v2(connection)

        def on_disconnect() -> float:
            turns = self._agent.running()
            grace = TURN_GRACE if turns else REQUEST_GRACE
            if on_end is not None:
                on_end(grace)
            for session in turns:
                session.queue.cancel_all(client_left=True)
                session.prompts.cancel()
            return grace

        try:
            await connection.run(on_disconnect, finish_requests=finish_requests)
        finally:
            with anyio.CancelScope(shield=True):
                await self._agent.close_all()

    # --- methods -----------------------------------------------------------------------------------------------------

    def _initialize(self, params: acp.Initialize, request: Request) -> dict[str, Any]:
        if not accepts_version(params.protocol_version):
            missing = params.protocol_version is None
            raise invalid_params(
                "required, and missing" if missing else "must be an integer from 0 up", "protocolVersion"
            )
        given = {
            "protocolVersion": params.protocol_version,
            "clientCapabilities": params.client_capabilities,
            "info": params.info,
            "capabilities": params.capabilities,
        }
        self._set_client(given)
        if self._version == 2 and self._connection is not None:
            self._speak_v2(self._connection)
        return negotiated_result(given)

    def _set_client(self, params: dict[str, Any]) -> None:
        """Take the version and the abilities of the client from the parameters of ``initialize``."""
        if asks_for_v2(params):
            from cantrip_acp.acp.v2.initialize import v1_capabilities

            self._version = 2
            given = params.get("capabilities")
            self._shows_queue = isinstance(given, dict) and acp.asks_for_queue(given.get("_meta"))
            client = replace(acp.ClientAbilities.of(v1_capabilities(params)), joins_messages=False)
        else:
            client = acp.ClientAbilities.of(params.get("clientCapabilities"))
        self._agent.client = client
        self._agent.factory.asks_user = client.urls or client.forms
        self._initialized = True
        self._update_methods()

    def _v2_methods(self) -> dict[str, Method]:
        """The methods of version 2, once the connection is known."""
        if self._v2 is None:
            return {}
        return {
            **self._methods_of_both_versions(),
            "auth/login": Method(acp.Authenticate, self._authenticate),
            "auth/logout": Method(acp.Logout, self._logout),
            **self._v2.methods(),
        }

    def _speak_v2(self, connection: Connection) -> None:
        """Speak version 2 from now on."""
        from cantrip_acp.acp.v2.agent import AgentV2
        from cantrip_acp.acp.v2.client import Client

        client = Client(connection, shows_queue=self._shows_queue)
        # Sessions use it as a connection. It passes on what it does not change.
        self._agent.connection = cast("Connection", client)
        self._v2 = AgentV2(self._agent, client)
        self._update_methods()

    async def _authenticate(self, params: acp.Authenticate, request: Request) -> dict[str, Any]:
        """Let the user enter a key if the method is the page. Then check that a key exists."""
        client = self._agent.client
        known = [
            AUTH_METHOD,
            LOCAL_METHOD,
            *([TERMINAL_METHOD] if client.auth_terminal else []),
            *([PAGE_METHOD] if client.urls else []),
        ]
        if params.method_id not in known:
            raise invalid_params(f"unknown method {params.method_id[:100]!r}; known: {', '.join(known)}", "methodId")
        if params.method_id == PAGE_METHOD:
            from cantrip_acp.acp.client_services.key_page import sign_in_on_page

            await sign_in_on_page(self._agent.connection, request)
        elif params.method_id == LOCAL_METHOD:
            await self._use_local_model(params.meta)
        await self._check_key()
        return {}

    async def _check_key(self) -> None:
        """Check that the default recipe has a crystal now. Raises `RpcError` -32000 if its key is missing."""
        before, self._recipes.signed_out = self._recipes.signed_out, False
        try:
            await anyio.to_thread.run_sync(self._recipes.cantrip, Path.cwd())
        except MissingKey as missing:
            self._recipes.signed_out = before
            raise auth_required(missing) from None
        except CantripError as problem:
            # Only a missing key matters here. session/new reports all other problems of a recipe.
            log.info("authenticate: %s", problem)
        self._signed_out = False
        self._update_methods()
        await self._agent.renew_crystals()

    async def _use_local_model(self, meta: Any) -> None:
        """Make the model that ``_meta.cantrip.crystal`` names the default crystal."""
        from cantrip_acp.acp.login import use_local_model

        crystal = meta_of(meta, acp.AuthenticateMeta, "cantrip").crystal
        try:
            await anyio.to_thread.run_sync(use_local_model, crystal)
        except LookupError as problem:
            raise invalid_params(str(problem.args[0]), "_meta.cantrip.crystal") from None
        except OSError as problem:
            raise RpcError(INTERNAL_ERROR, f"The choice cannot be saved: {problem.strerror or problem}") from None

    async def _local_models(self, params: acp.Incoming, request: Request) -> dict[str, Any]:
        """``_cantrip/models/local``: the models that need no key, because a server on this machine offers them."""
        from cantrip_acp.acp.login import local_models

        return {"models": await anyio.to_thread.run_sync(local_models, abandon_on_cancel=True)}

    async def _sign_in_list(self, params: acp.Incoming, request: Request) -> dict[str, Any]:
        """``_cantrip/sign_in/list``: the providers that need a key, and the models that this machine can run itself."""
        from cantrip_acp.acp.login import embedded_models, key_providers

        return {
            "providers": await anyio.to_thread.run_sync(key_providers),
            "embedded": await anyio.to_thread.run_sync(embedded_models),
        }

    async def _served_models(self, params: acp.ServedModels, request: Request) -> dict[str, Any]:
        """``_cantrip/sign_in/models``: the models that a server lists, with a key that is not saved yet."""
        from cantrip_acp.acp.login import CannotSignIn, served_models

        try:
            return await anyio.to_thread.run_sync(
                served_models, params.provider, params.key.strip(), params.base_url, abandon_on_cancel=True
            )
        except CannotSignIn as problem:
            raise RpcError(INVALID_PARAMS, str(problem)) from None

    async def _sign_in(self, params: acp.SignIn, request: Request) -> dict[str, Any]:
        """``_cantrip/sign_in``: saves a key, an address and a model. The reply names the ``crystal``, and in ``overridden``
        the variables that the agent's environment sets to something else."""
        from cantrip_acp.acp.login import CannotSignIn, use_model
        from cantrip_acp.crystals.keys import Secret

        # From here on it is masked wherever it might be shown.
        key = Secret(params.key.strip())
        try:
            crystal, overridden = await anyio.to_thread.run_sync(
                use_model, params.provider, key.reveal(), params.base_url, params.model
            )
        except CannotSignIn as problem:
            raise RpcError(INVALID_PARAMS, str(problem)) from None
        except OSError as problem:
            raise RpcError(INTERNAL_ERROR, f"The key cannot be saved: {problem.strerror or problem}") from None
        await self._check_key()
        return {"crystal": crystal, "overridden": overridden}

    async def _logout(self, params: acp.Logout, request: Request) -> dict[str, Any]:
        """Delete the keys that `cantrip-acp --sign-in` saved. Open sessions continue. A new session that needs a key
        needs `authenticate` first."""
        from cantrip_acp.acp.login import sign_out

        try:
            await anyio.to_thread.run_sync(sign_out)
        except OSError as problem:
            raise RpcError(INTERNAL_ERROR, f"The key cannot be deleted: {problem.strerror or problem}") from None
        self._recipes.signed_out = True
        try:
            await anyio.to_thread.run_sync(self._recipes.cantrip, Path.cwd())
            self._signed_out = False
        except MissingKey:
            self._signed_out = True
        except CantripError as problem:
            # session/new reports all other problems of a recipe.
            log.info("logout: %s", problem)
        self._update_methods()
        return {}


async def serve(
    reader: Any,
    writer: Any,
    *,
    recipe: str | None = None,
    state_dir: Path | str | None = None,
    cantrips: CantripFactory | None = None,
) -> None:
    """Serve ACP over two streams until the reader ends. Use this function to embed the agent in your program.

    ``reader`` and ``writer`` are anyio byte streams, asyncio's `StreamReader` and `StreamWriter`, binary files or file
    descriptors. They stay open. ``recipe`` and ``state_dir`` mean the same as the options of the command line.
    ``cantrips`` makes the cantrip of each session in place of a recipe. When `serve` returns, nothing is left running.
    """
    receive, send, finish_requests = byte_streams(reader, writer)
    agent = make_agent(recipe, state_dir, cantrips=cantrips)
    await agent.serve(Connection(receive, send, agent.methods(), masked=True), finish_requests=finish_requests)


def make_agent(
    recipe: str | None,
    state_dir: Path | str | None,
    *,
    cantrips: CantripFactory | None = None,
    initialize_params: dict[str, Any] | None = None,
) -> Server:
    """Make an agent for a recipe. If ``recipe`` is None, the agent uses the built-in recipe (`sessions.factory.Recipes`)."""
    folder = paths.state_dir(state_dir)
    factory = SessionFactory(Recipes(recipe, folder, cantrips), SessionStore(folder))
    return Server(factory, initialize_params=initialize_params)
