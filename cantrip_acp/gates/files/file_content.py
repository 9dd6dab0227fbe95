"""File content: detects text encodings, binary data and images, and encodes text back to the same bytes.

If a file counts as text, decoding and then encoding gives the same bytes. Supported are UTF-8 with and without a byte order
mark, UTF-16 and UTF-32 with one, the encoding that the project declares (`declared_encoding`), and UTF-8 with invalid bytes,
which become lone surrogates. What is none of these has a guessed encoding (`Encoding.guess`). Line endings stay unchanged.
Only images that models accept are detected as images.
"""

from __future__ import annotations

import base64
import binascii
import codecs
import os
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgspec import Struct

from cantrip_acp.types.errors import GateError
from cantrip_acp.types.messages import Attachment

if TYPE_CHECKING:
    from cantrip_acp.gates.confinement import PathHandle

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


class Encoding(Struct, frozen=True):
    """A text encoding. ``codec`` and ``errors`` are Python's names; ``mark`` is the byte order mark before the text."""

    codec: str = "utf-8"
    mark: bytes = b""
    errors: str = "strict"
    label: str = "UTF-8"
    guess: bool = False

    def decode(self, data: bytes) -> str:
        return data[len(self.mark) :].decode(self.codec, self.errors)

    def encode(self, text: str) -> bytes:
        """Encode the text, with the mark. Raises `UnicodeEncodeError` for a character that this encoding does not have."""
        return self.mark + text.encode(self.codec, self.errors)


UTF8 = Encoding()
_BROKEN = Encoding(errors="surrogateescape", label="UTF-8 with broken places")
_WINDOWS = Encoding("cp1252", label="Windows-1252", guess=True)
_LATIN = Encoding("latin-1", label="Latin-1", guess=True)
_LABELS = {
    "gb18030": "GB18030", "cp932": "Shift-JIS", "shift_jis": "Shift-JIS", "shift_jis_2004": "Shift-JIS", "euc_jp": "EUC-JP",
    "euc_jis_2004": "EUC-JP", "big5": "Big5", "big5hkscs": "Big5", "cp949": "CP949", "euc_kr": "EUC-KR", "koi8_r": "KOI8-R",
    "koi8_u": "KOI8-U", "cp1251": "Windows-1251", "cp1252": "Windows-1252", "iso8859_1": "Latin-1", "utf_16_le": "UTF-16",
    "utf_16_be": "UTF-16",
}  # fmt: skip
_DETECTED = 65_536
"""The number of bytes that the detector reads."""
_WIDE = frozenset(
    {
        "gb18030",
        "cp932",
        "shift_jis",
        "shift_jis_2004",
        "euc_jp",
        "euc_jis_2004",
        "big5",
        "big5hkscs",
        "cp949",
        "euc_kr",
    }
)
_SURE, _SURE_WIDE = 0.2, 0.1
"""The least confidence at which the detector is believed. For encodings with one byte per letter it is often wrong below."""


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


def decode(data: bytes, declared: Encoding | None = None) -> tuple[str, Encoding] | None:
    """Decode a file. Returns its text and encoding, so that ``encoding.encode(text)`` gives ``data`` back; None if it is not
    text.

    ``declared`` is the result of `declared_encoding`.
    """
    for mark, codec, label in _MARKS:
        if data.startswith(mark):
            # Some UTF-16 files have lone surrogates. Keep them.
            errors = "surrogateescape" if codec == "utf-8" else "surrogatepass"
            encoding = Encoding(codec, mark, errors, label)
            try:
                return encoding.decode(data), encoding
            except UnicodeDecodeError:
                return None
    if declared is not None and declared.codec != "utf-8" and (data.isascii() or not _is_utf8(data)):
        text = _exactly(data, declared)
        if text is not None:
            return text, declared
    if binary_kind(data) is not None:
        return None
    return _unmarked(data)


def decode_file(place: PathHandle, data: bytes, new: str = "") -> tuple[str, Encoding] | None:
    """Decode the content of a file, with the encoding that its project declares. ``new`` is a text that is to be written."""
    # Looked up only if it can matter.
    matters = not new.isascii() if data.isascii() else not _is_utf8(data)
    return decode(data, declared_encoding(place.absolute, place.root.path) if matters else None)


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _exactly(data: bytes, encoding: Encoding) -> str | None:
    """Decode the data, if encoding the text again gives the same bytes."""
    try:
        text = data.decode(encoding.codec)
        return text if text.encode(encoding.codec) == data else None
    except (UnicodeError, LookupError):
        return None


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
    found = _detect(data)
    for guess in (found, _WINDOWS) if found is not None else (_WINDOWS,):
        text = _exactly(data, guess)
        if text is not None:
            return text, guess
    return data.decode("latin-1"), _LATIN


def _detect(data: bytes) -> Encoding | None:
    import chardet

    found = chardet.detect(data[:_DETECTED])
    name, confidence = found["encoding"], found["confidence"]
    if not name:
        return None
    try:
        codec = codecs.lookup(name).name.replace("-", "_")
    except LookupError:
        return None
    if (confidence or 0.0) < (_SURE_WIDE if codec in _WIDE else _SURE):
        return None
    return Encoding(codec, label=_LABELS.get(codec, name), guess=True)


def declared_encoding(path: str, root: str) -> Encoding | None:
    """The encoding that the project declares for a file; None if it declares none, or one that Python does not know.

    The sources are ``charset`` in ``.editorconfig`` (editorconfig.org) and ``working-tree-encoding`` in ``.gitattributes``
    (gitattributes(5)), which counts more. ``path`` and its folder ``root`` are absolute.
    """
    return _from_gitattributes(path, root) or _from_editorconfig(path)


def _from_editorconfig(path: str) -> Encoding | None:
    import editorconfig

    try:
        charset = editorconfig.get_properties(path).get("charset", "")
    except (editorconfig.EditorConfigError, OSError, UnicodeError):
        return None
    if charset == "utf-8-bom":
        return Encoding("utf-8", codecs.BOM_UTF8, "surrogateescape", "UTF-8 with a byte order mark")
    return _named(charset)


def _from_gitattributes(path: str, root: str) -> Encoding | None:
    from pathspec import GitIgnoreSpec

    found = ""
    folder = root
    for name in ("", *os.path.relpath(os.path.dirname(path), root).split("/")):
        folder = os.path.join(folder, name) if name not in ("", ".") else folder
        try:
            with open(os.path.join(folder, ".gitattributes"), encoding="utf-8", errors="replace") as file:
                lines = file.read(_ATTRIBUTES).splitlines()
        except OSError:
            continue
        for line in lines:
            pattern, *attributes = line.split()[:50] or ("#",)
            for each in attributes if not pattern.startswith(("#", "[", '"')) else ():
                if each.startswith("working-tree-encoding=") and GitIgnoreSpec.from_lines([pattern]).match_file(
                    os.path.relpath(path, folder)
                ):
                    found = each.partition("=")[2]
    return _named(found.removesuffix("-BOM"))


_ATTRIBUTES = 262_144
_NOT_FOR_FILES = frozenset(
    {"", "utf_8", "idna", "punycode", "unicode_escape", "raw_unicode_escape", "utf_7", "undefined", "mbcs", "oem"}
)


def _named(name: str) -> Encoding | None:
    try:
        codec = codecs.lookup(name).name.replace("-", "_") if name else ""
        "".encode(codec or "?")
    except (LookupError, UnicodeError, ValueError):
        return None
    return None if codec in _NOT_FOR_FILES else Encoding(codec, label=_LABELS.get(codec, name))


def check_letters(encoding: Encoding, old: str, new: str, shown: str) -> None:
    """Raise `GateError` if the encoding of a file is a guess and the new text has a letter outside ASCII that the file does
    not contain: writing it could be wrong."""
    if not encoding.guess or new.isascii():
        return
    strange = next((each for each in new if each > "\x7f" and each not in old), None)
    if strange is not None:
        raise GateError(
            f"{shown!r} is not UTF-8. It looks like {encoding.label}, but that is a guess, so the letter {strange!r}, which is not "
            "in the file, could come out as another one; nothing was written",
            "Use ASCII, or let the project name the encoding: charset in .editorconfig, or working-tree-encoding in "
            ".gitattributes",
        )


def display(data: bytes, encoding: Encoding = UTF8) -> str:
    """Decode a piece of a text file for display. Invalid bytes become the replacement character."""
    if encoding.codec != "utf-8":
        return data.decode(encoding.codec, "replace")
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


def keep_newlines(before: str, content: str) -> tuple[str, str]:
    """A new text with the line ends of the old one, if these are all ``\\r\\n`` and the new ones are not. Returns it and a
    note for the reader."""
    pairs = before.count("\r\n")
    if not pairs or "\n" not in content or "\r\n" in content:
        return content, ""
    if pairs == before.count("\n") == before.count("\r"):
        return content.replace("\n", "\r\n"), ", with CRLF line ends as before"
    return content, ", with LF line ends; it had CRLF ones too"


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
