"""Starts the product's commands by forking a process that has imported the package already.

A command's imports take 0.3 to 1 s of processor time, and the tests start thousands of commands. The forked process gets
the arguments, the environment, the folder and the streams that an executed one would get, runs the same `main`, and ends
like any Python program. `processes.Popen` is the other end of the socket; shells ask at an address (`fork_client.py`).

    python fork_server.py SOCKET_FD ADDRESS
"""

from __future__ import annotations

import array
import atexit
import contextlib
import fcntl
import gc
import importlib
import io
import json
import os
import pkgutil
import selectors
import signal
import socket
import sys
import termios
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

LEFT_OUT = (
    "sandbox.inside",
    "demo.project",
    "__main__",
    "recipes.generate",
    "training.trainer",
    "training.adapters",
    "training.verifiers",
)
"""Not imported: what runs inside the sandbox, programs, and torch and trainers, which start threads."""

SDKS = ("anthropic", "openai", "google.genai", "mcp", "agent_client_protocol")


def preload() -> None:
    import cantrip_acp

    for found in pkgutil.walk_packages(cantrip_acp.__path__, "cantrip_acp."):
        if not any(f"cantrip_acp.{part}" in found.name or found.name.endswith(part) for part in LEFT_OUT):
            with contextlib.suppress(ImportError):
                importlib.import_module(found.name)
    for name in SDKS:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def serve(control: socket.socket, door: socket.socket) -> dict[str, Any]:
    """Fork a process for each request, whether it comes from the process that started this one or through the door. Returns
    only in a forked process: the request.

    Each request comes with a connection of its own, over which the process id and, later, the wait status go back.
    """
    selector = selectors.DefaultSelector()
    selector.register(control, selectors.EVENT_READ)
    selector.register(door, selectors.EVENT_READ)
    waking, woken = os.pipe()
    for fd in (waking, woken):
        os.set_blocking(fd, False)
    selector.register(waking, selectors.EVENT_READ)
    before = {number: signal.getsignal(number) for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGCHLD, lambda *_: None)
    # Ctrl-C at the terminal reaches the whole group; this process ends with the one that started it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    running: dict[int, socket.socket] = {}
    while True:
        for key, _ in selector.select():
            fds, from_door = array.array("i"), key.fileobj is door
            if isinstance(key.data, int):
                # The client has ended, though its command has not: something killed it.
                selector.unregister(key.fileobj)
                if key.data in running:
                    os.kill(key.data, signal.SIGKILL)
                continue
            if key.fileobj is control:
                data, ancillary, *_ = control.recvmsg(1 << 20, socket.CMSG_SPACE(16 * fds.itemsize))
                if not data:
                    os._exit(0)
            elif from_door:
                asker, _ = door.accept()
                data, ancillary, *_ = asker.recvmsg(1 << 20, socket.CMSG_SPACE(16 * fds.itemsize))
                if not data:
                    asker.close()
                    continue
                fds.append(asker.detach())
            else:
                with contextlib.suppress(BlockingIOError):
                    os.read(waking, 4096)
                continue
            for _level, _kind, passed in ancillary:
                fds.frombytes(passed[: len(passed) - len(passed) % fds.itemsize])
            request: dict[str, Any] = json.loads(data)
            pid = os.fork()
            if not pid:
                signal.set_wakeup_fd(-1)
                for number, handler in before.items():
                    signal.signal(number, handler)
                for connection in running.values():
                    connection.close()
                control.close()
                door.close()
                selector.close()
                os.close(waking)
                os.close(woken)
                become(request, list(fds))
                return request
            reply = socket.socket(fileno=fds[0])
            for fd in fds[1:]:
                os.close(fd)
            running[pid] = reply
            if from_door:
                selector.register(reply, selectors.EVENT_READ, pid)
            reply.sendall(b"%d\n" % pid)
        while running:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if not pid:
                break
            connection = running.pop(pid, None)
            if connection is not None:
                with contextlib.suppress(KeyError):
                    selector.unregister(connection)
                with contextlib.suppress(OSError):
                    connection.sendall(b"%d\n" % status)
                connection.close()


def become(request: dict[str, Any], fds: list[int]) -> None:
    """Take over the streams, the folder, the environment and the arguments of a request."""
    if request["session"]:
        os.setsid()
    # First to numbers that none of them has.
    os.close(fds[0])
    moved = [os.dup2(fd, 100 + at, inheritable=False) for at, fd in enumerate(fds[1:])]
    for fd in fds[1:]:
        os.close(fd)
    for at, fd in enumerate(moved):
        os.dup2(fd, at)
        os.close(fd)
    if request["session"] and os.isatty(0):
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv = request["argv"]
    sys.path[0] = request["path"]
    main = ModuleType("__main__")
    if "program" not in request:
        main.__file__ = sys.argv[0]
    sys.modules["__main__"] = main
    # The locale decides how bytes that are not UTF-8 are read and written, unless this variable names an encoding.
    errors = "strict" if "PYTHONIOENCODING" in request["env"] else sys.stdout.errors or "strict"
    sys.stdin = sys.__stdin__ = io.TextIOWrapper(open(0, "rb", closefd=False), encoding="utf-8", errors=errors)
    sys.stdout = sys.__stdout__ = _writer(1, errors, line_buffering=os.isatty(1))
    sys.stderr = sys.__stderr__ = _writer(2, "backslashreplace", line_buffering=True)


def finish(start: Callable[[], Any]) -> None:
    """Run a program and end as Python does, but leave the memory to the kernel: to free it takes longer than the rest."""
    code: Any = 0
    try:
        code = start()
    except SystemExit as end:
        code = end.code
    except KeyboardInterrupt:
        code = -signal.SIGINT
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
    except BaseException:
        code = 1
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except (OSError, ValueError):
            code = code or 120
    if code == -signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit((code or 0) & 0xFF)


def _writer(fd: int, errors: str, *, line_buffering: bool) -> io.TextIOWrapper:
    return io.TextIOWrapper(
        open(fd, "wb", closefd=False), encoding="utf-8", errors=errors, line_buffering=line_buffering
    )


if __name__ == "__main__":
    channel = socket.socket(fileno=int(sys.argv[1]))
    channel.set_inheritable(False)
    entrance = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    entrance.bind(sys.argv[2])
    entrance.listen()
    preload()
    gc.collect()
    gc.freeze()
    channel.sendall(b"ready\n")
    asked = serve(channel, entrance)
    if "program" in asked:
        finish(lambda: exec(compile(asked["program"], "<string>", "exec"), vars(sys.modules["__main__"])))
    else:
        finish(importlib.import_module(asked["module"]).main)
