"""Cell tokens: tells which cell started a thread, a task or a process.

The host gives each cell a token, and answers only gate calls with the token of the running cell. Code that an earlier
cell left running has the token of that cell, and so has everything that it starts:
- a thread, from its start on. A thread pool runs each piece of work with the token of the cell that submitted it;
- an asyncio task, by the thread whose event loop runs it. The task runs only while a cell runs that loop, and a later
  cell may await it;
- a process, by the variable ``CANTRIP_CELL`` in its environment.
"""

from __future__ import annotations

import _thread
import builtins
import os

from .lazy_imports import when_imported

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

globals()["__builtins__"] = dict(vars(builtins))

VARIABLE = "CANTRIP_CELL"


class _OfThread(_thread._local):
    cell: str = ""
    """The token of the cell that started this thread."""


class Origins:
    """Stores the cell token of each thread. Create it in the main thread, before any code of the entity runs."""

    def __init__(self) -> None:
        self._of_thread = _OfThread()
        for name in ("start_new_thread", "start_joinable_thread"):
            if hasattr(_thread, name):
                setattr(_thread, name, self._wrap_thread_start(getattr(_thread, name)))
        _thread.start_new = _thread.start_new_thread
        when_imported("concurrent.futures.thread", self._patch_thread_pools)
        when_imported("_posixsubprocess", self._patch_fork_exec)
        for name in ("posix_spawn", "posix_spawnp"):
            setattr(os, name, self._wrap_spawn(getattr(os, name)))
        setattr(os, "system", self._wrap_system(os.system))  # noqa: B010
        os.register_at_fork(after_in_child=self._set_environment)

    def begin(self, token: str) -> None:
        """Begin a cell with this token in the current thread."""
        self._of_thread.cell = token
        self._set_environment()

    def token(self) -> str:
        """The token of the cell that started the current thread; "" if unknown."""
        return self._of_thread.cell

    def _set_environment(self) -> None:
        os.environ[VARIABLE] = self.token()

    def _with_token(self, function: Any, token: str) -> Any:
        def bound(*args: Any, **named: Any) -> Any:
            before = self.token()
            self._of_thread.cell = token
            try:
                return function(*args, **named)
            finally:
                self._of_thread.cell = before

        return bound

    def _wrap_thread_start(self, start: Callable[..., Any]) -> Callable[..., Any]:
        def started(function: Any, *args: Any, **named: Any) -> Any:
            return start(self._with_token(function, self.token()) if callable(function) else function, *args, **named)

        _copy_name(started, start.__name__, "_thread")
        return started

    def _patch_thread_pools(self, module: Any) -> None:
        submit = module.ThreadPoolExecutor.submit

        def submitted(pool: Any, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
            return submit(pool, self._with_token(fn, self.token()), *args, **kwargs)

        submitted.__doc__ = submit.__doc__
        submitted.__name__, submitted.__qualname__ = "submit", submit.__qualname__
        module.ThreadPoolExecutor.submit = submitted

    def _patch_fork_exec(self, module: Any) -> None:
        start = module.fork_exec

        def fork_exec(args: Any, executables: Any, close: Any, fds: Any, cwd: Any, env: Any, *rest: Any) -> Any:
            return start(args, executables, close, fds, cwd, self._environment_list(env), *rest)

        module.fork_exec = fork_exec

    def _environment_list(self, env: Any) -> Any:
        name, token = VARIABLE.encode(), self.token().encode()
        if env is None:
            if os.environb.get(name) == token:
                return None
            env = [k + b"=" + v for k, v in os.environb.items()]
        return [each for each in env if not each.startswith(name + b"=")] + [name + b"=" + token]

    def _wrap_spawn(self, spawn: Callable[..., Any]) -> Callable[..., Any]:
        def spawned(path: Any, argv: Any, env: Any, /, **named: Any) -> Any:
            # From Python 3.13 on, None means the environment of this process.
            given = os.environ if env is None else env
            other = {k: v for k, v in given.items() if os.fsdecode(k) != VARIABLE}
            return spawn(path, argv, {**other, VARIABLE: self.token()}, **named)

        _copy_name(spawned, spawn.__name__, "os")
        return spawned

    def _wrap_system(self, system: Callable[[Any], int]) -> Callable[[Any], int]:
        def ran(command: Any) -> int:
            if os.environ.get(VARIABLE) == self.token():
                return system(command)
            import subprocess

            # The environment of this process has the token of the running cell. A process of another cell needs another
            # environment.
            status = subprocess.call(command, shell=True)  # noqa: S602 - as os.system does
            return status << 8 if status >= 0 else -status

        _copy_name(ran, "system", "os")
        return ran


def _copy_name(function: Any, name: str, module: str) -> None:
    """Give a function the name of the function that it replaces, so that a pickle refers to it by that name."""
    function.__name__ = function.__qualname__ = name
    function.__module__ = module
