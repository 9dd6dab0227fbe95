"""In-process agent: connects a client to an agent in the same event loop, over two memory streams in the place of pipes."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Final

import anyio

if TYPE_CHECKING:
    from cantrip_acp.acp.wire.connection import ByteReceiver
    from cantrip_acp.acp.wire.send_queue import ByteSender

_PIECES: Final = 64
"""Writes that wait in a stream before the writer waits for its reader, as it does for a full pipe."""

Serve = Callable[["ByteReceiver", "ByteSender"], Awaitable[None]]
"""Serves ACP on two streams until the first one ends. Then nothing of the agent is left running."""


class MemoryPipe:
    """Bytes from a writer to a reader."""

    def __init__(self) -> None:
        self._send, self._receive = anyio.create_memory_object_stream[bytes](_PIECES)

    async def send(self, item: bytes) -> None:
        # The writer may change its buffer once it was sent.
        await self._send.send(bytes(item))

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """The next piece that was sent, of any size. Raises anyio.EndOfStream after `aclose`."""
        return await self._receive.receive()

    async def aclose(self) -> None:
        self._send.close()


class InProcessAgent:
    """An agent that runs in this process, with the members of an `AgentProcess` that a client needs."""

    argv = ("cantrip-acp",)
    exit_seconds = 0.0

    def __init__(self) -> None:
        self.stdin, self.stdout = MemoryPipe(), MemoryPipe()
        self._ended = anyio.Event()

    def stderr_tail(self) -> list[str]:
        return []

    def describe_end(self) -> str:
        return "ended" if self._ended.is_set() else "is still running"

    async def ended(self, seconds: float) -> bool:
        """Wait at most `seconds` for the agent's end. Returns whether it has ended."""
        with anyio.move_on_after(seconds):
            await self._ended.wait()
        return self._ended.is_set()

    async def run(self, serve: Serve) -> None:
        try:
            await serve(self.stdin, self.stdout)
        finally:
            self._ended.set()
            await self.stdout.aclose()


@contextlib.asynccontextmanager
async def start_in_process(serve: Serve) -> AsyncIterator[InProcessAgent]:
    """Run an agent in this event loop. When the block ends, its input ends, and the block waits for its orderly end."""
    agent = InProcessAgent()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(agent.run, serve)
        try:
            yield agent
        finally:
            with anyio.CancelScope(shield=True):
                await agent.stdin.aclose()
                while not await agent.ended(1.0):
                    pass
