"""The kernel's surface: calls that have opened sandboxes before.

Where a call would change nothing by itself, the attack is to reach the kernel's code at all: an answer other than the
filter's own (EPERM, or ENOSYS for what programs may take as unknown) is from behind it.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

from cantrip_acp.sandbox.launch import seccomp
from tests.sandbox.attack.attack import Attack, control, held
from tests.sandbox.attack.attack_scene import Scene
from tests.sandbox.attack.weakened_sandbox import calls, filtered, number

_CAPABLE = "the dropped capabilities stop it as well, with the same answer"
_MISSING = "this kernel does not have it, or its settings forbid it"
_BAD = "-4096"
"""An address of the kernel, which no program may have: what reads it is past the filter. (A low address may be in the heap of a
program, which begins anywhere in its first gigabyte.)"""


_HOST_NETWORK = {"bash_network": True}
"""Without a network namespace of its own, a command can still not attach to processes."""


def reach(name: str, arguments: str, outer: str | None = None, **wards: Any) -> Attack:
    """One call with these arguments (Python); it broke out if anything but the filter answered."""
    program = f"""
back, error = syscall({number(name)}, {arguments})
if back >= 0 or error not in (errno.EPERM, errno.ENOSYS): broke("{name}", back, error)
"""
    return Attack(f"call {name}", program, calls(name), python=True, outer=outer, wards=wards)


_EXIT = "\nif back == 0 and os.getpid() != me: os._exit(0)\n"

ATTACKS = [
    reach("unshare", "0x10000000"),
    reach("setns", "-1, 0"),
    reach("mount", f"{_BAD}, {_BAD}, {_BAD}, 0, 0"),
    reach("umount2", f"{_BAD}, -1"),
    reach("pivot_root", f"{_BAD}, {_BAD}", _CAPABLE),
    reach("chroot", _BAD),
    reach("fsopen", f"{_BAD}, 0", _CAPABLE),
    reach("fsconfig", "-1, 99, 0, 0, 0"),
    reach("fsmount", "-1, -1, -1", _CAPABLE),
    reach("fspick", f"-1, {_BAD}, -1", _CAPABLE),
    reach("move_mount", "-1, 0, -1, 0, -1", _CAPABLE),
    reach("open_tree", f"-100, {_BAD}, 0"),
    reach("mount_setattr", "-1, 0, -1, 0, 0", _CAPABLE),
    reach("statmount", f"{_BAD}, 0, 0, 0"),
    reach("listmount", f"{_BAD}, 0, 0, 0"),
    reach("ptrace", "0, 0, 0, 0", **_HOST_NETWORK),
    reach("process_vm_readv", "os.getpid(), 0, 0, 0, 0, 0", **_HOST_NETWORK),
    reach("process_vm_writev", "os.getpid(), 0, 0, 0, 0, 0", **_HOST_NETWORK),
    reach("pidfd_getfd", "os.pidfd_open(os.getpid()), 1, 0"),
    reach("process_madvise", "-1, 0, 0, 0, 0"),
    reach("process_mrelease", "-1, 0"),
    reach("kcmp", "os.getpid(), os.getpid(), 0, 1, 1", _MISSING),
    reach("move_pages", "0, 0, 0, 0, 0, 0", _MISSING),
    reach("migrate_pages", "0, 0, 0, 0", _MISSING),
    reach("bpf", f"0, {_BAD}, 0x7fffffff"),
    reach("perf_event_open", f"{_BAD}, 0, -1, -1, -1"),
    reach("userfaultfd", "1", _MISSING),
    reach("io_uring_setup", f"1, {_BAD}", _MISSING),
    reach("io_uring_enter", "-1, 0, 0, 0, 0, 0", _MISSING),
    reach("io_uring_register", "-1, 0, 0, 0", _MISSING),
    reach("add_key", f"{_BAD}, 0, 0, 0, -3"),
    reach("request_key", f"{_BAD}, 0, 0, -3"),
    reach("keyctl", "0, -3, 1", _MISSING),
    reach("memfd_secret", "0", _MISSING),
    reach("fanotify_init", "0x200, 0", _MISSING),
    reach("fanotify_mark", "-1, 0, 0, 0, 0", _MISSING),
    reach("name_to_handle_at", f"-100, {_BAD}, {_BAD}, {_BAD}, 0"),
    reach("open_by_handle_at", f"-100, {_BAD}, 0", _CAPABLE),
    reach("quotactl", "0x80000001, 0, 0, 0", _MISSING),
    reach("acct", _BAD, _CAPABLE),
    reach("swapon", f"{_BAD}, 0", _CAPABLE),
    reach("reboot", "0xfee1dead, 0, 0, 0", _CAPABLE),
    reach("init_module", f"{_BAD}, 1, {_BAD}", _CAPABLE),
    reach("finit_module", f"-1, {_BAD}, 0", _CAPABLE),
    reach("kexec_load", "0, 0, 0, 0", _CAPABLE),
    reach("sethostname", f"{_BAD}, 1", _CAPABLE),
    reach("syslog", "10, 0, 0", _CAPABLE),
    reach("adjtimex", _BAD),
    reach("clock_settime", f"99, {_BAD}"),
    reach("settimeofday", f"{_BAD}, 0"),
    reach("vhangup", "", _CAPABLE),
    reach("personality", "0x0400000"),
    reach("clone3", f"{_BAD}, 64"),
    reach("lsm_set_self_attr", "0, 0, 0, 0", _MISSING),
    Attack(
        "clone into a user namespace",
        f"me = os.getpid()\nback, error = syscall({number('clone')}, 0x10000000 | 17, 0, 0, 0, 0)\n"
        "if back == 0: os._exit(0)\nif back > 0: os.waitpid(back, 0); broke('cloned')",
        calls("clone"),
        python=True,
    ),
    Attack(
        "read another process's memory by the kernel",
        f"""
secret = ctypes.create_string_buffer(b"held in memory")
class Piece(ctypes.Structure): _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
child = os.fork()
if child == 0: time.sleep(5); os._exit(0)
mine = ctypes.create_string_buffer(14)
here, there = Piece(ctypes.addressof(mine), 14), Piece(ctypes.addressof(secret), 14)
libc.syscall(ctypes.c_long({number("process_vm_readv")}), ctypes.c_long(child), ctypes.byref(here), ctypes.c_long(1),
             ctypes.byref(there), ctypes.c_long(1), ctypes.c_long(0))
os.kill(child, 9)
if mine.raw == b"held in memory": broke("read")
""",
        calls("process_vm_readv"),
        python=True,
        wards=_HOST_NETWORK,
    ),
    Attack(
        "take over another process by debugging it",
        f"""
child = os.fork()
if child == 0: time.sleep(5); os._exit(0)
back, error = syscall({number("ptrace")}, 16, child, 0, 0)
if back == 0: broke("attached")
os.kill(child, 9)
""",
        calls("ptrace"),
        python=True,
        wards=_HOST_NETWORK,
    ),
    Attack(
        "type into a terminal",
        """
import fcntl, pty, termios
outer, inner = pty.openpty()
os.setsid() if os.getpid() != os.getsid(0) else None
try:
    fcntl.ioctl(inner, termios.TIOCSCTTY, 0)
    fcntl.ioctl(inner, termios.TIOCSTI, b"x")
    broke("typed")
except OSError as error: print(error)
""",
        calls("ioctl"),
        python=True,
        outer=_MISSING,
    ),
    # What is no terminal says so (ENOTTY), once the filter has let it be asked.
    *(
        Attack(
            f"{name}, asked of a file",
            f"back, error = syscall({number('ioctl')}, os.open('/dev/null', 0), {request}, {_BAD})\n"
            "if error != errno.EPERM: broke('asked', error)",
            calls("ioctl"),
            python=True,
        )
        for name, request in (("TIOCSTI", 0x5412), ("TIOCLINUX", 0x541C), ("TIOCSETD", 0x5423))
    ),
    Attack(
        "load a line discipline",
        """
import fcntl, pty, struct
outer, inner = pty.openpty()
try: fcntl.ioctl(inner, 0x5423, struct.pack("i", 0)); broke("set")
except OSError as error: print(error)
""",
        calls("ioctl"),
        python=True,
    ),
    Attack(
        "type into a terminal with an argument of more than 32 bits",
        f"""
import pty
outer, inner = pty.openpty()
os.setsid() if os.getpid() != os.getsid(0) else None
import fcntl, termios
try: fcntl.ioctl(inner, termios.TIOCSCTTY, 0)
except OSError: pass
letter = ctypes.create_string_buffer(b"x")
back, error = syscall({number("ioctl")}, inner, 0x100005412, ctypes.c_void_p(ctypes.addressof(letter)))
if back == 0: broke("typed")
""",
        calls("ioctl"),
        python=True,
        outer=_MISSING,
    ),
]

if os.uname().machine in ("x86_64", "amd64"):

    def without_abi() -> bytes:
        """The filter without its first question, which ABI a call is of."""
        code = seccomp._filter(seccomp.X86_64, seccomp.Allowed())
        return seccomp.assemble([code[3], *code[6:]])

    _ABI = filtered("the question which ABI a call is of", without_abi)
    ATTACKS += [
        reach("modify_ldt", "0, 0, 0"),
        reach("iopl", "0", _MISSING),
        reach("ioperm", "0, 1, 0", _MISSING),
        reach("ustat", "0, 0"),
        reach("sysfs", "3, 0, 0", _MISSING),
        Attack(
            "the 32-bit ABI",
            """
# mov eax, 20 (getpid there); int 0x80; ret
code = b"\\xb8\\x14\\x00\\x00\\x00\\xcd\\x80\\xc3"
memory = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
memory.write(code)
address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
if ctypes.CFUNCTYPE(ctypes.c_int)(address)() == os.getpid(): broke("called")
""",
            _ABI,
            python=True,
            ends=True,
            outer="this kernel does not have the 32-bit ABI",
        ),
        Attack(
            "the x32 ABI",
            "syscall(0x40000000 | 39)\nbroke('went on')",
            _ABI,
            python=True,
            ends=True,
        ),
    ]


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda a: a.name)
async def test_held(attack: Attack, scene: Scene) -> None:
    await held(attack, scene)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda a: a.name)
async def test_control(attack: Attack, scene: Scene) -> None:
    reason = await control(attack, scene)
    if reason is not None:
        pytest.skip(f"unprovable here: {reason}")


def test_every_filtered_call_is_attacked_or_named() -> None:
    """A call that joins the table gets an attack, or a place among those that no kernel of today has."""
    gone = {"uselib", "_sysctl", "create_module", "get_kernel_syms", "query_module", "nfsservctl", "lookup_dcookie"}
    rarely = {
        "swapoff",
        "setdomainname",
        "delete_module",
        "clock_adjtime",
        "kexec_file_load",
        "quotactl_fd",
        "open_tree_attr",
    }
    elsewhere = {
        "socket",
        "socketpair",
        "getsockopt",
        "ioctl",
        "clone",
        "shmget",
        "memfd_create",
        "open",
        "openat",
        "openat2",
        "fchmodat2",
    }
    elsewhere |= set(seccomp.MODES)
    tried = {attack.name.removeprefix("call ") for attack in ATTACKS}
    assert set(seccomp.MACHINES[os.uname().machine].numbers) <= gone | rarely | elsewhere | tried
