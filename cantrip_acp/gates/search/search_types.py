"""Search types: the request, the hits, the errors and the child process of a search, for both engines."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from msgspec import Struct

from cantrip_acp.files.descriptors import is_ready
from cantrip_acp.files.ignore_files import Globs
from cantrip_acp.gates.confinement import Root, one_line
from cantrip_acp.gates.files.file_content import display
from cantrip_acp.types.errors import GateError

if TYPE_CHECKING:
    from cantrip_acp.gates.contract import GateContext

MAX_FILE = 536_870_912
"""The most bytes of a file. Larger files are not searched."""
MAX_LINE = 1_048_576
"""The most bytes of a line. Longer lines are not searched."""
_SHOWN = 400
"""The most bytes of a line that are shown. Of a longer line, only the part around the match is shown."""
_BEFORE = 120

_MEMORY = 2_147_483_648
"""The memory limit of the search process, in bytes."""

VERSION_CONTROL_FOLDERS = frozenset({".git", ".hg", ".svn", ".jj"})
"""Folders of version control. They are searched only if the path names one."""


class SearchTimeout(Exception):
    """The search took too long, or was cancelled."""


class EngineRefused(Exception):
    """This engine does not support the pattern, or does not run here. The text says why."""


class Search(Struct, frozen=True):
    """One search request. ``parts`` are the names of the searched folder or single ``file`` below ``root``.

    ``own`` are the real paths of folders in which the entity can write; no program there is run. ``deadline`` is a time of
    the monotonic clock. At most ``limit`` hits are wanted, plus one that shows that there are more.
    """

    root: Root
    parts: tuple[str, ...]
    file: bool
    pattern: str
    ignore_case: bool
    glob: str | None
    limit: int
    deadline: float
    own: tuple[str, ...]
    child: SearchProcess

    @property
    def globs(self) -> Globs | None:
        return Globs(self.glob) if self.glob else None


class Hit(Struct, frozen=True):
    """A matching line. ``text`` is decoded for display, and shortened if it is long."""

    parts: tuple[str, ...]
    line: int
    text: str

    def __str__(self) -> str:
        return f"{one_line('/'.join(self.parts))}:{self.line}:{self.text}"


def writable_folders(context: GateContext, root: str) -> tuple[str, ...]:
    """The real paths of the folders in which the entity can write."""
    base = os.fspath(context.workspace) if context.workspace is not None else "/"
    places = [base] if context.workspace is not None else []
    places += [root, *context.wards.bash_writable_paths, *context.wards.code_writable_paths]
    return tuple(sorted({os.path.realpath(os.path.join(base, place)) for place in places}))


def is_below(path: str, folders: Sequence[str]) -> bool:
    return any(path == folder or path.startswith(folder.rstrip("/") + "/") for folder in folders)


def line_excerpt(length: int, column: int, read: Callable[[int, int], bytes]) -> str:
    """Format a line of ``length`` bytes for display, shortened around the match at ``column``. ``read(start, count)``
    returns bytes of the line."""
    if length <= _SHOWN:
        return display(read(0, length)).rstrip("\r\n")
    start = 0 if column < _SHOWN - _BEFORE else column - _BEFORE
    piece = read(start, _SHOWN)
    while start and piece and piece[0] & 0xC0 == 0x80:
        piece = piece[1:]
    if start + _SHOWN < length:
        cut = len(piece)
        while cut and piece[cut - 1] & 0xC0 == 0x80:
            cut -= 1
        if cut and piece[cut - 1] >= 0xC0:
            piece = piece[: cut - 1]
    before, after = "…" if start else "", "…" if start + _SHOWN < length else ""
    return f"{before}{display(piece).rstrip(chr(10) + chr(13))}{after}"


class SearchProcess:
    """Runs at most one process at a time, and kills it when the search ends. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = False

    def stop(self) -> None:
        """Kill the running process, and let no other one start."""
        with self._lock:
            self._stopped = True
            if self._process is not None:
                self._process.kill()

    @property
    def stopped(self) -> bool:
        return self._stopped

    @contextmanager
    def running(
        self, arguments: Sequence[str], environment: Mapping[str, str], folder: str, *, talks: bool = False
    ) -> Iterator[subprocess.Popen[bytes]]:
        """Run a process during a ``with`` block, and end it afterwards. ``talks``: it reads from its standard input."""
        pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
        with self._lock:
            if self._stopped:
                raise SearchTimeout
            try:
                process = subprocess.Popen(
                    arguments,
                    stdin=pipe if talks else nothing,
                    stdout=pipe,
                    stderr=nothing if talks else pipe,
                    env=dict(environment),
                    cwd=folder,
                    start_new_session=True,
                )
            except OSError as error:
                raise EngineRefused(f"{arguments[0]} does not start: {error.strerror}") from None
            self._process = process
        _limit_memory(process.pid)
        try:
            yield process
        finally:
            with self._lock:
                self._process = None
                process.kill()
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    try:
                        stream.close()
                    except OSError:
                        # The process ended before all data were written to it.
                        pass
            process.wait()


def _limit_memory(process: int) -> None:
    """Limit the process's memory, because a file may be one very long line. If the system has no such limit, only the
    limits on sizes apply."""
    try:
        import resource

        resource.prlimit(process, resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    except (ImportError, AttributeError, OSError, ValueError):
        pass


def read_until(descriptor: int, deadline: float, child: SearchProcess) -> bytes:
    """Read the next bytes of a pipe; empty at its end. Raises `SearchTimeout`."""
    remaining = deadline - time.monotonic()
    if child.stopped or remaining <= 0 or not is_ready(descriptor, remaining):
        raise SearchTimeout
    return os.read(descriptor, 262_144)


def check_time(search: Search) -> None:
    if search.child.stopped or time.monotonic() > search.deadline:
        raise SearchTimeout


def bad_pattern(pattern: str, why: str) -> GateError:
    return GateError(f"the pattern {pattern[:200]!r} is not a regular expression that search can use: {why}")
