"""Unix sockets inside: programs reach those of their own sandbox, and never one of the host.

The kernel looks up the path of a Unix socket without regard to the network namespace, and a program inside can see
folders in which a program of the host may open a socket at any time. A system call filter cannot read the path. So the
kernel hands two calls of every program inside to us (seccomp user notification):

- ``listen``: we ask the kernel which file the socket is bound to (SIOCUNIXFILE) and keep that file open (O_PATH). Only the
  programs of the sandbox can call it, on sockets that they made, and ``bind`` always makes a new file. So what is kept is
  a socket of the sandbox. The program then goes on with its call.
- ``connect``: we copy the address, take the socket (pidfd_getfd), and connect it ourselves. The program can change neither
  afterwards. A path is only looked up to choose one of the kept files, and then we connect to the kept file and not to the
  path. So a wrong or changed path leads at most to another socket of the same sandbox. Addresses without a path (Internet,
  abstract names) belong to the network namespace of the socket, which must be the sandbox's.

Only stream and sequential packet sockets exist inside, which cannot send without ``connect``. A filter applies to one
thread and to what it starts. So one thread of this process, which has the filter, starts all such sandboxes, and other
threads answer. If this kernel cannot do it, there are no Unix sockets inside.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import queue
import stat
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import TypeVar

from cantrip_acp.sandbox.launch import seccomp

T = TypeVar("T")

_SET_NO_NEW_PRIVS = 38
_SET_MODE_FILTER, _NEW_LISTENER, _WAIT_KILLABLE = 1, 1 << 3, 1 << 5
_RECEIVE, _SEND, _IS_VALID = 0xC0502100, 0xC0182101, 0x80082102
_REQUEST = struct.Struct("=QIIiIQ6Q")
"""``struct seccomp_notif``: ID, thread, flags, call, architecture, instruction, six arguments."""
_ANSWER = struct.Struct("=QqiI")
"""``struct seccomp_notif_resp``: ID, result, error (negative), flags."""
_CONTINUE = 1
_UNIX_FILE, _SOCKET_NETWORK = 0x89E0, 0x894C
"""SIOCUNIXFILE and SIOCGSKNS. They need CAP_NET_ADMIN in the socket's network namespace, which a sandbox's creator has."""
_PIDFD_GETFD, _OPENAT2 = 438, 437
_PIDFD_THREAD = os.O_EXCL
_RESOLVE_IN_ROOT = 0x10
_LARGEST_ADDRESS, _LARGEST_UNIX_ADDRESS = 128, 110
"""Bytes: ``struct sockaddr_storage``, ``struct sockaddr_un``."""

MOST_KEPT = 256
"""Listening sockets with a path in one sandbox. A further one can listen, but nothing reaches it."""
MOST_WAITING = 32
"""Calls of `connect` in one sandbox at the same time. A further one fails with EAGAIN."""
_IDLE_THREADS = 2


class SandboxSockets:
    """The listening Unix sockets of one sandbox, or of several with one network. ``network``: the inode of its namespace."""

    def __init__(self, network: int) -> None:
        self.network = network
        self.users = 1
        self._kept: dict[tuple[int, int], int] = {}
        self._waiting: set[int] = set()
        self._lock = threading.Lock()
        self._closed = False

    def keep(self, file: int) -> None:
        """Keep a socket's file (O_PATH). The descriptor is ours from now on."""
        status = os.fstat(file)
        with self._lock:
            if len(self._kept) >= MOST_KEPT:
                for key, kept in list(self._kept.items()):
                    if os.fstat(kept).st_nlink == 0:
                        os.close(self._kept.pop(key))
            key = (status.st_dev, status.st_ino)
            if self._closed or key in self._kept or len(self._kept) >= MOST_KEPT:
                os.close(file)
            else:
                self._kept[key] = file

    def copy_of(self, status: os.stat_result) -> int:
        """A new descriptor of the kept file with that device and inode. Raises OSError if there is none."""
        with self._lock:
            kept = self._kept.get((status.st_dev, status.st_ino))
            if kept is None:
                raise OSError(errno.ECONNREFUSED, "not a listening socket of this sandbox")
            return os.dup(kept)

    @contextmanager
    def connecting(self, descriptor: int) -> Iterator[None]:
        """While a socket is connected. Raises OSError if too many are."""
        with self._lock:
            if self._closed or len(self._waiting) >= MOST_WAITING:
                raise OSError(errno.EAGAIN, "too many connections wait")
            self._waiting.add(descriptor)
        try:
            yield
        finally:
            with self._lock:
                self._waiting.discard(descriptor)

    def close(self) -> None:
        """Forget the sockets, if no other sandbox shares them. Call it when all processes of the sandbox have ended."""
        with _sharing:
            self.users -= 1
            if self.users > 0:
                return
            _sandboxes.pop(self.network, None)
        with self._lock:
            self._closed = True
            for descriptor in self._waiting:
                # Nobody waits for the answer any more. This ends the connect.
                _libc.shutdown(descriptor, 2)
            for file in self._kept.values():
                os.close(file)
            self._kept.clear()


_sandboxes: dict[int, SandboxSockets] = {}
_sharing = threading.Lock()


class Supervisor:
    """Starts the sandboxes of this process that may have Unix sockets, and answers their calls."""

    def __init__(self, filter_: bytes, machine: seccomp.Machine) -> None:
        self._filter = filter_
        self._machine = machine
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._listener = -1
        self._idle = 0
        self._lock = threading.Lock()
        # Started before the filter exists: a thread has the filter if the thread that starts it has it.
        threading.Thread(target=self._run_jobs, name="cantrip-sandbox-start", daemon=True).start()
        self.start(self._install)
        self._add_thread()

    def start(self, work: Callable[[], T]) -> T:
        """Do ``work`` in the thread with the filter, which then is the parent of the processes that it starts. Blocks."""
        done: Future[T] = Future()

        def job() -> None:
            try:
                done.set_result(work())
            except BaseException as error:  # noqa: BLE001 - raised where `start` was called
                done.set_exception(error)

        self._jobs.put(job)
        return done.result()

    def add(self, pid: int) -> SandboxSockets:
        """Serve the sandbox with this first process, until its `SandboxSockets` are closed. Raises OSError."""
        network = _network(pid)
        if network == _network(os.getpid()):
            raise OSError(errno.EINVAL, "the sandbox does not have its own network namespace")
        with _sharing:
            shared = _sandboxes.get(network)
            if shared is not None:
                shared.users += 1
                return shared
            made = _sandboxes[network] = SandboxSockets(network)
            return made

    def _run_jobs(self) -> None:
        while True:
            self._jobs.get()()

    def _install(self) -> None:
        code = ctypes.create_string_buffer(self._filter, len(self._filter))
        program = _Program(len(self._filter) // 8, ctypes.cast(code, ctypes.c_void_p))
        _checked(_libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        for flags in (_NEW_LISTENER | _WAIT_KILLABLE, _NEW_LISTENER):
            listener = _libc.syscall(self._machine.seccomp, _SET_MODE_FILTER, flags, ctypes.byref(program))
            if listener >= 0 or ctypes.get_errno() != errno.EINVAL:
                break
        self._listener = _checked(listener)

    def _add_thread(self) -> None:
        with self._lock:
            self._idle += 1
        try:
            threading.Thread(target=self._answer_calls, name="cantrip-sandbox-sockets", daemon=True).start()
        except RuntimeError:
            # No more threads. Calls then wait for the other threads.
            with self._lock:
                self._idle -= 1

    def _answer_calls(self) -> None:
        """Answer calls until there are enough other threads. One thread always waits for the next call."""
        while True:
            request = bytearray(_REQUEST.size)
            try:
                fcntl.ioctl(self._listener, _RECEIVE, request, True)
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.EINTR):
                    continue
                raise
            with self._lock:
                self._idle -= 1
                last = self._idle == 0
            if last:
                self._add_thread()
            identity = _REQUEST.unpack(request)[0]
            result, flags = -errno.EPERM, 0
            try:
                flags = self._answer(*_REQUEST.unpack(request))
                result = 0
            except OSError as error:
                result = -(error.errno or errno.EPERM)
            finally:
                # The caller may have ended meanwhile.
                with suppress(OSError):
                    fcntl.ioctl(self._listener, _SEND, _ANSWER.pack(identity, 0, result, flags))
            with self._lock:
                if self._idle >= _IDLE_THREADS:
                    return
                self._idle += 1

    def _answer(
        self, identity: int, thread: int, _flags: int, call: int, _architecture: int, _at: int, *arguments: int
    ) -> int:
        """Do one call, and return the flags of the answer. Raises OSError with the error that the program gets."""
        sandbox = _sandboxes.get(_network(thread))
        if sandbox is None:
            raise OSError(errno.EPERM, "no sandbox of this process")
        taken = _take(thread, _int(arguments[0]))
        try:
            if call == self._machine.listen:
                self._check(identity)
                # It has no file (an Internet socket, an abstract name), or no file descriptor is free.
                with suppress(OSError):
                    _require_network(taken, sandbox.network)
                    sandbox.keep(fcntl.ioctl(taken, _UNIX_FILE))
                return _CONTINUE
            _require_network(taken, sandbox.network)
            with sandbox.connecting(taken):
                address = _read(thread, arguments[1], _int(arguments[2]))
                path = _path(address)
                target = sandbox.copy_of(_look_up(thread, path)) if path is not None else -1
                try:
                    self._check(identity)
                    if target >= 0:
                        address = struct.pack("=H", seccomp.AF_UNIX) + b"/proc/self/fd/%d\0" % target
                    _checked(_libc.connect(taken, address, len(address)))
                finally:
                    if target >= 0:
                        os.close(target)
            return 0
        finally:
            os.close(taken)

    def _check(self, identity: int) -> None:
        """Raise OSError if the caller has ended: its ID may be that of another process by now."""
        fcntl.ioctl(self._listener, _IS_VALID, struct.pack("=Q", identity))


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def _int(value: int) -> int:
    """The low 32 bits of an argument as the kernel's int."""
    return ctypes.c_int(value & 0xFFFFFFFF).value


def _network(pid: int) -> int:
    return os.stat(f"/proc/{pid}/ns/net").st_ino


def _require_network(descriptor: int, network: int) -> None:
    """Raise OSError unless this is a socket of that network namespace. A program may have one that it got from us."""
    if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
        raise OSError(errno.ENOTSOCK, "not a socket")
    own = fcntl.ioctl(descriptor, _SOCKET_NETWORK)
    try:
        if os.fstat(own).st_ino != network:
            raise OSError(errno.EPERM, "a socket of another network")
    finally:
        os.close(own)


def _take(thread: int, descriptor: int) -> int:
    """A new descriptor of the file that a thread has as ``descriptor``."""
    try:
        process = os.pidfd_open(thread, _PIDFD_THREAD)
    except OSError:
        # Before Linux 6.9 only for whole processes. Nearly all threads of a process share their descriptors.
        with open(f"/proc/{thread}/status", "rb") as file:
            leader = next(int(line.split()[1]) for line in file if line.startswith(b"Tgid:"))
        process = os.pidfd_open(leader)
    try:
        return _checked(_libc.syscall(_PIDFD_GETFD, process, descriptor, 0))
    finally:
        os.close(process)


def _read(thread: int, address: int, length: int) -> bytes:
    """An address of a call, from the memory of its thread."""
    if not 0 <= length <= _LARGEST_ADDRESS:
        raise OSError(errno.EINVAL, "not the length of an address")
    data = ctypes.create_string_buffer(length)
    ours, theirs = _Vector(ctypes.addressof(data), length), _Vector(address, length)
    # Unlike /proc/PID/mem this also works with programs that forbid core dumps.
    read = _libc.process_vm_readv(thread, ctypes.byref(ours), 1, ctypes.byref(theirs), 1, 0)
    if read != length:
        raise OSError(errno.EFAULT, "no such memory")
    return data.raw


def _path(address: bytes) -> bytes | None:
    """The path of a Unix address; None if the address has none. The kernel takes the same bytes for a path."""
    if len(address) < 2 or struct.unpack_from("=H", address)[0] != seccomp.AF_UNIX:
        return None
    if not 2 < len(address) <= _LARGEST_UNIX_ADDRESS:
        raise OSError(errno.EINVAL, "not the length of a Unix address")
    return address[2:].partition(b"\0")[0] or None


class _Vector(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


class _How(ctypes.Structure):
    _fields_ = [("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64)]


def _look_up(thread: int, path: bytes) -> os.stat_result:
    """The file at a path as the thread sees it, or as near to it as is known: nothing relies on that."""
    if not path.startswith(b"/"):
        path = os.readlink(b"/proc/%d/cwd" % thread) + b"/" + path
    root = os.open(f"/proc/{thread}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        how = _How(os.O_PATH | os.O_CLOEXEC, 0, _RESOLVE_IN_ROOT)
        file = _checked(_libc.syscall(_OPENAT2, root, path, ctypes.byref(how), ctypes.sizeof(how)))
    except OSError as error:
        # A link of /proc (/proc/PID/cwd): where it leads is not looked up.
        raise OSError(errno.ECONNREFUSED, "not found") if error.errno == errno.EXDEV else error from error
    finally:
        os.close(root)
    try:
        return os.fstat(file)
    finally:
        os.close(file)


def give_up() -> None:
    """From now on no sandbox of this process has Unix sockets. For a kernel that takes the filter but not our answers."""
    with _finding:
        _found[:] = [None]


_found: list[Supervisor | None] = []
_finding = threading.Lock()
os.register_at_fork(after_in_child=_found.clear)


def supervisor(program: str) -> Supervisor | None:
    """The supervisor of this process, or None if this kernel cannot do it or bubblewrap (``program``) is set-user-ID.

    It is made at the first call.
    """
    with _finding:
        if not _found:
            machine = seccomp.MACHINES.get(os.uname().machine)
            made = None
            with suppress(OSError):
                if machine is not None and not os.stat(program).st_mode & stat.S_ISUID:
                    made = Supervisor(seccomp.notifying(machine), machine)
            _found.append(made)
        return _found[0]
