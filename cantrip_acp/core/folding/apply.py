"""Applies folds before a query: in the context of a running cast, its loom and its events (§6.8, PROD-4).

`make_room` runs when the policy (`folding.policy.Folding`) asks for a fold, `make_more_room` after a provider refused
the messages as too long.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec

from cantrip_acp.core.casting.sampled_tokens import TokenLog
from cantrip_acp.core.casting.spending import spend
from cantrip_acp.core.folding.policy import CHARS_PER_TOKEN, largest
from cantrip_acp.core.folding.summary import REQUEST, transcript
from cantrip_acp.core.state import CastState
from cantrip_acp.crystals.contract import Delta, Query, Response, input_limit
from cantrip_acp.crystals.retry import metered
from cantrip_acp.gates.ports import MediumBase
from cantrip_acp.telemetry import tracing
from cantrip_acp.text.defaults import complete
from cantrip_acp.text.json_data import freeze_record
from cantrip_acp.text.logs import logger
from cantrip_acp.text.redaction import Pieces
from cantrip_acp.types import events
from cantrip_acp.types.errors import ContextLimitError, CrystalError
from cantrip_acp.types.messages import Message
from cantrip_acp.types.records import ConfigRecord, FoldRecord, SummaryQuery, Turn, Utterance, metadata_of, new_id, now
from cantrip_acp.types.usage import NO_USAGE, Usage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cantrip_acp.core.state import EntityState
    from cantrip_acp.loom.loom import Loom

_log = logger(__name__)

VARIABLE = "folded_turns"
"""The variable with the folded turns in a code circle. Each turn is as the loom has it."""


async def make_room(entity: EntityState, cast: CastState) -> None:
    """Fold if the policy asks for it, then cut what still does not fit. Cheap if there is nothing to do."""
    context, policy, window = entity.context, entity.cantrip.folding, input_limit(entity.crystal)
    if policy.should_fold(context.unfolded, context.tokens, window):
        keep = policy.turns_to_keep(context.sizes(), context.tokens, window)
        if keep is not None:
            await _fold(entity, cast, keep)
    if window is not None and context.tokens > (most := largest(window)):
        _compact(entity, most)


def _compact(entity: EntityState, most: int) -> None:
    """Cut the context, and record the cut in the loom, so that the crystal's view can be rebuilt later."""
    if entity.context.compact(most):
        cut = {"tokens": most, "after": entity.last_turn}
        entity.loom.append(ConfigRecord(new_id("g"), entity.id, {"compacted": cut}, now()))


async def fold_now(entity: EntityState, keep: int | None = None) -> int:
    """Fold between two casts on request. Returns how many turns were folded.

    ``keep`` defaults to the policy's number. At least one turn is folded, and at least one stays.
    """
    context = entity.context
    before = context.unfolded
    if before < 2 or entity.running is not None:
        return 0
    wanted = (
        keep
        if keep is not None
        else entity.cantrip.folding.keep_turns
        if entity.cantrip.folding.keep_turns is not None
        else 1
    )
    last = entity.loom.turn(entity.last_turn)
    start = entity.loom.cast_of(last.cast_id)[0] if last.cast_id is not None else None
    # It counts towards the cast before, which has ended; only the entity's usage grows.
    intent = (start.intent if start else None) or ""
    cast = CastState(last.cast_id or last.id, entity, intent, tracing.trace_from(None))
    await _fold(entity, cast, max(1, min(wanted, before - 1)), spend_on_parents=False)
    return before - context.unfolded


_NEAR_FRACTION = 0.5
"""From this part of the window on, a refusal for an unknown reason may be one of the length: counts and windows are estimates."""


def may_be_overflow(entity: EntityState, refusal: CrystalError) -> bool:
    """Whether a provider may have refused the messages because they are too long, in words that nobody knows yet.

    A 413 says so by its status. A 400 may say anything, so there the messages must be near the window.
    """
    if isinstance(refusal, ContextLimitError) or refusal.status not in (400, 413):
        return False
    if refusal.status == 413:
        return True
    window = input_limit(entity.crystal)
    near = window is not None and entity.context.tokens >= window * _NEAR_FRACTION
    return near and refusal.part is None and not refusal.about_media


async def make_more_room(entity: EntityState, cast: CastState, refusal: CrystalError) -> bool:
    """After a provider refused the messages as too long: fold all but the last turn, and cut.

    Returns False if that freed nothing.
    """
    context = entity.context
    before = context.tokens
    window = (refusal.limit if isinstance(refusal, ContextLimitError) else None) or input_limit(entity.crystal)
    if context.unfolded > 1:
        await _fold(entity, cast, 1)
    # If the window is unknown or the count was wrong, aim for half of what was refused.
    _compact(entity, min(before // 2, largest(window) if window else before // 2))
    return context.tokens < before


async def _fold(entity: EntityState, cast: CastState, keep: int, *, spend_on_parents: bool = True) -> None:
    context = entity.context
    began = time.perf_counter()
    gone = context.foldable(keep)
    if not gone:
        return
    turn_id = new_id("t")
    answered, messages, used = await _summary(
        entity, cast, keep, spend_on_parents, _SummaryStream(entity, cast, turn_id)
    )
    summary = None if answered is None else answered.content
    variable = VARIABLE if complete(entity.circle.medium, MediumBase).remembers_folds else None
    shown = context.fold(keep, summary, variable)
    entity.requests.folded()
    loom = entity.loom
    loom.append(
        FoldRecord(
            new_id("f"), entity.id, cast.id, tuple(i for _, turn in gone for i in _ids(loom, turn)), shown, now()
        )
    )
    fold = Turn(
        id=turn_id,
        parent_id=entity.last_turn,
        cantrip_id=entity.cantrip.id,
        entity_id=entity.id,
        cast_id=cast.id,
        role="fold",
        utterance=Utterance(shown),
        metadata=metadata_of(
            used,
            duration_ms=max((time.perf_counter() - began) * 1000, 0.001),
            timestamp=now(),
            model=entity.cantrip.folding.summarizer.model if summary and entity.cantrip.folding.summarizer else None,
            trace_id=cast.trace.trace_id,
            folded=len(context.folded),
            **_sample(entity, answered, messages),
        ),
    )
    fold = loom.append(fold)
    entity.last_turn = fold.id
    if entity.hub.active:
        await entity.hub.send(events.Folded(**cast.ids, turn=fold))


def _sample(entity: EntityState, answered: Response | None, messages: Sequence[Message]) -> dict[str, Any]:
    """The part of a fold's record about the query of its summary: its text, and its tokens if the summarizer reports them."""
    if answered is None or answered.sampled is None:
        return {}
    answer = answered.content or ""
    # The query has a sequence of its own: it continues no turn.
    kept = TokenLog().reduce(answered.sampled, messages, 0, said=answer)
    return {
        "summary": SummaryQuery(messages[-1].content or "", answer),
        "stop_reason": answered.stop_reason or msgspec.UNSET,
        "request": answered.request or msgspec.UNSET,
        "sampled": msgspec.UNSET if kept is None else freeze_record(kept),
    }


def _ids(loom: Loom, turn: Turn) -> tuple[str, ...]:
    """The ids of the turns in the loom that belong to one utterance."""
    return (turn.id,) if turn.continues is None else loom.utterance_ids(turn.id)[-1]


async def _summary(
    entity: EntityState, cast: CastState, keep: int, spend_on_parents: bool, stream: _SummaryStream
) -> tuple[Response | None, list[Message], Usage]:
    """The summarizer's response about the turns to fold, the messages that it read, and its usage.

    The response is None if there is no summarizer or it fails; then the digest is used.
    """
    crystal = entity.cantrip.folding.summarizer
    if crystal is None:
        return None, [], NO_USAGE
    window = input_limit(crystal)
    most = int(window * 0.6) * CHARS_PER_TOKEN if window else 400_000
    earlier = next((m.content for m in entity.context.messages if m.kind == "fold" and m.content), None)
    parts = [f"The intent: {cast.intent}"]
    if earlier:
        parts.append(f"Your summary of what was before:\n{earlier}")
    parts += [transcript(entity.context.foldable(keep), most), REQUEST]
    messages = [Message("user", "\n\n".join(parts))]
    if entity.cantrip.call.system_prompt is not None:
        messages.insert(0, Message("system", entity.cantrip.call.system_prompt, kind="call"))
    query = Query(
        messages,
        intent=cast.intent,
        entity_id=entity.id,
        trace_id=cast.trace.trace_id,
        request_id=entity.requests.next_id(),
    )
    used: list[Usage] = []
    try:
        response = await metered(crystal, query, stream.emit, used.append)
        await stream.finish()
    except CrystalError as error:
        _log.warning("the summarizer failed, a digest by rule stands in: %s", error)
        return None, [], sum(used, NO_USAGE)
    else:
        used.append(response.usage.counted())
        entity.requests.folded(query.request_id)
        return response, messages, sum(used, NO_USAGE)
    finally:
        # Also after a cancel: the usage counts all the same.
        total = sum(used, NO_USAGE)
        if spend_on_parents:
            spend(cast, total, model=crystal.model)
        else:
            entity.usage = entity.usage + total


class _SummaryStream:
    """Reports a summary while it is written. It is not a message of the entity, so it has its own event."""

    def __init__(self, entity: EntityState, cast: CastState, turn_id: str) -> None:
        self._entity = entity
        self._cast = cast
        self._turn_id = turn_id
        # A secret may be split over several pieces.
        self._masked = Pieces()

    async def emit(self, delta: Delta) -> None:
        if delta.kind == "text" and self._entity.hub.active:
            await self._send(self._masked.feed(delta.text))

    async def finish(self) -> None:
        """Send the text that was held back for masking."""
        await self._send(self._masked.end())

    async def _send(self, text: str) -> None:
        if text and self._entity.hub.active:
            await self._entity.hub.send(events.SummaryText(**self._cast.ids, delta=text, turn_id=self._turn_id))
