"""The gates as commands for the processes that a cell starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from cantrip_acp.mediums.code.cell import LEFT_BEHIND, Cell
from cantrip_acp.sandbox import GateWire, WireSession, Worker

if TYPE_CHECKING:
    from cantrip_acp.gates.contract import Gate


class GateCommands:
    """Serves the commands of one session's worker as part of the cell that runs. Does nothing without a wire.

    They stay open for the next cell if nobody called one.
    """

    def __init__(self, wire: GateWire | None, running: Callable[[], Cell | None]) -> None:
        self._wire = wire
        self._running = running
        self._served: WireSession | None = None

    def open(self, worker: Worker) -> None:
        if self._wire is not None and self._served is None:
            self._served = WireSession(self._wire, self._call, self._serve, lambda: worker.first, self._refused)
            self._served.open()

    def add(self, gates: Mapping[str, Gate]) -> None:
        if self._wire is not None:
            self._wire.set_added_gates(gates)

    def cell_ended(self) -> None:
        if self._served is not None and self._served.used:
            self.close()

    def clear(self, worker: Worker) -> None:
        """Remove what processes left behind that called a command after the end of their cell."""
        if self._wire is not None and self._served is None:
            self._wire.clear_requests(worker.first)

    def close(self) -> None:
        if self._served is not None:
            self._served.close()
            self._served = None

    def remove(self) -> None:
        if self._wire is not None:
            self._wire.remove()

    def _refused(self, token: str) -> str | None:
        """Why a command of a process that a cell started may not call a gate; None if it may."""
        cell = self._running()
        return None if cell is not None and cell.owns(token) else LEFT_BEHIND

    async def _call(self, name: str, args: dict[str, object]) -> tuple[object, bool]:
        cell = self._running()
        return await cell.gate(name, args) if cell is not None else ("no cell is running: no gate can be called", True)

    def _serve(self, work: Any, *args: Any) -> None:
        if (cell := self._running()) is not None:
            cell.serve(work, *args)
