"""The package registries of a project: what its lock files and the user's own settings of pip, npm, cargo and go name.

Only hosts are taken from these files, never a user or a password. A lock file may be hostile, so whoever offers the hosts shows
them all.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

MOST = 8
"""A project with more hosts has no answer for all of them: nobody would read them."""
_LARGEST = 8 * 1024 * 1024
_URL = (
    r"[\"']?(?:registry\+|sparse\+)?(https?)://(?:[^\s/@\"']*@)?([A-Za-z0-9._-]+)(?::([0-9]{1,5}))?(?=[/\s\"',)}\]<]|$)"
)

Host = tuple[str, int]


class _Kind(NamedTuple):
    """``files``: the files in a project that say that it uses these registries, with an address after ``keys``.

    ``settings``: the user's own files, and ``variables`` of the environment. ``usual``: the hosts if nothing names another.
    """

    files: Sequence[str]
    keys: str
    settings: Sequence[str]
    variables: Sequence[str]
    usual: Sequence[str]


_KINDS = (
    _Kind(
        ("package-lock.json", "npm-shrinkwrap.json", "pnpm-lock.yaml", "yarn.lock", "package.json", ".npmrc"),
        r"(?:\"resolved\":|resolved|tarball:|registry\s*=)\s*",
        ("~/.npmrc", "~/.config/pnpm/rc"),
        ("npm_config_registry", "NPM_CONFIG_REGISTRY"),
        ("registry.npmjs.org",),
    ),
    _Kind(
        ("uv.lock", "poetry.lock", "requirements*.txt", "pyproject.toml", "setup.py", "Pipfile.lock"),
        r"(?:registry\s*=|\burl\s*=|--(?:extra-)?index-url[\s=]|-i|(?:extra-)?index-url\s*=|\"url\":)\s*",
        ("~/.config/pip/pip.conf", "~/.pip/pip.conf", "/etc/pip.conf", "~/.config/uv/uv.toml"),
        ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "UV_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX"),
        ("pypi.org", "files.pythonhosted.org"),
    ),
    _Kind(
        ("Cargo.lock", "Cargo.toml"),
        r"(?:source\s*=|\bindex\s*=|\bregistry\s*=)\s*(?=[\"'](?:registry|sparse)\+)",
        ("~/.cargo/config.toml", "~/.cargo/config"),
        (),
        ("index.crates.io", "static.crates.io"),
    ),
    _Kind(
        ("pom.xml",), r"<mirror>(?s:(?!</mirror>).)*?<url>\s*", ("~/.m2/settings.xml",), (), ("repo.maven.apache.org",)
    ),
    _Kind(("go.sum", "go.mod"), r"(?!)", (), ("GOPROXY",), ("proxy.golang.org", "sum.golang.org")),
)
_OLD_INDEX = "github.com"
"""Cargo writes the address of its first index, a git repository, for every package of crates.io, and does not use it."""


def registries_of(workspace: Path) -> tuple[Host, ...]:
    """The hosts and ports of a project's registries, sorted; empty if it has none, or more than `MOST`. Blocks."""
    found: set[Host] = set()
    for kind in _KINDS:
        files = [path for pattern in kind.files for path in sorted(workspace.glob(pattern))]
        if not files:
            continue
        found |= {(host, 443) for host in kind.usual}
        named = re.compile(kind.keys + _URL)
        for path in (*files, *(Path(os.path.expanduser(each)) for each in kind.settings)):
            found |= set(_hosts(named, _text(path)))
        for name in kind.variables:
            found |= set(_hosts(re.compile(_URL), os.environ.get(name, "")))
    return tuple(sorted(found)) if len(found) <= MOST else ()


def _hosts(named: re.Pattern[str], text: str) -> Iterator[Host]:
    for match in named.finditer(text):
        scheme, host, port = match.groups()
        if host != _OLD_INDEX:
            yield host.lower(), int(port) if port else 443 if scheme == "https" else 80


def _text(path: Path) -> str:
    """The beginning of a regular file; empty if it is none, or a link."""
    with suppress(OSError, ValueError):
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, encoding="utf-8", errors="replace") as file:
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                return file.read(_LARGEST)
    return ""
