"""Which MCP servers must be installed: those that a program such as npx downloads when it starts them.

A server runs in the sandbox of the circle's commands, which usually has no network. So the download is a step of its own,
after a question to the user (`connection.install_server`). It may reach the registry of the program, but it sees neither the
workspace nor the server's variables, so that code of a package cannot send them away. What it downloads stays in a home
folder of this command, and the server starts with that home and without a network.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from cantrip_acp.files.paths import cache_dir

if TYPE_CHECKING:
    from cantrip_acp.gates.mcp.declaration import McpServer
    from cantrip_acp.gates.wards import Wards

_HOSTS: Final[Mapping[str, tuple[str, ...]]] = {
    "npx": ("registry.npmjs.org",),
    "uvx": ("pypi.org", "files.pythonhosted.org"),
}
"""The programs that download what they start, and the hosts that they need for it."""
_REGISTRIES: Final = {"npx": "npm_config_registry", "uvx": "UV_DEFAULT_INDEX"}
_OFFLINE: Final = {"npx": {"npm_config_offline": "true"}, "uvx": {"UV_OFFLINE": "1"}}
_MARK: Final = "installed"
INSTALL_SECONDS: Final = 300


def hosts(server: McpServer) -> tuple[str, ...]:
    """The hosts that installing this server needs; none for a server that is not installed in this way."""
    if server.transport != "stdio" or not server.sandboxed:
        return ()
    program = os.path.basename(server.command)
    registry = urlsplit(server.env.get(_REGISTRIES.get(program, ""), ""))
    # Without the user and the password that may be before the host.
    own = registry.netloc.rpartition("@")[2]
    return (own,) if own else _HOSTS.get(program, ())


def home_of(server: McpServer) -> Path:
    """The home folder of a server's command, where its program keeps what it downloaded."""
    words = json.dumps([server.command, *server.args, hosts(server)])
    return cache_dir() / "mcp" / hashlib.blake2b(words.encode(), digest_size=12).hexdigest()


def is_installed(server: McpServer) -> bool:
    """Whether this server was installed."""
    return (home_of(server) / _MARK).exists()


def needs_install(server: McpServer, wards: Wards) -> bool:
    """Whether this server must be installed before it can start in a sandbox with these wards."""
    network = wards.bash_network
    wanted = hosts(server)
    if not wanted or network is True or set(wanted) <= set(network or ()):
        return False
    return not is_installed(server)


def describe(server: McpServer) -> str:
    """Describe the installation of this server, for a question to the user."""
    command = " ".join([server.command, *server.args])
    return (
        f"MCP server {server.name!r} is not installed yet. `{command}` downloads it. The download may reach "
        f"{' and '.join(hosts(server))}, in a sandbox without your files; the server starts without this network."
    )


def download(server: McpServer) -> list[str]:
    """The command that downloads the packages of a server's command without starting the server."""
    program = os.path.basename(server.command)
    option, valued = _PACKAGE_OPTIONS[program]
    packages: list[str] = []
    others: list[str] = []
    words = list(server.args)
    tool = ""
    while words and not tool:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        if name in option:
            packages.append(value if equals else words.pop(0) if words else "")
        elif not word.startswith("-"):
            tool = word
        elif program == "uvx":
            others += [word, *([words.pop(0)] if word in valued and words else [])]
    packages = packages or [tool]
    if program == "npx":
        return [server.command, "--yes", *(f"--package={package}" for package in packages), "-c", "true"]
    name, at, version = packages[0].partition("@")
    exact = (
        packages[0] if not at or not name or "/" in version else name if version == "latest" else f"{name}=={version}"
    )
    return [server.command, *others, "--from", exact, "python", "-c", ""]


_PACKAGE_OPTIONS: Final[Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "npx": (("-p", "--package"), ()),
    "uvx": (("--from",), ("--with", "-p", "--python", "--index", "--default-index", "-i", "--index-url", "-w")),
}
"""For each program the options that name a package, and others that have a value."""


def download_environment(server: McpServer) -> dict[str, str]:
    """The variables of the download: those of the program itself, and no secret of the server."""
    return {name: value for name, value in server.env.items() if name.startswith(("npm_config_", "UV_"))}


def environment(server: McpServer) -> dict[str, str]:
    """The variables with which an installed server starts without a network."""
    return {**_OFFLINE.get(os.path.basename(server.command), {}), **server.env}


def mark_installed(server: McpServer) -> None:
    """Note that a server was installed."""
    (home_of(server) / _MARK).touch()
