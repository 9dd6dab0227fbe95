"""System call filter (seccomp): which system calls are denied inside, as classic BPF, the format of the kernel.

Namespaces do not restrict which system calls a program can use. The filter denies families of calls that no build,
test or script needs and that sandbox escapes have used. All other calls are allowed. Calls that are newer than this
table return ENOSYS, as on an older kernel. Calls of another ABI (32-bit, x32) kill the process, because their numbers
are different. The kernel caches which calls are always allowed, so these are not slower.
"""

from __future__ import annotations

import errno
import functools
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cantrip_acp.sandbox.launch.causes import Cause

ALLOW = 0x7FFF0000
NOTIFY = 0x7FC00000
KILL = 0x80000000
_ERRNO = 0x00050000

AF_UNIX, AF_INET, AF_INET6, AF_NETLINK = 1, 2, 10, 16
SOCK_STREAM, SOCK_DGRAM, SOCK_SEQPACKET = 1, 2, 5
_TYPE_MASK = 0xF
_PROTOCOLS = (0, 1, 6, 17, 58)
"""Any, ICMP, TCP, UDP, ICMPv6. Other protocols would load kernel modules that are rarely reviewed."""

NEW_NAMESPACES = 0x7E020000
"""The flags of clone that create a namespace: CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET."""

TERMINAL_IOCTLS = (0x5412, 0x541C, 0x5423)
"""TIOCSTI types into the terminal, TIOCLINUX pastes into it, TIOCSETD loads line disciplines."""

SET_ID = 0o6000
"""The mode bits (setuid, setgid) that make a program run as its file's owner or group."""

CREATES = 0o100 | 0o20000000
"""O_CREAT and the kernel's own O_TMPFILE. Without one of them, open ignores the mode."""

PERSONALITIES = (0x0, 0x8, 0x20000, 0x20008, 0xFFFFFFFF)
NO_RANDOM_ADDRESSES = 0x40000
"""The personality with which debuggers start programs."""
ATTACHING = frozenset({"ptrace", "process_vm_readv", "process_vm_writev"})
"""Calls that read and change other processes: only those of the same sandbox, which has its own process namespace."""

SOL_SOCKET, SO_PEERPIDFD = 1, 77
"""A handle for the process that connected. That may be our own, on the host."""

NEWEST = 469
"""The highest call number in the tables below (Linux 6.17). From 424 on, all architectures share the numbers."""


@dataclass(frozen=True, slots=True)
class Machine:
    """One architecture: its audit number, its call numbers, and the bit of a second ABI, if it has one.

    ``seccomp``, ``connect``, ``listen``: the numbers of calls that are allowed.
    """

    audit: int
    seccomp: int
    connect: int
    listen: int
    numbers: Mapping[str, int]
    foreign_bit: int | None = None


_SINCE_5_0: Mapping[str, int] = {
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428, "move_mount": 429,
    "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "clone3": 435, "pidfd_getfd": 438,
    "openat2": 437, "process_madvise": 440, "mount_setattr": 442, "quotactl_fd": 443, "memfd_secret": 447, "process_mrelease": 448,
    "fchmodat2": 452, "statmount": 457, "listmount": 458, "lsm_set_self_attr": 460, "open_tree_attr": 467,
}  # fmt: skip

X86_64 = Machine(
    audit=0xC000003E,
    seccomp=317,
    connect=42,
    listen=50,
    foreign_bit=0x40000000,
    numbers={
        **_SINCE_5_0,
        "open": 2, "openat": 257, "creat": 85, "chmod": 90, "fchmod": 91, "fchmodat": 268, "mkdir": 83, "mkdirat": 258,
        "mknod": 133, "mknodat": 259,
        "ioctl": 16, "shmget": 29, "socket": 41, "socketpair": 53, "clone": 56, "ptrace": 101, "syslog": 103, "uselib": 134,
        "personality": 135, "ustat": 136, "sysfs": 139, "vhangup": 153, "modify_ldt": 154, "pivot_root": 155,
        "_sysctl": 156, "adjtimex": 159, "chroot": 161, "acct": 163, "settimeofday": 164, "mount": 165, "umount2": 166,
        "swapon": 167, "swapoff": 168, "reboot": 169, "sethostname": 170, "setdomainname": 171, "iopl": 172,
        "ioperm": 173, "create_module": 174, "init_module": 175, "delete_module": 176, "get_kernel_syms": 177,
        "query_module": 178, "quotactl": 179, "nfsservctl": 180, "lookup_dcookie": 212, "clock_settime": 227,
        "kexec_load": 246, "add_key": 248, "request_key": 249, "keyctl": 250, "migrate_pages": 256, "unshare": 272,
        "move_pages": 279, "perf_event_open": 298, "fanotify_init": 300, "fanotify_mark": 301, "name_to_handle_at": 303,
        "open_by_handle_at": 304, "clock_adjtime": 305, "setns": 308, "process_vm_readv": 310, "process_vm_writev": 311,
        "kcmp": 312, "finit_module": 313, "kexec_file_load": 320, "memfd_create": 319, "getsockopt": 55, "bpf": 321,
        "userfaultfd": 323,
    },
)  # fmt: skip

AARCH64 = Machine(
    audit=0xC00000B7,
    seccomp=277,
    connect=203,
    listen=201,
    numbers={
        **_SINCE_5_0,
        "openat": 56, "fchmod": 52, "fchmodat": 53, "mkdirat": 34, "mknodat": 33,
        "ioctl": 29, "umount2": 39, "mount": 40, "pivot_root": 41, "nfsservctl": 42, "chroot": 51, "vhangup": 58,
        "quotactl": 60, "acct": 89, "personality": 92, "unshare": 97, "kexec_load": 104, "init_module": 105,
        "delete_module": 106, "clock_settime": 112, "syslog": 116, "ptrace": 117, "reboot": 142, "sethostname": 161,
        "setdomainname": 162, "settimeofday": 170, "adjtimex": 171, "lookup_dcookie": 18, "socket": 198,
        "socketpair": 199, "add_key": 217, "request_key": 218, "keyctl": 219, "clone": 220, "swapon": 224,
        "swapoff": 225, "shmget": 194, "migrate_pages": 238, "move_pages": 239, "perf_event_open": 241, "fanotify_init": 262,
        "fanotify_mark": 263, "name_to_handle_at": 264, "open_by_handle_at": 265, "clock_adjtime": 266, "setns": 268,
        "memfd_create": 279, "getsockopt": 209,
        "process_vm_readv": 270, "process_vm_writev": 271, "kcmp": 272, "finit_module": 273, "bpf": 280,
        "userfaultfd": 282, "kexec_file_load": 294,
    },
)  # fmt: skip

MACHINES: Mapping[str, Machine] = {"x86_64": X86_64, "amd64": X86_64, "aarch64": AARCH64, "arm64": AARCH64}

LARGEST_SEGMENT = 65_536
"""The maximum size in bytes of a System V shared memory segment. There are at most 4,096 segments. A segment can exist
without a process, so the watchdog cannot count its memory.
"""

MODES: Mapping[str, int] = {
    "chmod": 1,
    "fchmod": 1,
    "fchmodat": 2,
    "mkdir": 1,
    "mkdirat": 2,
    "mknod": 1,
    "mknodat": 2,
    "creat": 1,
}
"""Calls with a file mode, and the index of that argument. If a writable folder contained a file with a bit of `SET_ID`,
any user who starts it on the host would run it as our user.
"""

CONDITIONAL = (
    "openat",
    "open",
    *MODES,
    "getsockopt",
    "socket",
    "socketpair",
    "ioctl",
    "clone",
    "personality",
    "shmget",
)
"""Calls that are denied only for some arguments, the most frequent first. All other calls in a table are denied.
"""

UNKNOWN_TO_PROGRAMS = frozenset({"clone3", "statmount", "listmount", "open_tree_attr", "io_uring_setup", "openat2",
                                 "fchmodat2", "io_uring_enter", "io_uring_register", "memfd_create"})  # fmt: skip
"""Calls that return ENOSYS (unknown), so that programs use an older call instead. The filter cannot see the flags of
clone3 and the mode of openat2, because they are in memory. Most programs are older than fchmodat2. The memory of a
file without a name (memfd_create) could not be counted; that of a file in /tmp or /dev/shm can.
"""


def unknown_architecture(machine: str) -> Cause:
    """The cause why there is no sandbox on an architecture without a table."""
    return Cause(
        "unknown-architecture",
        f"there is no system call filter for {machine}, and commands never run without one.",
        "Use a machine with x86-64 or AArch64.",
    )


@dataclass(frozen=True, slots=True)
class Allowed:
    """What a sandbox allows beyond the rest.

    ``unix_sockets``: streams and sequential packets of Unix, which must be supervised (`unix_sockets`). ``attaching``: the
    calls of debuggers.
    """

    unix_sockets: bool = False
    attaching: bool = False


@functools.cache
def program(machine: str, allowed: Allowed = Allowed()) -> bytes:
    """Make the filter for an architecture (``os.uname().machine``), as bubblewrap's option ``--seccomp`` needs it.

    Raises `SandboxMissing` for an architecture without a table.
    """
    found = MACHINES.get(machine)
    if found is None:
        raise unknown_architecture(machine).error()
    return assemble(_filter(found, allowed))


def notifying(machine: Machine) -> bytes:
    """The filter that hands ``connect`` and ``listen`` to a supervisor. The other filter denies the rest."""
    return assemble(
        [
            (_LOAD, 0, 0, _ARCHITECTURE),
            (_EQUAL, 1, 0, machine.audit),
            _return(ALLOW),
            (_LOAD, 0, 0, _NUMBER),
            (_EQUAL, 1, 0, machine.connect),
            (_EQUAL, 0, 1, machine.listen),
            _return(NOTIFY),
            _return(ALLOW),
        ]
    )


Instruction = tuple[int, int, int, int]
"""Operation, jump if true, jump if false, constant."""

_LOAD, _AND, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16


def assemble(instructions: Iterable[Instruction]) -> bytes:
    """Encode as the kernel's ``struct sock_filter[]``."""
    return b"".join(struct.pack("=HBBI", *i) for i in instructions)


def _filter(machine: Machine, allowed: Allowed) -> list[Instruction]:
    numbers = {
        name: number for name, number in machine.numbers.items() if not (allowed.attaching and name in ATTACHING)
    }
    out: list[Instruction] = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, machine.audit),
        _return(KILL),
        (_LOAD, 0, 0, _NUMBER),
    ]
    if machine.foreign_bit is not None:
        out += [(_AT_LEAST, 0, 1, machine.foreign_bit), _return(KILL)]
    for name in CONDITIONAL:
        if name not in numbers:
            continue
        block = _mode(MODES[name]) if name in MODES else _CHECKS[name](allowed)
        out += [(_EQUAL, 0, len(block), numbers[name]), *block]
    for name, number in sorted(numbers.items(), key=lambda item: item[1]):
        if name not in CONDITIONAL:
            code = errno.ENOSYS if name in UNKNOWN_TO_PROGRAMS else errno.EPERM
            out += [(_EQUAL, 0, 1, number), _deny(code)]
    out += [(_AT_LEAST, 0, 1, NEWEST + 1), _deny(errno.ENOSYS), _return(ALLOW)]
    return out


def _return(action: int) -> Instruction:
    return (_RETURN, 0, 0, action)


def _deny(code: int) -> Instruction:
    return _return(_ERRNO | code)


def _load(argument: int) -> Instruction:
    """Load the low 32 bits of an argument.

    For these arguments the kernel ignores the high 32 bits. So a program could bypass a comparison of all 64 bits.
    """
    return (_LOAD, 0, 0, _ARGUMENTS + 8 * argument)


def _one_of(values: Iterable[int], code: int) -> list[Instruction]:
    """Deny the call unless the loaded value is one of ``values``. If it is, continue after this block."""
    listed = list(values)
    out: list[Instruction] = []
    for index, value in enumerate(listed):
        out.append((_EQUAL, len(listed) - index, 0, value))
    return [*out, _deny(code)]


def _streams(code: int) -> list[Instruction]:
    """Allow only types that need ``connect`` before they can send. A datagram could be sent to any socket path."""
    return [_load(1), (_AND, 0, 0, _TYPE_MASK), *_one_of((SOCK_STREAM, SOCK_SEQPACKET), code), _return(ALLOW)]


def _socket(allowed: Allowed) -> list[Instruction]:
    unix = _streams(errno.EPERM) if allowed.unix_sockets else [_deny(errno.EPERM)]
    inet = [
        _load(1),
        (_AND, 0, 0, _TYPE_MASK),
        *_one_of((SOCK_STREAM, SOCK_DGRAM), errno.EPERM),
        _load(2),
        *_one_of(_PROTOCOLS, errno.EPROTONOSUPPORT),
        _return(ALLOW),
    ]
    # Programs use a routing socket (NETLINK_ROUTE) to list network interfaces. The other netlink families configure the
    # kernel.
    netlink = [_load(2), (_EQUAL, 0, 1, 0), _return(ALLOW), _deny(errno.EPROTONOSUPPORT)]
    return [
        _load(0),
        (_EQUAL, 1, 0, AF_INET),
        (_EQUAL, 0, len(inet), AF_INET6),
        *inet,
        (_EQUAL, 0, len(netlink), AF_NETLINK),
        *netlink,
        (_EQUAL, 0, len(unix), AF_UNIX),
        *unix,
        _deny(errno.EAFNOSUPPORT),
    ]


def _socketpair(allowed: Allowed) -> list[Instruction]:
    """Allow pairs of connected sockets, which event loops need."""
    return [_load(0), *_one_of((AF_UNIX,), errno.EAFNOSUPPORT), *_streams(errno.EPROTONOSUPPORT)]


def _getsockopt(allowed: Allowed) -> list[Instruction]:
    peer = [_load(2), (_EQUAL, 0, 1, SO_PEERPIDFD), _deny(errno.ENOPROTOOPT)]
    return [_load(1), (_EQUAL, 0, len(peer), SOL_SOCKET), *peer, _return(ALLOW)]


def _ioctl(allowed: Allowed) -> list[Instruction]:
    out: list[Instruction] = [_load(1)]
    for request in TERMINAL_IOCTLS:
        out += [(_EQUAL, 0, 1, request), _deny(errno.EPERM)]
    return [*out, _return(ALLOW)]


def _clone(allowed: Allowed) -> list[Instruction]:
    return [_load(0), (_ANY_BIT, 0, 1, NEW_NAMESPACES), _deny(errno.EPERM), _return(ALLOW)]


def _personality(allowed: Allowed) -> list[Instruction]:
    known = (*PERSONALITIES, NO_RANDOM_ADDRESSES) if allowed.attaching else PERSONALITIES
    return [_load(0), *_one_of(known, errno.EPERM), _return(ALLOW)]


def _shmget(allowed: Allowed) -> list[Instruction]:
    size_high = (_LOAD, 0, 0, _ARGUMENTS + 8 * 1 + 4)
    return [
        size_high,
        (_EQUAL, 1, 0, 0),
        _deny(errno.EINVAL),
        _load(1),
        (_AT_LEAST, 0, 1, LARGEST_SEGMENT + 1),
        _deny(errno.EINVAL),
        _return(ALLOW),
    ]


def _mode(argument: int) -> list[Instruction]:
    return [_load(argument), (_ANY_BIT, 0, 1, SET_ID), _deny(errno.EPERM), _return(ALLOW)]


def _creating(flags: int) -> list[Instruction]:
    """Check the mode only if the call creates a file. ``flags``: the index of the flags argument."""
    return [_load(flags), (_ANY_BIT, 1, 0, CREATES), _return(ALLOW), *_mode(flags + 1)]


_CHECKS = {
    "open": lambda _: _creating(1),
    "openat": lambda _: _creating(2),
    "getsockopt": _getsockopt,
    "socket": _socket,
    "socketpair": _socketpair,
    "ioctl": _ioctl,
    "clone": _clone,
    "personality": _personality,
    "shmget": _shmget,
}
