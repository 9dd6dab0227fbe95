"""What the crystal sees: call, capabilities, context, intent, turns, in this order and only ever appended to (§4.6).

The list grows by what is new and is never rebuilt, so a turn costs the same whenever it comes, and every query's messages
begin with the last query's, byte for byte, which is what prompt caches live on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

import msgspec

from cantrip_acp.crystals.contract import Attachment, Message
from cantrip_acp.gates.contract import observed
from cantrip_acp.loom.turn import Output, Turn

if TYPE_CHECKING:
    from cantrip_acp.call import Call
    from cantrip_acp.circle import Circle

NUDGE = "No gate was called. Go on, and call done with the answer when the task is finished."
"""The circle's answer to prose where only done may end the cast (LOOP-6): the crystal must not speak twice in a row (LOOP-1)."""

SKIPPED = "[not run: done ended the cast before this call]"
INTERRUPTED = "[not run: the cast was stopped before this call]"


@dataclass(frozen=True, slots=True)
class ContextBlock:
    """Something for the crystal to see besides call, capabilities and intent: a document, a note, pinned knowledge.

    It is content, never authority. ``source`` says who added it, ``title`` what it is, ``uri`` where it came from.
    An image, a sound or a document has ``attachment`` in place of a text; it goes with the intent itself.
    """

    text: str = ""
    title: str = ""
    source: str = "user"
    uri: str | None = None
    attachment: Attachment | None = None

    def render(self) -> str:
        """The block as the crystal reads it."""
        head = escape(self.title or self.uri or self.source)
        where = f' uri="{escape(self.uri)}"' if self.uri else ""
        return f'<context source="{escape(self.source)}" title="{head}"{where}>\n{self.text}\n</context>'


@dataclass(frozen=True, slots=True)
class CastInfo:
    """Which cast a contributor is asked about."""

    entity_id: str
    cast_id: str
    intent: str
    trace_id: str


Contributor = Callable[[CastInfo], Awaitable[Sequence[ContextBlock]]]
"""Adds context blocks when a cast begins; they stand before its intent and in the loom as ``context`` records."""


class Context:
    """The messages of one entity. ``messages`` belongs to this object; crystals read it and keep nothing."""

    def __init__(self, call: Call, circle: Circle) -> None:
        self.messages: list[Message] = []
        self._circle = circle
        if call.system_prompt is not None:
            self.messages.append(Message("system", call.system_prompt, kind="call"))
        if circle.presentation:
            self.messages.append(Message("system", circle.presentation, kind="capabilities"))

    def begin(self, intent: str, blocks: Sequence[ContextBlock] = ()) -> None:
        """A cast starts. Blocks are system messages, so that the intent is the first user message (INTENT-2)."""
        for block in blocks:
            if block.attachment is None:
                self.messages.append(Message("system", block.render(), kind="context"))
        attached = tuple(block.attachment for block in blocks if block.attachment is not None)
        self.messages.append(Message("user", intent, kind="intent", attachments=attached))

    def add(self, turn: Turn) -> None:
        """A turn has ended: what was said, and what came of it."""
        self.messages.extend(self.render(turn))

    def render(self, turn: Turn) -> list[Message]:
        """A turn as messages; a function of its record alone, so that a loom gives back what the crystal saw."""
        said = turn.utterance
        provider = said.provider if said.provider is not msgspec.UNSET else None
        out = [Message("assistant", said.content, said.tool_calls, thinking=said.thinking, provider=provider)]
        if not said.tool_calls:
            if not turn.terminated and not turn.truncated:
                out.append(Message("user", NUDGE, kind="nudge"))
            return out
        medium = self._circle.medium
        observation = turn.observation
        outputs: Sequence[Output]
        if isinstance(observation.outputs, tuple):
            outputs = observation.outputs
        else:
            outputs = (observation.output,) if observation.output is not None else ()
        commands = iter(outputs)
        answers = {r.tool_call_id: r for r in observation.results if r.tool_call_id is not None}
        for call in said.tool_calls:
            if call.gate == medium.tool:
                output = next(commands, None)
                text = medium.observe(output) if output is not None else None
                failed = output is not None and (output.error is not None or output.exit_code not in (0, None))
            else:
                record = answers.get(call.id)
                text = observed(record) if record is not None else None
                failed = record is not None and record.is_error
            if text is None:
                text = SKIPPED if turn.terminated else INTERRUPTED
            out.append(Message("tool", text, tool_call_id=call.id, name=call.gate, is_error=failed))
        return out
