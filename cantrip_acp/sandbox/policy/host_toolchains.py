"""Facts about the host: its user, system folders and environment, and the toolchains that programs on PATH need.

By default nothing of a home folder is visible. For each resolved PATH entry, `find_tools` adds one folder: the folder
of a version manager, the prefix of an installation, or a single folder of programs. It never adds the home folder
itself, nor the folders nearby that contain credentials.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from cantrip_acp.files.paths import within, within_any
from cantrip_acp.sandbox.policy.user_settings import user_settings

MANAGERS = (
    ".pyenv", ".rbenv", ".nodenv", ".jenv", ".asdf", ".nvm", ".volta", ".fnm", ".deno", ".ghcup", ".opam", ".rye",
    ".rvm", ".sdkman", ".linuxbrew", ".proto", ".juliaup", ".elan", ".swiftly", ".nix-profile",
    ".local/share/mise", ".local/share/fnm", ".local/share/rtx", ".local/share/pnpm", ".local/share/coursier/bin",
    ".local/share/uv/python", ".local/state/nix",
)  # fmt: skip
"""Folders below the home folder that contain only one version manager and its programs."""

NEEDED_ELSEWHERE: Mapping[str, tuple[str, ...]] = {
    ".cargo/bin": (".rustup", ".cargo/registry", ".cargo/git"),
    "go/bin": ("go/pkg",),
    ".local/bin": (".local/share/uv/python",),
}
"""For a folder of programs, the other folders that these programs need.

The folders of Cargo and Go also contain credentials, so only parts of them are listed.
"""

PROGRAM_FOLDERS = frozenset({"bin", "sbin", "shims", "condabin", "scripts", "Scripts"})
_PREFIX_SIGNS = ("lib", "lib64", "libexec", "share", "include", "conda-meta", "pyvenv.cfg", "pkg", "lib/node_modules")
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store")
_PYTHON = re.compile(r"(?:python|pypy|graalpy)[0-9.]*[a-z]{0,2}(?:-[a-z0-9]+)?")
_NEVER = frozenset({"/", "/home", "/root", "/opt", "/srv", "/mnt", "/media", "/tmp", "/var", "/var/tmp", "/run", "/etc",
                    "/dev", "/proc", "/sys", "/boot", "/Users", "/nix", "/snap", "/data", "/workspace"})  # fmt: skip
"""Folders that are never shown as a whole."""


@dataclass(frozen=True, slots=True)
class Tools:
    """Paths that the tools need.

    ``path``: the entries of PATH inside the sandbox. ``roots``: real folders and files to show. ``links``: symbolic
    links to recreate, as (path, target), so that the same paths work inside.
    """

    path: tuple[str, ...]
    roots: tuple[str, ...]
    links: tuple[tuple[str, str], ...]


def find_tools(path: Iterable[str], home: str, more: Iterable[str] = (), programs: Iterable[str] = ()) -> Tools:
    """Find what the programs in the PATH entries ``path`` need.

    ``more``: further installation prefixes to show, such as a virtual environment. ``programs``: single programs.
    """
    roots: dict[str, None] = {}
    links: dict[str, str] = {}
    entries: dict[str, None] = {}
    for entry in path:
        entry = os.path.normpath(entry) if entry else ""
        if not os.path.isabs(entry) or not os.path.isdir(entry) or any(c in entry for c in "\n\0:"):
            continue
        entries[entry] = None
        _show(entry, home, roots, links)
        if not within_any(os.path.realpath(entry), _SYSTEM):
            _follow_programs(entry, home, roots, links)
    for prefix in more:
        if os.path.isdir(prefix):
            _show(prefix, home, roots, links)
            for interpreter in ("bin/python", "bin/python3"):
                program = os.path.join(prefix, interpreter)
                # A link in a repository may lead to anything. So follow it only if it leads to a Python.
                if os.path.islink(program) and is_python(os.path.realpath(program)):
                    _show(program, home, roots, links)
    for program in programs:
        _show(program, home, roots, links)
    visible_roots = [
        r for r in sorted(roots) if not within_any(r, (o for o in roots if o != r)) and not within_any(r, _SYSTEM)
    ]
    visible = tuple(
        e for e in entries if within_any(os.path.realpath(e), visible_roots) or within_any(os.path.realpath(e), _SYSTEM)
    )
    shown = tuple(
        sorted((p, t) for p, t in links.items() if not within_any(p, visible_roots) and not within_any(p, _SYSTEM))
    )
    return Tools(path=visible, roots=tuple(visible_roots), links=shown)


def is_python(path: str) -> bool:
    """Whether a real path is an executable file with a name like python3.11. Its content is not read."""
    return _PYTHON.fullmatch(os.path.basename(path)) is not None and os.path.isfile(path) and os.access(path, os.X_OK)


def _show(path: str, home: str, roots: dict[str, None], links: dict[str, str]) -> None:
    """Add to ``roots`` and ``links`` what makes ``path`` usable: its folder, and the links on the way to it."""
    _links_on_the_way(path, links)
    real = os.path.realpath(path)
    if not os.path.exists(real) or within_any(real, _SYSTEM):
        return
    for root in _folders_to_show(real, home):
        if os.path.exists(root) and not _too_wide(root, home):
            roots[root] = None


def _folders_to_show(real: str, home: str) -> list[str]:
    """The folders to show for a program or a folder of programs: its version manager, its prefix, or only itself."""
    home_real = os.path.realpath(home) if home else ""
    if home_real and within(real, home_real) and real != home_real:
        below = os.path.relpath(real, home_real)
        for manager in MANAGERS:
            if within(below, manager):
                return [os.path.join(home_real, manager)]
        for folder, beside in NEEDED_ELSEWHERE.items():
            if within(below, folder):
                more = [os.path.join(home_real, b) for b in beside]
                return [os.path.join(home_real, folder), *(os.path.realpath(m) for m in more)]
    folder = real if os.path.isdir(real) else os.path.dirname(real)
    if os.path.basename(folder) in PROGRAM_FOLDERS:
        prefix = os.path.dirname(folder)
        if not _too_wide(prefix, home) and any(os.path.exists(os.path.join(prefix, s)) for s in _PREFIX_SIGNS):
            return [prefix]
        return [folder]
    return [real]


def _too_wide(path: str, home: str) -> bool:
    """Whether showing this folder would show a home folder or a folder with files of other users."""
    home_real = os.path.realpath(home) if home else ""
    if path in _NEVER or (home_real and (within(home_real, path))):
        return True
    if home_real and path.startswith(home_real + "/"):
        return os.path.relpath(path, home_real) in (
            ".local",
            ".local/share",
            ".config",
            ".cache",
            ".cargo",
            "go",
            "snap",
        )
    return False


def _follow_programs(entry: str, home: str, roots: dict[str, None], links: dict[str, str]) -> None:
    """Add the targets of programs in ``entry`` that are links, as pipx, uv, Homebrew and npm make them."""
    try:
        with os.scandir(entry) as programs:
            found = [p.path for p in programs if p.is_symlink()]
    except OSError:
        return
    for program in found[:2000]:
        real = os.path.realpath(program)
        if not within_any(real, roots):
            _show(program, home, roots, links)


def _links_on_the_way(path: str, links: dict[str, str]) -> None:
    """Record each symbolic link that the kernel follows to open ``path``."""
    todo, steps = path, 0
    while steps < 64:
        steps += 1
        current = ""
        parts = [p for p in todo.split("/") if p]
        for index, part in enumerate(parts):
            current += "/" + part
            if os.path.islink(current):
                target = os.readlink(current)
                links[current] = target
                resolved = os.path.normpath(os.path.join(os.path.dirname(current), target))
                todo = os.path.join(resolved, *parts[index + 1 :])
                break
        else:
            return


_LANGUAGE = ("LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "LC_COLLATE", "LC_MESSAGES", "LC_NUMERIC", "LC_TIME", "TZ")
_TOOL_NAMES = ("PYENV_VERSION", "CONDA_DEFAULT_ENV", "RUSTUP_TOOLCHAIN", "GOTOOLCHAIN")
_TOOL_FOLDERS = (
    "PYENV_ROOT", "VIRTUAL_ENV", "CONDA_PREFIX", "NVM_DIR", "NVM_BIN", "RUSTUP_HOME", "GOROOT", "JAVA_HOME", "DENO_DIR",
    "ASDF_DIR", "ASDF_DATA_DIR", "MISE_DATA_DIR", "VOLTA_HOME", "RBENV_ROOT", "NODENV_ROOT", "SDKMAN_DIR",
    "HOMEBREW_PREFIX",
)  # fmt: skip
_CERTIFICATES = (
    "PIP_CERT", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS",
    "GIT_SSL_CAINFO", "CARGO_HTTP_CAINFO", "npm_config_cafile", "NPM_CONFIG_CAFILE",
)  # fmt: skip
"""Variables with a file or folder of certificates. It is shown, if it has no private key."""
_REGISTRIES = (
    "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_TRUSTED_HOST", "UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL",
    "UV_EXTRA_INDEX_URL", "npm_config_registry", "NPM_CONFIG_REGISTRY", "YARN_NPM_REGISTRY_SERVER", "GOPROXY",
    "GOSUMDB", "GONOSUMDB", "GOPRIVATE", "HF_ENDPOINT",
)  # fmt: skip
"""Variables with the addresses of package registries. Names and passwords in the addresses are not passed."""
PASSED_VARIABLES = (*_LANGUAGE, *_TOOL_NAMES, *_TOOL_FOLDERS, *_CERTIFICATES, *_REGISTRIES)
"""Environment variables that are passed into the sandbox. Others are not, such as MAKEFLAGS: if a make started this
process, they are of that one run (`-n`, `-j`, the descriptors of its job server)."""
_LOGIN = re.compile(r"(?<=://)[^/\s@]*@")
_LARGEST_BUNDLE = 16 * 1024 * 1024


def _has_private_key(path: str) -> bool:
    """Whether a file of certificates has a private key, too, or cannot be read."""
    try:
        with open(path, "rb") as file:
            return b"PRIVATE KEY" in file.read(_LARGEST_BUNDLE)
    except OSError:
        return True


def _certificates(environ: Mapping[str, str], more: Iterable[str]) -> list[str]:
    """The files and folders of certificates that may be shown. Those in /etc are in the prepared /etc, or not shown."""
    named = {*(environ.get(name, "") for name in _CERTIFICATES), *more}
    there = [path for path in sorted(named) if os.path.isabs(path) and not within(os.path.realpath(path), "/etc")]
    files = {path: [entry.path for entry in os.scandir(path)] if os.path.isdir(path) else [path] for path in there}
    return [path for path in there if not any(os.path.isfile(file) and _has_private_key(file) for file in files[path])]


def _passed(environ: Mapping[str, str], shown: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """The variables to pass, without those that name a path which is not visible inside."""
    visible = (*shown, *_SYSTEM, "/etc/ssl", "/etc/pki", "/etc/ca-certificates")
    found = []
    for name in PASSED_VARIABLES:
        value = environ.get(name, "")
        if not value or "\0" in value:
            continue
        if name in _REGISTRIES:
            value = _LOGIN.sub("", value)
        elif name in (*_TOOL_FOLDERS, *_CERTIFICATES) and not within_any(os.path.realpath(value), visible):
            continue
        found.append((name, value))
    return tuple(found)


_SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store")


@dataclass(frozen=True, slots=True)
class Host:
    """Facts about the machine and its user.

    ``system``: the system folders, as (folder, None), or (link, its target) for a symbolic link. ``path``: PATH inside
    the sandbox. ``tools``: folders and files of programs. ``links``: symbolic links to recreate, as (path, target).
    ``cores``: the number of processors. ``memory``: bytes of main memory.
    ``settings``: files of settings with their text (`user_settings`).
    """

    uid: int
    gid: int
    user: str
    home: str
    system: tuple[tuple[str, str | None], ...]
    path: tuple[str, ...]
    tools: tuple[str, ...]
    links: tuple[tuple[str, str], ...]
    environment: tuple[tuple[str, str], ...] = field(repr=False)
    shell: str
    cores: int
    memory: int = 0
    settings: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @classmethod
    def detect(cls, environ: Mapping[str, str] | None = None) -> Host:
        """Read the facts from this machine, the user of this process, and ``environ`` (default: `os.environ`)."""
        environ = os.environ if environ is None else environ
        home, user = _home_and_user(environ)
        more = [path for name in _TOOL_FOLDERS if os.path.isabs(path := environ.get(name, ""))]
        entries = environ.get("PATH", os.defpath).split(":")
        settings = user_settings(environ, home)
        certificates = _certificates(environ, settings.certificates)
        tools = find_tools(entries, home, [*more, sys.base_prefix], programs=certificates)
        search = ":".join((*tools.path, "/usr/local/bin", "/usr/bin", "/bin"))
        shell = shutil.which("bash", path="/usr/bin:/bin:" + search) or "/bin/sh"
        return cls(
            uid=os.getuid(),
            gid=os.getgid(),
            user=user,
            home=home,
            system=tuple(_system_folders()),
            path=tuple(dict.fromkeys((*tools.path, *(p for p in ("/usr/bin", "/bin") if os.path.isdir(p))))),
            tools=tools.roots,
            links=tools.links,
            environment=(*_passed(environ, tools.roots), *settings.environment.items()),
            shell=shell,
            cores=os.cpu_count() or 1,
            memory=_main_memory(),
            settings=tuple(sorted(settings.files.items())),
        )

    def showing(self, found: Tools) -> Host:
        """These facts with more tools visible."""
        return replace(
            self,
            tools=tuple(sorted({*self.tools, *found.roots})),
            links=tuple(sorted({*self.links, *found.links})),
        )

    def with_tools(self, path: Iterable[str], more: Iterable[str] = ()) -> Host:
        """These facts with what `find_tools` finds visible: folders of programs, and installation prefixes."""
        return self.showing(find_tools(path, self.home, more))


def _main_memory() -> int:
    """Bytes of main memory: of the machine, or of the container in which this process runs, if that has less."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        with open("/sys/fs/cgroup/memory.max", encoding="ascii") as file:
            return min(machine, int(file.read()))
    except (OSError, ValueError):  # no such limit, or the text max
        return machine


def _system_folders() -> list[tuple[str, str | None]]:
    found: list[tuple[str, str | None]] = []
    for folder in _SYSTEM_FOLDERS:
        if os.path.islink(folder):
            found.append((folder, os.readlink(folder)))
        elif os.path.isdir(folder):
            found.append((folder, None))
    return found


def _home_and_user(environ: Mapping[str, str]) -> tuple[str, str]:
    """The user's home folder and name. The account database gives the home folder if HOME is not set."""
    import pwd

    try:
        entry = pwd.getpwuid(os.getuid())
        home, user = entry.pw_dir, entry.pw_name
    except KeyError:
        home, user = "", "user"
    home = environ.get("HOME", "") or home
    home = os.path.normpath(home) if os.path.isabs(home) else ""
    return home, user
