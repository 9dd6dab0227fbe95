"""A session: one entity in one folder, and the prompt that it is working on (ACP, Session Setup and Prompt Turn).

A prompt is a cast. Its updates go out while it runs and all of them before its reply; a session takes one prompt at a
time, and a cancelled one leaves it ready for the next.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel

from cantrip_acp import telemetry
from cantrip_acp.acp import protocol as acp
from cantrip_acp.acp.envelope import INTERNAL_ERROR, INVALID_REQUEST, RpcError, invalid_params
from cantrip_acp.acp.translate import Translator
from cantrip_acp.crystals.ahead import prepare_beside
from cantrip_acp.errors import CantripError
from cantrip_acp.redaction import shared

if TYPE_CHECKING:
    from cantrip_acp.acp.wire import Connection, Request
    from cantrip_acp.context import ContextBlock
    from cantrip_acp.entity import CastStream, Entity
    from cantrip_acp.loop import CastResult

log = logging.getLogger(__name__)

OUTPUT_INTERVAL = 0.1
"""Seconds between two views of a running command's output."""

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
"""Why a cast ended, in the protocol's words; reason ``error`` is no stop reason but an error."""


def check_folder(cwd: str) -> Path:
    """The folder of a new session. Raises `RpcError` -32602 where it is none that can be worked in."""

    def refuse(problem: str) -> RpcError:
        return invalid_params(problem, "cwd")

    if not os.path.isabs(cwd):
        raise refuse(f"must be an absolute path, not {cwd[:200]!r}")
    try:
        os.stat(cwd)
        if not os.path.isdir(cwd):
            raise refuse(f"is a file, not a folder: {cwd}")
        # Listing asks what a user id and the mode bits alone cannot answer: access lists, mounts, namespaces.
        with os.scandir(cwd):
            pass
    except FileNotFoundError:
        raise refuse(f"no such folder: {cwd}") from None
    except NotADirectoryError:
        raise refuse(f"a part of the path is not a folder: {cwd}") from None
    except PermissionError:
        raise refuse(f"not readable for this user: {cwd}") from None
    except (OSError, ValueError) as problem:
        raise refuse(f"cannot be used ({problem}): {cwd[:200]!r}") from None
    if not os.access(cwd, os.X_OK):
        raise refuse(f"not searchable for this user: {cwd}")
    return Path(cwd)


class Session:
    """One session. ``trace`` is what ``session/new`` named, the default of its prompts."""

    def __init__(
        self,
        id: str,  # noqa: A002 - the protocol's word
        entity: Entity,
        connection: Connection,
        client: acp.ClientAbilities,
        trace: telemetry.Trace | None,
    ) -> None:
        self.id = id
        self.entity = entity
        self.trace = trace
        self._connection = connection
        self._translator = Translator(client)
        self.running = False
        """Whether a prompt is being worked on."""
        self._cancelled = False
        self._patience: set[anyio.CancelScope] = set()
        self._output = anyio.Event()

    def prompt(
        self, intent: str, context: Sequence[ContextBlock], trace: telemetry.Trace, request: Request
    ) -> Awaitable[acp.PromptResult]:
        """Begin a prompt; what is returned runs it. Raises `RpcError` while another one runs."""
        if self.running:
            raise RpcError(
                INVALID_REQUEST,
                f"Invalid request: session {self.id} is busy with another prompt; wait for its reply or send session/cancel",
                {"sessionId": self.id, "reason": "prompt_in_progress"},
            )
        self.running = True
        self._cancelled = False
        request.on_cancel = self.cancel
        return self._run(intent, context, trace)

    def cancel(self) -> None:
        """End the running prompt; nothing where none runs."""
        if not self.running:
            return
        self._cancelled = True
        self.entity.cancel()
        for scope in self._patience:
            scope.cancel()

    async def warm(self) -> None:
        """Start what the first prompt would wait for; the reply that names this session goes out before."""
        await anyio.lowlevel.checkpoint()
        prepare_beside(self.entity.crystal)
        try:
            await self.entity.warm()
        except Exception:
            # The first prompt meets it again, and says it where it can be seen.
            log.warning("session %s could not be prepared", self.id, exc_info=True)

    async def close(self) -> None:
        """End the entity and let go of its loom."""
        await self.entity.close()
        self.entity.loom.close()

    def show(self, update: acp.Update) -> None:
        """Send one update without waiting."""
        self._connection.notify_now("session/update", acp.SessionNotification(self.id, update))

    async def _run(self, intent: str, context: Sequence[ContextBlock], trace: telemetry.Trace) -> acp.PromptResult:
        try:
            return await self._cast(intent, context, trace)
        except CantripError as problem:
            if self._cancelled:
                return acp.PromptResult("cancelled")
            text = shared().diagnostic(str(problem))
            raise RpcError(
                INTERNAL_ERROR,
                f"The prompt failed: {text}",
                {"error": type(problem).__name__, "details": text, "cantrip_trace_id": trace.trace_id},
            ) from None
        finally:
            self.running = False

    async def _cast(self, intent: str, context: Sequence[ContextBlock], trace: telemetry.Trace) -> acp.PromptResult:
        translator = self._translator
        try:
            async with self.entity.stream(intent, trace=trace, context=context) as stream:
                await self._forward(stream)
        finally:
            for update in translator.close():
                self.show(update)
        result = stream.result
        reason = STOP_REASONS.get(result.reason)
        if self._cancelled:
            reason = "cancelled"
        if reason is None:
            raise RpcError(
                INTERNAL_ERROR, f"The prompt failed: {result.summary or result.reason}", {"details": result.reason}
            )
        return acp.PromptResult(reason, _about(result))

    async def _forward(self, stream: CastStream) -> None:
        """Every event of a cast to the client, at the client's pace."""
        translator = self._translator
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._show_output)
            async for event in stream:
                if self._cancelled:
                    # A cancel that came before the cast had begun found nothing to cancel.
                    self.entity.cancel()
                updates = translator.translate(event)
                if updates:
                    await self._send(updates)
                elif translator.dirty:
                    self._output.set()
            tasks.cancel_scope.cancel()

    async def _show_output(self) -> None:
        """Views of what running commands print, at intervals: each replaces the one before."""
        while True:
            self._output = anyio.Event()
            await self._output.wait()
            await anyio.sleep(OUTPUT_INTERVAL)
            await self._send(self._translator.flush())

    async def _send(self, updates: Sequence[acp.Update]) -> None:
        for update in updates:
            self.show(update)
        if self._connection.congested and not self._cancelled:
            with anyio.CancelScope() as scope:
                self._patience.add(scope)
                try:
                    await self._connection.room()
                finally:
                    self._patience.discard(scope)


def _about(result: CastResult) -> dict[str, Any]:
    """What the reply to a prompt says beside the stop reason, under ``_meta``."""
    return {
        "cantrip_trace_id": result.trace_id,
        "cantrip": {
            "reason": result.reason,
            "summary": result.summary,
            "entity_id": result.entity_id,
            "cast_id": result.cast_id,
            "turns": result.turns,
            "usage": result.usage.record(),
            "loom": result.loom,
        },
    }
