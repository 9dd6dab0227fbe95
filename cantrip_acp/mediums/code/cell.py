"""Runs one cell: handles its output, its gate calls and its time limit, and stops it.

To stop a cell, the host first sends KeyboardInterrupt, so that its state survives. Then it interrupts in a way that
the cell's own handlers cannot catch. At last it kills the worker.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any

import anyio
import anyio.abc

from cantrip_acp.sandbox import Collector, WireSession, Worker, messages
from cantrip_acp.text.program_output import UNFINISHED, UNFINISHED_PART
from cantrip_acp.types.errors import one_failure
from cantrip_acp.types.styled import Styled

if TYPE_CHECKING:
    from cantrip_acp.gates.ports import TurnContext
    from cantrip_acp.types.messages import ToolCall

TIMEOUT = (0.0, 0.5, 1.5)
"""Seconds after which a cell that exceeded its time limit is interrupted, interrupted again, and killed."""
CANCEL = (0.0, 0.04, 0.12)
FINISHED = (0.1, 0.2, 0.5)
"""The same after ``done`` succeeded. Usually ``done`` itself stops the cell within a millisecond."""
FINISHED_BELOW = (0.0, 0.1, 0.4)
"""The same if a command that the cell runs has called ``done``; the cell itself does not know of that call."""
LEFT_BEHIND = "what an earlier cell left running cannot call gates; call them in the cell that runs, or start it there"
_AT_ONCE = 64
_LIVE_MOST = 262_144
_DELAYED = 0.3

Listener = Callable[[str, Styled], Awaitable[None]]


class CellTime:
    """What is left of a cell's time. It stands still while the cell waits for gates: their time does not count.

    Calls ``at_end`` when it is used up.
    """

    def __init__(self, seconds: float, at_end: Callable[[], None]) -> None:
        self._at_end = at_end
        self._left = seconds
        self._since = 0.0
        self._waiting = 0
        self._timer: asyncio.TimerHandle | None = None

    def run(self) -> None:
        self._since = time.monotonic()
        self._timer = asyncio.get_running_loop().call_later(max(0.001, self._left), self._at_end)

    def pause(self) -> None:
        """Stop until each pause was ended by a `resume`."""
        self._waiting += 1
        if self._waiting == 1:
            self._left -= time.monotonic() - self._since
            self.stop()

    def resume(self) -> None:
        self._waiting -= 1
        if not self._waiting:
            self.run()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


class Cell:
    """One cell of a worker. ``listener`` receives its output while it runs; None if nobody reads."""

    def __init__(
        self, number: int, worker: Worker, call: ToolCall, turn: TurnContext, listener: Listener | None
    ) -> None:
        wards = turn.wards
        self.number = number
        self.token = secrets.token_hex(8)
        """Every call of this cell carries this token. Processes that earlier cells started do not have it."""
        self.ended: messages.CellEnded | None = None
        self.timed_out = False
        self._worker = worker
        self._call = call
        self._turn = turn
        self._listener = listener
        self._limit = wards.code_max_output_bytes
        self._streams = {1: Collector(self._limit), 2: Collector(self._limit)}
        self._group: anyio.abc.TaskGroup | None = None
        self._under_way: set[int] = set()
        self._calls = 0
        self._time = CellTime(wards.code_timeout_ms / 1000, self._on_timeout)
        self._timers: dict[str, list[asyncio.TimerHandle]] = {}
        self._stopping = False
        self._over = False
        self._queue: list[tuple[Callable[..., Coroutine[Any, Any, object]], tuple[Any, ...]]] = []

    def owns(self, token: str) -> bool:
        """Whether this cell, or a process that it started, made a call with this token."""
        return secrets.compare_digest(token.encode(), self.token.encode())

    # Ends

    def _later(self, name: str, seconds: float, action: Callable[[], None]) -> None:
        timer = asyncio.get_running_loop().call_later(seconds, action)
        self._timers.setdefault(name, []).append(timer)

    def _drop(self, name: str) -> None:
        for timer in self._timers.pop(name, ()):
            timer.cancel()

    def _on_timeout(self) -> None:
        if self.ended is None and not self._stopping:
            self.timed_out = True
            self.stop(TIMEOUT, f"it ran longer than {self._turn.wards.code_timeout_ms} ms (code_timeout_ms)")

    def _watch(self) -> None:
        self._worker.judge(self._judged)

    def _judged(self, verdict: str | None) -> None:
        if self._over:
            return
        # The process tree may have ended meanwhile; then another process may have its number, and the measurement is of
        # that one.
        if verdict is not None and self._worker.tree.alive:
            self._worker.end(verdict)
            return
        self._worker.resume()
        self._drop("watch")
        self._later("watch", self._worker.check_interval, self._watch)

    def stop(self, steps: tuple[float, float, float], because: str) -> None:
        """Stop the cell in ``steps`` of seconds: interrupt it, interrupt it again, then kill its worker, unless it has ended."""
        self._stopping = True
        self._drop("stop")
        for seconds in steps[:2]:
            if seconds:
                self._later("stop", seconds, self._interrupt)
            else:
                self._interrupt()
        self._later("stop", steps[2], lambda: self._kill(because))

    async def cut_off(self, *, ends: bool) -> None:
        """Stop the cell for a cancel, and wait a second for its end. With ``ends``, the worker's state is not needed again."""
        worker = self._worker
        if ends:
            # The waits of several levels of children must not add up (COMP-9).
            worker.end("the cell was stopped by a cancel")
        else:
            self.stop(CANCEL, "the cell was stopped by a cancel")
        with anyio.move_on_after(1):
            while self.ended is None and worker.broken is None and not worker.tree.exited:
                await worker.tree.changed()
        self.over()

    def _interrupt(self) -> None:
        if self.ended is None:
            self._worker.interrupt()

    def _kill(self, because: str) -> None:
        if self.ended is None:
            self._worker.end(because)

    def finished(self, steps: tuple[float, float, float]) -> None:
        """Stop the cell, because ``done`` has succeeded and nothing more of it may happen."""
        if not self._over and self.ended is None:
            self.stop(steps, "done")

    # Messages and output of the worker

    def said(self, message: messages.Message) -> None:
        if isinstance(message, messages.CellEnded):
            if message.cell == self.number and self.ended is None:
                self.ended = message
        elif isinstance(message, messages.GateCall | messages.LoomRead):
            self._on_gate_call(message)

    def _on_gate_call(self, message: messages.GateCall | messages.LoomRead) -> None:
        if message.id in self._under_way:
            return
        refusal = None
        if self._over:
            refusal = "the cell has ended: no gate can be called until the next one"
        elif not self.owns(message.cell):
            refusal = LEFT_BEHIND
        elif len(self._under_way) >= _AT_ONCE:
            refusal = f"no more than {_AT_ONCE} gate calls can be under way at once"
        elif self._calls >= WireSession.most_calls and (
            isinstance(message, messages.LoomRead) or message.gate != "done"
        ):
            # A cell that has used up its calls can still call done.
            refusal = f"no more than {WireSession.most_calls} gate calls are possible in one cell"
        if refusal is not None:
            self._worker.send({"id": message.id, "error": True, "result": refusal})
            return
        self._calls += 1
        self._under_way.add(message.id)
        self.serve(self._answer, message)

    async def _answer(self, message: messages.GateCall | messages.LoomRead) -> None:
        answer: dict[str, object] = {"error": True, "result": "the cell has ended"}
        self._time.pause()
        try:
            if isinstance(message, messages.LoomRead):
                length, turns = self._turn.history(message.start, message.count)
                answer = {"result": {"length": length, "turns": turns}}
            else:
                answer = await self._gate(message.gate, message.args)
        finally:
            if not self._over:
                self._time.resume()
            self._under_way.discard(message.id)
            self._worker.send_answer({"id": message.id, **answer})

    async def _gate(self, name: str, args: Mapping[str, object]) -> dict[str, object]:
        result, is_error = await self.gate(name, dict(args), FINISHED)
        if self._turn.finished:
            return {"stop": True}
        return {"result": result, "error": is_error}

    async def gate(
        self, name: str, args: dict[str, object], steps: tuple[float, float, float] = FINISHED_BELOW
    ) -> tuple[object, bool]:
        """Call a gate, from the cell or from a command that it runs.

        If the call was a successful done, ``steps`` end the cell.
        """
        if self._turn.finished:
            return "the cast is finished: no gate can be called any more", True
        record = await self._turn.gate(name, args, via=self._call.id)
        if _is_finished(self._turn):
            self.finished(steps)
        return record.result, record.is_error

    def serve(self, work: Callable[..., Coroutine[Any, Any, object]], *args: Any) -> None:
        """Run a task that ends with the cell."""
        if self._over:
            return
        if self._group is None:
            self._queue.append((work, args))
            self._worker.tree.wake()
        else:
            self._worker.start_soon(self._group, work, *args)

    def output(self, stream: int, data: bytes) -> None:
        collector = self._streams[stream]
        collector.feed(data)
        if self._listener is not None and collector.waiting > _LIVE_MOST:
            self._worker.tree.pause(True)

    # Running

    async def run(self, code: str, context: Mapping[str, object]) -> None:
        """Run the code to its end, and answer its requests meanwhile. ``context`` goes to the worker too."""
        try:
            self._worker.send(
                {
                    "t": "run",
                    "cell": self.number,
                    "name": f"<cell {self.number}>",
                    "code": code,
                    "token": self.token,
                    **context,
                    "trace": self._turn.traceparent,
                }
            )
            self._time.run()
            self._later("watch", self._worker.first_check, self._watch)
            self._worker.thaw()
            # Until its first request a cell needs no task group.
            await self._wait()
            if self._queue:
                await self._serve_requests()
        finally:
            self.over()

    async def _serve_requests(self) -> None:
        with one_failure():
            async with anyio.create_task_group() as group:
                self._group = group
                queue, self._queue = self._queue, []
                for work, args in queue:
                    group.start_soon(work, *args)
                try:
                    await self._wait()
                finally:
                    self.over()
                    group.cancel_scope.cancel()

    async def _wait(self) -> None:
        """Wait until the cell has ended, its worker is broken, or the cell makes its first request."""
        tree = self._worker.tree
        while self.ended is None and self._worker.broken is None and not tree.exited and not self._queue:
            delayed = self._listener is not None and any(each.delayed for each in self._streams.values())
            with anyio.move_on_after(_DELAYED if delayed else None):
                await tree.changed()
            if self._listener is not None:
                await self.report()

    async def report(self, *, last: bool = False) -> None:
        """Send output that was printed since the last report."""
        for stream, name in ((1, "stdout"), (2, "stderr")):
            collector = self._streams[stream]
            if self._listener is None:
                continue
            text = collector.finish() if last else collector.read() if collector.waiting else Styled("")
            if text.text:
                await self._listener(name, text)
            if not last and (state := collector.state()) is not None:
                await self._listener(UNFINISHED if state[1] else UNFINISHED_PART, state[0])
        if not last:
            self._worker.tree.pause(False)

    def rest(self) -> dict[str, Styled]:
        """Output that was printed and not sent yet, by stream. Call it after the end of the cell."""
        return {"stdout": self._streams[1].finish(), "stderr": self._streams[2].finish()}

    def over(self) -> None:
        """Mark the cell as ended or abandoned: no more timers and gate calls."""
        self._over = True
        self._time.stop()
        for name in list(self._timers):
            self._drop(name)

    def so_far(self) -> tuple[Styled, Styled, bool]:
        """Output since the last call, within the ward's limit; `shown` then gives the rest."""
        self._worker.tree.read_now()
        stdout, stderr, truncated, self._limit = self._streams[1].part(self._streams[2], self._limit)
        return stdout, stderr, truncated

    def shown(self) -> tuple[Styled, Styled, bool]:
        """Standard output and error within the ward's limit, and whether some was left out."""
        return self._streams[1].share(self._streams[2], self._limit)


def _is_finished(turn: TurnContext) -> bool:
    """Whether done has succeeded. Read it again after each await."""
    return turn.finished
