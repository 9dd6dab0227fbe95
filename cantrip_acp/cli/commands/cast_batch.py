"""`cantrip cast-batch`: cast a recipe on many intents, here or by workers, with progress; the same command goes on."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cantrip_acp.cli import json_errors
from cantrip_acp.cli.command_table import complete_recipe, examples
from cantrip_acp.cli.session.option_groups import (
    Budget,
    Place,
    Pool,
    budget_options,
    concurrency_option,
    dollars_option,
    option_group,
    retries_option,
)
from cantrip_acp.cli.session.permissions import allow_host_option, named_hosts, print_allowed
from cantrip_acp.cli.session.progress import ProgressLine, duration, run_with_progress
from cantrip_acp.cli.session.setup import cache_option, cwd_option, loom_option, model_option, open_recipe, state_option
from cantrip_acp.cli.session.tuple_space import (
    alarm_option,
    cast_yools,
    disk_floor,
    give_back_of_dead_processes,
    open_space,
    space_option,
    worker_name,
)
from cantrip_acp.text.sanitize import clean, escaped_json

if TYPE_CHECKING:
    from cantrip_acp.cli.session.setup import OpenedRecipe
    from cantrip_acp.recipes.recipe import Recipe
    from cantrip_acp.tuplespace.batch import BatchLog, Intent, Round
    from cantrip_acp.tuplespace.stores.sql import TupleStore
    from cantrip_acp.tuplespace.tuples import WorkTuple
    from cantrip_acp.tuplespace.workers.guardrails import Policy

_AT_ONCE = 8
"""Casts at once in this process."""
_PAUSE_S = 0.5
"""The interval of checks for results of other workers, in seconds."""
_LOOK_AT = 5000
"""The number of tuples in one request to the store."""
_LOOK_S = 3.0
"""The interval of checks whether workers take the casts, in seconds."""
_GRACE_S = 2.0
"""The time before the first of these checks, in seconds."""


@dataclass(frozen=True, slots=True)
class Output:
    """The destinations of the results: a file of JSON lines, a page, stdout."""

    out: Path | None
    page: Path | None
    as_json: bool


def batch_terms(
    cast_budget_usd: float | None, cast_disk_mb: float | None, cast_cpu_percent: int | None, max_retries: int
) -> dict[str, float]:
    """The terms of each tuple, by their names in the tuple. A limit that is None is left out."""
    limits = {"budget_usd": cast_budget_usd, "disk_quota_mb": cast_disk_mb, "cpu_quota_pct": cast_cpu_percent}
    return {"max_retries": max_retries} | {name: value for name, value in limits.items() if value is not None}


@click.command(
    "cast-batch",
    **examples(
        "cantrip recipe new greeter",
        'printf \'"Say hello."\\n{"intent": "Say goodbye.", "id": "bye"}\\n\' > intents.jsonl',
        "cantrip cast-batch greeter intents.jsonl --samples 2 --out results.jsonl",
        "cantrip cast-batch greeter intents.jsonl --samples 2 --json",
    ),
)
@click.argument("recipe", shell_complete=complete_recipe)
@click.argument("intents", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@model_option()
@click.option("--samples", type=click.IntRange(1, 10_000), default=1, show_default=True, help="Casts of each intent.")
@concurrency_option("Casts at once, here", _AT_ONCE)
@click.option(
    "--lane",
    help="Put the casts into this lane of --space and wait for the results of `cantrip worker --lane`. Nothing is cast here.",
)
@space_option
@loom_option
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the results as JSON lines, in the order of the intents.",
)
@click.option(
    "--report",
    "page",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the results as an HTML page with links to each thread, as `cantrip tuple report` does.",
)
@budget_options(
    "The most that all casts together may cost, wherever they run. When this amount is spent, no cast starts, "
    "and running casts stop.",
    "The most tokens that all casts together may use.",
)
@dollars_option("--cast-budget-usd", "The most that one cast may cost.")
@click.option(
    "--cast-disk-mb",
    type=click.FloatRange(0, min_open=True),
    metavar="MB",
    help="The most that one cast may write to disks.",
)
@click.option(
    "--cast-cpu-percent",
    type=click.IntRange(1, 100),
    metavar="PERCENT",
    help="The share of one processor for each command of a cast.  [default: $YOOL_TUPLE_CPU_QUOTA_PCT of the worker, else 95]",
)
@alarm_option
@retries_option("Further attempts after a failure.")
@click.option(
    "--again",
    type=click.Choice(["failed", "all"]),
    help="Cast again what failed earlier, or everything. Without this option, casts that ended earlier are not repeated.",
)
@click.option("--json", "as_json", is_flag=True, help="Print each result as a JSON line when its cast ends.")
@cwd_option
@state_option
@cache_option
@allow_host_option
@option_group("pool", Pool)
@option_group("output", Output)
@option_group("terms", batch_terms)
@option_group("place", Place)
def cast_batch(
    recipe: str,
    intents: str,
    model: str | None,
    samples: int,
    pool: Pool,
    output: Output,
    budget: Budget,
    terms: dict[str, float],
    again: str | None,
    place: Place,
) -> int:
    """Cast RECIPE on each intent of the file INTENTS, with progress.

    INTENTS has JSON lines: a text, or {"intent": "…", "id": "…", "reference": …}. The reference is the expected answer, for the
    recipe's scoring function and for exports; the model never sees it. If INTENTS is -, it is read from stdin.

    Each cast is a tuple in a tuple-space and ends with one receipt. After an interruption, run the same command again to
    continue. It does not repeat casts that ended in this project, if the recipe, the files that it names, the intent and the
    project's files (or the recipe's `inputs`) are the same. A cast that was interrupted continues from its loom. --again
    failed repeats what failed, --again all repeats everything.

    Without --lane the casts run here, at most --concurrency at once, into one loom. With --lane, workers on this
    machine or on others run the casts: start workers with `cantrip worker --lane LANE RECIPE`.

    The entities may do everything that the recipe allows, without asking. A line on stderr says what the recipe allows.

    Exit status: 0 all casts terminated, 1 some were cut off or failed, 2 the command line, the recipe or the file is wrong,
    3 this machine has no sandbox, 130 interrupted.
    """
    from cantrip_acp.core.definition.circle import check_reference
    from cantrip_acp.files import paths
    from cantrip_acp.git.project_identity import project_id
    from cantrip_acp.recipes import load
    from cantrip_acp.tuplespace import authority
    from cantrip_acp.tuplespace.alarms import alarms_in_thread
    from cantrip_acp.tuplespace.batch import BatchLog, batch_tuples, read_intents, recipe_digest
    from cantrip_acp.tuplespace.monitoring.spans import emitting
    from cantrip_acp.tuplespace.reuse.workspace_inputs import WorkspaceInputs, own_streams
    from cantrip_acp.tuplespace.workers.guardrails import lane_concurrency, max_waiting, read_policy

    state, workspace, lane = paths.state_dir(place.state_dir), place.cwd.resolve(), pool.lane
    policy = read_policy(workspace)
    at_once, most_waiting = lane_concurrency(pool.concurrency, _AT_ONCE, policy), max_waiting(policy)
    with click.open_file(intents, "rb") as source:
        wanted = read_intents(source.read(), "stdin" if intents == "-" else intents)
    found = load(recipe, workspace, state_dir=state)
    digest, project = recipe_digest(found, _model_name(found, model)), project_id(workspace)
    store = open_space(pool.space, place.state_dir)
    opened = None
    try:
        name = lane or f"here.{digest[7:19]}"
        batch = _batch_name(store, workspace, intents, wanted, digest, lane, project)
        loom = place.loom_file or _batch_loom(state, workspace, digest, project)
        # Links of the page lead to files beside it.
        out, page = output.out, output.page
        beside = page.with_name(f"{page.stem}-looms") if page is not None else None
        own: list[Path | str | None] = [intents, out, page, beside, store.path, loom.removeprefix("sqlite:")]
        log = BatchLog(store, batch, digest, project, name, terms)
        own += [*own_streams(), *(workspace / name for name in log.own_names())]
        files = WorkspaceInputs(found, workspace, state, [each for each in own if each], _tell)

        def tuples(round_: Round) -> list[WorkTuple]:
            return batch_tuples(
                found.name,
                digest,
                wanted,
                lane=name,
                samples=samples,
                project=project,
                inputs=round_.inputs,
                terms=terms,
                run=round_.run,
            )

        works = _begin(store, log, files.digest(), tuples, again)
        common = batch if budget or store.budgets(batch) else None
        if common is not None:
            # A budget of an earlier run ends when it is not asked for any more.
            store.set_budget(common, usd=budget.budget_usd, tokens=budget.budget_tokens)
        asked = [each for each in wanted for _ in range(samples)]
        report = _Report(store, works, asked, common, as_json=output.as_json)
        report.collect(earlier=True)
        about = {"cantrip.lane": works[0].lane, "cantrip.tuples": len(works)}
        with report.terminal(), emitting(f"cast-batch {found.name}", about) as trace:
            meta = {**authority.note(place.cwd), **trace}
            if lane is None:
                opened = open_recipe(recipe, place.cwd, loom, place.state_dir, model, many=True)
                if any(each.reference is not None for each in wanted):
                    for file in (*([] if intents == "-" else [intents]), opened.loom.location):
                        check_reference([], opened.cantrip.circle, file)
                print_allowed(opened.cantrip, opened.cantrip.circle, named_hosts(place.allow_hosts), ask=False)
                store.put(works, budget=common, meta=meta)
                interrupted = _cast_here(store, opened, works, report, at_once, pool.on_alarm, place, policy)
            else:
                named = f"{recipe} --lane {lane}" + (f" --model {model}" if model else "")
                named += f" --space {pool.space}" if pool.space else ""
                with alarms_in_thread(pool.on_alarm, store, worker_name(), report.notice):
                    held_up = _HeldUp(store, lane, f"cantrip worker {named}", report)
                    interrupted = _cast_by_workers(store, works, report, held_up, most_waiting, common, meta)
        report.collect()
        if report.all_ended():
            log.end(files.digest(), files.own_names)
        if out is not None:
            report.write(out)
        if page is not None:
            report.write_page(page, found.name)
        report.summary(opened.loom.location if opened is not None else None, interrupted)
        if interrupted:
            report.show_interrupted()
            return 130
        return 0 if report.terminated == len(works) else 1
    finally:
        store.close()
        if opened is not None:
            opened.leave()


def _model_name(recipe: Recipe, model: str | None) -> str:
    """The name of the model that replaces the recipe's own, or ""."""
    if model is None:
        return ""
    from cantrip_acp.recipes.build.crystal_choices import name_for_run

    return name_for_run(recipe, model, "--model")


def _tell(text: str) -> None:
    click.echo(f"cantrip: {clean(text)}", err=True)


def _begin(
    store: TupleStore, log: BatchLog, files: str, tuples: Callable[[Round], list[WorkTuple]], again: str | None
) -> list[WorkTuple]:
    """The tuples of the batch, from its present round or a new one. Records the round if there is work to do."""
    from cantrip_acp.tuplespace.batch import Round, latest_attempts

    while True:
        found, notice = log.find(files, failed=again == "failed")
        if again == "all":
            found, notice = Round(batch=found.batch, inputs=files, run=str(time.time_ns())), ""
        works = tuples(found)
        before = latest_attempts(store, works, again=False)
        ended = store.ended([each.id for each in before])
        again_failed = again == "failed" and any(each["exit"] != 0 for each in ended.values())
        if (len(ended) == len(works) and not again_failed) or not (files or again == "all") or log.begin(found, files):
            if notice:
                _tell(notice)
            return latest_attempts(store, works, again=again == "failed")


def _batch_name(
    store: TupleStore,
    workspace: Path,
    file: str,
    intents: Sequence[Intent],
    digest: str,
    lane: str | None,
    project: str,
) -> str:
    """The name of a batch and of its budget: equal for the same command, also after intents were added to its file."""
    import hashlib

    def name(*parts: object) -> str:
        return f"batch-{hashlib.sha256(' '.join(map(str, (digest, lane, *parts))).encode()).hexdigest()[:12]}"

    path = Path(file).resolve()
    what = repr(intents) if file == "-" else path.relative_to(workspace) if path.is_relative_to(workspace) else path
    names = [name(project, what), name(what if file == "-" else (workspace / file).resolve())]
    # Earlier versions named it after the folder.
    return next((each for each in names if store.budgets(each)), names[0])


def _batch_loom(state: Path, workspace: Path, digest: str, project: str) -> str:
    """The loom of a recipe's batches in the state folder: samples of one intent are compared in one loom."""
    import hashlib

    from cantrip_acp.files import paths

    looms = paths.private(state / "looms")
    names = [
        f"batch-{hashlib.sha256(f'{digest} {each}'.encode()).hexdigest()[:12]}.loom.jsonl"
        for each in (project, workspace)
    ]
    # Earlier versions named it after the folder.
    return str(next((looms / each for each in names if (looms / each).exists()), looms / names[0]))


def _cast_here(
    store: TupleStore,
    opened: OpenedRecipe,
    works: Sequence[WorkTuple],
    report: _Report,
    concurrency: int,
    on_alarm: str | None,
    place: Place,
    policy: Policy,
) -> bool:
    """Cast the waiting tuples in this process. Returns whether the user interrupted."""

    from cantrip_acp.tuplespace.alarms import alarms_to
    from cantrip_acp.tuplespace.tuples import Pattern
    from cantrip_acp.tuplespace.workers.guardrails import cpu_percent
    from cantrip_acp.tuplespace.workers.worker import Worker

    give_back_of_dead_processes(store, works[0].lane)
    worker = Worker(
        store,
        Pattern({"lane": works[0].lane, **_of_round(works[0])}),
        cast_yools([opened], place.allow_hosts),
        name=worker_name(),
        concurrency=concurrency,
        cpu_percent=cpu_percent(policy),
        disk=disk_floor(place.state_dir, policy, report.notice),
        policy=policy,
        ended=report.one_ended,
        notice=report.notice,
    )

    async def work() -> None:
        async with alarms_to(on_alarm, store, worker.name, report.notice):
            await worker.run(until=lambda: report.nothing_waits() or report.budget_is_spent())

    def give_back(_: object) -> None:
        # At once: what runs is given back, and the same command casts it again.
        worker.drain()
        worker.drain()

    return run_with_progress(work, lambda: report.show(worker.running, is_idle=worker.is_held_up), give_back)


def _of_round(work: WorkTuple) -> dict[str, Any]:
    """The part of a tuple that identifies its round. Waiting tuples of an earlier round are given up."""
    inputs, run = (work.payload[0].args or {}).get("inputs"), (work.map_pos or {}).get("run")
    return {
        **({"payload": [{"args": {"inputs": inputs}}]} if inputs else {}),
        **({"map_pos": {"run": run}} if run else {}),
    }


def _cast_by_workers(
    store: TupleStore,
    works: Sequence[WorkTuple],
    report: _Report,
    held_up: _HeldUp,
    most: int,
    budget: str | None,
    meta: Mapping[str, str],
) -> bool:
    """Leave the casts to workers and wait for the results. Returns whether the user interrupted."""
    from cantrip_acp.tuplespace.errors import SpaceError, SpaceFull

    position, outage = 0, False
    try:
        while not report.all_ended():
            try:
                try:
                    while position < len(works):
                        part = works[position : position + 500]
                        store.put(part, max_waiting=most, budget=budget, meta=meta)
                        position += len(part)
                except SpaceFull:
                    # The rest goes in when workers have taken some.
                    pass
                report.collect()
                report.show(None, is_idle=held_up.look())
                if report.budget_is_spent() and not any(each.lane == works[0].lane for each in store.holders()):
                    report.collect()
                    break
            except SpaceError as error:
                if not outage:
                    report.notice(f"{error}. This command waits and tries again")
                outage = True
            else:
                if outage:
                    report.notice("the tuple-space works again")
                outage = False
            time.sleep(_PAUSE_S)
    except KeyboardInterrupt:
        return True
    return False


class _HeldUp:
    """Checks from time to time whether a worker takes the waiting casts, and reports if none does."""

    def __init__(self, store: TupleStore, lane: str, start: str, report: _Report) -> None:
        self._store, self._lane, self._start, self._report = store, lane, start, report
        self._next_at = time.monotonic() + _GRACE_S
        self._told: tuple[str, ...] = ()
        self._is_idle = False

    def look(self) -> bool:
        """Whether no worker takes the casts, so that the remaining time cannot be estimated."""
        from cantrip_acp.tuplespace.monitoring.status import find_stuck

        if time.monotonic() < self._next_at:
            return self._is_idle
        self._next_at = time.monotonic() + _LOOK_S
        stuck = find_stuck(self._store, self._lane)
        reasons = tuple(dict.fromkeys(each.reason for each in stuck))
        if reasons != self._told:
            for reason in reasons:
                count = sum(each.count for each in stuck if each.reason == reason)
                self._report.notice(
                    f"{_casts(count)} of lane {self._lane} wait: {reason}. Start a worker: {self._start}"
                )
            if self._told and not reasons:
                self._report.notice(f"workers take the casts of lane {self._lane} again")
        self._told = reasons
        self._is_idle = bool(reasons) and not any(each.lane == self._lane for each in self._store.holders())
        return self._is_idle


class _Report:
    """Counts and shows the ended casts."""

    def __init__(
        self,
        store: TupleStore,
        works: Sequence[WorkTuple],
        intents: Sequence[Intent],
        budget: str | None,
        *,
        as_json: bool,
    ) -> None:
        self._budget = budget
        self._store = store
        self._works = works
        self._intents = intents
        self._as_json = as_json
        self._results: dict[str, Mapping[str, Any]] = {}
        self._places = {work.id: index for index, work in enumerate(works)}
        self._waiting = set(self._places)
        self._begun = time.monotonic()
        self._earlier = 0
        self._again = 0
        self._progress = ProgressLine()

    @contextmanager
    def terminal(self) -> Iterator[None]:
        """Remove the live line at the end."""
        try:
            yield
        finally:
            self._progress.clear()

    @property
    def terminated(self) -> int:
        return sum(each["exit"] == 0 for each in self._results.values())

    def all_ended(self) -> bool:
        return not self._waiting

    def nothing_waits(self) -> bool:
        """Whether all casts have ended, here or in another process that runs the same batch."""
        if self._waiting:
            self.collect()
        return self.all_ended()

    def budget_is_spent(self) -> bool:
        return self._budget is not None and any(each.is_spent for each in self._store.budgets(self._budget))

    def collect(self, *, earlier: bool = False) -> None:
        """Collect results from the store: of an ``earlier`` run, or of other workers."""
        waiting = [work.id for work in self._works if work.id in self._waiting]
        for start in range(0, len(waiting), _LOOK_AT):
            for tuple_id, receipt in self._store.ended(waiting[start : start + _LOOK_AT]).items():
                self._add(tuple_id, receipt)
                self._earlier += earlier

    def one_ended(self, ended: Any) -> None:
        """Count a cast of this process that ended, was stopped, or will be tried again."""
        if ended.receipt is None:
            self._again += ended.tried
        elif ended.claim.work.id in self._waiting:
            self._add(ended.claim.work.id, ended.receipt)

    def _add(self, tuple_id: str, receipt: Mapping[str, Any]) -> None:
        self._waiting.discard(tuple_id)
        self._results[tuple_id] = receipt
        if self._as_json:
            self._progress.clear()
            click.echo(escaped_json(json.dumps(self._row(self._places[tuple_id]), ensure_ascii=False)))

    def _row(self, index: int) -> dict[str, Any]:
        from cantrip_acp.tuplespace.retention import read_result

        work, intent = self._works[index], self._intents[index]
        receipt = self._results.get(work.id)
        position = work.map_pos or {}
        row: dict[str, Any] = {
            **({"id": intent.id} if intent.id is not None else {}),
            "intent": intent.intent,
            "sample": position.get("sample", 0),
            "tuple_id": work.id,
        }
        if receipt is None:
            return {**row, "state": "waiting"}
        return {
            **row,
            "state": "done" if receipt["exit"] == 0 else "failed",
            "receipt_id": receipt["id"],
            "cost": receipt["cost"],
            **({"error": receipt["error"]} if receipt.get("error") else {}),
            **({"cast": result} if (result := read_result(self._store, receipt)) else {}),
            **({"artifacts": receipt["artifacts"]} if receipt["artifacts"] else {}),
        }

    def cost(self) -> tuple[float | None, int]:
        """The known cost in US dollars, and the number of results without a known cost."""
        known = [each["cost"].get("usd") for each in self._results.values()]
        paid = [usd for usd in known if usd is not None]
        return (sum(paid) if paid else None), len(known) - len(paid)

    def _line(self, running: int | None, *, is_idle: bool = False) -> str:
        ended, total = len(self._results), len(self._works)
        failed = ended - self.terminated
        parts = [f"{ended}/{total} casts"]
        if running is not None:
            parts.append(f"{running} running")
        if failed:
            parts.append(f"{failed} failed")
        if self._again:
            parts.append(f"{self._again} tried again")
        usd, _ = self.cost()
        if usd is not None:
            parts.append(f"${usd:.4f}")
        new, elapsed = ended - self._earlier, time.monotonic() - self._begun
        if is_idle:
            parts.append("nobody works on the rest")
        elif new and ended < total:
            parts.append(f"about {duration((total - ended) * elapsed / new)} left")
        return " · ".join(parts)

    def show(self, running: int | None, *, is_idle: bool = False) -> None:
        """Show the progress: a line that changes, or a new line now and then."""
        self._progress.show(lambda: self._line(running, is_idle=is_idle))

    def notice(self, text: str) -> None:
        """Show a remark above the progress."""
        self._progress.clear()
        click.echo(f"cantrip: {clean(text)}", err=True)

    def write(self, out: Path) -> None:
        """Write all results, also of unfinished casts. Raises `OutputError`."""
        from cantrip_acp.loom.output_file import output_file

        text = "".join(json.dumps(self._row(index), ensure_ascii=False) + "\n" for index in range(len(self._works)))
        with output_file(out) as file:
            file.write(text.encode())

    def write_page(self, target: Path, title: str) -> None:
        """Write the page of the batch, also with unfinished casts."""
        from cantrip_acp.tuplespace.monitoring.batch_page import write_report

        pairs = list(zip(self._works, self._intents, strict=True))
        names = {work.id: intent.id for work, intent in pairs if intent.id is not None}
        write_report(self._store, target, only=[work.id for work in self._works], names=names, title=title)

    def show_interrupted(self) -> None:
        """Print the last line of ``--json`` after an interruption."""
        if self._as_json:
            failed = len(self._results) - self.terminated
            counts = {"done": self.terminated, "failed": failed, "waiting": len(self._waiting)}
            click.echo(json.dumps({"error": "interrupted", "exit_status": 130, **counts}))
            json_errors.ended()

    def summary(self, loom: str | None, interrupted: bool) -> None:
        """Print on stderr how the batch ended, the reasons of failures, and the next step for the user."""
        from cantrip_acp.tuplespace.monitoring.status import same_reason

        self._progress.clear()
        click.echo(f"cantrip: {self._line(None)} · {duration(time.monotonic() - self._begun)}", err=True)
        if self._earlier:
            click.echo(
                f"{self._earlier} ended in an earlier run and did not run again (to repeat them: --again failed, --again all)",
                err=True,
            )
        reasons: dict[str, list[str]] = {}
        for each in self._results.values():
            if each["exit"] != 0:
                reason = " ".join(str(each.get("error") or f"exit {each['exit']}").split())[:200]
                reasons.setdefault(same_reason(reason), []).append(reason)
        for reason, count in sorted(((same[0], len(same)) for same in reasons.values()), key=lambda pair: -pair[1])[:5]:
            click.echo(f"  {count} × {clean(reason)}", err=True)
        if loom is not None:
            click.echo(f"loom     {loom}", err=True)
        for budget in self._store.budgets(self._budget) if self._budget is not None else ():
            limits = [f"${budget.spent_usd:.4f} of ${budget.usd:g}"] if budget.usd is not None else []
            limits += [f"{budget.spent_tokens} of {budget.tokens} tokens"] if budget.tokens is not None else []
            click.echo(f"budget   {', '.join(limits) or 'none'} spent", err=True)
            if budget.is_spent and self._waiting:
                click.echo(
                    f"the budget is spent before {_casts(len(self._waiting))} ended: raise --budget-usd or --budget-tokens and run "
                    "the same command",
                    err=True,
                )
                return
        if interrupted or self._waiting:
            click.echo("run the same command again to continue", err=True)


def _casts(count: int) -> str:
    return "1 cast" if count == 1 else f"{count} casts"
