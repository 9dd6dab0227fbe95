"""What the watchdog counts as a sandbox's own."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from cantrip_acp.sandbox.launch import limits


def test_the_hosts_folders_are_never_counted() -> None:
    """A sandbox that has no root of its own yet still stands on the host's, whose /tmp may hold any number of bytes.

    This process stands there for good: what its folders hold is not its use.
    """
    whole = os.statvfs("/")
    assert (whole.f_blocks - whole.f_bfree) * whole.f_frsize > 64 * 1024 * 1024, "a host with something on its disk"
    assert limits.measure(os.getpid(), ("/", "/tmp")).memory - limits.measure(os.getpid()).memory < 64 * 1024 * 1024


def test_the_hosts_processes_are_never_counted() -> None:
    """A sandbox that is still being set up is in the host's process namespace for a moment."""
    assert limits.measure(os.getpid()) == limits.Use(0, 0)


def test_a_folder_of_the_host_in_the_place_of_a_private_one_is_not_counted(tmp_path: Path) -> None:
    """A workspace in /tmp, for example: what is on the host's disk is no memory of the sandbox. Its own /tmp is."""
    shown, info = str(tmp_path), os.memfd_create("info")
    usual = [word for path in ("/usr", "/bin", "/lib", "/lib64") for word in ("--ro-bind-try", path, path)]
    script = "head -c 1000000 /dev/zero >/tmp/mine; echo ready; read line"
    with subprocess.Popen(
        [
            "bwrap",
            "--info-fd",
            str(info),
            *usual,
            "--dev",
            "/dev",
            "--tmpfs",
            "/tmp",
            "--bind",
            shown,
            shown,
            "sh",
            "-c",
            script,
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=[info],
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == b"ready\n"
        pid = json.loads(os.pread(info, 1000, 0))["child-pid"]
        used = limits.measure(pid, (shown,)).memory
        both = limits.measure(pid, (shown, "/tmp")).memory
        process.stdin.close()
    os.close(info)
    assert used < 1_000_000 <= both - used < 64 * 1024 * 1024
