"""A program in a terminal, its screen as text: for editors that have no other way to be driven."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import signal
import struct
import termios
import time
from pathlib import Path
from typing import Any

import pyte

from cantrip_acp.files.descriptors import is_ready


class _Screen(pyte.Screen):
    """pyte's, which stumbles over the private forms of two sequences."""

    def report_device_status(self, *_: Any, **__: Any) -> None:
        pass

    def select_graphic_rendition(self, *attrs: int, private: bool = False) -> None:
        if not private:
            super().select_graphic_rendition(*attrs)


class Terminal:
    """Starts ``command`` in a terminal of its own; ends with `close`, or as a context."""

    def __init__(
        self, command: list[str], environment: dict[str, str], folder: Path, columns: int = 110, lines: int = 32
    ) -> None:
        self.screen = _Screen(columns, lines)
        self._stream = pyte.ByteStream(self.screen)
        self.pid, self._terminal = pty.fork()
        if self.pid == 0:
            try:
                os.chdir(folder)
                os.execvpe(command[0], command, environment)
            finally:
                os._exit(127)
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def type(self, keys: str, pause: float = 0.3) -> None:
        """Press keys, and see what they do for a moment."""
        head, *rest = keys.split("\x1b")
        os.write(self._terminal, head.encode())
        for part in rest:
            # Escape with something right behind it would be another key.
            os.write(self._terminal, b"\x1b")
            self.look(0.2)
            os.write(self._terminal, part.encode())
        self.look(pause)

    def look(self, seconds: float) -> None:
        """Take in what the program shows."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and self._take(left):
            pass

    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self.screen.display)

    def wait(self, *texts: str, patience: float = 60, again: str = "") -> str:
        """The screen, once it shows one of them. Fails with the screen.

        ``again`` is pressed every two seconds: what a person does where an editor asked its server too early.
        """
        end = time.monotonic() + patience
        press = time.monotonic() + 2
        while not any(text in self.text() for text in texts):
            left = end - time.monotonic()
            assert left > 0, f"none of {texts} came up on\n{self.text()}"
            self._take(min(left, 0.2))
            if again and time.monotonic() > press:
                self.type(again)
                press = time.monotonic() + 2
        return self.text()

    def _take(self, seconds: float) -> bool:
        if not is_ready(self._terminal, seconds):
            return True
        try:
            data = os.read(self._terminal, 65536)
        except OSError:
            return False
        self._stream.feed(data)
        return bool(data)

    def close(self) -> None:
        """Hang up and, a moment later, kill: a terminal's programs are one session, led by this one. Safe to call twice."""
        if self._terminal < 0:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGHUP)
        end = time.monotonic() + 60
        while os.waitpid(self.pid, os.WNOHANG)[0] == 0:
            if time.monotonic() > end:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
                break
            self.look(0.05)
        os.close(self._terminal)
        self._terminal = -1
