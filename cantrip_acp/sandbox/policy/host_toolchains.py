"""Toolchains of the user: which folders to show so that programs on PATH work inside the sandbox.

By default nothing of a home folder is visible. For each PATH entry (resolved), one folder is added: the folder of a
version manager, the prefix of an installation, or a single folder of programs. Never the home folder itself, and
never the folders nearby that hold credentials.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

MANAGERS = (
    ".pyenv", ".rbenv", ".nodenv", ".jenv", ".asdf", ".nvm", ".volta", ".fnm", ".deno", ".ghcup", ".opam", ".rye",
    ".rvm", ".sdkman", ".linuxbrew", ".proto", ".juliaup", ".elan", ".swiftly", ".nix-profile",
    ".local/share/mise", ".local/share/fnm", ".local/share/rtx", ".local/share/pnpm", ".local/share/coursier/bin",
    ".local/share/uv/python", ".local/state/nix",
)  # fmt: skip
"""Folders below home that belong completely to one version manager."""

NEEDED_ELSEWHERE: Mapping[str, tuple[str, ...]] = {
    ".cargo/bin": (".rustup", ".cargo/registry", ".cargo/git"),
    "go/bin": ("go/pkg",),
    ".local/bin": (".local/share/uv/python",),
}
"""What the programs of a folder need elsewhere. Cargo's and Go's folders also hold credentials, so only parts of
them.
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

    ``path``: PATH inside. ``roots``: real folders and files to show. ``links``: symbolic links to recreate, as (path,
    target), so that a path through one means the same inside.
    """

    path: tuple[str, ...]
    roots: tuple[str, ...]
    links: tuple[tuple[str, str], ...]


def find_tools(path: Iterable[str], home: str, more: Iterable[str] = (), programs: Iterable[str] = ()) -> Tools:
    """What the entries of PATH need. ``more`` are further prefixes to show (a runtime, a virtual environment);
    ``programs`` are single programs."""
    roots: dict[str, None] = {}
    links: dict[str, str] = {}
    entries: dict[str, None] = {}
    for entry in path:
        entry = os.path.normpath(entry) if entry else ""
        if not os.path.isabs(entry) or not os.path.isdir(entry) or any(c in entry for c in "\n\0:"):
            continue
        entries[entry] = None
        _show(entry, home, roots, links)
        if not _within_any(os.path.realpath(entry), _SYSTEM):
            _follow_programs(entry, home, roots, links)
    for prefix in more:
        if os.path.isdir(prefix):
            _show(prefix, home, roots, links)
            for interpreter in ("bin/python", "bin/python3"):
                program = os.path.join(prefix, interpreter)
                # A link in a repository may lead to anything. Follow it only to a Python.
                if os.path.islink(program) and is_python(os.path.realpath(program)):
                    _show(program, home, roots, links)
    for program in programs:
        _show(program, home, roots, links)
    visible_roots = [
        r for r in sorted(roots) if not _within_any(r, (o for o in roots if o != r)) and not _within_any(r, _SYSTEM)
    ]
    visible = tuple(
        e
        for e in entries
        if _within_any(os.path.realpath(e), visible_roots) or _within_any(os.path.realpath(e), _SYSTEM)
    )
    shown = tuple(
        sorted((p, t) for p, t in links.items() if not _within_any(p, visible_roots) and not _within_any(p, _SYSTEM))
    )
    return Tools(path=visible, roots=tuple(visible_roots), links=shown)


def is_python(path: str) -> bool:
    """Whether a real path is an executable file with a name like python3.11. Its content is not read."""
    return _PYTHON.fullmatch(os.path.basename(path)) is not None and os.path.isfile(path) and os.access(path, os.X_OK)


def _show(path: str, home: str, roots: dict[str, None], links: dict[str, str]) -> None:
    """Add what makes ``path`` usable: the links on the way to it, and the folder that it belongs to."""
    _links_on_the_way(path, links)
    real = os.path.realpath(path)
    if not os.path.exists(real) or _within_any(real, _SYSTEM):
        return
    for root in _folders_to_show(real, home):
        if os.path.exists(root) and not _too_wide(root, home):
            roots[root] = None


def _folders_to_show(real: str, home: str) -> list[str]:
    """The folder to show for a program or a folder of programs: its version manager, its prefix, or only itself."""
    home_real = os.path.realpath(home) if home else ""
    if home_real and _within(real, home_real) and real != home_real:
        below = os.path.relpath(real, home_real)
        for manager in MANAGERS:
            if _within(below, manager):
                return [os.path.join(home_real, manager)]
        for folder, beside in NEEDED_ELSEWHERE.items():
            if _within(below, folder):
                more = [os.path.join(home_real, b) for b in beside]
                return [os.path.join(home_real, folder), *(os.path.realpath(m) for m in more)]
    folder = real if os.path.isdir(real) else os.path.dirname(real)
    if os.path.basename(folder) in PROGRAM_FOLDERS:
        prefix = os.path.dirname(folder)
        if not _too_wide(prefix, home) and any(os.path.exists(os.path.join(prefix, s)) for s in _PREFIX_SIGNS):
            return [prefix]
        return [folder]
    if os.path.isdir(real):
        return [real]
    return [real]


def _too_wide(path: str, home: str) -> bool:
    """Whether showing this folder would show a home, or a folder of other people's files."""
    home_real = os.path.realpath(home) if home else ""
    if path in _NEVER or (home_real and (_within(home_real, path))):
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
    """Show the targets of programs that are links (pipx, uv, Homebrew, npm)."""
    try:
        with os.scandir(entry) as programs:
            found = [p.path for p in programs if p.is_symlink()]
    except OSError:
        return
    for program in found[:2000]:
        real = os.path.realpath(program)
        if not _within_any(real, roots):
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


def _within(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip("/") + "/")


def _within_any(path: str, roots: Iterable[str]) -> bool:
    return any(_within(path, root) for root in roots)


PASSED_VARIABLES = (
    "LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "LC_COLLATE", "LC_MESSAGES", "LC_NUMERIC", "LC_TIME", "TZ",
    "PYENV_ROOT", "PYENV_VERSION", "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "NVM_DIR", "NVM_BIN",
    "RUSTUP_HOME", "RUSTUP_TOOLCHAIN", "GOROOT", "GOTOOLCHAIN", "JAVA_HOME", "DENO_DIR", "ASDF_DIR", "ASDF_DATA_DIR",
    "MISE_DATA_DIR", "VOLTA_HOME", "RBENV_ROOT", "NODENV_ROOT", "SDKMAN_DIR", "HOMEBREW_PREFIX", "MAKEFLAGS",
)  # fmt: skip
"""Environment variables that are passed on: language, and where the user's tools are. All others are dropped."""

_SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store")


@dataclass(frozen=True, slots=True)
class Host:
    """Facts about the machine and its user. ``system`` holds (folder, None) and (link, its target)."""

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

    @classmethod
    def detect(cls, environ: Mapping[str, str] | None = None) -> Host:
        """Read the facts from this machine, this process's user and its environment."""
        environ = os.environ if environ is None else environ
        home, user = _home_and_user(environ)
        more = [environ.get(name, "") for name in ("VIRTUAL_ENV", "CONDA_PREFIX", "JAVA_HOME", "GOROOT")]
        tools = find_tools(environ.get("PATH", os.defpath).split(":"), home, [*more, sys.base_prefix])
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
            environment=tuple((n, environ[n]) for n in PASSED_VARIABLES if environ.get(n) and "\0" not in environ[n]),
            shell=shell,
            cores=os.cpu_count() or 1,
        )


def _system_folders() -> list[tuple[str, str | None]]:
    found: list[tuple[str, str | None]] = []
    for folder in _SYSTEM_FOLDERS:
        if os.path.islink(folder):
            found.append((folder, os.readlink(folder)))
        elif os.path.isdir(folder):
            found.append((folder, None))
    return found


def _home_and_user(environ: Mapping[str, str]) -> tuple[str, str]:
    """The user's home folder and name; from the account database where the environment has none."""
    import pwd

    try:
        entry = pwd.getpwuid(os.getuid())
        home, user = entry.pw_dir, entry.pw_name
    except KeyError:
        home, user = "", "user"
    home = environ.get("HOME", "") or home
    home = os.path.normpath(home) if os.path.isabs(home) else ""
    return home, user
