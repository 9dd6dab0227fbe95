"""The methods that version 2 has in its own words, each by the handler of version 1 that does the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from cantrip_acp.acp import protocol as acp
from cantrip_acp.acp.initialize import initialize_result
from cantrip_acp.acp.sessions.session_methods import cancel_tool_call, set_option
from cantrip_acp.acp.v2.client import Client, ToldPrompt
from cantrip_acp.acp.v2.initialize import VERSION, result_of_v1, v1_capabilities
from cantrip_acp.acp.v2.render import option
from cantrip_acp.acp.wire.connection import Method, Request
from cantrip_acp.acp.wire.jsonrpc import (
    INVALID_REQUEST,
    REQUEST_CANCELLED,
    RESOURCE_NOT_FOUND,
    RpcError,
    invalid_params,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from cantrip_acp.acp.sessions.agent import Agent


class ReplayFrom(acp.Incoming, kw_only=True):
    type: Literal["start"]


class Resume(acp.LoadSession, kw_only=True):
    """Parameters of ``session/resume``: with ``replay_from`` the history is sent before the reply."""

    replay_from: ReplayFrom | None = None


class AgentV2:
    def __init__(self, agent: Agent, client: Client) -> None:
        self._agent = agent
        self._client = client

    def methods(self) -> dict[str, Method]:
        """The methods that differ from those of version 1. `server` adds those that are the same in both."""
        return {
            "initialize": Method(acp.Initialize, self._initialize),
            "session/new": Method(acp.NewSession, self._new),
            "session/fork": Method(acp.LoadSession, self._fork),
            "session/resume": Method(Resume, self._resume),
            "session/close": Method(acp.SessionParams, self._close),
            "session/set_config_option": Method(acp.SetConfigOption, self._set_option),
            "session/prompt": Method(acp.Prompt, self._prompt),
            "tool_call/cancel": Method(acp.CancelToolCall, self._agent.of_session(cancel_tool_call)),
            "_session/steering": Method(acp.Prompt, self._steer),
        }

    def _initialize(self, params: acp.Initialize, request: Request) -> dict[str, Any]:
        if not isinstance(params.protocol_version, int) or params.protocol_version < VERSION:
            raise RpcError(INVALID_REQUEST, "Invalid request: this connection speaks version 2 already")
        return result_of_v1(initialize_result(v1_capabilities({"capabilities": params.capabilities})))

    # --- sessions ----------------------------------------------------------------------------------------------------

    async def _new(self, params: acp.NewSession, request: Request) -> dict[str, Any]:
        return _reply(await self._agent.new(params, request))

    async def _fork(self, params: acp.LoadSession, request: Request) -> dict[str, Any]:
        return _reply(await self._agent.forks.fork(params, request))

    async def _resume(self, params: Resume, request: Request) -> dict[str, Any]:
        work = self._agent.resume if params.replay_from is None else self._agent.load
        found = await work(params, request)
        self._client.idle(params.session_id)
        return _reply(found)

    async def _close(self, params: acp.SessionParams, request: Request) -> dict[str, Any]:
        try:
            await self._agent.close(params, request)
        except RpcError as problem:
            # Closing a session that is not open is no error in version 2.
            if problem.code != RESOURCE_NOT_FOUND:
                raise
        await self._client.all_ended(params.session_id)
        return {}

    async def _set_option(self, params: acp.SetConfigOption, request: Request) -> dict[str, Any]:
        if params.type not in ("id", "boolean") or isinstance(params.value, bool) is not (params.type == "boolean"):
            raise invalid_params("must be a value of its type, id or boolean", "value")
        found = await set_option(self._agent.sessions.session(params.session_id), params, request)
        return {"configOptions": [option(each) for each in found.config_options]}

    # --- prompts -----------------------------------------------------------------------------------------------------

    def _prompt(self, params: acp.Prompt, request: Request) -> Awaitable[dict[str, Any]]:
        """Answer as soon as the message is part of the conversation. The end of the prompt is a state of the session.

        A prompt during another one waits, and so does its answer.
        """
        if not params.prompt:
            raise invalid_params("must not be empty", "prompt")
        prompt = self._client.add(params, request)
        try:
            work = self._agent.prompt(params, request, prompt)
        except RpcError:
            self._client.remove(prompt)
            raise
        self._client.start_task(lambda: self._client.run(prompt, work))
        return self._inserted(prompt)

    async def _steer(self, params: acp.Prompt, request: Request) -> dict[str, Any]:
        """A message that starts a prompt is inserted, and ends with a state, like one of ``session/prompt``."""
        return await self._agent.steer(params, request, self._prompt)

    async def _inserted(self, prompt: ToldPrompt) -> dict[str, Any]:
        await prompt.answerable.wait()
        if prompt.message_id is None:
            raise prompt.error or RpcError(REQUEST_CANCELLED, "Request cancelled")
        return {"messageId": prompt.message_id}


def _reply(state: acp.SessionState) -> dict[str, Any]:
    """The state of a session in a reply of version 2."""
    found: dict[str, Any] = {}
    if state.session_id is not None:
        found["sessionId"] = state.session_id
    if state.config_options is not None:
        found["configOptions"] = [option(each) for each in state.config_options]
    if state.meta is not None:
        found["_meta"] = state.meta
    return found
