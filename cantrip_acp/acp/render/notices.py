"""Notices: what the user is told beside the conversation, in the form that the client supports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cantrip_acp.acp import protocol as acp
from cantrip_acp.acp.render.formatting import truncate_end
from cantrip_acp.types.records import new_id

if TYPE_CHECKING:
    from cantrip_acp.types import events
    from cantrip_acp.types.messages import Attachment


def attached_content(
    attachment: Attachment, title: str
) -> acp.ImageContent | acp.AudioContent | acp.LinkContent | None:
    """An attachment of a message of the user. None for data that no content of the protocol can show."""
    if attachment.kind == "image":
        return acp.ImageContent(attachment.data, attachment.mime, attachment.uri)
    if attachment.kind == "audio":
        return acp.AudioContent(attachment.data, attachment.mime)
    return acp.LinkContent(title or attachment.kind, attachment.uri) if attachment.uri else None


def notice(text: str, client: acp.ClientAbilities) -> acp.Update:
    """A message for the user outside of the conversation. Clients without notices get it as a message of the agent."""
    if client.notices:
        return acp.Notice("warning", "Not available in this session", text)
    return acp.AgentMessageChunk(acp.TextContent(text), f"{new_id('m')}:notice")


def retry_notice(event: events.RetryScheduled, client: acp.ClientAbilities) -> acp.Update:
    """A notice that the model did not answer and is asked again."""
    what = f"The model did not answer ({event.error}); asking again {event.when}."
    if client.notices:
        return acp.Notice("warning", f"Asking the model again {event.when}", what)
    return acp.AgentThoughtChunk(acp.TextContent(what), f"{event.message_id}:retry")


def void_notice(event: events.Voided, client: acp.ClientAbilities, *, had_text: bool) -> acp.Update:
    """A notice that an answer broke off. ``had_text``: some of its text was shown."""
    what = f"Attempt {event.attempt} broke off: {event.error}. What it said above does not count."
    meta = {"cantrip": {"void": event.message_id, "attempt": event.attempt}}
    if client.notices:
        return acp.Notice("warning", "This answer broke off", what, meta)
    # Some clients join messages. In these this note separates the text of the failed attempt from the next one.
    chunk = acp.AgentMessageChunk if had_text else acp.AgentThoughtChunk
    return chunk(acp.TextContent(f"\n\n({what})\n\n"), f"{event.message_id}:void", meta)


def fold_notice(event: events.Folded, client: acp.ClientAbilities) -> acp.Update:
    """A notice that a summary replaced turns: a compaction, a notice, or a thought."""
    if client.compaction:
        return fold_update(event.turn.id, event.summary)
    # Looms of earlier versions do not say which turns a fold replaced.
    turns = "earlier turns" if not event.last else f"turn {event.last}"
    if event.last > 1:
        turns = f"turns 1 to {event.last}"
    what = f"A summary now replaces {turns} in the context. The record keeps these turns."
    if client.notices:
        return acp.Notice("info", "Earlier turns were folded", what)
    return acp.AgentThoughtChunk(acp.TextContent(what), event.turn.id)


def fold_update(fold_id: str, summary: str) -> acp.CompactionUpdate:
    """The update for a completed fold, with the summary that replaces the turns."""
    return acp.CompactionUpdate(fold_id, "completed", [acp.TextContent(truncate_end(summary))])


def steering_message(event: events.Steered) -> acp.Update:
    """The user's message during the prompt."""
    sent = event.record
    content = attached_content(sent.attachment, sent.title) if sent.attachment else None
    if content is None and sent.uri:
        content = acp.LinkContent(sent.title or sent.uri, sent.uri)
    meta = {"cantrip": {"steering": True}}
    return acp.UserMessageChunk(content or acp.TextContent(sent.text), sent.id, meta)
