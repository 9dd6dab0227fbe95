"""Server: shares one sandboxed process of a model between all sessions of the user, over a Unix socket.

The process starts with the first query and stops when it was idle for some time. A session holds a shared lock on the file
``used`` during a query. The process stops only while it holds that lock alone, so no query meets a server that is stopping.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import anyio

from cantrip_acp.files import paths
from cantrip_acp.types.errors import CrystalError

IDLE_S = 600.0
"""Seconds without a query after which the process stops."""
_START_S = 300.0
"""The most seconds until large weights are loaded."""
_PROGRAM = "cantrip_acp.crystals.embedded.server_process"


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """The settings with which a model's process starts. ``window`` is in tokens of each of ``parallel`` queries.

    ``gpu_layers`` is the number of layers that an accelerator computes; 0 for none, -1 for all.
    """

    weights: str
    window: int
    threads: int
    gpu_layers: int = 0
    parallel: int = 2
    idle_s: float = IDLE_S

    @property
    def folder(self) -> Path:
        """The folder of the model server's socket. Sessions with equal settings and weights share it."""
        status = os.stat(self.weights)
        parts = [*asdict(self).values(), status.st_size, status.st_mtime_ns, str(paths.state_dir())]
        return _runtime_folder() / hashlib.blake2b(json.dumps(parts).encode(), digest_size=8).hexdigest()


class ModelServer:
    """The process of one model, as a session uses it."""

    def __init__(self, settings: ServerSettings, who: str) -> None:
        self.settings = settings
        self._who = who
        self._folder = Path(os.path.realpath(settings.folder))
        self.socket = str(self._folder / "model.sock")

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Start the process if it does not run, and keep it running in this block. Blocks. Raises `CrystalError`."""
        try:
            paths.private(self._folder)
            used = os.open(self._folder / "used", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise CrystalError(f"{self._who}: cannot use {self._folder}: {error.strerror}") from None
        try:
            fcntl.flock(used, fcntl.LOCK_SH)
            if not self._answers():
                self._start()
            os.utime(used)
            yield
        finally:
            os.utime(used)
            os.close(used)

    @asynccontextmanager
    async def ready(self) -> AsyncIterator[None]:
        """`in_use` without blocking. A cancel takes effect at once; the process then continues to start, for the next query."""
        using, loop, over, lock = self.in_use(), asyncio.get_running_loop(), anyio.Event(), threading.Lock()
        left = entered = False
        error: BaseException | None = None

        def enter() -> None:
            nonlocal entered, error
            try:
                using.__enter__()
            except BaseException as caught:  # noqa: BLE001 - raised again below
                error = caught
            else:
                with lock:
                    entered = not left
                if not entered:
                    using.__exit__(None, None, None)
            with suppress(RuntimeError):  # The loop has ended.
                loop.call_soon_threadsafe(over.set)

        # A thread of anyio would let the whole program wait for it at its end.
        threading.Thread(target=enter, name=f"start {self._who}", daemon=True).start()
        try:
            await over.wait()
            if error is not None:
                raise error
            yield
        finally:
            with lock:
                left = True
            if entered:
                using.__exit__(None, None, None)

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as connection:
            try:
                connection.connect(self.socket)
            except OSError:
                return False
        return True

    def _start(self) -> None:
        with open(self._folder / "starting", "w") as lock:
            # Of several sessions, one starts it.
            fcntl.flock(lock, fcntl.LOCK_EX)
            if self._answers():
                return
            with open(self._folder / "log", "wb") as log:
                process = subprocess.Popen(
                    [sys.executable, "-m", _PROGRAM, json.dumps({**asdict(self.settings), "socket": self.socket})],
                    stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, start_new_session=True, cwd="/",
                )  # fmt: skip
            # It outlives this session. Until then, its exit status has to be read.
            threading.Thread(target=process.wait, daemon=True).start()
            assert process.stdout is not None
            killer = threading.Timer(_START_S, process.kill)
            killer.start()
            with process.stdout as told:
                line = told.readline()
            killer.cancel()
        if line.strip() != b"ready":
            why = line.decode("utf-8", "replace").strip() or f"its process ended; see {self._folder / 'log'}"
            raise CrystalError(f"{self._who}: the model did not start: {why}", retryable=False)


def _runtime_folder() -> Path:
    """A folder of this user for sockets. Its path is short, because a Unix socket's path has at most 107 bytes."""
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isdir(base) and len(base) < 60:
        return paths.private(Path(base) / "cantrip-models")
    folder = Path(tempfile.gettempdir()) / f"cantrip-models-{os.getuid()}"
    if len(str(folder)) > 75:
        folder = Path("/tmp") / folder.name
    paths.private(folder)
    status = os.lstat(folder)
    if not os.path.isdir(folder) or os.path.islink(folder) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise CrystalError(
            f"{folder} belongs to somebody else, or others may read it; remove it, or set XDG_RUNTIME_DIR"
        )
    return folder
