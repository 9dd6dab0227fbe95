"""`cantrip conformance`: run suites in the format of ``tests.yaml`` and report which cases passed, failed or were skipped."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cantrip_acp.cli.command_table import examples

if TYPE_CHECKING:
    from cantrip_acp.cli.render.terminal import Screen
    from cantrip_acp.conformance.case import Case
    from cantrip_acp.conformance.runner import Outcome

_STYLES = {"passed": "green", "failed": "bold red", "skipped": "yellow"}


@click.command(
    "conformance",
    short_help="Run conformance suites against the real loop, loom and mediums.",
    epilog=examples(
        "printf '[{rule: CALL-1, name: it has a crystal, setup: {crystal: null}, action: {construct_cantrip: true}, '"
        "'expect: {error: cantrip requires a crystal}}]' > tests.yaml",
        "cantrip conformance tests.yaml",
        "cantrip conformance tests.yaml --rule CALL-1",
    )["epilog"],
)
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--rule",
    "rules",
    multiple=True,
    metavar="RULE",
    help="Run only the cases of this rule (LOOP-3) or of this group of rules (LOOP). May be repeated.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object for each case, and at the end one with the counts."
)
def conformance(files: tuple[Path, ...], rules: tuple[str, ...], as_json: bool) -> None:
    """Run every case of the suites FILE..., and print one line for each case.

    A case runs with this package's real loop, in a new temporary folder that takes the place of /. A bash or code case
    runs in the real sandbox. A case is skipped if this version lacks something that it needs, or if it has no action.
    An unknown key in a case makes the case fail.

    Exit status: 0 nothing failed, 1 a case failed, 2 a file cannot be read or no case has the rule.
    """
    from cantrip_acp.conformance.runner import select_cases
    from cantrip_acp.conformance.suite import read_suite
    from cantrip_acp.types.errors import DefinitionError

    cases: list[Case] = []
    unreadable = False
    for file in files:
        try:
            cases += read_suite(file)
        except DefinitionError as error:
            unreadable = True
            click.echo(f"cantrip conformance: {error}", err=True)
    picked = select_cases(cases, rules)
    if cases and not picked:
        known = ", ".join(sorted({case.rule for case in cases}))
        raise click.UsageError(f"no case has the rule {' or '.join(rules)}; the rules of these files: {known}")
    counts: Counter[str] = Counter()
    report = _json_report() if as_json else _line_report()

    def count(outcome: Outcome) -> None:
        counts[outcome.status] += 1
        report(outcome)

    _run(picked, count)
    if as_json:
        summary = {
            "event": "result",
            "passed": counts["passed"],
            "failed": counts["failed"],
            "skipped": counts["skipped"],
        }
        click.echo(json.dumps(summary))
    else:
        click.echo(f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
    sys.exit(2 if unreadable else 1 if counts["failed"] else 0)


def _run(cases: list[Case], report: Callable[[Outcome], None]) -> None:
    import anyio

    from cantrip_acp.conformance.runner import run_case

    async def run_all() -> None:
        for case in cases:
            report(await run_case(case))

    anyio.run(run_all)


def _json_report() -> Callable[[Outcome], None]:
    def report(outcome: Outcome) -> None:
        case = outcome.case
        record = {
            "event": "case",
            "file": str(case.file),
            "line": case.line,
            "rule": case.rule,
            "name": case.name,
            "status": outcome.status,
            "problems": [{"path": p.path, "message": p.message} for p in outcome.problems],
            "reason": outcome.reason or None,
            "duration_ms": round(outcome.duration_ms, 3),
        }
        click.echo(json.dumps(record))

    return report


def _line_report() -> Callable[[Outcome], None]:
    from cantrip_acp.cli.render.terminal import Screen

    screen: Screen = Screen()

    def report(outcome: Outcome) -> None:
        case = outcome.case
        detail = f"  [{outcome.reason}]" if outcome.status == "skipped" else ""
        if outcome.problems:
            detail = f"  {case.where}: " + "; ".join(_one_line(str(p)) for p in outcome.problems)
        screen.line((f"{outcome.status:8}", _STYLES[outcome.status]), f"{case.rule:10} {case.name}", (detail, "dim"))
        screen.flush()

    return report


def _one_line(text: str) -> str:
    return " ".join(text.split())
