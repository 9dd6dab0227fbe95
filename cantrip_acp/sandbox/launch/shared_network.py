"""Shared network: one network namespace in which several sandboxes of one entity run, so that they share its loopback.

It is the network of a sandbox that runs already (`of`), or of an empty one that bubblewrap makes and that ends at once (`make`).
We keep its namespaces open. A later sandbox is started inside: the process that becomes bubblewrap first enters the user
namespace that owns the network, which the kernel allows to its creator, and then the network. Bubblewrap makes a further user
namespace below, so nothing inside has a right over the network. They end with the last process in them, also if
we are killed.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import subprocess
from contextlib import suppress

from cantrip_acp.files.descriptors import is_ready
from cantrip_acp.types.errors import SandboxError

_NEW_USER, _NEW_NETWORK = 0x10000000, 0x40000000
_OWNER = 0xB701
"""NS_GET_USERNS."""
_WITHIN = 10.0
"""Seconds in which bubblewrap must have made the namespaces."""
_ARGUMENTS = (
    "--unshare-user", "--unshare-net", "--die-with-parent", "--new-session", "--cap-drop", "ALL", "--ro-bind", "/", "/"
)  # fmt: skip
_PROGRAM = ("/bin/sh", "-c", "echo; read -r _")
_libc = ctypes.CDLL(None, use_errno=True)


class SharedNetwork:
    """A network namespace, and the user namespace that owns it.

    Whoever has this object can start a sandbox there. Without one the namespaces end with the last process in them.
    """

    def __init__(self, user: int, network: int) -> None:
        self._user = user
        self.descriptor = network
        self._inode = os.fstat(network).st_ino

    @classmethod
    def make(cls, program: str) -> SharedNetwork:
        """Make an empty one with bubblewrap (``program``). Takes some milliseconds and blocks. Raises `SandboxError`, OSError."""
        status, reported = os.pipe()
        try:
            try:
                process = subprocess.Popen(
                    [program, *_ARGUMENTS, "--json-status-fd", str(reported), "--", *_PROGRAM],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    env={},
                    cwd="/",
                    pass_fds=(reported,),
                    start_new_session=True,
                )
            finally:
                os.close(reported)
            with process:
                try:
                    assert process.stdout is not None
                    if not is_ready(process.stdout, _WITHIN) or os.read(process.stdout.fileno(), 1) != b"\n":
                        process.kill()
                        why = process.communicate()[1].decode("utf-8", "replace").strip()[:500]
                        raise SandboxError(f"no network can be made that commands share: {why or 'it took too long'}")
                    line = os.read(status, 4096).split(b"\n")[0]
                    return cls.of(int(json.loads(line)["child-pid"]))
                finally:
                    process.kill()
        finally:
            os.close(status)

    @classmethod
    def of(cls, pid: int) -> SharedNetwork:
        """The network of a sandbox with this process. Raises `SandboxError` if that is the machine's, and OSError."""
        network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            user = fcntl.ioctl(network, _OWNER)
            if os.path.samestat(os.fstat(network), os.stat("/proc/self/ns/net")):
                os.close(user)
                raise SandboxError("no network can be made that commands share: it would be that of this machine")
            os.set_inheritable(user, False)
            return cls(user, network)
        except BaseException:
            os.close(network)
            raise

    def enter(self) -> None:
        """Enter it, in a process that will become bubblewrap. Raises OSError."""
        for descriptor, kind in ((self._user, _NEW_USER), (self.descriptor, _NEW_NETWORK)):
            if _libc.setns(descriptor, kind) != 0:
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number))

    def check(self, pid: int) -> None:
        """Raise OSError unless the process is in this network. Call it before the process runs anything."""
        if os.stat(f"/proc/{pid}/ns/net").st_ino != self._inode:
            raise OSError(0, "it is not in the network of its session")

    def __del__(self) -> None:
        for descriptor in (self._user, self.descriptor):
            with suppress(OSError):
                os.close(descriptor)


__all__ = ["SharedNetwork"]
