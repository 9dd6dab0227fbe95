"""The records of a loom: the turn, and the smaller records around it (§6.1, LOOM-1, LOOM-2, LOOM-9).

Each record is one JSON object with a ``type``. A written turn never changes: what is added later (a reward, the end of
a cast) is a record of its own. A turn holds the utterance and the observation, never the prompt.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, ClassVar, Literal, Self

import msgspec

from cantrip_acp.types.messages import Attachment, RequestParameters, SampledTokens, ToolCall, ToolDefinition
from cantrip_acp.types.styled import Styled, join
from cantrip_acp.types.usage import Usage

FORMAT = 1
"""The version of the record format; a reader refuses a higher one."""

Reason = Literal[
    "done",
    "text",
    "max_turns",
    "max_seconds",
    "max_tokens",
    "max_cost",
    "output_limit",
    "cancelled",
    "parent_terminated",
    "refusal",
    "error",
]
"""Why a cast ended. done and text are terminations, all others truncations (§1.3). ``output_limit``: the provider cut the
answer, which no ward asked for."""

TERMINATIONS: frozenset[str] = frozenset({"done", "text"})


# gc=False: these hold data alone, so they are in no reference cycle. The garbage collector does not look at them, although
# their number grows with a session.


class Utterance(msgspec.Struct, frozen=True, gc=False):
    """What the entity said. ``code`` is the program or command, if the medium has one.

    ``provider`` is data that the provider needs back unchanged (`Message.provider`); the key is absent if there is
    none. ``text_calls`` is true if the crystal wrote its calls in ``content``, which keeps them; the key is absent
    otherwise.
    """

    sealed: ClassVar = {"provider": msgspec.UNSET}
    """Without it the crystal gets its words back as plain text."""

    content: str | None = None
    thinking: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    code: str | None = None
    provider: Any = msgspec.UNSET
    text_calls: bool | msgspec.UnsetType = msgspec.UNSET


class Diff(msgspec.Struct, frozen=True):
    """A change of one file. ``old_text`` is None if the file is new."""

    path: str
    old_text: str | None
    new_text: str


class Location(msgspec.Struct, frozen=True):
    """A place in a file: an absolute path, and a line counted from 1 or None."""

    path: str
    line: int | None = None


class FileChange(msgspec.Struct, frozen=True, omit_defaults=True):
    """A change of one file in a gate record (`types.file_changes` writes and reads it).

    - ``old_text``: None if the file was new.
    - ``new_text``: the new text, without the first ``shared[0]`` and the last ``shared[1]`` characters of ``old_text``,
      which it keeps.
    - ``new_argument``: the name of the call's argument that has the whole new text.
    - ``excerpt``: the file was too large, and only the changed lines are kept. ``omitted``: these too were too large.
    """

    path: str
    old_text: str | None = None
    new_text: str = ""
    shared: tuple[int, int] = (0, 0)
    new_argument: str | None = None
    excerpt: bool = False
    omitted: bool = False


class GateRecord(msgspec.Struct, frozen=True, gc=False):
    """One gate call and its result (D-005). ``result`` is JSON data, or the error's text if the call failed.

    ``annotations`` are notes for people; the key is absent if there are none. Interceptors may add any key. This
    package adds:

    - ``permission`` if the call was not allowed: ``rejected`` or ``rejected_always`` by the user, ``refused`` by the
      session's mode, ``unasked`` if nobody could be asked.
    - ``stopped: true`` if the call was stopped.
    - ``error``, a text for people, where ``result`` gives the entity more details.
    - ``reason``, why the user refused the call, in the user's words;
    - ``asked_in_chat``, the question that a call of ``ask_user`` sent as a message of the chat.
    - ``question``, how a question of ``ask_user`` ended that the user saw: ``answered``, ``skipped`` or ``unanswered``.

    ``via`` is the index (from 0), among the utterance's tool calls, of the program that made this call. The key is
    absent if the utterance has one program.

    The other keys hold what was displayed for the call. Looms of earlier versions lack them. ``call_id`` is its id in
    events, ``parent_call_id`` that of the program that made it. ``title``, ``kind``, ``locations`` and ``diffs`` are
    absent if they equal the gate's name, ``other`` or empty.

    ``attachments`` are the images that the gate returned beside its result; the key is absent if there are none.
    """

    gate: str
    args: Any
    result: Any
    is_error: bool = False
    tool_call_id: str | None = None
    annotations: Mapping[str, Any] | msgspec.UnsetType = msgspec.UNSET
    via: int | msgspec.UnsetType = msgspec.UNSET
    call_id: str | msgspec.UnsetType = msgspec.UNSET
    parent_call_id: str | msgspec.UnsetType = msgspec.UNSET
    title: str | msgspec.UnsetType = msgspec.UNSET
    kind: str | msgspec.UnsetType = msgspec.UNSET
    locations: tuple[Location, ...] | msgspec.UnsetType = msgspec.UNSET
    diffs: tuple[FileChange, ...] | msgspec.UnsetType = msgspec.UNSET
    attachments: tuple[Attachment, ...] | msgspec.UnsetType = msgspec.UNSET


class Output(msgspec.Struct, frozen=True, kw_only=True):
    """The output of a command or a code cell.

    - ``exit_code``: 0 to 255, or minus the signal's number. None if there is none (a cell, a command that was
      stopped).
    - ``value``: the value of the last expression in code.
    - ``error``: an error beside the exit code (a timeout).
    - ``truncated``: output beyond ``*_max_output_bytes`` was dropped.
    - ``unfinished``: the program continued after a delegation, and the first output of the next turn is the rest. The
      key is absent if the program ended.
    - ``timed_out``, if it is true: the program was stopped because its time was over.
    - ``order``, where output alternates between both streams: the lengths of the parts in order, negative for stderr.
    - ``stdout_styles`` and ``stderr_styles``, if there are any: where the colours of the text change, as pairs of a
      character's number and the style that begins there. A style is parameters of SGR (``1;31``), empty for ordinary text.
    - ``annotations``, if there are any: as in `GateRecord`.
    """

    styled_fields: ClassVar = {"stdout": "stdout_styles", "stderr": "stderr_styles"}

    stdout: str = ""
    stderr: str = ""
    exit_code: int | None = None
    value: Any = None
    error: str | None = None
    truncated: bool = False
    unfinished: bool | msgspec.UnsetType = msgspec.UNSET
    timed_out: bool | msgspec.UnsetType = msgspec.UNSET
    order: tuple[int, ...] | msgspec.UnsetType = msgspec.UNSET
    annotations: Mapping[str, Any] | msgspec.UnsetType = msgspec.UNSET
    stdout_styles: tuple[tuple[int, str], ...] | msgspec.UnsetType = msgspec.UNSET
    stderr_styles: tuple[tuple[int, str], ...] | msgspec.UnsetType = msgspec.UNSET

    @classmethod
    def of(cls, stdout: Styled, stderr: Styled, **more: Any) -> Self:
        """An output with these streams and their colours; ``more`` are its other fields."""
        return cls(
            stdout=stdout.text,
            stderr=stderr.text,
            stdout_styles=stdout.changes or msgspec.UNSET,
            stderr_styles=stderr.changes or msgspec.UNSET,
            **more,
        )

    @property
    def streams(self) -> tuple[Styled, Styled]:
        """Standard output and standard error with their colours."""
        return Styled(self.stdout, self.stdout_styles or ()), Styled(self.stderr, self.stderr_styles or ())

    @property
    def failed(self) -> bool:
        """Whether the program went wrong: it left an error, or an exit status that is not 0."""
        return self.error is not None or self.exit_code not in (0, None)

    @property
    def styled(self) -> Styled:
        """The text of both streams with its colours, in order if the order is known."""
        order = self.order or ()
        stdout, stderr = self.streams
        if sum(n for n in order if n > 0) != len(self.stdout) or -sum(n for n in order if n < 0) != len(self.stderr):
            return join([stdout, stderr])
        pieces, at, error_at = list[Styled](), 0, 0
        for length in order:
            if length > 0:
                pieces.append(stdout.part(at, at + length))
                at += length
            else:
                pieces.append(stderr.part(error_at, error_at - length))
                error_at -= length
        return join(pieces)


class Observation(msgspec.Struct, frozen=True, omit_defaults=False, gc=False):
    """The circle's answer: one record per gate call in order of execution, and the medium's output (CIRCLE-7).

    ``outputs`` has each output if one utterance ran several commands; ``output`` is then all of them joined.
    """

    results: tuple[GateRecord, ...] = ()
    output: Output | None = None
    outputs: tuple[Output, ...] | msgspec.UnsetType = msgspec.UNSET

    @property
    def programs(self) -> tuple[Output, ...]:
        """The output of each program."""
        return self.outputs or (() if self.output is None else (self.output,))


Rejection = Literal["empty", "cut", "no_call", "malformed"]
"""Why a whole answer of a crystal was not used: it said and called nothing, it reached its token limit before it said
anything, it did not call a tool although it had to (CRYSTAL-5), or it breaks the crystal contract in another way."""


class VoidedAttempt(msgspec.Struct, frozen=True, omit_defaults=True):
    """An attempt of a query that failed: the text that it streamed, or a whole answer that was rejected. The text may have
    been displayed to people.

    ``attempt`` counts from 1 within the query. The text of a failed stream is cut if it is long.

    A rejected answer is a sample, which a trainer wants (`training.export.rejected`). It has ``rejected``, its whole text,
    ``stop_reason``, ``usage`` (which is part of the turn's usage), ``request`` and ``sampled``, as far as they are known.
    The prompt in ``sampled`` is reduced like that of the turn. ``asked_again`` is the message of the user that came after
    it, before the crystal answered once more in the same query; the crystal saw both then, and never later. Without it,
    the same query was sent again.
    """

    attempt: int
    error: str
    content: str | None = None
    thinking: str | None = None
    rejected: Rejection | None = None
    stop_reason: str | None = None
    usage: Usage | None = None
    request: RequestParameters | None = None
    sampled: SampledTokens | None = None
    asked_again: str | None = None


class SummaryQuery(msgspec.Struct, frozen=True, gc=False):
    """The query that made the summary of a fold: the message of the user that the summarizer read after the system prompt,
    and its answer."""

    prompt: str
    answer: str


class SentQuery(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What the crystal was sent for a turn, without what was added after an answer that was rejected.

    - ``digest``: 24 hex digits, a hash of the messages, the tools and the parameters of the call. `cantrip loom check` compares
      it with the query that readers rebuild.
    - ``tools``: the tools, if they were not those of the cantrip (a mode, a gate that was loaded later); or the id of an earlier
      turn whose record has the same ones. Absent otherwise.
    - ``refused``: images, sounds and documents that the provider refused, by `crystals.refused_media.media_key`. This query was
      sent without them, and so is every later one. Absent if there are none.
    """

    digest: str
    tools: tuple[ToolDefinition, ...] | str | None = None
    refused: tuple[str, ...] = ()


class TurnMetadata(msgspec.Struct, frozen=True):
    """Tokens, cost (US dollars), wall-clock duration (ms, more than 0), time, model, trace (LOOM-9).

    Tokens and cost count every query of the turn, failed and repeated ones too. They are null if nothing is known.
    ``queries_without_usage`` and ``queries_without_cost`` are the numbers of queries without that information
    (`Usage`). ``context_tokens``, if there were several queries, are those of the last one.

    ``request`` are the parameters as sent. ``model`` and ``fingerprint`` name the model that answered, as the provider
    reports it. ``stop_reason`` is why the crystal stopped, if it said so. ``sampled`` are the tokens of its
    utterance, if they were requested (``crystal.logprobs``) and returned. ``voided`` are the failed attempts that
    had streamed something, and the rejected answers; absent if there are none. ``folded``, in a turn of role fold, is the number of
    the entity's first turns that the summary replaces; the key is absent elsewhere, and in looms of earlier versions.
    ``summary``, in a turn of role fold, is the query that made it; the key is absent if its tokens are not recorded.
    ``query`` is what the crystal was sent; the key is absent in looms of earlier versions, and in the parts of an utterance after
    a delegation.
    """

    tokens_prompt: int | None = 0
    tokens_completion: int | None = 0
    tokens_cached: int | None = 0
    cost: float | None = None
    duration_ms: float = 0.0
    timestamp: str = ""
    model: str | None = None
    trace_id: str | None = None
    stop_reason: str | msgspec.UnsetType = msgspec.UNSET
    sampled: SampledTokens | msgspec.UnsetType = msgspec.UNSET
    queries_without_usage: int | msgspec.UnsetType = msgspec.UNSET
    queries_without_cost: int | msgspec.UnsetType = msgspec.UNSET
    context_tokens: int | msgspec.UnsetType | None = msgspec.UNSET
    request: RequestParameters | msgspec.UnsetType = msgspec.UNSET
    fingerprint: str | msgspec.UnsetType = msgspec.UNSET
    voided: tuple[VoidedAttempt, ...] | msgspec.UnsetType = msgspec.UNSET
    folded: int | msgspec.UnsetType = msgspec.UNSET
    summary: SummaryQuery | msgspec.UnsetType = msgspec.UNSET
    query: SentQuery | msgspec.UnsetType = msgspec.UNSET

    @property
    def usage(self) -> Usage:
        """The usage of the turn's queries."""
        return Usage(
            self.tokens_prompt,
            self.tokens_completion,
            self.tokens_cached,
            cost=self.cost,
            queries_without_usage=self.queries_without_usage or 0,
            queries_without_cost=self.queries_without_cost or 0,
        ).counted()

    @property
    def context(self) -> int | None:
        """The tokens of the last query and its response, as the provider counted them; None if it did not count."""
        if self.context_tokens is not msgspec.UNSET:
            return self.context_tokens
        if self.tokens_prompt is None or self.tokens_completion is None or self.queries_without_usage:
            return None
        return self.tokens_prompt + self.tokens_completion


def metadata_of(usage: Usage, **more: Any) -> TurnMetadata:
    """A turn's metadata with the usage of its queries; ``more`` are its other fields."""
    return TurnMetadata(
        usage.prompt_tokens,
        usage.completion_tokens,
        usage.cached_tokens,
        usage.cost,
        queries_without_usage=usage.queries_without_usage or msgspec.UNSET,
        queries_without_cost=usage.queries_without_cost or msgspec.UNSET,
        **more,
    )


class Turn(msgspec.Struct, frozen=True, gc=False, tag_field="type", tag="turn"):
    """One cycle: the entity acted, the circle answered (§1.1).

    - ``role``: crystal for a turn, call for the root context, fold for a summary.
    - ``sequence`` counts 1, 2, 3 … within the entity's run.
    - ``parent_id``: of a child's ``call`` turn, this is the turn that spawned the child (COMP-5).
    - ``continues`` names the turn whose utterance this one continues after a delegation (`turn_parts` joins them).
    - ``reward`` is the reward at the time of writing. Later ones are `RewardRecord`s, and readers see the last.
    """

    id: str
    parent_id: str | None
    cantrip_id: str
    entity_id: str
    cast_id: str | None
    role: Literal["crystal", "call", "fold"] = "crystal"
    sequence: int = 0
    continues: str | None = None
    utterance: Utterance = Utterance()
    observation: Observation = Observation()
    gate_calls: tuple[str, ...] = ()
    metadata: TurnMetadata = TurnMetadata()
    reward: float | None = None
    terminated: bool = False
    truncated: bool = False
    reason: str | None = None

    @property
    def is_utterance(self) -> bool:
        """Whether it is a turn as ``max_turns`` and people count them: neither a call, nor a fold, nor the rest of a turn that
        children divided."""
        return self.role == "crystal" and self.continues is None


class UtteranceRecord(msgspec.Struct, frozen=True, tag_field="type", tag="utterance", omit_defaults=True):
    """What an entity said, written before the circle acts on it. The turn with the same ``id`` has the result.

    If that turn is not in the loom, the process ended in between, and `recovery` writes the turn. An utterance without
    calls, or with a ``done`` call alone, has no such record.

    - ``gates``: the gate of each tool call, as the circle names it. ``program``: the medium's own tool.
    - ``continues``: as in `Turn`. The utterance itself is then in the turn that it names.
    - ``usage``: that of the query. ``model``: null means the cast's model.
    - ``partial``: the cast ended while the crystal was answering, and no turn will follow. The utterance is the text
      and the thinking streamed so far, perhaps none; tool calls are not kept. ``stop_reason`` is why the cast ended.
    """

    id: str
    parent_id: str
    cantrip_id: str
    entity_id: str
    cast_id: str
    sequence: int
    utterance: Utterance = Utterance()
    gates: tuple[str, ...] = ()
    program: str | None = None
    continues: str | None = None
    usage: Usage = Usage()
    model: str | None = None
    stop_reason: str | None = None
    partial: bool = False
    request: RequestParameters | None = None
    fingerprint: str | None = None
    voided: tuple[VoidedAttempt, ...] = ()
    query: SentQuery | None = None


class LoomHeader(msgspec.Struct, frozen=True, tag_field="type", tag="loom"):
    """The first record: the id of the loom and the version of its format."""

    id: str
    format: int = FORMAT
    created: str = ""
    generator: str = "cantrip-acp"


class CantripRecord(msgspec.Struct, frozen=True, tag_field="type", tag="cantrip"):
    """One distinct call and circle; turns refer to it by ``cantrip_id`` (CALL-4). ``id`` is the hash of both.

    ``shown`` is what the crystal saw of them beside the system prompt: ``capabilities``, the block's text or null, and
    ``tools``, a list of ``{name, description, parameters}``. The key is absent in looms of earlier versions.
    """

    id: str
    call: Mapping[str, Any]
    circle: Mapping[str, Any]
    shown: Mapping[str, Any] | msgspec.UnsetType = msgspec.UNSET


class CastRecord(msgspec.Struct, frozen=True, tag_field="type", tag="cast"):
    """The start or the end of a cast. The start has ``intent``, the end has the result fields.

    - ``withdrawn``, if it is true: no provider accepted the intent, and it was removed from the crystal's context.
    - ``parent_call_id``: the gate call that started a child's cast. ``parent_call_index``: its index in that call's
      batch. The keys are absent in other casts, and in looms of earlier versions.
    - ``resumes``, at the start: the cast that this one continues. If turns of that cast are directly above, its intent
      is not repeated. Otherwise (this cast starts before that cast's first turn) the intent is repeated with the same
      context. The key is absent in other casts.
    - ``reference``, at the start: the expected answer (JSON data) for scorers and exports. The crystal never sees it. The key
      is absent if there is none.
    - ``warnings``, if there are some: wards that could not be enforced and MCP servers that could not be reached, and why.
    """

    diagnostics: ClassVar = ("error", "warnings")

    id: str
    event: Literal["start", "end"]
    entity_id: str
    cantrip_id: str
    trace_id: str | None = None
    timestamp: str = ""
    intent: str | None = None
    attributes: Mapping[str, Any] = {}
    parent_turn_id: str | None = None
    result: Any = None
    summary: str | None = None
    reason: str | None = None
    error: str | None = None
    terminated: bool = False
    truncated: bool = False
    turns: int = 0
    usage: Mapping[str, Any] = {}
    withdrawn: bool | msgspec.UnsetType = msgspec.UNSET
    parent_call_id: str | msgspec.UnsetType = msgspec.UNSET
    parent_call_index: int | msgspec.UnsetType = msgspec.UNSET
    resumes: str | msgspec.UnsetType = msgspec.UNSET
    warnings: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    reference: Any = msgspec.UNSET

    @property
    def own_usage(self) -> Usage:
        """The usage without that of the children, which have records of their own."""
        below = self.usage.get("children")
        whole = Usage.of_record(self.usage).counted()
        return whole - Usage.of_record(below).counted() if isinstance(below, Mapping) else whole


class ContextRecord(msgspec.Struct, frozen=True, tag_field="type", tag="context"):
    """Context that was pinned or added for the crystal, beside call, capabilities, intent and turns."""

    untouched: ClassVar = ("data",)

    id: str
    entity_id: str
    cast_id: str | None
    source: str
    title: str
    text: str
    uri: str | None = None
    timestamp: str = ""
    mime: str | msgspec.UnsetType = msgspec.UNSET
    data: str | msgspec.UnsetType = msgspec.UNSET
    """Base64, with its ``mime``: an image, sound or document, which has no ``text``."""
    after: str | msgspec.UnsetType = msgspec.UNSET
    """For knowledge that changed during a cast, and for what the user sent during a cast (``source`` is ``steering``)
    or was told (``note``): the turn before the first query that saw it."""
    placement: str | msgspec.UnsetType = msgspec.UNSET
    """For knowledge: ``system`` (in the system prompt) or ``history`` (a message of the user before all others)."""
    unread_by: str | msgspec.UnsetType = msgspec.UNSET
    """The model that does not accept such an attachment, and got a note in its place."""

    @property
    def attachment(self) -> Attachment | None:
        """The image, sound or document; None for a text."""
        if isinstance(self.mime, str) and isinstance(self.data, str):
            return Attachment.of(self.mime, self.data, self.uri, self.title)
        return None


STEERING = "steering"
"""The ``source`` of the record of a message that the user sent while a cast ran. It stands after the turn ``after``, or after
the intent."""

NOTE = "note"
"""The ``source`` of the record of what an entity is told while its cast runs, not by the user: what changed in its circle. It
stands where a message of the user would."""

DURING_CAST = frozenset({STEERING, NOTE})
"""The sources of what is added while a cast runs, after its intent."""


RewardKind = Literal["explicit", "implicit", "shaped", "verifier", "relative"]
"""The source of a reward (§6.4): a person or program that set it, the circle's answer, a scoring function of the
circle, the verdict of another cantrip, or the comparison of a group of threads."""


class RewardRecord(msgspec.Struct, frozen=True, tag_field="type", tag="reward"):
    """A reward for a turn, given after the turn was written (LOOM-3). The last reward of a turn counts, except for
    ``relative`` ones: these compare the turn's thread with others, and are kept beside the turn's reward.

    - ``reward``: None if the giver failed; ``note`` then says why.
    - ``kind``: absent in older looms, which means explicit.
    - ``group``: the group of a relative reward.
    - ``grade``: the reward is for the thread that ends with this turn, not for the turn alone.
    - ``usage``: what a verifier used, in the cast ``cast_id``, which may be in another loom. Both keys are absent in
      other rewards.
    """

    turn_id: str
    reward: float | None
    by: str = ""
    note: str | None = None
    timestamp: str = ""
    kind: RewardKind | msgspec.UnsetType = msgspec.UNSET
    group: str | msgspec.UnsetType = msgspec.UNSET
    grade: bool | msgspec.UnsetType = msgspec.UNSET
    usage: Mapping[str, Any] | msgspec.UnsetType = msgspec.UNSET
    cast_id: str | msgspec.UnsetType = msgspec.UNSET


class FoldRecord(msgspec.Struct, frozen=True, tag_field="type", tag="fold"):
    """The turns that a summary replaces in the entity's working context (LOOM-5)."""

    id: str
    entity_id: str
    cast_id: str | None
    turns: tuple[str, ...]
    summary: str
    timestamp: str = ""


class ForkRecord(msgspec.Struct, frozen=True, tag_field="type", tag="fork"):
    """A new entity that continues from an earlier turn, and how its state was restored (LOOM-4).

    - ``strategy``: how the variables of a code medium were restored (snapshot, replay, none).
    - ``missing``: in words, what was not restored.
    - ``group``: the same in all forks that are to be compared. The key is absent in a single fork.
    - ``worktree``: the fork's working folder. ``commit``: the pinned files that were put there.
    - ``resumes``: the cast that the fork continues without a new intent.
    """

    id: str
    from_turn: str | None
    entity_id: str
    strategy: str = "none"
    missing: tuple[str, ...] = ()
    timestamp: str = ""
    group: str | msgspec.UnsetType = msgspec.UNSET
    worktree: str | msgspec.UnsetType = msgspec.UNSET
    commit: str | msgspec.UnsetType = msgspec.UNSET
    resumes: str | msgspec.UnsetType = msgspec.UNSET


class SnapshotRecord(msgspec.Struct, frozen=True, tag_field="type", tag="snapshot"):
    """The state of a medium after a turn."""

    id: str
    turn_id: str
    entity_id: str
    data: Mapping[str, Any] = {}
    timestamp: str = ""


class FilesRecord(msgspec.Struct, frozen=True, tag_field="type", tag="files"):
    """The files of a workspace after a turn, written only if they had changed; or a restore of files.

    ``checkpoint`` is the id of what was kept in the store of ``workspace``, ``ref`` names the loom and the entity that it is
    kept for, ``changed`` is how many files had changed, ``missing`` lists what was not kept and why. ``error`` says why
    nothing could be kept. ``restored`` is only in the record of a restore: the turn whose files were restored, or "".
    Records of earlier versions name a commit in the user's repository instead (``repository``, ``commit``, ``tree``,
    ``head``).
    """

    diagnostics: ClassVar = ("error",)

    id: str
    turn_id: str
    entity_id: str
    repository: str | None = None
    commit: str | None = None
    tree: str | None = None
    ref: str | None = None
    head: str | None = None
    missing: tuple[str, ...] = ()
    error: str | None = None
    timestamp: str = ""
    checkpoint: str | msgspec.UnsetType = msgspec.UNSET
    workspace: str | msgspec.UnsetType = msgspec.UNSET
    changed: int | msgspec.UnsetType = msgspec.UNSET
    restored: str | msgspec.UnsetType = msgspec.UNSET


class ConfigRecord(msgspec.Struct, frozen=True, tag_field="type", tag="config"):
    """A change of an entity's mode, model or recipe."""

    id: str
    entity_id: str
    changes: Mapping[str, Any] = {}
    timestamp: str = ""


class ServiceRecord(msgspec.Struct, frozen=True, tag_field="type", tag="service"):
    """The start or the end of a service: a command that goes on beside the entity's turns (the gate ``start``).

    The start has ``name``, ``command`` and the cast. The end, which may come between casts, has ``why``, in words, and how the
    command ended: ``exit_code``, null if it was killed, and the name of the signal that this stands for.
    """

    id: str
    event: Literal["start", "end"]
    entity_id: str
    cast_id: str | None = None
    name: str = ""
    command: str = ""
    exit_code: int | None = None
    signal: str | None = None
    why: str = ""
    timestamp: str = ""


Record = (
    LoomHeader
    | CantripRecord
    | CastRecord
    | Turn
    | UtteranceRecord
    | ContextRecord
    | RewardRecord
    | FoldRecord
    | ForkRecord
    | SnapshotRecord
    | FilesRecord
    | ConfigRecord
    | ServiceRecord
)
"""Any record of a loom."""


class LaterRecord(msgspec.Struct, frozen=True, tag_field="type", tag="later"):
    """A record that a later version wrote and this one cannot use. It is kept and copied unchanged: ``data`` is its
    JSON."""

    name: str
    data: msgspec.Raw

    @property
    def id(self) -> str:
        """The record's own id; empty if it has none."""
        found = msgspec.json.decode(self.data).get("id")
        return found if isinstance(found, str) else ""


def new_id(prefix: str) -> str:
    """Return a new id such as ``t_0198f2c4a1b2c3d4e5f6``. It sorts by creation time and has 40 random bits."""
    return f"{prefix}_{time.time_ns() // 1_000_000:012x}{os.urandom(5).hex()}"


def created_at(record_id: str) -> str | None:
    """The creation time of an id from `new_id`, in the format of `now`; None for any other id."""
    try:
        when = datetime.fromtimestamp(int(record_id.partition("_")[2][:12], 16) / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return None
    return when.isoformat(timespec="microseconds").replace("+00:00", "Z")


def now() -> str:
    """The current time as ISO 8601 in UTC, with microseconds."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
