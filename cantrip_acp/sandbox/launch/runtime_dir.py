"""What one process keeps for its sandboxes: a runtime folder, and a sentinel that ends everything should we be killed.

The folder holds what sandboxes see read-only (the prepared /etc, the note in hidden files' place, the gates' wiring). It is
made when the first command runs and removed at exit; the sentinel, a shell that waits for our end of a pipe to close,
removes it after a kill -9, ends the sandboxes that still ran, and takes away stand-ins for protected names.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import select
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Mapping
from importlib.resources import files

from cantrip_acp.core.errors import SandboxError
from cantrip_acp.files.paths import state_dir
from cantrip_acp.sandbox.launch.bubblewrap import Places
from cantrip_acp.sandbox.policy import etc_files
from cantrip_acp.sandbox.policy.host import Host
from cantrip_acp.sandbox.policy.placeholders import Pool
from cantrip_acp.sandbox.policy.protected import NEVER_MADE

_LET_GO = 'exec 3<&0; /bin/sh -c "$0" "$@" <&3 3<&- &'
"""Starts a shell with our standard input and ends; without the detour, a shell's background processes have none."""

NOTE = "# This file is hidden inside the sandbox: it may hold secrets.\n"


class Runtime:
    """One process's runtime folder and sentinel. Get it with `runtime`. Every thread of the process may use it."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        self.owner = os.getpid()
        self._lock = threading.RLock()
        self.folder = tempfile.mkdtemp(prefix="cantrip-", dir=base_folder(os.environ if environ is None else environ))
        self._places: dict[tuple[str, bool], Places] = {}
        self._count = 0
        note = os.path.join(self.folder, "note")
        with open(note, "w", encoding="utf-8") as file:
            file.write(NOTE)
        os.chmod(note, 0o444)
        self._note = note
        self._pools: dict[int, Pool | None] = {}
        self._groups = ""
        self._sentinel = self._sentinel_lives = -1
        script = files("cantrip_acp.sandbox.inside").joinpath("sentinel.sh").read_text("utf-8")
        ends: list[int] = []
        try:
            ends += os.pipe()
            ends += os.pipe()
            reader, self._sentinel, self._sentinel_lives, writer = ends
            # Let go of at once, so that it is nobody's child: whoever looks for processes that a turn left behind under
            # this one finds none, and an owner that replaces itself has nothing to reap.
            subprocess.run(
                ["/bin/sh", "-c", _LET_GO, script, "cantrip-sentinel", self.folder, *NEVER_MADE],
                stdin=reader,
                stdout=writer,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={"PATH": "/usr/bin:/bin"},
                start_new_session=True,
                check=True,
            )
        except BaseException:
            for end in ends:
                os.close(end)
            shutil.rmtree(self.folder, ignore_errors=True)
            raise
        os.close(reader)
        os.close(writer)
        atexit.register(self.close)

    @property
    def token(self) -> str:
        """The name under which this process's sandboxes run, so that the sentinel can tell them."""
        return os.path.basename(self.folder)

    def places(self, host: Host, home: str, *, network: bool) -> Places:
        """The prepared folders for a policy's arguments; made once for each home and network."""
        key = (home, network)
        with self._lock:
            found = self._places.get(key)
            if found is None:
                folder = self.make_folder("etc")
                os.chmod(folder, 0o755)
                etc_files.prepare(
                    folder, user=host.user, uid=host.uid, gid=host.gid, home=home, shell=host.shell, network=network
                )
                found = self._places[key] = Places(etc=folder, note=self._note)
            return found

    def keep(self, text: str) -> str:
        """A file of our own with this text; the same text is the same file."""
        name = hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
        path = os.path.join(self.folder, name)
        with self._lock:
            if not os.path.exists(path):
                with open(f"{path}.new", "w", encoding="utf-8", errors="surrogateescape") as file:
                    file.write(text)
                os.rename(f"{path}.new", path)
        return path

    def make_folder(self, kind: str) -> str:
        """A new folder of our own."""
        with self._lock:
            self._count += 1
            path = os.path.join(self.folder, f"{kind}{self._count}")
        os.mkdir(path, 0o700)
        return path

    def group_name(self, parent: str) -> str:
        """A new name for a control group below ``parent``, which the sentinel knows as ours."""
        with self._lock:
            if self._groups != parent:
                self._groups = parent
                self._tell(f"%{parent}")
            self._count += 1
            return f"{self.token}-{self._count}"

    def pool(self, folder: str) -> Pool | None:
        """Where stand-ins for a folder wait: some place of ours on its file system, if there is one."""
        device = os.stat(folder).st_dev
        with self._lock:
            if device not in self._pools:
                self._pools[device] = self._make_pool(device)
            return self._pools[device]

    def _make_pool(self, device: int) -> Pool | None:
        for base in (str(state_dir()), tempfile.gettempdir(), self.folder):
            try:
                nearest = base
                while not os.path.isdir(nearest):
                    nearest = os.path.dirname(nearest)
                if os.stat(nearest).st_dev == device:
                    os.makedirs(base, mode=0o700, exist_ok=True)
                    made = tempfile.mkdtemp(prefix="cantrip-standins-", dir=base)
                    self._tell(f"!{made}")
                    return Pool(made)
            except OSError:
                # Without a pool making stand-ins is slower, and that is all.
                continue
        return None

    def holds(self, folder: str) -> None:
        """Stand-ins are being made in this folder."""
        self._tell(f"~{folder}")

    def released(self, folder: str) -> None:
        self._tell(f"={folder}")

    def _tell(self, line: str) -> None:
        # Short lines, and a reader that only reads: this does not block in practice. A sentinel that somebody killed
        # costs us only its protection.
        try:
            os.write(self._sentinel, line.encode("utf-8", "surrogateescape") + b"\n")
        except BrokenPipeError:
            return

    def close(self) -> None:
        """Remove the folder and let the sentinel go. Called at exit."""
        if os.getpid() != self.owner or self._sentinel < 0:
            return
        for pool in filter(None, self._pools.values()):
            pool.close()
            shutil.rmtree(pool.folder, ignore_errors=True)
        shutil.rmtree(self.folder, ignore_errors=True)
        self._tell(".")
        os.close(self._sentinel)
        self._sentinel = -1
        # It holds the other end of this pipe and writes nothing: the end of file is its end.
        select.select([self._sentinel_lives], [], [], 2)
        os.close(self._sentinel_lives)


_current: Runtime | None = None
_making = threading.Lock()


def runtime() -> Runtime:
    """This process's runtime, the same one for all of its threads; a forked child makes its own."""
    global _current
    with _making:
        if (
            _current is None
            or _current.owner != os.getpid()
            or _current._sentinel < 0
            or not os.path.isdir(_current.folder)
        ):
            _current = Runtime()
        return _current


def _in_child() -> None:
    """A fork copies the lock as it is, and who holds it may be a thread that the child does not have."""
    global _making
    _making = threading.Lock()


os.register_at_fork(after_in_child=_in_child)


def base_folder(environ: Mapping[str, str]) -> str:
    """A folder of this machine where programs may be run from: the gates' commands are mounted from there.

    One in memory where there is one: a thousand small links take half a second on some disks.
    """
    for folder in (environ.get("XDG_RUNTIME_DIR"), "/dev/shm", tempfile.gettempdir(), "/var/tmp", environ.get("HOME")):
        if folder and os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK):
            if not os.statvfs(folder).f_flag & os.ST_NOEXEC:
                return folder
    raise SandboxError("no folder for the sandbox's runtime files allows programs: set TMPDIR to one that does")
