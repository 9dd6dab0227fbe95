"""Session: one entity in one folder, and its running prompt (ACP, Session Setup and Prompt Turn).

A prompt is a cast. Its updates go out while it runs, and all of them before its reply. A session takes one prompt at a
time. After a cancelled prompt it is ready for the next.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import msgspec

from cantrip_acp.acp import protocol as acp
from cantrip_acp.acp.errors import session_busy, session_not_ready
from cantrip_acp.acp.permissions.request import PermissionAsked, ask_client
from cantrip_acp.acp.render.event_translator import Translator, notice
from cantrip_acp.acp.render.formatting import MessageSeparator
from cantrip_acp.acp.wire.jsonrpc import INTERNAL_ERROR, RpcError, invalid_params
from cantrip_acp.core.errors import CantripError, IntentRequired
from cantrip_acp.crystals.http_clients import prepare_in_background
from cantrip_acp.telemetry import tracing
from cantrip_acp.text.redaction import shared

if TYPE_CHECKING:
    from cantrip_acp.acp.permissions.interceptor import Answer, Permissions, Question
    from cantrip_acp.acp.sessions.factory import OpenedSession
    from cantrip_acp.acp.sessions.prompt_content import Link
    from cantrip_acp.acp.sessions.session_store import SessionMetadata
    from cantrip_acp.acp.wire.connection import Connection, Request
    from cantrip_acp.core.casting.cast_control import CastStream
    from cantrip_acp.core.casting.result import CastResult
    from cantrip_acp.core.context_block import ContextBlock
    from cantrip_acp.core.entity import Entity
    from cantrip_acp.gates.contract import GateSource

log = logging.getLogger(__name__)

OUTPUT_INTERVAL = 0.1
"""Seconds between two updates of a running command's output."""

ENDS_WITHIN, ENDS_WITHIN_KILLED = 1.0, 5.0
"""Seconds that a cancelled prompt has to end, and that it has after everything it started was killed."""

STOP_REASONS: dict[str, acp.StopReason] = {
    "done": "end_turn",
    "text": "end_turn",
    "max_turns": "max_turn_requests",
    "max_seconds": "max_turn_requests",
    "max_tokens": "max_tokens",
    "max_cost": "max_tokens",
    "cancelled": "cancelled",
    "parent_terminated": "cancelled",
    "refusal": "refusal",
}
"""The ACP stop reason for each reason why a cast ended. The reason ``error`` has none: it becomes an error reply."""


class Session:
    """One session. ``trace`` is the trace from ``session/new``, the default for its prompts.

    ``before_cast`` runs before each cast: it applies pending choices and returns context for the entity. ``after_prompt`` runs
    after each prompt.
    """

    def __init__(
        self,
        opened: OpenedSession,
        permissions: Permissions,
        connection: Connection,
        client: acp.ClientAbilities,
        trace: tracing.Trace | None,
    ) -> None:
        self.opened = opened
        self.permissions = permissions
        self.client = client
        self.trace = trace
        self.connection = connection
        self.translator = Translator(client)
        self.before_cast: Callable[[Session], Awaitable[Sequence[ContextBlock]]] | None = None
        self.after_prompt: Callable[[Session], None] | None = None
        self.sources: Sequence[GateSource] = ()
        """Gate sources that the client named in addition to the recipe: MCP servers."""
        self.pending: dict[str, str] = {}
        """Options that were chosen while a prompt ran, for the next prompt: option and value."""
        self.entity_notes: list[str] = []
        """Notes for the entity, sent before its next intent."""
        self._sent_notes: list[str] = []
        """Notes that were sent before the last intent."""
        self.user_notes: list[str] = []
        """Notes for the user, shown after the reply that names the session."""
        self.running = False
        """Whether a prompt runs."""
        self.closing = False
        self.in_use_by_client = True
        """Whether a client uses this session; False for one that was opened only to fork it."""
        self.fork_count = 0
        """Number of forks that are being made of it."""
        self.loom_read = anyio.Lock()
        """Held while a thread reads the loom, so that the loom is not closed meanwhile: its file descriptor could then
        be another file."""
        self._close_loom_at_end = False
        """Whether the prompt that still runs closes the loom when it ends."""
        self._replaying = False
        self._cancelled = False
        self._ended = anyio.Event()
        self._closed = anyio.Event()
        self._cancellable_waits: set[anyio.CancelScope] = set()
        self._new_output = anyio.Event()
        self._separator = MessageSeparator()

    @property
    def metadata(self) -> SessionMetadata:
        return self.opened.metadata

    @property
    def id(self) -> str:
        return self.opened.metadata.id

    @property
    def entity(self) -> Entity:
        return self.opened.entity

    def begin(self, request: Request) -> None:
        """Mark the session as busy with a prompt. Raises `RpcError` while another one runs, or while it is loaded or
        closed."""
        if self.closing:
            raise session_not_ready(self.id, "closed")
        if self.running:
            raise session_busy(self.id)
        if self._replaying:
            raise session_not_ready(self.id, "loaded")
        self.running = True
        self.opened.history = None
        self._cancelled = False
        self._separator.begin()
        self._ended = anyio.Event()
        request.on_cancel = self.cancel

    async def run(self, work: Awaitable[acp.PromptResult], trace_id: str) -> acp.PromptResult:
        """Run the work of a prompt after `begin`. Returns its result, or raises an `RpcError` that the user can act on."""
        try:
            return await work
        except CantripError as problem:
            if self._cancelled:
                return acp.PromptResult("cancelled")
            # The client may send a failed intent again, so keep the notes that went with it.
            self.entity_notes = self.entity_notes or self._sent_notes
            text = shared().diagnostic(str(problem))
            raise RpcError(
                INTERNAL_ERROR,
                f"The prompt failed: {text}",
                {
                    "error": type(problem).__name__,
                    "details": text,
                    # The provider's status: a client can tell its user by it what to do.
                    **({} if (status := getattr(problem, "status", None)) is None else {"status": status}),
                    "cantrip_trace_id": trace_id,
                },
            ) from None
        finally:
            self.running = False
            self._ended.set()
            if self._close_loom_at_end:
                self.opened.release()
            elif self.after_prompt is not None:
                self.after_prompt(self)

    def cancel(self) -> None:
        """Cancel the running prompt; does nothing where none runs."""
        if not self.running:
            return
        self._cancelled = True
        self.entity.cancel()
        for scope in self._cancellable_waits:
            scope.cancel()

    async def warm(self) -> None:
        """Prepare what the first prompt would wait for. The reply that names this session goes out first."""
        await anyio.lowlevel.checkpoint()
        user_notes, self.user_notes = self.user_notes, []
        for text in user_notes:
            self.send_now(notice(text, self.client))
        prepare_in_background(self.entity.crystal)
        try:
            await self.entity.warm()
            for text in self.entity.take_notices():
                self.send_now(notice(text, self.client))
        except Exception:
            # The first prompt meets the same problem, and reports it to the user.
            log.warning("session %s could not be prepared", self.id, exc_info=True)

    async def close(self) -> None:
        """Cancel the running prompt, close the entity and the loom. A second caller waits until that is done.

        The loom is closed after the end of the cast, because that is written to it. If the cast does not end although
        everything it started was killed (a handler in a thread cannot be), the loom stays open and locked until it
        does.
        """
        if self.closing:
            await self._closed.wait()
            return
        self.closing = True
        try:
            self.cancel()
            if self.running:
                with anyio.move_on_after(ENDS_WITHIN):
                    await self._ended.wait()
            await self.entity.close()
            if self.running:
                with anyio.move_on_after(ENDS_WITHIN_KILLED):
                    await self._ended.wait()
            async with self.loom_read:
                if self.running:
                    self._close_loom_at_end = True
                    log.warning("a prompt of session %s does not end; its loom stays open until it does", self.id)
                else:
                    self.opened.release()
        finally:
            self._closed.set()

    async def replay(self) -> None:
        """Send the whole history. No prompt may start meanwhile. Raises `RpcError` where a prompt or another replay
        runs, or the session closes."""
        from cantrip_acp.acp.render.loaded_session import loaded_updates

        if self.running or self._replaying:
            raise session_busy(self.id)
        self._replaying, self._cancelled = True, False
        self._separator.begin()
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
        if self.metadata.title is not None:
            self.send_now(acp.SessionInfoChanged(self.metadata.title))
        if self.closing:
            raise session_not_ready(self.id, "closed")

    def _history_updates(self, loaded_updates: Callable[..., Iterable[acp.Update]]) -> Sequence[acp.Update]:
        # The history that was read when the session was opened need not be read again.
        parts, self.opened.history = self.opened.history, None
        return list(loaded_updates(self.entity, self.client, parts))

    def send_now(self, update: acp.Update) -> None:
        """Send one update without waiting."""
        self.connection.notify_now("session/update", acp.SessionNotification(self.id, self._separator.separate(update)))

    async def send(self, updates: Sequence[acp.Update]) -> None:
        """Send updates, and wait while the client is slow."""
        for update in updates:
            self.send_now(update)
        if self.connection.congested and not self._cancelled:
            with anyio.CancelScope() as scope:
                self._cancellable_waits.add(scope)
                try:
                    await self.connection.wait_for_space()
                finally:
                    self._cancellable_waits.discard(scope)

    async def cast(
        self, intent: str | None, context: Sequence[ContextBlock | Link], trace: tracing.Trace
    ) -> acp.PromptResult:
        """Run a prompt as a cast of the entity. Without an intent (None) it continues without a new message
        (`Entity.resume`)."""
        context = await self._read_links(context)
        self._sent_notes = list(self.entity_notes)
        if self.before_cast is not None:
            context = (*context, *await self.before_cast(self))
        if self._was_cancelled():
            return acp.PromptResult("cancelled")
        options: dict[str, Any] = {"trace": trace}
        if intent is not None:
            self._update_title(intent)
            self.permissions.hosts.add_from_text(intent)
            options["context"] = context
        try:
            async with self.entity.stream(intent, **options) as stream:
                await self._forward(stream)
        except IntentRequired as problem:
            raise invalid_params(f"The prompt is empty, and {problem}", "prompt") from None
        finally:
            for update in self.translator.close():
                self.send_now(update)
        result = stream.result
        reason = "cancelled" if self._was_cancelled() else STOP_REASONS.get(result.reason)
        if reason is None:
            raise RpcError(
                INTERNAL_ERROR, f"The prompt failed: {result.summary or result.reason}", {"details": result.reason}
            )
        about = _prompt_meta(result, self.entity.last_turn)
        if self.entity.state.names_requests:
            about[acp.REQUEST_EDGES] = {"edges": self.entity.state.requests.take()}
        return acp.PromptResult(reason, about)

    def _update_title(self, intent: str) -> None:
        """Set the session's title, where it has none or the present one is only a greeting."""
        from cantrip_acp.acp.sessions.title import better_title

        title = better_title(self.metadata.title, shared().text(intent))
        if title is not None:
            self.metadata.title = title
            self.send_now(acp.SessionInfoChanged(title))

    async def _read_links(self, context: Sequence[ContextBlock | Link]) -> tuple[ContextBlock, ...]:
        """The context with the content of its links. A cancel ends the reading."""
        if not context or self._cancelled:
            return ()
        from cantrip_acp.acp.sessions.prompt_content import read_links

        blocks: tuple[ContextBlock, ...] = ()
        with anyio.CancelScope() as scope:
            self._cancellable_waits.add(scope)
            try:
                blocks = await read_links(self.entity, self.permissions.route, context)
            finally:
                self._cancellable_waits.discard(scope)
        return blocks

    def _was_cancelled(self) -> bool:
        """Whether a cancel came. It may come during any wait."""
        return self._cancelled

    async def ask(self, question: Question) -> Answer:
        """Ask the user, after all earlier updates were sent; see `permissions.request`."""
        mask = self.entity.redactor
        question = msgspec.structs.replace(
            question,
            title=mask.text(question.title),
            text=mask.text(question.text),
            raw_input=mask.data(question.raw_input),
        )
        asked = PermissionAsked(
            entity_id=question.entity_id, cast_id=question.cast_id, question=question, reached=anyio.Event()
        )
        if self.entity.hub.active:
            await self.entity.hub.send(asked)
            await asked.reached.wait()
        who = self.translator.child_name_of(question)
        if who is not None:
            question = msgspec.structs.replace(question, child=who)
        answer = await ask_client(self.connection, self.id, question)
        if answer is None:
            # The client says that the turn is over. Treat it as session/cancel, which may not have come.
            self.cancel()
            await anyio.lowlevel.checkpoint()
            return "reject_once"
        return answer

    async def _forward(self, stream: CastStream) -> None:
        """Send every event of a cast to the client, at its pace."""
        translator = self.translator
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._show_output)
            async for event in stream:
                if self._cancelled:
                    # A cancel before the start of the cast had nothing to cancel.
                    self.entity.cancel()
                if isinstance(event, PermissionAsked):
                    await self.send(translator.propose_call(event.question))
                    event.reached.set()
                    continue
                updates = translator.translate(event)
                if translator.dirty:
                    self._new_output.set()
                # Wait here even without updates, because output views also must not be faster than a slow client reads.
                await self.send(updates)
            tasks.cancel_scope.cancel()

    async def _show_output(self) -> None:
        """Send the output of running commands at intervals. Each view replaces the previous one."""
        while True:
            self._new_output = anyio.Event()
            await self._new_output.wait()
            await anyio.sleep(OUTPUT_INTERVAL)
            await self.send(self.translator.flush())


def _prompt_meta(result: CastResult, turn: str) -> dict[str, Any]:
    """The ``_meta`` of a reply to a prompt. ``turn`` is the turn from which a fork would continue."""
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
