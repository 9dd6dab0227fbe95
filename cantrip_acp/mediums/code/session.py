"""Code session: owns one entity's Python worker. The first cell starts it; a lost worker is replaced by a new one."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import msgspec

from cantrip_acp.gates.contract import NOTHING
from cantrip_acp.gates.registry import ALIASES, child_functions
from cantrip_acp.gates.sandbox_options import code_paths
from cantrip_acp.mediums.code import snapshot as snapshots
from cantrip_acp.mediums.code.cell import Cell
from cantrip_acp.mediums.code.gate_commands import GateCommands
from cantrip_acp.mediums.code.prompt import program, seconds
from cantrip_acp.mediums.code.snapshot import ChunkStore, MemoryChunks, Snapshot
from cantrip_acp.mediums.code.state_exchange import StateExchange
from cantrip_acp.mediums.contract import SessionBase
from cantrip_acp.mediums.program_events import ProgramEvents
from cantrip_acp.sandbox import (
    GateWire,
    Sandbox,
    Worker,
    WorkerCallbacks,
    clean,
    explain_refusals,
    interpreter,
    machine,
    messages,
    runtime,
)
from cantrip_acp.types.errors import SandboxError, SandboxMissing
from cantrip_acp.types.records import Output
from cantrip_acp.types.styled import Styled, join

if TYPE_CHECKING:
    from cantrip_acp.gates.contract import CircleView, Gate
    from cantrip_acp.gates.ports import TurnContext
    from cantrip_acp.types.messages import ToolCall

MIB = 1024 * 1024
LARGEST_SNAPSHOT = 512 * MIB
_NAMED = 20
"""Maximum number of names that an observation lists; the rest are counted."""


class WorkerKnowledge:
    """What the worker was told, and the variables that it has. A new worker has none of it."""

    def __init__(self, data: object) -> None:
        self._data = data
        self._blocks: list[dict[str, Any]] | None = None
        """The last context of a cast that had one."""
        self._cast: str | None = None
        self._folded = 0
        self.names: list[str] = []

    def forget(self) -> list[str]:
        """Begin again for a new worker. Returns the names that the old one had."""
        names, self.names, self._cast, self._folded = self.names, [], None, 0
        return names

    def update(self, turn: TurnContext) -> dict[str, Any]:
        """What the worker lacks: the cast's context, and the number of folded turns."""
        folded = {"folded": turn.folded} if turn.folded != self._folded else {}
        self._folded = turn.folded
        if self._cast == turn.cast_id:
            return folded
        fresh = self._cast is None
        self._cast = turn.cast_id
        if self._data is not NOTHING:
            # Sent only once: the entity may have changed its copy, and the data may be large.
            return folded | ({"context": self._data} if fresh else {})
        if turn.context:
            self._blocks = [{"title": b.title, "text": b.text, "source": b.source, "uri": b.uri} for b in turn.context]
        return folded | ({"context": self._blocks} if self._blocks is not None else {})


class CodeSession(SessionBase):
    """One entity's Python. Its state is in the worker and outlives turns and casts (CIRCLE-9)."""

    worker_type: type[Worker] = Worker

    def __init__(self, circle: CircleView, *, python: str | None, loom: bool, chunks: ChunkStore | None = None) -> None:
        self._circle = circle
        self._loom = loom
        self.chunks: ChunkStore = chunks if chunks is not None else MemoryChunks()
        base = str(circle.workspace) if circle.workspace is not None else None
        self._interpreter = interpreter.find(python, machine(), base)
        wire = self._make_wire()
        self.sandbox = self._make_sandbox(wire)
        self._commands = GateCommands(wire, lambda: self._cell)
        self._lock = anyio.Lock()
        self._worker: Worker | None = None
        self._cell: Cell | None = None
        self._exchange: StateExchange | None = None
        self.gained: Mapping[str, Gate] = {}
        self._copies: str | None = None
        self._count = 0
        self._unused: Worker | None = None
        """The worker while no cell has run in it: only then can a snapshot be restored in it."""
        self._known = WorkerKnowledge(circle.data)
        self._note: str | None = None
        self.tap: Callable[[int, bytes], None] | None = None
        """Called with the raw output of cells as it comes, with 1 or 2 for the stream, before it is limited or
        cleaned.
        """

    def end(self, because: str) -> None:
        """Kill the worker at once, with its running cell and all its state."""
        if self._worker is not None:
            self._worker.end(because)

    def _make_wire(self) -> GateWire | None:
        gates = {shown: self._circle.gates[name] for shown, name in self._circle.tool_names.items()}
        return GateWire(gates, runtime().make_folder("wire"), aliases=ALIASES) if gates else None

    def _make_sandbox(self, wire: GateWire | None) -> Sandbox:
        reached = code_paths(self._circle.wards, self._circle.workspace)
        return Sandbox(
            reached.options,
            reached.workspace,
            wire=wire,
            host=self._interpreter.on(machine()),
            more_readable=reached.readable,
            folder=reached.folder,
        )

    async def warm(self) -> None:
        """Start the worker before its first cell.

        A worker that may write waits for the cell: it could change the protected files that appear meanwhile.
        """
        async with self._lock:
            if self._worker is None and not self.sandbox.policy().writable:
                worker = await self._get_worker()
                if not await worker.freeze():
                    self._end_worker(worker)

    @property
    def sandbox_pid(self) -> int:
        return self._worker.first if self._worker is not None else 0

    def remark(self, text: str) -> None:
        """Set the text that the entity reads before the output of its next cell."""
        self._note = text if self._note is None else f"{self._note}; {text}"

    # Cells

    async def run(self, call: ToolCall, turn: TurnContext) -> Output:
        """Run one cell. Its errors are in the output; `SandboxMissing` is raised."""
        code = program(call.args)
        if not isinstance(code, str):
            return Output(error=code.text)
        try:
            # Faster: a free lock is taken without a switch through the event loop.
            self._lock.acquire_nowait()
        except anyio.WouldBlock:
            await self._lock.acquire()
        try:
            return await self._run(code, call, turn)
        finally:
            self._lock.release()

    async def _run(self, code: str, call: ToolCall, turn: TurnContext) -> Output:
        report = ProgramEvents(call, turn, "python")
        await report.start(code, self._circle)
        self.sandbox.join(turn.shared_network())
        try:
            worker = await self._get_worker()
        except SandboxMissing:
            raise
        except SandboxError as error:
            output = Output(error=str(error))
            await report.end(output)
            return output
        except anyio.get_cancelled_exc_class():
            report.interrupted(Output(error="the cell was not run: a cancel came while its Python was started"), {})
            raise
        self._count += 1
        self._unused = None
        cell = Cell(self._count, worker, call, turn, report.output)
        self._cell = cell
        try:
            self._commands.open(worker)
            try:
                await cell.run(code, self._known.update(turn))
            finally:
                self._commands.cell_ended()
        except BaseException as failure:
            cut = isinstance(failure, anyio.get_cancelled_exc_class())
            ends = cut and turn.ends_when_cut
            lost = await self._stop_cell(cell, worker, cancelled=True, ends=ends)
            if cut:
                lost = None if ends else lost
                rest = cell.rest()
                report.interrupted(self._output(cell, turn, lost, "the cell was stopped by a cancel"), rest)
            elif lost is not None:
                self._note = lost
            if isinstance(failure, SandboxError) and not isinstance(failure, SandboxMissing):
                output = Output(error=str(failure))
                await report.end(output)
                return output
            raise
        finally:
            self._cell = None
        lost = await self._stop_cell(cell, worker)
        await cell.report(last=True)
        output = self._output(cell, turn, lost, worker.disk_full() if lost is None else None)
        return await report.end(output)

    async def _stop_cell(
        self, cell: Cell, worker: Worker, *, cancelled: bool = False, ends: bool = False
    ) -> str | None:
        """Bring the worker to rest, also during cancellation. With ``ends``, its state is not needed again.

        Returns what was lost if the worker had to be killed, else None.
        """
        rested = False
        with anyio.CancelScope(shield=True):
            if cancelled and cell.ended is None:
                await cell.cut_off(ends=ends)
            if worker.broken is None and not worker.tree.exited:
                rested = await worker.freeze()
            if not rested:
                with anyio.move_on_after(2):
                    await worker.gone()
        if not rested:
            return self._lose(worker)
        worker.tree.read_now()
        for line in worker.last_words:
            cell.output(2, os.fsencode(line))
        self._commands.clear(worker)
        if cell.ended is not None and cell.ended.names is not None:
            self._known.names = cell.ended.names
        return None

    def _lose(self, worker: Worker) -> str:
        """Give up a worker. Returns the lost state in words for the entity."""
        status = worker.tree.finish()
        self._end_worker(worker)
        names = self._known.forget()
        moved = "".join(f"\n{line.rstrip()}" for line in worker.last_words)
        listed = ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
        lost = f"lost with it: {listed}, and all imports" if names else "nothing had been defined before"
        return (
            f"the Python process ended: {status.describe(worker.broken)}. {lost[:1].upper()}{lost[1:]}; its temporary files "
            f"and those of its home folder are gone too. The next cell begins in a new process.{moved}"
        )

    def _end_worker(self, worker: Worker) -> None:
        worker.close()
        self._worker = None
        self._commands.close()

    def _output(self, cell: Cell, turn: TurnContext, lost: str | None, why: str | None) -> Output:
        shown, warned, truncated = cell.shown()
        stdout, stderr = shown.text, warned.text
        ended = cell.ended
        errors = []
        if ended is not None and ended.error and not turn.finished:
            errors.append(clean(ended.error) + _dotted_gate(ended.error, self._circle.tool_names))
        if ended is not None and not turn.finished:
            refused = explain_refusals(self.sandbox.policy, "\n".join((stdout, stderr, *errors)))
            if refused and errors:
                errors.append(refused.rstrip())
            elif refused:
                words = warned.part(len(stderr) - len(stderr.lstrip()), len(stderr.rstrip()))
                warned = join([words, Styled(f"\n{refused}" if words.text else refused)])
        if cell.timed_out and not turn.finished:
            kept = "its state is kept" if lost is None else "it could not be interrupted"
            errors.append(f"timed out after {seconds(turn.wards.code_timeout_ms)} (code_timeout_ms); {kept}")
        if why is not None:
            errors.append(why)
        if lost is not None:
            if turn.finished:
                self._note = lost
            else:
                errors.append(lost)
        elif self._note is not None and not turn.finished:
            note, self._note = self._note, None
            warned = join([Styled(f"[before this cell {note}]\n"), warned])
        return Output.of(
            shown,
            warned,
            value=clean(ended.value) if ended is not None and ended.value is not None else None,
            error="\n\n".join(errors) or None,
            truncated=truncated,
            timed_out=cell.timed_out or msgspec.UNSET,
        )

    def so_far(self) -> Output | None:
        """The output of the running cell since the last call; None if none runs."""
        if self._cell is None:
            return None
        stdout, stderr, truncated = self._cell.so_far()
        return Output.of(stdout, stderr, truncated=truncated, unfinished=True)

    # Workers

    async def _get_worker(self) -> Worker:
        """The worker; started if there is none."""
        worker = self._worker
        if worker is not None and (worker.broken is not None or worker.tree.exited):
            self._note = self._lose(worker)
            worker = None
        if worker is not None:
            # Its mounts are older: it would see what is hidden now, and could change what is protected now.
            hidden = not self.sandbox.hides_what(worker.taken_away)
            if hidden or worker.is_outdated:
                self._end_worker(worker)
                self._known.forget()
                what = "hidden (ward hidden_paths)" if hidden else "protected"
                self._note = (
                    f"the variables of earlier cells are gone: a file or folder appeared that is {what}, and only a new Python "
                    f"{'does not see it' if hidden else 'cannot change it'}"
                )
                worker = None
        if worker is None:
            worker = self._worker = self._unused = await self._start()
        return worker

    async def _start(self) -> Worker:
        worker = self.worker_type(
            self.sandbox,
            self._interpreter,
            self._circle.wards.code_memory_mb,
            WorkerCallbacks(output=self._on_output, said=self._on_message),
        )
        try:
            await worker.start(self._settings(), {})
        except BaseException:
            worker.close()
            raise
        return worker

    def _settings(self) -> dict[str, Any]:
        """The first message to a worker."""
        return {
            "gates": [
                *(_spec(shown, self._circle.gates[name]) for shown, name in self._circle.tool_names.items()),
                *(_spec(name, gate) for name, gate in self._circle.removed_delegation_gates.items()),
            ],
            "gained": [_spec(shown, gate) for shown, gate in self.gained.items()],
            "loom": self._loom,
            # At max_depth 0 they are there too, so that a call gets the error that says why (COMP-6).
            **(
                {"construction": True}
                if child_functions(self._circle) or "call_agent" in self._circle.removed_delegation_gates
                else {}
            ),
            "prefix": self._interpreter.prefix,
            "system_packages": self._interpreter.system_packages,
        }

    def gates_added(self, gates: Mapping[str, Gate]) -> None:
        """Add gates as functions, also for the running cell from its next statement on, and as commands of what it
        starts.
        """
        self.gained = gates
        self._commands.add(gates)
        if self._worker is not None:
            # Sent before the answer of the call that added them, so they exist when that call returns.
            self._worker.send({"t": "gained", "gates": [_spec(shown, gate) for shown, gate in gates.items()]})

    def _on_output(self, stream: int, data: bytes) -> None:
        if self.tap is not None:
            self.tap(stream, data)
        if self._cell is not None:
            self._cell.output(stream, data)

    def _on_message(self, message: messages.Message) -> None:
        if isinstance(message, messages.State | messages.SnapshotBegan):
            if self._exchange is not None:
                self._exchange.said(message)
        elif self._cell is not None:
            self._cell.said(message)

    # Snapshots

    async def snapshot(self, began: Callable[[], None] | None = None) -> Snapshot:
        """Store the state between two cells in the session's chunk store. Raises `SandboxError` if that fails.

        ``began`` is called once the current state is held; the caller need not wait for the rest. The next cell waits
        for it.
        """
        async with self._lock:
            if self._worker is None:
                return Snapshot(cells=self._count)
            worker = await self._get_worker()
            pieces = worker.collect(LARGEST_SNAPSHOT)
            try:
                state = await self._exchanged(worker, {"t": "snapshot"}, began)
            finally:
                worker.stop_collecting()
            if state.error is not None:
                raise SandboxError(f"the state cannot be kept: {clean(state.error)}")
            if sum(map(len, pieces)) != state.size:
                raise SandboxError("the state cannot be kept: a part of it did not arrive")
            kept = await _off_loop(state.size, snapshots.keep, pieces, self.chunks)
            return Snapshot(
                chunks=kept.chunks,
                size=kept.size,
                written=kept.written,
                levels=kept.levels,
                names=tuple(map(clean, state.names)),
                missing=tuple((clean(name), clean(why)) for name, why in state.missing),
                modules=tuple(map(clean, state.modules)),
                python=_version(worker),
                cells=self._count,
            )

    async def restore(self, snapshot: Snapshot, chunks: ChunkStore | None = None) -> None:
        """Restore a snapshot in a worker that has run nothing.

        ``chunks`` is the store of its pieces, if that is another one.

        Raises `SandboxError` if a piece is missing or the state cannot be opened. Then the worker is new and empty.
        """
        if snapshot.size > LARGEST_SNAPSHOT:
            raise SandboxError(f"this is not a snapshot: it says that it is {snapshot.size:,} bytes")
        async with self._lock:
            pieces = list(snapshots.fetch(snapshot, chunks if chunks is not None else self.chunks))
            if self._worker is not None and self._worker is not self._unused:
                self._end_worker(self._worker)
            self._known.forget()
            self._count = max(self._count, snapshot.cells)
            if not pieces:
                return
            worker = await self._get_worker()
            if _version(worker) != snapshot.python:
                raise SandboxError(
                    f"the snapshot was made by Python {snapshot.python} and cannot be opened by {_version(worker)}"
                )
            self._unused = None
            data = b"".join(pieces)
            for start in range(0, len(data), MIB):
                worker.feed(data[start : start + MIB])
            state = await self._exchanged(worker, {"t": "restore"})
            if state.error is not None:
                self._lose(worker)
                raise SandboxError(f"the snapshot cannot be opened: {clean(state.error)}")
            self._known.names = list(state.names)

    async def _exchanged(
        self, worker: Worker, command: dict[str, object], began: Callable[[], None] | None = None
    ) -> messages.State:
        """The worker's answer to a command between cells. Raises `SandboxError` if there is none."""
        exchange = self._exchange = StateExchange(worker)
        try:
            await exchange.run(command, began)
        finally:
            self._exchange = None
            if not exchange.rested:
                self._note = self._lose(worker)
        if not exchange.rested:
            raise SandboxError(f"the worker was lost: {self._note}")
        if exchange.state is None:
            raise SandboxError(f"the state cannot be kept: {exchange.given_up}")
        return exchange.state

    async def write_to_copies(self) -> bool:
        """Let all cells write to copies of the writable folders, never to the folders themselves.

        Call it before the first cell.

        Returns False if cells cannot write. Raises `SandboxError` if no copy can be made.
        """
        self._copies = runtime().make_folder("copies")
        return await anyio.to_thread.run_sync(self.sandbox.write_to_copies, self._copies)

    async def close(self) -> None:
        """End the worker. Safe to call twice."""
        if self._copies is not None:
            await anyio.to_thread.run_sync(partial(shutil.rmtree, self._copies, ignore_errors=True))
        if self._worker is not None:
            self._end_worker(self._worker)
        self._commands.remove()


_NO_NAME = re.compile(r"NameError: name '(\w+)' is not defined")


def _dotted_gate(error: str, tool_names: Mapping[str, str]) -> str:
    """A hint for a cell that wrote the name of a gate with its dot (``notes.add``); empty for other errors."""
    unknown = {f"{found[1]}." for found in _NO_NAME.finditer(error)}
    near = {name: shown for shown, name in tool_names.items() if name != shown and name.startswith(tuple(unknown))}
    meant = {name: shown for name, shown in near.items() if name in error} or near
    listed = [f"the gate {name} is the function {shown} here" for name, shown in list(meant.items())[:5]]
    return f"\n[{'; '.join(listed)}]" if listed else ""


def _spec(shown: str, gate: Gate) -> dict[str, Any]:
    """The description of a gate for a worker."""
    return {
        "name": gate.name,
        "shown": shown,
        "description": gate.description,
        "parameters": dict(gate.parameters),
    }


async def _off_loop(size: int, work: Any, *args: Any) -> Any:
    """Run small work here (a few milliseconds), larger work in a thread."""
    if size < 4 * MIB:
        return work(*args)
    return await anyio.to_thread.run_sync(work, *args)


def _version(worker: Worker) -> str:
    found = re.match(r"\d+\.\d+", worker.python)
    return found[0] if found else worker.python
