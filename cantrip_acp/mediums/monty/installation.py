"""Finds the installation of Monty, and runs its worker. The package is imported only in the sandbox."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import signal
import sysconfig
from dataclasses import dataclass

from cantrip_acp.files.installation import install_command
from cantrip_acp.sandbox import Worker
from cantrip_acp.types.errors import SandboxMissing


@dataclass(frozen=True, slots=True)
class Monty:
    """``packages``: the folder with its Python package. ``binary``: the path of its interpreter."""

    packages: str
    binary: str


def find() -> Monty:
    """Find Monty. Raises `SandboxMissing` with a text that says how to install it."""
    found = importlib.util.find_spec("pydantic_monty")
    if found is None or not found.submodule_search_locations:
        raise SandboxMissing(
            f"the monty medium needs pydantic-monty, which is not installed here: {install_command('monty')}"
        )
    packages = os.path.dirname(next(iter(found.submodule_search_locations)))
    binary = _binary()
    if binary is None:
        raise SandboxMissing(
            f"pydantic-monty is installed, but its interpreter (monty) is not: {install_command('monty')}"
        )
    return Monty(packages, binary)


def _binary() -> str | None:
    places = [os.path.join(sysconfig.get_path("scripts"), "monty")]
    try:
        files = importlib.metadata.files("pydantic-monty-runtime") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    places[:0] = [str(f.locate()) for f in files if f.name == "monty"]
    for place in places:
        if os.access(place, os.X_OK):
            return os.path.realpath(place)
    return shutil.which("monty")


class MontyWorker(Worker):
    """A code worker whose Python process passes cells to Monty's interpreter, and stops the interpreter between cells."""

    program = "monty_worker"

    async def freeze(self) -> bool:
        """Stop the worker. There are no child processes to kill, because Monty cannot start any."""
        self._signal(signal.SIGSTOP)
        self.frozen = True
        if self.tree.exited or self.broken is not None:
            return False
        self.tree.read_now()
        return self.broken is None
