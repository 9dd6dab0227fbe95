"""A command of the host for each alarm: a budget that is spent to 50, 80 or 100 %, or a disk with too little space.

Whoever runs the command takes the alarm out of its lane and ends it with a receipt, so each alarm is given to one command, and
the lanes do not grow.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from cantrip_acp.tuplespace.budget import ALARM_LANE
from cantrip_acp.tuplespace.errors import SpaceError
from cantrip_acp.tuplespace.receipts import make_receipt
from cantrip_acp.tuplespace.space import run_in_thread
from cantrip_acp.tuplespace.stores.base import Claim, End
from cantrip_acp.tuplespace.tuples import Pattern, now_iso
from cantrip_acp.tuplespace.workers.guardrails import GC_LANE

if TYPE_CHECKING:
    from cantrip_acp.tuplespace.stores.sql import TupleStore

_LANES = (ALARM_LANE, GC_LANE)
_LONGEST_S = 60.0
"""How long a command may run."""
_LOOK_S = 1.0


@asynccontextmanager
async def alarms_to(
    command: str | None, store: TupleStore, worker: str, notice: Callable[[str], object]
) -> AsyncIterator[None]:
    """Give alarms to a command while the block runs; at its end, give it the remaining ones. Does nothing without a command."""
    if command is None:
        yield
        return
    handler = AlarmCommand(store, command, worker, notice)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(handler.run)
        yield
        handler.stop.set()


@contextmanager
def alarms_in_thread(
    command: str | None, store: TupleStore, worker: str, notice: Callable[[str], object]
) -> Iterator[None]:
    """`alarms_to` for a program without an event loop."""
    if command is None:
        yield
        return
    handler = AlarmCommand(store, command, worker, notice)
    thread = threading.Thread(target=anyio.run, args=(handler.run,), name="alarms")
    thread.start()
    try:
        yield
    finally:
        handler.stop.set()
        thread.join()


class AlarmCommand:
    """Passes each alarm of a space to a shell command, as JSON on its stdin. ``notice`` gets failures, which stop nothing."""

    def __init__(self, store: TupleStore, command: str, worker: str, notice: Callable[[str], object]) -> None:
        self._store = store
        self._command = command
        self._worker = f"{worker}:alarms"
        self._notice = notice
        self._troubled = False
        self.stop = threading.Event()

    async def run(self) -> None:
        """Watch for alarms until ``stop`` is set, then handle the remaining ones."""
        while not self.stop.is_set():
            await self.handle()
            # Not with the store's own wait, which would take notices away from the worker.
            await anyio.to_thread.run_sync(self.stop.wait, _LOOK_S, abandon_on_cancel=True)
        await self.handle()

    async def handle(self) -> None:
        """Run the command for each waiting alarm."""
        for lane in _LANES:
            try:
                while await run_in_thread(partial(self._one, lane)):
                    pass
                self._troubled = False
            except SpaceError as error:
                # The worker says it, too, and goes on when the space works again.
                if not self._troubled:
                    self._notice(f"alarms cannot be read: {error}")
                self._troubled = True

    def _one(self, lane: str) -> bool:
        """Handle one alarm, if there is one. It reads before it claims, because reading costs less."""
        if not self._store.waiting(lane)[0]:
            return False
        claims = self._store.claim(Pattern({"lane": lane}), self._worker, lease_s=_LONGEST_S + 60)
        for claim in claims:
            self._answer(claim)
        return bool(claims)

    def _answer(self, claim: Claim) -> None:
        work, started = claim.work, now_iso()
        step = work.payload[0]
        created = work.created_at if isinstance(work.created_at, str) else None
        # The tuple's own fields must not replace these facts about it.
        alarm = {**(step.args or {}), "alarm": step.yool, "lane": work.lane, "tuple_id": work.id, "at": created}
        failed = self._call(alarm)
        receipt = make_receipt(
            yool=step.yool, tuple_id=work.id, started_at=started, ended_at=now_iso(), exit=int(failed is not None), cost={},
            error=failed,
        )  # fmt: skip
        # As the receipt has it: without secrets.
        failed = receipt.get("error")
        if failed is not None:
            self._notice(f"--on-alarm: {failed}")
        self._store.acknowledge(End(claim=claim, receipt=receipt, failed=failed))

    def _call(self, alarm: Mapping[str, Any]) -> str | None:
        """Run the command. Returns the reason if it failed."""
        try:
            process = subprocess.Popen(
                ["/bin/sh", "-c", self._command], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            return f"the command cannot be started: {error.strerror}"
        try:
            said, _ = process.communicate(json.dumps(alarm).encode() + b"\n", timeout=_LONGEST_S)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return f"the command for {alarm['alarm']} was stopped after {_LONGEST_S:.0f} s"
        if process.returncode == 0:
            return None
        lines = said.decode(errors="replace").strip().splitlines()
        return f"the command for {alarm['alarm']} ended with status {process.returncode}" + (
            f": {lines[-1][:300]}" if lines else ""
        )
