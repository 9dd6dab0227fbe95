"""Host facts: what a policy needs to know about this machine. `policy` uses them."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from cantrip_acp.sandbox.policy.toolchains import find_tools

PASSED = (
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
    def look(cls, environ: Mapping[str, str] | None = None) -> Host:
        """Read the facts from this machine, this process's user and its environment."""
        environ = os.environ if environ is None else environ
        home, user = _account(environ)
        more = [environ.get(name, "") for name in ("VIRTUAL_ENV", "CONDA_PREFIX", "JAVA_HOME", "GOROOT")]
        tools = find_tools(environ.get("PATH", os.defpath).split(":"), home, [*more, sys.base_prefix])
        search = ":".join((*tools.path, "/usr/local/bin", "/usr/bin", "/bin"))
        shell = shutil.which("bash", path="/usr/bin:/bin:" + search) or "/bin/sh"
        return cls(
            uid=os.getuid(),
            gid=os.getgid(),
            user=user,
            home=home,
            system=tuple(_system()),
            path=tuple(dict.fromkeys((*tools.path, *(p for p in ("/usr/bin", "/bin") if os.path.isdir(p))))),
            tools=tools.roots,
            links=tools.links,
            environment=tuple((n, environ[n]) for n in PASSED if environ.get(n) and "\0" not in environ[n]),
            shell=shell,
            cores=os.cpu_count() or 1,
        )


def _system() -> list[tuple[str, str | None]]:
    found: list[tuple[str, str | None]] = []
    for folder in _SYSTEM_FOLDERS:
        if os.path.islink(folder):
            found.append((folder, os.readlink(folder)))
        elif os.path.isdir(folder):
            found.append((folder, None))
    return found


def _account(environ: Mapping[str, str]) -> tuple[str, str]:
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
