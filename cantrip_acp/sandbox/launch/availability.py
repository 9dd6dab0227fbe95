"""Sandbox availability: finds the program that makes sandboxes. `causes` says why there is none.

There is no weaker fallback: without a sandbox, commands do not run.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

from cantrip_acp.sandbox.launch.causes import MISSING, MISSING_SANDBOX_EXEC, NOT_LINUX

_TRUSTED = "/usr/bin:/usr/local/bin:/bin:/run/current-system/sw/bin:/nix/var/nix/profiles/default/bin"


def back_end() -> str:
    """The program that makes sandboxes on this system: ``bubblewrap``, or ``seatbelt`` (sandbox-exec of macOS)."""
    return "seatbelt" if sys.platform == "darwin" else "bubblewrap"


def find_program() -> str:
    """The path of the program that makes sandboxes. Raises `SandboxMissing`."""
    return find_sandbox_exec() if back_end() == "seatbelt" else find_bubblewrap()


def find_sandbox_exec(path: str = "/usr/bin/sandbox-exec") -> str:
    """The path of sandbox-exec, which is part of macOS. Raises `SandboxMissing`."""
    if not os.access(path, os.X_OK):
        raise MISSING_SANDBOX_EXEC.error()
    return path


def find_bubblewrap(path: str = _TRUSTED) -> str:
    """Find bubblewrap and return its path. Only system folders are searched: PATH may name folders that a command can
    write.

    Raises `SandboxMissing`.
    """
    if sys.platform != "linux":
        raise NOT_LINUX.error()
    found = shutil.which("bwrap", path=path)
    if found is None:
        raise MISSING.error()
    return found


def version(program: str) -> tuple[int, ...]:
    """Bubblewrap's version as numbers, such as (0, 8, 0); () if it does not report a version."""
    try:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=10, check=False, env={})
    except (OSError, subprocess.TimeoutExpired):
        return ()
    numbers = re.search(r"(\d+(?:\.\d+)+)", done.stdout)
    return tuple(int(n) for n in numbers[1].split(".")) if numbers else ()
