"""The agent process: sets up the log, handles signals, and shuts down.

The process ends when the client closes the connection, when the client stops reading, or on a signal. Then it cancels
and records the running turns, stops the processes that they started, and exits with status 0 within a second.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import sys
import threading
from pathlib import Path
from typing import Any, Never

import anyio

from cantrip_acp.acp.server import Server, make_agent
from cantrip_acp.acp.wire.byte_streams import DescriptorReader, DescriptorWriter
from cantrip_acp.acp.wire.connection import Connection
from cantrip_acp.loom.output_file import check_appendable
from cantrip_acp.text.logs import MASKING, logger
from cantrip_acp.types.errors import OutputError

EXIT_GRACE = 0.4
"""Seconds after the grace period of requests. Then the process exits, even if a thread still blocks."""

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals that end the process in an orderly way. SIGHUP stays ignored if it was ignored at the start (``nohup``)."""


def serve_process(
    source: int,
    sink: int,
    leftover: bytes,
    initialize_params: dict[str, Any] | None,
    *,
    recipe: str | None,
    state_dir: str | None,
    log_file: str | None,
) -> int:
    """Serve on two file descriptors until the end. Returns the exit status.

    ``leftover`` holds bytes that were already read from ``source``. ``initialize_params`` are the parameters of the
    ``initialize`` request if it was already answered, else None.
    """
    problem = start_log(log_file)
    if problem is not None:
        sys.stderr.write(f"cantrip-acp: {problem}\n")
        return 2
    agent = make_agent(recipe, state_dir, initialize_params=initialize_params)
    try:
        anyio.run(_start_request, agent, source, sink, leftover)
    except KeyboardInterrupt:
        pass  # a second Ctrl-C during the exit
    return 0


async def _start_request(agent: Server, source: int, sink: int, leftover: bytes) -> None:
    reader = DescriptorReader(source)
    connection = Connection(reader, DescriptorWriter(sink), agent.methods(), leftover=leftover, masked=True)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_stop_on_signals, connection)
        await agent.serve(connection, finish_requests=reader.is_file, on_end=_exit_after)
        tasks.cancel_scope.cancel()


async def _stop_on_signals(connection: Connection) -> None:
    numbers = [n for n in SIGNALS if n is not signal.SIGHUP or signal.getsignal(n) is not signal.SIG_IGN]
    with anyio.open_signal_receiver(*numbers) as signals:
        async for number in signals:
            logger(__name__).info("stopped by %s", signal.Signals(number).name)
            connection.stop()


def _exit_after(grace: float) -> None:
    """Exit after the grace period even if a thread cannot be stopped, for example in a blocked system call."""
    last = threading.Timer(grace + EXIT_GRACE, _exit_now)
    last.daemon = True
    last.start()


def _exit_now() -> Never:
    os._exit(0)


# --- the log ---------------------------------------------------------------------------------------------------------


def start_log(path: str | None) -> str | None:
    """Write the log to a file, or only warnings to stderr if ``path`` is None. Returns the problem with the file, or None."""
    handler: logging.Handler
    if path is None:
        handler = _NonBlockingHandler()
        level = logging.WARNING
    else:
        try:
            Path(path).expanduser().parent.mkdir(parents=True, exist_ok=True)
            check_appendable(Path(path).expanduser())
            handler = logging.FileHandler(Path(path).expanduser(), encoding="utf-8")
        except OutputError as problem:
            return f"the log cannot be written: {problem}; choose another --log-file"
        except OSError as problem:
            return f"the log file {path} cannot be written: {problem.strerror or problem}; choose another --log-file"
        level = logging.INFO
    handler.addFilter(MASKING)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    return None


class _NonBlockingHandler(logging.Handler):
    """Writes to stderr without blocking. Drops what does not fit: a client that never reads stderr must not stop the agent."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            data = (self.format(record) + "\n").encode("utf-8", "replace")
            poll = select.poll()
            poll.register(2, select.POLLOUT)
            while data and poll.poll(0):
                data = data[os.write(2, data[: select.PIPE_BUF]) :]
        except OSError:
            pass  # stderr is closed
