"""The message list that the crystal sees: call, capabilities, context, intent, turns, in this order (§4.6).

New messages are appended. So adding a turn always costs the same, and each query begins with the messages of the last query,
byte for byte, which prompt caching depends on. What changes earlier messages: a fold, `compact`, new knowledge
(`set_knowledge`), an ephemeral result that was seen (`_expire`), media that the provider refused (`leave_out`), and an intent
or answer that is taken back (`withdraw`, `forget_partial`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from cantrip_acp.core.folding.policy import ATTACHMENT_TOKENS, CHARS_PER_TOKEN, tokens_of
from cantrip_acp.core.folding.summary import Digest, explained, folded_through
from cantrip_acp.crystals.contract import CUTS
from cantrip_acp.crystals.refused_media import without_media
from cantrip_acp.gates.contract import render_record
from cantrip_acp.gates.registry import ALIASES, DELEGATION
from cantrip_acp.types.context_block import DOCUMENTS, KNOWLEDGE, WARDS, ContextBlock, block_of, steering_message
from cantrip_acp.types.messages import Attachment, Message
from cantrip_acp.types.records import DURING_CAST, GateRecord, Output, SentQuery, Turn, UtteranceRecord

if TYPE_CHECKING:
    from cantrip_acp.core.definition.circle import Circle
    from cantrip_acp.loom.query.history import CastPart
    from cantrip_acp.mediums.contract import Medium
    from cantrip_acp.types.call import Call

NUDGE = "No gate was called. Go on, and call done with the answer when the task is finished."
"""The message after prose if only done may end the cast (LOOP-6). The crystal must not speak twice in a row
(LOOP-1).
"""

CUT = "Your answer was cut off, because it became too long. Go on from there, and call done when the task is finished."
"""The same after prose that the provider cut."""

PARTIAL = "[interrupted here: {reason}]"
"""The mark at the end of an answer that was not finished."""

SKIPPED = "[not run: done ended the cast before this call]"
INTERRUPTED = "[not run: the cast was stopped before this call]"
UNKNOWN = "[a child was spawned here; what came of it, and what followed, is not known]"
MOST_IMAGES = 8
"""Maximum number of images that the crystal sees from the gate calls of one program; it sees the first ones."""

MORE_IMAGES = "[{count} more images are not shown; one program shows {most} at most]"
_EPHEMERAL_BEGINS = "[ephemeral:"
EPHEMERAL = _EPHEMERAL_BEGINS + "{gate}]"
"""What the crystal sees in place of an ephemeral gate's result. The loom has the whole result (PROD-5, D-010)."""

_LEAST = 2_000
"""Compaction does not cut texts of at most this many characters."""


Marks = Mapping[str, bool | str]
"""The ephemeral gates, each with its value of ``ephemeral``."""


class Recorded(Protocol):
    """What the loom says of the circles in which turns were written (`history.recorded_circle.RecordedCircles`)."""

    def medium_of(self, cantrip_id: str) -> Medium | None: ...

    def ephemeral_of(self, cantrip_id: str) -> Marks | None: ...


class _Opening:
    """One cast in the context: its intent and the blocks before it."""

    __slots__ = ("blocks", "intent", "lead", "messages", "partial", "told_before")

    def __init__(
        self, intent: str, messages: list[Message], blocks: Sequence[ContextBlock], lead: Sequence[Message] = ()
    ) -> None:
        self.lead = list(lead)
        """What earlier casts left that were stopped before their first turn."""
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
        """Whether it shows a result that only one query may see (``ephemeral: after_use``)."""
        self.turn = turn
        self.opening = opening
        self.messages = messages
        self.steering: list[Message] = []
        """What the user sent after this turn, while the cast ran."""
        self.tokens = sum(map(tokens_of, messages))


class Context:
    """The messages of one entity. Crystals read ``messages`` and must not keep or change it.

    ``folded`` is the number of the entity's first turns that a summary replaces.
    """

    def __init__(
        self,
        call: Call,
        circle: Circle,
        *,
        text_calls: bool = False,
        recorded: Recorded | None = None,
    ) -> None:
        """``text_calls``: the crystal writes its calls as text, and its capability block says so. ``recorded`` tells the
        medium and the ephemeral gates with which turns were written; None means that those of the circle were used.
        """
        self.messages: list[Message] = []
        self.folded = 0
        self._circle = circle
        self._recorded = recorded
        self._ephemeral: Marks = {name: gate.ephemeral for name, gate in circle.gates.items() if gate.ephemeral}
        if call.system_prompt is not None:
            self.messages.append(Message("system", call.system_prompt, kind="call"))
        if capabilities := circle.capabilities(text_calls=text_calls):
            self.messages.append(Message("system", capabilities, kind="capabilities"))
        self._head = tuple(self.messages)
        self._fixed = (
            sum(map(tokens_of, self._head))
            + sum(len(str(tool.parameters)) + len(tool.description) for tool in circle.tools) // CHARS_PER_TOKEN
        )
        self._knowledge: tuple[Message, ...] = ()
        self._known: ContextBlock | None = None
        self._known_from_withdrawn = False
        """Whether a cast that was withdrawn may have recorded it. Readers leave out such a cast, so it is recorded again."""
        self._due: ContextBlock | None = None
        """Recorded knowledge that the next query sees."""
        self._later: dict[str, ContextBlock] = {}
        """Recorded knowledge that is due after a turn, by the turn's id."""
        self._steering: dict[str, list[ContextBlock]] = {}
        """Recorded messages of the user during a cast that stand after a turn, by the turn's id."""
        self._last_turn: str | None = None
        self.told: str | None = None
        """The ``uri`` of the last block that told the entity of changed wards (`WARDS`)."""
        self._opening: _Opening | None = None
        self._before: _Opening | None = None
        """The cast before the last one."""
        self._entries: list[_Entry] = []
        self._digest = Digest()
        self._digested: _Opening | None = None
        """The cast of the last turn that was added to the digest."""
        self._folded_documents: dict[str, ContextBlock] = {}
        """The latest version of each document from casts that were folded away: what the documents ask for still
        applies.
        """
        self._summary: str | None = None
        self._refused: frozenset[str] = frozenset()
        """Media that a provider refused (`crystals.refused_media`). Results that hold them again are shown without them."""
        self._counted = 0
        """Tokens of the context up to the last query, counted by the provider; 0 if the provider gave no count."""
        self._since = 0
        """The estimated tokens of everything added after that query."""

    def present(self, *, text_calls: bool) -> None:
        """Change the capability block after a change of crystal, because the new one writes its calls in the other
        mode.
        """
        capabilities = self._circle.capabilities(text_calls=text_calls)
        for index, message in enumerate(self._head):
            if message.kind == "capabilities" and capabilities is not None:
                self.messages[index] = msgspec.structs.replace(message, content=capabilities)
        self._head = tuple(self.messages[: len(self._head)])

    def present_as(self, other: Context) -> None:
        """Take the call, the capability block and the circle of another context."""
        self.messages[: len(self._head)] = other._head
        self._head, self._circle, self._fixed = other._head, other._circle, other._fixed

    def begin(self, intent: str, blocks: Sequence[ContextBlock] = ()) -> None:
        """Add the messages that start a cast.

        Blocks are system messages, so that the intent is the first user message (INTENT-2).
        """
        self.expect_knowledge(blocks)
        given, blocks = blocks, [block for block in blocks if block.source not in (KNOWLEDGE, *DURING_CAST)]
        messages = [Message("system", b.render(), kind="context") for b in blocks if b.attachment is None]
        attached = tuple(block.attachment for block in blocks if block.attachment is not None)
        messages.append(Message("user", intent, kind="intent", attachments=attached))
        before = self._before = self._opening
        lead: list[Message] = []
        if before is not None and before.partial is not None:
            silent = not any(entry.opening is before for entry in self._entries) and self._digested is not before
            lead = [*before.lead, *before.messages, before.partial] if silent else [before.partial]
        self._opening = _Opening(intent, messages, blocks, lead)
        self._opening.told_before = self.told
        for block in blocks:
            self._note_told(block)
        self._extend(messages)
        self._expect_steering(given)

    def continue_cast(self, blocks: Sequence[ContextBlock]) -> None:
        """Take the recorded blocks of a cast that continues the last one, whose intent is in the context already."""
        self.expect_knowledge(blocks)
        self._expect_steering(blocks)

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

    def _expect_steering(self, blocks: Sequence[ContextBlock]) -> None:
        """Add what was sent before the first query of a cast, and note what was sent after later turns."""
        for block in blocks:
            if block.source not in DURING_CAST:
                continue
            if block.after is None or block.after == self._last_turn:
                self.steer(block)
            else:
                self._steering.setdefault(block.after, []).append(block)

    def expect_knowledge(self, blocks: Sequence[ContextBlock]) -> None:
        """Note the recorded knowledge among the blocks of a cast. `settle` applies it where it belongs."""
        for block in blocks:
            if block.source != KNOWLEDGE:
                continue
            if block.after is None or block.after == self._last_turn:
                self._due = block
            else:
                self._later[block.after] = block

    @property
    def unsettled(self) -> bool:
        """Whether recorded knowledge is due that changes the messages."""
        return self._due is not None and self.knows_other(self._due)

    def settle(self) -> None:
        """Apply recorded knowledge that is due."""
        due, self._due = self._due, None
        if due is not None and self.knows_other(due):
            self.set_knowledge(due)

    def knows_other(self, block: ContextBlock) -> bool:
        """Whether the present knowledge is another text, from other scopes (``uri``), or stands in another place."""
        now = self._known
        if now is None:
            return block.text != ""
        if self._known_from_withdrawn:
            return True
        return (now.text, now.uri, now.placement) != (block.text, block.uri, block.placement)

    def set_knowledge(self, block: ContextBlock) -> None:
        """Replace what the session knows. It stands after call and capabilities, and is never folded or cut."""
        new: tuple[Message, ...] = ()
        # The text names its sources; the ids of scopes would only cost tokens.
        text = replace(block, uri=None).render()
        if block.text and block.placement == "history":
            asked = Message("user", text, kind="knowledge")
            new = (asked, Message("assistant", "I have read it.", kind="knowledge"))
        elif block.text:
            new = (Message("system", text, kind="knowledge"),)
        old, at = self._knowledge, len(self._head)
        self.messages[at : at + len(old)] = new
        self._since += sum(map(tokens_of, new)) - sum(map(tokens_of, old))
        self._known, self._knowledge, self._known_from_withdrawn = block, new, False

    def passed(self, turn_id: str) -> None:
        """Note that a turn (a fold too) is in the context: what the user sent after it follows, and knowledge that changed
        after it is due."""
        self._last_turn = turn_id
        for block in self._steering.pop(turn_id, ()):
            self.steer(block)
        if turn_id in self._later:
            self._due = self._later.pop(turn_id)

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
        self._since = max(0, self._since - tokens_of(message))

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
        self._since = max(0, self._since - sum(map(tokens_of, opening.messages)))
        self.told = opening.told_before
        self._opening, self._before = self._before, None
        self._known_from_withdrawn = True
        return True

    def pinned(self) -> list[ContextBlock]:
        """The blocks that are still in the context, oldest first."""
        return [*self._documents(), *self._of_casts()]

    def _of_casts(self) -> list[ContextBlock]:
        openings = dict.fromkeys([*(entry.opening for entry in self._entries), self._opening])
        return [block for opening in openings if opening is not None for block in opening.blocks]

    def _documents(self) -> list[ContextBlock]:
        """Documents of casts that were folded away, except those that a later cast added again."""
        newer = {block.uri for block in self._of_casts()}
        return [block for uri, block in self._folded_documents.items() if uri not in newer]

    def add(self, turn: Turn) -> None:
        """Add a finished turn: what was said, and the results."""
        sent = turn.metadata.query
        if isinstance(sent, SentQuery) and sent.refused:
            self.leave_out(sent.refused)
        if self.expires:
            self._expire()
        messages, whole = self.render(turn, fresh=True), self._keeps_for_a_query(turn)
        entry = _Entry(self.folded + len(self._entries) + 1, turn, self._opening, messages, whole=whole)
        self._entries.append(entry)
        self.messages.extend(messages)
        used = turn.metadata.context
        if used:
            # The provider's count includes the completion (the first message) but not the results.
            self._counted, self._since = used, sum(map(tokens_of, messages[1:]))
        else:
            self._since += entry.tokens
        self.passed(turn.id)

    @property
    def expires(self) -> bool:
        """Whether the last turn shows a result that only one query may see (``ephemeral: after_use``)."""
        return bool(self._entries) and self._entries[-1].whole

    def _expire(self) -> None:
        """Replace the last turn's ephemeral results with a placeholder, because a query has seen them."""
        entry = self._entries[-1]
        entry.whole = False
        for old, new in zip(tuple(entry.messages), self.render(entry.turn), strict=True):
            expired = new.content != old.content and (new.content or "").startswith(_EPHEMERAL_BEGINS)
            if expired or new.attachments != old.attachments:
                self._replace(old, new)

    def _keeps_for_a_query(self, turn: Turn) -> bool:
        marks = self._marks(turn)
        return bool(marks) and any(
            marks.get(record.gate) == "after_use" and not record.is_error for record in turn.observation.results
        )

    def _extend(self, messages: Sequence[Message]) -> None:
        self.messages.extend(messages)
        self._since += sum(map(tokens_of, messages))

    @property
    def tokens(self) -> int:
        """Size of the context in tokens: the provider's last count if there is one, plus an estimate of the rest."""
        return max(0, self._counted + self._since) if self._counted else self._fixed + self._since

    @property
    def unfolded(self) -> int:
        """Number of turns that are not folded."""
        return len(self._entries)

    def sizes(self) -> list[int]:
        """The estimated tokens of each turn that is not folded, in order."""
        return [entry.tokens for entry in self._entries]

    def foldable(self, keep: int) -> list[tuple[int, Turn]]:
        """The turns, with their numbers, that a fold would replace if it keeps the last ``keep``."""
        return [(e.number, self._unseen(e.turn)) for e in self._entries[: len(self._entries) - keep]]

    def _unseen(self, turn: Turn) -> Turn:
        """The turn with placeholders for the results of ephemeral gates. A summarizer must not see them either."""
        results = turn.observation.results
        marks = self._marks(turn)
        if not any(_is_ephemeral(marks, record) for record in results):
            return turn
        masked = tuple(
            msgspec.structs.replace(r, result=EPHEMERAL.format(gate=r.gate), attachments=msgspec.UNSET)
            if _is_ephemeral(marks, r)
            else r
            for r in results
        )
        return msgspec.structs.replace(turn, observation=msgspec.structs.replace(turn.observation, results=masked))

    def _marks(self, turn: Turn) -> Marks:
        """The ephemeral gates of a turn: those with which it was written, whatever the present circle says."""
        found = self._recorded.ephemeral_of(turn.cantrip_id) if self._recorded is not None else None
        return self._ephemeral if found is None else found

    def fold(self, keep: int, summary: str | None, variable: str | None) -> str:
        """Replace all turns but the last ``keep`` with a summary. Returns the text of the summary's message.

        If ``summary`` is None, the digest is used. Call and capabilities stay as they are (LOOM-6, CALL-5), and so
        does the intent of every cast that still has a turn here. The folded turns stay in the loom (LOOM-5).
        """
        last = self._move_to_digest(len(self._entries) - keep)
        self._summary = explained(1, self.folded, summary or self._digest.text(), variable)
        self._rebuild(last)
        return self._summary

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
        if through is not None and through > self.folded:
            last = self._move_to_digest(min(through - self.folded, len(self._entries)))
            self._summary = summary
            self._rebuild(last)

    def _move_to_digest(self, count: int) -> _Opening | None:
        """Move the first ``count`` turns into the digest. Returns the cast of the last of them."""
        gone, self._entries = self._entries[:count], self._entries[count:]
        for entry in gone:
            first_of_cast = entry.opening is not None and entry.opening is not self._digested
            self._digest.add(
                entry.number, entry.turn, entry.opening.intent if first_of_cast and entry.opening else None
            )
            if entry.opening is not None and entry.opening is not self._digested:
                self._keep(entry.opening)
            if entry.opening is not None:
                # It stays as long as the intent does.
                entry.opening.messages.extend(entry.steering)
            self._digested = entry.opening
        self.folded += len(gone)
        return gone[-1].opening if gone else None

    def _keep(self, opening: _Opening) -> None:
        for block in opening.blocks:
            if block.source == DOCUMENTS and block.uri is not None:
                self._folded_documents.pop(block.uri, None)
                self._folded_documents[block.uri] = block

    def _rebuild(self, last: _Opening | None) -> None:
        """Rebuild the messages: head, intent, summary, turns. ``last`` is the cast of the last folded turn."""
        first = self._entries[0].opening if self._entries else self._opening
        self.messages.clear()
        self.messages.extend(self._head)
        self.messages.extend(self._knowledge)
        summary = self._summary or ""
        self.messages.extend(Message("system", b.render(), kind="context") for b in self._documents())
        if first is last and first is not None:
            # The fold ends in the middle of a cast: its intent stays before the summary of its first turns.
            self.messages.extend(first.messages)
            self.messages.append(Message("user", summary, kind="fold"))
        else:
            # The summary is a system message: the first user message must be an intent (INTENT-2).
            self.messages.append(Message("system", summary, kind="fold"))
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
        self._counted, self._since = 0, sum(map(tokens_of, self.messages[len(self._head) :]))

    def _reopen(self, opening: _Opening, *, answered: bool = True) -> None:
        """Add the start of a cast, and before it what stopped casts left.

        A partial answer needs the message that it answers. Without that message (``answered`` is false) it is left
        out; the summary replaces both.
        """
        lead = opening.lead
        if not answered and lead and lead[0].role == "assistant":
            lead = lead[1:]
        self.messages.extend(lead)
        self.messages.extend(opening.messages)

    def compact(self, most: int) -> int:
        """Cut the longest texts and arguments of turns until the estimate is at most ``most`` tokens.

        Returns how many were cut.

        This is the last resort where folding is not enough: one turn can be larger than a window. Each cut is marked,
        and the loom has the whole text. Call, capabilities and intents are never cut.
        """
        cut = 0
        while self.tokens > most:
            at = [i for i, m in enumerate(self.messages) if m.kind in _CUTTABLE and max(_lengths(m)) > _LEAST]
            if not at:
                break
            message = self.messages[max(at, key=lambda i: max(_lengths(self.messages[i])))]
            over = (self.tokens - most) * CHARS_PER_TOKEN + 200
            shorter = _shortened(message, over)
            if tokens_of(shorter) >= tokens_of(message):
                break
            self._replace(message, shorter)
            self._counted = 0
            self._since = sum(map(tokens_of, self.messages[len(self._head) :]))
            cut += 1
        return cut

    def leave_out(self, media: Collection[str]) -> None:
        """Replace media that a provider refused with a note."""
        self._refused = self._refused.union(media)
        for message in tuple(self.messages):
            shorter = without_media(message, media)
            if shorter is not message:
                self._replace(message, shorter)
                self._counted = 0
        if not self._counted:
            self._since = sum(map(tokens_of, self.messages[len(self._head) :]))

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

    def render(self, turn: Turn, *, fresh: bool = False) -> list[Message]:
        """The messages of a turn. They depend only on its record, so that a loom can rebuild what the crystal saw.

        ``fresh``: as the next query sees it, with the results of gates that are ``ephemeral: after_use``.
        """
        said = turn.utterance
        provider = said.provider if said.provider is not msgspec.UNSET else None
        out = [
            Message(
                "assistant",
                said.content,
                said.tool_calls,
                thinking=said.thinking,
                provider=provider,
                text_calls=said.text_calls is True,
            )
        ]
        if not said.tool_calls:
            if not turn.terminated and not turn.truncated:
                problem = turn.observation.output.error if turn.observation.output is not None else None
                cut = turn.metadata.stop_reason in CUTS
                out.append(Message("user", problem or (CUT if cut else NUDGE), kind="nudge"))
            return out
        # An earlier recipe, or a forked child, may have worked in another medium.
        written_in = self._recorded.medium_of(turn.cantrip_id) if self._recorded is not None else None
        marks = self._marks(turn)
        medium = written_in or self._circle.medium
        observation = turn.observation
        outputs: Sequence[Output]
        if isinstance(observation.outputs, tuple):
            outputs = observation.outputs
        else:
            outputs = (observation.output,) if observation.output is not None else ()
        commands = iter(outputs)
        answers = {r.tool_call_id: r for r in observation.results if r.tool_call_id is not None}
        for place, call in enumerate(said.tool_calls):
            images: tuple[Attachment, ...] = ()
            if call.gate == medium.tool:
                output = next(commands, None)
                text = medium.observe(output) if output is not None else None
                if output is not None and output.unfinished is True:
                    # Nothing is known of what followed: the process died there, or a fork continued from that turn.
                    text = f"{text}\n{UNKNOWN}"
                failed = output is not None and output.failed
                made = (r for r in observation.results if r.tool_call_id is None and r.via in (place, msgspec.UNSET))
                images = (
                    tuple(image for r in made for image in _images(marks, r, fresh=fresh)) if text is not None else ()
                )
                if len(images) > MOST_IMAGES:
                    text = f"{text}\n{MORE_IMAGES.format(count=len(images) - MOST_IMAGES, most=MOST_IMAGES)}"
                    images = images[:MOST_IMAGES]
            else:
                record = answers.get(call.id)
                text = _observed(marks, record, fresh=fresh) if record is not None else None
                failed = record is not None and record.is_error
                images = _images(marks, record, fresh=fresh) if record is not None else ()
            if text is None and not turn.terminated and not turn.truncated and _delegates(call.gate):
                text = UNKNOWN
            if text is None:
                text = SKIPPED if turn.terminated else INTERRUPTED
            said_back = Message("tool", text, tool_call_id=call.id, name=call.gate, is_error=failed, attachments=images)
            out.append(without_media(said_back, self._refused))
        return out


def _is_ephemeral(marks: Marks, record: GateRecord) -> bool:
    return record.gate in marks and not record.is_error


def _observed(marks: Marks, record: GateRecord, *, fresh: bool) -> str:
    return EPHEMERAL.format(gate=record.gate) if _expired(marks, record, fresh=fresh) else render_record(record)


def _images(marks: Marks, record: GateRecord, *, fresh: bool) -> tuple[Attachment, ...]:
    return () if _expired(marks, record, fresh=fresh) else record.attachments or ()


def _expired(marks: Marks, record: GateRecord, *, fresh: bool) -> bool:
    return _is_ephemeral(marks, record) and not (fresh and marks[record.gate] == "after_use")


_CUTTABLE = ("turn", "fold", "partial")


def _lengths(message: Message) -> list[int]:
    """The lengths of its text, its thinking, its images (by their tokens), and the arguments of each call."""
    images = len(message.attachments) * ATTACHMENT_TOKENS * CHARS_PER_TOKEN
    return [len(message.content or ""), len(message.thinking or ""), images, *(len(c.args) for c in message.tool_calls)]


def _shortened(message: Message, over: int) -> Message:
    """The message with its longest part cut by about ``over`` characters.

    Provider data (signed parts, reasoning items) are removed if they may repeat the cut text. Calls keep their ids,
    so that their results still match.
    """
    lengths = _lengths(message)
    longest = lengths.index(max(lengths))
    left = max(_LEAST // 2, lengths[longest] - over)
    provider = message.provider
    # JSON escapes can make the same text up to six times as long.
    if provider is not None and len(msgspec.json.encode(provider)) >= lengths[longest] // 8:
        provider = None
    if longest == 0:
        return msgspec.structs.replace(message, content=_cut_text(message.content or "", left), provider=provider)
    if longest == 1:
        return msgspec.structs.replace(message, thinking=_cut_text(message.thinking or "", left), provider=provider)
    if longest == 2:
        count = len(message.attachments)
        note = f"[{count} image{'s' if count > 1 else ''} cut here; the loom has them]"
        return msgspec.structs.replace(message, content=f"{message.content or ''}\n{note}", attachments=())
    calls = list(message.tool_calls)
    call = calls[longest - 3]
    calls[longest - 3] = msgspec.structs.replace(call, args=_cut_args(call.args, left))
    return msgspec.structs.replace(message, tool_calls=tuple(calls), provider=provider)


def _cut_text(text: str, left: int) -> str:
    return (
        f"{text[: left // 2]}\n[… {len(text) - left:,} characters cut here; the loom has them]\n{text[-(left // 2) :]}"
    )


def _cut_args(args: str, left: int) -> str:
    """Arguments of about ``left`` characters.

    A JSON object keeps its keys and gets its long texts cut; if that is not enough, the result says what was cut.
    """
    try:
        data = msgspec.json.decode(args)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        data = None
    if isinstance(data, dict):
        most = left
        while most >= 64:
            shorter = {key: _cut_value(value, most) for key, value in data.items()}
            text = msgspec.json.encode(shorter).decode()
            if len(text) <= left + 400:
                return text
            most //= 2
    cut = f"[… {len(args):,} characters of arguments cut here; the loom has them]"
    return msgspec.json.encode({"cut": cut}).decode()


def _cut_value(value: Any, most: int) -> Any:
    if isinstance(value, str):
        return value if len(value) <= most else _cut_text(value, most)
    text = msgspec.json.encode(value).decode()
    return value if len(text) <= most else _cut_text(text, most)


def _delegates(gate: str) -> bool:
    return ALIASES.get(gate, gate) in DELEGATION
