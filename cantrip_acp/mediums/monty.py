"""The monty medium: Python of a restricted kind, with no authority but the gates (§4.1, CIRCLE-9).

Cells are run by Monty, an interpreter of its own that has no files, network, processes or foreign modules; it runs in the
sandbox all the same. Sessions, snapshots, limits and words are the code medium's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cantrip_acp.crystals.contract import ToolDefinition
from cantrip_acp.mediums import codetext, montytext
from cantrip_acp.mediums.code import CodeMedium

if TYPE_CHECKING:
    from cantrip_acp.core.circle import Circle
    from cantrip_acp.mediums.montysession import MontySession
    from cantrip_acp.mediums.snapshot import ChunkStore


class MontyMedium(CodeMedium):
    """Restricted Python. ``chunks`` is where snapshots' pieces are kept; by default in memory, each session its own.

    Needs the package pydantic-monty: ``pip install 'cantrip-acp[monty]'``.
    """

    name = "monty"
    remembers_folds = False

    def __init__(self, *, chunks: ChunkStore | None = None) -> None:
        super().__init__(chunks=chunks)

    def tools(self, circle: Circle) -> tuple[ToolDefinition, ...]:
        parameters: Any = codetext.PARAMETERS
        return (ToolDefinition(name=codetext.TOOL, description=montytext.DESCRIPTION, parameters=parameters),)

    def presentation(self, circle: Circle) -> str | None:
        return montytext.present(circle)

    async def open(self, circle: Circle, entity_id: str) -> MontySession:
        """Raises `SandboxMissing` where pydantic-monty is not installed or this machine cannot give a sandbox."""
        from cantrip_acp.mediums.montysession import MontySession
        from cantrip_acp.sandbox import monty, runner

        found = monty.find()
        await runner.check()
        return MontySession(circle, found, chunks=self._chunks)
