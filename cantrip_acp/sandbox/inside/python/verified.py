"""A snapshot is opened again before anybody relies on it: in a forked process, which is thrown away.

That process is made to look like a fresh worker: another ``__main__`` and namespace, no classes that were opened before, and no
modules that no file holds. What an object does when it is opened (raise, end the process, never return) happens there.
"""

from __future__ import annotations

import _pickle as pickle
import builtins
import gc
import os
import select
import sys
import time

from .cloudpickle import cloudpickle  # type: ignore[import-not-found]
from .opened import WHY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .worker import Worker

globals()["__builtins__"] = dict(vars(builtins))

WHOLE = 10.0
"""Seconds in which a whole state must open."""
NAME = 3.0
"""The same for one name."""
ALL_NAMES = 30.0
"""Seconds for finding out which names do not open."""
_KILL = 9


def unopened(worker: Worker, data: bytes, bindings: dict[str, Any], dump: Callable[[Any], bytes]) -> list[list[str]]:
    """The names that would not come back as they are, and why; none where all would.

    Raises RuntimeError where the whole cannot be opened, and nobody knows which name is to blame.
    """
    kinds = {name: _kind(value) for name, value in bindings.items()}
    modules = _without_file(worker)

    def whole(say: Callable[[str], None]) -> None:
        _fresh(worker, modules)
        scope = pickle.loads(data)["scope"]
        for number, name in enumerate(bindings):
            if name not in scope or _kind(scope[name]) != kinds[name]:
                say(f"{number} {_differs(scope.get(name), kinds[name])}")

    told, problem = _forked(whole, WHOLE)
    names = list(bindings)
    if problem is None:
        return [[names[int(line.partition(" ")[0])][:200], line.partition(" ")[2][:WHY]] for line in told]
    end = time.monotonic() + ALL_NAMES

    def alone(name: str) -> bytes:
        return dump({name: bindings[name]})

    suspects = _failing(worker, modules, names, alone, end)
    rest = {name: value for name, value in bindings.items() if name not in suspects}

    def beside(name: str) -> bytes:
        # By itself it lacks what it refers to by name.
        return dump({**rest, name: bindings[name]})

    bad = _failing(worker, modules, list(suspects), beside, end)
    if not bad:
        raise RuntimeError(f"it cannot be opened again: {problem}")
    return [[name[:200], why[:WHY]] for name, why in bad.items()]


def _failing(
    worker: Worker, modules: list[str], names: list[str], dumped: Callable[[str], bytes], end: float
) -> dict[str, str]:
    """Which of these do not open, and why. After one that ends its process or never returns, another process goes on."""
    bad: dict[str, str] = {}
    first = 0
    while first < len(names) and time.monotonic() < end:

        def each(say: Callable[[str], None], start: int = first) -> None:
            own, main, there = worker.scope, sys.modules["__main__"], dict(sys.modules)
            for number in range(start, len(names)):
                worker.scope = own
                sys.modules.update(there)
                sys.modules["__main__"] = main
                data = dumped(names[number])
                say(f"{number} ")
                _fresh(worker, modules)
                try:
                    pickle.loads(data)["scope"]
                except BaseException as failure:  # noqa: BLE001 - it has its word, whatever it is
                    say(f"{number} {type(failure).__name__}: {_line(failure)}")

        told, stopped = _forked(each, NAME)
        last = first
        for line in told:
            at, _, why = line.partition(" ")
            last = int(at)
            if why:
                bad[names[last]] = why
        if stopped is None:
            break
        bad.setdefault(names[last], f"when it is opened again, {stopped}")
        first = last + 1
    return bad


def _kind(value: Any) -> tuple[str, str]:
    kind = type(value)
    return str(kind.__module__), str(kind.__qualname__)


def _differs(value: Any, kind: tuple[str, str]) -> str:
    return f"it would come back as {type(value).__qualname__}, and it is {kind[1]}"


def _line(failure: BaseException) -> str:
    try:
        return " ".join(str(failure).split())[:WHY]
    except BaseException:  # noqa: BLE001 - its own code may fail too
        return "it has no text"


def _without_file(worker: Worker) -> list[str]:
    """Modules that were made here: no fresh worker has them."""
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


def _fresh(worker: Worker, modules: list[str]) -> None:
    """Make this process as a worker is that has run nothing."""
    main = type(sys)("__main__")
    worker.scope = vars(main)
    worker.scope.update({"__builtins__": builtins, **worker.fixed})
    sys.modules["__main__"] = main
    for name in modules:
        sys.modules.pop(name, None)
    for tracker in ("_DYNAMIC_CLASS_TRACKER_BY_CLASS", "_DYNAMIC_CLASS_TRACKER_BY_ID"):
        found = getattr(cloudpickle, tracker, None)
        if found is not None:
            found.clear()


def _forked(work: Callable[[Callable[[str], None]], None], silence: float) -> tuple[list[str], str | None]:
    """Do it in a forked process: the lines that it said, and why it did not come to its end, None where it did.

    ``silence`` is how many seconds may pass between two lines.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        status = 3
        try:
            os.close(reading)
            nowhere = os.open(os.devnull, os.O_RDWR)
            for fd in (0, 1, 2):
                os.dup2(nowhere, fd)
            sys.settrace(None)
            # A collection would touch, and so copy, every page of the state.
            gc.disable()

            def say(line: str) -> None:
                os.write(writing, line.replace("\n", " ").encode("utf-8", "replace") + b"\n")

            try:
                work(say)
                status = 0
            except BaseException as failure:  # noqa: BLE001
                say(f"! {type(failure).__name__}: {_line(failure)}")
        finally:
            os._exit(status)
    os.close(writing)
    why: str | None = None
    try:
        text, why = _heard(reading, silence)
    finally:
        os.close(reading)
        if why is not None:
            os.kill(child, _KILL)
        _, status = os.waitpid(child, 0)
    lines = [line for line in text.decode("utf-8", "replace").split("\n") if line]
    failed = [line[2:] for line in lines if line.startswith("! ")]
    if why is None and not failed and status:
        why = "its process ends"
    return [line for line in lines if not line.startswith("! ")], why or (failed[0] if failed else None)


def _heard(reading: int, silence: float) -> tuple[bytes, str | None]:
    text = b""
    poll = select.poll()
    poll.register(reading, select.POLLIN | select.POLLHUP)
    while True:
        if not poll.poll(silence * 1000):
            return text, f"it does not end within {silence:g} s"
        piece = os.read(reading, 65_536)
        if not piece:
            return text, None
        text += piece
