"""Worker process for loaded modules: it starts with the first module, is frozen between calls, and ends with its entity.

It has the sandbox and the limits of the code medium: no network, and only the paths in `code_readable_paths` and
`code_writable_paths`. Its output is not trusted.
"""

from __future__ import annotations

import os
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from cantrip_acp.gates.ports import MediumBase
from cantrip_acp.gates.sandbox_options import code_paths
from cantrip_acp.sandbox import Collector, Sandbox, Worker, WorkerCallbacks, interpreter, machine, messages
from cantrip_acp.text.defaults import complete
from cantrip_acp.types.errors import SandboxError

if TYPE_CHECKING:
    from cantrip_acp.gates.contract import CircleView

Answer = messages.ModuleLoaded | messages.FunctionAnswer


@dataclass(frozen=True, slots=True)
class WorkerAnswer:
    """An answer, the text that was printed during the call, and whether the call was interrupted after a time-out."""

    answer: Answer
    printed: str
    timed_out: bool


_STEPS = (0.0, 0.5, 1.5)
"""Seconds after the time limit when a call is interrupted, interrupted again, and killed."""
_PRINTED = 4_000
"""The most bytes of printed output of one call."""


class WorkerLost(SandboxError):
    """The worker ended before it answered. The text says how."""


class _ModuleWorkerProgram(Worker):
    program = "module_worker"


class ModuleWorker:
    """The worker process. Send one command at a time with `ask`, and always `close` it. ``alive`` says whether it runs."""

    def __init__(self, circle: CircleView) -> None:
        self._circle = circle
        self._sandbox: Sandbox | None = None
        self._interpreter: interpreter.Interpreter | None = None
        self._worker: Worker | None = None
        self._number = 0
        self._answer: Answer | None = None
        self._expected: type[Answer] = messages.ModuleLoaded
        self._timed_out = False
        self._printed = Collector(_PRINTED)

    @property
    def alive(self) -> bool:
        return self._worker is not None and self._worker.broken is None and not self._worker.tree.exited

    @property
    def pid(self) -> int:
        """The process id of its interpreter; 0 if it does not run."""
        return self._worker.pid if self._worker is not None else 0

    async def start(self) -> None:
        """Start the process. Raises `SandboxError`, or `DefinitionError` for wards that cannot be enforced."""
        self.close()
        if self._sandbox is None:
            from cantrip_acp.sandbox import ensure_checked

            await ensure_checked()
            self._sandbox, self._interpreter = await anyio.to_thread.run_sync(self._prepare)
        sandbox, found = self._sandbox, self._interpreter
        assert sandbox is not None
        assert found is not None
        worker = self._worker = _ModuleWorkerProgram(
            sandbox,
            found,
            self._circle.wards.code_memory_mb,
            WorkerCallbacks(output=lambda _, data: self._printed.feed(data), said=self._on_message),
        )
        settings = {"prefix": found.prefix, "system_packages": found.system_packages}
        try:
            await worker.start(settings, {})
            worker.frozen = False
        except BaseException:
            self.close()
            raise

    def _prepare(self) -> tuple[Sandbox, interpreter.Interpreter]:
        circle = self._circle
        base = str(circle.workspace) if circle.workspace is not None else None
        # Use the Python of the code medium, if the recipe sets one.
        chosen = complete(circle.medium, MediumBase).options.get("code_python")
        found = interpreter.find(chosen, machine(), base)
        reached = code_paths(circle.wards, circle.workspace)
        host = found.on(machine())
        made = Sandbox(
            reached.options, reached.workspace, host=host, more_readable=reached.readable, folder=reached.folder
        )
        return made, found

    def _on_message(self, message: messages.Message) -> None:
        worker = self._worker
        if (
            worker is None
            or worker.broken is not None
            or not isinstance(message, messages.ModuleLoaded | messages.FunctionAnswer)
        ):
            return
        if message.call == self._number:
            if not isinstance(message, self._expected):
                worker.end("it sent a wrong kind of answer")
                return
            self._answer = self._answer or message

    async def ask(self, command: dict[str, Any]) -> WorkerAnswer:
        """Send a ``load`` or ``call`` command. Raises `WorkerLost` if no answer comes. A cancel kills the worker."""
        worker = self._worker
        if worker is None or not self.alive:
            raise WorkerLost("it is not running")
        if worker.is_outdated:
            self.close()
            raise WorkerLost(
                "a protected file appeared in a folder that it may write, which only a new process cannot change"
            )
        # The number is random, so that the worker cannot answer a later command in advance.
        self._number = secrets.randbits(50)
        self._answer = None
        self._expected = messages.ModuleLoaded if command["t"] == "load" else messages.FunctionAnswer
        self._timed_out = False
        self._printed = Collector(_PRINTED)
        why = "it was stopped"
        try:
            worker.send({**command, "call": self._number})
            worker.thaw()
            await self._wait(worker)
        finally:
            with anyio.CancelScope(shield=True):
                why = await self._settle(worker)
        answer = self._current_answer()
        if answer is None:
            raise WorkerLost(why)
        return WorkerAnswer(answer, self._printed.finish().text, self._timed_out)

    def _current_answer(self) -> Answer | None:
        """Return the answer, which `_on_message` may have set during a wait. (A method, so that mypy does not assume None.)"""
        return self._answer

    async def _settle(self, worker: Worker) -> str:
        """Freeze the worker after an answer, else kill it. Returns how it ended."""
        rested = False
        if self._answer is not None:
            rested = await worker.freeze()
            for line in worker.last_words:
                self._printed.feed(os.fsencode(line))
        else:
            # A process that exits closes its pipe first. Wait a moment for its exit status.
            with anyio.move_on_after(0.3 if worker.broken is not None or worker.tree.exited else 0):
                await worker.gone()
            worker.end("it was stopped")
            with anyio.move_on_after(2):
                await worker.gone()
        why = worker.tree.status.describe(worker.broken)
        if not rested:
            self.close()
        return why

    async def _wait(self, worker: Worker) -> None:
        """Wait until the worker has answered or ended. Interrupt and then kill it after its time limit."""
        timeout = self._circle.wards.code_timeout_ms / 1000
        end, step = time.monotonic() + timeout, 0
        look = time.monotonic() + worker.first_check
        while self._answer is None and worker.broken is None and not worker.tree.exited:
            late = time.monotonic() - end
            if step < len(_STEPS) and late >= _STEPS[step]:
                step += 1
                self._timed_out = True
                if step == len(_STEPS):
                    worker.end(f"it ran longer than {self._circle.wards.code_timeout_ms} ms (code_timeout_ms)")
                    return
                worker.interrupt()
            now = time.monotonic()
            if now >= look:
                verdict = worker.watch()
                if verdict is not None and worker.tree.alive:
                    worker.end(verdict)
                    return
                look = now + worker.check_interval
            with anyio.move_on_after(max(0.001, min(look, end + _STEPS[step]) - now)):
                await worker.tree.changed()

    def close(self) -> None:
        """End the process. Safe to call twice."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()
