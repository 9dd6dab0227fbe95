"""``python -m bench.evals``: attempts at the tasks, a table of what came of them.

    python -m bench.evals --recorded                 # the recorded sessions: no key, no model
    python -m bench.evals --crystal anthropic:claude-sonnet-4-5 --samples 3
    python -m bench.evals --only bug --keep /tmp/runs --json

Exit status: 0 where every attempt passed, 1 where one did not, 2 for usage.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path

import anyio

from bench.evals import table
from bench.evals.attempt import Attempt, attempt
from bench.evals.task import Task, tasks
from cantrip_acp.core.errors import CantripError, MissingKey
from cantrip_acp.recipes import DEFAULT, load
from cantrip_acp.recipes.build import crystal_factory, crystals


def main(argv: list[str] | None = None) -> int:
    """Run it; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.evals", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--crystal", help="PROVIDER:MODEL; by default $CANTRIP_CRYSTAL or a provider with a key")
    parser.add_argument(
        "--recorded", action="store_true", help="play the recorded sessions; also where there is no key"
    )
    parser.add_argument("--recipe", default=DEFAULT, help="the recipe that works on them (%(default)s)")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="tasks whose name begins so")
    parser.add_argument("--samples", type=int, default=1, metavar="N", help="attempts at each task")
    parser.add_argument(
        "--seconds", type=float, default=900, help="the longest that one attempt may take (%(default)s)"
    )
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep looms, answers and files there")
    parser.add_argument("--json", action="store_true", help="print JSON in place of the table")
    parser.add_argument("--list", action="store_true", help="name the tasks and end")
    options = parser.parse_args(argv)
    try:
        chosen = tasks(options.only)
        if options.list:
            for task in chosen:
                print(f"{task.name:<24} {task.kind:<9} {task.intent.splitlines()[0][:90]}")
            return 0
        if options.samples < 1:
            parser.error("--samples is at least 1")
        if options.recorded and options.crystal:
            parser.error("--recorded plays recorded sessions, --crystal a model: give one of them")
        recorded = _plays_recorded(options)
    except (CantripError, ValueError) as error:
        print(f"python -m bench.evals: {error}", file=sys.stderr)
        return 2
    attempts = anyio.run(_all, chosen, recorded, options)
    print(table.as_json(attempts) if options.json else table.shown(attempts))
    return 0 if attempts and all(a.passed for a in attempts) else 1


def _plays_recorded(options: argparse.Namespace) -> bool:
    """Whether the recorded sessions are played: asked for, or no model can be had (which is said).

    Raises `CantripError` for a crystal that was asked for and cannot be had.
    """
    if options.recorded:
        return True
    if options.crystal:
        os.environ[crystal_factory.VARIABLE] = options.crystal
    try:
        crystals.crystal_for(load(options.recipe))
    except MissingKey as missing:
        if options.crystal:
            raise
        print(f"no model: {missing}\nso the recorded sessions are played", file=sys.stderr)
        return True
    return False


async def _all(chosen: list[Task], recorded: bool, options: argparse.Namespace) -> list[Attempt]:
    attempts = []
    for task in chosen:
        absent = [program for program in task.needs if shutil.which(program) is None]
        if absent:
            print(f"{task.name} is left out: {', '.join(absent)} is not installed", file=sys.stderr)
            continue
        if recorded and not task.recorded:
            print(f"{task.name} is left out: it has no recorded session", file=sys.stderr)
            continue
        for _ in range(options.samples):
            one = await attempt(task, options.recipe, recorded=recorded, seconds=options.seconds, keep=options.keep)
            print(
                f"{one.task}: {'pass' if one.passed else 'FAIL'} ({one.reason}, {one.seconds:.1f} s)", file=sys.stderr
            )
            attempts.append(one)
    return attempts


if __name__ == "__main__":
    sys.exit(main())
