"""Finds the Python interpreter of code cells: the one that runs cantrip, or the one that `code_python` names.

The interpreter is only inspected on the host and never started there. An interpreter in a workspace is as untrusted
as the other files there.
"""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass, replace

from cantrip_acp.files.paths import within
from cantrip_acp.sandbox.policy.host_toolchains import Host, find_tools
from cantrip_acp.sandbox.policy.host_toolchains import is_python as is_python
from cantrip_acp.types.errors import DefinitionError

VENV = "venv"
"""The value of `code_python` that means the workspace's virtual environment, under any of these folder names:"""
_VENV_FOLDERS = (".venv", "venv", "env", ".env")
_PARTS = ("bin", "lib", "lib64", "include", "share", "etc", "ssl", "pyvenv.cfg", "conda-meta")
"""The parts of a virtual environment. If it is in a workspace, only these are visible."""
_HOW_TO_FIX = (
    "set code_python to a Python program, to the folder of a virtual environment, or to `venv` "
    "(`python3 -m venv .venv` makes one)"
)


@dataclass(frozen=True, slots=True)
class Interpreter:
    """An interpreter. All paths are absolute.

    ``program``: the executable. ``prefix``: its virtual environment, or None. ``system_packages``: whether the
    virtual environment also uses the packages of its base Python. ``foreign``: the interpreter's folder if it is in
    the workspace and therefore untrusted; else None.
    """

    program: str
    prefix: str | None = None
    system_packages: bool = True
    foreign: str | None = None

    def _base_python(self) -> list[str]:
        """The base Python of a virtual environment in a workspace: the program that it links to or is a copy of.

        At most one path.
        """
        assert self.foreign is not None
        if not within(os.path.realpath(self.program), self.foreign):
            return [self.program]
        home = (_pyvenv_settings(os.path.join(self.foreign, "pyvenv.cfg")) or {}).get("home", "")
        copied = [os.path.join(home, name) for name in ("python3", "python")] if os.path.isabs(home) else []
        return [p for p in copied if is_python(os.path.realpath(p))][:1]

    def on(self, host: Host) -> Host:
        """Return the host facts with this interpreter visible and first on PATH."""
        folder = os.path.dirname(self.program)
        if self.foreign is None:
            found = find_tools([folder], host.home, [p for p in (self.prefix,) if p])
        else:
            parts = (os.path.join(self.foreign, part) for part in _PARTS)
            inside = [p for p in parts if os.path.exists(p) and within(os.path.realpath(p), self.foreign)]
            found = find_tools((), host.home, programs=self._base_python())
            links = tuple(link for link in found.links if not any(within(link[0], p) for p in inside))
            found = replace(found, roots=(*found.roots, *inside), links=links)
        environment = tuple(pair for pair in host.environment if pair[0] != "VIRTUAL_ENV")
        if self.prefix is not None:
            environment += (("VIRTUAL_ENV", self.prefix),)
        path = tuple(dict.fromkeys((folder, *host.path)))
        return replace(host.showing(found), path=path, environment=environment)


def find(chosen: str | None, host: Host, base: str | None = None) -> Interpreter:
    """Find the interpreter. ``chosen``: a program, the folder of a virtual environment, a name on PATH, or `VENV`.

    Relative paths are below ``base``, the workspace. Raises `DefinitionError` if there is no such interpreter, or if
    it is in the workspace and does not lead to a Python.
    """
    if chosen is None:
        program: str | None = sys.executable or shutil.which("python3", path=":".join(host.path))
        if program is None or not os.path.isfile(program):
            raise DefinitionError(
                "no Python for code cells was found: install python3, or set code_python to a Python program"
            )
    else:
        program = _find_program(os.path.expanduser(chosen), host, base)
    folder = os.path.dirname(os.path.dirname(program))
    settings = _pyvenv_settings(os.path.join(folder, "pyvenv.cfg"))
    foreign = _workspace_environment(program, folder, settings is not None, base) if chosen is not None else None
    if foreign is not None:
        # Use the real path: links that lead to it may not exist inside the sandbox.
        program, folder = os.path.join(foreign, os.path.relpath(program, folder)), foreign
    if settings is None:
        return Interpreter(program, foreign=foreign)
    return Interpreter(program, folder, settings.get("include-system-site-packages", "").lower() == "true", foreign)


def _workspace_environment(program: str, folder: str, is_venv: bool, base: str | None) -> str | None:
    """The folder of an interpreter in the workspace; None for an interpreter of the user elsewhere.

    A file in a repository may link to anything. So the interpreter must be part of a virtual environment in its own
    folder, and it must lead to a Python. Raises `DefinitionError` if not.
    """
    if base is None:
        return None
    own, real = os.path.realpath(base), os.path.realpath(folder)
    if not (within(program, base) or within(real, own)):
        return None
    if not within(real, own):
        raise _error(f"{folder} leads out of the workspace, to {real}")
    if real == own or not (is_venv or os.path.isdir(os.path.join(folder, "conda-meta"))):
        raise _error(f"{program} is not part of a virtual environment (there is no {folder}/pyvenv.cfg)")
    target = os.path.realpath(program)
    if not within(target, real) and not is_python(target):
        raise _error(f"{program} is a link to {target}, which is not a Python")
    return real


def _find_program(chosen: str, host: Host, base: str | None) -> str:
    if chosen == VENV:
        return _workspace_python(base)
    if "/" not in chosen and not (base and os.path.isdir(os.path.join(base, chosen))):
        found = shutil.which(chosen, path=":".join(host.path))
        if found is None:
            where = f", nor a folder of that name in {base}" if base else ""
            raise _error(f"there is no program {chosen!r} on PATH{where}")
        return os.path.abspath(found)
    path = os.path.normpath(os.path.join(base or os.getcwd(), chosen))
    if os.path.isdir(path):
        return _python_in(path)
    if not os.path.isfile(path) or not os.access(path, os.X_OK):
        what = "cannot be run" if os.path.exists(path) else "does not exist"
        raise _error(f"{path} {what}")
    return path


def _workspace_python(base: str | None) -> str:
    if base is None:
        raise _error("`venv` means the workspace's virtual environment, and there is no workspace")
    for name in _VENV_FOLDERS:
        if os.path.isfile(os.path.join(base, name, "pyvenv.cfg")):
            return _python_in(os.path.join(base, name))
    raise _error(f"there is no virtual environment in {base} (searched for {', '.join(_VENV_FOLDERS)})")


def _python_in(path: str) -> str:
    for name in ("bin/python3", "bin/python"):
        program = os.path.join(path, name)
        if os.path.isfile(program) and os.access(program, os.X_OK):
            return program
        if os.path.islink(program):
            raise _error(
                f"{program} is a link to {os.readlink(program)}, which cannot be run; make the environment again"
            )
    raise _error(f"{path} is a folder without bin/python3: not a virtual environment")


def _error(what: str) -> DefinitionError:
    return DefinitionError(f"{what}; {_HOW_TO_FIX}", where="code_python")


def _pyvenv_settings(path: str) -> dict[str, str] | None:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = file.read(65_536).splitlines()
    except OSError:
        return None
    pairs = (line.partition("=") for line in lines if "=" in line)
    return {name.strip().lower(): value.strip() for name, _, value in pairs}
