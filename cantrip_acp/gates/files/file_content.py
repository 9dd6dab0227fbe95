"""File content: detects text encodings, binary data and images, and encodes text back to the same bytes.

If a file counts as text, decoding and then encoding gives the same bytes. Supported are UTF-8 with and without a byte order
mark, UTF-16 and UTF-32 with one, encodings with one byte per character, and UTF-8 with invalid bytes, which become lone
surrogates. Line endings stay unchanged. Only images that models accept are detected as images.
"""

from __future__ import annotations

import base64
import binascii
import codecs
import re
from collections.abc import Iterator

from cantrip_acp.crystals.contract import Attachment
from cantrip_acp.text.dataclass import dataclass

_HEAD = 8_192
"""If these first bytes contain a NUL, the file counts as binary, as in git."""

# UTF-32 must come before UTF-16, because its little-endian mark begins with that of UTF-16.
_MARKS = (
    (codecs.BOM_UTF8, "utf-8", "UTF-8 with a byte order mark"),
    (codecs.BOM_UTF32_LE, "utf-32-le", "UTF-32"),
    (codecs.BOM_UTF32_BE, "utf-32-be", "UTF-32"),
    (codecs.BOM_UTF16_LE, "utf-16-le", "UTF-16"),
    (codecs.BOM_UTF16_BE, "utf-16-be", "UTF-16"),
)

_ANY_MARK = tuple(mark for mark, *_ in _MARKS)

_BINARY_SIGNATURES: tuple[tuple[bytes, str], ...] = (
    (b"\x89PNG\r\n", "PNG image"),
    (b"\xff\xd8\xff", "JPEG image"),
    (b"GIF8", "GIF image"),
    (b"BM", "BMP image"),
    (b"RIFF", "RIFF media (WebP, WAV, AVI)"),
    (b"%PDF-", "PDF document"),
    (b"PK\x03\x04", "ZIP archive, or a document or package in one"),
    (b"\x1f\x8b", "gzip data"),
    (b"BZh", "bzip2 data"),
    (b"\xfd7zXZ", "xz data"),
    (b"\x28\xb5\x2f\xfd", "zstd data"),
    (b"7z\xbc\xaf", "7-Zip archive"),
    (b"\x7fELF", "ELF program or library"),
    (b"\xcf\xfa\xed\xfe", "Mach-O program"),
    (b"\xca\xfe\xba\xbe", "Java class or Mach-O program"),
    (b"MZ", "Windows program"),
    (b"\x00asm", "WebAssembly module"),
    (b"SQLite format 3\x00", "SQLite database"),
    (b"OggS", "Ogg media"),
    (b"ID3", "MP3 audio"),
    (b"wOF", "web font"),
)
_CERTAIN = (b"%PDF-", b"\x1f\x8b", b"\x89PNG\r\n", b"PK\x03\x04", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")
"""Beginnings that a text never has. Such files are binary even without a NUL."""


@dataclass(frozen=True, slots=True)
class Encoding:
    """A text encoding. ``codec`` and ``errors`` are Python's names; ``mark`` is the byte order mark before the text."""

    codec: str = "utf-8"
    mark: bytes = b""
    errors: str = "strict"
    label: str = "UTF-8"

    def decode(self, data: bytes) -> str:
        return data[len(self.mark) :].decode(self.codec, self.errors)

    def encode(self, text: str) -> bytes:
        """Encode the text, with the mark. Raises `UnicodeEncodeError` for a character that this encoding does not have."""
        return self.mark + text.encode(self.codec, self.errors)


UTF8 = Encoding()
_BROKEN = Encoding(errors="surrogateescape", label="UTF-8 with broken places")
_WINDOWS = Encoding("cp1252", label="Windows-1252")
_LATIN = Encoding("latin-1", label="Latin-1")


def binary_kind(head: bytes) -> str | None:
    """The kind of a binary file; None if it is text. ``head`` is the first 8 KB of the file or more."""
    if has_byte_order_mark(head):
        return None
    if b"\0" not in head[:_HEAD] and not head.startswith(_CERTAIN):
        return None
    return next((kind for sign, kind in _BINARY_SIGNATURES if head.startswith(sign)), "binary data")


def has_byte_order_mark(head: bytes) -> bool:
    """Whether these bytes begin with a byte order mark."""
    return head.startswith(_ANY_MARK)


def decode(data: bytes) -> tuple[str, Encoding] | None:
    """Decode a file. Returns its text and encoding; None if it is not text. ``encoding.encode(text)`` returns ``data``."""
    for mark, codec, label in _MARKS:
        if data.startswith(mark):
            # Some UTF-16 files have lone surrogates. Keep them.
            errors = "surrogateescape" if codec == "utf-8" else "surrogatepass"
            encoding = Encoding(codec, mark, errors, label)
            try:
                return encoding.decode(data), encoding
            except UnicodeDecodeError:
                return None
    if binary_kind(data) is not None:
        return None
    return _unmarked(data)


def _unmarked(data: bytes) -> tuple[str, Encoding]:
    try:
        return data.decode("utf-8"), UTF8
    except UnicodeDecodeError:
        pass
    sound = data.decode("utf-8", "ignore")
    broken = len(data) - len(sound.encode("utf-8"))
    wide = len(sound) - len(sound.encode("ascii", "ignore"))
    if wide > broken:
        return data.decode("utf-8", "surrogateescape"), _BROKEN
    try:
        return data.decode("cp1252"), _WINDOWS
    except UnicodeDecodeError:
        return data.decode("latin-1"), _LATIN


def display(data: bytes) -> str:
    """Decode a piece of a text file for display. Invalid bytes become the replacement character."""
    return valid_unicode(_unmarked(data)[0])


def valid_unicode(text: str) -> str:
    """Return text that JSON can carry: lone surrogates become the replacement character."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return re.sub("[\ud800-\udfff]", "\ufffd", text)
    return text


def as_utf8(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Convert a text file's chunks: remove a byte order mark, and convert UTF-16 and UTF-32 to UTF-8.

    So every line end in the output has the byte ``\\n``.
    """
    first = next(chunks, b"")
    for mark, codec, _ in _MARKS if has_byte_order_mark(first) else ():
        if first.startswith(mark):
            if codec == "utf-8":
                first = first[len(mark) :]
                break
            decoder = codecs.getincrementaldecoder(codec)("replace")
            yield decoder.decode(first[len(mark) :]).encode("utf-8", "replace")
            for chunk in chunks:
                yield decoder.decode(chunk).encode("utf-8", "replace")
            yield decoder.decode(b"", True).encode("utf-8", "replace")
            return
    yield first
    yield from chunks


def newline_of(text: str) -> str:
    """The most frequent line ending of a text: ``\\n``, ``\\r\\n`` or ``\\r``."""
    pairs = text.count("\r\n")
    feeds, returns = text.count("\n") - pairs, text.count("\r") - pairs
    most = max(pairs, feeds, returns)
    if most == 0 or feeds == most:
        return "\n"
    return "\r\n" if pairs == most else "\r"


LARGEST_IMAGE = 3_750_000
"""The most bytes of an image for a model. In base64 this is 5 MB, Anthropic's limit, which is the lowest of all."""

_IMAGE_SIGNATURES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)


def image_type(head: bytes) -> str | None:
    """The media type of an image with this beginning; None if models do not accept it or it is not an image."""
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "image/webp"
    return next((mime for sign, mime in _IMAGE_SIGNATURES if head.startswith(sign)), None)


def image_attachment(mime: str, data: str) -> Attachment | None:
    """Make an attachment from an untrusted base64 image; None if its type is wrong or it is too large."""
    if len(data) > LARGEST_IMAGE * 4 // 3 + 4:
        return None
    try:
        raw = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return None
    return Attachment("image", mime, data) if image_type(raw) == mime else None
