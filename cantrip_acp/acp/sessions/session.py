"""Session: one entity in one folder (ACP, Session Setup). `prompt.prompts` runs its prompts."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
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
from cantrip_acp.acp.render.event_translator import Translator
from cantrip_acp.acp.render.formatting import MessageSeparator
from cantrip_acp.acp.render.notices import notice
from cantrip_acp.acp.sessions.factory import permission_change
from cantrip_acp.acp.sessions.options import modes
from cantrip_acp.acp.sessions.options.config_options import SessionOptions
from cantrip_acp.acp.sessions.prompt.prompt_queue import PromptQueue
from cantrip_acp.acp.sessions.prompt.prompts import Prompts
from cantrip_acp.acp.sessions.prompt.steering import Steering
from cantrip_acp.acp.sessions.session_interface import Notes
from cantrip_acp.acp.wire.jsonrpc import RpcError, meta_of
from cantrip_acp.crystals.http_clients import prepare_in_background
from cantrip_acp.telemetry import tracing
from cantrip_acp.text.logs import logger
from cantrip_acp.types.records import ConfigRecord, new_id, now

if TYPE_CHECKING:
    from cantrip_acp.acp.permissions.interceptor import Question
    from cantrip_acp.acp.sessions.factory import OpenedSession, SessionFactory
    from cantrip_acp.acp.sessions.session_store import Grant, SessionMetadata
    from cantrip_acp.acp.wire.connection import Connection, Request
    from cantrip_acp.core.entity import Entity
    from cantrip_acp.gates.contract import GateSource
    from cantrip_acp.recipes.recipe import Recipe

T = TypeVar("T")

log = logger(__name__)
_USUAL_THRESHOLD = (700, 10, 10)
"""Python's own threshold of the garbage collector."""

ENDS_WITHIN, ENDS_WITHIN_KILLED = 1.0, 5.0
"""Seconds that a cancelled prompt gets to end, and seconds that it gets after its processes were killed."""


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
        self.prompts = Prompts(self, agent.forks.to_disk)
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
        self.replaying = False
        self._closed = anyio.Event()
        self.separator = MessageSeparator()

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
            if not self.prompts.servers_to_install():
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
            self.prompts.cancel()
            await self.prompts.wait_end(ENDS_WITHIN)
            await self.entity.close()
            await self.prompts.wait_end(ENDS_WITHIN_KILLED)
            async with self.loom_read:
                if self.prompts.running:
                    self.prompts.closes_loom = True
                    log.warning("a prompt of session %s does not end; its loom stays open until it does", self.id)
                else:
                    self.opened.release()
        finally:
            self._closed.set()

    async def replay(self) -> None:
        """Send the whole history. No prompt can start until it is sent. Raises `RpcError` if a prompt or another replay
        runs, or if the session is closed."""
        from cantrip_acp.acp.render.loaded_session import loaded_updates

        if self.prompts.running or self.replaying:
            raise session_busy(self.id)
        self.replaying = True
        self.prompts.cancelled = False
        self.separator.last.clear()
        try:
            async with self.loom_read:
                updates = () if self.closing else await anyio.to_thread.run_sync(self._history_updates, loaded_updates)
            for at in range(0, len(updates), 64):
                if self.closing:
                    break
                await self.send(updates[at : at + 64])
                await anyio.lowlevel.checkpoint()
        finally:
            self.replaying = False
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
            update = self.separator.separate(update)
        self.connection.notify_now("session/update", acp.SessionNotification(self.id, update))

    async def send(self, updates: Sequence[acp.Update]) -> None:
        """Send updates, and wait if the client reads slowly."""
        for update in updates:
            self.send_now(update)
        if self.connection.congested and not self.prompts.cancelled:
            await self.prompts.until_cancelled(self.connection.wait_for_space)

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

    # --- permissions -------------------------------------------------------------------------------------------------

    def _remember(self, granted: Grant) -> None:
        self.metadata.granted.append(granted)
        changes = {"permission": permission_change(granted)}
        self.entity.loom.append(ConfigRecord(new_id("g"), self.entity.id, changes, now()))
        self._agent.factory.save_metadata(self.opened)

    def change_mode(self, mode: str) -> None:
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
                self.change_mode(modes.FALLBACK)
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
            self.prompts.cancel()
            await anyio.lowlevel.checkpoint()
            return Decision("reject_once")
        return decision
