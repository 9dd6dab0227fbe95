"""The client of a connection in version 2: sends what sessions send, in the words of version 2, and tells their state.

It stands in the place of the connection for the sessions, so that they are the same in both versions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio

from cantrip_acp.acp import protocol as acp
from cantrip_acp.acp.sessions.prompt.prompt_queue import QUEUE_CHANGED
from cantrip_acp.acp.sessions.prompt.prompts import OpenPrompt
from cantrip_acp.acp.v2.render import content_blocks, permission_request, render
from cantrip_acp.acp.wire.jsonrpc import ErrorObject, FailureNotification, Notification, RpcError
from cantrip_acp.types.records import new_id

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from cantrip_acp.acp.wire.connection import Connection, Request


class ToldPrompt(OpenPrompt):
    """A prompt that waits or runs, and whose progress the client sees. ``message_id`` is set when its message was inserted."""

    def __init__(self, params: acp.Prompt, request: Request, client: Client) -> None:
        super().__init__(params, request)
        self._client = client
        self.begun = False
        """Whether the prompt runs or has run. A prompt that was sent into the running one never does."""
        self.message_id: str | None = None
        self.error: RpcError | None = None
        self.answerable = anyio.Event()
        """Set when the request can be answered: the message was inserted, or the prompt ended before."""
        self.ended = anyio.Event()
        self.questions = 0
        """The number of questions that the user has not answered."""

    def begin(self) -> None:
        self.begun = True
        self._client.sort(self)

    def cast_started(self, cast_id: str) -> None:
        # The same id as in the history (`render.loaded_session`).
        self._client.insert(self, f"{cast_id}:intent")

    def delivered(self, message_id: str) -> None:
        self.message_id = message_id
        self.answerable.set()

    def answered_beside(self) -> None:
        self._client.insert(self)


class Client:
    """Sends the updates of sessions to a client of version 2."""

    def __init__(self, connection: Connection, *, shows_queue: bool) -> None:
        """``shows_queue``: the client wants to see the prompts that wait (``_cantrip/queue_changed``)."""
        self._connection = connection
        self._shows_queue = shows_queue
        self._prompts: dict[str, list[ToldPrompt]] = {}
        """By session id: the prompts that have begun, in that order, and then those that wait."""
        self._children: set[str] = set()
        """The sessions of children."""

    def __getattr__(self, name: str) -> Any:
        # All else is the same in both versions: background tasks, waiting for a slow reader.
        return getattr(self._connection, name)

    # --- what sessions send ------------------------------------------------------------------------------------------

    def notify_now(self, method: str, params: Any) -> None:
        if method == QUEUE_CHANGED and not self._shows_queue:
            return
        if not isinstance(params, acp.SessionNotification):
            self._connection.notify_now(method, params)
            return
        prompt = self.running(params.session_id)
        if (
            prompt is not None
            and prompt.message_id is None
            and isinstance(params.update, acp.AgentMessageChunk | acp.ToolCall)
        ):
            # The answer of a slash command, which is no cast.
            self.insert(prompt)
        if isinstance(params.update, acp.SubagentUpdate):
            self._children.add(params.update.session_id)
        for session_id, update in render(
            params.session_id, params.update, of_child=params.session_id in self._children
        ):
            self._send(session_id, update)

    async def request(self, method: str, params: Any, result: Any = Any) -> Any:
        session_id = getattr(params, "session_id", None)
        if isinstance(params, acp.RequestPermission):
            params = permission_request(params)
        prompt = self.running(session_id) if isinstance(session_id, str) else None
        if prompt is None:
            return await self._connection.request(method, params, result)
        # A slash command may ask before it says anything.
        self.insert(prompt)
        prompt.questions += 1
        if prompt.questions == 1:
            self._state(prompt.params.session_id, "requires_action")
        try:
            return await self._connection.request(method, params, result)
        finally:
            prompt.questions -= 1
            if not prompt.questions and not prompt.ended.is_set():
                self._state(prompt.params.session_id, "running")

    # --- prompts -----------------------------------------------------------------------------------------------------

    def running(self, session_id: str) -> ToldPrompt | None:
        """The running prompt of a session: the first one that has begun."""
        return next((each for each in self._prompts.get(session_id, ()) if each.begun), None)

    def add(self, params: acp.Prompt, request: Request) -> ToldPrompt:
        """Add a prompt, which begins at once or waits."""
        prompt = ToldPrompt(params, request, self)
        self._prompts.setdefault(params.session_id, []).append(prompt)
        return prompt

    def remove(self, prompt: ToldPrompt) -> None:
        """Remove a prompt that has ended or was refused."""
        prompts = self._prompts[prompt.params.session_id]
        prompts.remove(prompt)
        if not prompts:
            del self._prompts[prompt.params.session_id]

    def sort(self, begun: ToldPrompt) -> None:
        """Order the prompts by their start. "Send now" changes the order in which prompts begin."""
        self._prompts.get(begun.params.session_id, []).sort(key=lambda each: (not each.begun, each is begun))

    async def all_ended(self, session_id: str) -> None:
        """Wait until no prompt of a session runs or waits."""
        for prompt in tuple(self._prompts.get(session_id, ())):
            await prompt.ended.wait()

    def insert(self, prompt: ToldPrompt, message_id: str = "") -> None:
        """Make the message of a prompt part of the conversation, with this id or a new one."""
        if prompt.message_id is not None:
            return
        session_id = prompt.params.session_id
        prompt.message_id = message_id = message_id or f"{new_id('m')}:intent"
        if prompt is self.running(session_id):
            self._state(session_id, "running")
        content = content_blocks(prompt.params.prompt)
        self._send(session_id, {"sessionUpdate": "user_message", "messageId": message_id, "content": content})
        prompt.answerable.set()

    async def run(self, prompt: ToldPrompt, work: Awaitable[acp.PromptResult]) -> None:
        """Await the work of a prompt, and report its end as a state. If it ends before its message was inserted, its request
        is answered with the error, or as cancelled."""
        session_id = prompt.params.session_id
        end: dict[str, Any] = {"stopReason": "cancelled"}
        try:
            result = await work
            end = {"stopReason": result.stop_reason}
            if result.meta is not None:
                end["_meta"] = result.meta
            if result.stop_reason != "cancelled":
                self.insert(prompt)
        except RpcError as problem:
            prompt.error = problem
            end = {"stopReason": "error", "error": ErrorObject.of(problem)}
        finally:
            # The command /queue, and a prompt that was sent into the running one, have no states of their own.
            ran = prompt is self.running(session_id)
            self.remove(prompt)
            prompt.ended.set()
            if ran and prompt.message_id is not None:
                self._state(session_id, "idle", **end)
            prompt.answerable.set()

    def idle(self, session_id: str) -> None:
        """Report that a session that was opened is idle."""
        self._state(session_id, "idle")

    def _state(self, session_id: str, state: str, **more: Any) -> None:
        self._send(session_id, {"sessionUpdate": "state_update", "state": state, **more})

    def _send(self, session_id: str, update: dict[str, Any]) -> None:
        kind = FailureNotification if "error" in update else Notification
        self._connection.notify_now("session/update", {"sessionId": session_id, "update": update}, kind)
