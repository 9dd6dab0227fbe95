"""Running the real command line, in a pipe or in a terminal."""

from __future__ import annotations

import fcntl
import json
import os
import struct
import subprocess
import termios
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cantrip_acp.files.descriptors import is_ready
from tests.support import processes
from tests.support.processes import CANTRIP
from tests.support.waiting import settled

GREETER = """
name: greeter
crystal:
  provider: scripted
  responses:
    - thinking: Let me think.
      content: I try the gate.
      tool_calls: [{gate: echo, args: {text: hello}}]
      usage: {prompt_tokens: 10, completion_tokens: 3}
    - tool_calls: [{gate: done, args: {answer: said hello}}]
      usage: {prompt_tokens: 20, completion_tokens: 4}
circle:
  gates: [done, echo]
  wards: [{max_turns: 3}]
"""

SHELL = """
crystal:
  provider: scripted
  responses:
    - bash: "echo out; echo err >&2; pwd; echo made > made.txt; echo text | echo_gate - 2>/dev/null || cantrip_echo text"
    - bash: cantrip_done 'all is well'
circle:
  medium: bash
  gates: [done, echo]
  wards: [{max_turns: 3}, {bash_writable_paths: [workspace]}]
"""

SLEEPER = """
crystal:
  provider: scripted
  responses:
    - bash: "echo begun; sleep 600; echo not reached"
    - content: after the break
circle:
  medium: bash
  gates: [done]
  wards: [{max_turns: 5}]
"""


@dataclass(frozen=True)
class Done:
    """A finished command."""

    status: int
    out: str
    err: str

    @property
    def lines(self) -> list[dict[str, Any]]:
        """Its output as JSON lines."""
        return [json.loads(line) for line in self.out.splitlines()]


def run(*arguments: str | Path, cwd: Path, stdin: str = "", timeout: float = 100, **env: str) -> Done:
    """A command to its end."""
    done = processes.run(
        [*CANTRIP, *map(str, arguments)],
        cwd=cwd,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, **env},
    )
    return Done(done.returncode, done.stdout, done.stderr)


def start(*arguments: str | Path, cwd: Path, stdin: Path | None = None, **env: str) -> subprocess.Popen[str]:
    """A command that runs; its input from a file, its output in pipes."""
    return processes.Popen(
        [*CANTRIP, *map(str, arguments)],
        cwd=cwd,
        stdin=subprocess.DEVNULL if stdin is None else open(stdin),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **env},
    )


class Terminal:
    """A command in a pseudo-terminal of its own."""

    def __init__(self, *arguments: str | Path, cwd: Path, **env: str) -> None:
        environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40", **env}
        command = [*CANTRIP, *map(str, arguments)]
        self._process, self._fd = processes.on_terminal(command, cwd=cwd, env=environment)
        self.pid = self._process.pid
        self.seen = ""

    def type(self, text: str) -> None:
        if text == "\x03":
            # As in `client_processes.py`: a signal between readline's prompt and its wait is noticed late.
            settled(self.pid, 1)
        os.write(self._fd, text.encode())

    def wait_for(self, text: str, timeout: float = 60) -> str:
        """Everything up to a text, which is taken away; fails with what came instead."""
        end = time.monotonic() + timeout
        while text not in self.seen:
            left = end - time.monotonic()
            if left <= 0 or not self._read(left):
                raise AssertionError(f"no {text!r} in: {self.seen!r}")
        before, _, self.seen = self.seen.partition(text)
        return before

    def end(self, timeout: float = 60) -> int:
        """The exit status, after everything it still wrote."""
        end = time.monotonic() + timeout
        while self._read(max(0.0, end - time.monotonic())):
            pass
        try:
            return self._process.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise AssertionError(f"still running: {self.seen!r}") from None

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        os.close(self._fd)

    def _read(self, timeout: float) -> bool:
        if not is_ready(self._fd, timeout):
            return False
        try:
            data = os.read(self._fd, 65536)
        except OSError:  # the other end is gone
            return False
        self.seen += data.decode("utf-8", "replace")
        return bool(data)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def recipe(folder: Path, text: str, name: str = "r.cantrip.yaml") -> Path:
    """A recipe file in a folder."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


class TerminalScreen(Terminal):
    """A command in a terminal whose screen is followed: what a person sees, and not what was written."""

    def __init__(self, *arguments: str | Path, cwd: Path, columns: int = 100, rows: int = 40, **env: str) -> None:
        import pyte

        self._screen = pyte.HistoryScreen(columns, rows, history=2000, ratio=0.5)
        self._stream = pyte.ByteStream(self._screen)
        self.written = b""
        super().__init__(*arguments, cwd=cwd, **{"COLUMNS": str(columns), "LINES": str(rows), **env})
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def resize(self, columns: int, rows: int = 40) -> None:
        """Change the size of the window. Start the command with COLUMNS="" and LINES="", which would say otherwise."""
        self._screen.resize(rows, columns)
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    @property
    def lines(self) -> list[str]:
        """The lines that have left the screen, and those on it."""
        above = ["".join(line[column].data for column in sorted(line)) for line in self._screen.history.top]
        return [line.rstrip() for line in (*above, *self._screen.display)]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    @property
    def input(self) -> str:
        """What is on the line of the cursor."""
        return str(self._screen.display[self._screen.cursor.y]).rstrip()

    def until(self, condition: str | Callable[[TerminalScreen], bool], timeout: float = 60) -> str:
        """Wait until the screen shows a text, or a condition holds. Returns all lines."""
        end = time.monotonic() + timeout
        while not (condition in self.text if isinstance(condition, str) else condition(self)):
            left = end - time.monotonic()
            if left <= 0 or not self._read(left):
                raise AssertionError(f"not seen: {condition!r}; the screen:\n{self.text}")
        return self.text

    def ready(self) -> str:
        """Wait until nothing runs and the input line is empty."""
        return self.until(lambda at: at.input == "❯" and " working " not in at.text)

    def _read(self, timeout: float) -> bool:
        if not is_ready(self._fd, timeout):
            return False
        try:
            data = os.read(self._fd, 65536)
        except OSError:  # the other end is gone
            return False
        self.written += data
        self._stream.feed(data)
        return bool(data)
