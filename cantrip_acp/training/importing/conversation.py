"""A conversation of another agent as casts and turns: what the importers of ATIF and Inspect have in common.

A reader makes a `Conversation` of its file; `add_conversation` writes it. A user's messages begin a cast, each answer is a turn,
and the results of its calls are the turn's observation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from cantrip_acp.core.turn_renderer import NUDGE
from cantrip_acp.crystals.logprobs import common_prefix_length
from cantrip_acp.training.importing.importer import RecordWriter
from cantrip_acp.training.importing.json_lines import stable
from cantrip_acp.types.messages import SampledTokens, ToolCall
from cantrip_acp.types.records import CastRecord, ContextRecord, GateRecord, Observation, Turn, TurnMetadata, Utterance


@dataclass
class Result:
    """The result of a call, by the id of the call. ``children`` are conversations that the call started."""

    call_id: str | None
    content: Any
    is_error: bool = False
    children: list[Conversation] = field(default_factory=list)


@dataclass
class Asked:
    """Messages of the user. ``media`` are pairs of a media type and base64 data."""

    text: str
    when: str = ""
    media: list[tuple[str, str]] = field(default_factory=list)


@dataclass
class Told:
    """A message of the system in the middle of a conversation."""

    text: str
    when: str = ""


@dataclass
class Answer:
    """An answer of the model, with the results of its calls. ``prompt_ids`` are the tokens of the whole prompt."""

    text: str | None
    thinking: str | None = None
    calls: Sequence[ToolCall] = ()
    results: list[Result] = field(default_factory=list)
    when: str = ""
    model: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    cost: float | None = None
    stop_reason: str | None = None
    prompt_ids: Sequence[int] = ()
    ids: Sequence[int] = ()
    logprobs: Sequence[float] = ()
    reward: float | None = None


@dataclass
class Conversation:
    """One conversation. ``id`` is unique in its file's ``kind``. ``reason`` says why it ended; None if that is not known."""

    kind: str
    id: str
    items: list[Asked | Told | Answer]
    system: str | None = None
    tools: Sequence[Mapping[str, Any]] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)
    reward: float | None = None
    reward_by: str = ""
    reference: Any = None
    reason: str | None = None
    error: str | None = None


def add_conversation(
    writer: RecordWriter, talk: Conversation, spawner: str | None = None, call_id: str | None = None
) -> None:
    """Write a conversation; the turn ``spawner`` started it with its call ``call_id``."""
    _Writing(writer, talk, spawner, call_id).write()


class _Writing:
    def __init__(self, writer: RecordWriter, talk: Conversation, spawner: str | None, call_id: str | None) -> None:
        self._writer = writer
        self._talk = talk
        self._call_id = call_id
        self._spawner = spawner
        circle = {"medium": "conversation", "gates": list(talk.tools), "imported": talk.kind}
        call = {} if talk.system is None else {"system_prompt": talk.system}
        self._cantrip = writer.cantrip(call, circle, {"capabilities": None, "tools": list(talk.tools)})
        self._entity = stable("e", talk.kind, talk.id)
        self._last = writer.root(self._cantrip, self._entity, spawner)
        self._sequence: list[int] = []
        self._turns = 0
        self._cast: str | None = None

    def write(self) -> None:
        # The loop itself asks a model to go on that called nothing, also where the loom is read. That begins no cast.
        items = [each for each in self._talk.items if not (isinstance(each, Asked) and each.text == NUDGE)]
        answers = [at for at, item in enumerate(items) if isinstance(item, Answer)]
        if not answers:
            self._writer.report.note("a conversation in which no model answered")
            return
        if answers[-1] < len(items) - 1:
            self._writer.report.note("messages after the last answer")
        opening: list[Asked | Told] = []
        for at, item in enumerate(items[: answers[-1] + 1]):
            if isinstance(item, Asked | Told):
                opening.append(item)
                continue
            if self._cast is None or any(isinstance(each, Asked) for each in opening):
                final = not any(isinstance(each, Asked) for each in items[at : answers[-1]])
                self._begin(at, opening, self._talk.reference if final else None)
            elif opening:
                self._writer.report.note("a system message in the middle of a cast")
            opening = []
            followed = at < answers[-1] and isinstance(items[at + 1], Asked)
            self._turn(at, item, last=at == answers[-1], followed=followed)

    def _begin(self, at: int, opening: Sequence[Asked | Told], reference: Any) -> None:
        """Begin a cast. The expected answer of a conversation belongs to its last cast."""
        talk = self._talk
        self._cast = cast = stable("c", talk.kind, talk.id, at)
        asked = [each for each in opening if isinstance(each, Asked)]
        when = asked[0].when if asked else ""
        start = CastRecord(
            cast,
            "start",
            self._entity,
            self._cantrip,
            None,
            when,
            "\n\n".join(each.text for each in asked) if asked else None,
            {"imported": talk.kind, **talk.attributes},
            parent_turn_id=self._spawner,
            parent_call_id=self._call_id if self._call_id is not None else msgspec.UNSET,
            reference=reference if reference is not None else msgspec.UNSET,
        )
        context: list[ContextRecord] = []
        for place, each in enumerate(opening):
            own = stable("x", cast, place)
            if isinstance(each, Told):
                context.append(ContextRecord(own, self._entity, cast, "import", "system", each.text, None, each.when))
                continue
            for number, (mime, data) in enumerate(each.media):
                medium = stable("x", cast, place, number)
                context.append(ContextRecord(medium, self._entity, cast, "user", "", "", None, each.when, mime, data))
        self._writer.cast(start, context)

    def _turn(self, at: int, said: Answer, *, last: bool, followed: bool) -> None:
        records = [self._record(said, result) for result in said.results]
        finished = next((record for record in records if record.gate == "done" and not record.is_error), None)
        reason = "done" if finished is not None else "text" if (last or followed) and not said.calls else None
        if last and self._talk.reason is not None:
            reason = self._talk.reason
        ended = reason in ("done", "text")
        self._turns += 1
        turn = Turn(
            stable("t", self._talk.kind, self._talk.id, at),
            self._last,
            self._cantrip,
            self._entity,
            self._cast,
            sequence=self._turns,
            utterance=Utterance(said.text, said.thinking, tuple(said.calls)),
            observation=Observation(tuple(records)),
            gate_calls=tuple(call.gate for call in said.calls),
            metadata=self._metadata(said),
            terminated=ended,
            truncated=reason is not None and not ended,
            reason=reason,
        )
        self._last = turn.id
        if self._writer.turn(turn) and reason is not None:
            result = finished.result if finished is not None else said.text if ended else None
            error = self._talk.error if not ended else None
            self._writer.end(turn, said.when, result, error=error, turns=self._turns)
        if said.reward is not None:
            self._writer.reward(turn.id, said.reward, self._talk.reward_by, None)
        if last and self._talk.reward is not None:
            self._writer.reward(turn.id, self._talk.reward, self._talk.reward_by, None)
        for result in said.results:
            for child in result.children:
                add_conversation(self._writer, child, turn.id, result.call_id)

    @staticmethod
    def _record(said: Answer, result: Result) -> GateRecord:
        call = next((each for each in said.calls if each.id == result.call_id), None)
        args: Any = {}
        if call is not None:
            try:
                args = msgspec.json.decode(call.args) if call.args.strip() else {}
            except msgspec.DecodeError:
                args = call.args
        gate, content = ("result" if call is None else call.gate), result.content
        if gate == "done" and not result.is_error and isinstance(args, dict) and "answer" in args:
            # The result is a text of it.
            content = args["answer"]
        return GateRecord(gate, args, content, result.is_error, result.call_id)

    def _metadata(self, said: Answer) -> TurnMetadata:
        sampled: SampledTokens | msgspec.UnsetType = msgspec.UNSET
        if said.ids and said.logprobs and len(said.ids) != len(said.logprobs):
            self._writer.report.note("token ids and log-probabilities of different length")
        elif said.ids or said.logprobs:
            shared = common_prefix_length(self._sequence, said.prompt_ids) if said.prompt_ids else 0
            texts = () if said.ids else ("",) * len(said.logprobs)
            sampled = SampledTokens(
                tuple(said.ids), texts, tuple(said.logprobs), {}, tuple(said.prompt_ids[shared:]), shared
            )
            self._sequence = [*said.prompt_ids, *said.ids] if said.prompt_ids else []
        return TurnMetadata(
            said.prompt_tokens,
            said.completion_tokens,
            said.cached_tokens,
            said.cost,
            duration_ms=0.001,
            timestamp=said.when,
            model=said.model,
            stop_reason=said.stop_reason if said.stop_reason is not None else msgspec.UNSET,
            sampled=sampled,
        )
