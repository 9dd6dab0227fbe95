"""The code medium: runs the entity's Python cells in one long-running sandboxed process (§4.1, CIRCLE-9).

Gates are functions in it; `done(x)` stops the cell and ends the cast. Data stay in variables, and the crystal sees
only what its code prints or returns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio.to_thread
import msgspec

from cantrip_acp.gates.ports import MediumBase
from cantrip_acp.mediums.code import prompt
from cantrip_acp.types.messages import ToolCall, ToolDefinition

if TYPE_CHECKING:
    from cantrip_acp.gates.contract import CircleView
    from cantrip_acp.mediums.code.session import CodeSession
    from cantrip_acp.mediums.code.snapshot import ChunkStore
    from cantrip_acp.types.records import Output


class CodeMedium(MediumBase):
    """Python in a sandbox.

    ``python`` is the interpreter of the cells: a program, a virtual environment's folder, a name on PATH, or ``venv``
    for the workspace's own environment. The default is the interpreter that runs this package. With ``loom`` the
    entity can read its own history as ``loom`` (LOOM-11). ``chunks`` stores the pieces of snapshots; by default each
    session stores its own in memory.
    """

    name = "code"
    tool: str | None = prompt.TOOL
    tag = "python"
    keeps_state = True
    has_values = True
    remembers_folds = True

    def __init__(self, *, python: str | None = None, loom: bool = False, chunks: ChunkStore | None = None) -> None:
        self._python = python
        self._loom = loom
        self._chunks = chunks
        given = {"code_python": python, "loom": loom or None}
        self.options = {key: value for key, value in given.items() if value is not None}

    def check(self, circle: CircleView) -> None:
        """Raise `DefinitionError` if the configured interpreter cannot be used. Call it before anything runs."""
        if self._python is not None:
            from cantrip_acp.sandbox import interpreter, machine

            base = str(circle.workspace) if circle.workspace is not None else None
            interpreter.find(self._python, machine(), base)

    def tools(self, circle: CircleView) -> tuple[ToolDefinition, ...]:
        return (ToolDefinition(name=prompt.TOOL, description=prompt.DESCRIPTION, parameters=prompt.PARAMETERS),)

    def presentation(self, circle: CircleView) -> str | None:
        return prompt.present(circle, loom=self._loom)

    async def open(self, circle: CircleView, entity_id: str) -> CodeSession:
        """Open a session.

        Raises `SandboxMissing` if this machine cannot run a sandbox, `DefinitionError` for wards or an interpreter
        that cannot be used.
        """
        # In threads, because imports and scanning a large workspace take time.
        ensure_checked = await anyio.to_thread.run_sync(_import)
        await ensure_checked()
        return await anyio.to_thread.run_sync(self._session, circle)

    def _session(self, circle: CircleView) -> CodeSession:
        from cantrip_acp.mediums.code.session import CodeSession

        return CodeSession(circle, python=self._python, loom=self._loom, chunks=self._chunks)

    def arguments(self, program: str) -> str:
        """The arguments of a tool call with this program."""
        return msgspec.json.encode({"code": program}).decode()

    def code(self, call: ToolCall) -> str | None:
        found = prompt.program(call.args)
        return found if isinstance(found, str) else None

    def observe(self, output: Output) -> str:
        return prompt.observe(output)


def _import() -> Any:
    """Import the sandbox modules that cells need. These imports take longer than all others here."""
    from cantrip_acp.sandbox import ensure_checked

    return ensure_checked
