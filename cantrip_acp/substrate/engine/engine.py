"""Engine: runs programs of the substrate. Each run is a process chunk with its input, its boundary and its end.

The boundary of a run is what its caller may reach *and* what its program declares (``body.read`` and ``body.write``, lists of
scopes; without ``write`` a program writes nothing), and always its own process chunk. The agent program casts an entity; its
sub-agents are runs inside its run, down to `DEEPEST_AGENTS`.
"""

from __future__ import annotations

import json
import os
import shlex
import socket
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

import anyio
import anyio.abc
import anyio.to_thread

from cantrip_acp.files.paths import private_folders
from cantrip_acp.gates.wards import Wards
from cantrip_acp.substrate.boundary import Boundary
from cantrip_acp.substrate.chunks import (
    PROCESS,
    Change,
    Chunk,
    Kind,
    NewChunk,
    NewPlacement,
    Placed,
    Removal,
    Spec,
    SubstrateError,
)
from cantrip_acp.substrate.engine.socket_server import serve_process
from cantrip_acp.substrate.projects import Project, folders_of
from cantrip_acp.substrate.substrate import EVERYTHING, Substrate, at_most_once, new_id
from cantrip_acp.substrate.types import AGENT, of_type
from cantrip_acp.text.logs import logger
from cantrip_acp.types.errors import CantripError

DEEPEST_AGENTS = 3
"""The maximum depth of agent runs inside each other."""
DEEPEST = 8
"""The maximum depth of runs inside each other."""
MOST_RUNS = 32
"""The maximum number of programs that one engine runs at the same time."""
RUNNING = "engine:running"
"""The scope of the processes that run now. What is there although its engine ended was lost."""
_log = logger(__name__)
_LONGEST_RESULT = 100_000
_LONGEST_INPUT = 100_000
_LOOK_S = 0.2
"""The interval of checks on a process of another engine, while somebody waits for it."""


class RunRefused(SubstrateError):
    """A program cannot be run: the chunk is no program, does not accept the input, or the run would be too deep or one too
    many."""


class Depth(NamedTuple):
    """The number of runs around a run, and how many of these are agents."""

    runs: int = 0
    agents: int = 0


@dataclass(frozen=True, slots=True)
class AgentTask:
    """The task of a run of the agent program.

    ``crystal`` is as on the command line; empty: the caller's. ``scopes`` are the scopes that it reads from the beginning, in
    order; None: those of every session. ``depth`` is for the runs inside this one.
    """

    intent: str
    crystal: str
    scopes: tuple[str, ...] | None
    process: str
    boundary: Boundary
    depth: Depth


CastAgent = Callable[[AgentTask], Awaitable[str]]
"""Casts an entity for a run of the agent program, and returns its result."""


@dataclass(slots=True)
class _Process:
    boundary: Boundary
    depth: Depth
    ended: anyio.Event = field(default_factory=anyio.Event)


class Engine:
    """Runs programs until it is closed; then its runs are stopped. Use it with ``async with``.

    ``wards`` limit the sandbox of its programs, as they limit commands. ``folders`` outside the workspace, such as the user's
    skills, can be read there too.
    """

    def __init__(
        self,
        substrate: Substrate,
        workspace: Path | None,
        cast_agent: CastAgent | None = None,
        *,
        wards: Wards | None = None,
        folders: tuple[Path, ...] = (),
    ) -> None:
        self.substrate = substrate
        self.workspace = workspace
        self._cast_agent = cast_agent
        self._wards = wards or Wards.of([])
        self._folders = tuple(os.path.realpath(folder) for folder in folders if folder.is_dir())
        self._processes: dict[str, _Process] = {}
        self._starting = 0
        self._stack = AsyncExitStack()
        self._tasks: anyio.abc.TaskGroup

    async def __aenter__(self) -> Self:
        await anyio.to_thread.run_sync(mark_lost, self.substrate)
        self._tasks = await self._stack.enter_async_context(anyio.create_task_group())
        return self

    async def __aexit__(self, *raised: Any) -> None:
        self._tasks.cancel_scope.cancel()
        # Without the error of the body, which a task group would put into a group.
        await self._stack.aclose()

    async def run(
        self,
        program: str,
        given: Mapping[str, Any],
        boundary: Boundary,
        *,
        caller: str | None = None,
        place: str | None = None,
        depth: Depth = Depth(),  # noqa: B008
    ) -> str:
        """Start a program by id or name, and return the id of its process. Raises `SubstrateError`.

        ``caller`` is the process that asks. The new process relates to it, and to the scope ``place``.
        """
        if sum(not each.ended.is_set() for each in self._processes.values()) + self._starting >= MOST_RUNS:
            raise RunRefused(f"{MOST_RUNS} programs run already; await one of them first")
        self._starting += 1
        try:
            start = await anyio.to_thread.run_sync(self._start, program, given, boundary, caller, place, depth)
        finally:
            self._starting -= 1
        process_id, chunk, inside = start
        self._processes[process_id] = _Process(inside, Depth(depth.runs + 1, depth.agents + (chunk.id == AGENT)))
        self._tasks.start_soon(self._run, process_id, chunk, dict(given))
        return process_id

    def _start(
        self,
        program: str,
        given: Mapping[str, Any],
        boundary: Boundary,
        caller: str | None,
        place: str | None,
        depth: Depth,
    ) -> tuple[str, Chunk, Boundary]:
        found = self.substrate
        chunk = program_named(found, program, boundary)
        if depth.runs >= DEEPEST:
            raise RunRefused(f"programs run at most {DEEPEST} deep inside each other")
        if chunk.id == AGENT:
            if depth.agents >= DEEPEST_AGENTS:
                raise RunRefused(f"agents run at most {DEEPEST_AGENTS} deep inside each other")
            if self._cast_agent is None:
                raise RunRefused("agents cannot be run here")
        elif not isinstance(executable := chunk.body.get("executable"), str):
            raise RunRefused(f"program {chunk.name!r} has no executable")
        else:
            self._check_folder(chunk, [executable, *_texts(chunk.body.get("args"))])
        for side in ("read", "write"):
            # A value that is not a list would be ignored, and a program without limits may read everything that its caller may.
            if side in chunk.body and not _is_texts(chunk.body[side]):
                raise RunRefused(f"program {chunk.name!r}: {side!r} of its body is not a list of scope ids")
        if len(json.dumps(dict(given))) > _LONGEST_INPUT:
            raise RunRefused(
                f"the input has more than {_LONGEST_INPUT:,} bytes; put large data into a chunk and name it"
            )
        process_id = new_id(PROCESS.removesuffix("-"))
        inside = _inside(boundary, chunk, process_id)
        body = {
            "program": chunk.id,
            "state": "running",
            "depth": depth.runs,
            "engine": os.getpid(),
            "host": socket.gethostname(),
            "started": time.time(),
            "boundary": inside.to_data(),
        }
        argument = NewChunk(f"{process_id}:input", "input", Spec(), dict(given))
        placements = [of_type("process", process_id)]
        if chunk.spec.archetype:
            placements.append(NewPlacement(process_id, chunk.id))
        placements.append(NewPlacement(argument.id, process_id))
        placements += [NewPlacement(argument.id, kind.id) for kind in input_types(found, chunk)]
        placements += [NewPlacement(process_id, above, "relates") for above in {caller, place} if above is not None]
        placements.append(NewPlacement(process_id, RUNNING))
        change = Change([NewChunk(process_id, f"run of {chunk.name}"[:200], Spec(), body), argument], placements)
        found.commit(
            change, author="engine", source=f"program:{caller}" if caller else "user", message=f"run {chunk.name}"
        )
        return process_id, chunk, inside

    def _check_folder(self, program: Chunk, words: list[str]) -> None:
        """Raise `RunRefused` if a file of the program is relative to the folder of another project."""
        here = self.workspace
        if here is None or not any("/" in each and not os.path.isabs(each) for each in words):
            return
        held: tuple[Kind, ...] = ("instance",)
        folders = folders_of(self.substrate, program.id, held)
        project = Project.of(here)
        if folders and not {project.id, project.folder, *project.earlier} & folders.keys():
            raise RunRefused(
                f"program {program.name!r} belongs to the project in {next(iter(folders.values()))[0]}, where its files are; "
                "run it there"
            )

    async def wait(self, process_id: str, timeout_s: float | None = None) -> Chunk:
        """Wait for the end of a process, also of another engine. Returns its chunk: ``running`` after the timeout."""
        process = self._processes.get(process_id)
        with anyio.move_on_after(timeout_s):
            if process is not None:
                await process.ended.wait()
            while process is None and await anyio.to_thread.run_sync(self._runs, process_id):  # noqa: ASYNC110 - another process ends it
                await anyio.sleep(_LOOK_S)
        return await anyio.to_thread.run_sync(self.substrate.chunk, process_id)

    def _runs(self, process_id: str) -> bool:
        return self.substrate.chunk(process_id).body.get("state") == "running"

    async def _run(self, process_id: str, program: Chunk, given: dict[str, Any]) -> None:
        process = self._processes[process_id]
        end: dict[str, Any] = {"state": "killed", "text": "the engine was stopped"}
        try:
            if program.id == AGENT:
                assert self._cast_agent is not None
                task = AgentTask(
                    str(given.get("intent", "")),
                    str(given.get("crystal", "")),
                    tuple(_texts(given["scopes"])) if "scopes" in given else None,
                    process_id,
                    process.boundary,
                    process.depth,
                )
                end = {"state": "ended", "exit_code": 0, "text": await self._cast_agent(task)}
            else:
                end = await self._execute(process_id, program, given)
        except (CantripError, OSError) as problem:
            end = {"state": "failed", "text": str(problem)}
        finally:
            with anyio.CancelScope(shield=True):
                try:
                    await anyio.to_thread.run_sync(_end, self.substrate, process_id, end)
                except SubstrateError as problem:
                    # The other runs go on. The next engine marks this one as lost.
                    _log.warning("the end of process %s was not recorded: %s", process_id, problem)
            process.ended.set()

    async def _execute(self, process_id: str, program: Chunk, given: dict[str, Any]) -> dict[str, Any]:
        from cantrip_acp.gates.sandbox_options import sandbox_options
        from cantrip_acp.sandbox import Sandbox, ensure_checked

        await ensure_checked()
        executable = str(program.body["executable"])
        if self.workspace is not None and "/" in executable:
            # A name without a folder is one of the sandbox's own programs, such as python3.
            executable = os.path.join(self.workspace, executable)
        arguments = [*_texts(program.body.get("args")), *_texts(given.get("args"))]
        if "\0" in "".join((executable, *arguments)):
            raise RunRefused(
                f"program {program.name!r}: the executable and its arguments cannot contain a NUL character"
            )
        async with serve_process(self, process_id, self._processes[process_id].boundary) as (descriptor, folder):
            sandbox = await anyio.to_thread.run_sync(
                lambda: Sandbox(
                    sandbox_options(self._wards),
                    self.workspace,
                    private=private_folders(),
                    more_readable=(os.path.realpath(folder), *self._folders),
                )
            )
            environment = {
                "CANTRIP_ENGINE_CALL": f"{folder}/call",
                "CANTRIP_PROCESS": process_id,
                "CANTRIP_INPUT": json.dumps(given),
            }
            outcome = await sandbox.run(
                shlex.join([executable, *arguments]),
                environment=environment,
                timeout_ms=self._wards.bash_timeout_ms,
                started=lambda running: running.set_stdin(descriptor),
            )
        text = outcome.stdout
        if outcome.exit_code != 0 and outcome.stderr:
            text = f"{text}\n[stderr]\n{outcome.stderr}".lstrip("\n")
        state = "ended" if outcome.exit_code == 0 else "failed"
        end = {"state": state, "exit_code": outcome.exit_code, "text": text[:_LONGEST_RESULT]}
        if outcome.ended_because or outcome.timed_out:
            end |= {"state": "killed", "why": outcome.ended_because or "its time was over"}
        return end

    # For `socket_server`

    async def run_inside(self, process_id: str, program: str, given: Mapping[str, Any], boundary: Boundary) -> str:
        """Start a program for a running process, one level deeper, inside a boundary that is not wider than its own."""
        process = self._processes.get(process_id)
        if process is None:
            raise RunRefused(f"process {process_id!r} is not running here")
        caller = process_id if await anyio.to_thread.run_sync(self.substrate.exists, process_id) else None
        return await self.run(program, given, process.boundary & boundary, caller=caller, depth=process.depth)

    def admit(self, holder: str, boundary: Boundary) -> None:
        """Let a holder that is not a process run programs, such as a user at a socket."""
        self._processes[holder] = _Process(boundary, Depth(), ended=_ended())


def _ended() -> anyio.Event:
    event = anyio.Event()
    event.set()
    return event


def input_types(substrate: Substrate, program: Chunk) -> list[Chunk]:
    """The existing types that a program accepts."""
    placed = substrate.scope(program.id).placed
    return [each.chunk for name in program.spec.accepts for each in placed if _defines(each, name)]


def _defines(placed: Placed, name: str) -> bool:
    return placed.kind == "relates" and placed.chunk.name == name


def program_named(
    substrate: Substrate, name: str, boundary: Boundary = EVERYTHING, *, prefer: Collection[str] = ()
) -> Chunk:
    """The program with this id or name. Raises `RunRefused` if it is none, and the errors of `Substrate.one`."""
    found = [each for each in substrate.find(name, boundary=boundary) if _is_program(substrate, each)]
    chunk = found[0] if len(found) == 1 else substrate.one(name, boundary=boundary, prefer=prefer)
    if not _is_program(substrate, chunk):
        raise RunRefused(f"{chunk.name!r} is not a program: it does not have the type `program`")
    return chunk


def programs(substrate: Substrate, boundary: Boundary) -> list[Chunk]:
    """The programs inside a read boundary, by name."""
    every = substrate.scope("type:program").placed
    inside = [each.chunk for each in every if each.kind == "instance" and substrate.readable(each.chunk.id, boundary)]
    return sorted(inside, key=lambda chunk: (chunk.name, chunk.id))


def mark_lost(substrate: Substrate) -> int:
    """End the processes whose engine on this machine stopped without ending them, for example after kill -9. Returns their
    number."""
    if not substrate.exists(RUNNING):
        substrate.put(NewChunk(RUNNING, "running", Spec(), {"text": "Processes that run now."}), author="engine")
    lost, here = 0, socket.gethostname()
    for each in substrate.scope(RUNNING).placed:
        body = each.chunk.body
        if body.get("host", here) == here and isinstance(body.get("engine"), int) and not _alive(body["engine"]):
            with at_most_once():
                _end(substrate, each.chunk.id, {"state": "lost", "text": "the engine ended before the process"})
                lost += 1
    return lost


def _end(substrate: Substrate, process_id: str, end: Mapping[str, Any]) -> None:
    chunk = substrate.chunk(process_id)
    ended = NewChunk(process_id, chunk.name, chunk.spec, {**chunk.body, **end, "ended": time.time()})
    change = Change([ended], removals=[Removal(process_id, RUNNING)])
    substrate.commit(change, author="engine", source=f"program:{process_id}")


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _is_program(substrate: Substrate, chunk: Chunk) -> bool:
    return any(each.scope == "type:program" and each.kind == "instance" for each in substrate.placements(chunk.id))


def _inside(caller: Boundary, program: Chunk, process_id: str) -> Boundary:
    """The boundary of a run: the intersection of the caller's and the program's, plus its own process."""
    read, write = program.body.get("read"), _texts(program.body.get("write"))
    own = Boundary((frozenset(_texts(read)) | frozenset(write),) if "read" in program.body else (), (frozenset(write),))
    joined = caller & own
    return Boundary(
        tuple(scopes | {process_id} for scopes in joined.read),
        tuple(scopes | {process_id} for scopes in joined.write),
        process_id,
    )


def _is_texts(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(each, str) for each in value)


def _texts(value: Any) -> list[str]:
    return [str(each) for each in value] if isinstance(value, (list, tuple)) else []
