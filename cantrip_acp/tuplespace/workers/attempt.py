"""One attempt at a tuple: runs its steps, in order or beside each other, within the limits of the tuple, and sums them up."""

from __future__ import annotations

import datetime
import math
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import anyio
import msgspec

from cantrip_acp.text.defaults import complete
from cantrip_acp.text.logs import logger
from cantrip_acp.text.storable import storable
from cantrip_acp.tuplespace.authority import refusal
from cantrip_acp.tuplespace.errors import SpaceError, TupleError
from cantrip_acp.tuplespace.monitoring import spans
from cantrip_acp.tuplespace.receipts import add_costs, is_genuine, make_receipt
from cantrip_acp.tuplespace.retention import is_large, split_result
from cantrip_acp.tuplespace.stores.base import Claim, End
from cantrip_acp.tuplespace.tuples import now_iso, parse_time
from cantrip_acp.tuplespace.yools.step import StepCall, StepFailed, StepResult, YoolBase, is_of_the_machine

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cantrip_acp.telemetry.tracing import Trace
    from cantrip_acp.tuplespace.budget import Budget
    from cantrip_acp.tuplespace.reuse.step_results import Reuse
    from cantrip_acp.tuplespace.stores.sql import TupleStore
    from cantrip_acp.tuplespace.tuples import WorkTuple
    from cantrip_acp.tuplespace.workers.guardrails import Policy
    from cantrip_acp.tuplespace.yools.step import Yool

_T = TypeVar("_T")

_log = logger(__name__)
_FREE = {"usd": 0.0, "tokens_in": 0, "tokens_out": 0}


class _Share(NamedTuple):
    """The share of the tuple's limits for one step. None: there is no limit."""

    usd: float | None
    tokens: int | None
    cpu: int | None
    disk: float | None

    @property
    def is_enough(self) -> bool:
        return all(each is None or each > 0 for each in self)


class Host(Protocol):
    """The part of a worker that an attempt uses."""

    store: TupleStore
    yools: Mapping[str, Yool]
    policy: Policy
    reuse: Reuse | None
    cpu_percent: int
    further_steps: int

    @property
    def places(self) -> int: ...

    async def ask(self, action: Callable[[], _T]) -> _T | None: ...

    async def works(self, yool: str) -> None: ...


class Attempt:
    """Runs the steps of a claimed tuple that have no receipt yet.

    Steps that do not wait for each other run beside each other while the worker has free places. They share the limits of the
    tuple. A step that fails stops those that wait for it; the others end.
    """

    def __init__(self, worker: Host, claim: Claim, trace: Trace | None) -> None:
        self.claim = claim
        self.clock = time.monotonic()
        self.failures: list[tuple[str, StepFailed]] = []
        """Steps that may be tried again, by their yools."""
        self.reused = 0
        self._worker = worker
        self._terms = worker.policy.limit(claim.work.terms)
        self._trace = trace
        self._started = now_iso()
        self._done: dict[int, dict[str, Any]] = {}
        self._stored: set[int] = set()
        self._seals: dict[int, str] = {}
        self._children: Sequence[WorkTuple] = ()
        self._running: dict[int, _Share] = {}
        self._progress: dict[int, Mapping[str, Any]] = {}
        """The last progress of steps that have not ended, in this attempt or an earlier one."""
        self._saving = anyio.Lock()
        self._ended = anyio.Event()
        self._error: Exception | None = None

    async def look_back(self) -> None:
        """Read the results of earlier attempts."""
        claim = self.claim
        if claim.attempt > 1:
            stored = await self._worker.ask(lambda: self._worker.store.receipts(claim.work.id)) or ()
            for each in stored:
                if each.step is not None and is_genuine(each.document):
                    self._done[each.step] = each.document
            self._stored = set(self._done)
        if claim.progress is not None:
            saved = claim.progress.get("steps") or {str(claim.progress.get("step")): claim.progress}
            self._progress = {int(key): each for key, each in saved.items() if key.isdigit()}
            for index in self._done:
                self._progress.pop(index, None)

    @property
    def why_failed(self) -> str | None:
        """The step that failed for good, and the reason."""
        for index, receipt in sorted(self._done.items()):
            if receipt["exit"]:
                reason = receipt.get("error") or f"exit {receipt['exit']}"
                return f"step {index + 1} ({receipt['yool']}) failed: {reason}"
        return None

    async def run(self) -> None:
        """Run all steps that can run. Raises `LeaseLost`."""
        needs, worker = self.claim.work.step_needs(), self._worker
        async with anyio.create_task_group() as tasks:
            while self._error is None:
                good = {index for index, receipt in self._done.items() if not receipt["exit"]}
                ready = [
                    index
                    for index, wanted in enumerate(needs)
                    if index not in self._done and index not in self._running and wanted <= good
                ]
                shares = self._shares(len(ready)) if ready and not self.failures else []
                for index, share in zip(ready, shares, strict=False):
                    worker.further_steps += bool(self._running)
                    self._running[index] = share
                    tasks.start_soon(self._step, index, share)
                if not self._running:
                    break
                self._ended = anyio.Event()
                await self._ended.wait()
            tasks.cancel_scope.cancel()
        if self._error is not None:
            raise self._error

    def _shares(self, ready: int) -> list[_Share]:
        """Divide the rest of the tuple's limits among the steps that can begin now. Empty: wait for the running steps."""
        terms, running = self._terms, list(self._running.values())
        spent = add_costs([each["cost"] for each in self._done.values()])
        used = (spent["tokens_in"] or 0) + (spent["tokens_out"] or 0)
        usd = float(terms.budget_usd) - (spent["usd"] or 0.0) if isinstance(terms.budget_usd, int | float) else None
        tokens = terms.budget_tokens - used if isinstance(terms.budget_tokens, int) else None
        cpu = terms.cpu_quota_pct if isinstance(terms.cpu_quota_pct, int) else None
        disk = float(terms.disk_quota_mb) if isinstance(terms.disk_quota_mb, int | float) else None
        if usd is not None:
            usd -= sum(each.usd or 0.0 for each in running)
        if tokens is not None:
            tokens -= sum(each.tokens or 0 for each in running)
        if cpu is not None:
            cpu -= sum(each.cpu or 0 for each in running)
        if disk is not None and running:
            disk -= sum(each.disk or 0.0 for each in running)
        for count in range(min(ready, self._worker.places + (not running)), 0, -1):
            share = _Share(
                None if usd is None else usd / count,
                None if tokens is None else tokens // count,
                None if cpu is None else cpu // count,
                None if disk is None else disk / count,
            )
            if share.is_enough or (count == 1 and not running):
                return [share] * count
        return []

    async def _step(self, index: int, share: _Share) -> None:
        claim, worker = self.claim, self._worker
        yool = claim.work.payload[index].yool
        try:
            with spans.step(claim, self._trace, index) as span:
                receipt = await self._run_step(index, share)
                spans.ended(span, exit=receipt["exit"], error=receipt.get("error"), cost=receipt["cost"])
            if len(claim.work.payload) > 1 and not receipt["exit"]:
                # The receipt of a failure is stored with the end.
                async with self._saving:
                    self._progress.pop(index, None)
                    progress, seal = self._all_progress(), self._seals.get(index)
                    await worker.ask(
                        lambda: worker.store.save_step(claim, index, receipt, seal=seal, progress=progress)
                    )
                    self._stored.add(index)
            # Not earlier: steps that wait for this one begin when its receipt is stored.
            self._done[index] = receipt
            self.reused += "reused" in receipt
        except StepFailed as failure:
            self.failures.append((yool, failure))
        except Exception as error:  # noqa: BLE001 - raised by `run` as itself, out of its group of tasks
            self._error = self._error or error
        finally:
            del self._running[index]
            worker.further_steps -= bool(self._running)
            self._ended.set()

    def _all_progress(self) -> dict[str, Any] | None:
        """The saved progress of all unfinished steps: that of the last one with the cost of all, and each."""
        if not self._progress:
            return None
        index, last = list(self._progress.items())[-1]
        if len(self._progress) == 1:
            return {**last, "step": index}
        costs = [each["cost"] for each in self._progress.values() if isinstance(each.get("cost"), Mapping)]
        saved = {str(key): dict(each) for key, each in self._progress.items()}
        return {**last, "step": index, "steps": saved, **({"cost": add_costs(costs)} if costs else {})}

    async def _run_step(self, index: int, share: _Share) -> dict[str, Any]:
        worker, work, step = self._worker, self.claim.work, self.claim.work.payload[index]
        started, clock, yool = now_iso(), time.monotonic(), worker.yools[step.yool]
        about = complete(yool, YoolBase)

        def receipt(result: StepResult, input_hash: str | None = None, reused: str | None = None) -> dict[str, Any]:
            cost = {**result.cost, "wall_ms": round((time.monotonic() - clock) * 1000)}
            return make_receipt(
                yool=about.full_name or step.yool,
                tuple_id=work.id,
                started_at=started,
                ended_at=now_iso(),
                exit=result.exit,
                cost=cost,
                result=result.result,
                error=result.error,
                artifacts=result.artifacts,
                input_hash=input_hash,
                reused=reused,
            )

        terms = self._terms
        left_s = _seconds_left(terms.deadline_iso) if isinstance(terms.deadline_iso, str) else None
        for left, what in ((share.usd, "budget_usd"), (share.tokens, "budget_tokens"), (left_s, "deadline_iso")):
            if left is not None and left <= 0:
                return receipt(StepResult(exit=75, error=f"nothing is left of the tuple's {what}"))

        if (why := refusal(step.yool, about.authority, work, self.claim.meta)) is not None:
            return receipt(StepResult(exit=77, error=why))

        so_far: Mapping[str, Any] = {}

        async def save(progress: Mapping[str, Any]) -> Budget | None:
            nonlocal so_far
            if "cost" in progress:
                so_far = progress["cost"]
                await worker.works(step.yool)
            async with self._saving:
                self._progress.pop(index, None)
                self._progress[index] = storable(progress)
                saved = self._all_progress() or {}
                return await worker.ask(lambda: worker.store.save_progress(self.claim, saved))

        call = StepCall(
            yool=step.yool,
            args=step.args or {},
            tuple_id=work.id,
            lane=work.lane,
            position=work.map_pos or {},
            left_usd=share.usd,
            left_tokens=share.tokens,
            left_s=left_s,
            cpu_percent=min(worker.cpu_percent, share.cpu or 100),
            disk_mb=share.disk,
            trace=self._trace,
            progress=self._progress.get(index),
            save=save,
        )
        before, result = None, None
        with anyio.move_on_after(left_s):
            try:
                before = await self._input_hash(yool, call)
                if before is not None and not work.no_cache and (found := await self._find(before)) is not None:
                    again = StepResult(result=found.get("result"), artifacts=found["artifacts"], cost=_FREE)
                    return receipt(again, before, found["id"])
                result = await yool(call)
            except (StepFailed, SpaceError):
                raise
            except Exception as error:  # noqa: BLE001 - whatever it is, the other tuples go on
                if is_of_the_machine(error):
                    raise StepFailed(str(error), outage=True) from None
                raise _fault(step.yool, error) from None
        if result is None:
            return receipt(StepResult(exit=75, error="the tuple's deadline_iso came while the step ran", cost=so_far))
        # An input that changed meanwhile, by the step itself or by others, is not the input of this answer.
        may_keep = before is not None and not result.exit and not result.children
        same = may_keep and await self._is_still(before, yool, call)
        if not result.exit:
            await worker.works(step.yool)
        if result.children and len(work.payload) > 1:
            return receipt(StepResult(exit=64, error=f"{step.yool} puts tuples, so it must be its tuple's only step"))
        self._children = result.children
        texts = {name: storable(getattr(result, name)) for name in ("result", "error", "artifacts")}
        result = msgspec.structs.replace(result, **texts)
        try:
            if is_large(result.result):
                whole = result.result
                split = await worker.ask(lambda: split_result(worker.store, whole))
                inline, artifacts = split or (None, [])
                result = msgspec.structs.replace(result, result=inline, artifacts=[*result.artifacts, *artifacts])
            made = receipt(result, before if same else None)
        except TupleError as error:
            same = False
            cost = {key: each for key, each in result.cost.items() if isinstance(each, int | float) and each < math.inf}
            made = receipt(StepResult(exit=65, error=f"the result of {step.yool} is {error}", cost=cost))
        if same and worker.reuse is not None:
            self._seals[index] = worker.reuse.seal(made)
        return made

    async def _input_hash(self, yool: Yool, call: StepCall) -> str | None:
        return None if self._worker.reuse is None else await self._worker.reuse.input_hash(yool, call)

    async def _find(self, input_hash: str) -> dict[str, Any] | None:
        """Find a reusable answer for the same input."""
        reuse, store = self._worker.reuse, self._worker.store
        assert reuse is not None
        return await self._worker.ask(lambda: reuse.find(store, input_hash))

    async def _is_still(self, input_hash: str | None, yool: Yool, call: StepCall) -> bool:
        """Whether an ended step would still have the same input. Unreadable input counts as changed."""
        try:
            return await self._input_hash(yool, call) == input_hash
        except Exception as error:  # noqa: BLE001 - the step has ended, and its result counts
            _log.debug("the inputs of %s cannot be read any more: %s", call.yool, error)
            return False

    def end(self, failed: str | None) -> End:
        """The end of the tuple: the receipt of its only step, or one that sums up all steps."""
        work, done = self.claim.work, self._done
        if len(work.payload) == 1 and done:
            return End(
                claim=self.claim,
                receipt=done[0],
                failed=failed,
                children=self._children if failed is None else (),
                seal=self._seals.get(0),
            )
        steps = [done[index] for index in sorted(done)]
        costs = [each["cost"] for each in steps]
        costs += [saved["cost"] for index, saved in self._progress.items() if index not in done and "cost" in saved]
        receipt = make_receipt(
            yool="tuple.end",
            tuple_id=work.id,
            started_at=self._started,
            ended_at=now_iso(),
            exit=0 if failed is None else 1,
            cost=add_costs(costs),
            error=failed,
            steps=[each["id"] for each in steps],
        )
        further = {index: each for index, each in done.items() if index not in self._stored}
        return End(claim=self.claim, receipt=receipt, failed=failed, steps=further)


def _fault(yool: str, error: Exception) -> StepFailed:
    """A bug in a yool fails its own tuple and no other. The log has the traceback."""
    _log.error("a bug in the yool %s", yool, exc_info=error)
    return StepFailed(f"a bug: {type(error).__name__}: {error}")


def _seconds_left(deadline: str) -> float:
    time_ = parse_time(deadline)
    assert time_ is not None
    return (time_ - datetime.datetime.now(datetime.UTC)).total_seconds()
