"""The updates of one cast: sends each event as the client is to see it, and the output of running commands at intervals."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from cantrip_acp.acp import protocol as acp
from cantrip_acp.acp.permissions.request import PermissionAsked
from cantrip_acp.types.events import CastStarted, Steered
from cantrip_acp.types.records import now

if TYPE_CHECKING:
    from cantrip_acp.acp.sessions.prompt.prompt_queue import QueuedPrompt
    from cantrip_acp.acp.sessions.prompt.steering import Steering
    from cantrip_acp.acp.sessions.session_interface import OpenSession
    from cantrip_acp.core.casting.cast_stream import CastStream

OUTPUT_INTERVAL = 0.1
"""Seconds between two updates of a running command's output."""


class CastUpdates:
    """Sends the updates of a cast. ``continues``: it goes on without a new message, so it gives the session no title."""

    def __init__(
        self, session: OpenSession, steering: Steering, prompt: QueuedPrompt | None, *, continues: bool
    ) -> None:
        self._session = session
        self._steering = steering
        self._prompt = prompt
        self._continues = continues
        self._new_output = anyio.Event()

    async def forward(self, stream: CastStream) -> None:
        """Send the updates for every event, as fast as the client reads."""
        session, translator = self._session, self._session.translator
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._show_output)
            async for event in stream:
                if session.prompts.cancelled:
                    # The cancel may have come before the cast had started.
                    session.entity.cancel()
                if isinstance(event, PermissionAsked):
                    await session.send(translator.propose_call(event.question))
                    event.reached.set()
                    continue
                if isinstance(event, Steered):
                    session.queue.note_delivered()
                if isinstance(event, CastStarted):
                    self._started(event)
                updates = translator.translate(event)
                if translator.dirty:
                    self._new_output.set()
                # Called even without updates: it also waits while a slow client has not read the output of commands.
                await session.send(updates)
            tasks.cancel_scope.cancel()

    def _started(self, started: CastStarted) -> None:
        self._steering.show_late(started)
        if not self._continues:
            self._update_title(started.intent)
        if self._prompt is not None:
            self._prompt.cast_started(started.cast_id)

    def _update_title(self, intent: str) -> None:
        """Set the session's title if it has none, or if the present title is only a greeting."""
        from cantrip_acp.acp.sessions.title import better_title

        metadata = self._session.metadata
        title = None if metadata.title_chosen else better_title(metadata.title, intent)
        if title is not None:
            metadata.title = title
            self._session.send_now(acp.SessionInfoChanged(title, now()))

    async def _show_output(self) -> None:
        """Send the output of running commands at intervals. Each update replaces the whole content."""
        while True:
            self._new_output = anyio.Event()
            await self._new_output.wait()
            await anyio.sleep(OUTPUT_INTERVAL)
            await self._session.send(self._session.translator.flush())
