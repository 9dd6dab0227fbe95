"""Loads a snapshot in a worker, and resolves the references in its pickle.

This is separate from `snapshot`, which makes snapshots, so that loading does not wait for imports that only making needs.
"""

from __future__ import annotations

import _pickle as pickle  # the C part of pickle, because importing all of pickle is slow
import builtins
import os
import sys

from .gates import GateError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Protocol

    from .cells import Cells
    from .interrupts import Interrupts
    from .wire import Wire

    class WorkerState(Protocol):
        """The attributes of a worker that a snapshot needs."""

        wire: Wire
        interrupts: Interrupts
        cells: Cells
        scope: dict[str, Any]
        fixed: dict[str, Any]
        modules: frozenset[str]
        snapshot_pid: int | None
        private: list[str]


globals()["__builtins__"] = dict(vars(builtins))

WHY = 300
_worker: WorkerState | None = None


class _SnapshotUnderFormerName(type(sys)):  # type: ignore[misc]
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(imported(f"{__package__}.snapshot"), name)


def register_former_names() -> None:
    """Let snapshots of earlier versions refer to modules by their former names.

    This is not done at import, because another process that imports this module cannot import `snapshot`.
    """
    sys.modules.setdefault(f"{__package__}.opened", sys.modules[__name__])
    sys.modules.setdefault(f"{__package__}.state", _SnapshotUnderFormerName(f"{__package__}.state"))
    sys.modules.setdefault(f"{__package__}.loom", sys.modules[f"{__package__}.gates"])


def set_worker(worker: WorkerState) -> None:
    """Set the worker that the functions of this module use."""
    global _worker
    _worker = worker
    register_former_names()


def live() -> dict[str, Any]:
    """The namespace of the worker that loads the snapshot."""
    assert _worker is not None
    return _worker.scope


def imported(name: str) -> Any:
    """Import a module by its full name."""
    __import__(name)
    return sys.modules[name]


def cached(function: Any, maxsize: int | None, typed: bool) -> Any:
    """Make a function with an empty cache (``functools.lru_cache``)."""
    import functools

    return functools.lru_cache(maxsize, typed)(function)


def fixed(name: str) -> Any:
    """A gate or the loom of the worker that loads the snapshot."""
    assert _worker is not None
    return _worker.fixed[name] if name in _worker.fixed else _absent(name)


def _absent(name: str) -> Any:
    """A replacement for a gate that existed when the snapshot was made, but does not exist now."""

    def function(*args: Any, **named: Any) -> Any:
        raise GateError(
            f"gate not available: {name!r} was loaded before this state was restored; load its module again"
        )

    function.__name__ = function.__qualname__ = name
    return function


_TEMPORARY = ("/tmp", "/dev/shm", "~")
"""Folders that are private to a worker on Linux. Each is a separate file system."""
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_ACTS = frozenset({
    "os.chflags", "os.chmod", "os.chown", "os.link", "os.mkdir", "os.remove", "os.removexattr", "os.rename", "os.rmdir",
    "os.setxattr", "os.symlink", "os.truncate", "os.utime",
})  # fmt: skip
_STARTS = frozenset(
    {"os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "pty.spawn", "subprocess.Popen"}
)
_opening = False
_guarded = False


def temporary() -> set[int]:
    """The device numbers of the private file systems.

    Folder names are not enough, because a virtual environment of the host may be mounted below /tmp.
    """
    return {found for folder in _TEMPORARY if (found := device(os.path.expanduser(folder))) is not None}


def device(path: Any) -> int | None:
    try:
        return os.stat(path).st_dev
    except (OSError, ValueError, TypeError):
        return None


def in_private_folder(path: Any, devices: set[int]) -> bool:
    """Whether a path leads to a file in a private folder. ``devices``: the result of `temporary`.

    On macOS private folders are no file systems, so the host names them.
    """
    if _worker is not None and _worker.private:
        real = os.path.realpath(path)
        return any(real == folder or real.startswith(f"{folder}/") for folder in _worker.private)
    return device(path) in devices


def load_pickle(data: bytes) -> Any:
    """Load a pickle. While it is loaded, no process can be started, and only private files can be changed."""
    global _opening, _guarded
    if not _guarded:
        # An audit hook cannot be removed.
        sys.addaudithook(_audit)
        _guarded = True
    _opening = True
    try:
        return pickle.loads(data)
    finally:
        _opening = False


_EPERM = 1
"""With an error number, an `OSError` keeps its text also if the caller adds a file name, as `shutil.rmtree` does."""


def _audit(event: str, args: tuple[Any, ...]) -> None:
    if not _opening:
        return
    if event == "open":
        if isinstance(args[2], int) and args[2] & _WRITES and not _private(args[0]):
            raise PermissionError(_EPERM, f"a snapshot may not write files while it is loaded ({event})")
    elif event in _ACTS:
        if not _private(args[0]) or (event in ("os.rename", "os.link") and not _private(args[1])):
            raise PermissionError(_EPERM, f"a snapshot may not change files while it is loaded ({event})")
    elif event in _STARTS:
        raise PermissionError(_EPERM, f"a snapshot may not start processes while it is loaded ({event})")


def _private(path: Any) -> bool:
    """Whether a path is in a private file system of this worker, or in /dev."""
    try:
        folder = os.path.realpath(os.path.dirname(os.path.abspath(os.fsdecode(path))))
    except (TypeError, ValueError):
        # The path is a descriptor, and its file is unknown.
        return False
    devices = temporary()
    return folder == "/dev" or (
        in_private_folder(folder, devices) and (not os.path.lexists(path) or in_private_folder(path, devices))
    )


def restore(worker: WorkerState, command: dict[str, Any]) -> None:
    """Load the snapshot whose pieces came before this command, and continue with its state."""
    set_worker(worker)
    data = b"".join(worker.wire.blobs)
    worker.wire.blobs.clear()
    worker.interrupts.begin()
    try:
        worker.interrupts.running = True
        try:
            state = load_pickle(data)
            worker.scope.update(state["scope"])
            worker.scope["__builtins__"] = builtins
            for name, text in state["sources"].items():
                worker.cells.sources.add(name, text)
            sys.path[:] = state["path"]
            if os.path.isdir(state["folder"]):
                os.chdir(state["folder"])
        finally:
            worker.interrupts.running = False
        error = None
    except BaseException as failure:  # noqa: BLE001 - every error must be reported to the host
        error = f"{type(failure).__name__}: {failure}"[:WHY]
    worker.interrupts.end()
    names = [n[:200] for n in worker.scope if not n.startswith("__") and n not in worker.fixed][:2000]
    worker.wire.send({"t": "state", "error": error, "size": len(data), "names": names, "missing": [], "modules": []})
