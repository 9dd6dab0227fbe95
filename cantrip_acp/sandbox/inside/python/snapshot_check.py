"""Snapshot check: pickles a state and loads it again in a temporary, forked process, to prove that it can be loaded.

After pickling, that process is changed into a new worker: a new ``__main__`` and namespace, no classes from earlier
loads, and no modules without a file. An object may raise, end the process or hang when it is pickled or loaded. That
happens in the temporary process, never in the worker.
"""

from __future__ import annotations

import builtins
import os
import select
import sys
import time

from .cloudpickle import cloudpickle  # type: ignore[import-not-found]
from .snapshot_load import WHY, load_pickle

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .snapshot_load import WorkerState

    Say = Callable[..., None]
    """Sends a message to the worker: a kind, and either bytes, or the number of a name and a text."""

globals()["__builtins__"] = dict(vars(builtins))

WHOLE = 10.0
"""The time limit in seconds to pickle a whole state, and the same to load it."""
NAME = 3.0
"""The time limit in seconds to pickle and load one name."""
ALL_NAMES = 30.0
"""The time limit in seconds to find all names that fail."""
_ROUNDS = 5
_KILL = 9
_PICKLE, _UNPICKLABLE, _DIFFERENT, _BEGUN, _FAILED, _DONE = b"d", b"p", b"o", b"b", b"!", b"."


def check_state(
    worker: WorkerState, state: dict[str, Any], dump: Callable[[Any], bytes]
) -> tuple[bytes, list[list[str]]]:
    """Pickle a state. Returns the pickle, and the names that cannot be restored as [name, reason].

    Those names are removed from the scope of the state. Raises RuntimeError if the state cannot be loaded and no name
    that fails was found.
    """
    bindings: dict[str, Any] = state["scope"]
    missing: list[list[str]] = []
    for _ in range(_ROUNDS):
        names = list(bindings)
        received, problem = _run_forked(worker, _check_whole(worker, state, dump), WHOLE)
        failing = {
            names[number]: why for kind, number, why in _name_messages(received) if kind in (_UNPICKLABLE, _DIFFERENT)
        }
        if problem is not None:
            rest = [name for name in names if name not in failing]
            found = _find_failing_names(worker, state, dump, rest)
            if not found and not failing:
                raise RuntimeError(f"the state cannot be loaded again: {problem}")
            failing |= found
        missing += [[name[:200], why] for name, why in failing.items()]
        for name in failing:
            del bindings[name]
        if problem is None and not any(kind == _DIFFERENT for kind, _ in received):
            return next(body for kind, body in received if kind == _PICKLE), missing
    raise RuntimeError("the rest of the state cannot be loaded again")


def _check_whole(worker: WorkerState, state: dict[str, Any], dump: Callable[[Any], bytes]) -> Callable[[Say], None]:
    """Make the function that pickles a state, loads it as a new worker, and compares the types of the values."""

    def work(say: Say) -> None:
        bindings: dict[str, Any] = state["scope"]
        names = list(bindings)
        data = _pickled(state, dump, say)
        say(_PICKLE, data)
        kinds = {number: _kind(bindings[name]) for number, name in enumerate(names) if name in bindings}
        _become_new_worker(worker)
        scope = load_pickle(data)["scope"]
        for number, kind in kinds.items():
            name = names[number]
            if name not in scope or _kind(scope[name]) != kind:
                say(_DIFFERENT, number, _difference_text(scope.get(name), kind))

    return work


def _pickled(state: dict[str, Any], dump: Callable[[Any], bytes], say: Say) -> bytes:
    """The pickle of a state without the names that cannot be pickled."""
    try:
        return dump(state)
    except Exception:  # noqa: BLE001 - an object may raise anything when it is pickled
        bindings = state["scope"]
        for number, name in enumerate(list(bindings)):
            try:
                dump(bindings[name])
            except Exception as failure:  # noqa: BLE001
                say(_UNPICKLABLE, number, f"{type(failure).__name__}: {_one_line(failure)}")
                del bindings[name]
        return dump(state)


def _find_failing_names(
    worker: WorkerState, state: dict[str, Any], dump: Callable[[Any], bytes], names: list[str]
) -> dict[str, str]:
    """Find the names that cannot be restored, each with the reason."""
    bindings, end = state["scope"], time.monotonic() + ALL_NAMES

    def only_this_name(name: str) -> bytes:
        return dump({**state, "scope": {name: bindings[name]}})

    suspects = _test_each_name(worker, names, only_this_name, end)
    rest = {name: bindings[name] for name in names if name not in suspects}

    def with_good_names(name: str) -> bytes:
        # Pickle the name together with all good names, because it may refer to them.
        return dump({**state, "scope": {**rest, name: bindings[name]}})

    return _test_each_name(worker, list(suspects), with_good_names, end)


def _test_each_name(
    worker: WorkerState, names: list[str], dumped: Callable[[str], bytes], end: float
) -> dict[str, str]:
    """Find the names that cannot be restored, each with the reason.

    If a name ends the forked process or hangs, another process continues with the next name.
    """
    failing: dict[str, str] = {}
    first = 0
    while first < len(names) and time.monotonic() < end:

        def each(say: Say, start: int = first) -> None:
            own, main, there = worker.scope, sys.modules["__main__"], dict(sys.modules)
            for number in range(start, len(names)):
                worker.scope = own
                sys.modules.update(there)
                sys.modules["__main__"] = main
                say(_BEGUN, number, "")
                try:
                    data = dumped(names[number])
                    _become_new_worker(worker)
                    load_pickle(data)["scope"]
                except BaseException as failure:  # noqa: BLE001 - an object may raise anything
                    say(_DIFFERENT, number, f"{type(failure).__name__}: {_one_line(failure)}")

        received, stopped = _run_forked(worker, each, NAME)
        last = first
        for kind, number, why in _name_messages(received):
            last = number
            if kind == _DIFFERENT:
                failing[names[number]] = why
        if stopped is None:
            break
        failing.setdefault(names[last], f"when it is pickled and loaded again, {stopped}")
        first = last + 1
    return failing


def _name_messages(received: list[tuple[bytes, bytes]]) -> list[tuple[bytes, int, str]]:
    found = []
    for kind, body in received:
        if kind in (_UNPICKLABLE, _DIFFERENT, _BEGUN):
            number, _, text = body.decode("utf-8", "replace").partition(" ")
            found.append((kind, int(number), text[:WHY]))
    return found


def _kind(value: Any) -> tuple[str, str]:
    kind = type(value)
    return str(kind.__module__), str(kind.__qualname__)


def _difference_text(value: Any, kind: tuple[str, str]) -> str:
    return f"it would be restored as {type(value).__qualname__}, but it is {kind[1]}"


def _one_line(failure: BaseException) -> str:
    try:
        return " ".join(str(failure).split())[:WHY]
    except BaseException:  # noqa: BLE001 - the entity's code may fail too
        return "it has no text"


def _become_new_worker(worker: WorkerState) -> None:
    """Change this process into a worker that has not run any cell."""
    for name in _without_file(worker):
        sys.modules.pop(name, None)
    main = type(sys)("__main__")
    worker.scope = vars(main)
    worker.scope.update({"__builtins__": builtins, **worker.fixed})
    sys.modules["__main__"] = main
    for tracker in ("_DYNAMIC_CLASS_TRACKER_BY_CLASS", "_DYNAMIC_CLASS_TRACKER_BY_ID"):
        found = getattr(cloudpickle, tracker, None)
        if found is not None:
            found.clear()


def _without_file(worker: WorkerState) -> list[str]:
    """The names of modules that were created in this worker. A new worker does not have them."""
    found = []
    for name, module in list(sys.modules.items()):
        if name in worker.modules or name == "__main__":
            continue
        origin = getattr(getattr(module, "__spec__", None), "origin", None)
        file = getattr(module, "__file__", None)
        there = file if isinstance(file, str) else origin
        if not isinstance(there, str) or (there not in ("built-in", "frozen") and not os.path.exists(there)):
            found.append(name)
    return found


def _run_forked(
    worker: WorkerState, work: Callable[[Say], None], silence: float
) -> tuple[list[tuple[bytes, bytes]], str | None]:
    """Run ``work`` in a forked process. Returns its messages, and the reason if it did not finish, else None.

    ``silence``: the maximum time in seconds between two messages.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        status = 3
        try:
            os.close(reading)
            worker.wire.shut()

            def say(kind: bytes, what: Any, text: str = "") -> None:
                body = what if isinstance(what, bytes) else f"{what} {text}".encode("utf-8", "replace")
                for part in (kind + len(body).to_bytes(8, "big"), body):
                    data = memoryview(part)
                    while data:
                        data = data[os.write(writing, data[: 1 << 20]) :]

            try:
                work(say)
                say(_DONE, b"")
                status = 0
            except BaseException as failure:  # noqa: BLE001
                say(_FAILED, f"{type(failure).__name__}: {_one_line(failure)}".encode("utf-8", "replace"))
        finally:
            os._exit(status)
    os.close(writing)
    why: str | None = None
    try:
        text, why = _read_messages(reading, child, silence)
    finally:
        os.close(reading)
        if why is not None:
            os.kill(child, _KILL)
        _, status = os.waitpid(child, 0)
    received, at, rest = [], 0, memoryview(text)
    while len(text) - at >= 9:
        size = int.from_bytes(rest[at + 1 : at + 9], "big")
        if len(text) - at < 9 + size:
            # The process ended in the middle of a message.
            break
        received.append((bytes(rest[at : at + 1]), bytes(rest[at + 9 : at + 9 + size])))
        at += 9 + size
    failed = [body.decode("utf-8", "replace") for kind, body in received if kind == _FAILED]
    if why is None and not failed and (status or at < len(text) or not received or received[-1][0] != _DONE):
        why = "its process ends"
    return received, why or (failed[0] if failed else None)


def _read_messages(reading: int, child: int, silence: float) -> tuple[bytearray, str | None]:
    """Read until the forked process ends, also if a process that it started keeps the pipe open."""
    text = bytearray()
    ended = os.pidfd_open(child)
    try:
        poll = select.poll()
        poll.register(reading, select.POLLIN | select.POLLHUP)
        poll.register(ended, select.POLLIN)
        while True:
            ready = dict(poll.poll(silence * 1000))
            if not ready:
                return text, f"it does not end within {silence:g} s"
            if ended in ready:
                os.set_blocking(reading, False)
            while True:
                try:
                    piece = os.read(reading, 1 << 20)
                except BlockingIOError:
                    return text, None
                if not piece:
                    return text, None
                text += piece
                if ended not in ready:
                    break
    finally:
        os.close(ended)
