"""Runtime folder of the sandboxes of one process, and a sentinel process that cleans up if we are killed.

The folder contains the files that sandboxes see read-only: the prepared /etc, the note that replaces hidden files, and
the gate commands. It is made when the first command runs, and removed at exit. The sentinel is a shell that waits
until our end of a pipe closes. After a kill -9 it removes the folder and kills sandboxes that still run.

The prepared /etc contains only the files that programs need, copied by name from the /etc of the host. For root, the
/etc of the host would show password hashes, private keys and passwords of services. Also, one prepared folder needs
one mount instead of thirty.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import stat
import subprocess
import tempfile
import threading
from collections.abc import Mapping
from contextlib import suppress
from importlib.resources import files

from cantrip_acp.files.descriptors import is_ready
from cantrip_acp.files.paths import within, within_any
from cantrip_acp.files.protected_paths import without_credentials
from cantrip_acp.sandbox.launch import control_groups
from cantrip_acp.sandbox.launch.bubblewrap import HostPaths
from cantrip_acp.sandbox.network.name_server import NAME_SERVER
from cantrip_acp.sandbox.policy.harmless_git import parse_settings
from cantrip_acp.sandbox.policy.host_toolchains import Host
from cantrip_acp.types.errors import SandboxError

_DETACH = 'exec 3<&0; /bin/sh -c "$0" "$@" <&3 3<&- &'
"""A shell script that starts another shell in the background, with our standard input, and exits. Without the copy of
the descriptor, a background process of a shell would have no input.
"""

NOTE = "# This file is hidden inside the sandbox: it may hold secrets, or Cantrip has it open.\n"


class Runtime:
    """The runtime folder and the sentinel of this process. Get it with `runtime`. All threads may use it."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        self.owner = os.getpid()
        self._lock = threading.RLock()
        self.folder = tempfile.mkdtemp(prefix="cantrip-", dir=base_folder(os.environ if environ is None else environ))
        self._places: dict[tuple[object, ...], HostPaths] = {}
        self._count = 0
        note = os.path.join(self.folder, "note")
        with open(note, "w", encoding="utf-8") as file:
            file.write(NOTE)
        os.chmod(note, 0o444)
        self._note = note
        self._groups: set[str] = set()
        self._sentinel = self._sentinel_lives = -1
        script = files("cantrip_acp.sandbox.inside").joinpath("sentinel.sh").read_text("utf-8")
        ends: list[int] = []
        try:
            ends += os.pipe()
            ends += os.pipe()
            reader, self._sentinel, self._sentinel_lives, writer = ends
            # Detach the sentinel, so that it is not our child. A search for processes that a turn left running does
            # then not find it, and an owner that replaces itself (exec) does not have to wait for it.
            subprocess.run(
                ["/bin/sh", "-c", _DETACH, script, "cantrip-sentinel", self.folder],
                stdin=reader,
                stdout=writer,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={"PATH": "/usr/bin:/bin"},
                start_new_session=True,
                check=True,
            )
        except BaseException:
            for end in ends:
                os.close(end)
            shutil.rmtree(self.folder, ignore_errors=True)
            raise
        os.close(reader)
        os.close(writer)
        atexit.register(self.close)

    @property
    def token(self) -> str:
        """The program name (argv[0]) of the sandboxes of this process, by which the sentinel recognizes them."""
        return os.path.basename(self.folder)

    def host_paths(self, host: Host, home: str, *, network: bool) -> HostPaths:
        """The host paths for a policy's arguments. They are made once for each home, network setting and user's settings."""
        key = (home, network, host.settings)
        with self._lock:
            found = self._places.get(key)
            if found is None:
                folder = self.make_folder("etc")
                os.chmod(folder, 0o755)
                bound = prepare_etc(
                    folder, user=host.user, uid=host.uid, gid=host.gid, home=home, shell=host.shell, network=network
                )
                for path, text in host.settings:
                    if path.startswith("/etc/") and not within_any(path, bound):
                        _write_in(folder, path.removeprefix("/etc/"), text)
                found = self._places[key] = HostPaths(etc=folder, note=self._note, bound=bound)
            return found

    def write_once(self, text: str) -> str:
        """Write the text to a file in the runtime folder and return its path. The same text gives the same file."""
        name = hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
        path = os.path.join(self.folder, name)
        with self._lock:
            if not os.path.exists(path):
                with open(f"{path}.new", "w", encoding="utf-8", errors="surrogateescape") as file:
                    file.write(text)
                os.rename(f"{path}.new", path)
        return path

    def make_folder(self, kind: str) -> str:
        """Create a new folder in the runtime folder and return its path."""
        with self._lock:
            self._count += 1
            path = os.path.join(self.folder, f"{kind}{self._count}")
        os.mkdir(path, 0o700)
        return path

    def group_name(self, parent: str) -> str:
        """Return a new name for a control group below ``parent``. The sentinel removes groups with such names."""
        with self._lock:
            for folder in {parent, control_groups.cpu_parent() or parent} if parent not in self._groups else ():
                self._groups.add(folder)
                self._send_line(f"%{folder}")
            self._count += 1
            return f"{self.token}-{self._count}"

    def _send_line(self, line: str) -> None:
        # The lines are short, and the sentinel only reads. So this does not block in practice. If somebody killed the
        # sentinel, nobody cleans up after a kill, but sandboxes still work.
        try:
            os.write(self._sentinel, line.encode("utf-8", "surrogateescape") + b"\n")
        except BrokenPipeError:
            return

    def close(self) -> None:
        """Remove the folder and end the sentinel. Called at exit."""
        if os.getpid() != self.owner or self._sentinel < 0:
            return
        shutil.rmtree(self.folder, ignore_errors=True)
        self._send_line(".")
        os.close(self._sentinel)
        self._sentinel = -1
        # The sentinel has the other end of this pipe open and writes nothing. So the end of the file means that it has
        # ended.
        is_ready(self._sentinel_lives, 2)
        os.close(self._sentinel_lives)


_current: Runtime | None = None
_creating = threading.Lock()


def runtime() -> Runtime:
    """The runtime of this process, the same for all threads. A forked child makes its own runtime."""
    global _current
    with _creating:
        if (
            _current is None
            or _current.owner != os.getpid()
            or _current._sentinel < 0
            or not os.path.isdir(_current.folder)
        ):
            _current = Runtime()
        return _current


def _in_child() -> None:
    """Replace the lock after a fork, because a thread that the child does not have may hold the copied lock."""
    global _creating
    _creating = threading.Lock()


os.register_at_fork(after_in_child=_in_child)


def base_folder(environ: Mapping[str, str]) -> str:
    """Find a folder on this machine from which programs may run, because the gate commands are mounted from there.

    A folder in memory is preferred, because a thousand small links take half a second on some disks.
    Raises `SandboxError` if there is none.
    """
    for folder in (environ.get("XDG_RUNTIME_DIR"), "/dev/shm", tempfile.gettempdir(), "/var/tmp", environ.get("HOME")):
        if folder and os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK):
            if not os.statvfs(folder).f_flag & getattr(os, "ST_NOEXEC", 0):
                return folder
    raise SandboxError("no folder for the sandbox's runtime files allows programs: set TMPDIR to one that does")


COPIED_FROM_ETC = (
    "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "localtime", "timezone", "locale.alias", "locale.conf",
    "services", "protocols", "ethers", "rpc", "host.conf", "gai.conf", "mime.types", "magic", "magic.mime", "inputrc",
    "bash.bashrc", "bashrc", "profile", "shells", "terminfo", "os-release", "debian_version", "lsb-release",
    "redhat-release", "fedora-release", "alpine-release", "arch-release", "system-release", "SuSE-release",
    "ssl/certs", "ssl/openssl.cnf", "ssl/cert.pem", "ca-certificates", "ca-certificates.conf",
    "pki/tls/certs", "pki/tls/cert.pem", "pki/tls/openssl.cnf", "pki/ca-trust/extracted", "crypto-policies",
    "fonts", "python3", "perl", "java-8-openjdk", "java-11-openjdk", "java-17-openjdk", "java-21-openjdk",
    "java-25-openjdk", "jvm", "emacs", "vim", "R", "texmf", "ImageMagick-6", "ImageMagick-7", "gimp", "sgml", "xml",
    "nanorc", "lynx", "groff", "manpath.config", "papersize", "mailcap", "php", "ghc", "dotnet", "mono", "maven",
    "matplotlibrc", "OpenCL", "vulkan", "glvnd", "chromium", "chromium.d", "dbus-1", "X11", "gtk-3.0", "networks",
    "login.defs", "skel", "subuid", "subgid", "screenrc", "wgetrc", "sysctl.conf", "postgresql-common",
    "mysql", "redis", "nginx", "apache2",
)  # fmt: skip
_SETTINGS = ("gitconfig", "pip.conf", "xdg/pip", "uv")
"""Settings of git and of package registries for all users. They are copied without passwords."""
_USERS_GIT = ("user.name", "user.email", "init.defaultbranch", "pull.rebase", "pull.ff", "core.autocrlf")
_MOST_INCLUDED = 8
_LARGE_FOLDERS = ("alternatives", "ssl/certs")
"""Hundreds of links each. To mount such a folder is quicker than to copy it."""
_LARGEST = 2 * 1024 * 1024
_MOST = 4000


def prepare_etc(folder: str, *, user: str, uid: int, gid: int, home: str, shell: str, network: bool) -> tuple[str, ...]:
    """Fill the empty ``folder`` with the files of /etc in a sandbox.

    Returns the folders that are to be mounted there from the host.
    """
    root = f"root:x:0:0:root:{home if uid == 0 else '/root'}:{shell if uid == 0 else '/bin/sh'}"
    files = {
        "passwd": _accounts("/etc/passwd", root, f"{user}:x:{uid}:{gid}::{home}:{shell}"),
        "group": _accounts("/etc/group", "root:x:0:", f"{user}:x:{gid}:"),
        "nsswitch.conf": "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nnetworks: files\n"
        "protocols: files\nservices: files\nethers: files\nrpc: files\n",
        "hosts": "127.0.0.1\tlocalhost sandbox\n::1\tlocalhost ip6-localhost ip6-loopback\n",
        "hostname": "sandbox\n",
        "resolv.conf": f"nameserver {NAME_SERVER}\n",
        "machine-id": "",
    }
    for name, text in files.items():
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(text)
    if network:
        for name in ("resolv.conf", "hosts"):
            _copy(f"/etc/{name}", os.path.join(folder, name), [_MOST])
    left, bound = [_MOST], list[str]()
    for name in (*COPIED_FROM_ETC, *_SETTINGS):
        target = os.path.join(folder, name)
        if name in _LARGE_FOLDERS and _is_public(f"/etc/{name}"):
            os.makedirs(target)
            bound.append(f"/etc/{name}")
        elif not os.path.lexists(target) and os.path.lexists(f"/etc/{name}"):
            os.makedirs(os.path.dirname(target), exist_ok=True)
            _copy(f"/etc/{name}", target, left)
    for name in _SETTINGS:
        remove_passwords(os.path.join(folder, name))
    with open(os.path.join(folder, "gitconfig"), "a", encoding="utf-8") as file:
        file.write(users_git_settings(os.environ))
    if not os.path.lexists(os.path.join(folder, "mtab")):
        os.symlink("/proc/self/mounts", os.path.join(folder, "mtab"))
    return tuple(bound)


def _write_in(folder: str, below: str, text: str) -> None:
    """Write a file below a prepared folder, in the place of one that is there. Nothing is written where a link leads elsewhere."""
    target = os.path.join(folder, below)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if not within(os.path.realpath(os.path.dirname(target)), os.path.realpath(folder)):
        return
    with suppress(FileNotFoundError):
        os.unlink(target)
    with open(target, "x", encoding="utf-8") as file:
        file.write(text)


def users_git_settings(environ: Mapping[str, str]) -> str:
    """Who the user is to git, and the default branch, from the user's own settings: a command's commits have that author."""
    home = environ.get("HOME") or "/nonexistent"
    config = environ.get("XDG_CONFIG_HOME") or f"{home}/.config"
    own = environ.get("GIT_CONFIG_GLOBAL")
    found: dict[str, str] = {}
    waiting = [own] if own is not None else [f"{config}/git/config", f"{home}/.gitconfig"]
    for path in waiting:
        try:
            with open(path, "rb") as file:
                settings = parse_settings(file.read(_LARGEST))
        except (OSError, ValueError):
            continue
        found.update((key, value) for key, value in settings if key in _USERS_GIT and value.isprintable())
        included = [
            os.path.join(os.path.dirname(path), os.path.expanduser(v)) for k, v in settings if k == "include.path"
        ]
        if len(waiting) < _MOST_INCLUDED:
            waiting += included
    quoted = {key: value.replace("\\", "\\\\").replace('"', '\\"') for key, value in found.items()}
    return "".join(
        f'[{key.partition(".")[0]}]\n\t{key.partition(".")[2]} = "{value}"\n' for key, value in quoted.items()
    )


def remove_passwords(path: str) -> None:
    """Remove passwords from a copied file of settings, or from each file of a folder. A file that is no text is removed."""
    for file in (
        [path] if os.path.isfile(path) else [os.path.join(a, name) for a, _, names in os.walk(path) for name in names]
    ):
        try:
            with open(file, encoding="utf-8") as read:
                clean = without_credentials(read.read())
            with open(file, "w", encoding="utf-8") as write:
                write.write(clean)
        except UnicodeDecodeError:
            os.remove(file)


def _accounts(source: str, root: str, own: str) -> str:
    """The lines of a user or group database: root, the accounts of the system, and this user. Other people are left out.

    Names and numbers are the host's, so that files have the same owners. Nothing of the fourth field is kept: full names of
    users, members of groups.
    """
    nobody = (
        "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin"
        if source.endswith("passwd")
        else "nogroup:x:65534:"
    )
    found = {0: root}
    found.setdefault(int(own.split(":")[2]), own)
    found.setdefault(65534, nobody)
    try:
        with open(source, encoding="utf-8", errors="surrogateescape") as file:
            lines = [line.rstrip("\n").split(":") for line in file]
    except OSError:
        lines = []
    for name, _, number, *rest in (line for line in lines if len(line) >= 4 and line[2].isdecimal()):
        if int(number) < _FIRST_PERSON:
            more = [rest[0], "", *rest[2:]] if len(rest) > 1 else [""]
            found.setdefault(int(number), ":".join((name, "x", number, *more)))
    return "".join(f"{line}\n" for line in found.values())


_FIRST_PERSON = 1000
"""The least number of a person's account; smaller ones are of the system (Linux Standard Base, 24.1)."""


def _is_public(folder: str) -> bool:
    """Whether a folder and those below it have only files that everybody may read, and links that lead to the same place inside."""
    try:
        status = os.lstat(folder)
        if not stat.S_ISDIR(status.st_mode) or status.st_mode & 0o005 != 0o005:
            return False
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_symlink():
                    to = os.readlink(entry.path)
                    if not to.startswith("/usr/") and "/" in to:
                        return False
                elif entry.is_dir():
                    if not _is_public(entry.path):
                        return False
                elif not entry.is_file() or not entry.stat().st_mode & 0o004:
                    return False
    except OSError:
        return False
    return True


def _copy(source: str, target: str, left: list[int]) -> None:
    """Copy files that everybody may read. Links to /usr, or to a file in the same folder, stay links.

    ``left``: one number, how many more files may be copied.
    """
    left[0] -= 1
    if left[0] < 0:
        return
    try:
        status = os.lstat(source)
        if stat.S_ISLNK(status.st_mode):
            to = os.readlink(source)
            # The link has the same target inside.
            if to.startswith("/usr/") or "/" not in to:
                os.symlink(to, target)
                return
            real = os.path.realpath(source)
            if real.startswith(("/usr/", "/etc/alternatives/", "/etc/ssl/", "/etc/pki/", "/etc/java")):
                os.symlink(to, target)
                return
            status = os.stat(source)
        if stat.S_ISDIR(status.st_mode):
            if status.st_mode & 0o005 != 0o005:
                return
            os.makedirs(target, exist_ok=True)
            for name in os.listdir(source):
                _copy(f"{source}/{name}", f"{target}/{name}", left)
        elif stat.S_ISREG(status.st_mode) and status.st_mode & 0o004 and status.st_size <= _LARGEST:
            shutil.copyfile(source, target)
            os.chmod(target, 0o755 if status.st_mode & 0o001 else 0o644)
    except OSError:
        # A file that cannot be copied is not visible inside.
        return
