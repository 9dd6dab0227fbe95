"""`cantrip eval`: run a suite of tasks with crystals, show rates with intervals, and compare them with an earlier result."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cantrip_acp.cli import json_errors
from cantrip_acp.cli.command_table import complete_recipe, examples
from cantrip_acp.cli.session.option_groups import Budget, Place, budget_options, option_group, place_options
from cantrip_acp.cli.session.permissions import named_hosts, print_allowed
from cantrip_acp.cli.session.progress import ProgressLine, duration, run_with_progress
from cantrip_acp.cli.session.setup import complete_model
from cantrip_acp.text.sanitize import escaped_json

if TYPE_CHECKING:
    from cantrip_acp.cli.render.table import Cell
    from cantrip_acp.cli.render.terminal import Screen
    from cantrip_acp.evaluation.run import Record, Result, Runner
    from cantrip_acp.evaluation.statistics import Comparison
    from cantrip_acp.evaluation.suite import Task

_SHOWN = 10
"""The maximum number of tasks of which failures are shown."""
_REASONS = 3
"""The maximum number of reasons that are shown for one task."""


@dataclass(frozen=True, slots=True)
class Samples:
    """Which samples run: the tasks whose names begin with one of ``only``, ``samples`` times with each of ``crystals``."""

    crystals: tuple[str, ...]
    samples: int | None
    only: tuple[str, ...]
    recipe: str | None
    jobs: int


@dataclass(frozen=True, slots=True)
class Output:
    """Where the result is written, and the earlier result to compare with."""

    out: Path | None
    keep: bool
    baseline: Path | None
    any_drop: bool
    as_json: bool


@click.command(
    "eval",
    **examples(
        "cantrip eval --new greetings",
        "cantrip eval greetings --samples 2 --out first",
        "cantrip eval greetings --samples 2 --out second --baseline first",
        "cantrip eval coding --only question-default --crystal recorded --json",
    ),
)
@click.argument("suite")
@click.option(
    "-m",
    "--model",
    "--crystal",
    "crystals",
    multiple=True,
    metavar="MODEL",
    shell_complete=complete_model,
    help="Run the tasks with this model (PROVIDER:MODEL, embedded, scripted:FILE). May be repeated. `recorded` plays "
    "the recorded session of each task. `recipe` is the recipe's own model.  [default: recipe]",
)
@click.option(
    "--samples",
    type=click.IntRange(1, 10_000),
    metavar="N",
    help="Samples of each task.  [default: the suite's, else 1]",
)
@click.option("--only", multiple=True, metavar="NAME", help="Only tasks whose names begin with NAME. May be repeated.")
@click.option(
    "--recipe",
    shell_complete=complete_recipe,
    metavar="RECIPE",
    help="Run every task with this recipe, in place of the suite's.",
)
@click.option("--jobs", type=click.IntRange(1, 256), default=1, show_default=True, help="Samples that run at once.")
@budget_options(
    "The most that the samples may cost. When this amount is spent, no further sample starts. Each running "
    "sample may use the amount that was left when it began, so several at once can cost more. The crystal's price must "
    "be known."
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Keep the result here: result.json, report.html, looms. With the folder of an earlier run, only what is missing runs.  "
    "[default: a new folder in the state folder]",
)
@click.option("--keep", is_flag=True, help="Also keep the files that each sample leaves, and its words as a script.")
@click.option(
    "--baseline",
    type=click.Path(exists=True, path_type=Path),
    metavar="RESULT",
    help="Compare with this earlier result (its folder or result.json). A regression makes the exit status 1.",
)
@click.option(
    "--any-drop",
    is_flag=True,
    help="With --baseline: every lower pass rate is a regression, even if it can be chance. Use this for models that "
    "always give the same answer.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print each sample as a JSON line when it ends, and at the end the result without them.",
)
@click.option("--list", "list_only", is_flag=True, help="List the tasks, and run nothing.")
@click.option("--new", is_flag=True, help="Write a small suite into the new folder SUITE, and run nothing.")
@place_options
@option_group("wanted", Samples)
@option_group("output", Output)
def eval_(suite: str, wanted: Samples, budget: Budget, output: Output, list_only: bool, new: bool, place: Place) -> int:
    """Run the tasks of SUITE with one or more models, judge the results, and show pass rates with 95 % confidence intervals.

    SUITE is a YAML file, a folder, the file of Inspect tasks (FILE.py or FILE.py@TASK), a taskset of verifiers (verifiers:ID),
    or a built-in suite (coding). Each sample is a cast in a fresh folder, and its thread is in a loom. The page report.html
    links each cell to its threads.

    Python files that a suite names (score, Inspect tasks, tasksets, gates of recipes) run on this machine, outside of the
    sandbox, as you.
    A suite that you name by its path is trusted for this run, with the files that it names.

    Exit status: 0 every sample passed, or with --baseline there is no regression; 1 a sample failed, is missing or
    could not be judged, there is a regression, or no task could be compared; 2 the command line or a file is wrong; 3
    this machine has no sandbox; 130 interrupted. The same command with --out continues the run.
    """
    from cantrip_acp.evaluation import run
    from cantrip_acp.evaluation.suite import load_suite
    from cantrip_acp.files import paths

    as_json = output.as_json
    if output.any_drop and output.baseline is None:
        raise click.UsageError("--any-drop needs --baseline")
    if new:
        return _write_new(Path(suite))
    state, workspace = paths.state_dir(place.state_dir), place.cwd.resolve()
    # Prints of a suite's Python files must not appear between the lines of JSON.
    printing = partial(redirect_stdout, sys.stderr if as_json else sys.stdout)
    with printing():
        found = load_suite(suite, workspace=workspace, state_dir=state, recipe=wanted.recipe)
    for file in found.runs:
        click.echo(f"cantrip: runs {file} on this machine, outside of the sandbox", err=True)
    tasks = _runnable(found.chosen(wanted.only), wanted.crystals)
    if list_only:
        for task in tasks:
            click.echo(f"{task.name:<28} {task.kind:<9} {task.intent.splitlines()[0][:90]}")
        return 0
    plan = run.Plan(
        found,
        tasks,
        tuple(dict.fromkeys(wanted.crystals)) or (run.RECIPE,),
        wanted.samples or found.samples,
        wanted.jobs,
        budget.budget_usd,
        output.keep,
        place.allow_hosts,
    )
    before = run.read_baseline(output.baseline) if output.baseline is not None else None
    kept = output.out if output.out is not None else _new_folder(state, found.name)
    with run.result_folder(kept) as folder:
        progress = _Progress(as_json)
        runner = run.Runner(plan, folder, progress.ended)
        hosts = named_hosts(place.allow_hosts)
        for cantrip in runner.cantrips():
            print_allowed(cantrip, cantrip.circle, hosts, ask=False)
        earlier = runner.planned - len(runner.waiting())
        if earlier:
            click.echo(f"{earlier} ended in an earlier run and did not run again", err=True)
        with printing():
            interrupted = _run(runner, progress)
        result = run.result_of(runner)
        comparisons, left_out = (
            run.compared(result, before, any_drop=output.any_drop) if before is not None else ([], [])
        )
        run.write_result(result, kept, comparisons)
    from cantrip_acp.evaluation.report import write_page

    page = write_page(result, kept, comparisons, left_out)
    if as_json:
        data = {key: value for key, value in json.loads((kept / run.RESULT).read_bytes()).items() if key != "samples"}
        click.echo(escaped_json(json.dumps({**data, "out": str(kept), "page": str(page)}, ensure_ascii=False)))
        json_errors.ended()
    else:
        _show(result, kept, comparisons, left_out)
        click.echo(f"\npage   {page}")
        for loom in sorted({r["loom"] for r in result.records}):
            click.echo(f"loom   {kept / loom}")
    missing = result.planned - len(result.records)
    if missing:
        why = "the budget is spent" if runner.budget_is_spent else "interrupted" if interrupted else "not run"
        click.echo(
            f"cantrip: {missing} of {result.planned} samples are missing: {why}. To continue, add: --out {kept}",
            err=True,
        )
    if interrupted:
        return 130
    errors = sum(r["outcome"] == "error" for r in result.records)
    if missing or errors or not result.records:
        return 1
    if before is not None:
        if not comparisons:
            click.echo("cantrip: no task could be compared with the baseline", err=True)
        return 1 if any(each.regression for each in comparisons) or not comparisons else 0
    return 0 if all(r["outcome"] == "passed" for r in result.records) else 1


def _write_new(folder: Path) -> int:
    from cantrip_acp.evaluation.suite import TEMPLATE
    from cantrip_acp.types.errors import DefinitionError

    if folder.exists():
        raise DefinitionError("exists already; name a new folder", where=str(folder))
    folder.mkdir(parents=True)
    for source in sorted(TEMPLATE.iterdir()):
        if source.is_file():
            (folder / source.name).write_bytes(source.read_bytes())
            click.echo(f"wrote {folder / source.name}")
    click.echo(f"try it: cantrip eval {folder}")
    return 0


def _runnable(tasks: Sequence[Task], crystals: Sequence[str]) -> list[Task]:
    """The tasks whose programs are installed, and that have a recorded session if only that is played."""
    import shutil

    from cantrip_acp.evaluation.run import RECORDED
    from cantrip_acp.types.errors import DefinitionError

    found = []
    for task in tasks:
        absent = [program for program in task.needs if shutil.which(program) is None]
        unrecorded = set(crystals) == {RECORDED} and not task.recorded
        if absent or unrecorded:
            why = f"{', '.join(absent)} is not installed" if absent else "it has no recorded session"
            click.echo(f"cantrip: {task.name} is left out: {why}", err=True)
        else:
            found.append(task)
    if not found:
        raise DefinitionError("no task is left to run")
    return found


def _new_folder(state: Path, name: str) -> Path:
    from cantrip_acp.evaluation.run import file_name
    from cantrip_acp.files.paths import private

    folder = private(state / "evals")
    stamp = time.strftime("%Y%m%d-%H%M%S")
    place, number = folder / f"{file_name(name)}-{stamp}", 2
    while True:
        try:
            # Another process may begin in the same second.
            place.mkdir(mode=0o700)
            return place
        except FileExistsError:
            place, number = folder / f"{file_name(name)}-{stamp}-{number}", number + 1


def _run(runner: Runner, progress: _Progress) -> bool:
    """Run the samples. Returns whether the user interrupted."""
    total = len(runner.waiting())
    try:
        return run_with_progress(
            runner.run, lambda: progress.show(runner.running, total), lambda working: working.cancel()
        )
    finally:
        progress.line.clear()


class _Progress:
    """Shows finished samples on stderr."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._stdout = sys.stdout
        self._count = self._failed = 0
        self._begun = time.monotonic()
        self.line = ProgressLine()

    def ended(self, record: Record) -> None:
        self._count += 1
        self._failed += record["outcome"] != "passed"
        if self._as_json:
            self.line.clear()
            click.echo(escaped_json(json.dumps(record, ensure_ascii=False)), file=self._stdout)

    def show(self, running: int, total: int) -> None:
        self.line.show(lambda: self._text(running, total))

    def _text(self, running: int, total: int) -> str:
        elapsed = time.monotonic() - self._begun
        parts = [f"{self._count}/{total} samples", f"{running} running"]
        if self._failed:
            parts.append(f"{self._failed} not passed")
        if 0 < self._count < total:
            parts.append(f"about {duration((total - self._count) * elapsed / self._count)} left")
        return " · ".join(parts)


def _show_failed(result: Result, place: Path, screen: Screen) -> None:
    """Print the failures: for each task and crystal each reason once, with the number of its samples, and one thread."""
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in result.records:
        if record["outcome"] != "passed":
            groups.setdefault((record["task"], record["crystal"]), []).append(record)
    for (task, crystal), failed in list(groups.items())[:_SHOWN]:
        samples = len(result.of(crystal, task))
        ends = ", ".join(dict.fromkeys(str(record["reason"]) for record in failed))
        screen.line()
        screen.line(f"{task}, {crystal}: {len(failed)} of {samples} sample{'' if samples == 1 else 's'} ({ends}):")
        texts = Counter(
            text for record in failed for text in [*record["wrong"], *([record["error"]] if record["error"] else [])]
        )
        for text, count in texts.most_common(_REASONS):
            screen.line(f"- {text}" + (f"  ({count} times)" if count > 1 else ""), indent=2)
        if len(texts) > _REASONS:
            screen.line(f"- and {len(texts) - _REASONS} other reasons", indent=2)
        if (shown := next((record for record in failed if record["turn"]), None)) is not None:
            screen.line(f"cantrip loom view {place / shown['loom']} --turn {shown['turn']}", indent=2)
    if len(groups) > _SHOWN:
        screen.line()
        screen.line(f"{len(groups) - _SHOWN} more tasks did not pass: see {place / 'report.html'}")


def _show(result: Result, place: Path, comparisons: Sequence[Comparison], left_out: Sequence[str]) -> None:
    """Print the tables: a row for each crystal, then each task with each crystal, then the failures."""
    from cantrip_acp.cli.render.table import print_table
    from cantrip_acp.cli.render.terminal import Screen
    from cantrip_acp.evaluation import report
    from cantrip_acp.evaluation.run import differing

    screen = Screen()
    right = {"passed", "errors", "turns", "tokens in", "out", "cost", "time"}
    print_table(screen, report.HEAD, [report.summary(c, result.cell(c)) for c in result.crystals], right=right)
    rows: list[list[Cell]] = []
    for task in result.tasks:
        cells = [result.cell(crystal, task) for crystal in result.crystals]
        shown = []
        for found in cells:
            judged = found.samples - found.errors
            good = bool(judged) and found.passed == judged
            text = (
                f"{found.passed}/{judged} {report.percent(found.rate, found.interval)}"
                if judged
                else "error" * bool(found.samples)
            )
            shown.append((text, "green" if good else "red"))
        rows.append([task, *shown])
    screen.line()
    print_table(screen, ("task", *result.crystals), rows)
    _show_failed(result, place, screen)
    if differences := differing(result):
        screen.line()
        screen.line(("Differences", "bold"))
        for difference in differences:
            screen.line((report.difference_sentence(difference), "bold" if difference.counts else ""), indent=2)
    if comparisons or left_out:
        screen.line()
        screen.line(("Against the baseline", "bold"))
        for each in comparisons:
            screen.line((report.sentence(each), "red" if each.regression else ""), indent=2)
        for text in left_out:
            screen.line(f"not compared: {text}", indent=2)
