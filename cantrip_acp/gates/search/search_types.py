"""Types of a search (request, hit, errors) and its child process, shared by both engines."""

from __future__ import annotations

import os
import select
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cantrip_acp.core.errors import GateError
from cantrip_acp.gates.confinement import Root, one_line
from cantrip_acp.gates.files.file_content import display
from cantrip_acp.gates.search.ignore_files import Globs

if TYPE_CHECKING:
    from cantrip_acp.gates.contract import GateContext

MAX_FILE = 536_870_912
"""Bytes; larger files are not searched."""
MAX_LINE = 1_048_576
"""Bytes; longer lines are not searched."""
_SHOWN = 400
"""Bytes of a line that are shown; of a longer one, the part around the match."""
_BEFORE = 120

_MEMORY = 2_147_483_648
"""Bytes of memory for the search process."""

VERSION_CONTROL_FOLDERS = frozenset({".git", ".hg", ".svn", ".jj"})
"""Version control folders: search enters them only if the path names one."""


class SearchTimeout(Exception):
    """The search's time is over, or it was cancelled."""


class EngineRefused(Exception):
    """This engine cannot handle the pattern, or does not run here. The text says why."""


@dataclass(frozen=True, slots=True)
class Search:
    """One search. ``parts``: the real names of its start below ``root``, a folder or one ``file``.

    ``own`` are real paths of the folders in which the entity writes: no program there is run. ``deadline`` is a time
    of the monotonic clock. At most ``limit`` hits are wanted, plus one that shows that there are more.
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
    child: SearchProcess = field(repr=False)

    @property
    def globs(self) -> Globs | None:
        return Globs(self.glob) if self.glob else None


@dataclass(frozen=True, slots=True)
class Hit:
    """A matching line. ``text`` is decoded for display, and cut if long."""

    parts: tuple[str, ...]
    line: int
    text: str

    def __str__(self) -> str:
        return f"{one_line('/'.join(self.parts))}:{self.line}:{self.text}"


def writable_folders(context: GateContext, root: str) -> tuple[str, ...]:
    """Real paths of the folders in which the entity can put its own programs."""
    base = os.fspath(context.workspace) if context.workspace is not None else "/"
    places = [base] if context.workspace is not None else []
    places += [root, *context.wards.bash_writable_paths, *context.wards.code_writable_paths]
    return tuple(sorted({os.path.realpath(os.path.join(base, place)) for place in places}))


def is_below(path: str, folders: Sequence[str]) -> bool:
    return any(path == folder or path.startswith(folder.rstrip("/") + "/") for folder in folders)


def line_excerpt(length: int, column: int, read: Callable[[int, int], bytes]) -> str:
    """A line of ``length`` bytes for display. ``read(start, count)`` returns bytes of it; ``column`` is the position
    of the match."""
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
    """At most one process at a time, killed when the search ends for any reason; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = False

    def stop(self) -> None:
        """Kill the running process, and start no more."""
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
        """Run the process during a ``with`` block; afterwards it has ended and is reaped."""
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
                        # Data that was still to be written to an ended process.
                        pass
            process.wait()


def _limit_memory(process: int) -> None:
    """Limit the process's memory: a file may be one endless line. Where limits are not available, the size limits
    remain."""
    try:
        import resource

        resource.prlimit(process, resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    except (ImportError, AttributeError, OSError, ValueError):
        pass


def read_until(descriptor: int, deadline: float, child: SearchProcess) -> bytes:
    """The next bytes of a pipe, empty at its end. Raises `SearchTimeout`."""
    remaining = deadline - time.monotonic()
    if child.stopped or remaining <= 0 or not select.select([descriptor], [], [], remaining)[0]:
        raise SearchTimeout
    return os.read(descriptor, 262_144)


def check_time(search: Search) -> None:
    if search.child.stopped or time.monotonic() > search.deadline:
        raise SearchTimeout


def bad_pattern(pattern: str, why: str) -> GateError:
    return GateError(f"the pattern {pattern[:200]!r} is not a regular expression that search can use: {why}")
