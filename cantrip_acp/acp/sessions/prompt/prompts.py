"""Prompts: runs the prompts of a session, one at a time (ACP, Prompt Turn).

A prompt is a cast. All its updates are sent before its reply. Others wait in the session's queue (`prompt_queue`) if the client
asks for that. After a cancelled prompt the session takes the next one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import anyio

from cantrip_acp.acp import protocol as acp
from cantrip_acp.acp.errors import session_busy, session_not_ready
from cantrip_acp.acp.render.event_translator import STOP_REASONS
from cantrip_acp.acp.sessions.options import modes
from cantrip_acp.acp.sessions.prompt.cast_updates import CastUpdates
from cantrip_acp.acp.sessions.session_interface import OpenSession
from cantrip_acp.acp.wire.jsonrpc import INTERNAL_ERROR, RpcError, invalid_params
from cantrip_acp.telemetry import tracing
from cantrip_acp.types.errors import CantripError, CrystalError, IntentRequired
from cantrip_acp.types.records import new_id

if TYPE_CHECKING:
    from cantrip_acp.acp.render.formatting import MessageSeparator
    from cantrip_acp.acp.sessions.commands.slash_commands import Command
    from cantrip_acp.acp.sessions.options.config_options import SessionOptions
    from cantrip_acp.acp.sessions.prompt.prompt_content import Link
    from cantrip_acp.acp.sessions.prompt.steering import Steering
    from cantrip_acp.acp.wire.connection import Request
    from cantrip_acp.core.casting.result import CastResult
    from cantrip_acp.gates.mcp.declaration import McpServer
    from cantrip_acp.types.context_block import ContextBlock

T = TypeVar("T")


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
        self.ended = anyio.Event()


class PromptsOwner(OpenSession, Protocol):
    """The session of the prompts (`acp.sessions.session.Session`)."""

    trace: tracing.Trace | None
    options: SessionOptions
    steering: Steering
    separator: MessageSeparator
    replaying: bool
    in_use_by_client: bool

    def change_mode(self, mode: str) -> None: ...


class Prompts:
    """The prompts of one session. ``fork_to_disk`` makes the forks that a command asks for."""

    def __init__(self, session: PromptsOwner, fork_to_disk: Callable[[Any, str], Awaitable[str]]) -> None:
        self._session = session
        self._fork_to_disk = fork_to_disk
        self.running = False
        """Whether a prompt runs."""
        self.cancelled = False
        self.closes_loom = False
        """Whether the running prompt must close the loom when it ends."""
        self._run = _PromptRun()
        """The prompt that runs, or ran last."""
        self._cancellable_waits: set[anyio.CancelScope] = set()

    async def wait_end(self, seconds: float) -> None:
        """Wait until no prompt runs, at most so long."""
        if self.running:
            with anyio.move_on_after(seconds):
                await self._run.ended.wait()

    def open(self, prompt: OpenPrompt) -> Awaitable[acp.PromptResult]:
        """Mark the session as busy with a prompt, and return the work of the prompt. A prompt during another one waits in the
        queue if the client asks for that."""
        if self.running and (command := _queue_command(prompt.params)) is not None:
            prompt.answered_beside()
            return self._run_command(*command)
        if self.running and (self._session.client.queues_prompts or acp.asks_for_queue(prompt.params.meta)):
            return self._session.queue.add(prompt)
        return self.start(prompt)

    def start(self, prompt: OpenPrompt) -> Awaitable[acp.PromptResult]:
        """Mark the session as busy with a prompt, which may have waited, and return its work."""
        from cantrip_acp.acp.sessions.prompt.prompt_content import read_request

        asked = read_request(prompt.params, self._session.trace, self._session.id)
        command = None
        if asked.intent is not None and asked.intent.lstrip().startswith("/"):
            from cantrip_acp.acp.sessions.commands import slash_commands

            command = slash_commands.parse_command(asked.intent)
        self.begin(prompt.request)
        self._run.prompt = prompt
        prompt.begin()
        self._session.in_use_by_client = True
        if command is not None:
            return self.run(self._run_command(*command), asked.trace)
        return self.run(self.cast(asked.intent, asked.context, asked.trace), asked.trace)

    async def _run_command(self, command: Command, rest: str) -> acp.PromptResult:
        from cantrip_acp.acp.sessions.commands import slash_commands

        text = await slash_commands.run_command(self._session, command, rest, self._fork_to_disk)
        if text:
            self._session.send_now(acp.AgentMessageChunk(acp.TextContent(text), f"{new_id('m')}:command"))
        return acp.PromptResult("end_turn", {"cantrip": {"command": command.name}})

    def begin(self, request: Request) -> None:
        """Mark the session as busy with a prompt. Raises `RpcError` if a prompt runs, or if the session is being loaded or
        closed."""
        if self._session.closing:
            raise session_not_ready(self._session.id, "closed")
        if self.running:
            raise session_busy(self._session.id)
        if self._session.replaying:
            raise session_not_ready(self._session.id, "loaded")
        self.running = True
        self._session.opened.history = None
        self.cancelled, self._run, self._session.steering.late = False, _PromptRun(), False
        self._session.separator.last.clear()
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
                if not self._was_cancelled() and (late := self._session.steering.take()) is not None:
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
            self._session.steering.report_undelivered()
            self.running = False
            self._run.ended.set()
            if self.closes_loom:
                self._session.opened.release()
            elif not self._session.closing:
                # The title, and the time of the last activity.
                self._session.save()
            self._session.queue.prompt_ended(result, error)

    async def _reported(self, work: Awaitable[acp.PromptResult], trace_id: str) -> acp.PromptResult:
        try:
            return await work
        except CantripError as problem:
            if self.cancelled:
                return acp.PromptResult("cancelled")
            # The client may send a failed intent again, so send the notes for the entity again too.
            self._session.notes.entity = self._session.notes.entity or self._run.notes
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
                    "cantrip": {"turn": self._session.entity.last_turn},
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
        if not self.running or self._was_cancelled() or self._session.closing:
            return False
        self._session.permissions.hosts.add_from_text(intent)
        self._session.steering.add(intent, context)
        return True

    async def _decide_on_plan(self) -> str | None:
        """In plan mode, ask the user about the plan with which a cast has ended. Returns the intent of the next cast."""
        from cantrip_acp.acp.sessions.options.plan_mode import ask_about_plan, plan_in, shown_intent

        answer, self._run.answer = self._run.answer, None
        plan = plan_in(answer) if self._session.metadata.mode == modes.PLAN and not self._was_cancelled() else None
        if plan is None:
            return None
        session, call_id = self._session, new_id("plan")
        forms = session.client.forms and not session.client.answer_notes
        ask = partial(ask_about_plan, session.connection, session.id, call_id, plan, session.send_now, forms=forms)
        decision = await self.until_cancelled(ask)
        if decision is None:
            self._session.send_now(acp.ToolCallUpdate(tool_call_id=call_id, status="failed"))
        if decision is None or decision.cancelled:
            self.cancelled = True
        if decision is None or self._was_cancelled():
            return None
        if decision.mode is not None:
            self._session.change_mode(decision.mode)
        if decision.intent is not None and self._session.client.turns:
            said = shown_intent(decision.intent, plan)
            self._session.send_now(acp.UserMessageChunk(acp.TextContent(said), f"{call_id}:intent"))
        return decision.intent

    def cancel(self) -> None:
        if not self.running:
            return
        self.cancelled = True
        self._session.entity.cancel()
        for scope in self._cancellable_waits:
            scope.cancel()

    async def cast(
        self, intent: str | None, context: Sequence[ContextBlock | Link], trace: tracing.Trace
    ) -> acp.PromptResult:
        """Run a prompt as a cast of the entity. If ``intent`` is None, the entity continues its last cast without a new
        message."""
        read = await self._read_links(context)
        context = read
        if intent is not None:
            context, self._session.notes.context = (*self._session.notes.context, *read), []
        self._run.notes = list(self._session.notes.entity)
        context = (*context, *await self._session.options.before_cast())
        if not self._session.entity.sources.connected:
            await self.install_servers()
        if self.cancelled:
            return acp.PromptResult("cancelled")
        options: dict[str, Any] = {"trace": trace}
        if intent is not None:
            self._session.permissions.hosts.add_from_text(intent)
            options["context"] = context
        try:
            async with self._session.entity.stream(intent, **options) as stream:
                await CastUpdates(
                    self._session, self._session.steering, self._run.prompt, continues=intent is None
                ).forward(stream)
        except IntentRequired as problem:
            raise invalid_params(f"The prompt is empty, and {problem}", "prompt") from None
        finally:
            for update in self._session.translator.close():
                self._session.send_now(update)
        result = stream.result
        self._run.answer = result.result if result.terminated else None
        reason = "cancelled" if self._was_cancelled() else STOP_REASONS.get(result.reason)
        if reason is None:
            raise RpcError(
                INTERNAL_ERROR, f"The prompt failed: {result.summary or result.reason}", {"details": result.reason}
            )
        about = _prompt_meta(result, self._session.entity.last_turn)
        if self._session.entity.requests.named:
            about[acp.REQUEST_EDGES] = {"edges": self._session.entity.requests.drain()}
        return acp.PromptResult(reason, about)

    async def _read_links(self, context: Sequence[ContextBlock | Link]) -> tuple[ContextBlock, ...]:
        """Read the links of a prompt. Returns the context with their content, or without it if the prompt is cancelled."""
        if not context or self.cancelled:
            return ()
        from cantrip_acp.acp.sessions.prompt.prompt_content import read_links

        read = partial(read_links, self._session.entity, self._session.permissions.route, context, self._tell_unread)
        return await self.until_cancelled(read) or ()

    def _tell_unread(self, link: Link, why: str) -> None:
        """Tell the user about a link that the entity cannot read. This is not a message of the conversation, where it would
        be noise."""
        if self._session.client.notices:
            self._session.send_now(acp.Notice("warning", "Not attached", f"{link.name}: {why}"))

    def servers_to_install(self) -> list[McpServer]:
        """The MCP servers that must be installed before the entity connects to them. None after it has connected."""
        if self._session.entity.sources.connected:
            return []
        unopened = [source for source, opened in self._session.entity.sources.listed() if opened is None]
        from cantrip_acp.gates.mcp.servers import to_install

        return to_install(unopened, self._session.entity.circle)

    async def install_servers(self) -> None:
        """Ask the user whether missing MCP servers may be installed. A prompt whose question is cancelled is cancelled."""
        missing = self.servers_to_install()
        if not missing or self._was_cancelled():
            return
        from cantrip_acp.acp.sessions.mcp_install import ask_and_install

        session = self._session
        ask = partial(ask_and_install, session.connection, session.id, missing, session.entity.circle, session.send_now)
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
