"""`cantrip gc`: deletes old looms of the state folder and old results of a tuple-space, or lists what it would delete."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Collection
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cantrip_acp.cli.command_table import examples
from cantrip_acp.cli.session.setup import state_option
from cantrip_acp.cli.session.tuple_space import space_option

if TYPE_CHECKING:
    from cantrip_acp.retention.plan import Plan
    from cantrip_acp.retention.rules import Item, Rules
    from cantrip_acp.tuplespace.retention import Tiers
    from cantrip_acp.tuplespace.stores.base import Expired


@click.command(
    "gc",
    **examples(
        "cantrip gc", "cantrip gc --older-than 30d --max-size 2GB", "cantrip gc --older-than 1y --yes", "cantrip gc --json",
        "cantrip gc --hot-days 7 --max-mb 1000 --yes",
    ),
)  # fmt: skip
@click.option("--yes", is_flag=True, help="Delete the looms. Without this option, the command only lists them.")
@click.option("--dry-run", is_flag=True, help="Only list what would be deleted (the default).")
@click.option(
    "--older-than",
    metavar="AGE",
    help="Delete looms whose last change is older: 90d, 12h, 2w, 1y, or never.  [default: gc.older_than, else 90d]",
)
@click.option(
    "--max-size",
    metavar="SIZE",
    help="Then delete the oldest looms until the rest is not larger than this: 500MB, 2GB, or unlimited.  "
    "[default: gc.max_size, else unlimited]",
)
@click.option(
    "--hot-days",
    type=click.IntRange(0),
    metavar="DAYS",
    help="Delete large results of a tuple-space that are older than this.  [default: $YOOL_TUPLE_HOT_DAYS, else 30]",
)
@click.option(
    "--warm-days",
    type=click.IntRange(0),
    metavar="DAYS",
    help="After this number of days, also delete the first lines of a deleted result.  [default: $YOOL_TUPLE_WARM_DAYS, else 365]",
)
@click.option(
    "--max-mb",
    type=click.IntRange(0),
    metavar="MB",
    help="Delete the oldest large results until the rest is not larger than this.  [default: $YOOL_TUPLE_MAX_MB, else 5000]",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@space_option
@state_option
def gc(
    yes: bool,
    dry_run: bool,
    older_than: str | None,
    max_size: str | None,
    hot_days: int | None,
    warm_days: int | None,
    max_mb: int | None,
    as_json: bool,
    space: str | None,
    state_dir: Path | None,
) -> int:
    """List the old looms of the state folder, and the old results, that --yes would delete. With --yes, delete them.

    A loom is not deleted if a process has it open, if `cantrip loom keep` marked it, if another loom continues it,
    or if somebody changed a file in the worktree of its fork. Together with a loom, the worktrees of its forks in
    the state folder and its hidden git refs (the saved files of its turns) are deleted. Old entries of the recipe
    cache are deleted too, and the home folders of commands (ward bash_home) that no session used for as long, or
    whose workspace is gone for a day, and files in the quarantine that nobody kept or dropped for as long. The
    command changes nothing else outside the state folder, and does not follow symbolic links.

    The command also deletes large results of a tuple-space that are too old or too many (--space, else the tuple-space
    of the state folder, if there is one). It never deletes tuples and receipts, and a receipt keeps the hash and the
    size of its result. The command answers tuples in the lane gc.urgent, which ask for space in the state folder.

    You can set the defaults in settings.toml of the configuration folder: [gc], older_than = "90d", max_size = "2GB".

    Exit status: 0 done, or nothing to do; 1 something could not be deleted, or another gc is running; 2 wrong usage.
    """
    from contextlib import nullcontext

    from cantrip_acp.files import paths
    from cantrip_acp.retention.plan import locked, make_plan

    if yes and dry_run:
        raise click.UsageError("--yes and --dry-run cannot be used together: --yes deletes, --dry-run does not")
    state = paths.state_dir(state_dir)
    if state_dir is not None and not state.is_dir():
        raise click.BadParameter(f"the folder {state} does not exist", param_hint="--state-dir")
    rules = _rules(older_than, max_size)
    results = _Results(space, state, hot_days, warm_days, max_mb)
    with locked(state) if yes else nullcontext():
        with closing(make_plan(state, rules, progress=_progress())) as plan:
            done = _delete(plan, quiet=as_json) if yes else None
        results.collect(yes, sum(item.size + item.beside for item, why, _ in done or () if why is None))
    if as_json:
        click.echo(json.dumps(_data(plan, done) | results.data()))
        return 1 if done is not None and any(failed for _, _, failed in done) else 0
    if done is None:
        _print_plan(plan)
    else:
        _print_result(plan, done)
    results.show(yes)
    return 1 if done is not None and any(failed for _, _, failed in done) else 0


class _Results:
    """The large results of a tuple-space, if there is one. It is never created here."""

    def __init__(
        self, space: str | None, state: Path, hot_days: int | None, warm_days: int | None, max_mb: int | None
    ) -> None:
        self.expired: Expired | None = None
        self.answered = 0
        self._state = state
        self._space = space if space is not None or (state / "tuples.db").exists() else ""
        given = {"hot_days": hot_days, "warm_days": warm_days, "max_mb": max_mb}
        self._given = {name: value for name, value in given.items() if value is not None}
        self.location = ""
        self.tiers: Tiers | None = None

    def collect(self, yes: bool, freed: int) -> None:
        """Purge results beyond the age and size limits, or with False only count them."""
        if self._space == "":
            return
        import msgspec

        from cantrip_acp.cli.session.tuple_space import open_space, worker_name
        from cantrip_acp.tuplespace import retention

        self.tiers = msgspec.structs.replace(retention.Tiers.from_environment(), **self._given)
        with closing(open_space(self._space, self._state)) as store:
            self.location = store.location
            self.expired = retention.collect(store, self.tiers, dry_run=not yes)
            if yes:
                result = {"freed_bytes": freed + self.expired.bytes}
                self.answered = retention.answer_calls(store, worker_name(), str(self._state), result)

    def data(self) -> dict[str, Any]:
        if self.expired is None or self.tiers is None:
            return {}
        import msgspec

        return {
            "space": {
                "location": self.location,
                "rules": msgspec.to_builtins(self.tiers),
                **msgspec.to_builtins(self.expired),
                "answered": self.answered,
            }
        }

    def show(self, yes: bool) -> None:
        if self.expired is None:
            return
        each = self.expired
        if each.bodies or each.excerpts:
            what = "purged" if yes else "with --yes would purge"
            click.echo(
                f"{what} {each.bodies} large results ({size(each.bytes)}) and {each.excerpts} excerpts of {self.location}"
            )
        click.echo(f"{each.bodies_left} large results kept, {size(each.bytes_left)}")
        if self.answered:
            click.echo(f"{self.answered} calls for space answered (lane gc.urgent)")


def _rules(older_than: str | None, max_size: str | None) -> Rules:
    from cantrip_acp.files import paths
    from cantrip_acp.retention import rules

    settings = rules.read(paths.config_dir())
    return rules.Rules(
        settings.older_than if older_than is None else _parse("--older-than", rules.age, older_than),
        settings.max_size if max_size is None else _parse("--max-size", rules.size, max_size),
    )


def _parse(option: str, parse: Callable[[str], Any], text: str) -> Any:
    try:
        return parse(text)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint=option) from None


def _progress() -> Callable[[int, int], None] | None:
    """On a terminal, return a function that prints how many looms were read. It clears its line at the end."""
    if not sys.stderr.isatty():
        return None

    def show(done: int, total: int) -> None:
        sys.stderr.write(f"\rreading looms: {done} of {total}" + ("\r\033[K" if done == total else ""))
        sys.stderr.flush()

    return show


Done = list[tuple["Item", "str | None", bool]]
"""Each item with the reason why it was not deleted (None if it was deleted), and whether deleting it failed."""


def _delete(plan: Plan, *, quiet: bool) -> Done:
    from cantrip_acp.retention.plan import delete_items

    done: Done = []
    for item, why, failed in delete_items(plan):
        done.append((item, why, failed))
        if not quiet:
            click.echo(
                _line("deleted" if why is None else "failed" if failed else "not deleted", item, why or item.why)
            )
    return done


def _print_plan(plan: Plan) -> None:
    for item in plan.to_delete:
        click.echo(_line("would delete", item, item.why))
    _print_kept_items(plan)
    if plan.to_delete:
        click.echo(f"would free {size(plan.freed)}; {_remaining(plan, plan.to_delete)}")
        click.echo("nothing was deleted; use --yes to delete")
    else:
        click.echo(f"nothing to delete in {plan.state}; {_remaining(plan, [])}")


def _print_result(plan: Plan, done: Done) -> None:
    _print_kept_items(plan, printed={item.name for item, _, _ in done})
    gone = [item for item, why, _ in done if why is None]
    if done:
        click.echo(f"freed {size(sum(item.size + item.beside for item in gone))}; {_remaining(plan, gone)}")
    else:
        click.echo(f"nothing to delete in {plan.state}; {_remaining(plan, [])}")


def _print_kept_items(plan: Plan, printed: Collection[str] = ()) -> None:
    """Print the items that the plan keeps, without those whose line is already printed, and the plan's notes."""
    from cantrip_acp.text.sanitize import clean_line

    for item in plan.kept:
        if item.name not in printed:
            click.echo(_line("kept", item, f"{item.kept} ({item.why})"))
    for note in plan.notes:
        click.echo(f"note: {clean_line(note)}", err=True)


def _remaining(plan: Plan, deleted: list[Item]) -> str:
    """The number and the size of the looms that remain, as text."""
    looms = [item for item in deleted if item.kind == "loom"]
    count, remaining = plan.looms - len(looms), plan.loom_bytes - sum(item.size for item in looms)
    return f"{count} loom{'' if count == 1 else 's'} kept, {size(remaining)}"


def _line(what: str, item: Item, why: str) -> str:
    from cantrip_acp.text.sanitize import clean_line

    when = time.strftime("%Y-%m-%d", time.localtime(item.changed))
    return f"{what}  {clean_line(item.name)}  {when}  {size(item.size + item.beside)}  {clean_line(why)}"


def size(count: float) -> str:
    """Format a number of bytes for people (decimal units: 1 kB is 1000 bytes)."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:,.0f} {unit}" if unit == "bytes" or count >= 10 else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError


def _data(plan: Plan, done: Done | None) -> dict[str, Any]:
    def as_data(item: Item, **more: Any) -> dict[str, Any]:
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(item.changed))
        data = {"kind": item.kind, "name": item.name, "bytes": item.size, "beside_bytes": item.beside}
        return {**data, "changed": when, "why": item.why, **more}

    going = plan.to_delete if done is None else [item for item, why, _ in done if why is None]
    return {
        "state_dir": str(plan.state),
        "dry_run": done is None,
        "rules": {"older_than_seconds": plan.rules.older_than, "max_size_bytes": plan.rules.max_size},
        "looms": plan.looms,
        "loom_bytes": plan.loom_bytes,
        "removed" if done is not None else "would_remove": [as_data(item) for item in going],
        "bytes": sum(item.size + item.beside for item in going),
        "stays": [as_data(item, because=item.kept) for item in plan.kept],
        "failed": [as_data(item, because=why) for item, why, failed in done or () if failed],
        "notes": plan.notes,
    }
