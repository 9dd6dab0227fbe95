"""Opens the proxy's sockets in the network namespace of a sandbox.

The network namespace of the sandbox is otherwise empty. A program inside connects to `127.0.0.1`, and the filtering
proxy on the host accepts the connection. So no process of ours runs inside, and no process inside has a descriptor of
ours. The sockets are opened before the command runs. A separate program (`netns_helper.py`) opens them, because a process
with threads cannot enter another user namespace.
"""

from __future__ import annotations

import asyncio
import atexit
import errno
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from cantrip_acp.sandbox.launch.process_tree import no_room_text, sandbox_error
from cantrip_acp.sandbox.policy.policy import PROXY_PORT
from cantrip_acp.types.errors import SandboxError

_PROGRAM = str(Path(__file__).with_name("netns_helper.py"))
_MAX_MESSAGE = 400


_DETACH = '"$0" "$@" &'
"""A shell script that starts a program in the background and exits. So the program is not our child: a search for processes that
a command left running does not find it, and an owner that replaces itself (exec) does not have to wait for it.
"""


class _Helper:
    """The helper program of this process. It is started for the first command that needs it, and ends with this process."""

    def __init__(self) -> None:
        self._line: socket.socket | None = None
        self._lock = threading.Lock()

    def ensure(self) -> socket.socket:
        """Start the program if it was not started. Returns the socket for requests. Raises OSError."""
        with self._lock:
            if self._line is None:
                ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                program = [sys.executable, "-I", "-S", "-B", _PROGRAM, str(theirs.fileno())]
                with theirs:
                    try:
                        subprocess.run(
                            ["/bin/sh", "-c", _DETACH, *program],
                            stdin=subprocess.DEVNULL,
                            stdout=subprocess.DEVNULL,
                            stderr=subprocess.DEVNULL,
                            env={},
                            cwd="/",
                            pass_fds=(theirs.fileno(),),
                            start_new_session=True,
                            check=False,
                        )
                    except BaseException:
                        ours.close()
                        raise
                ours.setblocking(False)
                self._line = ours
            return self._line

    def send(self, wanted: Sequence[str], *descriptors: int) -> None:
        """Send the sockets to open, and descriptors. A program that was killed is started again. Raises OSError."""
        data = "\n".join(wanted).encode()
        try:
            socket.send_fds(self.ensure(), [data], descriptors)
        except ConnectionError:
            self.end(os.getpid())
            socket.send_fds(self.ensure(), [data], descriptors)

    def end(self, pid: int) -> None:
        """End the program, if this process is ``pid``: a fork of it shares the program."""
        if os.getpid() == pid:
            with self._lock:
                if self._line is not None:
                    self._line.close()
                    self._line = None


_helper = _Helper()
atexit.register(_helper.end, os.getpid())


class NetnsListener:
    """Create it, `start` it, `open` it when the namespace exists, and always `close` it.

    ``on_open`` is called with the sockets, or ``on_failure`` with the reason why the proxy's own cannot be opened. ``beside``: more
    sockets, such as ``udp 127.0.0.1 53``. Those that cannot be opened are left out. ``port``: that of the proxy; 0 is any free one.
    """

    def __init__(
        self,
        on_open: Callable[[list[socket.socket]], None],
        on_failure: Callable[[str], None],
        beside: Sequence[str] = (),
        port: int = PROXY_PORT,
    ) -> None:
        self._wanted = (f"tcp 127.0.0.1 {port}", *beside)
        self._on_open = on_open
        self._on_failure = on_failure
        self._line: socket.socket | None = None
        self._loop = asyncio.get_running_loop()

    def start(self) -> None:
        """Start the helper program while the sandbox starts, if it does not run yet. Raises `SandboxError`."""
        try:
            _helper.ensure()
        except OSError as error:
            raise sandbox_error(f"the filtering proxy (bash_network) cannot start {sys.executable}", error) from error

    def open(self, pid: int) -> None:
        """Open the sockets in the network namespace of the process ``pid``. Raises OSError, also for our own namespace."""
        network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            self.open_in(network)
        finally:
            os.close(network)

    def open_in(self, network: int) -> None:
        """Open the sockets in a network namespace, of which this is a descriptor. Raises OSError, also for our own namespace."""
        if os.path.samestat(os.fstat(network), os.stat("/proc/self/ns/net")):
            raise OSError(0, "the sandbox does not have its own network namespace")
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            self._line.setblocking(False)
            _helper.send(self._wanted, network, theirs.fileno())
        self._loop.add_reader(self._line, self._on_answer)

    def _on_answer(self) -> None:
        assert self._line is not None
        try:
            data, handed, flags, _ = socket.recv_fds(self._line, _MAX_MESSAGE, len(self._wanted))
            if flags & socket.MSG_CTRUNC and not handed:
                # The kernel could not pass the socket, because this process has no free descriptor.
                data = str(no_room_text(OSError(errno.EMFILE, ""))).encode()
        except BlockingIOError:
            return
        except OSError as error:
            data, handed = str(error).encode(), []
        self._loop.remove_reader(self._line)
        if handed:
            opened = [socket.socket(fileno=each) for each in handed]
            for each in opened:
                os.set_inheritable(each.fileno(), False)
                each.setblocking(False)
            self._on_open(opened)
        else:
            words = data.decode("utf-8", "replace") or "the helper program ended without an answer"
            self._on_failure(f"the filtering proxy (bash_network) cannot listen in the sandbox ({words})")

    def close(self) -> None:
        """Close the socket for the answer. Safe to call twice."""
        if self._line is not None:
            self._loop.remove_reader(self._line)
            self._line.close()
            self._line = None


async def listen_in(network: int, beside: Sequence[str]) -> list[socket.socket]:
    """Sockets for a proxy at a free port in a network namespace that exists already, as `NetnsListener` opens them.

    Raises `SandboxError`."""
    opened: asyncio.Future[list[socket.socket]] = asyncio.get_running_loop().create_future()

    def on_open(made: list[socket.socket]) -> None:
        if opened.done():
            for each in made:
                each.close()
        else:
            opened.set_result(made)

    def on_failure(why: str) -> None:
        if not opened.done():
            opened.set_exception(SandboxError(why))

    listener = NetnsListener(on_open, on_failure, beside, 0)
    try:
        listener.start()
        listener.open_in(network)
        return await opened
    except OSError as error:
        raise sandbox_error("the sandbox's network cannot be entered from outside", error) from error
    finally:
        listener.close()
