"""Network namespace helper: a separate program that opens listening sockets in other network namespaces.

    python -I -S netns_helper.py DESCRIPTOR

For each sandbox the program receives over the socket DESCRIPTOR the sockets to open (lines such as ``tcp 127.0.0.1 443``), and two
file descriptors: the network namespace, and a socket for the answer. It forks, and the child enters the user namespace that owns
the network namespace, which the kernel allows to the creator of that user namespace. Then it enters the network namespace and
answers with the sockets, without those after the first that cannot be opened. The kernel does not allow this to a process with
threads, and a process cannot go back afterwards. So this is a separate process. It stays, because a fork is much cheaper than the
start of a program, and commands wait for it. It ends when the other end of DESCRIPTOR is closed.
"""

import _socket  # type: ignore[import-not-found, unused-ignore]
import array
import fcntl
import os
import signal
import sys

NS_GET_USERNS = 0xB701
CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
IP_FREEBIND = 15
MOST_BYTES = 8192


if sys.version_info >= (3, 12):
    _enter_namespace = os.setns
else:
    import ctypes

    _library = ctypes.CDLL(None, use_errno=True)

    def _enter_namespace(descriptor: int, kind: int) -> None:
        if _library.setns(descriptor, kind) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))


def _enter(network: int) -> None:
    owner = fcntl.ioctl(network, NS_GET_USERNS)
    here = os.stat("/proc/self/ns/user")
    there = os.fstat(owner)
    if (here.st_dev, here.st_ino) != (there.st_dev, there.st_ino):
        _enter_namespace(owner, CLONE_NEWUSER)
    _enter_namespace(network, CLONE_NEWNET)


def _open_socket(line: str) -> _socket.socket:
    kind, address, port = line.split()
    made = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM if kind == "tcp" else _socket.SOCK_DGRAM)
    # Nothing runs in the namespace yet, so the loopback interface may have no address. IP_FREEBIND allows to bind anyway.
    made.setsockopt(_socket.IPPROTO_IP, IP_FREEBIND, 1)
    made.bind((address, int(port)))
    if kind == "tcp":
        made.listen(128)
    return made


def _answer(network: int, wanted: str, line: _socket.socket) -> None:
    first, *others = wanted.split("\n")
    try:
        _enter(network)
        made = [_open_socket(first)]
    except OSError as error:
        line.sendall(str(error).encode("utf-8", "replace")[:200])
        return
    for each in others:
        try:
            made.append(_open_socket(each))
        except OSError:
            continue
    handed = array.array("i", [each.fileno() for each in made])
    line.sendmsg([b"!"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, handed.tobytes())])


def main() -> None:
    requests = _socket.socket(fileno=int(sys.argv[1]))
    # The kernel then removes ended children by itself.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    size = array.array("i").itemsize
    while True:
        data, ancillary, _, _ = requests.recvmsg(MOST_BYTES, _socket.CMSG_SPACE(2 * size))
        if not data:
            return
        handed = array.array("i")
        for _, _, content in ancillary:
            handed.frombytes(content[: len(content) - len(content) % size])
        # With fewer than two, this process had no free descriptor. The command hears that when the socket is closed.
        if len(handed) == 2 and os.fork() == 0:
            try:
                _answer(handed[0], data.decode(), _socket.socket(fileno=handed[1]))
            finally:
                os._exit(0)
        for each in handed:
            os.close(each)


if __name__ == "__main__":
    main()
