"""Worker: claims tuples of a lane, runs their steps, and answers each tuple with one receipt.

A worker that stops, is killed or is cut off loses its leases, and another worker goes on after the last finished step.
An outage (of the store, of a model, of a disk) ends no worker: it waits, tries again with longer and longer pauses, and says so.
"""

from __future__ import annotations

import datetime
import errno
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import anyio
import anyio.abc
import anyio.to_thread
import msgspec

from cantrip_acp.core.errors import DefinitionError, SandboxMissing
from cantrip_acp.telemetry import tracing
from cantrip_acp.tuplespace.budget import Budget
from cantrip_acp.tuplespace.errors import LeaseLost, SpaceError, SpaceFull
from cantrip_acp.tuplespace.guardrails import DiskFloor
from cantrip_acp.tuplespace.monitoring import spans
from cantrip_acp.tuplespace.receipts import add_costs, is_genuine, make_receipt
from cantrip_acp.tuplespace.retention import is_large, split_result
from cantrip_acp.tuplespace.space import run_in_thread
from cantrip_acp.tuplespace.stores.base import Claim, End, TupleStore, WorkerEntry
from cantrip_acp.tuplespace.tuples import Pattern, Runnable, WorkTuple, now_iso, parse_time

if TYPE_CHECKING:
    from cantrip_acp.telemetry.tracing import Trace

DEFAULT_RETRIES = 2
_BACKOFF_S = (1.0, 60.0)
"""The first and the longest pause before another attempt; it doubles each time."""
_LOOK_S = 2.0
_OUTAGE_S = 3600.0
"""How long an outage may last before attempts during it count."""
_SIGNS = 2
"""After so many signs of life that could not be given, while the store works otherwise, a worker says that nobody sees it."""
_OF_THE_MACHINE = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EFBIG}
)
"""Errors of the system that say nothing about the tuple during which they came: full disks, no more memory or files."""

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
Save = Callable[[Mapping[str, Any]], Awaitable[Budget | None]]


async def _forget(progress: Mapping[str, Any]) -> Budget | None:
    """Keep no progress."""
    return None


class StepCall(msgspec.Struct, frozen=True, kw_only=True):
    """What a yool gets."""

    yool: str
    args: Mapping[str, Any]
    tuple_id: str
    position: Mapping[str, Any]
    """The tuple's ``map_pos``."""
    left_usd: float | None
    """What is left of the tuple's budget; None if there is no budget."""
    left_tokens: int | None
    left_s: float | None
    """Seconds to the tuple's deadline."""
    lane: str = ""
    """The tuple's lane."""
    cpu_percent: int = 100
    """Processor time that what the step starts may use, in per cent of one processor."""
    disk_mb: float | None = None
    """MB that the step may write to disks."""
    trace: Trace | None = None
    """The trace of who put the tuple. Spans of the yool are children of the step's."""
    progress: Mapping[str, Any] | None = None
    """What an attempt that did not end saved with ``save`` last. None if there was none."""
    save: Save = _forget
    """Stores the progress of this step, for `progress` and for those who watch. ``cost`` in it is the cost so far.

    Returns the budget that the tuple shares with others, if there is one. If it is spent, stop.
    """


class StepResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a yool returns. ``exit`` is 0 for success; any other number ends the tuple without another attempt."""

    exit: int = 0
    result: Any = None
    error: str | None = None
    cost: Mapping[str, Any] = {}
    artifacts: Sequence[Mapping[str, Any]] = ()
    children: Sequence[WorkTuple] = ()
    """Tuples that are put when this one ends, in the same transaction. Only for a step that is its tuple's only one."""


class StepFailed(Exception):
    """A step failed in a way that may not happen again. The worker tries again later.

    ``tried`` is False if nothing was tried yet: then the attempt does not count. ``outage`` is True if the reason is not the
    tuple: what all steps of this yool need is missing, for example without network. Then the worker starts no other step of
    this yool until one attempt succeeds, and attempts do not count. With ``perhaps``, it may be the tuple or an outage, such
    as after a server's error 500: it is an outage once another tuple fails, too. ``mistake`` is True if every step of this
    yool would fail in the same way, such as with a wrong key: a worker that has never got on with this yool ends.
    """

    def __init__(
        self, message: str, *, tried: bool = True, outage: bool = False, perhaps: bool = False, mistake: bool = False
    ) -> None:
        super().__init__(message)
        self.tried = tried
        self.outage = outage or mistake
        self.perhaps = perhaps
        self.mistake = mistake


Yool = Callable[[StepCall], Awaitable[StepResult]]


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """A tuple that this worker ended, or gave back for another attempt (``again``).

    ``tried``: whether the attempt came to an end of its own. One that was stopped did not, nor one that waits for something else.
    """

    claim: Claim
    receipt: Mapping[str, Any] | None
    failed: str | None = None
    again: str | None = None
    tried: bool = True


class _Outage:
    """Something that does not work, since when, and when it is tried again."""

    def __init__(self) -> None:
        self.since = time.monotonic()
        self.tries = 0
        self.next_at = 0.0
        self.reason = ""
        self.probing = False

    def failed(self, reason: str) -> float:
        """Note a failure, and return the pause before the next attempt."""
        first, longest = _BACKOFF_S
        pause = min(longest, first * 2.0 ** min(self.tries, 30))
        self.tries += 1
        self.reason, self.next_at, self.probing = reason, time.monotonic() + pause, False
        return pause

    @property
    def is_due(self) -> bool:
        return not self.probing and time.monotonic() >= self.next_at

    @property
    def lasts_s(self) -> float:
        return time.monotonic() - self.since


def runnables(yools: Mapping[str, Yool]) -> tuple[Runnable, ...]:
    """What yools can run. A yool may say what it needs of a step's arguments: ``needs`` and ``without`` of `Runnable`."""
    return tuple(
        Runnable(yool=name, needs=getattr(yool, "needs", {}), without=getattr(yool, "without", ()))
        for name, yool in yools.items()
    )


class Worker:
    """Runs tuples that match a pattern, at most ``concurrency`` at once, and only those that it can run in full.

    ``yools`` maps names to functions. ``ended`` is called after each attempt, ``notice`` with remarks for people.
    ``runs`` is what the worker can run (`runnables` of the yools by default).
    ``cpu_percent`` is the most that a step may use of one processor. While ``disk`` has too little space, nothing is claimed.
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
    ) -> None:
        self.cpu_percent = cpu_percent
        self.disk = disk
        self.store = store
        self.pattern = pattern
        self.yools = yools
        self.name = name
        self.concurrency = concurrency
        self.lease_s = lease_s
        self.runs = runnables(yools) if runs is None else tuple(runs)
        self._ended = ended
        self._notice = notice
        self._outages: dict[str, _Outage] = {}
        """By yool."""
        self._store_outage: _Outage | None = None
        self._unseen = 0
        """How many signs of life in a row could not be given."""
        self._answered_at: dict[str, float] = {}
        """By yool, when one of its steps last showed that what it needs works."""
        self._failed_since: dict[str, dict[str, float]] = {}
        """By yool, the tuples that failed, perhaps by an outage, and when they did so last."""
        self._failed = 0
        self._mistake: DefinitionError | SandboxMissing | None = None
        # By position and token: after a lost lease this worker may have the same tuple a second time.
        self._running: dict[tuple[int, int], tuple[Claim, anyio.CancelScope]] = {}
        self._draining = False
        self._ends: list[End] = []
        self._lost: set[int] = set()
        self._children: dict[tuple[int, int], Sequence[WorkTuple]] = {}
        self._storing = anyio.Lock()
        self._stop = threading.Event()
        self._finished = anyio.Event()
        self._told = anyio.Event()

    @property
    def failed(self) -> int:
        """How many tuples this worker ended as failed."""
        return self._failed

    @property
    def running(self) -> int:
        """How many tuples are being worked on."""
        return len(self._running)

    @property
    def is_held_up(self) -> bool:
        """Whether nothing is started at the moment, because something that the steps need does not work."""
        return self._store_outage is not None or bool(self.runs and all(r.yool in self._outages for r in self.runs))

    @property
    def draining(self) -> bool:
        """Whether `drain` was called."""
        return self._draining

    def drain(self) -> None:
        """Claim nothing more; `run` returns when what runs has ended. A second call gives back what runs."""
        if self._draining:
            for _, scope in self._running.values():
                scope.cancel()
        self._draining = True
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
                if self._draining:
                    while self._running:
                        self._finished = anyio.Event()
                        await self._finished.wait()
                tasks.cancel_scope.cancel()
                with anyio.CancelScope(shield=True):
                    await self._sign_off()
        if self._mistake is not None:
            raise self._mistake

    async def _ask(self, action: Callable[[], _T], *, until_told: bool = False) -> _T | None:
        """Do something with the store. While the store cannot be read or written, say so and try again, for ever.

        ``until_told`` is for what is not needed any more once the worker was told to stop; then it returns None.
        """
        outage: _Outage | None = None
        while True:
            try:
                result = await run_in_thread(action)
            except (LeaseLost, SpaceFull):
                raise
            except SpaceError as error:
                outage = outage or _Outage()
                # Not longer than between two heartbeats, or the leases would end although the store works again.
                pause = min(outage.failed(str(error)), self.lease_s / 3)
                if self._store_outage is None:
                    self._store_outage = outage
                    self._notice(f"{error}. This worker waits and tries again")
                if until_told and self._draining:
                    return None
                with anyio.move_on_after(pause):
                    await (self._told.wait() if until_told else anyio.sleep_forever())
            else:
                if self._store_outage is not None:
                    self._notice(f"the tuple-space works again after {self._store_outage.lasts_s:.0f} s")
                    self._store_outage = None
                return result

    async def _claim_loop(self, tasks: anyio.abc.TaskGroup, until: Callable[[], bool | Awaitable[bool]]) -> None:
        while not self._draining:
            free = self.concurrency - len(self._running)
            if free and self.disk is not None and not await self._has_space(self.disk):
                free = 0
            claims = await self._claim(free) if free else []
            for claim in claims:
                for step in claim.work.payload:
                    if (outage := self._outages.get(step.yool)) is not None:
                        outage.probing = True
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
            await anyio.sleep(_BACKOFF_S[0])
            return False

    async def has_work(self) -> bool:
        """Whether a tuple waits that this worker can run, perhaps after a pause."""
        return bool(await self._ask(lambda: self.store.runnable(self.pattern, self.runs), until_told=True))

    async def _has_space(self, disk: DiskFloor) -> bool:
        """Whether there is room on the disk. When it becomes too little, a tuple asks for help, once."""
        if disk.look():
            await self._ask(lambda: self.store.put([disk.call_for_help(self.name)]), until_told=True)
        return not disk.is_low

    async def _claim(self, count: int) -> list[Claim]:
        """Claim what can be run now. Of yools with an outage, one tuple is tried when it is time."""
        runs = [each for each in self.runs if (out := self._outages.get(each.yool)) is None or out.is_due]
        if not runs:
            return []
        most = 1 if any(each.yool in self._outages for each in runs) else count

        def claim() -> list[Claim]:
            if self._store_outage is not None and self._running:
                # Its own leases have ended meanwhile. Without this, it would take its own tuples a second time.
                self.store.extend([each for each, _ in list(self._running.values())], self.lease_s)
            return self.store.claim(self.pattern, self.name, lease_s=self.lease_s, count=most, runs=runs)

        return await self._ask(claim, until_told=True) or []

    async def _wait_for_change(self, free: int) -> None:
        """Wait until a tuple has ended here, or, with free places, until the store has changed."""
        self._finished = anyio.Event()

        async def watch(stop: threading.Event) -> None:
            if free:
                due = [out.next_at - time.monotonic() for out in self._outages.values() if not out.probing]
                patience = max(0.01, min([_LOOK_S, *due]))
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
            held = await self._ask(lambda claims=claims: self.store.extend(claims, self.lease_s)) or ()  # type: ignore[misc]
            for (_, scope), holds in zip(running, held, strict=True):
                if not holds:
                    scope.cancel()

    async def _announce(self) -> None:
        """Tell others that this worker is there, what it can run, and what is wrong. It works without that, too."""
        lane = self.pattern.lane
        if lane is None:
            return
        troubles = [f"{name}: {out.reason}" for name, out in self._outages.items()]
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
        """This worker as others see it."""
        return WorkerEntry(worker=self.name, lane=self.pattern.lane or "", runs=self.runs, trouble=trouble)

    async def _sign_off(self) -> None:
        """Tell others that this worker ends. If that fails, its last sign of life ends by itself."""
        lane = self.pattern.lane
        if lane is not None and self._store_outage is None:
            try:
                await run_in_thread(lambda: self.store.leave(self.name, lane))
            except SpaceError as error:
                _log.debug("%s", error)

    async def _works(self, yool: str) -> None:
        """Note that what a yool needs works."""
        self._answered_at[yool] = time.monotonic()
        outage = self._outages.pop(yool, None)
        if outage is not None:
            self._notice(f"{yool} works again after {outage.lasts_s:.0f} s")
            self._finished.set()
            await self._announce()

    async def _note_outage(self, yool: str, reason: str) -> float:
        """Note that a step failed for a reason that holds for all steps of its yool. Returns the pause."""
        outage = self._outages.get(yool)
        if outage is None:
            outage = self._outages[yool] = _Outage()
        elif not outage.probing and not outage.is_due:
            # It began before the outage was known.
            return max(0.0, outage.next_at - time.monotonic())
        pause = outage.failed(reason)
        self._notice(f"{yool} does not work: {reason}. It is tried again in {pause:.0f} s, and nothing else is started")
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
            self._end_probe(claim)
            self._failed += ended.failed is not None
            self._finished.set()
            self._ended(ended)

    def _end_probe(self, claim: Claim) -> None:
        """An attempt that told nothing about an outage: another one may."""
        for step in claim.work.payload:
            if (outage := self._outages.get(step.yool)) is not None:
                outage.probing = False

    async def _give_back(self, claim: Claim) -> None:
        """Release a tuple that nobody tried to the end. If the lease is lost, another worker has it already."""
        try:
            await run_in_thread(lambda: self.store.release(claim, "the worker stopped", counts=False))
        except SpaceError:
            return

    async def _run_tuple(self, claim: Claim, trace: Trace | None) -> Ended:
        work, started, clock = claim.work, now_iso(), time.monotonic()
        running = work.payload[0].yool
        retries = work.terms.max_retries if isinstance(work.terms.max_retries, int) else DEFAULT_RETRIES
        done = await self._earlier_receipts(claim)
        try:
            if claim.attempt > retries + 1:
                return await self._end(
                    claim, started, done, f"{_attempts(claim.attempt - 1)} did not end: workers stopped or died"
                )
            for group in work.step_groups():
                for index in group:
                    if index in done:
                        continue
                    running = work.payload[index].yool
                    with spans.step(claim, trace, index) as span:
                        receipt = await self._run_step(claim, index, list(done.values()), trace)
                        spans.ended(span, exit=receipt["exit"], error=receipt.get("error"), cost=receipt["cost"])
                    done[index] = receipt
                    if receipt["exit"]:
                        reason = receipt.get("error") or f"exit {receipt['exit']}"
                        return await self._end(
                            claim, started, done, f"step {index + 1} ({receipt['yool']}) failed: {reason}"
                        )
                    if len(work.payload) > 1:
                        await self._ask(lambda at=index, made=receipt: self.store.save_step(claim, at, made))  # type: ignore[misc]
        except StepFailed as failure:
            first, longest = _BACKOFF_S
            delay, reason, counts = min(longest, first * 2.0 ** min(claim.attempt - 1, 30)), str(failure), failure.tried
            if failure.mistake and running not in self._answered_at:
                counts = False
                if self._mistake is None:
                    told, kind = f"{running} would fail for every tuple: {reason}", type(failure.__cause__)
                    self._mistake = SandboxMissing(told) if kind is SandboxMissing else DefinitionError(told)
                    self.drain()
                    self.drain()
            elif (cause := self._cause(claim, running, failure, clock)) == "outage":
                delay = await self._note_outage(running, reason)
                counts = self._outages[running].lasts_s > _OUTAGE_S
            elif cause == "unknown":
                counts = False
            if counts and claim.attempt > retries:
                return await self._end(claim, started, done, f"{_attempts(claim.attempt)} failed; the last: {failure}")
            await self._ask(lambda: self.store.release(claim, reason, delay_s=delay, counts=counts))
            return Ended(claim=claim, receipt=None, again=reason, tried=counts)
        return await self._end(claim, started, done, None)

    def _cause(
        self, claim: Claim, yool: str, failure: StepFailed, began: float
    ) -> Literal["tuple", "outage", "unknown"]:
        """Whether a step failed because of its tuple, or because of something that all steps of the yool need."""
        if not failure.outage and not failure.perhaps:
            return "tuple"
        failed = self._failed_since.setdefault(yool, {})
        before = failed.get(claim.work.id, began)
        failed[claim.work.id] = time.monotonic()
        answered = self._answered_at.get(yool, 0.0)
        if answered >= before:
            # Others got an answer since this tuple began, or since it failed before.
            return "tuple"
        if failure.outage or any(at > answered for work, at in failed.items() if work != claim.work.id):
            return "outage"
        others = (other for other, _ in self._running.values() if other is not claim)
        return "unknown" if any(step.yool == yool for other in others for step in other.work.payload) else "tuple"

    async def _earlier_receipts(self, claim: Claim) -> dict[int, dict[str, Any]]:
        """The receipts of steps that earlier attempts finished."""
        if claim.attempt == 1:
            return {}
        stored = await self._ask(lambda: self.store.receipts(claim.work.id)) or ()
        return {each.step: each.document for each in stored if each.step is not None and is_genuine(each.document)}

    async def _run_step(
        self, claim: Claim, index: int, done: Sequence[Mapping[str, Any]], trace: Trace | None
    ) -> dict[str, Any]:
        work, step, started, clock = claim.work, claim.work.payload[index], now_iso(), time.monotonic()

        def receipt(result: StepResult) -> dict[str, Any]:
            cost = {**result.cost, "wall_ms": round((time.monotonic() - clock) * 1000)}
            return make_receipt(
                yool=step.yool, tuple_id=work.id, started_at=started, ended_at=now_iso(), exit=result.exit, cost=cost,
                result=result.result, error=result.error, artifacts=result.artifacts,
            )  # fmt: skip

        yool = self.yools[step.yool]
        terms, spent = work.terms, add_costs([each["cost"] for each in done])
        left_usd = float(terms.budget_usd) - (spent["usd"] or 0) if isinstance(terms.budget_usd, int | float) else None
        used = (spent["tokens_in"] or 0) + (spent["tokens_out"] or 0)
        left_tokens = terms.budget_tokens - used if isinstance(terms.budget_tokens, int) else None
        left_s = _seconds_left(terms.deadline_iso) if isinstance(terms.deadline_iso, str) else None
        for left, what in ((left_usd, "budget_usd"), (left_tokens, "budget_tokens"), (left_s, "deadline_iso")):
            if left is not None and left <= 0:
                return receipt(StepResult(exit=75, error=f"nothing is left of the tuple's {what}"))

        so_far: Mapping[str, Any] = {}

        async def save(progress: Mapping[str, Any]) -> Budget | None:
            nonlocal so_far
            if "cost" in progress:
                so_far = progress["cost"]
                await self._works(step.yool)
            return await self._ask(lambda: self.store.save_progress(claim, {**progress, "step": index}))

        progress = claim.progress if claim.progress is not None and claim.progress.get("step") == index else None
        call = StepCall(
            yool=step.yool,
            args=step.args or {},
            tuple_id=work.id,
            lane=work.lane,
            position=work.map_pos or {},
            left_usd=left_usd,
            left_tokens=left_tokens,
            left_s=left_s,
            cpu_percent=min(self.cpu_percent, terms.cpu_quota_pct if isinstance(terms.cpu_quota_pct, int) else 100),
            disk_mb=float(terms.disk_quota_mb) if isinstance(terms.disk_quota_mb, int | float) else None,
            trace=trace,
            progress=progress,
            save=save,
        )
        with anyio.move_on_after(left_s) as limit:
            try:
                result = await yool(call)
            except (StepFailed, SpaceError):
                raise
            except Exception as error:  # noqa: BLE001 - whatever it is, the other tuples go on
                if is_of_the_machine(error):
                    raise StepFailed(str(error), outage=True) from None
                raise _fault(step.yool, error) from None
            if not result.exit:
                await self._works(step.yool)
            if result.children and len(work.payload) > 1:
                return receipt(
                    StepResult(exit=64, error=f"{step.yool} puts tuples, so it must be its tuple's only step")
                )
            self._children[claim.position, claim.token] = result.children
            if is_large(result.result):
                inline, artifacts = await self._ask(lambda: split_result(self.store, result.result)) or (None, [])
                result = msgspec.structs.replace(result, result=inline, artifacts=[*result.artifacts, *artifacts])
            return receipt(result)
        assert limit.cancelled_caught
        return receipt(StepResult(exit=75, error="the tuple's deadline_iso came while the step ran", cost=so_far))

    async def _cost_of_unfinished_step(self, tuple_id: str) -> Mapping[str, Any]:
        stored = await self._ask(lambda: self.store.get(tuple_id))
        cost = stored.progress.get("cost") if stored is not None and stored.progress is not None else None
        return cost if isinstance(cost, Mapping) else {}

    async def _end(
        self, claim: Claim, started: str, done: Mapping[int, Mapping[str, Any]], failed: str | None
    ) -> Ended:
        """Acknowledge with the only step's receipt, or with one that sums the steps up."""
        work = claim.work
        if len(work.payload) == 1 and done:
            receipt = dict(done[0])
        else:
            steps = [done[index] for index in sorted(done)]
            costs = [each["cost"] for each in steps]
            if failed is not None and len(done) < len(work.payload):
                costs.append(await self._cost_of_unfinished_step(work.id))
            receipt = make_receipt(
                yool="tuple.end",
                tuple_id=work.id,
                started_at=started,
                ended_at=now_iso(),
                exit=0 if failed is None else 1,
                cost=add_costs(costs),
                error=failed,
                steps=[each["id"] for each in steps],
            )
        for each in self._failed_since.values():
            each.pop(work.id, None)
        children = self._children.pop((claim.position, claim.token), ())
        await self._acknowledge(
            End(claim=claim, receipt=receipt, failed=failed, children=children if not failed else ())
        )
        return Ended(claim=claim, receipt=receipt, failed=failed)

    async def _acknowledge(self, end: End) -> None:
        """Store the end of a tuple. Tuples that end while the store writes are written together, which costs one flush."""
        self._ends.append(end)
        try:
            async with self._storing:
                if any(each is end for each in self._ends):
                    ends, self._ends = self._ends, []
                    try:
                        held = await self._ask(lambda: self.store.acknowledge(*ends)) or ()
                    except BaseException:
                        # The others try it themselves.
                        self._ends[:0] = [each for each in ends if each is not end]
                        raise
                    self._lost |= {id(each) for each, holds in zip(ends, held, strict=True) if not holds}
        finally:
            self._ends = [each for each in self._ends if each is not end]
        if id(end) in self._lost:
            self._lost.remove(id(end))
            raise LeaseLost(
                f"the lease of tuple {end.claim.work.id} ended before this worker answered; another worker may have the tuple"
            )


def is_of_the_machine(error: BaseException) -> bool:
    """Whether the cause of an error is a full disk or the like, which says nothing about the tuple during which it came."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.errno in _OF_THE_MACHINE:
            return True
        seen = seen.__cause__ or seen.__context__
    return False


def _fault(yool: str, error: Exception) -> StepFailed:
    """A bug in a yool fails its own tuple and no other. The log has the traceback."""
    _log.error("a bug in the yool %s", yool, exc_info=error)
    return StepFailed(f"a bug: {type(error).__name__}: {error}")


def _attempts(count: int) -> str:
    return "1 attempt" if count == 1 else f"{count} attempts"


def _seconds_left(deadline: str) -> float:
    time_ = parse_time(deadline)
    assert time_ is not None
    return (time_ - datetime.datetime.now(datetime.UTC)).total_seconds()
