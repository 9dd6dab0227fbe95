"""Network namespace helper: a separate program that opens one listening socket in another network namespace.

    python -I -S netns_helper.py DESCRIPTOR PORT

The program receives a file descriptor of the network namespace over the socket DESCRIPTOR. It enters the user
namespace that owns the network namespace, which the kernel allows to the creator of that user namespace. Then it
enters the network namespace and answers with the listening socket. The kernel does not allow this to a process with
threads, and a process cannot go back afterwards. So this is a separate process. It imports only small modules, because
a command waits for it.
"""

import _socket  # type: ignore[import-not-found, unused-ignore]
import array
import fcntl
import os
import sys

NS_GET_USERNS = 0xB701
CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
IP_FREEBIND = 15


def _enter_namespace(descriptor: int, kind: int) -> None:
    enter = getattr(os, "setns", None)
    if enter is not None:
        enter(descriptor, kind)
        return
    import ctypes

    library = ctypes.CDLL(None, use_errno=True)
    if library.setns(descriptor, kind) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _open_socket(network: int, port: int) -> _socket.socket:
    owner = fcntl.ioctl(network, NS_GET_USERNS)
    here = os.stat("/proc/self/ns/user")
    there = os.fstat(owner)
    if (here.st_dev, here.st_ino) != (there.st_dev, there.st_ino):
        _enter_namespace(owner, CLONE_NEWUSER)
    _enter_namespace(network, CLONE_NEWNET)
    made = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
    # Nothing runs in the namespace yet, so the loopback interface may have no address. IP_FREEBIND allows to bind anyway.
    made.setsockopt(_socket.IPPROTO_IP, IP_FREEBIND, 1)
    made.bind(("127.0.0.1", port))
    made.listen(128)
    return made


def main() -> None:
    line = _socket.socket(fileno=int(sys.argv[1]))
    size = array.array("i").itemsize
    data, ancillary, _, _ = line.recvmsg(1, _socket.CMSG_SPACE(size))
    if not data or not ancillary:
        return
    network = array.array("i", ancillary[0][2])[0]
    try:
        made = _open_socket(network, int(sys.argv[2]))
    except OSError as error:
        line.sendall(str(error).encode("utf-8", "replace")[:200])
        return
    handed = array.array("i", [made.fileno()])
    line.sendmsg([b"!"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, handed.tobytes())])


if __name__ == "__main__":
    main()
