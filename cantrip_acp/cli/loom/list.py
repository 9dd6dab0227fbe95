"""`cantrip loom list` and `stats`: list the threads of one loom or of all looms, and compute totals."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cantrip_acp.cli.command_table import complete_loom, examples
from cantrip_acp.cli.session.option_groups import option_group
from cantrip_acp.cli.session.setup import state_option

if TYPE_CHECKING:
    from cantrip_acp.loom.loom import Loom
    from cantrip_acp.loom.query.listing import ThreadFilter, ThreadLine

SORTS = ("when", "reward", "relative", "turns", "tokens", "cost", "seconds")
files_argument = click.argument("names", metavar="[FILE]...", nargs=-1, shell_complete=complete_loom)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


class Looms:
    """Opens the named looms one after the other, or all looms of the state folder.

    If all looms are opened, a loom that cannot be opened is noted in `problems` and skipped.
    """

    def __init__(self, names: tuple[str, ...], state_dir: Path | None) -> None:
        from cantrip_acp.files import paths

        self.state = paths.state_dir(state_dir)
        self.names = names
        self.problems: list[str] = []

    def __iter__(self) -> Iterator[Loom]:
        from cantrip_acp.loom.find_loom import list_looms, open_by_name, open_readonly
        from cantrip_acp.types.errors import LoomError

        for name in self.names:
            with open_by_name(name, self.state) as held:
                yield self._note_damage(held)
        for path in () if self.names else list_looms(self.state):
            try:
                held = open_readonly(path)
            except LoomError as error:
                self.problems.append(str(error))
                continue
            with held:
                yield self._note_damage(held)

    def _note_damage(self, loom: Loom) -> Loom:
        self.problems += [f"{loom.location}: {problem}" for problem in loom.problems]
        return loom

    def print_problems(self) -> None:
        """Print on stderr which looms are damaged or could not be opened."""
        from cantrip_acp.text.sanitize import clean_line

        for problem in self.problems[:20]:
            click.echo(f"damage   {clean_line(problem)}", err=True)
        if len(self.problems) > 20:
            click.echo(f"         … and {len(self.problems) - 20:,} more; --json shows all of them", err=True)


def _filter(
    intent: str | None,
    outcome: str | None,
    reward: str | None,
    gate: str | None,
    text: str | None,
    since: str | None,
    until: str | None,
    model: str | None,
) -> ThreadFilter:
    from cantrip_acp.loom.query.listing import ThreadFilter, rewarded, when

    return ThreadFilter(
        intent=intent,
        outcome=outcome,
        reward=rewarded(reward) if reward is not None else None,
        gate=gate,
        text=text,
        since=when(since) if since is not None else None,
        until=when(until, end=True) if until is not None else None,
        model=model,
    )


@click.command(
    "list",
    **examples(
        "cantrip recipe new greeter",
        'cantrip cast greeter "Say hello."',
        "cantrip loom list",
        "cantrip loom list --outcome done --intent hello --reward any --json",
    ),
)
@files_argument
@click.option("--intent", metavar="TEXT", help="Only threads with TEXT in an intent.")
@click.option(
    "--outcome",
    metavar="WORD",
    help="Only threads with this outcome: done, text, max_turns, … or terminated, truncated, active.",
)
@click.option(
    "--reward", metavar="TEST", help="Only threads whose reward matches, such as '>0.5', '0.2..0.8', none, any."
)
@click.option("--gate", metavar="NAME", help="Only threads in which this gate was called.")
@click.option("--text", metavar="TEXT", help="Only threads with TEXT in a message, a program or an observation.")
@click.option(
    "--since", metavar="WHEN", help="Only threads written at or after WHEN: 2h, 7d (ago), 2026-11-21, 2026-11-21T08:30."
)
@click.option("--until", metavar="WHEN", help="Only threads last written at or before WHEN.")
@click.option("--model", metavar="TEXT", help="Only threads with TEXT in the name of the model.")
@click.option(
    "--sort",
    type=click.Choice(SORTS),
    default="when",
    show_default=True,
    help="Sort by this value, highest or newest first.",
)
@click.option("--reverse", is_flag=True, help="Sort in the other direction, lowest or oldest first.")
@click.option(
    "--limit", type=click.IntRange(1), metavar="N", help="Show at most N threads.  [default: 50; with --json, all]"
)
@json_option
@state_option
@option_group("wanted", _filter)
def list_threads(
    names: tuple[str, ...],
    wanted: ThreadFilter,
    sort: str,
    reverse: bool,
    limit: int | None,
    as_json: bool,
    state_dir: Path | None,
) -> None:
    """List threads with their outcome, reward, turns, tokens, cost, model and intent.

    FILE is a loom, as for the other loom commands. Without FILE, all looms of the state folder are listed. It lists a
    thread only if all filters match. Filters ignore upper and lower case. The id of a thread is the id of its last
    turn; use it as TURN in the other loom commands.
    """
    from cantrip_acp.loom.query.listing import Listing, ThreadFilter

    looms = Looms(names, state_dir)
    most = limit if limit is not None else None if as_json else 50
    found: list[tuple[str, ThreadLine]] = []
    for loom in looms:
        where = loom.location or ""
        # The threads are already sorted, newest first. Every other order needs the complete list.
        lines = Listing(loom).lines(wanted)
        found += ((where, line) for line in _first(lines, most if sort == "when" and not reverse else None))
    found.sort(key=lambda item: _key(item[1], sort), reverse=not reverse)
    # Threads without the sort value come last in both directions.
    found.sort(key=lambda item: _key(item[1], sort)[0] == 0)
    more = most is not None and len(found) > most
    shown = found[:most]
    if as_json:
        threads = [{"loom": where, **line.record()} for where, line in shown]
        click.echo(json.dumps({"threads": threads, "more": more, "problems": looms.problems}, default=str))
        return
    _table(shown, more=more, many_looms=len({where for where, _ in shown}) > 1)
    if not shown:
        given = wanted != ThreadFilter()
        click.echo(
            "no thread fits the filters" if given else f"no thread yet ({', '.join(names) or looms.state / 'looms'})"
        )
    looms.print_problems()


def _first(lines: Iterable[ThreadLine], most: int | None) -> Iterator[ThreadLine]:
    # Yields one thread more than `most`, so that the caller knows that there are more.
    for number, line in enumerate(lines):
        if most is not None and number > most:
            return
        yield line


def _key(line: ThreadLine, sort: str) -> tuple[int, Any]:
    value: Any = {
        "when": line.ended,
        "reward": line.reward,
        "relative": line.relative,
        "turns": line.turns,
        "tokens": line.spent.usage.total_tokens,
        "cost": line.spent.usage.cost,
        "seconds": line.spent.seconds,
    }[sort]
    return (0, 0) if value is None or value == "" else (1, value)


def _table(found: list[tuple[str, ThreadLine]], *, more: bool, many_looms: bool) -> None:
    from cantrip_acp.cli.render.table import Cell, mark_incomplete, money, number, print_table, tokens
    from cantrip_acp.cli.render.terminal import Screen

    screen = Screen()
    head = (
        "thread",
        "outcome",
        "reward",
        "relative",
        "turns",
        "tokens",
        "cost",
        "when",
        "model",
        "children",
        "loom",
        "intent",
    )
    rows: list[list[Cell]] = []
    for where, line in found:
        rows.append(
            [
                line.leaf,
                (line.outcome, {"terminated": "green", "truncated": "yellow"}.get(line.state, "")),
                (number(line.reward), "magenta"),
                (number(line.relative), "magenta"),
                f"{line.turns:,}",
                tokens(line.spent.usage.total_tokens, line.spent.usage.queries_without_usage),
                mark_incomplete(money(line.spent.usage.cost), line.spent.usage.queries_without_cost),
                (line.ended[:19].replace("T", " "), "dim"),
                (line.model or "", "dim"),
                f"{line.children:,}" if line.children else "",
                (Path(where).name.removesuffix(".loom.jsonl") if many_looms else "", "dim"),
                _about(line),
            ]
        )
    print_table(screen, head, rows, right=("reward", "relative", "turns", "tokens", "cost", "children"))
    if more:
        screen.line(("… and more; --limit shows them", "dim"))


def _about(line: ThreadLine) -> str:
    marks = f"child of {line.parent}: " if line.parent else f"fork of {line.forked_from}: " if line.forked_from else ""
    return marks + (line.intent or "")


@click.command(
    "stats",
    **examples(
        "cantrip recipe new greeter",
        'cantrip cast greeter "Say hello."',
        "cantrip loom stats",
        "cantrip loom stats --json",
    ),
)
@files_argument
@json_option
@state_option
def stats(names: tuple[str, ...], as_json: bool, state_dir: Path | None) -> None:
    """Show totals of looms: casts, turns, tokens, cost, times, gates with their errors, rewards, models, folds, forks.

    FILE is a loom, as for the other loom commands. Without FILE, all looms of the state folder are counted.
    """
    from cantrip_acp.loom.query.statistics import Statistics

    looms = Looms(names, state_dir)
    counted = Statistics()
    for loom in looms:
        counted.add(loom)
    data = counted.record()
    if as_json:
        click.echo(json.dumps({**data, "problems": looms.problems}, default=str))
        return
    _show(data)
    looms.print_problems()


def _show(data: dict[str, Any]) -> None:
    from cantrip_acp.cli.render.table import count_of, mark_incomplete, money, number, print_table
    from cantrip_acp.cli.render.terminal import Screen

    screen = Screen()
    dot = f" {screen.marks.dot} "
    casts, tokens, given = data["casts"], data["tokens"], data["rewards"]

    def print_row(name: str, *parts: str) -> None:
        screen.line((f"{name:<10}", "dim"), dot.join(part for part in parts if part))

    print_row("looms", f"{data['looms']:,}", count_of(data["damage"], "damaged place") if data["damage"] else "")
    ended = ", ".join(f"{count:,} {name}" for name, count in casts["outcomes"].items())
    print_row(
        "casts", f"{casts['started']:,}", ended, f"{casts['children']:,} of children" if casts["children"] else ""
    )
    print_row(
        "turns",
        f"{data['turns']:,}",
        *(count_of(data[name], name[:-1]) for name in ("folds", "forks", "snapshots") if data[name]),
    )
    without, unpriced = data.get("queries_without_usage", 0), data.get("queries_without_cost", 0)
    print_row(
        "tokens",
        f"{_count(tokens['prompt']) or 'unknown'} in ({_count(tokens['cached']) or 'unknown'} cached)",
        f"{_count(tokens['completion']) or 'unknown'} out",
        f"not all known of {_queries(without)}" if without else "",
    )
    print_row("cost", money(data["cost"]) or "not known", f"not known of {_queries(unpriced)}" if unpriced else "")
    for name, key, unit in (("a turn", "turn_ms", "ms"), ("a cast", "cast_s", "s")):
        spread = data[key]
        if spread["count"]:
            print_row(name, *(f"{q} {spread[q]:,.4g} {unit}" for q in ("p50", "p95", "max")))
    if data["programs"]["calls"]:
        print_row(
            "programs",
            f"{data['programs']['calls']:,}",
            f"{data['programs']['errors']:,} failed ({data['programs']['error_rate']:.1%})",
        )
    kinds = ", ".join(f"{count:,} {name}" for name, count in given["given"].items())
    if kinds:
        spread = (
            f"mean {number(given['mean'])}, {number(given['min'])} to {number(given['max'])}" if given["count"] else ""
        )
        print_row("rewards", kinds, count_of(given["count"], "turn") + " with one", spread)
    if data["gates"]:
        screen.blank()
        gates = [
            [name, f"{c['calls']:,}", f"{c['errors']:,}", f"{c['error_rate']:.1%}"] for name, c in data["gates"].items()
        ]
        print_table(screen, ("gate", "calls", "errors", "rate"), gates, right=("calls", "errors", "rate"))
    if data["models"]:
        screen.blank()
        models = [
            [
                name,
                f"{m['turns']:,}",
                mark_incomplete(_count(m["tokens_prompt"]), m.get("queries_without_usage", 0)),
                mark_incomplete(_count(m["tokens_completion"]), m.get("queries_without_usage", 0)),
                mark_incomplete(money(m["cost"]), m.get("queries_without_cost", 0)),
            ]
            for name, m in data["models"].items()
        ]
        print_table(screen, ("model", "turns", "in", "out", "cost"), models, right=("turns", "in", "out", "cost"))


def _count(number: int | None) -> str:
    return "" if number is None else f"{number:,}"


def _queries(number: int) -> str:
    return "1 query" if number == 1 else f"{number:,} queries"
