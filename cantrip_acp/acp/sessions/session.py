"""Session: one entity in one folder, and its running prompt (ACP, Session Setup and Prompt Turn).

A prompt is a cast. All its updates are sent before its reply. A session runs one prompt at a time. Others wait in its queue
(`prompt_queue`) if the client asks for that. After a cancelled prompt it takes the next one.
"""

from __future__ import annotations

import gc
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import anyio
import anyio.lowlevel
import anyio.to_thread
import msgspec

from cantrip_acp.acp import protocol as acp
from cantrip_acp.acp.client_services.gate_router import GateRouter
from cantrip_acp.acp.errors import session_busy, session_not_ready
from cantrip_acp.acp.permissions.edits import Decision
from cantrip_acp.acp.permissions.interceptor import Permissions
from cantrip_acp.acp.permissions.request import PermissionAsked, ask_client
from cantrip_acp.acp.render.event_translator import STOP_REASONS, Translator
from cantrip_acp.acp.render.formatting import MessageSeparator
from cantrip_acp.acp.render.notices import notice
from cantrip_acp.acp.sessions.factory import permission_change
from cantrip_acp.acp.sessions.options import modes
from cantrip_acp.acp.sessions.options.config_options import SessionOptions
from cantrip_acp.acp.sessions.prompt.cast_updates import CastUpdates
from cantrip_acp.acp.sessions.prompt.prompt_queue import PromptQueue
from cantrip_acp.acp.sessions.prompt.steering import Steering
from cantrip_acp.acp.sessions.session_interface import Notes
from cantrip_acp.acp.wire.jsonrpc import INTERNAL_ERROR, RpcError, invalid_params, meta_of
from cantrip_acp.crystals.http_clients import prepare_in_background
from cantrip_acp.telemetry import tracing
from cantrip_acp.text.logs import logger
from cantrip_acp.types.errors import CantripError, CrystalError, IntentRequired
from cantrip_acp.types.records import ConfigRecord, new_id, now

if TYPE_CHECKING:
    from cantrip_acp.acp.permissions.interceptor import Question
    from cantrip_acp.acp.sessions.commands.slash_commands import Command
    from cantrip_acp.acp.sessions.factory import OpenedSession, SessionFactory
    from cantrip_acp.acp.sessions.prompt.prompt_content import Link
    from cantrip_acp.acp.sessions.session_store import Grant, SessionMetadata
    from cantrip_acp.acp.wire.connection import Connection, Request
    from cantrip_acp.core.casting.result import CastResult
    from cantrip_acp.core.entity import Entity
    from cantrip_acp.gates.contract import GateSource
    from cantrip_acp.gates.mcp.declaration import McpServer
    from cantrip_acp.recipes.recipe import Recipe
    from cantrip_acp.types.context_block import ContextBlock

T = TypeVar("T")

log = logger(__name__)
_USUAL_THRESHOLD = (700, 10, 10)
"""Python's own threshold of the garbage collector."""

ENDS_WITHIN, ENDS_WITHIN_KILLED = 1.0, 5.0
"""Seconds that a cancelled prompt gets to end, and seconds that it gets after its processes were killed."""


class OpenPrompt:
    """A prompt and its request. The session reports its progress here. In version 1 the reply says everything; in version 2
    the client gets updates (`acp.v2.client`). ``params`` change if the user edits the prompt while it waits."""

    def __init__(self, params: acp.Prompt, request: Request) -> None:
        self.params = params
        self.request = request

    def begin(self) -> None:
        """Called when the session begins to work on the prompt."""

    def cast_started(self, cast_id: str) -> None:
        """Called when a cast with the text of the prompt has started."""

    def delivered(self, message_id: str) -> None:
        """Called when the entity received the prompt while another one runs. The update with its text follows
        (`types.events.Steered`)."""

    def answered_beside(self) -> None:
        """Called if the prompt is a command that is answered while another prompt runs."""


class _PromptRun:
    """What a prompt leaves behind from its begin to its end."""

    def __init__(self) -> None:
        self.prompt: OpenPrompt | None = None
        self.answer: Any = None
        """The result of its last cast."""
        self.notes: list[str] = []
        """The notes that the entity got before its last intent."""
        self.closes_loom = False
        """Whether it must close the loom when it ends."""
        self.ended = anyio.Event()


class MakesForks(Protocol):
    async def to_disk(self, source: Session, turn_id: str) -> str: ...


class Agent(Protocol):
    """The part of the connection's agent that a session uses (`acp.sessions.agent`)."""

    connection: Connection
    client: acp.ClientAbilities
    factory: SessionFactory

    @property
    def forks(self) -> MakesForks: ...


class Session:
    """One session. Its permissions exist before its entity, which needs them: `begin_with` gives it the entity.

    ``trace`` is the trace from ``session/new``; prompts without a trace use it. ``sources`` are the MCP servers that the client
    named in addition to those of the recipe.
    """

    opened: OpenedSession
    metadata: SessionMetadata
    entity: Entity

    def __init__(
        self, agent: Agent, session_id: str, trace: tracing.Trace | None, sources: Sequence[GateSource] = ()
    ) -> None:
        self.id = session_id
        self.client = agent.client
        self.connection = agent.connection
        self.trace = trace
        self.sources = sources
        self._agent = agent
        self.translator = Translator(agent.client, session_id)
        self.permissions = Permissions(
            self.ask, self._remember, GateRouter(self), self._without_checkpoints, agent.factory.store.folder.parent
        )
        self.options = SessionOptions(self, agent.factory)
        self.queue = PromptQueue(self)
        self.steering = Steering(self)
        self.notes = Notes()
        self.running = False
        """Whether a prompt runs."""
        self.mode_chosen = False
        """Whether the user chose the present mode since the session was opened."""
        self.closing = False
        self.in_use_by_client = True
        """Whether a client uses this session; False for one that was opened only to fork it."""
        self.fork_count = 0
        """The number of forks of this session that are being made now."""
        self.loom_read = anyio.Lock()
        """Lock for threads that read the loom. The loom must stay open while they read, because a closed file descriptor
        may be reused for another file."""
        self._replaying = False
        self.cancelled = False
        self._run = _PromptRun()
        """The prompt that runs, or ran last."""
        self._closed = anyio.Event()
        self._cancellable_waits: set[anyio.CancelScope] = set()
        self._separator = MessageSeparator()

    def begin_with(self, opened: OpenedSession, meta: Any = None) -> None:
        """Begin with an entity that was opened with the `permissions` of this session. ``meta`` is ``_meta`` of the request."""
        self.opened, self.metadata = opened, opened.metadata
        self.notes.context = list(opened.context)
        self.entity = opened.entity
        self.entity.requests.named = self.client.request_ids or bool(meta_of(meta, acp.SessionMeta).request_edges)
        self.use_entity(opened.entity, opened.recipe)
        # A fork's own turns are counted from 1 in the loom.
        self.translator.turns_before = opened.restored.turns - opened.entity.sequence
        self.permissions.mode, self.permissions.granted = self.metadata.mode, list(self.metadata.granted)
        if self.metadata.queued:
            texts = "\n".join(f"- {text}" for text in self.metadata.queued)
            self.notes.user.append(f"These prompts were waiting when the agent ended, and never started:\n{texts}")
            self.metadata.queued = []
            self.save()
        if opened.mode_reason:
            self.notes.user.append(
                f"This session asks before each change and each command, because {opened.mode_reason}."
            )

    def use_entity(self, entity: Entity, recipe: Recipe | None) -> None:
        """Continue with another entity, which continues from the turns of the previous one."""
        self.translator.turns_before += self.entity.sequence - entity.sequence
        entity.requests.named = self.entity.requests.named
        self.entity = self.opened.entity = entity
        self.opened.recipe = recipe

    def save(self) -> None:
        """Store the session's metadata. A failure is only logged (`SessionFactory.try_save_metadata`)."""
        self._agent.factory.try_save_metadata(self.opened)

    def state(self, *, session_id: str | None = None) -> acp.SessionState:
        """The state of the session for a reply. Pass ``session_id`` if the client does not know the id yet."""
        from cantrip_acp.acp.permissions.allowed import allowed_of

        entity, opened = self.entity, self.opened
        about: dict[str, Any] = {
            "cantrip": {
                "recipe": entity.cantrip.name,
                "entity_id": entity.id,
                "loom": entity.loom.location,
                "allowed": allowed_of(entity.cantrip, entity.circle).record(),
                **({"turns": opened.restored.turns, "state": opened.restored.state} if opened.restored.turns else {}),
                **({"forkedFrom": self.metadata.forked_from} if self.metadata.forked_from is not None else {}),
            }
        }
        if self.trace is not None:
            about["cantrip_trace_id"] = self.trace.trace_id
        return acp.SessionState(
            session_id=session_id,
            modes=modes.state(self.metadata.mode),
            config_options=self.options.listed(),
            models=self.options.models(),
            meta=about,
        )

    def after_reply(self, request: Request, *, before_reply: bool = False) -> None:
        """Schedule the work that follows the reply to a request that opens the session. The reply does not wait for it.

        With ``before_reply`` the list of slash commands is sent before the reply, because the reply to ``session/load``
        must come after all updates (ACP, Session Setup).
        """
        if before_reply:
            self._send_commands()
        else:
            # In a task, because its imports would delay the reply that was queued.
            request.after.append(lambda: self.connection.start_task(self._send_commands_later))
        request.after.append(lambda: self.connection.start_task(self.warm))
        if self._agent.factory.finds_servers:
            request.after.append(lambda: self.connection.start_task(self.options.look_for_local_servers))

    async def _send_commands_later(self) -> None:
        await anyio.lowlevel.checkpoint()
        self._send_commands()

    def _send_commands(self) -> None:
        from cantrip_acp.acp.sessions.commands import slash_commands

        self.send_now(slash_commands.commands_update())

    # --- prompts -----------------------------------------------------------------------------------------------------

    def prompt(self, prompt: OpenPrompt) -> Awaitable[acp.PromptResult]:
        """Mark the session as busy with a prompt, and return the work of the prompt. A prompt during another one waits in the
        queue if the client asks for that."""
        if self.running and (command := _queue_command(prompt.params)) is not None:
            prompt.answered_beside()
            return self._run_command(*command)
        if self.running and (self.client.queues_prompts or acp.asks_for_queue(prompt.params.meta)):
            return self.queue.add(prompt)
        return self.start(prompt)

    def start(self, prompt: OpenPrompt) -> Awaitable[acp.PromptResult]:
        """Mark the session as busy with a prompt, which may have waited, and return its work."""
        from cantrip_acp.acp.sessions.prompt.prompt_content import read_request

        asked = read_request(prompt.params, self.trace, self.id)
        command = None
        if asked.intent is not None and asked.intent.lstrip().startswith("/"):
            from cantrip_acp.acp.sessions.commands import slash_commands

            command = slash_commands.parse_command(asked.intent)
        self.begin(prompt.request)
        self._run.prompt = prompt
        prompt.begin()
        self.in_use_by_client = True
        if command is not None:
            return self.run(self._run_command(*command), asked.trace)
        return self.run(self.cast(asked.intent, asked.context, asked.trace), asked.trace)

    async def _run_command(self, command: Command, rest: str) -> acp.PromptResult:
        from cantrip_acp.acp.sessions.commands import slash_commands

        text = await slash_commands.run_command(self, command, rest, self._agent.forks.to_disk)
        if text:
            self.send_now(acp.AgentMessageChunk(acp.TextContent(text), f"{new_id('m')}:command"))
        return acp.PromptResult("end_turn", {"cantrip": {"command": command.name}})

    def begin(self, request: Request) -> None:
        """Mark the session as busy with a prompt. Raises `RpcError` if a prompt runs, or if the session is being loaded or
        closed."""
        if self.closing:
            raise session_not_ready(self.id, "closed")
        if self.running:
            raise session_busy(self.id)
        if self._replaying:
            raise session_not_ready(self.id, "loaded")
        self.running = True
        self.opened.history = None
        self.cancelled, self._run, self.steering.late = False, _PromptRun(), False
        self._separator.last.clear()
        request.on_cancel = self.cancel

    async def run(self, work: Awaitable[acp.PromptResult], trace: tracing.Trace) -> acp.PromptResult:
        """Await the work of a prompt after `begin`, and then the casts of messages that came too late for its last query.
        Returns the last result. A failure becomes an `RpcError`."""
        result: acp.PromptResult | None = None
        error: RpcError | None = None
        try:
            result = await self._reported(work, trace.trace_id)
            while True:
                blocks: tuple[ContextBlock, ...] = ()
                if not self._was_cancelled() and (late := self.steering.take()) is not None:
                    intent, blocks = late
                elif (decided := await self._decide_on_plan()) is not None:
                    intent = decided
                elif self._was_cancelled():
                    result.stop_reason = "cancelled"
                    return result
                else:
                    return result
                result = await self._reported(self.cast(intent, blocks, trace), trace.trace_id)
        except RpcError as problem:
            error = problem
            raise
        finally:
            self.steering.report_undelivered()
            self.running = False
            self._run.ended.set()
            if self._run.closes_loom:
                self.opened.release()
            elif not self.closing:
                # The title, and the time of the last activity.
                self.save()
            self.queue.prompt_ended(result, error)

    async def _reported(self, work: Awaitable[acp.PromptResult], trace_id: str) -> acp.PromptResult:
        try:
            return await work
        except CantripError as problem:
            if self.cancelled:
                return acp.PromptResult("cancelled")
            # The client may send a failed intent again, so send the notes for the entity again too.
            self.notes.entity = self.notes.entity or self._run.notes
            text, status = str(problem), problem.status if isinstance(problem, CrystalError) else None
            raise RpcError(
                INTERNAL_ERROR,
                f"The prompt failed: {text}",
                {
                    "error": type(problem).__name__,
                    "details": text,
                    # The HTTP status of the provider. It helps a client to advise its user.
                    **({} if status is None else {"status": status}),
                    "cantrip_trace_id": trace_id,
                    # The last turn: work before the failure is kept, and the next prompt continues after it.
                    "cantrip": {"turn": self.entity.last_turn},
                },
            ) from None

    async def read(self, blocks: Sequence[acp.ContentBlock]) -> tuple[str, tuple[ContextBlock, ...]]:
        """Read the content of a message for the running prompt. Returns its text and the content of its links."""
        from cantrip_acp.acp.sessions.prompt.prompt_content import read_prompt

        intent, context = read_prompt(blocks)
        return intent, await self._read_links(context)

    async def steer(self, blocks: Sequence[acp.ContentBlock]) -> bool:
        """Give the entity a message before its next query. Returns False, and does nothing, if no prompt runs.

        A message that comes too late for the last query becomes the intent of another cast of the same prompt.
        """
        intent, context = await self.read(blocks)
        if not self.running or self._was_cancelled() or self.closing:
            return False
        self.permissions.hosts.add_from_text(intent)
        self.steering.add(intent, context)
        return True

    async def _decide_on_plan(self) -> str | None:
        """In plan mode, ask the user about the plan with which a cast has ended. Returns the intent of the next cast."""
        from cantrip_acp.acp.sessions.options.plan_mode import ask_about_plan, plan_in, shown_intent

        answer, self._run.answer = self._run.answer, None
        plan = plan_in(answer) if self.metadata.mode == modes.PLAN and not self._was_cancelled() else None
        if plan is None:
            return None
        call_id, forms = new_id("plan"), self.client.forms and not self.client.answer_notes
        ask = partial(ask_about_plan, self.connection, self.id, call_id, plan, self.send_now, forms=forms)
        decision = await self.until_cancelled(ask)
        if decision is None:
            self.send_now(acp.ToolCallUpdate(tool_call_id=call_id, status="failed"))
        if decision is None or decision.cancelled:
            self.cancelled = True
        if decision is None or self._was_cancelled():
            return None
        if decision.mode is not None:
            self._change_mode(decision.mode)
        if decision.intent is not None and self.client.turns:
            said = shown_intent(decision.intent, plan)
            self.send_now(acp.UserMessageChunk(acp.TextContent(said), f"{call_id}:intent"))
        return decision.intent

    def cancel(self) -> None:
        if not self.running:
            return
        self.cancelled = True
        self.entity.cancel()
        for scope in self._cancellable_waits:
            scope.cancel()

    async def warm(self) -> None:
        """Prepare the session for its first prompt, after the reply that opens it was sent."""
        await anyio.lowlevel.checkpoint()
        user_notes, self.notes.user = self.notes.user, []
        for text in user_notes:
            self.send_now(notice(text, self.client))
        prepare_in_background(self.entity.crystal)
        import cantrip_acp.acp.sessions.prompt.prompt_content  # noqa: F401 - the first prompt needs it

        try:
            # Otherwise the first prompt asks, and then connects.
            if not self._servers_to_install():
                await self.entity.warm()
            for text in self.entity.take_notices():
                self.send_now(notice(text, self.client))
        except Exception:
            # The first prompt has the same problem, and reports it to the user.
            log.warning("session %s could not be prepared", self.id, exc_info=True)
        if gc.get_threshold()[0] > _USUAL_THRESHOLD[0]:
            # The start is over (`acp.start`). What was imported stays, so it need not be searched for garbage any more.
            gc.freeze()
            gc.set_threshold(*_USUAL_THRESHOLD)

    async def close(self) -> None:
        """Cancel the running prompt, then close the entity and the loom. A second caller waits until that is done.

        The loom is closed after the end of the cast, because the end is written to the loom. A handler in a thread cannot
        be killed. If the cast does not end because of that, the loom stays open and locked until the cast ends.
        """
        if self.closing:
            await self._closed.wait()
            return
        self.closing = True
        try:
            self.queue.cancel_all()
            self.cancel()
            if self.running:
                with anyio.move_on_after(ENDS_WITHIN):
                    await self._run.ended.wait()
            await self.entity.close()
            if self.running:
                with anyio.move_on_after(ENDS_WITHIN_KILLED):
                    await self._run.ended.wait()
            async with self.loom_read:
                if self.running:
                    self._run.closes_loom = True
                    log.warning("a prompt of session %s does not end; its loom stays open until it does", self.id)
                else:
                    self.opened.release()
        finally:
            self._closed.set()

    async def replay(self) -> None:
        """Send the whole history. No prompt can start until it is sent. Raises `RpcError` if a prompt or another replay
        runs, or if the session is closed."""
        from cantrip_acp.acp.render.loaded_session import loaded_updates

        if self.running or self._replaying:
            raise session_busy(self.id)
        self._replaying, self.cancelled = True, False
        self._separator.last.clear()
        try:
            async with self.loom_read:
                updates = () if self.closing else await anyio.to_thread.run_sync(self._history_updates, loaded_updates)
            for at in range(0, len(updates), 64):
                if self.closing:
                    break
                await self.send(updates[at : at + 64])
                await anyio.lowlevel.checkpoint()
        finally:
            self._replaying = False
        if self.closing:
            raise session_not_ready(self.id, "closed")
        if self.metadata.title is not None:
            self.send_now(self.info())

    def _history_updates(self, loaded_updates: Callable[..., Iterable[acp.Update]]) -> Sequence[acp.Update]:
        # If the history was read when the session was opened, use it instead of reading it again.
        parts, self.opened.history = self.opened.history, None
        return list(loaded_updates(self.entity, self.client, parts, self.id))

    def send_now(self, update: acp.Update) -> None:
        """Send one update without waiting."""
        if isinstance(update, acp.OfChild):
            self.connection.notify_now("session/update", acp.SessionNotification(update.child_id, update.update))
            return
        if self.client.joins_messages:
            update = self._separator.separate(update)
        self.connection.notify_now("session/update", acp.SessionNotification(self.id, update))

    async def send(self, updates: Sequence[acp.Update]) -> None:
        """Send updates, and wait if the client reads slowly."""
        for update in updates:
            self.send_now(update)
        if self.connection.congested and not self.cancelled:
            await self.until_cancelled(self.connection.wait_for_space)

    async def cast(
        self, intent: str | None, context: Sequence[ContextBlock | Link], trace: tracing.Trace
    ) -> acp.PromptResult:
        """Run a prompt as a cast of the entity. If ``intent`` is None, the entity continues its last cast without a new
        message."""
        read = await self._read_links(context)
        context = read
        if intent is not None:
            context, self.notes.context = (*self.notes.context, *read), []
        self._run.notes = list(self.notes.entity)
        context = (*context, *await self.options.before_cast())
        if not self.entity.sources.connected:
            await self.install_servers()
        if self.cancelled:
            return acp.PromptResult("cancelled")
        options: dict[str, Any] = {"trace": trace}
        if intent is not None:
            self.permissions.hosts.add_from_text(intent)
            options["context"] = context
        try:
            async with self.entity.stream(intent, **options) as stream:
                await CastUpdates(self, self.steering, self._run.prompt, continues=intent is None).forward(stream)
        except IntentRequired as problem:
            raise invalid_params(f"The prompt is empty, and {problem}", "prompt") from None
        finally:
            for update in self.translator.close():
                self.send_now(update)
        result = stream.result
        self._run.answer = result.result if result.terminated else None
        reason = "cancelled" if self._was_cancelled() else STOP_REASONS.get(result.reason)
        if reason is None:
            raise RpcError(
                INTERNAL_ERROR, f"The prompt failed: {result.summary or result.reason}", {"details": result.reason}
            )
        about = _prompt_meta(result, self.entity.last_turn)
        if self.entity.requests.named:
            about[acp.REQUEST_EDGES] = {"edges": self.entity.requests.drain()}
        return acp.PromptResult(reason, about)

    async def unfinished_reason(self) -> str | None:
        """Why an empty prompt can continue the last answer (`core.history.continuation.unfinished_reason`). None if the
        answer is complete, and for a refusal, which would only be repeated."""
        from cantrip_acp.core.history.continuation import unfinished_reason

        async with self.loom_read:
            reason = await anyio.to_thread.run_sync(unfinished_reason, self.entity)
        return None if reason == "refusal" else reason

    def info(self) -> acp.SessionInfoChanged:
        """The title of the session, and the time of its last turn."""
        last = self.entity.last_turn
        when = self.entity.loom.turn(last).metadata.timestamp if last else None
        return acp.SessionInfoChanged(self.metadata.title, when)

    async def _read_links(self, context: Sequence[ContextBlock | Link]) -> tuple[ContextBlock, ...]:
        """Read the links of a prompt. Returns the context with their content, or without it if the prompt is cancelled."""
        if not context or self.cancelled:
            return ()
        from cantrip_acp.acp.sessions.prompt.prompt_content import read_links

        read = partial(read_links, self.entity, self.permissions.route, context, self._tell_unread)
        return await self.until_cancelled(read) or ()

    def _tell_unread(self, link: Link, why: str) -> None:
        """Tell the user about a link that the entity cannot read. This is not a message of the conversation, where it would
        be noise."""
        if self.client.notices:
            self.send_now(acp.Notice("warning", "Not attached", f"{link.name}: {why}"))

    def _servers_to_install(self) -> list[McpServer]:
        """The MCP servers that must be installed before the entity connects to them. None after it has connected."""
        if self.entity.sources.connected:
            return []
        unopened = [source for source, opened in self.entity.sources.listed() if opened is None]
        from cantrip_acp.gates.mcp.servers import to_install

        return to_install(unopened, self.entity.circle)

    async def install_servers(self) -> None:
        """Ask the user whether missing MCP servers may be installed. A prompt whose question is cancelled is cancelled."""
        missing = self._servers_to_install()
        if not missing or self._was_cancelled():
            return
        from cantrip_acp.acp.sessions.mcp_install import ask_and_install

        ask = partial(ask_and_install, self.connection, self.id, missing, self.entity.circle, self.send_now)
        if not await self.until_cancelled(ask):
            self.cancel()

    async def until_cancelled(self, work: Callable[[], Awaitable[T]]) -> T | None:
        """Await work for the running prompt. Returns None if the prompt is cancelled meanwhile."""
        with anyio.CancelScope() as scope:
            self._cancellable_waits.add(scope)
            try:
                return await work()
            finally:
                self._cancellable_waits.discard(scope)
        return None

    def _was_cancelled(self) -> bool:
        """Whether the prompt was cancelled. This may change at every ``await``."""
        return self.cancelled

    # --- permissions -------------------------------------------------------------------------------------------------

    def _remember(self, granted: Grant) -> None:
        self.metadata.granted.append(granted)
        changes = {"permission": permission_change(granted)}
        self.entity.loom.append(ConfigRecord(new_id("g"), self.entity.id, changes, now()))
        self._agent.factory.save_metadata(self.opened)

    def _change_mode(self, mode: str) -> None:
        """Set the mode without a request of the client, and tell the client: as the mode, and as an option."""
        try:
            self.options.set_mode(mode)
        finally:
            self.send_now(acp.CurrentMode(self.metadata.mode))
            self.send_now(acp.ConfigOptionsChanged(self.options.listed()))

    def _without_checkpoints(self, why: str) -> None:
        """React to missing checkpoints: as nothing can be undone, ask again before each change, and tell the user."""
        note = f"Changes of files cannot be undone in this session: {why}."
        if self.metadata.mode == modes.SANDBOXED and not self.mode_chosen:
            with suppress(RpcError):
                # A stricter mode applies even if it cannot be recorded.
                self._change_mode(modes.FALLBACK)
            note += " It now asks before each change and each command."
        self.send_now(notice(note, self.client))

    async def ask(self, question: Question) -> Decision:
        """Ask the user for a permission, after all earlier updates were sent (`permissions.request`)."""
        asked = PermissionAsked(
            entity_id=question.entity_id, cast_id=question.cast_id, question=question, reached=anyio.Event()
        )
        if self.entity.hub.active:
            await self.entity.hub.send(asked)
            await asked.reached.wait()
        who = self.translator.child_name_of(question)
        if who is not None:
            question = msgspec.structs.replace(question, child=who)
        session_id = self.translator.child_session_of(question) or self.id
        decision = await ask_client(
            self.connection, session_id, question, forms=self.client.forms and not self.client.answer_notes
        )
        if decision is None:
            # The client says that the prompt is cancelled. Do the same as for session/cancel, which may come later.
            self.cancel()
            await anyio.lowlevel.checkpoint()
            return Decision("reject_once")
        return decision


def _prompt_meta(result: CastResult, turn: str) -> dict[str, Any]:
    """The ``_meta`` of the reply to a prompt. ``turn`` is the id of the last turn."""
    return {
        "cantrip_trace_id": result.trace_id,
        "cantrip": {
            "reason": result.reason,
            "summary": result.summary,
            "entity_id": result.entity_id,
            "cast_id": result.cast_id,
            "turns": result.turns,
            "turn": turn,
            "usage": result.usage.record(),
            **({"warnings": list(result.warnings)} if result.warnings else {}),
            "loom": result.loom,
        },
    }


def _queue_command(params: acp.Prompt) -> tuple[Command, str] | None:
    """The slash command for the queue, which works while a prompt runs. None for any other prompt."""
    first = params.prompt[0] if params.prompt else None
    if not isinstance(first, acp.Text) or not first.text.lstrip().startswith("/queue"):
        return None
    from cantrip_acp.acp.sessions.commands import slash_commands
    from cantrip_acp.acp.sessions.prompt.prompt_content import read_prompt

    found = slash_commands.parse_command(read_prompt(params.prompt)[0])
    return found if found is not None and found[0].name == slash_commands.QUEUE else None
