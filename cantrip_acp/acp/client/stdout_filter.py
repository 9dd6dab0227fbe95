"""Stdout filter: removes lines from an agent's stdout that are not messages, and lets a slow reader slow the agent.

Programs print on stdout what belongs on stderr: a banner, a warning, a debugger's prompt. The connection would answer
each such line with an error that no agent expects. So the filter takes these lines out and passes them to a callback.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import anyio
import anyio.abc

_LONGEST_JUNK: Final = 2000


class StdoutWatch:
    """The receiving half of a connection. `ready` waits until more may be read (back-pressure)."""

    def __init__(
        self,
        stdout: anyio.abc.ByteReceiveStream,
        *,
        junk: Callable[[str], None],
        ready: Callable[[], Awaitable[None]],
    ) -> None:
        self._stdout = stdout
        self._junk = junk
        self._ready = ready
        self._at_start = True
        self._kept = b""
        self._inside_junk = False
        self.bytes = 0

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """Bytes of lines that may be messages. Raises anyio.EndOfStream when the agent closed its stdout."""
        while True:
            await self._ready()
            try:
                chunk = await self._stdout.receive(max_bytes)
            except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
                self._report()
                raise anyio.EndOfStream from None
            self.bytes += len(chunk)
            if kept := self._sift(chunk):
                return kept

    async def aclose(self) -> None:
        await self._stdout.aclose()

    def _sift(self, chunk: bytes) -> bytes:
        # The usual case: every line of the chunk starts like a message.
        out = bytearray()
        for line in chunk.splitlines(keepends=True) if b"\r" not in chunk else _lines(chunk):
            if self._at_start:
                start = line.lstrip(b" \t\r")
                self._inside_junk = not start.startswith((b"{", b"[", b"\n")) and bool(start)
                self._at_start = not start
                if self._at_start:
                    continue
            ended = line.endswith(b"\n")
            if self._inside_junk:
                self._kept = (self._kept + line)[:_LONGEST_JUNK]
                if ended:
                    self._report()
            elif line != b"\n" or not self._at_start:
                out += line
            self._at_start = ended
        return bytes(out)

    def _report(self) -> None:
        junk, self._kept = self._kept, b""
        if junk := junk.strip():
            self._junk(junk.decode("utf-8", "replace"))


def _lines(chunk: bytes) -> list[bytes]:
    """Split after newlines only: a carriage return does not end a line here."""
    *whole, last = chunk.split(b"\n")
    return [line + b"\n" for line in whole] + ([last] if last else [])
