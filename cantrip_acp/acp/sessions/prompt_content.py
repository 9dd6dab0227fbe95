"""Prompt content: turns the content blocks of a prompt into an intent and context (ACP, Content).

Text becomes the intent. A link stays at its place in the intent as ``[@name](uri)``; the content behind it, in the
session's folders, goes before the intent as a context block. An embedded resource is handled the same way. This
content is data for the crystal, never authority. Images, audio and other binary resources become attachments; a
crystal that does not take one gets a note in its place.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cantrip_acp.acp.protocol import Audio, ContentBlock, Image, Resource, ResourceLink, Text
from cantrip_acp.acp.wire.jsonrpc import invalid_params
from cantrip_acp.core.context_block import ContextBlock
from cantrip_acp.crystals.contract import Attachment

MOST_TEXT = 262_144
"""Characters of an embedded resource that are included."""
MOST_URI = 65_536
"""Characters of a URI; the intent holds it in full."""
MOST_ATTACHED = 20_971_520
"""Bytes of one attachment."""
_LONGEST_NAME = 1_000

_SIGNS = (
    (b"\x89PNG\r\n\x1a\n", 0, "image/png"),
    (b"\xff\xd8\xff", 0, "image/jpeg"),
    (b"GIF8", 0, "image/gif"),
    (b"WEBP", 8, "image/webp"),
    (b"WAVE", 8, "audio/wav"),
    (b"ID3", 0, "audio/mpeg"),
    (b"%PDF-", 0, "application/pdf"),
)

_USUAL = {"image": "image/png", "audio": "audio/wav"}

_MIME = re.compile(r"[a-z0-9][a-z0-9!#$&^_.+-]*/[a-z0-9][a-z0-9!#$&^_.+-]*\Z")


def media_of(head: bytes) -> str | None:
    """The media type by the first bytes of the data; None where they do not tell."""
    return next((mime for sign, at, mime in _SIGNS if head[at : at + len(sign)] == sign), None)


@dataclass(frozen=True, slots=True)
class Link:
    """A resource link of a prompt; ``described`` is the sender's description."""

    name: str
    uri: str
    described: str = ""


def read_prompt(blocks: Sequence[ContentBlock]) -> tuple[str, tuple[ContextBlock | Link, ...]]:
    """The intent and the context of a prompt. Links are not read yet (`prompt_links.pinned`).

    Raises `RpcError` -32602 for an empty prompt, for data that is not base64, and for a wrong media type.
    """
    parts: list[str] = []
    context: list[ContextBlock | Link] = []
    spoken = seen = False
    before: ContentBlock | None = None
    for index, block in enumerate(blocks):
        place = f"prompt[{index}]"
        if isinstance(block, Text):
            if isinstance(before, Text):
                parts.append("\n")
            parts.append(block.text)
            spoken = spoken or bool(block.text.strip())
        elif isinstance(block, ResourceLink):
            _check_uri(block.uri, f"{place}.uri")
            parts.append(_mention(block.name, block.uri))
            described = [value for value in (block.title, block.description) if isinstance(value, str) and value]
            context.append(Link(_cut(block.name), block.uri, _bounded("\n".join(described))))
        elif isinstance(block, Resource):
            _check_uri(block.resource.uri, f"{place}.resource.uri")
            name = _name(block.resource.uri)
            parts.append(_mention(name, block.resource.uri))
            context.append(_embedded(block, name, place))
        else:
            context.append(_attached(block, place))
            seen = True
        before = block
    intent = "".join(parts)
    if seen and not spoken:
        # Editors send a pasted image alone: it is the question then. A file alone is the same; its name is in the intent.
        intent = f"{intent} See what is attached.".lstrip()
    if not intent.strip():
        raise invalid_params("intent is required: the prompt holds no text", "prompt")
    return intent, tuple(context)


def _bounded(text: str) -> str:
    if len(text) <= MOST_TEXT:
        return text
    return f"{text[:MOST_TEXT]}\n[cut: {len(text) - MOST_TEXT:,} more characters of this resource are not shown]"


def _check_uri(uri: str, place: str) -> None:
    if len(uri) > MOST_URI:
        raise invalid_params(f"longer than {MOST_URI:,} characters", place)


def _mention(name: str, uri: str) -> str:
    return f"[@{_cut(name)}]({uri})"


def _name(uri: str) -> str:
    return _cut(uri.rstrip("/").rpartition("/")[2] or uri)


def _cut(name: str) -> str:
    """A name of limited length."""
    return name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}…"


def _attached(block: Image | Audio, place: str) -> ContextBlock:
    kind = "image" if isinstance(block, Image) else "audio"
    uri = block.uri if isinstance(block, Image) and isinstance(block.uri, str) and block.uri else None
    return _attachment(kind, block.mime_type, block.data, uri, f"{place}.data", place)


def _embedded(block: Resource, name: str, place: str) -> ContextBlock:
    """Text as a context block; other data as an attachment."""
    resource = block.resource
    if resource.text is not None:
        return ContextBlock(_bounded(resource.text), title=name, uri=resource.uri)
    if resource.blob is None:
        raise invalid_params("a resource has a text or a blob", f"{place}.resource")
    mime = resource.mime_type if isinstance(resource.mime_type, str) and resource.mime_type else ""
    family = mime.lower().partition("/")[0]
    if family not in ("image", "audio") and mime.lower() != "application/pdf":
        try:
            text = base64.b64decode(resource.blob, validate=True).decode()
            return ContextBlock(_bounded(text), title=name, uri=resource.uri)
        except binascii.Error:
            raise _not_base64(f"{place}.resource.blob") from None
        except ValueError:
            pass
    kind = family if family in ("image", "audio") else "document"
    where = f"{place}.resource"
    return _attachment(kind, mime or "application/octet-stream", resource.blob, resource.uri, f"{where}.blob", where)


def _attachment(kind: Any, mime: str, data: str, uri: str | None, where: str, place: str) -> ContextBlock:
    mime = mime.strip().lower().partition(";")[0].rstrip()
    if not _MIME.match(mime):
        raise invalid_params("must be a media type such as image/png", f"{place}.mimeType")
    try:
        held = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise _not_base64(where) from None
    size = len(held)
    if not size:
        raise invalid_params("holds no data", where)
    # Providers refuse an image whose bytes do not match its media type.
    seen = media_of(held[:16])
    if seen is None and kind != "document" and not mime.startswith(f"{kind}/"):
        raise invalid_params(f"must be a media type of {kind}, such as {_USUAL[kind]}, not {mime}", f"{place}.mimeType")
    mime = seen or mime
    title = _name(uri) if uri else ""
    if size > MOST_ATTACHED:
        what = f"{kind} ({mime}, {size:,} bytes)"
        return ContextBlock(
            f"[Left out: {'a' if kind == 'document' else 'an'} {what}: more than the {MOST_ATTACHED:,} bytes that are taken]",
            title,
            uri=uri,
        )
    return ContextBlock(title=title, uri=uri, attachment=Attachment.of(mime, data, uri, title))


def _not_base64(where: str) -> Exception:
    return invalid_params("is not base64", where)
