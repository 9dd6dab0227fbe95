"""One entity's restricted Python: a code session whose worker runs Monty."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cantrip_acp.mediums.codesession import CodeSession
from cantrip_acp.mediums.montytext import heap_mb
from cantrip_acp.mediums.snapshot import ChunkStore
from cantrip_acp.sandbox import runner
from cantrip_acp.sandbox.monty import Monty, MontyWorker
from cantrip_acp.sandbox.policy import MIB
from cantrip_acp.sandbox.reach import reach
from cantrip_acp.sandbox.runner import Sandbox

if TYPE_CHECKING:
    from cantrip_acp.core.circle import Circle


class MontySession(CodeSession):
    """State lives in the worker, and outlives turns and casts (CIRCLE-9). A cell that was stopped is undone."""

    worker_type = MontyWorker

    def __init__(self, circle: Circle, found: Monty, *, chunks: ChunkStore | None = None) -> None:
        self._monty = found
        super().__init__(circle, python=None, loom=False, chunks=chunks)

    def _make_sandbox(self) -> Sandbox:
        # No wire, no workspace: the language has neither commands nor files.
        wards = replace(self._circle.wards, code_readable_paths=(), code_writable_paths=())
        host = self._monty.on(self._interpreter.on(runner.machine()))
        return Sandbox(reach(wards, None).wards, None, host=host)

    def _settings(self) -> dict[str, Any]:
        return {
            **super()._settings(),
            "packages": self._monty.packages,
            "binary": self._monty.binary,
            "heap": heap_mb(self._circle.wards) * MIB,
        }
