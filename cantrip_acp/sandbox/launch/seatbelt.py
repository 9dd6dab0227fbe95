"""The back end for macOS: makes the sandbox-exec profile of a policy, and the private folders and launch of a command.

Nobody has run it on a Mac yet. Tests on Linux run it with a program in the place of sandbox-exec that reads the profile and
enforces its rules for files, and an evaluator compares the profile with bubblewrap's mounts. On a Mac the self-test decides
whether commands run at all.
`profile` is a pure function, and snapshot tests check its output. Everything that is not allowed is denied. If two rules
match, the later rule wins. So the order is: paths that the system needs, readable paths, writable paths, and last the
exceptions. Paths are passed as parameters (``-D``) and not in the text, so that no file name can end a string and add
a rule.
Some features do not exist on macOS. There the access is denied: a file whose content is replaced in a bubblewrap
sandbox is not readable here. Instead of a private /tmp and home there are two folders for each command (`PrivateFolder`).
There are no namespaces: a command sees that other processes exist, but cannot signal them (`macos_processes`).
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from cantrip_acp.sandbox.launch.macos_processes import MARK, REPORT, REPORT_DESCRIPTOR, SHELL, launcher_limits
from cantrip_acp.sandbox.launch.process_tree import Launch
from cantrip_acp.sandbox.launch.runtime_dir import runtime
from cantrip_acp.sandbox.policy.policy import PROXY_PORT, WIRE, Limits, Policy

PROGRAM = "/usr/bin/sandbox-exec"

_BASIS = """\
(version 1)
(deny default)

; Programs: start others, and signal what runs in this same sandbox.
(allow process-exec process-fork file-map-executable)
(allow signal process-info* (target same-sandbox))
(allow sysctl-read ipc-posix-sem)
(allow mach-lookup
  (global-name "com.apple.system.opendirectoryd.libinfo")
  (global-name "com.apple.system.opendirectoryd.membership")
  (global-name "com.apple.system.notification_center")
  (global-name "com.apple.system.logger"))

; The system, read-only, without anybody's data.
(allow file-read*
  (literal "/")
  (subpath "/usr") (subpath "/bin") (subpath "/sbin")
  (subpath "/System") (subpath "/Library/Apple") (subpath "/Library/Developer/CommandLineTools")
  (regex #"^/Applications/Xcode[^/]*[.]app/Contents/") (literal "/private/var/db/xcode_select_link")
  (literal "/private/var/select/sh")
  (subpath "/private/var/db/timezone") (subpath "/private/var/db/dyld")
  (literal "/private/etc/passwd") (literal "/private/etc/group") (literal "/private/etc/shells")
  (literal "/private/etc/localtime") (literal "/private/etc/services") (literal "/private/etc/protocols")
  (subpath "/private/etc/ssl"))
(allow file-read* file-write-data file-ioctl
  (literal "/dev/null") (literal "/dev/zero") (literal "/dev/dtracehelper"))
(allow file-read* (literal "/dev/random") (literal "/dev/urandom") (subpath "/dev/fd"))
"""


@dataclass(frozen=True, slots=True)
class Profile:
    """The text of a profile, and its parameters as (name, path)."""

    text: str
    parameters: tuple[tuple[str, str], ...]

    def argv(self, command: Iterable[str]) -> list[str]:
        """The command line that runs ``command`` with sandbox-exec."""
        options: list[str] = []
        for name, path in self.parameters:
            options += ["-D", f"{name}={path}"]
        return [PROGRAM, *options, "-p", self.text, *command]


def profile(
    policy: Policy, *, home: str, temporary: str, port: int = PROXY_PORT, script: str | None = None, token: str = ""
) -> Profile:
    """The profile of a policy. ``home`` and ``temporary`` are folders made for this one command.

    ``port``: the port of the filtering proxy at 127.0.0.1, if the policy has one. ``script``: a file with the
    command. ``token``: see `macos_processes.MARK`. Paths must be real (`real_paths`): sandbox-exec checks the resolved path,
    so ``/tmp`` would be ``/private/tmp``.
    """
    parts = [_BASIS]
    parameters: list[tuple[str, str]] = []

    def rule(words: str, why: str, kind: str, name: str, paths: Iterable[str]) -> None:
        filters = []
        for number, path in enumerate(paths):
            parameters.append((f"{name}_{number}", path))
            filters.append(f'  ({kind} (param "{name}_{number}"))')
        if filters:
            parts.append("\n".join([f"; {why}", f"({words}", *filters]) + ")\n")

    wire = [policy.wire] if policy.wire is not None else []
    links = [link for link, _ in policy.links]
    shown = (*wire, *policy.tools, *links, *policy.readable, *policy.writable, home, temporary)
    above = sorted({parent for path in shown for parent in _above(path)} | set(links))
    rule(
        "allow file-read-metadata",
        "On the way to what follows: that it is there, and no more.",
        "literal",
        "ABOVE",
        above,
    )
    rule("allow file-read*", "Your tools.", "subpath", "TOOL", policy.tools)
    rule("allow file-read*", "What may be read.", "subpath", "READ",
         (p for p in policy.readable if p not in policy.writable))  # fmt: skip
    rule("allow file-read*", "The gates' commands.", "subpath", "WIRE", wire)
    rule("allow file-read* file-write*", "Their requests.", "subpath", "REQUESTS", (f"{w}/requests" for w in wire))
    rule("allow file-write-data", "Their pipes.", "subpath", "PIPES",
         (f"{w}/{part}" for w in wire for part in ("announce", "answers")))  # fmt: skip
    rule("allow file-read* file-write*", "What may be written.", "subpath", "WRITE", policy.writable)
    rule("allow file-read* file-write*", "This command's own folders.", "subpath", "OWN", (home, temporary))
    rule("allow file-read*", "The command itself.", "literal", "SCRIPT", [script] if script is not None else [])
    rule("deny file-write*", "Protected: it runs code elsewhere.", "subpath", "GUARD",
         (*policy.protected, *policy.absent))  # fmt: skip
    parts += _missing(policy, parameters)
    rule("deny file-write-unlink file-write-create", "On the way to those: never renamed.", "literal", "PINNED",
         policy.pinned)  # fmt: skip
    rule("deny file-write-unlink", "The roots themselves stay.", "literal", "ROOT",
         (*policy.writable, *(f"{w}/requests" for w in wire), home, temporary))  # fmt: skip
    rule("deny file-read* file-write*", "Hidden: secrets by name, and settings with credentials in them.", "subpath",
         "HIDDEN", (*policy.hidden, *(path for path, _ in policy.replaced)))  # fmt: skip
    parts.append(_network(policy, port))
    if token:
        parts.append(
            f'; By this name the processes of this command are found.\n(allow mach-lookup (global-name "{MARK}{token}"))\n'
        )
    return Profile("\n".join(parts), tuple(parameters))


def _missing(policy: Policy, parameters: list[tuple[str, str]]) -> list[str]:
    """The rule for protected names that do not exist, in upper and lower case: most disks of Macs do not tell them apart.

    The name of a file that exists is compared as the disk stores it, so only new names need this.
    """
    folders: dict[str, str] = {}
    filters = []
    for path in policy.absent:
        folder, name = os.path.split(path)
        if folder not in folders:
            folders[folder] = f"MISSING_{len(folders)}"
            parameters.append((folders[folder], folder))
        filters.append(
            f'  (regex (string-append "^" (regex-quote (param "{folders[folder]}")) "/{_any_case(name)}(/|$)"))'
        )
    if not filters:
        return []
    return ["\n".join(["; The same names in upper and lower case.", "(deny file-write*", *filters]) + ")\n"]


def _any_case(name: str) -> str:
    """A regular expression for a name in any case. Special characters match anything, so that no name can end the text."""
    return re.sub(
        r"[A-Za-z]|[^A-Za-z0-9_-]+",
        lambda m: (
            f"[{m[0].lower()}{m[0].upper()}]"
            if m[0].isalpha() and m[0].isascii()
            else "[.]"
            if m[0] == "."
            else "[^/]+"
        ),
        name,
    )


def _above(path: str) -> list[str]:
    found = []
    while (path := os.path.dirname(path)) != "/":
        found.append(path)
    return found


def _network(policy: Policy, port: int) -> str:
    if policy.network:
        return (
            "; The network, and of this machine's own sockets the name service alone.\n"
            "(allow system-socket)\n"
            "(allow network-outbound network-inbound network-bind (local ip) (remote ip))\n"
            '(allow network-outbound (literal "/private/var/run/mDNSResponder"))\n'
        )
    if policy.hosts is not None:
        return (
            "; The filtering proxy, and nothing else of the network.\n"
            "(allow system-socket)\n"
            f'(allow network-outbound (remote ip "localhost:{port}"))\n'
        )
    return "; No network: it is denied above.\n"


def real_path(path: str) -> str:
    """The path as the system compares it: without links, and on macOS with the names as the disk stores them."""
    path = os.path.realpath(path)
    if sys.platform == "darwin":
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            folder, name = os.path.split(path)
            return path if folder == path else os.path.join(real_path(folder), name)
        try:
            return os.fsdecode(fcntl.fcntl(fd, fcntl.F_GETPATH, bytes(1024)).rstrip(b"\0"))
        finally:
            os.close(fd)
    return path


def real_paths(policy: Policy) -> Policy:
    """The policy with real paths everywhere."""

    def each(paths: Iterable[str]) -> tuple[str, ...]:
        return tuple(real_path(path) for path in paths)

    return replace(
        policy,
        folder=real_path(policy.folder),
        tools=each(policy.tools),
        readable=each(policy.readable),
        writable=each(policy.writable),
        protected=each(policy.protected),
        pinned=each(policy.pinned),
        absent=each(policy.absent),
        hidden=each(policy.hidden),
        replaced=tuple((real_path(path), source) for path, source in policy.replaced),
        home_source=real_path(policy.home_source) if policy.home_source is not None else None,
        wire=real_path(policy.wire) if policy.wire is not None else None,
    )


@dataclass(frozen=True, slots=True)
class PrivateFolder:
    """The folders of one command or code worker: its home and /tmp; and its profile and the text of the command, which it
    can only read.
    """

    folder: str
    token: str

    @classmethod
    def make(cls) -> PrivateFolder:
        folder = real_path(runtime().make_folder("command"))
        for name in ("home", "tmp"):
            os.mkdir(os.path.join(folder, name), 0o700)
        return cls(folder, secrets.token_hex(16))

    @property
    def temporary(self) -> str:
        return os.path.join(self.folder, "tmp")

    def home(self, policy: Policy) -> str:
        return policy.home_source or os.path.join(self.folder, "home")

    def own(self, policy: Policy) -> tuple[str, str]:
        """The folders that only it can see and write."""
        return self.temporary, self.home(policy)

    def measured(self, policy: Policy) -> tuple[str, ...]:
        """The folders whose size is limited."""
        wire = (os.path.join(policy.wire, "requests"),) if policy.wire is not None else ()
        return (self.temporary, os.path.join(self.folder, "home"), *wire)

    def script(self, command: str) -> str:
        """Write a command of a shell to a file that it can only read, and return its path."""
        path = os.path.join(self.folder, "command")
        with open(path, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(command)
        return path

    def launch(
        self,
        policy: Policy,
        command: Iterable[str],
        *,
        program: str,
        environment: Mapping[str, str],
        limits: Limits,
        cores: int,
        port: int = 0,
        script: str | None = None,
        inherited: Sequence[int] = (),
    ) -> Launch:
        """How to start a program with sandbox-exec. ``command``: its arguments. ``script``: see `profile`.

        ``port``: that of its proxy at 127.0.0.1, or 0. ``inherited``: see `Launch`.
        """
        rules = os.path.join(self.folder, "profile.sb")
        made = profile(
            policy,
            home=self.home(policy),
            temporary=self.temporary,
            port=port,
            script=script,
            token=self.token,
        )
        with open(rules, "w", encoding="utf-8") as file:
            file.write(made.text)
        parameters = [word for name, path in made.parameters for word in ("-D", f"{name}={path}")]
        return Launch(
            program=SHELL,
            argv=[
                *launcher_limits(limits, cores),
                *(program, *parameters, "-f", rules, SHELL, "-c", REPORT, SHELL, REPORT_DESCRIPTOR, *command),
            ],
            inherited=inherited,
            folder=self.temporary if policy.folder == real_path("/tmp") else policy.folder,
            environment={**self._environment(policy, port), **environment},
        )

    def _environment(self, policy: Policy, port: int) -> dict[str, str]:
        """The environment of the policy, with the paths that differ from those under bubblewrap."""
        found = dict(policy.environment)
        found |= {"HOME": self.home(policy), "TMPDIR": self.temporary}
        if policy.wire is not None:
            found["PATH"] = found["PATH"].replace(f"{WIRE}/bin", f"{policy.wire}/bin", 1)
        address = f"127.0.0.1:{PROXY_PORT}"
        return {name: value.replace(address, f"127.0.0.1:{port}") for name, value in found.items()}

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
