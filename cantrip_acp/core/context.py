"""The message list that the crystal sees: call, capabilities, context, intent, turns, in this order (§4.6).

New messages are appended. So adding a turn always costs the same, and each query begins with the messages of the last query,
byte for byte, which prompt caching depends on. What changes earlier messages: a fold, `compact`, new knowledge
(`set_knowledge`), an ephemeral result that was seen (`_expire`), media that the provider refused (`leave_out`), and an intent
or answer that is taken back (`withdraw`, `forget_partial`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from cantrip_acp.core.folding.compaction import CUTTABLE, LEAST, lengths, shortened
from cantrip_acp.core.folding.policy import CHARS_PER_TOKEN, tokens_of
from cantrip_acp.core.folding.summary import Digest, explained, folded_through
from cantrip_acp.core.turn_renderer import EPHEMERAL_BEGINS, Recorded, TurnRenderer
from cantrip_acp.crystals.refused_media import without_media
from cantrip_acp.types.context_block import DOCUMENTS, KNOWLEDGE, WARDS, ContextBlock, block_of, steering_message
from cantrip_acp.types.messages import Message
from cantrip_acp.types.records import DURING_CAST, SentQuery, Turn, UtteranceRecord

if TYPE_CHECKING:
    from cantrip_acp.core.definition.circle import Circle
    from cantrip_acp.loom.query.history import CastPart
    from cantrip_acp.types.call import Call

PARTIAL = "[interrupted here: {reason}]"
"""The mark at the end of an answer that was not finished."""


class _Opening:
    """One cast in the context: its intent and the blocks before it."""

    __slots__ = ("blocks", "intent", "lead", "messages", "partial", "told_before")

    def __init__(
        self, intent: str, messages: list[Message], blocks: Sequence[ContextBlock], lead: Sequence[Message] = ()
    ) -> None:
        self.lead = list(lead)
        """The messages of earlier casts that were stopped before their first turn."""
        self.partial: Message | None = None
        """The text that was streamed before this cast was stopped."""
        self.intent = intent
        self.messages = messages
        self.blocks = blocks
        self.told_before: str | None = None
        """`Context.told` before this cast."""


class _Entry:
    """A turn that is not folded. ``number`` counts the entity's turns from 1; ``opening`` is its cast."""

    __slots__ = ("messages", "number", "opening", "steering", "tokens", "turn", "whole")

    def __init__(
        self, number: int, turn: Turn, opening: _Opening | None, messages: list[Message], *, whole: bool
    ) -> None:
        self.number = number
        self.whole = whole
        """Whether the messages show a result that only one query may see (``ephemeral: after_use``)."""
        self.turn = turn
        self.opening = opening
        self.messages = messages
        self.steering: list[Message] = []
        """The user's messages after this turn, while the cast ran."""
        self.tokens = sum(map(tokens_of, messages))


class ContextSize:
    """The size of a context in tokens: the provider's last count if there is one, plus an estimate of the rest."""

    __slots__ = ("_since", "counted", "fixed")

    def __init__(self, fixed: int) -> None:
        self.fixed = fixed
        """The estimated tokens of call, capabilities and tools, which every count of a provider includes."""
        self.counted = 0
        """Tokens of the context up to the last query, counted by the provider; 0 if the provider gave no count."""
        self._since = 0
        """The estimated tokens of everything added after that query."""

    @property
    def tokens(self) -> int:
        return max(0, self.counted + self._since) if self.counted else self.fixed + self._since

    def add(self, messages: Iterable[Message], sign: int = 1) -> None:
        self._since += sign * sum(map(tokens_of, messages))

    def remove(self, messages: Iterable[Message]) -> None:
        self._since = max(0, self._since - sum(map(tokens_of, messages)))

    def count(self, counted: int, uncounted: Iterable[Message]) -> None:
        """Take a count of the provider, which lacks some messages."""
        self.counted, self._since = counted, sum(map(tokens_of, uncounted))


class Knowledge:
    """What the session knows: its block and messages in the context, and the recorded block that the next query sees."""

    __slots__ = ("_block", "due", "from_withdrawn", "messages")

    def __init__(self) -> None:
        self._block: ContextBlock | None = None
        self.messages: tuple[Message, ...] = ()
        self.from_withdrawn = False
        """Whether a withdrawn cast may have recorded the block. Readers skip such a cast, so the block is recorded again."""
        self.due: ContextBlock | None = None

    @property
    def unsettled(self) -> bool:
        """Whether recorded knowledge is due that changes the messages."""
        return self.due is not None and self.differs(self.due)

    def differs(self, block: ContextBlock) -> bool:
        """Whether the present knowledge is another text, from other scopes (``uri``), or stands in another place."""
        now = self._block
        if now is None:
            return block.text != ""
        if self.from_withdrawn:
            return True
        return (now.text, now.uri, now.placement) != (block.text, block.uri, block.placement)

    def set(self, block: ContextBlock) -> tuple[Message, ...]:
        """Know something else from now on. Returns the new messages."""
        # The text names its sources; the ids of scopes would only cost tokens.
        text = replace(block, uri=None).render()
        if not block.text:
            self.messages = ()
        elif block.placement == "history":
            asked = Message("user", text, kind="knowledge")
            self.messages = (asked, Message("assistant", "I have read it.", kind="knowledge"))
        else:
            self.messages = (Message("system", text, kind="knowledge"),)
        self._block, self.from_withdrawn = block, False
        return self.messages


class FoldedTurns:
    """The first turns of an entity, which a summary replaces."""

    __slots__ = ("_documents", "digest", "last", "summary")

    def __init__(self) -> None:
        self.digest = Digest()
        self.summary = ""
        """The text of the message that replaces the turns."""
        self.last: _Opening | None = None
        """The cast of the last replaced turn."""
        self._documents: dict[str, ContextBlock] = {}
        """The latest version of each document from their casts: what the documents ask for still applies."""

    def __len__(self) -> int:
        return self.digest.turns

    def add(self, entry: _Entry) -> None:
        opening = entry.opening
        first_of_cast = opening is not None and opening is not self.last
        self.digest.add(entry.number, entry.turn, opening.intent if first_of_cast and opening is not None else None)
        if opening is not None:
            # It stays as long as the intent does.
            opening.messages.extend(entry.steering)
            for block in opening.blocks if first_of_cast else ():
                if block.source == DOCUMENTS and block.uri is not None:
                    self._documents.pop(block.uri, None)
                    self._documents[block.uri] = block
        self.last = opening

    def documents_beside(self, blocks: Iterable[ContextBlock]) -> list[ContextBlock]:
        """Their documents, except those that later casts added again, whose blocks are given."""
        newer = {block.uri for block in blocks}
        return [block for uri, block in self._documents.items() if uri not in newer]


class Context:
    """The messages of one entity. Crystals read ``messages`` and must not keep or change it.

    ``turns`` renders turns, ``knowledge`` is what the session knows, ``folded`` are the first turns, which a summary replaces.
    """

    def __init__(
        self,
        call: Call,
        circle: Circle,
        *,
        text_calls: bool = False,
        recorded: Recorded | None = None,
    ) -> None:
        """``text_calls``: the crystal writes its calls as text, and its capability block says so. ``recorded`` is as in
        `TurnRenderer`.
        """
        self.messages: list[Message] = []
        self.folded = FoldedTurns()
        self.turns = TurnRenderer(circle, recorded)
        if call.system_prompt is not None:
            self.messages.append(Message("system", call.system_prompt, kind="call"))
        if capabilities := circle.capabilities(text_calls=text_calls):
            self.messages.append(Message("system", capabilities, kind="capabilities"))
        self._head = tuple(self.messages)
        self._size = ContextSize(
            sum(map(tokens_of, self._head))
            + sum(len(str(tool.parameters)) + len(tool.description) for tool in circle.tools) // CHARS_PER_TOKEN
        )
        self.knowledge = Knowledge()
        self._later: dict[str, list[ContextBlock]] = {}
        """Recorded knowledge and messages of the user that stand after a turn, by the turn's id."""
        self._last_turn: str | None = None
        self.told: str | None = None
        """The ``uri`` of the last block that told the entity of changed wards (`WARDS`)."""
        self._opening: _Opening | None = None
        self._before: _Opening | None = None
        """The cast before the last one."""
        self._entries: list[_Entry] = []

    def present(self, *, text_calls: bool) -> None:
        """Change the capability block after a change of crystal, because the new one writes its calls in the other
        mode.
        """
        capabilities = self.turns.circle.capabilities(text_calls=text_calls)
        for index, message in enumerate(self._head):
            if message.kind == "capabilities" and capabilities is not None:
                self.messages[index] = msgspec.structs.replace(message, content=capabilities)
        self._head = tuple(self.messages[: len(self._head)])

    def present_as(self, other: Context) -> None:
        """Take the call, the capability block and the circle of another context."""
        self.messages[: len(self._head)] = other._head
        self._head, self.turns.circle, self._size.fixed = other._head, other.turns.circle, other._size.fixed

    def begin(self, intent: str, blocks: Sequence[ContextBlock] = ()) -> None:
        """Add the messages that start a cast.

        Blocks are system messages, so that the intent is the first user message (INTENT-2).
        """
        given, blocks = blocks, [block for block in blocks if block.source not in (KNOWLEDGE, *DURING_CAST)]
        messages = [Message("system", b.render(), kind="context") for b in blocks if b.attachment is None]
        attached = tuple(block.attachment for block in blocks if block.attachment is not None)
        messages.append(Message("user", intent, kind="intent", attachments=attached))
        before = self._before = self._opening
        lead: list[Message] = []
        if before is not None and before.partial is not None:
            silent = not any(entry.opening is before for entry in self._entries) and self.folded.last is not before
            lead = [*before.lead, *before.messages, before.partial] if silent else [before.partial]
        self._opening = _Opening(intent, messages, blocks, lead)
        self._opening.told_before = self.told
        for block in blocks:
            self._note_told(block)
        self._extend(messages)
        self.continue_cast(given)

    def continue_cast(self, blocks: Sequence[ContextBlock]) -> None:
        """Take the recorded knowledge, and what was sent during a cast, each after its turn. The other blocks are left out."""
        for block in blocks:
            if block.source not in (KNOWLEDGE, *DURING_CAST):
                continue
            if block.after is None or block.after == self._last_turn:
                self._reach(block)
            else:
                self._later.setdefault(block.after, []).append(block)

    def _reach(self, block: ContextBlock) -> None:
        """Take a recorded block whose turn is in the context. `settle` applies knowledge."""
        if block.source == KNOWLEDGE:
            self.knowledge.due = block
        else:
            self.steer(block)

    def _note_told(self, block: ContextBlock) -> None:
        if block.uri is not None and block.uri.startswith(WARDS):
            self.told = block.uri

    def steer(self, block: ContextBlock) -> None:
        """Add what the user sent, or the entity is told, while the cast runs, after everything else."""
        self._note_told(block)
        message = steering_message(block)
        last = self._entries[-1] if self._entries else None
        if last is not None and last.opening is self._opening:
            last.steering.append(message)
        elif self._opening is not None:
            self._opening.messages.append(message)
        self._extend([message])

    def settle(self) -> None:
        """Apply recorded knowledge that is due."""
        due, self.knowledge.due = self.knowledge.due, None
        if due is not None and self.knowledge.differs(due):
            self.set_knowledge(due)

    def set_knowledge(self, block: ContextBlock) -> None:
        """Replace what the session knows. It stands after call and capabilities, and is never folded or cut."""
        old, at = self.knowledge.messages, len(self._head)
        new = self.knowledge.set(block)
        self.messages[at : at + len(old)] = new
        self._size.add(new)
        self._size.add(old, -1)

    def passed(self, turn_id: str) -> None:
        """Note that a turn or a fold is in the context. Messages of the user and knowledge that came after it can then be
        added."""
        self._last_turn = turn_id
        for block in self._later.pop(turn_id, ()):
            self._reach(block)

    def interrupt(self, said: UtteranceRecord) -> None:
        """Add the unfinished answer of a cast that was stopped during a query, marked as interrupted.

        Its thinking is left out: a provider accepts only thinking that it has signed. The message is added even if
        nothing was said, because the next user message must follow an answer.
        """
        if self._opening is None:
            return
        text = said.utterance.content or ""
        mark = PARTIAL.format(reason=said.stop_reason or "error")
        message = Message("assistant", f"{text.rstrip()}\n\n{mark}" if text.strip() else mark, kind="partial")
        self._opening.partial = message
        self._extend([message])

    def forget_partial(self) -> None:
        """Remove the unfinished answer of the last cast, because that cast is resumed."""
        message = self._opening.partial if self._opening is not None else None
        if self._opening is None or message is None:
            return
        self._opening.partial = None
        self.messages[:] = [each for each in self.messages if each is not message]
        self._size.remove((message,))

    def withdraw(self) -> bool:
        """Remove the last intent with its context and attachments, if no turn followed.

        Returns whether it was removed.

        A provider that refused these messages would refuse every later query that contains them. `load` leaves them
        out for the same reason.
        """
        opening = self._opening
        if opening is None or any(entry.opening is opening for entry in self._entries):
            return False
        gone = set(map(id, opening.messages))
        self.messages[:] = [message for message in self.messages if id(message) not in gone]
        self._size.remove(opening.messages)
        self.told = opening.told_before
        self._opening, self._before = self._before, None
        self.knowledge.from_withdrawn = True
        return True

    def pinned(self) -> list[ContextBlock]:
        """The blocks that are still in the context, oldest first."""
        of_casts = self._of_casts()
        return [*self.folded.documents_beside(of_casts), *of_casts]

    def _of_casts(self) -> list[ContextBlock]:
        openings = dict.fromkeys([*(entry.opening for entry in self._entries), self._opening])
        return [block for opening in openings if opening is not None for block in opening.blocks]

    def add(self, turn: Turn) -> None:
        """Add a finished turn: what was said, and the results."""
        sent = turn.metadata.query
        if isinstance(sent, SentQuery) and sent.refused:
            self.leave_out(sent.refused)
        if self.expires:
            self._expire()
        messages, whole = self.turns.render(turn, fresh=True), self.turns.shows_ephemeral(turn)
        entry = _Entry(len(self.folded) + len(self._entries) + 1, turn, self._opening, messages, whole=whole)
        self._entries.append(entry)
        self.messages.extend(messages)
        used = turn.metadata.context
        if used:
            # The provider's count includes the completion (the first message) but not the results.
            self._size.count(used, messages[1:])
        else:
            self._size.add(messages)
        self.passed(turn.id)

    @property
    def expires(self) -> bool:
        """Whether the last turn shows a result that only one query may see (``ephemeral: after_use``)."""
        return bool(self._entries) and self._entries[-1].whole

    def _expire(self) -> None:
        """Replace the last turn's ephemeral results with a placeholder, because a query has seen them."""
        entry = self._entries[-1]
        entry.whole = False
        for old, new in zip(tuple(entry.messages), self.turns.render(entry.turn), strict=True):
            expired = new.content != old.content and (new.content or "").startswith(EPHEMERAL_BEGINS)
            if expired or new.attachments != old.attachments:
                self._replace(old, new)

    def _extend(self, messages: Sequence[Message]) -> None:
        self.messages.extend(messages)
        self._size.add(messages)

    @property
    def tokens(self) -> int:
        """Size of the context in tokens: the provider's last count if there is one, plus an estimate of the rest."""
        return self._size.tokens

    @property
    def unfolded(self) -> int:
        """Number of turns that are not folded."""
        return len(self._entries)

    def sizes(self) -> list[int]:
        """The estimated tokens of each turn that is not folded, in order."""
        return [entry.tokens for entry in self._entries]

    def foldable(self, keep: int) -> list[tuple[int, Turn]]:
        """The turns, with their numbers, that a fold would replace if it keeps the last ``keep``."""
        return [(e.number, self.turns.without_ephemeral(e.turn)) for e in self._entries[: len(self._entries) - keep]]

    def fold(self, keep: int, summary: str | None, variable: str | None) -> str:
        """Replace all turns but the last ``keep`` with a summary. Returns the text of the summary's message.

        If ``summary`` is None, the digest is used. Call and capabilities stay as they are (LOOM-6, CALL-5), and so
        does the intent of every cast that still has a turn here. The folded turns stay in the loom (LOOM-5).
        """
        last = self._move_to_folded(len(self._entries) - keep)
        self.folded.summary = explained(1, len(self.folded), summary or self.folded.digest.text(), variable)
        self._rebuild(last)
        return self.folded.summary

    def load(self, parts: Sequence[CastPart]) -> None:
        """Load an entity's history from its loom (LOOM-4). Call it once, before any other method."""
        before: str | None = None
        for place, part in enumerate(parts):
            blocks = [block_of(record) for record in part.context]
            if part.goes_on(before):
                self.continue_cast(blocks)
            else:
                self.begin(part.intent, blocks)
            before = None if part.withdrawn else part.id
            for turn in part.turns:
                self.settle()
                if turn.role == "crystal":
                    self.add(turn)
                    continue
                self.refold(turn.utterance.content)
                self.passed(turn.id)
            resumed = place + 1 < len(parts) and parts[place + 1].goes_on(part.id)
            if part.partial is not None and not resumed:
                self.settle()
                self.interrupt(part.partial)
            if part.withdrawn:
                self.withdraw()
        self.settle()

    def refold(self, summary: str | None) -> None:
        """Repeat a recorded fold: ``summary`` is the message of a ``fold`` turn. Any other text changes nothing."""
        through = folded_through(summary)
        if summary is not None and through is not None and through > len(self.folded):
            last = self._move_to_folded(min(through - len(self.folded), len(self._entries)))
            self.folded.summary = summary
            self._rebuild(last)

    def _move_to_folded(self, count: int) -> _Opening | None:
        """Move the first ``count`` turns to those that are folded. Returns the cast of the last of them."""
        gone, self._entries = self._entries[:count], self._entries[count:]
        for entry in gone:
            self.folded.add(entry)
        return gone[-1].opening if gone else None

    def _rebuild(self, last: _Opening | None) -> None:
        """Rebuild the messages: head, intent, summary, turns. ``last`` is the cast of the last folded turn."""
        first = self._entries[0].opening if self._entries else self._opening
        self.messages.clear()
        self.messages.extend(self._head)
        self.messages.extend(self.knowledge.messages)
        self.messages.extend(
            Message("system", b.render(), kind="context") for b in self.folded.documents_beside(self._of_casts())
        )
        if first is last and first is not None:
            # The fold ends in the middle of a cast: its intent stays before the summary of its first turns.
            self.messages.extend(first.messages)
            self.messages.append(Message("user", self.folded.summary, kind="fold"))
        else:
            # The summary is a system message: the first user message must be an intent (INTENT-2).
            self.messages.append(Message("system", self.folded.summary, kind="fold"))
            if first is not None:
                self._reopen(first, answered=False)
        opening = first
        for entry in self._entries:
            if entry.opening is not opening and entry.opening is not None:
                opening = entry.opening
                self._reopen(opening)
            self.messages.extend(entry.messages)
            self.messages.extend(entry.steering)
        if self._opening is not None:
            if self._opening is not opening:
                self._reopen(self._opening)
            if self._opening.partial is not None:
                self.messages.append(self._opening.partial)
        # The provider has not counted any of this yet.
        self._estimate()

    def _reopen(self, opening: _Opening, *, answered: bool = True) -> None:
        """Rebuild the messages from head, intent, summary and turns. ``last`` is the opening of the cast of the last folded
        turn."""
        lead = opening.lead
        if not answered and lead and lead[0].role == "assistant":
            lead = lead[1:]
        self.messages.extend(lead)
        self.messages.extend(opening.messages)

    def compact(self, most: int) -> int:
        """Cut the longest texts and arguments of turns until the estimate is at most ``most`` tokens. Returns how many were
        cut.

        This is the last resort where folding is not enough: one turn can be larger than a window. Each cut is marked, and the
        loom has the whole text. Call, capabilities and intents are never cut.
        """
        cut = 0
        while self.tokens > most:
            at = [i for i, m in enumerate(self.messages) if m.kind in CUTTABLE and max(lengths(m)) > LEAST]
            if not at:
                break
            message = self.messages[max(at, key=lambda i: max(lengths(self.messages[i])))]
            over = (self.tokens - most) * CHARS_PER_TOKEN + 200
            shorter = shortened(message, over)
            if tokens_of(shorter) >= tokens_of(message):
                break
            self._replace(message, shorter)
            self._estimate()
            cut += 1
        return cut

    def leave_out(self, media: Collection[str]) -> None:
        """Replace media that a provider refused with a note."""
        self.turns.refuse(media)
        for message in tuple(self.messages):
            shorter = without_media(message, media)
            if shorter is not message:
                self._replace(message, shorter)
                self._size.counted = 0
        if not self._size.counted:
            self._estimate()

    def _estimate(self) -> None:
        """Estimate the size anew, because the provider has counted no query with these messages."""
        self._size.count(0, self.messages[len(self._head) :])

    def holds(self, media: Collection[str]) -> bool:
        """Whether a message holds one of these media."""
        return any(without_media(message, media) is not message for message in self.messages)

    def _replace(self, old: Message, new: Message) -> None:
        self.messages[next(i for i, m in enumerate(self.messages) if m is old)] = new
        for entry in self._entries:
            for i, message in enumerate(entry.messages):
                if message is old:
                    entry.messages[i] = new
                    entry.tokens = sum(map(tokens_of, entry.messages))
            entry.steering[:] = [new if message is old else message for message in entry.steering]
        openings = {id(o): o for o in (*(entry.opening for entry in self._entries), self._opening) if o is not None}
        for opening in openings.values():
            opening.lead[:] = [new if message is old else message for message in opening.lead]
            opening.messages[:] = [new if message is old else message for message in opening.messages]
            if opening.partial is old:
                opening.partial = new
