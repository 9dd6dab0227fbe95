"""Text in files: which encoding, and back to the same bytes.

Every byte sequence that counts as text decodes, and encoding the result again gives the same bytes: UTF-8 with and without
a byte order mark, UTF-16 and UTF-32 with one, one byte a character where the bytes are no UTF-8, and UTF-8 with broken
places, whose bytes are carried along as lone surrogates. Line endings are left as they are.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass

_HEAD = 8_192
"""Bytes in which a NUL tells that a file is no text, as git decides it too."""

# UTF-32 first: its little-endian mark begins with UTF-16's.
_MARKS = (
    (codecs.BOM_UTF8, "utf-8", "UTF-8 with a byte order mark"),
    (codecs.BOM_UTF32_LE, "utf-32-le", "UTF-32"),
    (codecs.BOM_UTF32_BE, "utf-32-be", "UTF-32"),
    (codecs.BOM_UTF16_LE, "utf-16-le", "UTF-16"),
    (codecs.BOM_UTF16_BE, "utf-16-be", "UTF-16"),
)

_ANY_MARK = tuple(mark for mark, *_ in _MARKS)

_SIGNS: tuple[tuple[bytes, str], ...] = (
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
"""Signs that no text begins with, so that a file is told apart even where no NUL is near."""


@dataclass(frozen=True, slots=True)
class Encoding:
    """How a file's bytes are its text. ``codec`` and ``errors`` are Python's; ``mark`` stands before the text."""

    codec: str = "utf-8"
    mark: bytes = b""
    errors: str = "strict"
    label: str = "UTF-8"

    def decode(self, data: bytes) -> str:
        return data[len(self.mark) :].decode(self.codec, self.errors)

    def encode(self, text: str) -> bytes:
        """The bytes, mark included. Raises `UnicodeEncodeError` for a character that this encoding does not have."""
        return self.mark + text.encode(self.codec, self.errors)


UTF8 = Encoding()
_BROKEN = Encoding(errors="surrogateescape", label="UTF-8 with broken places")
_WINDOWS = Encoding("cp1252", label="Windows-1252")
_LATIN = Encoding("latin-1", label="Latin-1")


def binary_kind(head: bytes) -> str | None:
    """What kind of binary file begins like this; None where it is text. ``head`` is the file's first 8 KB or more."""
    if marked(head):
        return None
    if b"\0" not in head[:_HEAD] and not head.startswith(_CERTAIN):
        return None
    return next((kind for sign, kind in _SIGNS if head.startswith(sign)), "binary data")


def marked(head: bytes) -> bool:
    """Whether a file that begins like this has a byte order mark."""
    return head.startswith(_ANY_MARK)


def decode(data: bytes) -> tuple[str, Encoding] | None:
    """A file's text and how it was encoded; None where it is no text. ``encoding.encode(text)`` gives ``data`` again."""
    for mark, codec, label in _MARKS:
        if data.startswith(mark):
            # UTF-16 as programs really write it may hold lone surrogates; they come back as they were.
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
    """A piece of a text file's bytes as text for reading; what is no character is shown as one that says so."""
    return sendable(_unmarked(data)[0])


def sendable(text: str) -> str:
    """Text that JSON can carry: what stands for a broken byte becomes the replacement character."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return re.sub("[\ud800-\udfff]", "\ufffd", text)
    return text


def as_utf8(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """A text file's chunks with their byte order mark taken off, and UTF-16 and UTF-32 as UTF-8.

    What comes out has its line ends at ``\\n`` bytes, whatever went in.
    """
    first = next(chunks, b"")
    for mark, codec, _ in _MARKS if marked(first) else ():
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
    """The line ending that a text mostly uses: ``\\n``, ``\\r\\n`` or ``\\r``."""
    pairs = text.count("\r\n")
    feeds, returns = text.count("\n") - pairs, text.count("\r") - pairs
    most = max(pairs, feeds, returns)
    if most == 0 or feeds == most:
        return "\n"
    return "\r\n" if pairs == most else "\r"
