"""Worker: claims tuples of a lane, runs their steps, and answers each tuple with one receipt.

A worker that stops, is killed or is cut off loses its leases, and another worker goes on after the last finished step.
An outage (of the store, of a model, of a disk) ends no worker: it waits, tries again with longer and longer pauses, and says so.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import anyio.abc
import anyio.to_thread
import msgspec

from cantrip_acp.telemetry import tracing
from cantrip_acp.text.defaults import complete
from cantrip_acp.text.logs import logger
from cantrip_acp.text.storable import storable
from cantrip_acp.tuplespace.errors import LeaseLost, SpaceError, SpaceFull
from cantrip_acp.tuplespace.monitoring import spans
from cantrip_acp.tuplespace.reuse.step_results import Reuse
from cantrip_acp.tuplespace.space import run_in_thread
from cantrip_acp.tuplespace.stores.base import Claim, End, WorkerEntry
from cantrip_acp.tuplespace.stores.sql import TupleStore
from cantrip_acp.tuplespace.tuples import Pattern, Runnable
from cantrip_acp.tuplespace.workers.attempt import Attempt
from cantrip_acp.tuplespace.workers.guardrails import DiskFloor, Policy
from cantrip_acp.tuplespace.workers.outages import Outage, YoolOutages, pause_s
from cantrip_acp.tuplespace.yools.step import Save as Save
from cantrip_acp.tuplespace.yools.step import StepCall as StepCall
from cantrip_acp.tuplespace.yools.step import StepFailed as StepFailed
from cantrip_acp.tuplespace.yools.step import StepResult as StepResult
from cantrip_acp.tuplespace.yools.step import Yool as Yool
from cantrip_acp.tuplespace.yools.step import YoolBase
from cantrip_acp.tuplespace.yools.step import is_of_the_machine as is_of_the_machine
from cantrip_acp.types.errors import DefinitionError, SandboxMissing

if TYPE_CHECKING:
    from cantrip_acp.telemetry.tracing import Trace

DEFAULT_RETRIES = 2
_LOOK_S = 2.0
_SIGNS = 2
"""After so many signs of life that could not be given, while the store works otherwise, a worker says that nobody sees it."""
_log = logger(__name__)
_T = TypeVar("_T")


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """A tuple that this worker ended, or gave back for another attempt (``again``).

    ``tried``: whether the attempt ran to its own end. It did not if it was stopped, or waits for something else.
    """

    claim: Claim
    receipt: Mapping[str, Any] | None
    failed: str | None = None
    again: str | None = None
    tried: bool = True
    reused: int = 0
    """How many of its steps reused an answer."""


def runnables(yools: Mapping[str, Yool]) -> tuple[Runnable, ...]:
    """The `Runnable` of each yool. A yool may set ``needs`` and ``without`` for the arguments of its steps."""
    return tuple(
        Runnable(yool=name, needs=dict(yool.needs), without=yool.without)
        for name, yool in ((name, complete(yool, YoolBase)) for name, yool in yools.items())
    )


class Worker:
    """Runs tuples that match a pattern, at most ``concurrency`` at once, and only those that it can run in full.

    ``yools`` maps names to functions. ``ended`` is called after each attempt, ``notice`` with remarks for people.
    ``runs`` is what the worker can run (`runnables` of the yools by default).
    With ``reuse``, the answers of steps that declare their inputs are stored for later ones with the same input, and reused.
    ``cpu_percent`` is the most that a step may use of one processor, and no tuple gets more than ``policy`` allows. While
    ``disk`` has too little space, nothing is claimed.
    """

    def __init__(
        self,
        store: TupleStore,
        pattern: Pattern,
        yools: Mapping[str, Yool],
        *,
        name: str,
        concurrency: int = 8,
        lease_s: float = 30.0,
        cpu_percent: int = 100,
        disk: DiskFloor | None = None,
        ended: Callable[[Ended], None] = lambda _: None,
        notice: Callable[[str], object] = lambda _: None,
        runs: Sequence[Runnable] | None = None,
        reuse: Reuse | None = None,
        policy: Policy | None = None,
    ) -> None:
        self.policy = policy or Policy()
        self.cpu_percent = cpu_percent
        self.disk = disk
        self.store = store
        self.pattern = pattern
        self.yools = yools
        self.reuse = reuse
        self.name = name
        self.concurrency = concurrency
        self.lease_s = lease_s
        self.runs = runnables(yools) if runs is None else tuple(runs)
        self._ended = ended
        self._notice = notice
        self._outages = YoolOutages()
        self._store_outage: Outage | None = None
        self._unseen = 0
        """The number of signs of life in a row that failed."""
        self._failed = 0
        self._mistake: DefinitionError | SandboxMissing | None = None
        # By position and token: after a lost lease this worker may have the same tuple a second time.
        self._running: dict[tuple[int, int], tuple[Claim, anyio.CancelScope]] = {}
        self._ends = _EndWriter(lambda ends: self.ask(lambda: self.store.acknowledge(*ends)))
        self.further_steps = 0
        """Steps that run beside another one of the same tuple."""
        self._stop = threading.Event()
        self._finished = anyio.Event()
        self._told = anyio.Event()

    @property
    def failed(self) -> int:
        """The number of tuples that this worker ended as failed."""
        return self._failed

    @property
    def running(self) -> int:
        """The number of running tuples."""
        return len(self._running)

    @property
    def places(self) -> int:
        """The number of further steps that may begin."""
        return max(0, self.concurrency - len(self._running) - self.further_steps)

    @property
    def is_held_up(self) -> bool:
        """Whether the worker starts nothing at the moment, because something that steps need does not work."""
        return self._store_outage is not None or bool(self.runs and all(r.yool in self._outages for r in self.runs))

    @property
    def draining(self) -> bool:
        return self._told.is_set()

    def drain(self) -> None:
        """Claim nothing more; `run` returns when the running tuples have ended. A second call gives the running tuples back."""
        if self.draining:
            for _, scope in self._running.values():
                scope.cancel()
        self._stop.set()
        self._told.set()
        self._finished.set()

    async def run(self, *, until: Callable[[], bool | Awaitable[bool]] = lambda: False) -> None:
        """Work until `drain` is called, or until nothing runs and ``until`` is true.

        Raises `DefinitionError` for a mistake with which every step of a yool would fail, and `SandboxMissing` if this machine
        has none. The tuples wait then.
        """
        if not tracing.prepared():
            await anyio.to_thread.run_sync(tracing.prepare)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._heartbeats)
            try:
                await self._claim_loop(tasks, until)
            finally:
                self._stop.set()
                if self.draining:
                    while self._running:
                        self._finished = anyio.Event()
                        await self._finished.wait()
                tasks.cancel_scope.cancel()
                with anyio.CancelScope(shield=True):
                    await self._sign_off()
        if self._mistake is not None:
            raise self._mistake

    async def ask(self, action: Callable[[], _T], *, until_told: bool = False) -> _T | None:
        """Run an action on the store. While the store cannot be read or written, report it and try again without end.

        ``until_told``: the action is not needed once the worker was told to stop; then it returns None.
        """
        outage: Outage | None = None
        while True:
            try:
                result = await run_in_thread(action)
            except (LeaseLost, SpaceFull):
                raise
            except SpaceError as error:
                outage = outage or Outage()
                # Not longer than between two heartbeats, or the leases would end although the store works again.
                pause = min(outage.failed(str(error)), self.lease_s / 3)
                if self._store_outage is None:
                    self._store_outage = outage
                    self._notice(f"{error}. This worker waits and tries again")
                if until_told and self.draining:
                    return None
                with anyio.move_on_after(pause):
                    await (self._told.wait() if until_told else anyio.sleep_forever())
            else:
                if self._store_outage is not None:
                    self._notice(f"the tuple-space works again after {self._store_outage.lasts_s:.0f} s")
                    self._store_outage = None
                return result

    async def _claim_loop(self, tasks: anyio.abc.TaskGroup, until: Callable[[], bool | Awaitable[bool]]) -> None:
        while not self.draining:
            free = self.places
            if free and self.disk is not None and not await self._has_space(self.disk):
                free = 0
            claims = await self._claim(free) if free else []
            for claim in claims:
                self._outages.probe(claim, begins=True)
            if self._stop.is_set():
                # `drain` was called while the store was asked.
                for claim in claims:
                    await self._give_back(claim)
                return
            for claim in claims:
                scope = anyio.CancelScope()
                self._running[claim.position, claim.token] = (claim, scope)
                tasks.start_soon(self._work, claim, scope)
            if claims:
                continue
            if not self._running and await self._is_over(until):
                return
            await self._wait_for_change(free)

    async def _is_over(self, until: Callable[[], bool | Awaitable[bool]]) -> bool:
        try:
            over = until()
            return over if isinstance(over, bool) else await over
        except SpaceError as error:
            self._notice(f"{error}. This worker waits and tries again")
            await anyio.sleep(pause_s(0))
            return False

    async def has_work(self) -> bool:
        """Whether a tuple waits, perhaps in a pause, that this worker can run."""
        return bool(await self.ask(lambda: self.store.runnable(self.pattern, self.runs), until_told=True))

    async def _has_space(self, disk: DiskFloor) -> bool:
        """Whether the disk has enough space. When it no longer has, put one tuple that asks for help."""
        if disk.look():
            await self.ask(lambda: self.store.put([disk.call_for_help(self.name)]), until_told=True)
        return not disk.is_low

    async def _claim(self, count: int) -> list[Claim]:
        """Claim runnable tuples. For yools with an outage, claim one tuple as a test when it is time."""
        runs = [each for each in self.runs if self._outages.may_start(each.yool)]
        if not runs:
            return []
        most = 1 if any(each.yool in self._outages for each in runs) else count

        def claim() -> list[Claim]:
            if self._store_outage is not None and self._running:
                # Its own leases have ended meanwhile. Without this, it would take its own tuples a second time.
                self.store.extend([each for each, _ in list(self._running.values())], self.lease_s)
            return self.store.claim(self.pattern, self.name, lease_s=self.lease_s, count=most, runs=runs)

        return await self.ask(claim, until_told=True) or []

    async def _wait_for_change(self, free: int) -> None:
        """Wait until a tuple has ended here, or, if there are free places, until the store has changed."""
        self._finished = anyio.Event()

        async def watch(stop: threading.Event) -> None:
            if free:
                patience = max(0.01, min([_LOOK_S, *self._outages.next_test_in_s()]))
                await anyio.to_thread.run_sync(self.store.wait, patience, stop, abandon_on_cancel=True)
                self._finished.set()
            elif self.disk is not None and self.disk.is_low:
                await anyio.sleep(_LOOK_S)
                self._finished.set()

        stop = threading.Event()
        async with anyio.create_task_group() as waiting:
            waiting.start_soon(watch, stop)
            await self._finished.wait()
            stop.set()
            waiting.cancel_scope.cancel()

    async def _heartbeats(self) -> None:
        while True:
            await self._announce()
            await anyio.sleep(self.lease_s / 3)
            running = list(self._running.values())
            if not running:
                continue
            claims = [claim for claim, _ in running]
            held = await self.ask(lambda claims=claims: self.store.extend(claims, self.lease_s)) or ()  # type: ignore[misc]
            for (_, scope), holds in zip(running, held, strict=True):
                if not holds:
                    scope.cancel()

    async def _announce(self) -> None:
        """Store a sign of life with the runnable yools and current problems. A failure is ignored."""
        lane = self.pattern.lane
        if lane is None:
            return
        troubles = [f"{name}: {out.reason}" for name, out in self._outages.by_yool.items()]
        if self.disk is not None and self.disk.is_low:
            troubles.append("the disk has too little free space")
        try:
            await run_in_thread(lambda: self.store.announce(self.entry("; ".join(troubles) or None), self.lease_s))
            self._unseen = 0
        except SpaceError as error:
            self._unseen += 1
            if self._unseen == _SIGNS and self._store_outage is None:
                self._notice(f"others cannot see this worker: {error}")

    def entry(self, trouble: str | None = None) -> WorkerEntry:
        """This worker as an entry in the store."""
        return WorkerEntry(worker=self.name, lane=self.pattern.lane or "", runs=self.runs, trouble=trouble)

    async def _sign_off(self) -> None:
        """Remove this worker's entry from the store. If that fails, its last sign of life expires by itself."""
        lane = self.pattern.lane
        if lane is not None and self._store_outage is None:
            try:
                await run_in_thread(lambda: self.store.leave(self.name, lane))
            except SpaceError as error:
                _log.debug("%s", error)

    async def works(self, yool: str) -> None:
        """Note that the outage of a yool is over."""
        outage = self._outages.works(yool)
        if outage is not None:
            self._notice(f"{yool} works again after {outage.lasts_s:.0f} s")
            self._finished.set()
            await self._announce()

    async def _note_outage(self, yool: str, reason: str) -> float:
        """Note that a step failed for a reason that applies to all steps of its yool. Returns the pause."""
        pause, is_news = self._outages.failed(yool, reason)
        if is_news:
            self._notice(
                f"{yool} does not work: {reason}. It is tried again in {pause:.0f} s, and nothing else is started"
            )
            await self._announce()
        return pause

    async def _work(self, claim: Claim, scope: anyio.CancelScope) -> None:
        ended, trace = (
            Ended(claim=claim, receipt=None, again="the work was stopped", tried=False),
            spans.trace_of(claim),
        )
        try:
            with scope, spans.attempt(claim, trace, self.name) as span:
                ended = await self._run_tuple(claim, trace)
                spans.ended(
                    span, exit=int(ended.failed is not None or ended.receipt is None), error=ended.failed or ended.again
                )
            with anyio.CancelScope(shield=True):
                if scope.cancelled_caught:
                    await self._give_back(claim)
        except LeaseLost as lost:
            ended = Ended(claim=claim, receipt=None, again=str(lost), tried=False)
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True):
                await self._give_back(claim)
            raise
        finally:
            del self._running[claim.position, claim.token]
            self._outages.probe(claim, begins=False)
            self._failed += ended.failed is not None
            self._finished.set()
            self._ended(ended)

    async def _give_back(self, claim: Claim) -> None:
        """Release a tuple that nobody tried to the end. If the lease is lost, another worker has it already."""
        try:
            await run_in_thread(lambda: self.store.release(claim, "the worker stopped", counts=False))
        except SpaceError:
            return

    async def _run_tuple(self, claim: Claim, trace: Trace | None) -> Ended:
        attempt = Attempt(self, claim, trace)
        most = self.policy.limit(claim.work.terms).max_retries
        retries = most if isinstance(most, int) else DEFAULT_RETRIES
        await attempt.look_back()
        if claim.attempt > retries + 1:
            return await self._end(attempt, f"{_attempts(claim.attempt - 1)} did not end: workers stopped or died")
        await attempt.run()
        if (reason := attempt.why_failed) is not None:
            return await self._end(attempt, reason)
        if not attempt.failures:
            return await self._end(attempt, None)
        running, failure = attempt.failures[0]
        delay, reason, counts = pause_s(claim.attempt - 1), storable(str(failure), shapes=True), failure.tried
        beside = [each for each, _ in self._running.values()]
        if failure.mistake and not self._outages.has_worked(running):
            counts = False
            if self._mistake is None:
                told, kind = f"{running} would fail for every tuple: {reason}", type(failure.__cause__)
                self._mistake = SandboxMissing(told) if kind is SandboxMissing else DefinitionError(told)
                self.drain()
                self.drain()
        elif (cause := self._outages.cause(claim, running, failure, attempt.clock, beside)) == "outage":
            delay = await self._note_outage(running, reason)
            # Another step of the yool may have ended well meanwhile, and with it the outage.
            counts = self._outages.is_long(running)
        elif cause == "unknown":
            counts = False
        if counts and claim.attempt > retries:
            return await self._end(attempt, f"{_attempts(claim.attempt)} failed; the last: {reason}")
        await self.ask(lambda: self.store.release(claim, reason, delay_s=delay, counts=counts))
        return Ended(claim=claim, receipt=None, again=reason, tried=counts)

    async def _end(self, attempt: Attempt, failed: str | None) -> Ended:
        self._outages.ended(attempt.claim.work.id)
        end = attempt.end(failed)
        await self._ends.write(end)
        return Ended(claim=attempt.claim, receipt=end.receipt, failed=failed, reused=attempt.reused)


def _attempts(count: int) -> str:
    return "1 attempt" if count == 1 else f"{count} attempts"


class _EndWriter:
    """Stores the ends of tuples. Those that end while the store writes are written together, which costs one flush.

    ``store`` returns for each end whether its lease still held.
    """

    def __init__(self, store: Callable[[Sequence[End]], Awaitable[Sequence[bool] | None]]) -> None:
        self._store = store
        self._waiting: list[End] = []
        self._lost: set[int] = set()
        self._storing = anyio.Lock()

    async def write(self, end: End) -> None:
        """Store the end of a tuple. Raises `LeaseLost`."""
        self._waiting.append(end)
        try:
            async with self._storing:
                if any(each is end for each in self._waiting):
                    ends, self._waiting = self._waiting, []
                    try:
                        held = await self._store(ends) or ()
                    except BaseException:
                        # The others try it themselves.
                        self._waiting[:0] = [each for each in ends if each is not end]
                        raise
                    self._lost |= {id(each) for each, holds in zip(ends, held, strict=True) if not holds}
        finally:
            self._waiting = [each for each in self._waiting if each is not end]
        if id(end) in self._lost:
            self._lost.remove(id(end))
            raise LeaseLost(
                f"the lease of tuple {end.claim.work.id} ended before this worker answered; another worker may have the tuple"
            )
