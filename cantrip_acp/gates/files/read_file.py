"""The gate ``read_file``: reads the text of a file, all of it or some lines, or an image.

Small files are read without a thread, because a thread costs more than the read. Larger files are read in a thread, in
pieces, so that the whole file is never in memory.
"""

from __future__ import annotations

import base64
import os
import threading
import time
from collections.abc import Awaitable, Iterator, Mapping
from typing import Any

import anyio.to_thread

from cantrip_acp.gates.confinement import PathHandle, Root, display_path
from cantrip_acp.gates.contract import Gate, GateContext, GateReply
from cantrip_acp.gates.files import file_content
from cantrip_acp.gates.files.file_content import LARGEST_IMAGE, image_type
from cantrip_acp.gates.known_texts import KnownTexts
from cantrip_acp.gates.registry import FILE_OPTIONS
from cantrip_acp.types.errors import GateError
from cantrip_acp.types.messages import Attachment

MAX_BYTES = 262_144
"""The most bytes of a result. The dependency ``max_bytes`` changes it."""
INLINE = 1_048_576
"""Files up to this many bytes are read without a thread."""
_CHUNK = 262_144
_SECONDS = 30.0
"""The most seconds to search for a line in a very large file."""


def _read_file(args: Mapping[str, Any], context: GateContext) -> GateReply | Awaitable[GateReply]:
    offset, limit = requested_lines(args)
    largest = int(context.dependencies.get("max_bytes", MAX_BYTES))
    with Root.of(context).find(args["path"], masking=True) as place:
        descriptor, status = place.open_file()
        reply = _FileRead(place, descriptor, status.st_size, offset, limit, largest)
        reply.known, reply.column = context.known, int(args.get("column", 1))
    if status.st_size <= INLINE:
        return reply.run()
    return reply.run_in_thread()


class _FileRead:
    """One running call of the gate. It owns the descriptor."""

    def __init__(
        self, place: PathHandle, descriptor: int, size: int, offset: int, limit: int | None, largest: int
    ) -> None:
        self.shown, self.location = place.shown, place.location(offset if offset > 1 else None)
        self.descriptor, self.size = descriptor, size
        self.offset, self.limit, self.largest = offset, limit, largest
        self.title = _title(place.shown, offset, limit)
        self.column = 1
        """The first character of the first line."""
        self.before = 0
        """The number of lines of the file before the text that is read."""
        self.place, self.absolute, self.encoding = place, place.absolute, file_content.UTF8
        self.known: KnownTexts | None = None
        """The `KnownTexts` that learn the text, and its path there."""
        self.stopped = threading.Event()
        self.mine = threading.Lock()
        """Whoever gets this lock closes the descriptor: the thread, or the call if it is cancelled before the thread begins."""

    async def run_in_thread(self) -> GateReply:
        try:
            return await anyio.to_thread.run_sync(self.run, abandon_on_cancel=True)
        finally:
            self.stopped.set()
            if self.mine.acquire(blocking=False):
                os.close(self.descriptor)

    def run(self) -> GateReply:
        if not self.mine.acquire(blocking=False):
            raise GateError("the call was cancelled")
        try:
            head = os.read(self.descriptor, min(self.size + 1, _CHUNK))
            kind = file_content.binary_kind(head)
            if kind is not None and (mime := image_type(head)) is not None:
                return self._image(mime, head)
            if kind is not None:
                raise GateError(
                    f"{self.shown!r} is a binary file ({kind}, {self.size:,} bytes), not text; nothing was read"
                )
            if self.known is not None:
                self._remember(head)
            self._detect(head)
            note = f"\n[not UTF-8; shown as {self.encoding.label}, which is a guess]" if self.encoding.guess else ""
            return GateReply(self._lines(head) + note, locations=(self.location,), title=self.title)
        except OSError as error:
            raise GateError(f"cannot read {self.shown!r}: {(error.strerror or str(error)).lower()}") from None
        finally:
            os.close(self.descriptor)

    def _detect(self, head: bytes) -> None:
        """Find out which encoding a file has that is not UTF-8 and has no mark."""
        decoded = None
        if not file_content.has_byte_order_mark(head):
            whole = head if len(head) >= self.size else head[: head.rfind(b"\n") + 1] or _whole_characters(head)
            decoded = file_content.decode_file(self.place, whole)
        if decoded is not None and decoded[1].codec != "utf-8":
            self.encoding = decoded[1]

    def _remember(self, head: bytes) -> None:
        """Note that the entity now knows this text, even if it reads only some of its lines."""
        assert self.known is not None
        data = head
        if len(head) < self.size:
            if self.size > INLINE:
                # Such a long text is never written as a whole.
                return
            data = os.pread(self.descriptor, self.size + 1, 0)
        decoded = file_content.decode_file(self.place, data)
        if decoded is not None:
            self.known.saw(self.absolute, decoded[0])

    def _image(self, mime: str, head: bytes) -> GateReply:
        if self.size > LARGEST_IMAGE:
            raise GateError(f"{self.shown!r} is an image of {self.size:,} bytes; the limit is {LARGEST_IMAGE:,} bytes")
        data = head
        while len(data) <= LARGEST_IMAGE and (chunk := os.read(self.descriptor, _CHUNK)):
            data += chunk
        image = Attachment("image", mime, base64.b64encode(data[:LARGEST_IMAGE]).decode(), title=self.shown)
        said = f"[image: {self.shown}, {mime}, {len(data):,} bytes]"
        return GateReply(said, locations=(self.location,), title=self.title, attachments=(image,))

    def _chunks(self, head: bytes) -> Iterator[bytes]:
        deadline = time.monotonic() + _SECONDS
        yield head
        while chunk := os.read(self.descriptor, _CHUNK):
            if self.stopped.is_set():
                return
            if time.monotonic() > deadline:
                raise GateError(f"line {self.offset:,} of {self.shown!r} was not reached within {_SECONDS:.0f} seconds")
            yield chunk

    def _lines(self, head: bytes) -> str:
        taken = bytearray()
        # A character has up to four bytes.
        room = self.largest + 4 * (self.column - 1)
        skip, wanted, end_of_last = self.offset - 1 - self.before, self.limit, b"\n"
        for chunk in file_content.as_utf8(self._chunks(head)):
            start = 0
            if skip:
                here = chunk.count(b"\n")
                if here < skip:
                    skip -= here
                    end_of_last = chunk[-1:] or end_of_last
                    continue
                start, skip = _after(chunk, skip), 0
            if wanted is not None:
                here = chunk.count(b"\n", start)
                if here >= wanted:
                    taken += chunk[start : _after(chunk, wanted, start)]
                    break
                wanted -= here
            taken += chunk[start:]
            if len(taken) > room:
                break
        if not taken and self.offset > 1:
            lines = self.offset - 1 - skip
            if skip and end_of_last != b"\n":
                lines += 1
            if self.offset > lines:
                raise GateError(f"{self.shown!r} has {lines:,} lines; offset {self.offset:,} is past its end")
        text = bytes(taken)
        if self.column > 1:
            text, self.encoding = self._from_column(file_content.display(text, self.encoding)), file_content.UTF8
        return file_content.display(text, self.encoding) if len(text) <= self.largest else self._cut(text)

    def _from_column(self, text: str) -> bytes:
        length = len(text.partition("\n")[0].removesuffix("\r"))
        if self.column > length:
            raise GateError(
                f"line {self.offset:,} of {self.shown!r} has {length:,} characters; column {self.column:,} is past its end"
            )
        return text[self.column - 1 :].encode()

    def _cut(self, taken: bytes) -> str:
        """The part of a long text that fits, with a note on how to read the rest."""
        end = taken.rfind(b"\n", 0, self.largest) + 1
        if end == 0:
            piece = _whole_characters(taken[: self.largest])
            shown = file_content.display(piece, self.encoding)
            last = self.column + len(shown) - 1
            note = (
                f"[cut: these are the characters {self.column:,} to {last:,} of line {self.offset:,}; the file has {self.size:,} "
                f"bytes. Read on in this line with offset {self.offset} and column {last + 1}; the next line is at offset "
                f"{self.offset + 1}]"
            )
            return f"{shown}\n{note}"
        kept = taken[:end]
        following = self.offset + kept.count(b"\n")
        note = (
            f"[cut: these are lines {self.offset:,} to {following - 1:,}, {end:,} bytes of the file's {self.size:,}; read on "
            f"with offset {following}]"
        )
        return file_content.display(kept, self.encoding) + note


class _KnownText(_FileRead):
    """Like `_FileRead`, but for a text that is already in memory (an editor's buffer)."""

    def __init__(self, place: PathHandle, data: bytes, size: int, offset: int, limit: int | None, largest: int) -> None:
        super().__init__(place, -1, size, offset, limit, largest)
        self._data = data

    def run(self) -> GateReply:
        kind = file_content.binary_kind(self._data)
        if kind is not None:
            raise GateError(f"{self.shown!r} is a binary file ({kind}, {self.size:,} bytes), not text")
        return GateReply(self._lines(self._data), locations=(self.location,), title=self.title)

    def _chunks(self, head: bytes) -> Iterator[bytes]:
        yield head


def reply_for_text(
    place: PathHandle, given: str, context: GateContext, args: Mapping[str, Any], *, before: int = 0
) -> GateReply:
    """Make the reply of `read_file` for a known text ``given``, which begins after ``before`` lines of the file.

    Raises `GateError` as the gate does.
    """
    offset, limit = requested_lines(args)
    data = given.encode("utf-8", "replace")
    on_disk = place.status.st_size if place.status is not None else 0
    size = max(on_disk, len(data)) if before or limit is not None else len(data)
    reading = _KnownText(place, data, size, offset, limit, int(context.dependencies.get("max_bytes", MAX_BYTES)))
    reading.before, reading.column = before, int(args.get("column", 1))
    return reading.run()


def _after(chunk: bytes, count: int, start: int = 0) -> int:
    """The position after the ``count``-th newline from ``start``. The chunk must have that many."""
    low, step = start, 65_536
    while count:
        here = chunk.count(b"\n", low, low + step)
        if here < count:
            count -= here
            low += step
        elif step > 64:
            step //= 4
        else:
            low = chunk.index(b"\n", low) + 1
            count -= 1
    return low


def _whole_characters(piece: bytes) -> bytes:
    """Remove an incomplete UTF-8 character at the end of a piece."""
    for back in range(1, min(4, len(piece)) + 1):
        byte = piece[-back]
        if byte >= 0xC0:
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return piece[:-back] if length > back else piece
        if byte < 0x80:
            break
    return piece


def requested_lines(args: Mapping[str, Any]) -> tuple[int, int | None]:
    """The first requested line (from 1), and the number of lines (None for all)."""
    limit = args.get("limit")
    # In JSON, 2.0 is an integer too.
    return int(args.get("offset", 1)), int(limit) if limit is not None else None


def _title(shown: str, offset: int, limit: int | None) -> str:
    if limit is not None:
        return f"Read {shown} ({offset}–{offset + limit - 1})"
    return f"Read {shown} (from {offset})" if offset != 1 else f"Read {shown}"


def _preview(args: Mapping[str, Any], context: GateContext) -> GateReply:
    offset, limit = requested_lines(args)
    shown, locations = display_path(args["path"], context, line=offset if offset > 1 else None)
    return GateReply(None, title=_title(shown, offset, limit), locations=locations)


READ_FILE = Gate(
    name="read_file",
    options=FILE_OPTIONS,
    description=(
        "Read a text file and return its text. With offset and limit, only those lines. A long result is cut, and ends with "
        "a note that says at which offset to read on. An image (PNG, JPEG, GIF, WebP) is shown as an image."
    ),
    parameters={
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "The file, relative to the gate's folder, such as src/main.py."},
            "offset": {"type": "integer", "minimum": 1, "description": "The first line, counted from 1. Default: 1."},
            "limit": {"type": "integer", "minimum": 1, "description": "How many lines. Default: all that fit."},
            "column": {
                "type": "integer",
                "minimum": 1,
                "description": "The first character of the first line, to read a very long line in parts. Default: 1.",
            },
        },
        "required": ["path"],
        "additionalProperties": False,
    },
    handler=_read_file,
    kind="read",
    preview=_preview,
)
