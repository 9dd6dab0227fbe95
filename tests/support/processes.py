"""Processes of the product's commands, and of programs in Python's ``-c``, started without their imports: forked from a server
that has made them already.

`Popen` and `run` are those of `subprocess`. A command that needs its own start is executed as usual: another program, other
settings of Python or of the language, special options of `Popen`, or ``TESTS_EXECUTE_COMMANDS=1`` for all.
"""

from __future__ import annotations

import array
import atexit
import fcntl
import json
import os
import pty
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import termios
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cantrip_acp.files.descriptors import is_ready
from tests.support import fork_client

CANTRIP = [sys.executable, "-m", "cantrip_acp.cli.main"]
CANTRIP_PROGRAM = str(Path(sys.executable).parent / "cantrip")
AGENT = str(Path(sys.executable).parent / "cantrip-acp")

_STARTS = {
    tuple(CANTRIP): "cantrip_acp.cli.main",
    (CANTRIP_PROGRAM,): "cantrip_acp.cli.main",
    (AGENT,): "cantrip_acp.acp.start",
    (sys.executable, "-m", "cantrip_acp.acp.start"): "cantrip_acp.acp.start",
    (sys.executable, "-m", "cantrip_acp.acp"): "cantrip_acp.acp.start",
    (sys.executable, "-c"): "",
}
"""The beginnings of commands that are forked, each with the module of its ``main``; "" for a program in the arguments."""


class _Server:
    """The process that forks. It ends when this one does."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.settings = fork_client.settings(os.environ)
        self._channel, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._folder = tempfile.mkdtemp(prefix="cantrip-fork-")
        self.address = f"{self._folder}/door"
        program = str(Path(__file__).with_name("fork_server.py"))
        words = [sys.executable, program, str(other.fileno()), self.address]
        self._process = subprocess.Popen(words, pass_fds=[other.fileno()], stdin=subprocess.DEVNULL)
        other.close()
        if self._channel.recv(64) != b"ready\n":
            raise RuntimeError("the server that forks the product's commands ended when it started")
        atexit.register(self.end)

    def start(self, request: dict[str, Any], fds: list[int]) -> tuple[int, socket.socket]:
        """Fork a process with these three streams. Returns its id, and the connection on which its status will come."""
        own, other = socket.socketpair()
        passed = array.array("i", [other.fileno(), *fds])
        self._channel.sendmsg(
            [json.dumps(request).encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, passed.tobytes())]
        )
        other.close()
        return int(_line(own)), own

    def serves(self) -> bool:
        """Whether it is this process's, and there. Something may have killed it, and one failure is enough."""
        return self.pid == os.getpid() and self._process.poll() is None

    def end(self) -> None:
        if os.getpid() == self.pid:
            self._channel.close()
            self._process.wait(60)
            shutil.rmtree(self._folder, ignore_errors=True)


_server: _Server | None = None


def _running_server() -> _Server:
    global _server
    if _server is None or not _server.serves():
        _server = _Server()
    return _server


def programs() -> Path:
    """The folder of `cantrip` and `cantrip-acp` for whoever starts them by name or path, such as shells and foreign clients:
    they start as `Popen` starts them."""
    server = _running_server()
    folder = Path(server.address).parent
    for program in (CANTRIP_PROGRAM, AGENT):
        script = folder / Path(program).name
        if not script.exists():
            words = [sys.executable, "-IS", fork_client.__file__, server.address, json.dumps(server.settings)]
            script.write_text(f'#!/bin/sh\nexec {shlex.join([*words, _STARTS[(program,)], program])} "$@"\n')
            script.chmod(0o755)
    return folder


def _line(connection: socket.socket) -> bytes:
    """The next line, and no byte of the one after it: the status of a short command follows its id at once."""
    data = b""
    while not data.endswith(b"\n"):
        piece = connection.recv(1)
        if not piece:
            raise RuntimeError("the server that forks the product's commands is gone")
        data += piece
    return data


class Popen(subprocess.Popen[Any]):
    """As `subprocess.Popen`; a command of the product is forked if that makes no difference."""

    _status: socket.socket | None = None

    def _execute_child(self, args: Any, executable: Any, preexec_fn: Any, close_fds: Any, pass_fds: Any, cwd: Any,
                       env: Any, startupinfo: Any, creationflags: Any, shell: Any, p2cread: int, p2cwrite: int,
                       c2pread: int, c2pwrite: int, errread: int, errwrite: int, *more: Any) -> None:  # fmt: skip
        # more: restore_signals, gid, gids, uid, umask, start_new_session, process_group
        restore, gid, gids, uid, umask, session, group = more
        words = [os.fspath(each) for each in args] if not isinstance(args, str | bytes) else []
        module, count = next(((m, len(s)) for s, m in _STARTS.items() if tuple(words[: len(s)]) == s), (None, 0))
        environment = dict(os.environ if env is None else env)
        plain = (preexec_fn, gid, gids, uid, executable) == (None,) * 5 and not (shell or pass_fds) and close_fds
        text = all(type(each) is str for each in (*words, *environment, *environment.values()))
        if session and p2cread != -1 and os.isatty(p2cread) and preexec_fn is None:
            preexec_fn = _control_terminal
        if (
            module is None
            or not (plain and text and restore and umask == -1 and group == -1)
            or "TESTS_EXECUTE_COMMANDS" in environment
        ):
            super()._execute_child(  # type: ignore[misc]
                args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, creationflags, shell,
                p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, *more,
            )  # fmt: skip
            return
        server = _running_server()
        if fork_client.settings(environment) != server.settings:
            super()._execute_child(  # type: ignore[misc]
                args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, creationflags, shell,
                p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, *more,
            )  # fmt: skip
            return
        folder = os.path.abspath(os.fspath(cwd) if cwd is not None else os.getcwd())
        if not os.path.isdir(folder):
            raise FileNotFoundError(2, "No such file or directory", folder)
        if words[1:2] == ["-c"]:
            program, *arguments = words[count:]
            start = {"program": program, "argv": ["-c", *arguments], "path": ""}
        elif words[0] == sys.executable:
            main = sys.modules["cantrip_acp"].__path__[0] + "/cli/main.py"
            start = {"module": module, "argv": [main, *words[count:]], "path": folder}
        else:
            start = {"module": module, "argv": words, "path": os.path.dirname(words[0])}
        request = {
            **start,
            "cwd": folder,
            "env": environment,
            "session": bool(session),
        }
        streams = [fd if fd != -1 else at for at, fd in enumerate((p2cread, c2pwrite, errwrite))]
        try:
            self.pid, self._status = server.start(request, streams)
        finally:
            self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)  # type: ignore[attr-defined]
        self._child_created = True

    def _internal_poll(self, _deadstate: Any = None, **more: Any) -> int | None:
        if self._status is None:
            return super()._internal_poll(_deadstate, **more)  # type: ignore[misc,no-any-return]
        return self._ended(0.0)

    def _wait(self, timeout: float | None) -> int:
        if self._status is None:
            return super()._wait(timeout)  # type: ignore[misc,no-any-return]
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return code

    def _ended(self, timeout: float | None) -> int | None:
        """The return code, after waiting for at most so many seconds."""
        if self.returncode is None and self._status is not None:
            if is_ready(self._status, timeout):
                self.returncode = os.waitstatus_to_exitcode(int(_line(self._status)))
                self._status.close()
        return self.returncode


def _control_terminal() -> None:
    """Make the standard input the terminal that controls this new session, as `pty.fork` does."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def on_terminal(arguments: Sequence[str], **options: Any) -> tuple[Popen, int]:
    """Start a command on a pseudo-terminal of its own, which controls it. Returns the process and the terminal's other end."""
    ours, theirs = pty.openpty()
    try:
        streams = dict.fromkeys(("stdin", "stdout", "stderr"), theirs)
        return Popen(list(arguments), **streams, start_new_session=True, **options), ours
    except BaseException:
        os.close(ours)
        raise
    finally:
        os.close(theirs)


def run(*args: Any, input: Any = None, capture_output: bool = False, timeout: float | None = None,
        check: bool = False, **options: Any) -> subprocess.CompletedProcess[Any]:  # fmt: skip
    """As `subprocess.run`."""
    if input is not None:
        options["stdin"] = subprocess.PIPE
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Popen(*args, **options) as process:
        try:
            out, err = process.communicate(input, timeout=timeout)
        except BaseException:
            process.kill()
            raise
        done = subprocess.CompletedProcess(process.args, process.poll() or 0, out, err)
    if check:
        done.check_returncode()
    return done
