"""Refused media: images, sounds and documents that a provider does not accept.

A message stays in the context, so one image that a provider refuses would make each later query fail. `MediaSearch` finds
which one it is: by what the error names, or by trying. The loop records the ones that were left out (`SentQuery.refused`),
so that no later query sends them, and readers of the loom leave them out too.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import msgspec

from cantrip_acp.crystals.catalog.types import attachment_note
from cantrip_acp.types.errors import CrystalError
from cantrip_acp.types.messages import Attachment, Message

_ABOUT_MEDIA = re.compile(
    r"image|media|multimodal|vision|picture|pixel|dimension|\bpdf|document|audio|base64|mmproj|\bfiles?\b",
    re.IGNORECASE,
)
_UNSUPPORTED = re.compile(r"not support|unsupported|mmproj", re.IGNORECASE)
_STATUSES = (400, 404, 413, 415, 422)
_FAULTS = (500, 501)
"""Local servers answer so if their model takes no images."""
_MOST_SINGLE = 4
"""How many media are tried one by one, if the error names none."""
_REASON = "the provider refused it"
_PATH = re.compile(r"\b(?:messages|input)(?:[.\[\]'\"]+\w+)+")


def media_key(attachment: Attachment) -> str:
    """A short name of the content: 24 hex digits."""
    content = f"{attachment.mime}\0{attachment.data}"
    return hashlib.blake2b(content.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


def without_media(message: Message, refused: Collection[str]) -> Message:
    """The message with a note in place of each refused attachment; the message itself if it has none."""
    if not message.attachments or not refused:
        return message
    gone = [each for each in message.attachments if media_key(each) in refused]
    if not gone:
        return message
    kept = tuple(each for each in message.attachments if each not in gone)
    notes = [attachment_note(each, "", _REASON) for each in gone]
    text = "\n".join([message.content, *notes] if message.content else notes)
    return msgspec.structs.replace(message, content=text, attachments=kept)


def is_about_media(error: CrystalError) -> bool:
    """Whether an error may say that the provider does not accept an image, a sound or a document of the request."""
    text = str(error)
    if error.status in _FAULTS:
        return _ABOUT_MEDIA.search(text) is not None and _UNSUPPORTED.search(text) is not None
    return error.status == 413 or (error.status in _STATUSES and _ABOUT_MEDIA.search(text) is not None)


class MediaSearch:
    """The search for what a provider refuses among the media of one query.

    What came with the new prompt is not left out: the user is there, and can send it again in another form.
    """

    def __init__(self, messages: Sequence[Message], error: CrystalError) -> None:
        self.error = error
        """The provider's first answer."""
        self._named: set[str] = set()
        answered = max((n for n, m in enumerate(messages) if m.role == "assistant" and m.kind == "turn"), default=-1)
        prompt = max((n for n, m in enumerate(messages) if m.kind == "intent"), default=-1)
        self._all = {media_key(each): each for message in messages for each in message.attachments}
        prompts = messages[prompt].attachments if prompt > answered else ()
        self._prompts = frozenset(map(media_key, prompts))
        new = [media_key(each) for message in messages[answered + 1 :] for each in message.attachments]
        self._trials = self._sets([key for key in dict.fromkeys(new) if key not in self._prompts])

    def _sets(self, new: Sequence[str]) -> Iterator[Collection[str]]:
        """Yield the sets of media to leave out, one per try: the new media first, because the provider has accepted the
        others."""
        if 1 < len(new) <= _MOST_SINGLE:
            yield from ({key} for key in reversed(new))
        yield new
        old = [key for key in self._all if key not in self._prompts and key not in new]
        yield [*new, *old[: len(old) // 2]]
        yield [*new, *old]

    def next(self, error: CrystalError) -> frozenset[str] | None:
        """The media to leave out after the last attempt failed; None if leaving out media does not help."""
        named = self._named_by(error)
        if named is not None:
            if named in self._prompts:
                return None
            self._named.add(named)
            return frozenset(self._named)
        for each in self._trials:
            if not self._named.issuperset(each):
                return frozenset(self._named.union(each))
        return None

    def _named_by(self, error: CrystalError) -> str | None:
        if error.part is None:
            return None
        text = msgspec.json.encode(error.part).decode()
        found = [key for key, each in self._all.items() if each.data and each.data in text]
        return found[0] if len(found) == 1 and found[0] not in self._named else None

    def notice(self, refused: Collection[str]) -> str:
        """The notice for the user about media that were left out."""
        one = len(refused) == 1
        return (
            f"The provider refused {self._names(refused)}, and the model does not see {'it' if one else 'them'} from now on "
            f"({self.error}). If {'it is' if one else 'they are'} needed, attach {'it' if one else 'them'} again, smaller or "
            "in another format."
        )

    def final_error(self) -> CrystalError:
        """The provider's first error. If it is about the prompt's own media, it says what to do."""
        if self._prompts:
            names = self._names(self._prompts)
            advice = f"send the prompt again without {names}, or with a smaller one or one in another format (PNG, JPEG, PDF)"
            self.error.args = (f"{self.error}; {advice}",)
        return self.error

    def _names(self, keys: Collection[str]) -> str:
        return ", ".join(f"the {a.kind} {a.title or a.uri or a.mime!r}" for key, a in self._all.items() if key in keys)


def named_part(body: Any, error: CrystalError) -> Any:
    """The part of a request that an error names by its path (``messages.2.content.0.image``); None if it names none.

    A path may have words for the kinds of parts, which are not keys.
    """
    found = _PATH.search(str(error))
    if found is None:
        return None
    part = body
    for word in re.findall(r"\w+", found[0]):
        if isinstance(part, list) and word.isdigit() and int(word) < len(part):
            part = part[int(word)]
        elif isinstance(part, dict) and isinstance(part.get(word), dict | list):
            part = part[word]
        elif not isinstance(part, dict):
            return None
    return part
