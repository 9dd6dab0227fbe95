"""Worker of the monty medium: has the same protocol with the host as the code worker, but Monty's interpreter runs cells.

The interpreter is a child process of this process, in the same sandbox. It has no authority: it can compute, print and
send requests to this process. A request is a gate call, or it is refused. The data of the interpreter are decoded here
and never on the host.

A cell in Monty can only be stopped by killing the interpreter. So its state is saved before each cell. If a cell is
stopped, its changes are undone.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading

from .code_worker import _move
from .gates import arguments
from .interrupts import Interrupts
from .snapshot import PIECE
from .value_repr import ERROR, show
from .wire import Codec, Wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_NAMES = 200
_STARTED = "GateError = RuntimeError\ncontext = []"
"""Monty has no inheritance and so no new exception classes. So `GateError` is another name of RuntimeError."""
_CONSTRUCTED = ("Cantrip", "Child", "Result", "cast", "cast_batch", "summon", "send", "dismiss")
_INPUT = re.compile(r"<python-input-(\d+)>")
_BINDS = re.compile(r"=|\b(?:def|class|import|for|as|exec|eval)\b")
"""Matches every cell that can assign a name."""
_MAX_SAVED = 256 * 1024 * 1024
"""The maximum size of a state in bytes. If the state is larger, a stopped cell cannot be undone."""


def main(inward: int, outward: int) -> None:
    """Serve the host: read commands from ``inward`` and write to ``outward``, two descriptors. Never returns."""
    # Block SIGINT in all threads except the one that waits for it, so that an interrupt never stops a transfer.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    wire = Wire(_move(inward), _move(outward), Codec(), Interrupts())
    settings = wire.command()
    sys.path.append(settings["packages"])
    sys.set_int_max_str_digits(0)
    worker = MontyWorker(wire, settings)
    wire.send({"t": "ready", "python": worker.version, "executable": settings["binary"]})
    worker.serve()


class MontyWorker:
    """The session of Monty's interpreter, and the commands of the host for it."""

    def __init__(self, wire: Wire, settings: dict[str, Any]) -> None:
        import pydantic_monty

        self._monty = pydantic_monty
        self.version = f"monty {pydantic_monty.__version__}"
        self._wire = wire
        self._circle_gates: dict[str, dict[str, Any]] = {spec["shown"]: spec for spec in settings["gates"]}
        if "done" in self._circle_gates:
            self._circle_gates["submit_answer"] = self._circle_gates["done"]
        self._gates = self._circle_gates
        self._set_added_gates(settings.get("gained") or [])
        wire.gained = self._set_added_gates
        self._memory = settings["heap"]
        self._pool: Any = pydantic_monty.Monty(binary_path=settings["binary"], min_processes=1, max_processes=1)
        self._pool.__enter__()
        self._session: Any = None  # of the pool, or None if its process was lost
        self._pid = 0
        self._initial_state = b""
        self._saved: bytes | None = None
        self._feeds = self._feeds_saved = 0
        self._cells: dict[int, int] = {}
        self._last_names: list[str] = []
        self._guard = threading.Lock()
        self._running = False
        self._stopped = threading.Event()
        self._done = False
        self._last_failure = ""
        self._start_interpreter()
        self._feed(_STARTED)
        self._constructs = bool(settings.get("construction"))
        if self._constructs:
            self._feed(_construction())
        self._initial_feeds = self._feeds
        self._initial_state = self._state()
        self._stop_interpreter()
        threading.Thread(target=self._wait_for_interrupts, daemon=True).start()

    def _set_added_gates(self, specs: list[dict[str, Any]]) -> None:
        """Replace the gates that were added to those of the circle. Monty asks for a name when a cell uses it."""
        self._gates = {**{spec["shown"]: spec for spec in specs}, **self._circle_gates}

    def serve(self) -> None:
        """Serve commands. When the host is gone, reading a command ends the process."""
        while True:
            command = self._wire.command()
            kind = command.get("t")
            if kind == "run":
                self._cell(command)
            elif kind == "snapshot":
                self._snapshot()
            elif kind == "restore":
                self._restore()

    # The interpreter's process

    def _start_interpreter(self) -> None:
        limits = {"max_memory": self._memory, "max_suspensions": 2**53}
        session = self._pool.checkout(limits=limits, os_policy={"sleep": "call_host"})
        self._session = session.__enter__()
        self._pid = self._session.worker_pid

    def _discard_interpreter(self) -> None:
        """Kill the interpreter if it still runs, and close its session."""
        session, self._session = self._session, None
        if session is not None:
            self._kill_interpreter()
            try:
                session.__exit__(None, None, None)
            except self._monty.MontyError:
                # The error says that the process has ended, which is expected here.
                return

    def _kill_interpreter(self) -> None:
        with self._guard:
            if self._pid:
                _signal(self._pid, signal.SIGKILL)
                self._pid = 0

    def _resume_interpreter(self, state: bytes | None = None) -> None:
        """Resume the interpreter. If it was lost, start a new one and load ``state`` or the last saved state."""
        if self._session is None:
            self._start_interpreter()
            session: Any = self._session
            session.load_session(state or self._saved or self._initial_state)
            self._feeds = self._feeds_saved if self._saved is not None else self._initial_feeds
            return
        _signal(self._pid, signal.SIGCONT)

    def _stop_interpreter(self) -> None:
        """Stop the interpreter (SIGSTOP), so that it does not run between cells."""
        if self._session is not None:
            _signal(self._pid, signal.SIGSTOP)

    def _wait_for_interrupts(self) -> None:
        """Receive SIGINT in a thread, and kill the interpreter if a cell runs."""
        while True:
            signal.sigwait({signal.SIGINT})
            if self._running:
                self._stopped.set()
                self._kill_interpreter()

    # Cells

    def _cell(self, command: dict[str, Any]) -> None:
        value = error = None
        self._done = False
        self._last_failure = ""
        # No code of a cell runs after its end, so this is the token of every call.
        self._wire.cell = lambda: str(command["token"])
        self._stopped.clear()
        self._running = True
        try:
            self._save()
            inputs = {"context": command["context"]} if "context" in command else None
            self._cells[self._feeds] = command["cell"]
            result = self._run(command["code"], inputs)
            if result is not None:
                value = show(result)
        except self._monty.MontyCrashedError as crash:
            self._discard_interpreter()
            error = self._undone_text(str(crash))
        except self._monty.MontyError as failure:
            raised = failure.exception()
            if not _is_exit(raised):
                error = self._error_text(failure)
            if isinstance(raised, MemoryError):
                # The interpreter may have been killed for that, or may have too little memory to continue.
                self._discard_interpreter()
                error = f"{error}\n\n{self._undone_text('')}"
        except MemoryError:
            error = "MemoryError: the cell's last value is too large to be shown; assign it to a variable"
        except ValueError as failure:
            error = f"the cell's last value cannot be shown: {failure}"
        self._running = False
        if self._stopped.is_set():
            # The cell was stopped between two of its steps.
            self._discard_interpreter()
            value, error = None, error or self._undone_text("")
        names = self._names() if _BINDS.search(command["code"]) else None
        self._stop_interpreter()
        told: dict[str, Any] = {}
        if names is not None and names != self._last_names:
            self._last_names = names
            told["names"] = names
        error = None if self._done else error
        self._wire.send(
            {"t": "end", "cell": command["cell"], "value": value, "error": error, "done": self._done, **told}
        )

    def _save(self) -> None:
        """Prepare the interpreter for a cell, and save its state."""
        try:
            self._resume_interpreter()
            saved = self._state()
        except self._monty.MontyError:
            # The state after the last cell is too large to be saved. So go back to the state that was saved last.
            self._discard_interpreter()
            self._resume_interpreter()
            saved = self._state()
            self._say("[the variables were too large to continue; they have the values from before the last cell]\n")
        self._saved = saved if len(saved) <= _MAX_SAVED else None
        self._feeds_saved = self._feeds

    def _state(self) -> bytes:
        state: bytes = self._session.dump()
        return state

    def _undone_text(self, crash: str) -> str:
        what = (
            "KeyboardInterrupt: the cell was stopped" if self._stopped.is_set() else f"the interpreter ended: {crash}"
        )
        if self._saved is None:
            return f"{what}. The state was too large to be saved before the cell: all variables are lost"
        return f"{what}. Its changes of variables are undone; they have the values from before this cell"

    def _feed(self, code: str) -> Any:
        self._feeds += 1
        return self._session.feed_run(code)

    def _run(self, code: str, inputs: dict[str, Any] | None) -> Any:
        """Run a cell and return the value of its last expression. Handles each request of the interpreter."""
        monty = self._monty
        self._feeds += 1
        step = self._session.feed_start(code, inputs=inputs, print_callback=self._print)
        while not isinstance(step, monty.MontyComplete):
            if isinstance(step, monty.NameLookupSnapshot):
                step = self._on_name_lookup(step)
            elif isinstance(step, monty.FunctionSnapshot):
                step = self._on_function_call(step)
            else:
                gone = {"exc_type": "RuntimeError", "message": "await is not needed here: gates answer at once"}
                step = step.resume(dict.fromkeys(step.pending_call_ids, gone))
        return None if self._done else step.output

    def _on_name_lookup(self, step: Any) -> Any:
        name = step.variable_name
        if step.object_id is not None or not (name in self._gates or (self._constructs and name in ("_ask", "_size"))):
            return step.resume()

        def gate() -> None:
            """Replaces the gate in the interpreter, which needs only its name."""

        gate.__name__ = gate.__qualname__ = name
        return step.resume(value=gate)

    def _on_function_call(self, step: Any) -> Any:
        if self._done:
            # Raise the end of the cast again, because the cell may have caught it.
            return step.resume({"exception": SystemExit("done")})
        name = step.function_name
        if step.is_os_function:
            if name in ("time.sleep", "asyncio.sleep") and step.args:
                self._stopped.wait(max(0.0, float(step.args[0])))
                return step.resume({"return_value": None})
            return step.resume_not_handled()
        if self._constructs and name in ("_ask", "_size"):
            return self._on_child_call(step, name)
        spec = self._gates.get(name) if step.object_id is None else None
        if spec is None:
            return step.resume({"exc_type": "NameError", "message": f"name {name!r} is not defined"})
        schema = spec["parameters"]
        properties: dict[str, Any] = schema.get("properties") or {}
        try:
            args = arguments(name, properties, frozenset(schema.get("required") or ()), step.args, step.kwargs)
        except TypeError as error:
            return step.resume({"exc_type": "TypeError", "message": str(error)})
        return self._resume_with_gate_result(step, spec["name"], args)

    def _on_child_call(self, step: Any, name: str) -> Any:
        """Handle a call of `children`: return the size of a request, or send the request."""
        try:
            if name == "_size":
                return step.resume({"return_value": self._wire.size(step.args[0])})
            gate, args = step.args
        except (TypeError, ValueError, IndexError, RecursionError) as error:
            return self._resume_with_error(step, f"the data for a child are not JSON data: {error}")
        return self._resume_with_gate_result(step, gate, args)

    def _resume_with_gate_result(self, step: Any, gate: str, args: Any) -> Any:
        try:
            reply = self._wire.ask({"t": "call", "gate": gate, "args": args})
        except (TypeError, ValueError, RecursionError) as error:
            return self._resume_with_error(step, f"arguments of {gate} are not JSON data: {error}")
        if reply.get("stop"):
            self._done = True
            return step.resume({"exception": SystemExit("done")})
        result = reply.get("result")
        if reply.get("error"):
            return self._resume_with_error(step, result if isinstance(result, str) else str(result))
        return step.resume({"return_value": result})

    def _resume_with_error(self, step: Any, text: str) -> Any:
        self._last_failure = text
        return step.resume({"exc_type": "RuntimeError", "message": text})

    def _print(self, stream: str, text: str) -> None:
        if self._done:
            return
        self._say(text, 2 if stream == "stderr" else 1)

    def _say(self, text: str, fd: int = 2) -> None:
        data = memoryview(text.encode("utf-8", "backslashreplace"))
        while data:
            data = data[os.write(fd, data) :]

    def _error_text(self, failure: Any) -> str:
        text: str = failure.display() if hasattr(failure, "display") else str(failure)
        text = _INPUT.sub(lambda found: f"<cell {self._cells.get(int(found[1]), 0)}>", text)
        plain = f"RuntimeError: {self._last_failure}"
        if self._last_failure and text.endswith(plain):
            text = text[: -len(plain)] + f"GateError: {self._last_failure}"
        if len(text) > ERROR:
            text = f"{text[: ERROR * 2 // 3]}\n[… {len(text) - ERROR:,} characters left out …]\n{text[-ERROR // 3 :]}"
        return text

    def _names(self) -> list[str] | None:
        """The names in the namespace; None if they cannot be read now."""
        if self._session is None:
            return None
        try:
            found = self._feed(f"[*locals()][:{2 * _NAMES}]")
        except self._monty.MontyCrashedError:
            self._discard_interpreter()
            return None
        except self._monty.MontyError:
            # A cell may have assigned another value to `locals`.
            return None
        hidden = {"context", "GateError", *self._gates, *(_CONSTRUCTED if self._constructs else ())}
        return [n[:100] for n in found if isinstance(n, str) and n[:1] != "_" and n not in hidden][:_NAMES]

    # Snapshots

    def _snapshot(self) -> None:
        """Send the state in pieces, and then its description."""
        try:
            self._resume_interpreter()
            head = json.dumps({"feeds": self._feeds, "cells": self._cells}).encode()
            data = len(head).to_bytes(4, "big") + head + self._state()
            names = self._names()
        except self._monty.MontyError as error:
            self._wire.send({"t": "state", "error": str(error)[:300], "size": 0})
            return
        self._stop_interpreter()
        for start in range(0, len(data), PIECE):
            self._wire.send_bytes(data[start : start + PIECE])
        self._wire.send({"t": "state", "error": None, "size": len(data), "names": names or []})

    def _restore(self) -> None:
        """Continue with the state whose pieces came before this command."""
        data = b"".join(self._wire.blobs)
        self._wire.blobs.clear()
        names: list[str] = []
        error = None
        try:
            end = 4 + int.from_bytes(data[:4], "big")
            head = json.loads(data[4:end])
            self._discard_interpreter()
            self._resume_interpreter(data[end:])
            self._feeds = int(head["feeds"])
            self._cells = {int(feed): int(cell) for feed, cell in head["cells"].items()}
            names = self._names() or []
            self._stop_interpreter()
        except (self._monty.MontyError, ValueError, KeyError, TypeError, AttributeError) as failure:
            error = f"{type(failure).__name__}: {failure}"[:300]
        self._wire.send({"t": "state", "error": error, "size": len(data), "names": names})


def _construction() -> str:
    """The source of `children` below the comment, which Monty reads."""
    with open(os.path.join(os.path.dirname(__file__), "children.py"), encoding="utf-8") as file:
        return file.read().partition("# What Monty reads begins here.\n")[2]


def _is_exit(failure: BaseException) -> bool:
    """Whether a cell has called exit() without an error status."""
    return isinstance(failure, SystemExit) and failure.code in (None, "", 0, "0")


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
