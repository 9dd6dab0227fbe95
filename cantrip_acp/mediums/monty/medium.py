"""The monty medium: runs a restricted Python that can do nothing outside except through gates (§4.1, CIRCLE-9).

Monty is a separate interpreter without files, network, processes or third-party modules. It runs in the sandbox all
the same. Sessions, snapshots, limits and prompts come from the code medium.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cantrip_acp.gates.sandbox_options import code_paths
from cantrip_acp.mediums.code import prompt as codetext
from cantrip_acp.mediums.code.medium import CodeMedium
from cantrip_acp.mediums.code.session import CodeSession
from cantrip_acp.mediums.code.snapshot import ChunkStore
from cantrip_acp.mediums.monty import prompt as montytext
from cantrip_acp.mediums.monty.installation import Monty, MontyWorker, find
from cantrip_acp.mediums.monty.prompt import heap_mb
from cantrip_acp.sandbox import Sandbox, ensure_checked, machine
from cantrip_acp.types.messages import ToolDefinition

if TYPE_CHECKING:
    from cantrip_acp.gates.contract import CircleView


# --- One entity's restricted Python: a code session whose worker runs Monty.


class MontySession(CodeSession):
    """The Monty interpreter of one entity.

    Its state is in the worker and outlives turns and casts (CIRCLE-9). A stopped cell is undone.
    """

    worker_type = MontyWorker

    def __init__(self, circle: CircleView, found: Monty, *, chunks: ChunkStore | None = None) -> None:
        self._monty = found
        super().__init__(circle, python=None, loom=False, chunks=chunks)

    def _make_wire(self) -> None:
        """The language has no commands."""

    def _make_sandbox(self, wire: object) -> Sandbox:
        # No workspace: the language has no files.
        wards = replace(self._circle.wards, code_readable_paths=(), code_writable_paths=())
        host = self._interpreter.on(machine())
        host = host.with_tools([os.path.dirname(self._monty.binary)], [self._monty.packages])
        return Sandbox(code_paths(wards, None).options, None, host=host)

    def _settings(self) -> dict[str, Any]:
        return {
            **super()._settings(),
            "packages": self._monty.packages,
            "binary": self._monty.binary,
            "heap": heap_mb(self._circle.wards) * 1024 * 1024,
        }


class MontyMedium(CodeMedium):
    """Restricted Python. ``chunks`` stores the pieces of snapshots; by default each session stores its own in memory.

    Needs the package pydantic-monty (the extra ``monty``).
    """

    name = "monty"
    remembers_folds = False

    def __init__(self, *, chunks: ChunkStore | None = None) -> None:
        super().__init__(chunks=chunks)

    def tools(self, circle: CircleView) -> tuple[ToolDefinition, ...]:
        parameters: Any = codetext.PARAMETERS
        return (ToolDefinition(name=codetext.TOOL, description=montytext.DESCRIPTION, parameters=parameters),)

    def presentation(self, circle: CircleView) -> str | None:
        return montytext.present(circle)

    async def open(self, circle: CircleView, entity_id: str) -> MontySession:
        """Open a session.

        Raises `SandboxMissing` if pydantic-monty is not installed or this machine cannot run a sandbox.
        """
        found = find()
        await ensure_checked()
        return MontySession(circle, found, chunks=self._chunks)
