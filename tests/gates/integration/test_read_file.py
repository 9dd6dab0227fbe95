"""The tests of `tests/gates/unit/test_read_file.py` that start processes."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from cantrip_acp.gates.files.read_file import READ_FILE
from cantrip_acp.types.errors import GateError
from tests.gates.unit.test_read_file import GIB, Call, sparse

MEASURED = """
import anyio, inspect, resource, sys, time
from pathlib import Path
from cantrip_acp.gates.contract import GateContext
from cantrip_acp.gates.files.read_file import READ_FILE
from cantrip_acp.gates.wards import Wards
context = GateContext({}, Wards(), Path(sys.argv[1]), "", "", "", "")
async def read(**args):
    result = READ_FILE.handler({"path": "big", **args}, context)
    return (await result if inspect.isawaitable(result) else result).result
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(len(anyio.run(lambda: read())))
print(repr(anyio.run(lambda: read(offset=3, limit=1))))
print(repr(anyio.run(lambda: read(offset=int(sys.argv[2])))[:40]))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_a_file_of_a_gigabyte_is_never_in_memory(workspace: Path) -> None:
    """Text at both ends, a hole of NULs between: read at its beginning, in it, and at its end."""
    head = "".join(f"line {n}\n" for n in range(1, 2001)).encode()
    sparse(workspace / "big", head, GIB, b"\nthe end\n")
    began = time.monotonic()
    out = subprocess.run(
        [sys.executable, "-c", MEASURED, workspace, "2002"], capture_output=True, text=True, timeout=60, check=True
    ).stdout.split("\n")
    assert int(out[0]) < 300_000
    assert out[1] == repr("line 3\n")
    assert out[2] == repr("the end\n")
    assert int(out[3]) < 40_000, "kilobytes more than before"
    assert time.monotonic() - began < 60


def test_a_lease_of_another_program_does_not_hold_us(call: Call, workspace: Path) -> None:
    """A write lease makes opening wait 45 seconds; here it fails at once, or the lease is not to be had."""
    (workspace / "leased.txt").write_text("x")
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import fcntl, os, signal, sys\n"
            "signal.signal(signal.SIGIO, signal.SIG_IGN)\n"
            "fd = os.open(sys.argv[1], os.O_RDWR)\n"
            "fcntl.fcntl(fd, 1024, fcntl.F_WRLCK)\n"
            "print('held', flush=True)\nsys.stdin.read()",
            workspace / "leased.txt",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert holder.stdout is not None
        if holder.stdout.readline() != b"held\n":
            pytest.skip("this file system gives no leases")
        began = time.monotonic()
        with pytest.raises(GateError, match="another program uses it"):
            call(READ_FILE, path="leased.txt")
        # The kernel would hold an open() for 45 s.
        assert time.monotonic() - began < 40
    finally:
        holder.communicate()
