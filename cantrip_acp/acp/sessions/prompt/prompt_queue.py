"""Prompt queue: the prompts of a session that wait for the running one, and messages for the running one (docs/sessions.md).

A client asks for the queue by ``_meta.cantrip.promptQueueing`` in its capabilities or in a prompt. Without it a second prompt
is refused. A queued prompt can be listed, edited and removed until it starts. "Send now" gives it to the entity before its
next query (`Entity.steer`). It stays in the queue until then, so a cast that ends earlier loses nothing.

Each queued prompt is an open request. Its reply comes when it has run, when the prompt that it was sent into has ended, or
with the stop reason ``cancelled`` when it was removed or cancelled before it started.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

import anyio
import msgspec

from cantrip_acp.acp import protocol as acp
from cantrip_acp.acp.wire.jsonrpc import INVALID_REQUEST, RpcError, invalid_params, meta_of
from cantrip_acp.types.errors import EntityIdle
from cantrip_acp.types.records import new_id

if TYPE_CHECKING:
    from cantrip_acp.acp.sessions.session_store import SessionMetadata
    from cantrip_acp.acp.wire.connection import Connection, Request
    from cantrip_acp.core.entity import Entity
    from cantrip_acp.core.state import SteeringMessage
    from cantrip_acp.types.context_block import ContextBlock


class QueuedPrompt(Protocol):
    """A prompt and its request (`acp.sessions.prompt.prompts.OpenPrompt`)."""

    params: acp.Prompt
    request: Request

    def cast_started(self, cast_id: str) -> None: ...

    def delivered(self, message_id: str) -> None: ...


class StartsPrompts(Protocol):
    """What runs in the session (`acp.sessions.prompt.prompts.Prompts`)."""

    running: bool

    async def read(self, blocks: Sequence[acp.ContentBlock]) -> tuple[str, tuple[ContextBlock, ...]]: ...

    def start(self, prompt: Any) -> Awaitable[acp.PromptResult]: ...


class QueueOwner(Protocol):
    """The session of a queue (`acp.sessions.session.Session`)."""

    client: acp.ClientAbilities
    connection: Connection
    closing: bool

    id: str
    metadata: SessionMetadata
    entity: Entity

    @property
    def prompts(self) -> StartsPrompts: ...

    def save(self) -> None: ...


QUEUE_CHANGED = "_cantrip/queue_changed"

MOST_PROMPTS = 100


class _Waiting:
    """A queued prompt and its open request."""

    def __init__(self, prompt: QueuedPrompt) -> None:
        self.id = prompt_id(prompt.params.meta) or new_id("p")
        self.prompt = prompt
        self.message: SteeringMessage | None = None
        """Set by "send now"."""
        self.settled = anyio.Event()
        self.work: Awaitable[acp.PromptResult] | None = None
        self.result: acp.PromptResult | None = None
        self.error: RpcError | None = None

    @property
    def text(self) -> str:
        from cantrip_acp.acp.sessions.prompt.prompt_content import read_prompt

        return read_prompt(self.prompt.params.prompt)[0]

    async def reply(self) -> acp.PromptResult:
        """Wait for the turn of this prompt, and run it."""
        try:
            await self.settled.wait()
        except anyio.get_cancelled_exc_class():
            if self.work is not None:
                # The session is busy with it already, and its end frees the session.
                await self.work
            raise
        if self.error is not None:
            raise self.error
        if self.work is not None:
            return await self.work
        assert self.result is not None
        return self.result

    def settle(self, result: acp.PromptResult | None = None, error: RpcError | None = None) -> None:
        self.result, self.error = result, error
        self.settled.set()

    def never_started(self) -> None:
        """Reply that the prompt was removed or cancelled before it started."""
        self.settle(acp.PromptResult("cancelled", {"cantrip": {"queued": {"id": self.id, "started": False}}}))


def prompt_id(meta: Any) -> str | None:
    """The id that a client gives its prompt: ``_meta.cantrip.promptId``."""
    found = meta_of(meta, acp.PromptMeta, "cantrip").prompt_id
    return found if isinstance(found, str) and 0 < len(found) <= 200 else None


QueueAction = Literal["list", "edit", "remove", "now"]

QUEUE_USAGE = "Type /queue, /queue edit NUMBER TEXT, /queue remove NUMBER or /queue now NUMBER."


def parse_queue_command(rest: str, count: int) -> tuple[QueueAction, int, str]:
    """Parse the arguments of ``/queue``. Returns the action, the place of the prompt (from 0) and the new text.

    ``count`` prompts wait. Raises `ValueError` with a text for the user.
    """
    action, _, tail = rest.strip().partition(" ")
    number, _, text = tail.strip().partition(" ")
    if not action:
        return "list", 0, ""
    if action not in ("edit", "remove", "now") or (action == "edit" and not text.strip()):
        raise ValueError(QUEUE_USAGE)
    if not number.isdecimal() or not 1 <= int(number) <= count:
        raise ValueError(f"Name a waiting prompt by its number, from 1 to {count}." if count else "No prompt waits.")
    return cast("QueueAction", action), int(number) - 1, text.strip()


def queue_text(prompts: Sequence[tuple[str, bool]]) -> str:
    """List the queue for people: the text of each prompt, and whether the next query contains it."""
    lines = [
        f"{at}. {' '.join(text.split())[:200]}{' (sent with the next query)' if sending else ''}"
        for at, (text, sending) in enumerate(prompts, 1)
    ]
    return "\n".join(lines) or "No prompt waits."


class PromptQueue:
    """The waiting prompts of one session, first one first."""

    def __init__(self, session: QueueOwner) -> None:
        self._session = session
        self._waiting: list[_Waiting] = []
        self._delivered: list[_Waiting] = []
        """Prompts that the entity got while another one runs. They are answered when that one ends."""
        self._sent: list[acp.QueuedPrompt] = []
        """The queue as the client knows it."""
        self._keeps_saved = False
        """Whether to keep the saved texts of the queue, because the client has left."""

    def state(self) -> acp.Queue:
        """The prompts that wait."""
        prompts = [acp.QueuedPrompt(each.id, each.text, each.message is not None) for each in self._waiting]
        return acp.Queue(self._session.id, prompts)

    def add(self, prompt: QueuedPrompt) -> Awaitable[acp.PromptResult]:
        """Add a prompt at the end. Returns the work of its request. Raises `RpcError` if it is empty or cannot be queued."""
        from cantrip_acp.acp.sessions.prompt.prompt_content import read_prompt

        read_prompt(prompt.params.prompt)
        if len(self._waiting) >= MOST_PROMPTS:
            raise RpcError(INVALID_REQUEST, f"Invalid request: {MOST_PROMPTS} prompts wait already")
        entry = _Waiting(prompt)
        if any(each.id == entry.id for each in self._waiting):
            raise invalid_params(f"a prompt {entry.id!r} waits already", "_meta.cantrip.promptId")
        prompt.request.on_cancel = lambda: self._remove(entry)
        self._waiting.append(entry)
        self._changed()
        return entry.reply()

    def edit(self, entry_id: str, blocks: list[acp.ContentBlock]) -> acp.Queue:
        """Replace the content of a waiting prompt. Raises `RpcError` if it does not wait, or if the content is empty."""
        from cantrip_acp.acp.sessions.prompt.prompt_content import read_prompt

        entry = self._find(entry_id)
        read_prompt(blocks)
        if entry.message is not None:
            # It may contain links, which must be read first. The user sends it again.
            self._session.entity.withdraw(entry.message)
            entry.message = None
        entry.prompt.params = msgspec.structs.replace(entry.prompt.params, prompt=blocks)
        self._changed()
        return self.state()

    def remove(self, entry_id: str) -> acp.Queue:
        """Remove a waiting prompt. Raises `RpcError` if it does not wait."""
        self._remove(self._find(entry_id))
        return self.state()

    async def send_now(self, entry_id: str) -> acp.Queue:
        """Give a waiting prompt to the entity before its next query. Raises `RpcError` if it does not wait."""
        entry = self._find(entry_id)
        if entry.message is None:
            before = entry.prompt.params
            intent, blocks = await self._session.prompts.read(before.prompt)
            # It may have started, or it may have been edited or removed.
            if entry in self._waiting and entry.prompt.params is before and entry.message is None:
                self._waiting.remove(entry)
                self._waiting.insert(sum(each.message is not None for each in self._waiting), entry)
                try:
                    entry.message = self._session.entity.steer(intent, context=blocks)
                except EntityIdle:
                    pass  # Nothing runs that it could reach. It is the next prompt.
                self._changed()
        return self.state()

    def note_delivered(self) -> None:
        """Remove prompts from the queue once the entity has received them."""
        gone = [each for each in self._waiting if each.message is not None and each.message.delivered]
        if gone:
            self._waiting = [each for each in self._waiting if each not in gone]
            self._delivered += gone
            for each in gone:
                if each.message is not None:
                    each.prompt.delivered(each.message.message_id)
            self._changed()

    def prompt_ended(self, result: acp.PromptResult | None, error: RpcError | None) -> None:
        """Answer the prompts that were sent into the ended one, and start the next.

        The next prompt is marked as running before any other request is handled.
        """
        self.note_delivered()
        for each in self._waiting:
            each.message = None
        delivered, self._delivered = self._delivered, []
        for each in delivered:
            meta = {"cantrip": {"queued": {"id": each.id, "started": True, "sent_into_running_prompt": True}}}
            each.settle(acp.PromptResult(result.stop_reason, meta) if result is not None else None, error)
        before = len(self._waiting)
        while self._waiting and not self._session.closing and not self._session.prompts.running:
            entry = self._waiting.pop(0)
            try:
                entry.work = self._session.prompts.start(entry.prompt)
                entry.settle()
            except RpcError as problem:
                entry.settle(error=problem)
        if (delivered or before) and not self._session.closing:
            # After the reply to the prompt that ended.
            self._session.connection.start_task(self._send_later)

    def cancel_all(self, *, client_left: bool = False) -> None:
        """Answer all waiting prompts as cancelled. If the client has left, list them for the user in the loaded session."""
        self._keeps_saved = self._keeps_saved or client_left
        self.note_delivered()
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            each.never_started()
        if waiting:
            self._changed()

    def _find(self, entry_id: str) -> _Waiting:
        self.note_delivered()
        for each in self._waiting:
            if each.id == entry_id:
                return each
        raise RpcError(
            INVALID_REQUEST,
            f"Invalid request: no prompt {entry_id[:100]!r} waits in this session; it has started or was removed",
            {"sessionId": self._session.id, "reason": "not_queued"},
        )

    def _remove(self, entry: _Waiting) -> None:
        if entry not in self._waiting:
            return
        if entry.message is not None:
            self._session.entity.withdraw(entry.message)
        self._waiting.remove(entry)
        entry.never_started()
        self._changed()

    async def _send_later(self) -> None:
        self._changed()

    def _changed(self) -> None:
        """Send the queue to a client that asks for it, and save it."""
        state = self.state()
        texts = [each.text for each in state.prompts]
        metadata = self._session.metadata
        if metadata.queued != texts and not self._keeps_saved:
            metadata.queued = texts
            self._session.save()
        if self._session.client.queues_prompts and state.prompts != self._sent:
            self._sent = state.prompts
            self._session.connection.notify_now(QUEUE_CHANGED, state)
