"""What the watchdog counts as a sandbox's own."""

from __future__ import annotations

import os

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
