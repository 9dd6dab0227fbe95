"""Search engine with ripgrep. Its output is not trusted.

ripgrep opens files by path. A command could replace a file by a link at the same time, so that ripgrep reads a file outside
the root. Therefore each reported line is read again through the confined root, and counts only if the bytes are the same.
ripgrep's own text is never shown. One gap remains: ripgrep follows an ignore file that is a link. Somebody who can write
the tree may learn from missing hits whether a guessed line is in the link's target.
"""

from __future__ import annotations

import base64
import os
import stat
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import msgspec

from cantrip_acp.gates.files import file_content
from cantrip_acp.gates.search.search_types import (
    MAX_FILE,
    MAX_LINE,
    VERSION_CONTROL_FOLDERS,
    EngineRefused,
    Hit,
    Search,
    is_below,
    line_excerpt,
    read_until,
)
from cantrip_acp.types.errors import GateError

_LONGEST = 2 * MAX_LINE
_WHOLE = 67_108_864
"""The most bytes of a UTF-16 file. It must be read completely to check one of its lines."""
_decode = msgspec.json.Decoder().decode


def find_ripgrep(own: tuple[str, ...]) -> str | None:
    """Find ripgrep on PATH, but not in a folder of ``own``, in which the entity can write. None if there is none."""
    return _program(os.environ.get("PATH", os.defpath), own)


@lru_cache(maxsize=64)
def _program(path: str, own: tuple[str, ...]) -> str | None:
    for folder in path.split(os.pathsep):
        if not os.path.isabs(folder):
            continue
        found = os.path.join(folder, "rg")
        real = os.path.realpath(found)
        if is_below(os.path.normpath(found), own) or is_below(real, own):
            continue
        try:
            status = os.stat(real)
        except OSError:
            continue
        if stat.S_ISREG(status.st_mode) and not status.st_mode & 0o002 and os.access(real, os.X_OK):
            return real
    return None


def arguments(program: str, search: Search) -> list[str]:
    """Build the command line: without configuration, without following links, with JSON output sorted by path."""
    given = [
        program,
        "--no-config",
        "--json",
        "--sort=path",
        "--hidden",
        "--no-follow",
        "--no-messages",
        "--no-require-git",
        "--no-ignore-global",
        "--no-ignore-exclude",
        "--crlf",
        "--no-mmap",
        f"--max-filesize={MAX_FILE}",
        "--ignore-case" if search.ignore_case else "--case-sensitive",
    ]
    if search.glob:
        given.append(f"--glob={search.glob}")
    given += [f"--iglob=!{name}" for name in sorted(VERSION_CONTROL_FOLDERS)]
    return [*given, f"--regexp={search.pattern}", "--", "/".join([".", *search.parts])]


def hits(program: str, search: Search) -> Iterator[Hit]:
    """Find the hits in path order. Raises `EngineRefused` (only before the first hit) or `SearchTimeout`."""
    environment = {"PATH": os.defpath, "LC_ALL": "C.UTF-8"}
    search.root.check()
    with search.child.running(arguments(program, search), environment, search.root.opened) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        found = False
        lines = _LineReader(search)
        try:
            for line in _messages(process.stdout.fileno(), search):
                hit = lines.hit(line)
                if hit is not None:
                    found = True
                    yield hit
        finally:
            lines.close()
        problem = read_until(process.stderr.fileno(), search.deadline, search.child)
        if problem and not found:
            raise EngineRefused(problem.decode("utf-8", "replace").strip())


def _messages(descriptor: int, search: Search) -> Iterator[bytes]:
    """Read ripgrep's JSON lines for matches. Extremely long lines are skipped."""
    rest, skipping = b"", False
    while data := read_until(descriptor, search.deadline, search.child):
        pieces = (rest + data).split(b"\n")
        rest = pieces.pop()
        for piece in pieces:
            if skipping:
                skipping = False
            elif piece.startswith(b'{"type":"match"'):
                yield piece
        if len(rest) > _LONGEST:
            rest, skipping = b"", True


class _LineReader:
    """Reads reported lines again, to verify them. The last file stays open, because hits come file by file."""

    def __init__(self, search: Search) -> None:
        self._search = search
        self._path: str | None = None
        self._file: int | None = None
        self._whole: list[bytes] | None = None
        self._parts: tuple[str, ...] = ()

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
        self._file = self._whole = None

    def hit(self, message: bytes) -> Hit | None:
        try:
            data = _decode(message)["data"]
            path, line = os.fsdecode(_bytes(data["path"])), _bytes(data["lines"])
            number, offset = int(data["line_number"]), int(data["absolute_offset"])
            column = int(data["submatches"][0]["start"]) if data["submatches"] else 0
        except (msgspec.DecodeError, AttributeError, IndexError, KeyError, TypeError, ValueError):
            return None
        if len(line) > MAX_LINE or offset < 0 or number < 1:
            return None
        if path != self._path:
            self.close()
            self._path = path
            self._open(path)
        if self._file is not None:
            try:
                if os.pread(self._file, len(line), offset) != line:
                    return None
            except OSError:
                # A failing disk or network file system: show nothing.
                return None
        elif self._whole is None or number > len(self._whole) or self._whole[number - 1] != line.rstrip(b"\r\n"):
            return None
        line = line.rstrip(b"\r\n")
        return Hit(
            self._parts, number, line_excerpt(len(line), column, lambda start, count: line[start : start + count])
        )

    def _open(self, path: str) -> None:
        """Open the file through the root. It is skipped if it is hidden, not text, or not the file that ripgrep read."""
        names = tuple(name for name in path.split("/") if name not in ("", "."))
        try:
            with self._search.root.find("/".join(names)) as place:
                if place.parts != names:
                    return
                descriptor, status = place.open_file()
        except GateError:
            return
        try:
            head = os.pread(descriptor, 8_192, 0)
            if file_content.binary_kind(head) is None:
                self._parts = names
                if not file_content.has_byte_order_mark(head):
                    self._file, descriptor = descriptor, -1
                elif status.st_size <= _WHOLE:
                    decoded = file_content.decode(os.pread(descriptor, _WHOLE, 0))
                    if decoded is not None:
                        content = decoded[0].encode("utf-8", "replace")
                        self._whole = [line.rstrip(b"\r") for line in content.split(b"\n")]
        except OSError:
            return
        finally:
            if descriptor >= 0:
                os.close(descriptor)


def _bytes(value: Any) -> bytes:
    given: str | None = value.get("text")
    return given.encode("utf-8", "surrogatepass") if given is not None else base64.b64decode(value["bytes"])
