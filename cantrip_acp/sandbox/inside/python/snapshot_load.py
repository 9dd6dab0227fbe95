"""Loads a snapshot in a worker, and resolves what its pickle refers to there.

Separate from `snapshot`, which makes snapshots: loading must not wait for the imports that only making needs.
"""

from __future__ import annotations

import _pickle as pickle  # as pickle.loads, without the import of what nothing here needs
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
        """What a snapshot needs of the worker."""

        wire: Wire
        interrupts: Interrupts
        cells: Cells
        scope: dict[str, Any]
        fixed: dict[str, Any]
        modules: frozenset[str]
        snapshot_pid: int | None


globals()["__builtins__"] = dict(vars(builtins))

WHY = 300
_worker: WorkerState | None = None


class _SnapshotUnderFormerName(type(sys)):  # type: ignore[misc]
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(imported(f"{__package__}.snapshot"), name)


def register_former_names() -> None:
    """Let snapshots of earlier versions refer to this module and to `snapshot` by their former names.

    Not done at import: another process that imports this module cannot import `snapshot`.
    """
    sys.modules.setdefault(f"{__package__}.opened", sys.modules[__name__])
    sys.modules.setdefault(f"{__package__}.state", _SnapshotUnderFormerName(f"{__package__}.state"))
    sys.modules.setdefault(f"{__package__}.loom", sys.modules[f"{__package__}.gates"])


def set_worker(worker: WorkerState) -> None:
    """Set the worker that the functions below use."""
    global _worker
    _worker = worker
    register_former_names()


def live() -> dict[str, Any]:
    assert _worker is not None
    return _worker.scope


def imported(name: str) -> Any:
    """A module by its full name."""
    __import__(name)
    return sys.modules[name]


def cached(function: Any, maxsize: int | None, typed: bool) -> Any:
    """A function with an empty cache (``functools.lru_cache``)."""
    import functools

    return functools.lru_cache(maxsize, typed)(function)


def fixed(name: str) -> Any:
    """A gate or the loom of the worker that loads the snapshot."""
    assert _worker is not None
    return _worker.fixed[name] if name in _worker.fixed else _absent(name)


def _absent(name: str) -> Any:
    """A replacement for a gate that existed where the snapshot was made, but does not exist now."""

    def function(*args: Any, **named: Any) -> Any:
        raise GateError(f"gate not available: {name!r} was loaded in another life of this state; load its module again")

    function.__name__ = function.__qualname__ = name
    return function


_TEMPORARY = ("/tmp", "/dev/shm", "~")
"""Folders that are private to a worker; each is a separate file system."""
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
    """The file systems (device numbers) of those folders. Names are not enough: a virtual environment may be below
    /tmp."""
    return {found for folder in _TEMPORARY if (found := device(os.path.expanduser(folder))) is not None}


def device(path: Any) -> int | None:
    try:
        return os.stat(path).st_dev
    except (OSError, ValueError, TypeError):
        return None


def load_pickle(data: bytes) -> Any:
    """Load a pickle. Meanwhile no file that outlives the worker can be changed, and no process can be started."""
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
"""With a number an `OSError` keeps its text also where the caller adds the file's name, as `shutil.rmtree` does."""


def _audit(event: str, args: tuple[Any, ...]) -> None:
    if not _opening:
        return
    if event == "open":
        if isinstance(args[2], int) and args[2] & _WRITES and not _private(args[0]):
            raise PermissionError(_EPERM, f"a snapshot that is opened may not write files ({event})")
    elif event in _ACTS:
        if not _private(args[0]) or (event in ("os.rename", "os.link") and not _private(args[1])):
            raise PermissionError(_EPERM, f"a snapshot that is opened may not change files ({event})")
    elif event in _STARTS:
        raise PermissionError(_EPERM, f"a snapshot that is opened may not start processes ({event})")


def _private(path: Any) -> bool:
    """Whether a path is in a file system that disappears with this worker, or is a device."""
    try:
        folder = os.path.realpath(os.path.dirname(os.path.abspath(os.fsdecode(path))))
    except (TypeError, ValueError):
        # A descriptor: its file is unknown.
        return False
    target = device(path)
    return folder == "/dev" or (device(folder) in temporary() and target in (None, *temporary()))


def restore(worker: WorkerState, command: dict[str, Any]) -> None:
    """Load the snapshot whose pieces came before this command, and continue from its state."""
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
    except BaseException as failure:  # noqa: BLE001 - the host must hear of it, whatever it is
        error = f"{type(failure).__name__}: {failure}"[:WHY]
    worker.interrupts.end()
    names = [n[:200] for n in worker.scope if not n.startswith("__") and n not in worker.fixed][:2000]
    worker.wire.send({"t": "state", "error": error, "size": len(data), "names": names, "missing": [], "modules": []})
