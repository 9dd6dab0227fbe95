"""New names: moves protected files that a command makes into the quarantine, while it runs and after its last process has ended.

What was there before cannot be changed inside, because it is mounted read-only. A name that was not there cannot be mounted, so
the command can make it, and whoever opens the folder would run it. So `NewNames.look` compares the protected names in the
writable folders with those before, a few times a second; `NewNames.end` does so when no process of the command is left, before
anybody gets its result. Between two looks a name may exist. Nobody can know who made a name, so one that the user makes while
a command runs is moved away too, and the user can keep it (`cantrip quarantine keep`).
A new ``.git`` stays if nothing in it could run a program.
"""

from __future__ import annotations

import os
import stat
import threading
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field

import anyio
import anyio.to_thread

from cantrip_acp.files import guarded
from cantrip_acp.files.paths import within_any
from cantrip_acp.files.protected_paths import plain, protected_by
from cantrip_acp.files.quarantine import Before, Quarantine, Quarantined, Running, lines
from cantrip_acp.sandbox.launch.process_tree import sandbox_error
from cantrip_acp.sandbox.policy.git_repositories import why_harmful
from cantrip_acp.sandbox.policy.protected import Survey

_SHARE = 20
"""A look that takes a second is followed by this many seconds without one."""
_MOST_TIMES = 3
"""A command that makes a name again so often is stopped, and one that makes more than `_MOST` names."""
_MOST = 1000
_SLOW = 0.005
_ROUNDS = 20
"""The most searches at the end. Each finds what the last one moved or opened."""


@dataclass(frozen=True, slots=True)
class Watched:
    """Where new names are looked for. ``roots``: the writable folders of the host. ``surveys``: searches that cover them.
    ``missing``: paths without a protected name that must not be made. ``copies``: the roots are private copies that nobody
    else opens, so what is moved away is not kept."""

    workspace: str
    roots: tuple[str, ...]
    surveys: tuple[Survey, ...]
    before: frozenset[str]
    shut: frozenset[str] = frozenset()
    missing: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()
    copies: bool = False
    recovered: list[Quarantined] = field(default_factory=list, compare=False)
    """What an interrupted command had made. The next command tells it."""


class NewNames:
    """The watch over one command, or over the cells of one worker. `begin` before it starts, and `end` after its end."""

    def __init__(self, watched: Watched, command: str) -> None:
        self._watched = watched
        self._command = command
        self._before = watched.before
        self._shut = watched.shut
        self._accepted: set[str] = set()
        """Names that were made and stayed. They are judged again after each cell."""
        self._suspected: dict[str, str] = {}
        """Repositories that looked harmful, and why. One that git is still writing may look so."""
        self._times: Counter[str] = Counter()
        self._running: Running | None = None
        self._roots: dict[str, int] = {}
        self._lock = threading.Lock()
        self._next = 0.0
        self._began = 0.0
        self._failed: dict[str, str] = {}
        self._quarantine = Quarantine(watched.workspace)
        self.moved: list[Quarantined] = []
        self.said: list[str] = []
        """What `end` returned last."""

    def begin(self) -> None:
        """Note durably what is there. Raises `SandboxError`: without that nothing may start."""
        watched = self._watched
        with self._lock:
            try:
                for root in watched.roots:
                    if root not in self._roots:
                        self._roots[root] = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
                if not watched.copies:
                    self._running = self._quarantine.begin(Before(watched.roots, self._before, watched.allowed))
            except OSError as error:
                self._close()
                raise sandbox_error("the protected names of the workspace cannot be noted", error) from error
            self.moved += watched.recovered
            watched.recovered.clear()
            self._began = time.time()

    def restart(self) -> None:
        """Begin again: what is there now was made by others, except for what stays of ours."""
        # What could not be moved is tried again.
        self._before = frozenset(
            name for name in self._names() - self._accepted if name.partition("\0")[0] not in self._failed
        )
        self._times.clear()
        self.moved, self.said = [], []
        self.begin()

    def exposed(self, mounted: Iterable[str]) -> bool:
        """Whether there is a protected name now that is in none of these paths, and that we did not leave there. Never in private
        copies, which nobody else opens."""
        if self._watched.copies:
            return False
        known = tuple(mounted)
        return any(not within_any(name.partition("\0")[0], known) for name in self._names() - self._accepted)

    def look(self) -> str | None:
        """Move away what is new. Returns why the command must be stopped, or None."""
        with self._lock:
            began = time.monotonic()
            if (self._running is None and not self._watched.copies) or began < self._next:
                return None
            self._move(last=False)
            self._next = time.monotonic() + _SHARE * (time.monotonic() - began)
            again = next((path for path, times in self._times.items() if times > _MOST_TIMES), None)
        if again is not None:
            return (
                f"it made {self._shown(again)} again and again, which was moved away each time: {self._reason(again)}"
            )
        if len(self.moved) > _MOST:
            return f"it made more than {_MOST:,} protected names"
        return None

    def end(self) -> list[str]:
        """Move away what is new, for the last time. Returns what to say about everything that was moved, as lines."""
        with self._lock:
            if not self._roots:
                return []
            for _ in range(_ROUNDS):
                if not self._move(last=True):
                    break
            left = {name for name in self._names() - self._before if name.partition("\0")[0] not in self._failed}
            self._accepted = left
            self._add_others()
            self._close()
            said = self.said = list(lines(self.moved))
            for path, why in self._failed.items():
                if os.path.lexists(path):
                    said.append(
                        f"cantrip: {path} could not be moved away ({why}); remove it before you open its folder\n"
                    )
            return said

    async def finish(self) -> list[str]:
        """`end`, in a thread if it takes long. A cancel waits for it."""
        if not self.moved and all(survey.seconds < _SLOW for survey in self._watched.surveys):
            return self.end()
        with anyio.CancelScope(shield=True):
            return await anyio.to_thread.run_sync(self.end)
        raise AssertionError

    def _close(self) -> None:
        if self._running is not None:
            self._running.close()
            self._running = None
        while self._roots:
            os.close(self._roots.popitem()[1])

    def _names(self) -> set[str]:
        found: set[str] = set()
        for survey in self._watched.surveys:
            found |= {
                name for name in survey.refresh().names if within_any(name.partition("\0")[0], self._watched.roots)
            }
        return found

    def _move(self, *, last: bool) -> bool:
        """Move what is new. Returns whether another search may find more."""
        self._open_folders()
        new = {name.partition("\0")[0] for name in self._names() - self._before}
        new |= {path for path in self._watched.missing if os.path.lexists(path)}
        self._suspected = {path: why for path, why in self._suspected.items() if path in new}
        moved = False
        for path in sorted(new):
            # What is in a moved folder was moved with it.
            if os.path.lexists(path) and self._is_harmful(path, last) and self._take(path):
                moved = True
        return moved

    def _is_harmful(self, path: str, last: bool) -> bool:
        if plain(os.path.basename(path)) != ".git" or path in self._watched.missing:
            return True
        why = why_harmful(path, writable=self._watched.roots)
        if why is None:
            self._suspected.pop(path, None)
            return False
        known = self._suspected.get(path)
        self._suspected[path] = why
        return last or known == why

    def _take(self, path: str) -> bool:
        root = max((each for each in self._roots if within_any(path, (each,))), key=len, default=None)
        if root is None:
            return False
        try:
            if not self._watched.copies and self._quarantine.is_kept(self._roots[root], root, path):
                return False
            moved = self._quarantine.take(self._roots[root], root, path, self._reason(path), self._command)
        except OSError as error:
            self._failed[path] = error.strerror or str(error)
            return False
        if moved is None:
            return False
        self._failed.pop(path, None)
        self._times[path] += 1
        self.moved.append(moved)
        if self._watched.copies:
            self._quarantine.drop(moved.id)
        return True

    def _reason(self, path: str) -> str:
        if (why := self._suspected.get(path)) is not None:
            return f"git of the user could run what it names: {why}"
        if (named := guarded.why_named(path)) is not None:
            return named
        *_, folder, name = ["", *map(plain, path.split("/"))]
        row = protected_by(name, folder)
        return row.reason if row is not None else "its path is too long to be searched"

    def _shown(self, path: str) -> str:
        return os.path.relpath(path, self._watched.workspace) if within_any(path, (self._watched.workspace,)) else path

    def _open_folders(self) -> None:
        """Make new folders readable that the command has closed: what is in them could be opened again."""
        for _ in range(_ROUNDS):
            shut = {path for survey in self._watched.surveys for path in survey.refresh().shut} - self._shut
            shut = {path for path in shut if within_any(path, self._watched.roots)}
            if not shut:
                return
            for path in shut:
                root = max((each for each in self._roots if within_any(path, (each,))), key=len, default=None)
                if root is not None:
                    with suppress(OSError):
                        _make_readable(self._roots[root], os.path.relpath(path, root))

    def _add_others(self) -> None:
        """Add what another session's watch moved while this command ran: it may be of this command."""
        known = {each.id for each in self.moved}
        with suppress(OSError):
            for each in self._quarantine.entries(self._began) if not self._watched.copies else ():
                if each.id not in known and within_any(each.path, self._watched.roots):
                    self.moved.append(each)


def recover(workspace: str) -> list[Quarantined]:
    """Move away what commands made in a workspace whose process was killed before it could look. Raises `SandboxError`."""
    quarantine = Quarantine(workspace)
    found: list[Quarantined] = []
    for name, before in quarantine.interrupted():
        roots = tuple(root for root in before.roots if os.path.isdir(root)) if before is not None else ()
        if before is not None and roots:
            surveys = tuple(Survey(root, frozenset(before.allowed)) for root in roots)
            names = NewNames(Watched(workspace, roots, surveys, before.names), "")
            names.begin()
            names.end()
            found += names.moved
        quarantine.forget(name)
    return found


def _make_readable(root: int, below: str) -> None:
    with ExitStack() as stack:
        fd = root
        for part in below.split("/"):
            fd = os.open(part, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
            stack.callback(os.close, fd)
        mode = stat.S_IMODE(os.fstat(fd).st_mode)
        os.chmod(f"/proc/self/fd/{fd}", mode | 0o700)


__all__ = ["NewNames", "Watched", "recover"]
