"""The code medium: the entity's utterance is Python, run in a process of its own that lives on in a sandbox (§4.1, CIRCLE-9).

Gates are functions there; `done(x)` stops the cell and ends the cast. Data lives in variables, and what the crystal sees
of it is what it asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import anyio.to_thread
import msgspec

from cantrip_acp.crystals.contract import ToolCall, ToolDefinition
from cantrip_acp.mediums.code import prompt

if TYPE_CHECKING:
    from cantrip_acp.core.circle import Circle
    from cantrip_acp.loom.records.turn import Output
    from cantrip_acp.mediums.code.session import CodeSession
    from cantrip_acp.mediums.code.snapshot import ChunkStore


class CodeMedium:
    """Python in a sandbox.

    ``python`` is the interpreter of the cells: a program, a virtual environment's folder, a name on PATH, or ``venv`` for
    the workspace's own environment; by default the one that this package runs on. ``loom`` shows the entity its own history
    as ``loom`` (LOOM-11). ``chunks`` is where snapshots' pieces are kept; by default in memory, each session its own.
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

    @property
    def options(self) -> dict[str, Any]:
        """What differs from the medium that the name alone gives, by the keys of a recipe."""
        given = {"code_python": self._python, "loom": self._loom or None}
        return {key: value for key, value in given.items() if value is not None}

    def check(self, circle: Circle) -> None:
        """Raise `DefinitionError` where the interpreter that was named cannot be had, before anything runs."""
        if self._python is not None:
            from cantrip_acp.sandbox.launch import sandbox as runner
            from cantrip_acp.sandbox.policy import interpreter

            base = str(circle.workspace) if circle.workspace is not None else None
            interpreter.find(self._python, runner.machine(), base)

    def tools(self, circle: Circle) -> tuple[ToolDefinition, ...]:
        return (ToolDefinition(name=prompt.TOOL, description=prompt.DESCRIPTION, parameters=prompt.PARAMETERS),)

    def presentation(self, circle: Circle) -> str | None:
        return prompt.present(circle, loom=self._loom)

    async def open(self, circle: Circle, entity_id: str) -> CodeSession:
        """Raises `SandboxMissing` where this machine cannot give a sandbox, `DefinitionError` for wards or an interpreter
        that cannot be had."""
        # In threads: imports, and a large workspace, which takes its time to be looked at.
        runner = await anyio.to_thread.run_sync(_import)
        await runner.check()
        return await anyio.to_thread.run_sync(self._session, circle)

    def _session(self, circle: Circle) -> CodeSession:
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
    """What cells need of the sandbox; it takes longer to import than anything else here."""
    for name in ("cantrip_acp.mediums.code.session", "cantrip_acp.sandbox.launch.self_test"):
        importlib.import_module(name)
    return importlib.import_module("cantrip_acp.sandbox.launch.sandbox")
