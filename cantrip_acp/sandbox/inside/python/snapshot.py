"""Makes snapshots: pickles the whole namespace at once, so that shared objects stay shared. A new worker loads it.

The globals of functions are the namespace of the worker, before and after loading. Names that cannot be pickled are
reported and never dropped silently. Such a pickle is only loaded inside a sandbox.
"""

from __future__ import annotations

import _functools  # type: ignore[import-not-found]
import builtins
import gc
import os
import sys

from . import cloudpickle
from .snapshot_check import check_state
from .snapshot_load import WHY, cached, fixed, imported, in_private_folder, live, set_worker, temporary

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .snapshot_load import WorkerState

globals()["__builtins__"] = dict(vars(builtins))

PIECE = 1 << 20
"""The maximum number of bytes of the pickle in one frame."""


class _Live:
    """Replaces the namespace, which is not pickled."""

    def __reduce__(self) -> Any:
        return live, ()


def _view(owner: Any, shape: Any, dtype: Any, offset: int, strides: Any) -> Any:
    """Make an array that uses the memory of another array."""
    return sys.modules["numpy"].ndarray(shape, dtype, owner, offset, strides)


def _view_reduction(array: Any, numpy: Any) -> Any:
    """How to restore an array that is a view of the memory of another array; None for any other array."""
    owner = array.base
    if type(owner) is not numpy.ndarray or owner.base is not None or not owner.flags.c_contiguous:
        return None
    if array.dtype.hasobject or owner.dtype.hasobject or not (array.flags.writeable and owner.flags.writeable):
        return None
    offset = array.__array_interface__["data"][0] - owner.__array_interface__["data"][0]
    return _view, (owner, array.shape, array.dtype, offset, array.strides)


_MODULE = type(sys)
_CODE = type(_view.__code__)
_NO_FILE = "<dynamic-code>"
"""The placeholder of cloudpickle 3.1.3 and later for the name of a code's file."""
_CACHE = _functools._lru_cache_wrapper


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    def __init__(self, file: Any, worker: WorkerState) -> None:
        super().__init__(file, protocol=5)
        self._scope = worker.scope
        # If numpy was not imported, there are no arrays.
        self._numpy = sys.modules.get("numpy")
        self._array = getattr(self._numpy, "ndarray", None)
        self._fixed = {id(value): name for name, value in worker.fixed.items() if not isinstance(value, type)}

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is _MODULE:
            make, args = self.dispatch_table[_MODULE](obj)[:2]
            # This is the most common case. Without it, loading would have to import cloudpickle.
            return (imported, args) if make is cloudpickle.subimport else NotImplemented
        if type(obj) is _CODE:
            # By the file's name, tracebacks and `inspect` find the lines of a cell.
            make, args = self.dispatch_table[_CODE](obj)[:2]
            return make, tuple(obj.co_filename if each == _NO_FILE else each for each in args)
        if type(obj) is _CACHE and obj.__module__ == "__main__":
            # Without this, it would be pickled as a name in ``__main__``, which is another module when it is loaded.
            how = obj.cache_parameters()
            return cached, (obj.__wrapped__, how["maxsize"], how["typed"])
        name = self._fixed.get(id(obj))
        if name is not None:
            return fixed, (name,)
        if type(obj) is self._array and obj.base is not None:
            reduced = _view_reduction(obj, self._numpy)
            if reduced is not None:
                return reduced
        return super().reducer_override(obj)

    def _function_getnewargs(self, func: Any) -> Any:
        args = super()._function_getnewargs(func)
        return (args[0], _LIVE, *args[2:]) if func.__globals__ is self._scope else args

    def _dynamic_function_reduce(self, func: Any) -> Any:
        reduced = super()._dynamic_function_reduce(func)
        if func.__globals__ is self._scope:
            reduced[2][1]["__globals__"] = {}
        return reduced


_LIVE = _Live()


class _Unframed:
    """Collects the output of a pickler without its frames.

    A new frame begins about every 64 KB. So one more byte at the beginning would change the whole output. A pickle
    does not need frames.
    """

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def write(self, data: Any) -> int:
        piece = bytes(data)
        if not self._is_payload(piece):
            start = 2 if piece[:1] == b"\x80" else 0
            if piece[start : start + 1] == b"\x95":
                size = int.from_bytes(piece[start + 1 : start + 9], "little")
                if start + 9 + size == len(piece):
                    piece = piece[:start] + piece[start + 9 :]
        self._pieces.append(piece)
        return len(piece)

    def _is_payload(self, piece: bytes) -> bool:
        """Whether this piece is the content of a large object, which can contain any bytes.

        The header of such an object is the end of the piece before.
        """
        before = self._pieces[-1] if self._pieces else b""
        return any(
            before[-1 - width :][:1] in kinds and int.from_bytes(before[-width:], "little") == len(piece)
            for width, kinds in ((4, (b"B", b"X")), (8, (b"\x8e", b"\x8d", b"\x96")))
        )

    def whole(self) -> bytes:
        return b"".join(self._pieces)


def snapshot(worker: WorkerState, command: dict[str, Any]) -> None:
    """Fork a process that makes, checks and sends the snapshot of the current state. This process does not wait.

    Until the next command of the host, only the forked process writes to the host.
    """
    set_worker(worker)
    worker.wire.pause_writing()
    try:
        child = os.fork()
    except Exception as error:  # noqa: BLE001 - a cell may have replaced os.fork
        worker.wire.resume_writing()
        worker.wire.send(
            {
                "t": "state",
                "error": f"no process can be started to make the snapshot: {type(error).__name__}: {error}"[:WHY],
                "size": 0,
            }
        )
        return
    if child:
        worker.snapshot_pid = child
        return
    try:
        sys.settrace(None)
        # A garbage collection would write to every memory page of the state, and the kernel would have to copy the page.
        gc.disable()
        worker.wire.become_writer()
        worker.wire.send({"t": "began"})
        nowhere = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(nowhere, fd)
        _send(worker)
    finally:
        os._exit(0)


def _send(worker: WorkerState) -> None:
    """Send the pickle in pieces, and then its description."""
    try:
        bindings = {
            name: value
            for name, value in worker.scope.items()
            if type(name) is str and name != "__builtins__" and worker.fixed.get(name, worker) is not value
        }
        state = {"scope": bindings, "sources": worker.cells.sources.all(), "path": list(sys.path), "folder": _folder()}
        nameless = [[repr(name)[:200], "its name is not text"] for name in worker.scope if type(name) is not str]
        data, missing = check_state(worker, state, lambda what: _pickled(what, worker))
        modules = sorted({name.partition(".")[0] for name in sys.modules.keys() - worker.modules})
    except BaseException as error:  # noqa: BLE001
        worker.wire.send({"t": "state", "error": f"{type(error).__name__}: {error}"[:WHY], "size": 0})
        return
    for start in range(0, len(data), PIECE):
        worker.wire.send_bytes(data[start : start + PIECE])
    worker.wire.send(
        {
            "t": "state",
            "error": None,
            "size": len(data),
            "names": [n[:200] for n in bindings if n[:2] != "__"][:2000],
            "missing": [*nameless, *missing][:200],
            "modules": [m for m in modules if not m.startswith("_")][:500],
        }
    )


def _pickled(what: Any, worker: WorkerState) -> bytes:
    _by_value()
    file = _Unframed()
    _Pickler(file, worker).dump(what)
    return file.whole()


def _folder() -> str:
    try:
        return os.getcwd()
    except OSError:
        return "/tmp"


def _by_value() -> None:
    """Pickle modules in private folders with their content, because the next worker does not have their files."""
    devices = temporary()
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and in_private_folder(file, devices):
            cloudpickle.register_pickle_by_value(module)


_live, _fixed = live, fixed
"""Names that snapshots in older looms use."""
