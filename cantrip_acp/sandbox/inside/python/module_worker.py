"""Worker of modules that an entity wrote: compiles them, lists their functions, and calls these.

It handles one module or call at a time; nothing runs between two of them. Only here modules are named
``cantrip_acp.hot.*``; the two packages above them are empty ones of this process.
"""

from __future__ import annotations

import builtins
import os
import sys

from .cells import Sources
from .interrupts import Interrupts
from .module_api import Offered, OfferError, offers
from .value_repr import describe, restore_builtins
from .wire import Codec, Wire
from .worker import _find_packages, _move, _Streams

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

globals()["__builtins__"] = dict(vars(builtins))

_OURS = os.path.dirname(__file__)
_LARGEST = 1_048_576
"""Bytes of a result."""
_MOST_TEXT = 12_000


def main(inward: int, outward: int) -> None:
    """Serve the host on two descriptors. Never returns."""
    interrupts = Interrupts()
    interrupts.begin()
    codec = Codec()
    wire = Wire(_move(inward), _move(outward), codec, interrupts)
    worker = HotWorker(wire, codec, interrupts, wire.command())
    wire.send({"t": "ready", "python": sys.version.split()[0], "executable": sys.executable})
    worker.serve()


class HotWorker:
    """The loaded modules and their functions."""

    def __init__(self, wire: Wire, codec: Codec, interrupts: Interrupts, settings: dict[str, Any]) -> None:
        self._wire = wire
        self._codec = codec
        self._interrupts = interrupts
        self._streams = _Streams()
        self._sources = Sources()
        self._offered: dict[str, dict[str, Offered]] = {}
        # There are no gates here, so nothing can raise it.
        del builtins.GateError  # type: ignore[attr-defined]
        self._builtins = dict(vars(builtins))
        sys.argv[:] = [""]
        sys.modules["__main__"] = type(sys)("__main__")
        _find_packages(settings)
        for name in ("cantrip_acp", "cantrip_acp.hot"):
            self._package(name)

    def _package(self, name: str) -> None:
        if name not in sys.modules:
            package: Any = type(sys)(name)
            package.__path__ = []
            self._put(name, package)

    def _put(self, name: str, module: Any) -> None:
        sys.modules[name] = module
        above, _, last = name.rpartition(".")
        if above:
            setattr(sys.modules[above], last, module)

    def serve(self) -> None:
        """Serve commands. When the host is gone, reading a command ends the process."""
        while True:
            try:
                self._interrupts.end()
                command = self._wire.command()
                work = self._load if command.get("t") == "load" else self._call
                self._answer(command, work)
            except KeyboardInterrupt:
                # The interrupt came too late for its call.
                continue

    def _answer(self, command: dict[str, Any], work: Any) -> None:
        """Run a command and send the result. Whatever a module raises is reported as its error."""
        self._streams.restore()
        interrupts = self._interrupts
        interrupts.begin()
        said: dict[str, Any] = {}
        try:
            interrupts.running = True
            try:
                said = work(command)
            finally:
                interrupts.running = False
        except OfferError as problem:
            said = {"error": str(problem)}
        except BaseException as failure:  # noqa: BLE001 - a module may leave, be interrupted, or raise anything
            interrupts.running = False
            said = {"error": self._described(failure)}
        restore_builtins(self._builtins)
        interrupts.end()
        self._streams.flush()
        if not self._wire.here:
            os._exit(1)
        error = said.pop("error", None)
        kind = "loaded" if command["t"] == "load" else "answer"
        self._wire.send({"t": kind, "call": command["call"], "error": error and error[:_MOST_TEXT], **said})

    def _described(self, failure: BaseException) -> str:
        try:
            self._interrupts.running = True
            try:
                return describe(failure, _OURS)
            finally:
                self._interrupts.running = False
        except BaseException:  # noqa: BLE001 - the error itself is what there is to say
            self._interrupts.running = False
            return type(failure).__name__

    def _load(self, command: dict[str, Any]) -> dict[str, Any]:
        """Load a module. It replaces an older one only if loading succeeds."""
        name: str = command["module"]
        file = f"<{name}>"
        *above, _ = name.split(".")
        for depth in range(len(above)):
            self._package(".".join(above[: depth + 1]))
        module: Any = type(sys)(name)
        module.__file__ = file
        module.__package__ = ".".join(above)
        before = sys.modules.get(name)
        if hasattr(before, "__path__"):
            # Submodules may exist inside of it.
            module.__path__ = []
            vars(module).update({k: v for k, v in vars(before).items() if sys.modules.get(f"{name}.{k}") is v})
        texts = self._sources.all()
        self._sources.add(file, command["source"])
        self._put(name, module)
        try:
            exec(compile(command["source"], file, "exec", dont_inherit=True), vars(module))
            found = offers(module, command["taken"])
        except BaseException:
            if before is not None:
                self._put(name, before)
                self._sources.add(file, texts.get(file, ""))
            else:
                sys.modules.pop(name, None)
                vars(sys.modules[".".join(above)]).pop(name.rpartition(".")[2], None)
            raise
        self._offered[name] = {each.name: each for each in found}
        return {"gates": [each.record() for each in found]}

    def _call(self, command: dict[str, Any]) -> dict[str, Any]:
        offered = self._offered[command["module"]][command["gate"]]
        result = offered.call(command["args"])
        try:
            size = len(self._codec.encode(result))
        except (TypeError, ValueError, RecursionError) as problem:
            return {"error": f"{offered.name} returned what is no JSON data: {problem}"}
        if size > _LARGEST:
            return {"error": f"{offered.name} returned {size:,} bytes of JSON; a result may have {_LARGEST:,}"}
        return {"result": result}
