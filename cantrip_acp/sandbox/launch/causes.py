"""Causes: why there is no sandbox on this machine, and the command that fixes it.

bubblewrap says only which step failed, for example ``Creating new namespace failed: Operation not permitted``. A container,
AppArmor, a setting of the kernel, gVisor and an editor's own sandbox all give the same few messages. So `explain` also
reads `Facts`: what the system says about itself. Tests give it the recorded facts of other machines.
docs/sandbox.md has a table of all causes.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from cantrip_acp.types.errors import SandboxError, SandboxMissing

_SYS_ADMIN = 1 << 21
_LARGEST_FILE = 262_144


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


class Facts:
    """Facts about the system.

    ``read`` returns the text of a file, or None if it cannot be read. ``environ``: the environment of this process.
    """

    def __init__(self, read: Callable[[str], str | None], environ: Mapping[str, str]) -> None:
        self.read = read
        self.environ = environ

    @classmethod
    def of_this_machine(cls) -> Facts:
        return cls(_read, os.environ)

    def setting(self, name: str) -> str | None:
        """The value of a kernel setting such as ``user/max_user_namespaces``; None if there is no such setting."""
        value = self.read(f"/proc/sys/{name}")
        return value.strip() if value is not None else None

    @cached_property
    def kernel(self) -> str:
        """``gVisor``, ``WSL 1``, ``WSL 2``, or nothing for any other kernel."""
        version = self.read("/proc/version") or ""
        # gVisor reports this date of build, whatever its version is.
        if "gvisor" in version.lower() or "#1 SMP Sun Jan 10 15:06:54 PST 2016" in version:
            return "gVisor"
        if "microsoft" in version.lower():
            return "WSL 2" if "WSL2" in version or not re.search(r"version [1-4]\.", version) else "WSL 1"
        return ""

    @cached_property
    def container(self) -> str:
        """The program that made the container in which this process runs, such as ``docker``; nothing if there is none."""
        cgroup = self.read("/proc/self/cgroup") or ""
        if self.environ.get("KUBERNETES_SERVICE_HOST") or "kubepods" in cgroup:
            return "kubernetes"
        if self.read("/run/.containerenv") is not None:
            return "podman"
        if self.read("/.dockerenv") is not None or "/docker/" in cgroup:
            return "docker"
        return (self.read("/run/systemd/container") or self.environ.get("container", "")).strip()

    @cached_property
    def label(self) -> str:
        """The name of the AppArmor profile or the SELinux context of this process, such as ``docker-default (enforce)``."""
        return (self.read("/proc/self/attr/current") or "").strip("\0\n ")

    @cached_property
    def filtered(self) -> bool:
        """Whether a system call filter (seccomp) applies to this process."""
        return self._status("Seccomp") == "2"

    @cached_property
    def is_admin(self) -> bool:
        """Whether this process may administer the machine (CAP_SYS_ADMIN)."""
        return bool(int(self._status("CapEff") or "0", 16) & _SYS_ADMIN)

    @cached_property
    def masked(self) -> tuple[str, ...]:
        """The paths below /proc that are covered by another mount, as container programs do it."""
        points = [line.split()[4] for line in self._mounts()]
        return tuple(
            sorted({p for p in points if p.startswith("/proc/") and not p.startswith("/proc/sys/fs/binfmt_misc")})
        )

    @cached_property
    def is_chroot(self) -> bool:
        """Whether the root folder of this process is no mount point, as after chroot."""
        mounts = self._mounts()
        return bool(mounts) and not any(line.split()[4] == "/" for line in mounts)

    @cached_property
    def unit(self) -> str:
        """The systemd service in which this process runs; nothing if there is none."""
        last = (self.read("/proc/self/cgroup") or "").strip().rpartition("\n")[2].rpartition("/")[2]
        return last if last.endswith(".service") else ""

    def describe(self) -> str:
        """Describe the limits for programs here, such as ``a docker container, with a system call filter``."""
        place = " in ".join(p for p in (f"a {self.container} container" if self.container else "", self.kernel) if p)
        parts = [place or "no container"]
        if self.filtered:
            parts.append("with a system call filter")
        if self.label and not self.label.startswith("unconfined"):
            parts.append(f"with the security profile {self.label}")
        if self.masked:
            parts.append("with parts of /proc covered")
        return ", ".join(parts) if place or len(parts) > 1 else "no container, no outer sandbox"

    def _status(self, name: str) -> str:
        found = re.search(rf"^{name}:\s*(\S+)", self.read("/proc/self/status") or "", re.MULTILINE)
        return found[1] if found else ""

    def _mounts(self) -> list[str]:
        lines = (self.read("/proc/self/mountinfo") or "").splitlines()
        return [line for line in lines if len(line.split()) > 4]


def _read(path: str) -> str | None:
    try:
        with open(path, "rb") as file:
            return file.read(_LARGEST_FILE).decode("utf-8", "replace")
    except OSError:
        return None


MISSING = Cause(
    "missing-bubblewrap",
    "bubblewrap (bwrap) is not installed, and commands never run without a sandbox.",
    "Install it: `sudo apt install bubblewrap`, `sudo dnf install bubblewrap`, `sudo pacman -S bubblewrap` or "
    "`sudo apk add bubblewrap`.",
)
NOT_LINUX = Cause(
    "not-linux",
    f"there is no sandbox for {sys.platform} in this version, and commands never run without one.",
    "Use Linux; on Windows, run `wsl --install` and install Cantrip in WSL 2.",
)
MISSING_SANDBOX_EXEC = Cause(
    "missing-sandbox-exec",
    "/usr/bin/sandbox-exec is missing. It is part of macOS, and commands never run without a sandbox.",
    "Update macOS: `softwareupdate --list`. Until then use Linux, for example in a virtual machine.",
)
OLD = Cause(
    "old-bubblewrap",
    "bubblewrap is too old: version 0.8 or newer is needed.",
    "Update it: `sudo apt update && sudo apt install bubblewrap`. If that is still too old, use a newer release of the "
    "distribution, or its backports.",
)
OLD_KERNEL = Cause(
    "old-kernel",
    "this kernel cannot watch a process (pidfd_open), so it could not be made sure that a command ends: Linux 5.3 is needed.",
    "Update the system and then restart it: `sudo apt update && sudo apt full-upgrade`.",
)
GVISOR = Cause(
    "gvisor",
    "this machine runs in gVisor (runsc), which does not have all of the namespaces and calls that a sandbox needs.",
    "Start the container with the ordinary runtime: `docker run --runtime=runc --security-opt seccomp=unconfined "
    "--security-opt apparmor=unconfined --security-opt systempaths=unconfined IMAGE`; in Kubernetes, remove the "
    "runtimeClassName from the pod. gVisor then no longer protects the host from the container.",
)
NO_NETWORK_NAMESPACE = Cause(
    "no-network-namespace",
    "bubblewrap cannot set up a network namespace here, so commands could use the network.",
    "A security profile or an outer container forbids it: `sudo dmesg | grep -i denied` names the profile. Allow `userns` "
    "and `capability net_admin` for bubblewrap in it.",
)

_CREATE = re.compile(r"No permissions? to creat|[Cc]reating new (namespace|user namespace) failed|unshare.*failed")
_MAP = re.compile(r"setting up [ug]id map|[ug]id_map")
_PROC = re.compile(r"Can't mount proc.*(not permitted|denied)")
_MOUNT = re.compile(r"(Failed to make / slave|pivot_root|[Mm]ount|bind mount).*(not permitted|denied)")
_NETWORK = re.compile(r"loopback|RTM_NEWADDR|RTM_NEWLINK|NETLINK")
_WATCH = re.compile(r"pidfd_open")


def explain(words: str, facts: Facts | None = None) -> Cause:
    """Find the cause for the error text ``words`` that bubblewrap wrote when it could not set up a sandbox."""
    words = words.strip()
    facts = facts if facts is not None else Facts.of_this_machine()
    if "Unknown option" in words:
        return OLD
    if not any(step.search(words) for step in (_CREATE, _MAP, _PROC, _MOUNT, _NETWORK, _WATCH)):
        line = words.splitlines()[-1] if words else "it ended without a message"
        return Cause(
            "bubblewrap-failed",
            f"bubblewrap could not set up the sandbox: {line}.",
            "Run `cantrip doctor` to see what it needs, and `cantrip sandbox policy` to see what it had to set up.",
            lasting=False,
        )
    for find in (_kernel, _setting, _editor_package, _container, _apparmor, _chroot, _service, _other_agent):
        cause = find(words, facts)
        if cause is not None:
            return cause
    if _WATCH.search(words):
        return OLD_KERNEL
    return NO_NETWORK_NAMESPACE if _NETWORK.search(words) else _nested(facts)


def explain_seatbelt(words: str, facts: Facts | None = None) -> Cause:
    """Find the cause for the error text ``words`` that sandbox-exec wrote when it could not set up a sandbox."""
    facts = facts if facts is not None else Facts.of_this_machine()
    if "sandbox_apply" in words and "not permitted" in words:
        return _other_agent(words, facts) or _nested(facts)
    line = words.strip().splitlines()[-1] if words.strip() else "it ended without a message"
    return Cause(
        "sandbox-exec-failed",
        f"sandbox-exec could not set up the sandbox: {line}.",
        "Please report this with the output of `cantrip sandbox policy --seatbelt`.",
        lasting=False,
    )


def _kernel(words: str, facts: Facts) -> Cause | None:
    if facts.kernel == "gVisor":
        return GVISOR
    if facts.kernel == "WSL 1":
        name = facts.environ.get("WSL_DISTRO_NAME", "Ubuntu")
        return Cause(
            "wsl1",
            "this is WSL 1, which has no namespaces and so no sandbox.",
            f"Change it to WSL 2, in PowerShell: `wsl --set-version {name} 2`.",
        )
    return None


def _setting(words: str, facts: Facts) -> Cause | None:
    """A setting of the kernel that switches namespaces off."""
    if not _CREATE.search(words):
        return None
    if facts.setting("kernel/unprivileged_userns_clone") == "0" and not facts.is_admin:
        return _switched_off("user-namespaces-off", "kernel.unprivileged_userns_clone", 1)
    for kind in ("user", "mnt", "pid", "net", "ipc", "uts"):
        if facts.setting(f"user/max_{kind}_namespaces") == "0":
            return _switched_off("user-namespaces-off", f"user.max_{kind}_namespaces", 15_000)
    return None


def _switched_off(name: str, setting: str, value: int) -> Cause:
    return Cause(
        name,
        f"this kernel does not allow ordinary users to create user namespaces ({setting}=0).",
        f"Allow it, on the host: `echo {setting}={value} | sudo tee /etc/sysctl.d/60-cantrip.conf && sudo sysctl --system`.",
    )


def _editor_package(words: str, facts: Facts) -> Cause | None:
    """An editor that its package format runs in a sandbox: flatpak, or a strict snap."""
    info = facts.read("/.flatpak-info")
    if info is not None:
        found = re.search(r"^name=(\S+)", info, re.MULTILINE)
        app = found[1] if found else "APP"
        return Cause(
            "editor-is-flatpak",
            f"the editor runs in the sandbox of flatpak ({app}), which forbids new namespaces, so no sandbox can be created.",
            f"Let it start programs outside: `flatpak override --user --talk-name=org.freedesktop.Flatpak {app}`, restart "
            "the editor, and use `flatpak-spawn --host cantrip-acp` as the command of the agent.",
        )
    if facts.label.startswith("snap.") and "complain" not in facts.label:
        snap = facts.environ.get("SNAP_INSTANCE_NAME") or facts.label.split(".")[1]
        return Cause(
            "editor-is-snap",
            f"the editor runs in the sandbox of its snap ({snap}), which forbids new namespaces, so no sandbox can be created.",
            f"Install it without that sandbox: `sudo snap remove {snap} && sudo snap install {snap} --classic`, or install "
            "the package of the editor's own site.",
        )
    return None


_SECCOMP = ("seccomp=unconfined", "every system call in the container")
_APPARMOR_OFF = ("apparmor=unconfined", "mounts in the container")
_SELINUX_OFF = ("label=disable", "files of the host that are shared with the container")
_PROC_OPEN = ("systempaths=unconfined", "the files of /proc and /sys that containers hide")


def _container(words: str, facts: Facts) -> Cause | None:
    """A container. All of its limits are named at once, so that the next start works and does not fail one step later."""
    if not facts.container:
        return None
    options: list[tuple[str, str]] = []
    apparmor = facts.label.endswith("(enforce)")
    selinux = re.search(r":container(_\w+)?_t(:|$)", facts.label) is not None
    # Podman's filter allows namespaces; those of Docker and Kubernetes do not.
    if facts.filtered and (facts.container != "podman" or _CREATE.search(words)):
        options.append(_SECCOMP)
    if apparmor:
        options.append(_APPARMOR_OFF)
    if selinux:
        options.append(_SELINUX_OFF)
    if facts.masked:
        options.append(_PROC_OPEN)
    if not options:
        return None
    if _PROC.search(words) and facts.masked:
        name, why = "container-masked-proc", f"the container covers parts of /proc ({', '.join(facts.masked[:3])}, …)"
    elif (_MOUNT.search(words) or _MAP.search(words)) and (apparmor or selinux):
        name, why = (
            "container-security-profile",
            f"the security profile of the container ({facts.label}) forbids mounts",
        )
    elif facts.filtered:
        name, why = "container-seccomp", "the system call filter of the container forbids new namespaces"
    else:
        return None
    mend = _in_kubernetes(options) if facts.container == "kubernetes" else _in_docker(facts.container, options)
    return Cause(name, f"{why}, so no sandbox can be created in it.", mend)


def _in_docker(program: str, options: list[tuple[str, str]]) -> str:
    podman = program == "podman"
    words = ["unmask=ALL" if podman and option is _PROC_OPEN else option[0] for option in options]
    run = "podman" if podman else "docker"
    return (
        f"Start the container with `{run} run {' '.join(f'--security-opt {word}' for word in words)} IMAGE`. That opens "
        f"{_and([opens for _, opens in options])}; no further rights on the host are needed."
    )


def _in_kubernetes(options: list[tuple[str, str]]) -> str:
    context = []
    if _SECCOMP in options:
        context.append('"seccompProfile":{"type":"Unconfined"}')
    if _APPARMOR_OFF in options:
        context.append('"appArmorProfile":{"type":"Unconfined"}')
    if _SELINUX_OFF in options:
        context.append('"seLinuxOptions":{"type":"spc_t"}')
    if _PROC_OPEN in options:
        context.append('"procMount":"Unmasked"')
    users = '"hostUsers":false,' if _PROC_OPEN in options else ""
    return (
        "Change the pod, with the names of the deployment and its container: `kubectl patch deployment NAME -p "
        f'\'{{"spec":{{"template":{{"spec":{{{users}"containers":[{{"name":"CONTAINER","securityContext":'
        f"{{{','.join(context)}}}}}]}}}}}}}}'`. That opens {_and([opens for _, opens in options])}."
    )


def _apparmor(words: str, facts: Facts) -> Cause | None:
    """Ubuntu since 23.10: only programs with an AppArmor profile can use a user namespace."""
    if facts.setting("kernel/apparmor_restrict_unprivileged_userns") != "1" or facts.is_admin:
        return None
    where = ", on the host of the container" if facts.container else ""
    return Cause(
        "apparmor-restricts-user-namespaces",
        "AppArmor does not allow bubblewrap to create a user namespace (kernel.apparmor_restrict_unprivileged_userns=1).",
        f"Allow it only for bubblewrap{where}: `printf 'abi <abi/4.0>,\\ninclude <tunables/global>\\nprofile bwrap "
        "/usr/bin/bwrap flags=(unconfined) {\\n  userns,\\n}\\n' | sudo tee /etc/apparmor.d/bwrap && sudo apparmor_parser -r "
        "/etc/apparmor.d/bwrap`. To allow it for all programs: `sudo sysctl -w "
        "kernel.apparmor_restrict_unprivileged_userns=0`.",
    )


def _chroot(words: str, facts: Facts) -> Cause | None:
    if not facts.is_chroot:
        return None
    return Cause(
        "chroot",
        "this process runs in a chroot, and the kernel allows no user namespaces there.",
        "Enter that folder with a root of its own instead: `sudo unshare --mount --propagation private sh -c 'mount --rbind "
        "FOLDER FOLDER && cd FOLDER && mkdir -p .old && pivot_root . .old && umount -l /.old && exec sh'`.",
    )


def _service(words: str, facts: Facts) -> Cause | None:
    """A systemd service whose settings forbid namespaces."""
    if not (facts.unit and facts.filtered):
        return None
    user = "--user " if "/user@" in (facts.read("/proc/self/cgroup") or "") else ""
    sudo = "" if user else "sudo "
    folder = f"{'~/.config/systemd/user' if user else '/etc/systemd/system'}/{facts.unit}.d"
    return Cause(
        "service-restricts-namespaces",
        f"the systemd service {facts.unit} has a system call filter that forbids new namespaces, so no sandbox can be created.",
        f"Allow them: `{sudo}mkdir -p {folder} && printf '[Service]\\nRestrictNamespaces=no\\nSystemCallFilter=\\n' | "
        f"{sudo}tee {folder}/cantrip.conf && {sudo}systemctl {user}daemon-reload && {sudo}systemctl {user}restart "
        f"{facts.unit}`.",
    )


_AGENTS = {
    "SANDBOX_RUNTIME": "the sandbox of Claude Code (sandbox-runtime)",
    "CODEX_SANDBOX": "the sandbox of Codex",
    "CODEX_SANDBOX_NETWORK_DISABLED": "the sandbox of Codex",
    "APP_SANDBOX_CONTAINER_ID": "the App Sandbox of an app",
}
"""Variables by which sandboxes of other agents and apps can be recognized."""


def _other_agent(words: str, facts: Facts) -> Cause | None:
    who = next((text for name, text in _AGENTS.items() if facts.environ.get(name)), None)
    if who is None and (facts.read("/proc/1/comm") or "").strip() in ("bwrap", "firejail", "nsjail"):
        who = f"a sandbox of {(facts.read('/proc/1/comm') or '').strip()}"
    if who is None:
        return None
    return Cause(
        "editor-sandbox",
        f"this process already runs inside {who}, which allows no further sandbox, so no sandbox can be created.",
        "Start the agent outside of it: switch that sandbox off in the editor or agent that starts this one, or start "
        "`cantrip-acp` from a terminal. `cantrip doctor`, run in that terminal, says whether a sandbox works there.",
    )


def _nested(facts: Facts) -> Cause:
    return Cause(
        "nested-sandbox",
        f"this process already runs inside a sandbox or container that allows no further sandbox ({facts.describe()}), so no "
        "sandbox can be created.",
        "Start the agent outside of it; in Docker, use `docker run --security-opt seccomp=unconfined --security-opt "
        "apparmor=unconfined --security-opt systempaths=unconfined IMAGE`, or a container runtime that allows nesting.",
    )


def _and(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
