"""Search engine in Python, without ripgrep: walks the tree by descriptors and matches lines in a separate process.

It returns the same files, order and hits as ripgrep, if the pattern has the same meaning in both engines.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cantrip_acp.files.ignore_files import Globs, Level, level_of
from cantrip_acp.files.protected_paths import is_git_config, why_hidden
from cantrip_acp.gates.confinement import Root, copy_without_credentials
from cantrip_acp.gates.files import file_content
from cantrip_acp.gates.search.search_types import (
    MAX_FILE,
    MAX_LINE,
    VERSION_CONTROL_FOLDERS,
    EngineRefused,
    Hit,
    Search,
    SearchTimeout,
    bad_pattern,
    check_time,
    is_below,
    line_excerpt,
    read_until,
)
from cantrip_acp.types.errors import GateError

if TYPE_CHECKING:
    import subprocess

_PIECE = 4_194_304
_DEEPEST = 200
"""The deepest nesting of folders. Each entered folder has an open descriptor."""


def _match_lines() -> None:
    """The program of the matching process. A match that does not end can be stopped by killing this process.

    Its source text is run alone, without the rest of our code. The input is a sequence of frames: eight bytes with the
    length, then that many bytes. The first frame is the pattern. Each later frame is a part of a file that ends at a line
    end. The process answers each frame with one line: ``ok`` or an error text for the pattern, and ``line:column`` words
    for each part (line from 0, column in bytes from 0).
    """
    import re
    import sys
    import warnings

    wants, answers = sys.stdin.buffer, sys.stdout.buffer

    def frame() -> bytes:
        size = int.from_bytes(wants.read(8), "big")
        return wants.read(size)

    def answer(text: str) -> None:
        answers.write(text.encode("utf-8", "replace") + b"\n")
        answers.flush()

    most = int(sys.argv[2])
    # Nested classes have another meaning in other engines, so report an error.
    warnings.simplefilter("error", FutureWarning)
    try:
        source = frame().decode("utf-8", "surrogateescape")
        pattern = re.compile(source, re.IGNORECASE if sys.argv[1] == "i" else 0)
    except (re.error, OverflowError, RecursionError, FutureWarning) as error:
        answer(" ".join(str(error).split()))
        return
    answer("ok")
    while True:
        piece = frame()
        if not piece:
            return
        found = []
        lines = piece.decode("utf-8", "surrogateescape").split("\n")
        if not lines[-1]:
            lines.pop()
        for number, line in enumerate(lines):
            match = pattern.search(line[:-1] if line.endswith("\r") else line)
            if match is not None:
                column = len(line[: match.start()].encode("utf-8", "surrogateescape"))
                found.append(f"{number}:{column}")
                if len(found) == most:
                    break
        answer(" ".join(found))


# Read the source when this module is loaded, and use the interpreter's real path. An entity that can write the project's
# virtual environment must not be able to change what runs here.
_SOURCE = f"{inspect.getsource(_match_lines)}\n_match_lines()\n"
_PYTHON = os.path.realpath(vars(sys).get("_base_executable") or sys.executable)

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def hits(search: Search) -> Iterator[Hit]:
    """Find the hits in path order. Raises `GateError` for an invalid pattern, or `SearchTimeout`."""
    if "\n" in search.pattern or "\\n" in search.pattern.replace("\\\\", ""):
        raise bad_pattern(search.pattern, "it has a line end, but search checks one line at a time")
    with _matcher(search) as matcher:
        for parts, descriptor in _files(search):
            try:
                yield from _in_file(search, matcher, parts, descriptor)
            finally:
                os.close(descriptor)


class _Matcher:
    def __init__(self, process: subprocess.Popen[bytes], search: Search) -> None:
        self._process, self._search = process, search
        self._rest = b""

    def ask(self, frame: bytes) -> str:
        """Send a frame and wait for the answer line. Raises `SearchTimeout`."""
        given, taken = self._process.stdin, self._process.stdout
        assert given is not None
        assert taken is not None
        try:
            given.write(len(frame).to_bytes(8, "big") + frame)
            given.flush()
        except BrokenPipeError:
            raise SearchTimeout from None
        while b"\n" not in self._rest:
            data = read_until(taken.fileno(), self._search.deadline, self._search.child)
            if not data:
                raise SearchTimeout
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode("utf-8", "replace")


@contextmanager
def _matcher(search: Search) -> Iterator[_Matcher]:
    if is_below(_PYTHON, search.own):
        raise GateError("search needs ripgrep (rg) here, because Python is in a folder in which commands may write")
    case = "i" if search.ignore_case else "c"
    command = [_PYTHON, "-I", "-S", "-c", _SOURCE, case, str(search.limit + 1)]
    try:
        with search.child.running(command, {"PATH": os.defpath}, "/", talks=True) as process:
            matcher = _Matcher(process, search)
            problem = matcher.ask(search.pattern.encode("utf-8", "surrogatepass"))
            if problem != "ok":
                raise bad_pattern(search.pattern, problem)
            yield matcher
    except EngineRefused as error:
        raise GateError(f"search does not work here: {error}; install ripgrep (rg)") from None


def _in_file(search: Search, matcher: _Matcher, parts: tuple[str, ...], descriptor: int) -> Iterator[Hit]:
    before = 0
    for piece in _pieces(descriptor):
        check_time(search)
        lines: list[bytes] | None = None
        for word in matcher.ask(piece).split():
            number, _, column = word.partition(":")
            lines = piece.split(b"\n") if lines is None else lines
            line = lines[int(number)]
            line = line.removesuffix(b"\r")
            shown = line_excerpt(len(line), int(column), lambda start, count, line=line: line[start : start + count])  # type: ignore[misc]
            yield Hit(parts, before + int(number) + 1, shown)
        before += piece.count(b"\n")


def _pieces(descriptor: int) -> Iterator[bytes]:
    """Read a text file in pieces that end at a line end. Extremely long lines become empty. A binary file has no pieces."""
    head = _read(descriptor)
    if file_content.binary_kind(head) is not None:
        return

    def chunks() -> Iterator[bytes]:
        yield head
        while chunk := _read(descriptor):
            yield chunk

    rest, skipping = b"", False
    for chunk in file_content.as_utf8(chunks()):
        if skipping:
            end = chunk.find(b"\n")
            if end < 0:
                continue
            chunk, skipping = chunk[end:], False
        data = rest + chunk
        end = data.rfind(b"\n") + 1
        piece, rest = data[:end], data[end:]
        if piece:
            yield _without_long_lines(piece)
        if len(rest) > MAX_LINE:
            rest, skipping = b"", True
    if rest and len(rest) <= MAX_LINE:
        yield rest


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, _PIECE)
    except OSError:
        # A failing disk or network file system: end this file here, and continue with the next file.
        return b""


def _without_long_lines(piece: bytes) -> bytes:
    if len(piece) <= MAX_LINE or all(len(line) <= MAX_LINE for line in piece.split(b"\n")):
        return piece
    return b"\n".join(line if len(line) <= MAX_LINE else b"" for line in piece.split(b"\n"))


def _files(search: Search) -> Iterator[tuple[tuple[str, ...], int]]:
    """List the files to search, each with an open descriptor. The caller closes it."""
    if search.file:
        with search.root.find("/".join(search.parts)) as place:
            descriptor, _ = place.open_file()
            parts = place.parts
        yield parts, descriptor
        return
    level, _ = level_of(search.root, search.parts)
    folder = search.root.descend((*search.root.inner, *search.parts))
    try:
        yield from _below(search, folder, search.parts, level, search.globs)
    finally:
        os.close(folder)


def _below(
    search: Search, folder: int, parts: tuple[str, ...], level: Level, globs: Globs | None
) -> Iterator[tuple[tuple[str, ...], int]]:
    try:
        with os.scandir(folder) as found:
            entries = [(os.fsencode(e.name), e.name, e.is_dir(follow_symlinks=False)) for e in found]
    except OSError:
        return
    for _, name, is_folder in sorted(entries):
        check_time(search)
        place = (*parts, name)
        if search.root.hides((*search.root.inner, *place)):
            continue
        if name.lower() in VERSION_CONTROL_FOLDERS or not _is_selected(globs, level, place, is_folder):
            continue
        if is_folder:
            if len(place) > _DEEPEST:
                continue
            try:
                child = os.open(name, _FOLDER, dir_fd=folder)
            except OSError:
                continue
            try:
                yield from _below(search, child, place, level.enter(name, child), globs)
            finally:
                os.close(child)
        else:
            descriptor = _open(search.root, folder, name, (*search.root.inner, *place))
            if descriptor is not None:
                yield place, descriptor


def _is_selected(globs: Globs | None, level: Level, parts: tuple[str, ...], is_folder: bool) -> bool:
    chosen = globs.selects("/".join(parts), is_folder) if globs is not None else None
    return chosen if chosen is not None else not level.ignores(parts[-1], is_folder)


def _open(root: Root, folder: int, name: str, parts: tuple[str, ...]) -> int | None:
    """Open a regular file that is not hidden and not too large; else None."""
    import stat

    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if not stat.S_ISREG(status.st_mode):
            return None
        descriptor = os.open(name, flags, dir_fd=folder)
    except OSError:
        return None
    status = os.fstat(descriptor)
    hidden = why_hidden(parts, status.st_mode) is not None and not root.is_tracked(parts, fd=descriptor)
    if stat.S_ISREG(status.st_mode) and status.st_size <= MAX_FILE and not hidden:
        return copy_without_credentials(descriptor)[0] if is_git_config(parts) else descriptor
    os.close(descriptor)
    return None
