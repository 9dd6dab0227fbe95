"""Worker: claims tuples of a lane, runs their steps, and answers each tuple with one receipt.

A worker that stops, is killed or is cut off loses its leases, and another worker goes on after the last finished step.
"""

from __future__ import annotations

import datetime
import difflib
import math
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import anyio
import anyio.abc
import anyio.to_thread
import msgspec

from cantrip_acp.telemetry import tracing
from cantrip_acp.tuplespace.budget import Budget
from cantrip_acp.tuplespace.errors import LeaseLost, SpaceError
from cantrip_acp.tuplespace.guardrails import DiskFloor
from cantrip_acp.tuplespace.monitoring import spans
from cantrip_acp.tuplespace.receipts import add_costs, is_genuine, make_receipt
from cantrip_acp.tuplespace.retention import is_large, split_result
from cantrip_acp.tuplespace.space import run_in_thread
from cantrip_acp.tuplespace.stores.base import Claim, End, TupleStore
from cantrip_acp.tuplespace.tuples import Pattern, WorkTuple, now_iso, parse_time

if TYPE_CHECKING:
    from cantrip_acp.telemetry.tracing import Trace

DEFAULT_RETRIES = 2
_BACKOFF_S = (1.0, 60.0)
"""The first and the longest pause before another attempt; it doubles each time."""
_LOOK_S = 2.0


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
    """A step failed in a way that may not happen again, for example without network. The worker tries again later.

    ``tried`` is False if nothing was tried yet: then the attempt does not count.
    """

    def __init__(self, message: str, *, tried: bool = True) -> None:
        super().__init__(message)
        self.tried = tried


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


class Worker:
    """Runs tuples that match a pattern, at most ``concurrency`` at once.

    ``yools`` maps names to functions. ``ended`` is called after each attempt. Errors of the store end `run`.
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
    ) -> None:
        self.cpu_percent = cpu_percent
        self.disk = disk
        self.store = store
        self.pattern = pattern
        self.yools = yools
        self.name = name
        self.concurrency = concurrency
        self.lease_s = lease_s
        self._ended = ended
        # By position and token: after a lost lease this worker may have the same tuple a second time.
        self._running: dict[tuple[int, int], tuple[Claim, anyio.CancelScope]] = {}
        self._draining = False
        self._ends: list[End] = []
        self._lost: set[int] = set()
        self._children: dict[tuple[int, int], Sequence[WorkTuple]] = {}
        self._storing = anyio.Lock()
        self._stop = threading.Event()
        self._finished = anyio.Event()

    @property
    def running(self) -> int:
        """How many tuples are being worked on."""
        return len(self._running)

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
        self._finished.set()

    async def run(self, *, until: Callable[[], bool] = lambda: False) -> None:
        """Work until `drain` is called, or until nothing runs and ``until`` is true."""
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

    async def _claim_loop(self, tasks: anyio.abc.TaskGroup, until: Callable[[], bool]) -> None:
        while not self._draining:
            free = self.concurrency - len(self._running)
            if free and self.disk is not None and not await self._has_space(self.disk):
                free = 0
            claims = await self._claim(free) if free else []
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
            if not self._running and until():
                return
            await self._wait_for_change(free)

    async def _has_space(self, disk: DiskFloor) -> bool:
        """Whether there is room on the disk. When it becomes too little, a tuple asks for help, once."""
        if disk.look():
            await run_in_thread(lambda: self.store.put([disk.call_for_help(self.name)]))
        return not disk.is_low

    async def _claim(self, count: int) -> list[Claim]:
        return await run_in_thread(lambda: self.store.claim(self.pattern, self.name, lease_s=self.lease_s, count=count))

    async def _wait_for_change(self, free: int) -> None:
        """Wait until a tuple has ended here, or, with free places, until the store has changed."""
        self._finished = anyio.Event()

        async def watch(stop: threading.Event) -> None:
            if free:
                await anyio.to_thread.run_sync(self.store.wait, _LOOK_S, stop, abandon_on_cancel=True)
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
            await anyio.sleep(self.lease_s / 3)
            running = list(self._running.values())
            if not running:
                continue
            claims = [claim for claim, _ in running]
            held = await anyio.to_thread.run_sync(self.store.extend, claims, self.lease_s)
            for (_, scope), holds in zip(running, held, strict=True):
                if not holds:
                    scope.cancel()

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
            self._finished.set()
            self._ended(ended)

    async def _give_back(self, claim: Claim) -> None:
        """Release a tuple that nobody tried to the end. If the lease is lost, another worker has it already."""
        try:
            await anyio.to_thread.run_sync(lambda: self.store.release(claim, "the worker stopped", counts=False))
        except SpaceError:
            return

    async def _run_tuple(self, claim: Claim, trace: Trace | None) -> Ended:
        work, started = claim.work, now_iso()
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
                        await run_in_thread(lambda at=index, made=receipt: self.store.save_step(claim, at, made))  # type: ignore[misc]
        except StepFailed as failure:
            if failure.tried and claim.attempt > retries:
                return await self._end(claim, started, done, f"{_attempts(claim.attempt)} failed; the last: {failure}")
            first, longest = _BACKOFF_S
            delay, reason = min(longest, first * math.pow(2, claim.attempt - 1)), str(failure)
            counts = failure.tried
            await run_in_thread(lambda: self.store.release(claim, reason, delay_s=delay, counts=counts))
            return Ended(claim=claim, receipt=None, again=reason, tried=counts)
        return await self._end(claim, started, done, None)

    async def _earlier_receipts(self, claim: Claim) -> dict[int, dict[str, Any]]:
        """The receipts of steps that earlier attempts finished."""
        if claim.attempt == 1:
            return {}
        stored = await anyio.to_thread.run_sync(self.store.receipts, claim.work.id)
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

        yool = self.yools.get(step.yool)
        if yool is None:
            near = difflib.get_close_matches(step.yool, list(self.yools), 3)
            hint = f"; similar: {', '.join(near)}" if near else ""
            return receipt(StepResult(exit=127, error=f"this worker has no yool {step.yool!r}{hint}"))
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
            so_far = progress.get("cost") or so_far
            return await run_in_thread(lambda: self.store.save_progress(claim, {**progress, "step": index}))

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
            result = await yool(call)
            if result.children and len(work.payload) > 1:
                return receipt(
                    StepResult(exit=64, error=f"{step.yool} puts tuples, so it must be its tuple's only step")
                )
            self._children[claim.position, claim.token] = result.children
            if is_large(result.result):
                inline, artifacts = await run_in_thread(lambda: split_result(self.store, result.result))
                result = msgspec.structs.replace(result, result=inline, artifacts=[*result.artifacts, *artifacts])
            return receipt(result)
        assert limit.cancelled_caught
        return receipt(StepResult(exit=75, error="the tuple's deadline_iso came while the step ran", cost=so_far))

    async def _cost_of_unfinished_step(self, tuple_id: str) -> Mapping[str, Any]:
        stored = await run_in_thread(lambda: self.store.get(tuple_id))
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
                        held = await run_in_thread(lambda: self.store.acknowledge(*ends))
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


def _attempts(count: int) -> str:
    return "1 attempt" if count == 1 else f"{count} attempts"


def _seconds_left(deadline: str) -> float:
    time_ = parse_time(deadline)
    assert time_ is not None
    return (time_ - datetime.datetime.now(datetime.UTC)).total_seconds()
