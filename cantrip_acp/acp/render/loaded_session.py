"""Loaded session: the updates for ``session/load``. The loom's recorded events go through the same translator as live ones.

The updates equal those of the live session, with these differences:

- Each tool call is sent once, in its final state. So are the plan of each prompt and the usage of the session.
- Each message is sent in one piece, and its id is the id of its turn.
- The intent that approves a plan has no message of its own in a live session. Here it has one, without a plan that the answer
  before it shows.
- No update names a terminal, because the terminals of an earlier process no longer exist. Outputs are sent as content.
- Some things are not in the loom (`loom.query.recorded_events`), so they are missing: most notices, retries of attempts
  without output, diffs of very large changes, and separate tool calls for children's calls that needed a permission.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from cantrip_acp.acp import protocol as acp
from cantrip_acp.acp.render.event_translator import Translator
from cantrip_acp.acp.render.notices import attached_content
from cantrip_acp.acp.sessions.options.plan_mode import shown_intent
from cantrip_acp.loom.query.history import CastPart, entity_casts
from cantrip_acp.loom.query.recorded_events import RecordedEvents
from cantrip_acp.types.context_block import block_of
from cantrip_acp.types.events import UsageReported
from cantrip_acp.types.records import STEERING
from cantrip_acp.types.usage import NO_USAGE

if TYPE_CHECKING:
    from cantrip_acp.core.entity import Entity


def loaded_updates(
    entity: Entity, client: acp.ClientAbilities, parts: Sequence[CastPart] | None = None, session_id: str = ""
) -> Iterator[acp.Update]:
    """The updates for the whole history of an entity, oldest first. Pass ``parts`` if the history was already read."""
    translator = Translator(msgspec.structs.replace(client, display_terminal=False, queues_prompts=True), session_id)
    casts = entity_casts(entity.loom, entity.id, entity.last_turn, parts)
    recorded = RecordedEvents(entity.loom, casts, entity.id)
    seen: set[str | None] = set()
    after: str | int = 0
    said = ""
    for part in casts:
        # A cast that resumes an earlier one has no message of its own.
        if part.start is not None and part.start.resumes not in seen:
            yield from _user_message(part, after, said)
        seen.add(part.id)
        after = part.turns[-1].id if part.turns else after
        updates = [update for event in recorded.cast(part) for update in translator.translate(event)]
        said = _last_message(updates)
        yield from final_states([*updates, *translator.close()])
    yield from translator.translate(_usage(entity, casts))


def final_states(updates: Iterable[acp.Update]) -> list[acp.Update]:
    """The updates of one prompt without those that a later update replaces."""
    result: dict[object, acp.Update] = {}
    for number, given in enumerate(updates):
        update = given.update if isinstance(given, acp.OfChild) else given
        if isinstance(update, acp.ToolCallUpdate):
            call = result.get(update.tool_call_id)
            if isinstance(call, acp.OfChild):
                call = call.update
            for name in update.__struct_fields__ if call is not None else ():
                if (value := getattr(update, name)) is not None:
                    setattr(call, name, value)
        elif isinstance(update, acp.ToolCall):
            result[update.tool_call_id] = given
        elif isinstance(update, acp.Plan | acp.PlanUpdate):
            key = (acp.Plan, given.child_id if isinstance(given, acp.OfChild) else "")
            result.pop(key, None)
            result[key] = given
        else:
            result[number] = given
    return list(result.values())


def _last_message(updates: Iterable[acp.Update]) -> str:
    """The text of the agent's last message."""
    messages: dict[str | None, str] = {}
    for update in updates:
        if isinstance(update, acp.AgentMessageChunk) and isinstance(update.content, acp.TextContent):
            messages[update.message_id] = messages.get(update.message_id, "") + update.content.text
    return next(reversed(messages.values()), "")


def _user_message(part: CastPart, after: str | int, said: str) -> Iterator[acp.Update]:
    """The user's message: the intent with its links, images and audio. ``said`` is the agent's message before it.

    ``_meta.cantrip.after`` is the turn before the message (0: none): a fork from there can send another message instead.
    """
    message_id, meta = f"{part.id}:intent", {"cantrip": {"after": after}}
    if part.intent:
        yield acp.UserMessageChunk(acp.TextContent(shown_intent(part.intent, said)), message_id, meta)
    for record in part.context:
        attachment = block_of(record).attachment if record.source != STEERING else None
        content = attached_content(attachment, record.title) if attachment is not None else None
        if content is not None:
            yield acp.UserMessageChunk(content, message_id, meta)


def _usage(entity: Entity, casts: Iterable[CastPart]) -> UsageReported:
    """The size of the context at the last query, and the usage of the session."""
    last = next(
        (turn for part in reversed(list(casts)) for turn in reversed(part.turns) if turn.role == "crystal"), None
    )
    return UsageReported(
        entity_id=entity.id,
        cast_id=entity.last_cast,
        usage=NO_USAGE,
        cumulative=entity.usage,
        used=entity.context.tokens if last is None or last.metadata.context is None else last.metadata.context,
        size=entity.crystal.context_window if last is not None else None,
    )
