"""The Python that cells run in: the one that cantrip runs on, or the one that a circle names.

It is never started on the host, only looked at: an interpreter that lies in a workspace is as untrusted as the rest of it.
"""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass, replace

from cantrip_acp.errors import DefinitionError
from cantrip_acp.sandbox.host import Host
from cantrip_acp.sandbox.toolchains import find_tools


@dataclass(frozen=True, slots=True)
class Interpreter:
    """``prefix`` is its virtual environment, None where it is not of one; ``system_packages`` whether that shows the
    packages of the Python below it too."""

    program: str
    prefix: str | None = None
    system_packages: bool = True

    def on(self, host: Host) -> Host:
        """The machine with this interpreter first on PATH, and visible."""
        folder = os.path.dirname(self.program)
        found = find_tools([folder], host.home, [p for p in (self.prefix,) if p])
        environment = tuple(pair for pair in host.environment if pair[0] != "VIRTUAL_ENV")
        if self.prefix is not None:
            environment += (("VIRTUAL_ENV", self.prefix),)
        return replace(
            host,
            path=tuple(dict.fromkeys((folder, *host.path))),
            tools=tuple(sorted({*host.tools, *found.roots})),
            links=tuple(sorted({*host.links, *found.links})),
            environment=environment,
        )


def find(chosen: str | None, host: Host, base: str | None = None) -> Interpreter:
    """``chosen``: a program, the folder of a virtual environment, or a name on PATH; relative paths are below ``base``.

    Raises `DefinitionError` where there is none.
    """
    if chosen is None:
        program: str | None = sys.executable or shutil.which("python3", path=":".join(host.path))
        if program is None or not os.path.isfile(program):
            raise DefinitionError("there is no Python for cells here: install python3, or name one with code_python")
    else:
        program = _program(os.path.expanduser(chosen), host, base)
    folder = os.path.dirname(os.path.dirname(program))
    settings = _settings(os.path.join(folder, "pyvenv.cfg"))
    if settings is None:
        return Interpreter(program)
    return Interpreter(program, folder, settings.get("include-system-site-packages", "").lower() == "true")


def _program(chosen: str, host: Host, base: str | None) -> str:
    if "/" not in chosen and not (base and os.path.isdir(os.path.join(base, chosen))):
        found = shutil.which(chosen, path=":".join(host.path))
        if found is None:
            raise DefinitionError(f"there is no program {chosen!r} on PATH", where="code_python")
        return os.path.abspath(found)
    path = os.path.normpath(os.path.join(base or os.getcwd(), chosen))
    if os.path.isdir(path):
        for name in ("bin/python3", "bin/python"):
            if os.path.isfile(os.path.join(path, name)):
                return os.path.join(path, name)
        raise DefinitionError(f"{path} is a folder without bin/python3: not a virtual environment", where="code_python")
    if not os.path.isfile(path) or not os.access(path, os.X_OK):
        what = "cannot be run" if os.path.exists(path) else "does not exist"
        raise DefinitionError(f"{path} {what}", where="code_python")
    return path


def _settings(path: str) -> dict[str, str] | None:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = file.read(65_536).splitlines()
    except OSError:
        return None
    pairs = (line.partition("=") for line in lines if "=" in line)
    return {name.strip().lower(): value.strip() for name, _, value in pairs}
