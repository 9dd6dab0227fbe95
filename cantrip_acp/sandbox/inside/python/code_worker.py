"""Main loop of the code worker: reads a command from the host, runs it, and sends the result.

The loop ends when the host closes the pipe.
"""

from __future__ import annotations

import builtins
import fcntl
import os
import sys

from .cell_origin import Origins
from .cells import Cells, install
from .gates import GateError, Gates, LoomView
from .interrupts import Done, Interrupts
from .lazy_imports import PathFileFinder
from .value_repr import Exit, Help, describe, restore_builtins, show
from .wire import Codec, Wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

globals()["__builtins__"] = dict(vars(builtins))

_HIGH = 400
"""Our descriptors have higher numbers than this, because some programs close all low descriptors."""
_NAMES = 200
_OURS = os.path.dirname(__file__)


def main(inward: int, outward: int) -> None:
    """Serve the host: read commands from ``inward`` and write to ``outward``, two descriptors. Never returns."""
    interrupts = Interrupts()
    interrupts.begin()
    wire = Wire(_move(inward), _move(outward), Codec(), interrupts)
    worker = Worker(wire, interrupts, wire.command())
    wire.send({"t": "ready", "python": sys.version.split()[0], "executable": sys.executable})
    worker.serve()


def _move(fd: int) -> int:
    high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _HIGH)
    os.close(fd)
    return high


class Worker:
    """The namespace of an entity, and the commands on it."""

    def __init__(self, wire: Wire, interrupts: Interrupts, settings: dict[str, Any]) -> None:
        self.wire = wire
        self.interrupts = interrupts
        self._streams = _Streams()
        self._origins = Origins()
        wire.cell = self._origins.token
        sys.argv[:] = [""]
        builtins.help = Help()  # type: ignore[assignment]
        builtins.exit = builtins.quit = Exit()  # type: ignore[assignment]
        module = type(sys)("__main__")
        sys.modules["__main__"] = module
        self.scope: dict[str, Any] = vars(module)
        self.scope["__builtins__"] = builtins
        del self.scope["__loader__"], self.scope["__spec__"], self.scope["__package__"], self.scope["__doc__"]
        self.gates = Gates(settings["gates"], wire, interrupts, self._streams.flush)
        self.fixed: dict[str, Any] = {**self.gates.functions, "GateError": GateError}
        if settings.get("construction"):
            from .children import child_functions

            # A gate of the circle with such a name has precedence, because the prompt describes the gate.
            self.fixed = {**child_functions(self.gates), **self.fixed}
        if settings.get("loom"):
            self.fixed["loom"] = LoomView(wire)
        self.scope.update(self.fixed)
        self._set_added_gates(settings.get("gained") or [])
        wire.gained = self._set_added_gates
        self.scope["context"] = []
        self.cells = Cells(self.scope, interrupts)
        install(interrupts)
        self._builtins = dict(vars(builtins))
        _find_packages(settings)
        self._last_names: list[str] = []
        self.snapshot_pid: int | None = None
        """The ID of the process that makes a snapshot. It has ended when the next command of the host comes."""
        self.modules = frozenset(sys.modules)
        self.private: list[str] = settings.get("private") or []
        """The real paths of the private folders, on macOS."""

    def _set_added_gates(self, specs: list[dict[str, Any]]) -> None:
        """Replace the functions of gates that were added later, also in a cell that runs."""
        functions, gone = self.gates.set_added(specs)
        for name in gone:
            value = self.fixed.pop(name, None)
            if self.scope.get(name) is value:
                del self.scope[name]
        for name, function in functions.items():
            # Do not overwrite a name to which the entity has assigned another value.
            if name not in self.fixed or self.scope.get(name) is self.fixed[name]:
                self.scope[name] = function
            self.fixed[name] = function

    def serve(self) -> None:
        """Serve commands. When the host is gone, reading a command ends the process."""
        while True:
            try:
                self.interrupts.end()
                command = self.wire.command()
                self._reap_snapshot_process()
                kind = command.get("t")
                if kind == "run":
                    self._cell(command)
                elif kind == "snapshot":
                    from .snapshot import snapshot

                    snapshot(self, command)
                elif kind == "restore":
                    from .snapshot_load import restore

                    restore(self, command)
            except (KeyboardInterrupt, Done):
                # The interrupt came after the end of its cell.
                continue

    def _reap_snapshot_process(self) -> None:
        snapshot_pid, self.snapshot_pid = self.snapshot_pid, None
        if snapshot_pid is not None:
            self.wire.resume_writing()
            try:
                os.waitpid(snapshot_pid, 0)
            except OSError:
                # A cell may have set SIGCHLD to be ignored. Then the kernel has already removed the process.
                return

    def _cell(self, command: dict[str, Any]) -> None:
        self._streams.restore()
        self._origins.begin(command["token"])
        if "trace" in command:
            os.environ["TRACEPARENT"] = command["trace"]
        if "context" in command:
            self.scope["context"] = command["context"]
        if "folded" in command:
            self.fixed["folded_turns"] = self.scope["folded_turns"] = LoomView(self.wire, command["folded"])
        for name, value in self.fixed.items():
            self.scope.setdefault(name, value)
        interrupts = self.interrupts
        interrupts.begin()
        value = error = None
        done = False
        try:
            interrupts.running = True
            try:
                result = self.cells.run(command["code"], command["name"])
                if result is not None:
                    value = show(result)
            finally:
                interrupts.running = False
        except Done:
            done = True
        except SystemExit as leaving:
            interrupts.running = False
            if leaving.code not in (None, 0):
                error = f"SystemExit: {leaving.code} (the cell ended, its state is kept)"
        except BaseException as failure:  # noqa: BLE001 - a cell may raise anything
            interrupts.running = False
            error = self._error_text(failure)
        restore_builtins(self._builtins)
        done = done or interrupts.stop is Done
        interrupts.end()
        self._streams.flush()
        if not self.wire.here:
            os._exit(1 if error else 0)
        names = [n for n in self.scope if type(n) is str and n[:1] != "_" and n not in self.fixed and n != "context"][
            :_NAMES
        ]
        told: dict[str, Any] = {}
        if names != self._last_names:
            self._last_names = names
            told["names"] = [n[:100] for n in names]
        body = {"t": "end", "cell": command["cell"], "value": value, "error": error, "done": done, **told}
        self.wire.send(body)

    def _error_text(self, failure: BaseException) -> str:
        """The text of an error. This may run code of the entity that does not end, so it can be interrupted too."""
        try:
            self.interrupts.running = True
            try:
                return describe(failure, _OURS)
            finally:
                self.interrupts.running = False
        except BaseException:  # noqa: BLE001 - only the type of the first error is left to report
            self.interrupts.running = False
            return type(failure).__name__


class _Streams:
    """Standard output and error: restores the pipes to the host after a cell has closed or replaced them."""

    def __init__(self) -> None:
        self._saved = {fd: fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _HIGH) for fd in (1, 2)}
        self._same = {fd: _identity(fd) for fd in (1, 2)}
        self._files: dict[int, Any] = {1: sys.stdout, 2: sys.stderr}
        for file in self._files.values():
            file.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)

    def restore(self) -> None:
        for fd, name in ((1, "stdout"), (2, "stderr")):
            if _identity(fd) != self._same[fd]:
                os.dup2(self._saved[fd], fd)
            if self._files[fd].closed:
                self._files[fd] = open(fd, "w", 1, "utf-8", "backslashreplace", closefd=False)  # noqa: SIM115
            setattr(sys, name, self._files[fd])

    def flush(self) -> None:
        for file in self._files.values():
            try:
                file.flush()
            except (OSError, ValueError):
                # The cell has closed the file. It is restored for the next cell.
                continue


def _identity(fd: int) -> tuple[int, int] | None:
    try:
        status = os.fstat(fd)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _find_packages(settings: dict[str, Any]) -> None:
    """Add the folders of installed packages to ``sys.path``. This is the only part of ``site`` that is needed."""
    prefix = settings.get("prefix") or sys.base_prefix
    sys.prefix = sys.exec_prefix = prefix
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    prefixes = [prefix, sys.base_prefix] if settings.get("system_packages") else [prefix]
    folders: list[str] = []
    for each in dict.fromkeys(prefixes):
        folders += [f"{each}/{lib}/{version}/site-packages" for lib in ("lib", "lib64")]
        if each == sys.base_prefix:
            folders += [f"/usr/local/lib/{version}/dist-packages", "/usr/lib/python3/dist-packages"]
    found: list[str] = []
    for folder in folders:
        if os.path.isdir(folder) and os.path.realpath(folder) not in map(os.path.realpath, found):
            found.append(folder)
    sys.path[:] = [p for p in sys.path if p != os.path.dirname(_OURS)] + ["", *found]
    sys.meta_path.append(PathFileFinder(found))
