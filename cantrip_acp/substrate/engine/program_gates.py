"""Gates from programs: each program with ``runtime: vm`` where a session's tools are, without any list to keep.

A gate's name and description are the program's; its schema comes from the types that the program accepts: their ``required``
and their ``body.schema``. A call is a run by the engine, inside the boundary of the entity that calls. A call of the agent
program casts a child of that entity, with its wards, its permissions and its loom.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio.to_thread

from cantrip_acp.crystals.contract import Crystal
from cantrip_acp.gates.contract import Gate, GateContext, GateReply, SourceBase
from cantrip_acp.substrate.boundary import Boundary
from cantrip_acp.substrate.chunks import Change, Chunk, NewPlacement, SubstrateError
from cantrip_acp.substrate.projects import session_id
from cantrip_acp.substrate.types import AGENT, with_types
from cantrip_acp.substrate.view import Limits, OpenedGates, SessionView
from cantrip_acp.text.json_data import thaw
from cantrip_acp.text.json_schema import Schema
from cantrip_acp.types.context_block import CastInfo, ContextBlock
from cantrip_acp.types.errors import ChildRefused, DefinitionError, GateError

if TYPE_CHECKING:
    from cantrip_acp.gates.contract import CircleView
    from cantrip_acp.substrate.engine.engine import AgentTask

MOST_GATES = 50
"""The maximum number of programs that are gates at the same time."""
_ARGUMENTS = {
    "type": "object",
    "properties": {
        "args": {"type": "array", "items": {"type": "string"}, "description": "Its command-line arguments, in order."}
    },
    "additionalProperties": False,
}
MakeCrystal = Callable[[str], Crystal]
"""Makes a crystal of a text such as ``ollama:qwen3``. Raises `DefinitionError`."""


class ProgramGates(SourceBase):
    """A source of gates: the programs that a session of this view may run, as of the start of an entity."""

    runs_programs = True

    def __init__(self, view: SessionView, make_crystal: MakeCrystal, folders: tuple[Path, ...] = ()) -> None:
        """``folders`` outside the workspace can be read by the programs, such as the user's skills."""
        self._view = view
        self._make_crystal = make_crystal
        self._folders = folders

    def for_batch(self) -> ProgramGates:
        """The source for casts of a batch, which share nothing."""
        view = self._view.for_batch()
        return self if view is self._view else ProgramGates(view, self._make_crystal, self._folders)

    async def open(self, circle: CircleView) -> OpenedGates:
        """Make the gates. A program that cannot become a gate is reported as a problem for the user."""
        try:
            return await anyio.to_thread.run_sync(self._make)
        except SubstrateError as problem:
            return OpenedGates(problems=[f"programs of the substrate are not there: {problem}"])

    def _make(self) -> OpenedGates:
        # Not at the start: an editor shows a session before its first cast.
        from cantrip_acp.substrate.engine.engine import programs

        view, opened = self._view, OpenedGates()
        view.bring_files()
        names: set[str] = set()
        for program in programs(view.substrate, Boundary.of(read=view.project.tools)):
            if program.body.get("runtime") != "vm":
                continue
            if len(opened.gates) == MOST_GATES:
                opened.problems.append(f"only the first {MOST_GATES} programs are gates; unpin some")
                break
            name = gate_name(program.name)
            try:
                if name in names:
                    raise DefinitionError(f"another program has the name {name}")
                opened.gates.append(self._gate(program, name))
                names.add(name)
            except DefinitionError as problem:
                opened.problems.append(f"the program {program.name} ({program.id}) is no gate: {problem}")
        return opened

    def _gate(self, program: Chunk, name: str) -> Gate:
        from cantrip_acp.substrate.engine.engine import input_types

        agent = program.id == AGENT
        return Gate(
            name,
            f"{program.text.strip()}\nA program of the substrate (source: {program.source})."[:4_000],
            parameters_of(input_types(self._view.substrate, program)),
            partial(self._run, program.id),
            kind="other" if agent else "execute",
            writes=not agent,
            main_text="intent" if agent else None,
            json_input=True,
            runs=None if agent else partial(_command_line, program),
        )

    async def _run(self, program: str, args: Mapping[str, Any], context: GateContext) -> GateReply:
        from cantrip_acp.substrate.engine.engine import Depth, Engine

        view, limits = self._view, self._view.limits_of(context.entity_id)
        cast = partial(self._cast, context)
        try:
            async with Engine(
                view.substrate, context.workspace, cast, wards=context.wards, folders=self._folders
            ) as engine:
                process = await engine.run(
                    program,
                    args,
                    view.boundary_of(context.entity_id).held_by(session_id(context.entity_id)),
                    caller=None if limits is None else limits.process,
                    place=view.project.runs,
                    depth=Depth() if limits is None else limits.depth,
                )
                body = (await engine.wait(process)).body
        except SubstrateError as problem:
            raise GateError(str(problem)) from None
        result = {key: body[key] for key in ("text", "exit_code", "why") if body.get(key)} | {"process": process}
        return GateReply(result, is_error=body.get("state") != "ended")

    async def _cast(self, context: GateContext, task: AgentTask) -> str:
        """Cast a child of the calling entity on the task. Returns its answer."""
        from cantrip_acp.core.delegation import run_child
        from cantrip_acp.core.delegation.call_agent import turn_of
        from cantrip_acp.core.delegation.request import Request

        view, turn = self._view, turn_of(context)
        limits = await anyio.to_thread.run_sync(limits_of, view, task)
        crystal = self._make_crystal(task.crystal) if task.crystal else None
        contributor = LimitedView(view, limits)
        request = Request(task.intent, own_crystal=crystal, contributors=(contributor,))
        try:
            (planned,) = await run_child.plan_children(turn, [request], context.call_id)
        except ChildRefused as refused:
            raise GateError(str(refused)) from None
        try:
            result = await run_child.run_child(turn, planned, context.call_id, lambda result: result)
        finally:
            contributor.end()
        await anyio.to_thread.run_sync(show_session, view, result.entity_id, task.process)
        answer = run_child.answer_of(result)
        return answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False, default=str)


class LimitedView:
    """The view as the contributor of one agent, which reads only what its limits allow."""

    def __init__(self, view: SessionView, limits: Limits) -> None:
        self._view, self._limits = view, limits
        self._entity = ""

    async def __call__(self, info: CastInfo) -> Sequence[ContextBlock]:
        """Set the limits. Adds no block: earlier sessions are only for the entity that the user talks to."""
        self._entity = info.entity_id
        self._view.limit(info.entity_id, self._limits)
        return ()

    def end(self) -> None:
        """Forget the limits, when the agent has ended."""
        self._view.limit(self._entity, None)

    async def refresh(self, info: CastInfo) -> ContextBlock | None:
        """The block of knowledge before a query."""
        return await self._view.refresh(info)


def limits_of(view: SessionView, task: AgentTask) -> Limits:
    """The limits of an agent run: the boundary of its run, and with ``scopes`` only these."""
    boundary, scopes = task.boundary, task.scopes
    if scopes is not None:
        scopes = tuple(view.substrate.one(name, boundary=boundary, prefer=view.project.near).id for name in scopes)
        narrower = with_types(Boundary.of(read=(*scopes, task.process), write=[task.process]))
        boundary = (boundary & narrower).held_by(task.process)
    return Limits(boundary, scopes, task.process, task.depth)


def show_session(view: SessionView, entity_id: str, process: str) -> None:
    """Place the session of an agent on its process, so that readers of the process can read it."""
    from cantrip_acp.substrate.recorder import flush

    if view.missing or view.address is None:
        return
    flush(view.address)
    session = session_id(entity_id)
    if view.substrate.exists(session):
        change = Change(placements=[NewPlacement(session, process, "relates")])
        view.substrate.commit(change, author="engine", source=f"program:{process}")


def gate_name(name: str) -> str:
    """Convert a program's name to the name of a gate: letters, digits and ``_``, with ``.`` or ``-`` inside."""
    plain = re.sub(r"[.\-]*[^A-Za-z0-9_.\-]+[.\-]*|[.\-]{2,}", "_", name).strip(".-")[:64].rstrip(".-")
    return plain if re.match(r"[A-Za-z_]", plain) else f"_{plain}"


def parameters_of(types: list[Chunk]) -> dict[str, Any]:
    """Make the schema of a program's input from the types that it accepts. Raises `DefinitionError` if it is not a JSON
    Schema."""
    if not types:
        return _ARGUMENTS
    properties: dict[str, Any] = {}
    required: list[str] = []
    for each in types:
        schema = each.body.get("schema", {})
        if not isinstance(schema, Mapping):
            raise DefinitionError(
                f"type {each.name}: body.schema must be an object that maps each argument to its JSON Schema"
            )
        properties |= schema
        required += [name for name in each.spec.required if name not in required]
    for name in required:
        properties.setdefault(name, {})
    found = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    try:
        Schema(thaw(found))
    except (ValueError, TypeError, RecursionError) as problem:
        raise DefinitionError(f"its types have no valid JSON Schema: {problem}") from None
    return found


def _command_line(program: Chunk, args: Mapping[str, Any], context: GateContext) -> str:
    own, given = program.body.get("args", ()), args.get("args", ())
    words = [str(program.body.get("executable", program.name)), *map(str, own), *map(str, given)]
    return shlex.join(words)
