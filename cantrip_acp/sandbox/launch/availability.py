"""Sandbox availability: whether this machine can run a sandbox, and if not, why and how to fix it. There is no weaker
fallback.
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
    """Why there is no sandbox: a short name for programs, a sentence, and what to do about it."""

    name: str
    text: str
    mend: str
    lasting: bool = True
    """True where the cause is the machine, False where it is this one command."""

    def error(self) -> SandboxError:
        """`SandboxMissing` where no command can run here, `SandboxError` where only this one could not."""
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
    "commands do not run on macOS yet: their policy can be written as a sandbox-exec profile, but nobody has tried that "
    "profile, nor how a command's whole process tree is ended there.",
    "Use Linux, in a virtual machine for example.",
)
APPARMOR = Cause(
    "apparmor-restricts-user-namespaces",
    "AppArmor forbids bubblewrap to make a user namespace (kernel.apparmor_restrict_unprivileged_userns=1).",
    "Allow it for bubblewrap alone: write a profile /etc/apparmor.d/bwrap with `abi <abi/4.0>, include <tunables/global> "
    "profile bwrap /usr/bin/bwrap flags=(unconfined) { userns, }` and run `sudo systemctl reload apparmor`.",
)
USER_NAMESPACES_OFF = Cause(
    "user-namespaces-off",
    "this kernel does not let its users make user namespaces.",
    "Run `sudo sysctl -w kernel.unprivileged_userns_clone=1` (Debian), or raise user.max_user_namespaces above 0.",
)
NESTED = Cause(
    "nested-sandbox",
    "this process already runs inside a sandbox or container that forbids new namespaces, so no sandbox can be made in it.",
    "Start the agent outside of that sandbox; in Docker, run with `--security-opt seccomp=unconfined --security-opt "
    "apparmor=unconfined --security-opt systempaths=unconfined`, or use a container runtime that allows nesting.",
)
NO_NETWORK_NAMESPACE = Cause(
    "no-network-namespace",
    "bubblewrap cannot set up a network namespace here, so the network cannot be kept off.",
    "An AppArmor profile or an outer container forbids it: allow `userns` and `capability net_admin` for bubblewrap there.",
)
OLD = Cause(
    "old-bubblewrap",
    "bubblewrap is too old: version 0.8 or newer is needed.",
    "Update it from your distribution's newer release or backports.",
)


def find_bubblewrap(path: str = _TRUSTED) -> str:
    """Path of bubblewrap. Only system folders are searched: PATH may name folders that a command can write.

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
    """Bubblewrap's version; () where it does not report one."""
    try:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=10, check=False, env={})
    except (OSError, subprocess.TimeoutExpired):
        return ()
    numbers = re.search(r"(\d+(?:\.\d+)+)", done.stdout)
    return tuple(int(n) for n in numbers[1].split(".")) if numbers else ()


def explain(words: str) -> Cause:
    """The cause for bubblewrap's error text when it could not set up a sandbox."""
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
    line = words.splitlines()[-1] if words else "it ended without a word"
    return Cause(
        "bubblewrap-failed",
        f"bubblewrap could not set the sandbox up: {line}.",
        "Run `cantrip doctor` for what it needs, and `cantrip sandbox policy` for what it was asked.",
        lasting=False,
    )


def _setting(name: str) -> str | None:
    try:
        with open(f"/proc/sys/{name}", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return None
