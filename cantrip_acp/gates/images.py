"""Images in gate results: which bytes are an image that models accept."""

from __future__ import annotations

import base64
import binascii

from cantrip_acp.crystals.contract import Attachment

LARGEST_IMAGE = 3_750_000
"""Bytes of an image that a model is shown. In base64 this is 5 MB, Anthropic's limit and the smallest of all."""

_SIGNS = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)


def image_type(head: bytes) -> str | None:
    """The media type of a file that begins like this; None unless models accept it."""
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "image/webp"
    return next((mime for sign, mime in _SIGNS if head.startswith(sign)), None)


def image_of(mime: str, data: str) -> Attachment | None:
    """An untrusted base64 image; None where it is not of its stated type, or too large."""
    if len(data) > LARGEST_IMAGE * 4 // 3 + 4:
        return None
    try:
        raw = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return None
    return Attachment("image", mime, data) if image_type(raw) == mime else None
