"""Sandbox availability: whether this machine can run a sandbox, and if not, why, and how to fix that.

There is no weaker fallback: without a sandbox, commands do not run.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass

from cantrip_acp.core.errors import SandboxError, SandboxMissing

_TRUSTED = "/usr/bin:/usr/local/bin:/bin:/run/current-system/sw/bin:/nix/var/nix/profiles/default/bin"


@dataclass(frozen=True, slots=True)
class Cause:
    """Why there is no sandbox: a short name for programs, a sentence for people, and how to fix it (``mend``)."""

    name: str
    text: str
    mend: str
    lasting: bool = True
    """True if no command can run on this machine; False if only this command could not run."""

    def error(self) -> SandboxError:
        """Make the error to raise: `SandboxMissing` if the cause is lasting, else `SandboxError`."""
        if self.lasting:
            return SandboxMissing(self.text, mend=self.mend)
        return SandboxError(f"{self.text} {self.mend}")


MISSING = Cause(
    "missing-bubblewrap",
    "bubblewrap (bwrap) is not installed, and commands never run without a sandbox.",
    "Install it: `apt install bubblewrap`, `dnf install bubblewrap`, `pacman -S bubblewrap` or `apk add bubblewrap`.",
)
NOT_LINUX = Cause(
    "not-linux",
    f"there is no sandbox for {sys.platform} in this version, and commands never run without one.",
    "Use Linux, or WSL 2 on Windows.",
)
MACOS = Cause(
    "macos-untried",
    "commands do not run on macOS yet: their policy can be written as a sandbox-exec profile, but nobody has tested that "
    "profile, nor how to kill the whole process tree of a command there.",
    "Use Linux, for example in a virtual machine.",
)
APPARMOR = Cause(
    "apparmor-restricts-user-namespaces",
    "AppArmor does not allow bubblewrap to create a user namespace (kernel.apparmor_restrict_unprivileged_userns=1).",
    "Allow it only for bubblewrap: write a profile /etc/apparmor.d/bwrap with `abi <abi/4.0>, include <tunables/global> "
    "profile bwrap /usr/bin/bwrap flags=(unconfined) { userns, }` and run `sudo systemctl reload apparmor`.",
)
USER_NAMESPACES_OFF = Cause(
    "user-namespaces-off",
    "this kernel does not allow ordinary users to create user namespaces.",
    "Run `sudo sysctl -w kernel.unprivileged_userns_clone=1` (Debian), or raise user.max_user_namespaces above 0.",
)
NESTED = Cause(
    "nested-sandbox",
    "this process already runs inside a sandbox or container that forbids new namespaces, so no sandbox can be created.",
    "Start the agent outside of that sandbox; in Docker, run with `--security-opt seccomp=unconfined --security-opt "
    "apparmor=unconfined --security-opt systempaths=unconfined`, or use a container runtime that allows nesting.",
)
NO_NETWORK_NAMESPACE = Cause(
    "no-network-namespace",
    "bubblewrap cannot set up a network namespace here, so commands could use the network.",
    "An AppArmor profile or an outer container forbids it: allow `userns` and `capability net_admin` for bubblewrap there.",
)
OLD = Cause(
    "old-bubblewrap",
    "bubblewrap is too old: version 0.8 or newer is needed.",
    "Update it from your distribution's newer release or backports.",
)


def find_bubblewrap(path: str = _TRUSTED) -> str:
    """Find bubblewrap and return its path. Only system folders are searched: PATH may name folders that a command can
    write.

    Raises `SandboxMissing`.
    """
    if sys.platform == "darwin":
        raise MACOS.error()
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


def explain(words: str) -> Cause:
    """Find the cause for the error text ``words`` that bubblewrap wrote when it could not set up a sandbox."""
    words = words.strip()
    if "Unknown option" in words:
        return OLD
    if re.search(r"loopback|RTM_NEWADDR|RTM_NEWLINK|NETLINK", words):
        return NO_NETWORK_NAMESPACE
    if re.search(r"No permissions? to creat|[Cc]reating new namespace failed|setting up uid map|namespace", words):
        if _setting("kernel/apparmor_restrict_unprivileged_userns") == "1" and os.getuid() != 0:
            return APPARMOR
        if _setting("kernel/unprivileged_userns_clone") == "0" or _setting("user/max_user_namespaces") == "0":
            return USER_NAMESPACES_OFF
        return NESTED
    if re.search(r"(Can't mount proc|pivot_root|Failed to make / slave|mount).*(not permitted|denied)", words):
        return NESTED
    line = words.splitlines()[-1] if words else "it ended without a message"
    return Cause(
        "bubblewrap-failed",
        f"bubblewrap could not set up the sandbox: {line}.",
        "Run `cantrip doctor` to see what it needs, and `cantrip sandbox policy` to see what it had to set up.",
        lasting=False,
    )


def _setting(name: str) -> str | None:
    try:
        with open(f"/proc/sys/{name}", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return None
