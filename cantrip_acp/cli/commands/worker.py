"""`cantrip worker`: cast the tuples of a lane, for `cantrip cast-batch --lane` on this machine or on others."""

from __future__ import annotations

import json
import signal
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from cantrip_acp.cli.command_table import complete_recipe, examples
from cantrip_acp.cli.session.option_groups import Place, Pool, casting_place_options, concurrency_option, option_group
from cantrip_acp.cli.session.permissions import named_hosts, print_allowed
from cantrip_acp.cli.session.setup import model_option, open_recipe
from cantrip_acp.cli.session.tuple_space import (
    alarm_option,
    cast_yools,
    disk_floor,
    open_space,
    reuse_in,
    run_async,
    space_option,
    worker_name,
)
from cantrip_acp.cli.session.yools import agent_yools, command_yools, inputs_option, yool_option
from cantrip_acp.text.sanitize import clean

if TYPE_CHECKING:
    from cantrip_acp.cli.session.setup import OpenedRecipe
    from cantrip_acp.tuplespace.stores.sql import TupleStore
    from cantrip_acp.tuplespace.workers.worker import Ended, Worker


@dataclass(frozen=True, slots=True)
class WorkerPool(Pool):
    """``lease`` is the time in seconds after which other workers take the tuples of a silent one."""

    lane: str
    lease: float


@click.command(
    "worker",
    **examples(
        "cantrip recipe new greeter",
        "cantrip worker --lane greetings --until-empty greeter",
        "cantrip worker --lane build --until-empty --yool agent.check.spaces='git diff --check'",
    ),
)
@click.argument("recipes", nargs=-1, shell_complete=complete_recipe)
@yool_option
@inputs_option
@click.option("--lane", required=True, help="The lane whose tuples this worker takes.")
@model_option()
@space_option
@concurrency_option("Casts at once", 32)
@click.option(
    "--lease",
    type=click.FloatRange(1, 3600),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="After this time without a sign of this worker, another one takes its tuples.",
)
@click.option(
    "--metrics",
    metavar="[HOST:]PORT",
    help="Serve /metrics for Prometheus and /healthz there. HOST is 127.0.0.1 by default; anybody who reaches the "
    "port may read the metrics.",
)
@alarm_option
@click.option("--until-empty", is_flag=True, help="Stop when no tuple of the lane waits that this worker can run.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON line for each attempt.")
@casting_place_options
@option_group("pool", WorkerPool)
def worker(
    recipes: tuple[str, ...],
    commands: tuple[str, ...],
    inputs: tuple[str, ...],
    model: str | None,
    pool: WorkerPool,
    metrics: str | None,
    until_empty: bool,
    as_json: bool,
    place: Place,
) -> int:
    """Take tuples of a lane: cast them with RECIPES, or run the commands of --yool. Without both, run the agents of this lane
    in AGENTS.md that have `run` or `recipe`. Runs until it is stopped.

    A worker takes only tuples whose steps it can run: that name one of RECIPES with the same text, or a --yool. A recipe that
    you name by its path is trusted for this run. Give a worker the --model of the `cast-batch` that it works for.

    After the first SIGTERM or Ctrl-C, the worker takes no more tuples and waits for its running casts. After the second
    signal, the worker gives these casts back to other workers. If a worker is killed, others take its tuples when
    --lease has passed.

    Give workers on several hosts one loom: --loom postgresql://….

    A tuple that this worker cannot run stays for others. While the tuple-space, the model or the loom does not work, the
    worker waits, tries again and says so.

    Exit status: 0 stopped, or the lane is empty; 1 with --until-empty, if tuples failed here or wait for another worker; 2 the
    command line, a recipe or a key is wrong; 3 this machine has no sandbox.
    """
    import anyio

    from cantrip_acp.tuplespace.alarms import alarms_to
    from cantrip_acp.tuplespace.catalog.build import authorities, runnable_agents
    from cantrip_acp.tuplespace.catalog.capabilities import with_newest
    from cantrip_acp.tuplespace.tuples import Pattern
    from cantrip_acp.tuplespace.workers.guardrails import cpu_percent, lane_concurrency, read_policy
    from cantrip_acp.tuplespace.workers.worker import Worker, runnables

    cwd, state_dir, lane = place.cwd, place.state_dir, pool.lane
    agents = [] if recipes or commands else runnable_agents(cwd, lane)
    if not (recipes or commands or agents):
        raise click.UsageError(
            "name a recipe to cast, or a command to run (--yool agent.lint.ruff='ruff check {path}'). AGENTS.md here has no "
            f"agent of the lane {lane} with run or recipe"
        )
    policy = read_policy(cwd.resolve())
    hosts, at_once = named_hosts(place.allow_hosts), lane_concurrency(pool.concurrency, policy=policy)
    allowed = authorities(cwd)
    address = _address(metrics) if metrics is not None else None
    opened = []
    store = None
    exits = ExitStack()
    try:
        for recipe in recipes:
            each = open_recipe(recipe, cwd, place.loom_file, state_dir, model, many=True)
            opened.append(each)
            print_allowed(each.cantrip, each.cantrip.circle, hosts, ask=False)
        store = open_space(pool.space, state_dir)

        def open_agent(recipe: str) -> OpenedRecipe:
            opened.append(open_recipe(recipe, cwd, place.loom_file, state_dir, model, many=True, named_here=False))
            print_allowed(opened[-1].cantrip, opened[-1].cantrip.circle, hosts, ask=False)
            return opened[-1]

        casts = cast_yools(opened, place.allow_hosts)
        for name in casts.keys() & allowed.keys():
            setattr(casts[name], "authority", allowed[name])  # noqa: B010 - of functions too
        further = command_yools(commands, inputs, cwd, state_dir, place.allow_hosts, allowed)
        further |= agent_yools(agents, cwd, state_dir, place.allow_hosts, open_agent)
        yools, counter = with_newest({**casts, **further}), None
        runs = runnables(yools)
        for each in opened:
            note_references(each)
        if address is not None:
            from cantrip_acp.tuplespace.monitoring.metrics import WorkerMetrics

            counter = WorkerMetrics(store, lane, worker_name())
            yools = counter.timed(yools)

        def ended(ended: Ended) -> None:
            if counter is not None:
                counter.ended(ended)
            print_ended(ended, as_json=as_json)

        runner = Worker(
            store,
            Pattern({"lane": lane}),
            yools,
            name=worker_name(),
            concurrency=at_once,
            lease_s=pool.lease,
            cpu_percent=cpu_percent(policy),
            disk=disk_floor(state_dir, policy),
            policy=policy,
            ended=ended,
            notice=notice,
            runs=runs,
            reuse=reuse_in(store, state_dir, cwd),
        )
        if counter is not None and address is not None:
            counter.watch(runner)
            served = exits.enter_context(counter.serve(*address))
            click.echo(f"cantrip: metrics are at {served}/metrics, the health check is at {served}/healthz", err=True)
        begins = f"cantrip: {runner.name} takes the tuples of lane {lane} from {store.location}"

        async def is_empty() -> bool:
            return not await runner.has_work()

        async def run() -> None:
            async with anyio.create_task_group() as tasks:

                async def watch_signals() -> None:
                    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
                        click.echo(clean(begins), err=True)
                        async for _ in signals:
                            if runner.running:
                                click.echo(
                                    f"cantrip: {runner.running} still running; stop again to give them back to other workers",
                                    err=True,
                                )
                            runner.drain()

                tasks.start_soon(watch_signals)
                async with alarms_to(pool.on_alarm, store, runner.name, notice):
                    await runner.run(until=is_empty if until_empty else lambda: False)
                tasks.cancel_scope.cancel()

        run_async(run)
        return _is_left(store, runner) if until_empty else 0
    finally:
        exits.close()
        if store is not None:
            store.close()
        for each in opened:
            each.leave()


def notice(text: str) -> None:
    """Show a remark of a worker on stderr."""
    click.echo(f"cantrip: {clean(text)}", err=True)


def note_references(opened: OpenedRecipe) -> None:
    """Warn if this loom allows no casts with an expected answer."""
    from cantrip_acp.tuplespace.yools.cast_yool import why_no_references

    why = why_no_references(opened.cantrip, opened.loom)
    if why is not None:
        notice(f"{opened.recipe.name}: tuples with a reference are left to other workers: {why}")


def _is_left(store: TupleStore, runner: Worker) -> int:
    """Report failures of this worker and tuples that wait for another one. Returns the exit status."""
    from cantrip_acp.tuplespace.monitoring.status import find_stuck

    if runner.failed:
        notice(f"{runner.failed} failed; `cantrip tuple status` shows why")
    stuck = find_stuck(store, runner.pattern.lane, among=[runner.entry()])
    for each in stuck:
        notice(f"{each.count} wait for another worker: {each.reason} (such as {each.tuple_id[7:19]})")
    return 1 if runner.failed or stuck else 0


def _address(text: str) -> tuple[str, int]:
    from cantrip_acp.tuplespace.monitoring.metrics import parse_address

    try:
        return parse_address(text)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--metrics") from None


def print_ended(ended: Ended, *, as_json: bool, err: bool = False) -> None:
    """Print a line about an attempt, on stdout or stderr."""
    work, receipt = ended.claim.work, ended.receipt
    state = "again" if receipt is None else "done" if receipt["exit"] == 0 else "failed"
    reason = ended.again or ended.failed
    if as_json:
        row: dict[str, Any] = {"state": state, "tuple_id": work.id, "attempt": ended.claim.attempt}
        row |= {"reused": ended.reused} if ended.reused else {}
        click.echo(
            json.dumps({**row, **({"error": reason} if reason else {}), **({"receipt": receipt} if receipt else {})})
        )
    else:
        line = f"{state:6} {work.id[7:19]} {work.payload[0].yool}"
        if ended.reused:
            line += "  reused" if len(work.payload) == 1 else f"  {ended.reused} of {len(work.payload)} steps reused"
        click.echo(line + (f"  {' '.join(reason.split())[:200]}" if reason else ""), err=err)
    sys.stdout.flush()
