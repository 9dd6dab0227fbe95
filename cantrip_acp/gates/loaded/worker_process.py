"""Worker process of loaded modules: started with the first one, stopped between calls, killed with its entity.

It has the code medium's sandbox, memory and time limits: no network, and of the workspace only what
`code_readable_paths` and `code_writable_paths` show. Its output is hostile input.
"""

from __future__ import annotations

import secrets
import signal
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from cantrip_acp.core.errors import SandboxError
from cantrip_acp.sandbox.launch import limits
from cantrip_acp.sandbox.launch import sandbox as runner
from cantrip_acp.sandbox.launch.output import Collector
from cantrip_acp.sandbox.launch.sandbox import Sandbox
from cantrip_acp.sandbox.policy import interpreter
from cantrip_acp.sandbox.policy.policy import code_paths
from cantrip_acp.sandbox.worker import messages
from cantrip_acp.sandbox.worker.worker import Worker, WorkerCallbacks

if TYPE_CHECKING:
    from cantrip_acp.gates.contract import CircleView

Answer = messages.ModuleLoaded | messages.FunctionAnswer


@dataclass(frozen=True, slots=True)
class WorkerAnswer:
    """An answer, the text printed meanwhile, and whether the call had to be interrupted."""

    answer: Answer
    printed: str
    timed_out: bool


_STEPS = (0.0, 0.5, 1.5)
"""Seconds after the time limit at which a call is interrupted, interrupted again, and killed."""
_PRINTED = 4_000
"""Bytes of a call's printed output that are kept."""


class WorkerLost(SandboxError):
    """The worker ended before it answered; the text says how."""


class _ModuleWorkerProgram(Worker):
    program = "module_worker"


class ModuleWorker:
    """The worker: `ask` one thing at a time, and always `close` it. ``alive`` is False before the start and after its
    end."""

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
        """The process number of its interpreter; 0 where there is none."""
        return self._worker.pid if self._worker is not None else 0

    async def start(self) -> None:
        """Start it. Raises `SandboxError`, and `DefinitionError` for wards that cannot be enforced."""
        self.close()
        if self._sandbox is None:
            from cantrip_acp.sandbox.launch import self_test

            await self_test.ensure_checked()
            self._sandbox, self._interpreter = await anyio.to_thread.run_sync(self._prepare)
        sandbox, found = self._sandbox, self._interpreter
        assert sandbox is not None
        assert found is not None
        worker = self._worker = _ModuleWorkerProgram(
            sandbox,
            found,
            self._circle.wards.code_memory_mb,
            WorkerCallbacks(output=lambda _, data: self._printed.feed(data), said=self._said),
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
        # The Python of the code cells, if they have their own.
        chosen = getattr(circle.medium, "options", {}).get("code_python")
        found = interpreter.find(chosen, runner.machine(), base)
        reached = code_paths(circle.wards, circle.workspace)
        host = found.on(runner.machine())
        return Sandbox(reached.wards, reached.workspace, host=host, more_readable=reached.readable), found

    def _said(self, message: messages.Message) -> None:
        worker = self._worker
        if (
            worker is None
            or worker.broken is not None
            or not isinstance(message, messages.ModuleLoaded | messages.FunctionAnswer)
        ):
            return
        if message.call == self._number:
            if not isinstance(message, self._expected):
                worker.end("it answered what was not asked")
                return
            self._answer = self._answer or message

    async def ask(self, command: dict[str, Any]) -> WorkerAnswer:
        """Send a ``load`` or ``call`` command. Raises `WorkerLost` where no answer came; a cancel kills the worker."""
        worker = self._worker
        if worker is None or not self.alive:
            raise WorkerLost("it does not run")
        # A random number, so that the worker cannot answer a later question in advance.
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
        answer = self._heard()
        if answer is None:
            raise WorkerLost(why)
        return WorkerAnswer(answer, self._printed.finish(), self._timed_out)

    def _heard(self) -> Answer | None:
        """Read the answer again: it may have come during a wait."""
        return self._answer

    async def _settle(self, worker: Worker) -> str:
        """Stop or kill the worker in every case; returns how it ended, if it did."""
        rested = False
        if self._answer is not None:
            rested = await worker.freeze()
        else:
            # An exiting process closes its pipe first; its exit status is known a moment later.
            with anyio.move_on_after(0.3 if worker.broken is not None or worker.tree.exited else 0):
                await worker.gone()
            worker.end("it was stopped")
            with anyio.move_on_after(2):
                await worker.gone()
        why = _ending(worker)
        if not rested:
            self.close()
        return why

    async def _wait(self, worker: Worker) -> None:
        """Wait until it has answered or ended; kill it after its time limit."""
        timeout = self._circle.wards.code_timeout_ms / 1000
        end, step = time.monotonic() + timeout, 0
        look = time.monotonic() + limits.FIRST_CHECK
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
                    worker.end(f"it used {verdict}")
                    return
                look = now + limits.CHECK_INTERVAL
            with anyio.move_on_after(max(0.001, min(look, end + _STEPS[step]) - now)):
                await worker.tree.changed()

    def close(self) -> None:
        """End it. Safe to call twice."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()


def _ending(worker: Worker) -> str:
    """How a worker ended, as text for the entity."""
    status = worker.tree.status
    if status.ended_because is not None:
        return status.ended_because
    code = status.exit_code
    if code is None:
        return worker.broken or "it was ended"
    if code > 128:
        try:
            return f"it was ended by {signal.Signals(code - 128).name}"
        except ValueError:
            return f"exit status {code}"
    return f"it left with exit status {code}"
