"""The filter, run by a small interpreter, and held against what libseccomp makes of the same rules."""

from __future__ import annotations

import ctypes
import ctypes.util
import errno
import itertools
import os
import platform
import struct
import tempfile

import pytest

from cantrip_acp.sandbox.launch import seccomp
from cantrip_acp.types.errors import SandboxMissing
from tests.sandbox.integration.conftest import Make

AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}


def decide(program: bytes, arch: int, number: int, *arguments: int) -> int:
    """What the kernel would do with this call: a classic BPF machine over ``struct seccomp_data``."""
    padded = [*arguments, 0, 0, 0, 0, 0, 0][:6]
    data = struct.pack("<iIQ6Q", number if number < 2**31 else number - 2**32, arch, 0, *padded)
    steps = [struct.unpack("=HBBI", program[i : i + 8]) for i in range(0, len(program), 8)]
    at = accumulator = 0
    while True:
        code, yes, no, k = steps[at]
        at += 1
        if code == 0x20:
            accumulator = struct.unpack_from("<I", data, k)[0]
        elif code == 0x54:
            accumulator &= k
        elif code == 0x06:
            return k
        elif code == 0x05:
            at += k
        else:
            true = {0x15: accumulator == k, 0x35: accumulator >= k, 0x25: accumulator > k, 0x45: bool(accumulator & k)}[
                code
            ]
            at += yes if true else no


def error(code: int) -> int:
    return 0x00050000 | code


@pytest.fixture(params=["x86_64", "aarch64"])
def machine(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def test_whole_calls(machine: str) -> None:
    program, numbers, arch = seccomp.program(machine), seccomp.MACHINES[machine].numbers, AUDIT[machine]
    for name, number in numbers.items():
        if name not in seccomp.CONDITIONAL:
            wanted = errno.ENOSYS if name in seccomp.UNKNOWN_TO_PROGRAMS else errno.EPERM
            assert decide(program, arch, number) == error(wanted), name
    ordinary = {"x86_64": (0, 1, 59, 231, 257, 334, 424), "aarch64": (63, 64, 221, 94, 56, 424)}[machine]
    for number in ordinary:
        assert decide(program, arch, number) == seccomp.ALLOW


def test_other_abis_end_the_process(machine: str) -> None:
    program = seccomp.program(machine)
    for arch in (0x40000003, 0x40000028, 0xC00000B7 if machine == "x86_64" else 0xC000003E, 0):
        assert decide(program, arch, 0) == seccomp.KILL
    if machine == "x86_64":
        for number in (0x40000000, 0x40000000 + 41, 0x7FFFFFFF):
            assert decide(program, AUDIT[machine], number) == seccomp.KILL


def test_calls_that_are_newer_than_the_table(machine: str) -> None:
    program = seccomp.program(machine)
    for number in (seccomp.NEWEST + 1, 1000, 0x3FFFFFFF):
        assert decide(program, AUDIT[machine], number) == error(errno.ENOSYS)


def test_sockets(machine: str) -> None:
    program, arch = seccomp.program(machine), AUDIT[machine]
    number = seccomp.MACHINES[machine].numbers["socket"]
    flags = 0o2000000 | 0o4000
    for family in range(60):
        for kind in range(8):
            for protocol in (0, 1, 6, 17, 58, 33, 132, 262):
                got = decide(program, arch, number, family, kind | flags, protocol)
                inet = family in (2, 10) and kind in (1, 2) and protocol in (0, 1, 6, 17, 58)
                assert (got == seccomp.ALLOW) == (inet or (family == 16 and protocol == 0)), (family, kind, protocol)
    # What is above 32 bits is not looked at by the kernel, and must not hide a family from the filter.
    assert decide(program, arch, number, (1 << 32) | 1, 1, 0) == error(errno.EPERM)
    pair = seccomp.MACHINES[machine].numbers["socketpair"]
    for family, kind in itertools.product(range(45), range(8)):
        allowed = family == 1 and kind in (1, 5)
        assert (decide(program, arch, pair, family, kind | flags) == seccomp.ALLOW) == allowed


def test_what_an_own_network_namespace_allows(machine: str) -> None:
    allowed = seccomp.Allowed(unix_sockets=True, attaching=True)
    program, arch, numbers = seccomp.program(machine, allowed), AUDIT[machine], seccomp.MACHINES[machine].numbers
    for kind, flags in itertools.product(range(11), (0, 0o4000, 0o2000000)):
        for name, code in (("socket", errno.EPERM), ("socketpair", errno.EPROTONOSUPPORT)):
            wanted = seccomp.ALLOW if kind in (1, 5) else error(code)
            assert decide(program, arch, numbers[name], 1, kind | flags) == wanted, (name, kind)
    for name in ("ptrace", "process_vm_readv", "process_vm_writev"):
        assert decide(program, arch, numbers[name]) == seccomp.ALLOW, name
    assert decide(program, arch, numbers["personality"], 0x40000) == seccomp.ALLOW
    assert decide(program, arch, numbers["personality"], 0x400000) == error(errno.EPERM)
    assert decide(program, arch, numbers["memfd_secret"]) == error(errno.EPERM)
    for level, option in itertools.product((0, 1, 6), range(100)):
        got = decide(program, arch, numbers["getsockopt"], 3, level, option)
        assert got == (error(errno.ENOPROTOOPT) if (level, option) == (1, 77) else seccomp.ALLOW)


def test_what_the_supervisor_is_asked(machine: str) -> None:
    found = seccomp.MACHINES[machine]
    program = seccomp.notifying(found)
    asked = [n for n in range(1000) if decide(program, AUDIT[machine], n) == seccomp.NOTIFY]
    assert asked == sorted((found.connect, found.listen))
    # The other filter ends these.
    assert decide(program, 0x40000003, found.connect) == seccomp.ALLOW


def test_terminals_namespaces_and_personalities(machine: str) -> None:
    program, arch, numbers = seccomp.program(machine), AUDIT[machine], seccomp.MACHINES[machine].numbers
    for request in (0x5412, 0x541C, 0x5423):
        assert decide(program, arch, numbers["ioctl"], 0, request) == error(errno.EPERM)
        assert decide(program, arch, numbers["ioctl"], 0, request | 0xABC << 32) == error(errno.EPERM)
    assert decide(program, arch, numbers["ioctl"], 0, 0x5401) == seccomp.ALLOW
    for bit in range(32):
        flag = 1 << bit
        got = decide(program, arch, numbers["clone"], flag | 17)
        assert (got == seccomp.ALLOW) == (not flag & seccomp.NEW_NAMESPACES), hex(flag)
    assert decide(program, arch, numbers["personality"], 0xFFFFFFFF) == seccomp.ALLOW
    assert decide(program, arch, numbers["personality"], 0x0400000) == error(errno.EPERM)


def test_segments_are_small(machine: str) -> None:
    program, number, arch = seccomp.program(machine), seccomp.MACHINES[machine].numbers["shmget"], AUDIT[machine]
    for size, allowed in ((0, True), (56, True), (65_536, True), (65_537, False), (1 << 31, False), (1 << 32, False)):
        assert decide(program, arch, number, 0, size) == (seccomp.ALLOW if allowed else error(errno.EINVAL)), size


def test_modes_with_set_id_bits(machine: str) -> None:
    program, arch, numbers = seccomp.program(machine), AUDIT[machine], seccomp.MACHINES[machine].numbers
    modes = [0, 0o644, 0o1777, 0o777, 0o100644, 0o4000, 0o4755, 0o2755, 0o6777, 0o106755, 0o2000 | 1 << 40]
    for name, at in seccomp.MODES.items():
        if name in numbers:
            for mode in modes:
                allowed = seccomp.ALLOW if not mode & 0o6000 else error(errno.EPERM)
                assert decide(program, arch, numbers[name], *[0] * at, mode) == allowed, (name, oct(mode))
    for name, at in {"open": 1, "openat": 2}.items():
        if name in numbers:
            for flags, mode in itertools.product((0, 2, 0o100, 0o102, 0o20200000, 0o1100 | 1 << 35, 1 << 35), modes):
                allowed = not mode & 0o6000 or not flags & 0o20000100
                got = decide(program, arch, numbers[name], *[0] * at, flags, mode)
                assert (got == seccomp.ALLOW) == allowed, (name, oct(flags), oct(mode))


def test_an_unknown_architecture_has_no_sandbox() -> None:
    with pytest.raises(SandboxMissing, match="riscv64"):
        seccomp.program("riscv64")


def test_numbers_are_the_kernels_own(machine: str) -> None:
    """libseccomp knows every call's number; ours are typed in by hand."""
    library = _libseccomp()
    for name, number in seccomp.MACHINES[machine].numbers.items():
        found = library.seccomp_syscall_resolve_name_arch(AUDIT[machine], name.encode())
        # -1: a call that this libseccomp is too old to know.
        assert found in (number, -1), name


def test_decisions_are_those_of_libseccomp(machine: str) -> None:
    """The same rules, compiled by somebody else."""
    library, arch, numbers = _libseccomp(), AUDIT[machine], seccomp.MACHINES[machine].numbers
    context = library.seccomp_init(seccomp.ALLOW)
    assert context
    if machine != platform.machine():
        assert library.seccomp_arch_add(context, arch) == 0
        native = {"x86_64": AUDIT["x86_64"], "aarch64": AUDIT["aarch64"]}.get(platform.machine())
        assert native is not None
        assert library.seccomp_arch_remove(context, native) == 0
    # Rules are given in the numbers of the machine that this runs on, and libseccomp translates them.
    native = {n: library.seccomp_syscall_resolve_name(n.encode()) for n in numbers}
    unknown = {numbers[n] for n, found in native.items() if found == -1}
    for name in numbers:
        if name not in seccomp.CONDITIONAL and native[name] != -1:
            code = errno.ENOSYS if name in seccomp.UNKNOWN_TO_PROGRAMS else errno.EPERM
            _rule(library, context, error(code), native[name])
    for request in seccomp.TERMINAL_IOCTLS:
        _rule(library, context, error(errno.EPERM), native["ioctl"], (1, "masked", 0xFFFFFFFF, request))
    for bit in range(32):
        if seccomp.NEW_NAMESPACES & (1 << bit):
            _rule(library, context, error(errno.EPERM), native["clone"], (0, "masked", 1 << bit, 1 << bit))
    for bit in (0o4000, 0o2000):
        for name, at in seccomp.MODES.items():
            if name in numbers:
                _rule(library, context, error(errno.EPERM), native[name], (at, "masked", bit, bit))
        for name, at in {"open": 1, "openat": 2}.items():
            for creates in (0o100, 0o20000000) if name in numbers else ():
                where = ((at, "masked", creates, creates), (at + 1, "masked", bit, bit))
                _rule(library, context, error(errno.EPERM), native[name], *where)
    theirs = _export(library, context)
    ours = seccomp.program(machine)
    for number in range(seccomp.NEWEST + 1):
        if number in unknown or number in [numbers[n] for n in ("socket", "socketpair", "personality", "shmget")]:
            continue
        for arguments in _ARGUMENTS:
            assert decide(ours, arch, number, *arguments) == decide(theirs, arch, number, *arguments), (
                number,
                arguments,
            )


_ARGUMENTS = (
    (), (0, 0x5412), (0, 0x541C | 1 << 40), (0x10000011, 0), (0x01200011, 0x5401), (0x7E020000,),
    (0, 0o4755), (0, 0o2000, 0), (0, 0, 0o6755), (0, 0o644, 0o755), (0, 0o102, 0o4644), (0, 0o20200002, 0o2644),
    (0, 0, 0o100, 0o4755), (0, 0, 0o20200000, 0o2700), (0, 0, 0o100, 0o755), (0, 0, 0, 0o4755),
)  # fmt: skip


class _Comparison(ctypes.Structure):
    _fields_ = [("arg", ctypes.c_uint), ("op", ctypes.c_int), ("a", ctypes.c_uint64), ("b", ctypes.c_uint64)]


def _libseccomp() -> ctypes.CDLL:
    name = ctypes.util.find_library("seccomp")
    if name is None:
        pytest.skip("libseccomp is not installed")
    library = ctypes.CDLL(name)
    library.seccomp_init.restype = ctypes.c_void_p
    library.seccomp_init.argtypes = [ctypes.c_uint32]
    library.seccomp_syscall_resolve_name.argtypes = [ctypes.c_char_p]
    library.seccomp_syscall_resolve_name_arch.argtypes = [ctypes.c_uint32, ctypes.c_char_p]
    for function in (library.seccomp_arch_add, library.seccomp_arch_remove):
        function.argtypes = [ctypes.c_void_p, ctypes.c_uint32]
    return library


def _rule(library: ctypes.CDLL, context: int, action: int, number: int, *where: tuple[int, str, int, int]) -> None:
    comparisons = (_Comparison * len(where))(*[_Comparison(arg, 7, mask, value) for arg, _, mask, value in where])
    added = library.seccomp_rule_add_exact_array(
        ctypes.c_void_p(context), ctypes.c_uint32(action), ctypes.c_int(number), ctypes.c_uint(len(where)), comparisons
    )
    assert added == 0, (number, os.strerror(-added))


def _export(library: ctypes.CDLL, context: int) -> bytes:
    with tempfile.TemporaryFile() as file:
        assert library.seccomp_export_bpf(ctypes.c_void_p(context), ctypes.c_int(file.fileno())) == 0
        file.seek(0)
        return file.read()


TRIES = r"""
import ctypes, errno, socket
lib = ctypes.CDLL(None, use_errno=True)
def call(name, number, *args):
    ctypes.set_errno(0)
    result = lib.syscall(number, *args)
    print(name, "done" if result >= 0 else errno.errorcode[ctypes.get_errno()])
for name, number in {numbers!r}.items():
    call(name, number, 0, 0, 0, 0, 0, 0)
"""


async def test_the_kernel_keeps_it(make: Make) -> None:
    machine = platform.machine()
    if machine not in AUDIT:
        pytest.skip(f"no table for {machine}")
    names = ("bpf", "io_uring_setup", "clone3", "keyctl", "mount", "unshare", "setns", "userfaultfd",
             "perf_event_open", "open_tree", "openat2",
             "fchmodat2", "kexec_load", "init_module", "pidfd_getfd")  # fmt: skip
    numbers = {n: seccomp.MACHINES[machine].numbers[n] for n in names}
    outcome = await make().run("python3 - <<'EOF'\n" + TRIES.replace("{numbers!r}", repr(numbers)) + "EOF")
    seen = dict(line.split() for line in outcome.stdout.splitlines())
    for name in names:
        assert seen[name] == ("ENOSYS" if name in seccomp.UNKNOWN_TO_PROGRAMS else "EPERM"), name
