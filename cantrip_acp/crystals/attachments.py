"""Attachments for models that do not take them: a note in their place, so that nothing is left out in silence."""

from __future__ import annotations

from cantrip_acp.crystals.contract import Attachment
from cantrip_acp.crystals.models import ModelInfo


def taken(attachment: Attachment, info: ModelInfo) -> bool:
    """Whether the model takes this kind of attachment."""
    return {"image": info.images, "audio": info.audio, "document": info.documents}[attachment.kind]


def note(attachment: Attachment, model: str, why: str = "") -> str:
    """What the model reads in an attachment's place. ``why`` replaces the reason, that it does not take the kind.

    A function of its arguments alone: the same in every query, so that prompt caches stay warm.
    """
    article = "a" if attachment.kind == "document" else "an"
    what = f"{article} {attachment.kind} ({attachment.mime}, {size(attachment)})"
    name = attachment.title or attachment.uri
    named = f" {name!r}" if name else ""
    reason = why or f"{model} takes no {'audio' if attachment.kind == 'audio' else attachment.kind + 's'}"
    return f"[Left out: {what}{named}: {reason}.]"


def size(attachment: Attachment) -> str:
    """How large the attachment is, for people: ``12 kB``."""
    count = len(attachment.data) * 3 // 4 - attachment.data[-2:].count("=")
    for unit in ("bytes", "kB"):
        if count < 1000:
            return f"{count} {unit}"
        count = round(count / 1000)
    return f"{count} MB"
