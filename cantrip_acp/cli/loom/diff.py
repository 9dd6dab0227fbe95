"""`cantrip loom diff`, `compare` and `rank`: show how two threads differ, and compare the threads of a group."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cantrip_acp.cli.command_table import complete_loom, complete_turn, examples
from cantrip_acp.cli.loom.show import failed_forks
from cantrip_acp.cli.session.setup import state_option

if TYPE_CHECKING:
    from cantrip_acp.cli.render.terminal import Screen
    from cantrip_acp.loom.loom import Loom
    from cantrip_acp.loom.query.diff import Difference, Pair
    from cantrip_acp.loom.query.listing import Listing, ThreadLine
    from cantrip_acp.loom.rewards import Group, Standing

_PAIRS = 200
_LINES = 40
_GROUPS = 20

FORKED = (
    "cantrip recipe new greeter",
    'cantrip cast greeter "Say hello." --loom hello.loom.jsonl',
    'cantrip cast greeter "Say hello." --loom hello.loom.jsonl',
)
file_argument = click.argument("name", metavar="[FILE]", required=False, shell_complete=complete_loom)
turn_argument = click.argument("turn", required=False, shell_complete=complete_turn)
json_option = click.option("--json", "as_json", is_flag=True, help="As one JSON object.")
by_option = click.option(
    "--by",
    "basis",
    type=click.Choice(["auto", "reward", "implicit"]),
    default="auto",
    show_default=True,
    help="Compare by the recorded rewards, or by what the circle answered (implicit): two thirds for a thread that ended by "
    "itself, and one third times the share of its calls that succeeded. auto uses recorded rewards if there are any.",
)
method_option = click.option(
    "--method",
    type=click.Choice(["grpo", "centered", "rank"]),
    default="grpo",
    show_default=True,
    help="How the relative reward is computed. grpo: (r - mean) / deviation; centered: r - mean; rank: from 1 to -1 by rank.",
)
alike_option = click.option(
    "--alike",
    is_flag=True,
    help="Compare only threads with the same intent (and the same group of forks) after that turn. Trainers need this.",
)


@click.command("diff", **examples(*FORKED, "cantrip loom list hello.loom.jsonl", "cantrip loom diff hello.loom.jsonl"))
@click.argument("name", metavar="[FILE]", required=False, shell_complete=complete_loom)
@click.argument("left", metavar="[A]", required=False)
@click.argument("right", metavar="[B]", required=False)
@click.option("--with", "other", metavar="FILE2", shell_complete=complete_loom, help="B is a thread of the loom FILE2.")
@click.option("--full", is_flag=True, help="Show every turn and every line that differs.")
@json_option
@state_option
def diff(
    name: str | None,
    left: str | None,
    right: str | None,
    other: str | None,
    full: bool,
    as_json: bool,
    state_dir: Path | None,
) -> None:
    """Compare two threads of the loom FILE: their common turns, where they separate, and what differs in each turn. Without
    FILE, the newest loom in the state folder is used.

    A and B are turns (a number, `last`, or an id or its beginning), usually the last turns of threads. By default they are
    threads of the newest
    fork, or of the newest casts on the same intent: the one with the lowest reward and the one with the highest, or, without
    rewards, the first and the newest. A loom without forks shows the two threads that were written last.

    With --with, A is a turn of FILE and B a turn of FILE2, by default the one that was written last. A fork of a session in an
    editor has a loom of its own, which begins with the turns that both have.
    """
    from cantrip_acp.cli.render.terminal import Screen
    from cantrip_acp.files import paths
    from cantrip_acp.loom.find_loom import find_turn, open_by_name
    from cantrip_acp.loom.query.diff import difference
    from cantrip_acp.loom.query.listing import Listing
    from cantrip_acp.types.errors import DefinitionError

    if other is not None:
        _diff_with(name, left, other, right, paths.state_dir(state_dir), full=full, as_json=as_json)
        return
    with open_by_name(name, paths.state_dir(state_dir)) as held:
        listing = Listing(held)
        leaves = listing.outline.leaves
        if right is None and len(leaves) < 2:
            raise DefinitionError(
                f"holds {len(leaves)} thread{'' if len(leaves) == 1 else 's'}; diff needs two", where=name
            )
        first, second, why = _choose_pair(held, listing, find_turn(held, left) if left is not None else None)
        if right is not None:
            second = find_turn(held, right)
        found = difference(held, first, second, listing=listing)
        if as_json:
            click.echo(json.dumps(found.record(), default=str))
            return
        screen = Screen()
        if right is None:
            screen.line((f"{why}; A and B choose others", "dim"))
        _DiffPrinter(screen, full=full).show(found)


def _diff_with(
    name: str | None, left: str | None, other: str, right: str | None, state: Path, *, full: bool, as_json: bool
) -> None:
    """Compare a thread of the loom ``name`` with one of the loom ``other``."""
    from cantrip_acp.cli.render.terminal import Screen
    from cantrip_acp.loom.find_loom import find_turn, open_by_name
    from cantrip_acp.loom.query.diff import difference
    from cantrip_acp.loom.stores.memory import MemoryStore

    with open_by_name(name, state) as held, open_by_name(other, state) as beside:
        # Each name of a turn is one in its own loom.
        first, second = find_turn(held, left or "last"), find_turn(beside, right or "last")
        with held.joined(beside, MemoryStore()) as joined:
            found = difference(joined, first, second)
    if as_json:
        click.echo(json.dumps(found.record(), default=str))
        return
    _DiffPrinter(Screen(), full=full).show(found)


def _choose_pair(loom: Loom, listing: Listing, first: str | None) -> tuple[str, str, str]:
    """The two threads that are compared if the user names none, or only the first one; and why. Where there is only one
    thread, it is both."""
    from cantrip_acp.loom import rewards

    leaves, order = listing.outline.leaves, {leaf: n for n, leaf in enumerate(listing.outline.leaves)}
    groups = rewards.groups(loom, outline=listing.outline)
    if first is not None:
        groups = [group for group in groups if first in group.leaves]
    if not groups:
        chosen = first or leaves[-2 if len(leaves) > 1 else -1]
        other = next((leaf for leaf in reversed(leaves) if leaf != chosen), chosen)
        return chosen, other, "the threads that were written last"
    group = max(groups, key=lambda each: max(order.get(leaf, -1) for leaf in each.leaves))
    _, standings = rewards.ranked(loom, group, by="reward", outline=listing.outline)
    graded = sorted(
        (s for s in standings if s.reward is not None and s.leaf != first),
        key=lambda s: (s.reward, order.get(s.leaf, -1)),
    )
    at = f"of the {len(group.leaves)} threads that separate at {group.turn_id}"
    if first is None and len(graded) > 1 and graded[0].reward != graded[-1].reward:
        return graded[0].leaf, graded[-1].leaf, f"the lowest and the highest reward {at}"
    if first is not None and graded:
        return first, graded[-1].leaf, f"the highest reward {at}"
    others = [leaf for leaf in group.leaves if leaf != first]
    return first or others[0], others[-1], f"the first and the newest {at}"


class _DiffPrinter:
    """Prints the differences of two threads on a screen."""

    def __init__(self, screen: Screen, *, full: bool) -> None:
        self._screen = screen
        self._full = full

    def show(self, found: Difference) -> None:
        from cantrip_acp.cli.render.table import count_of

        screen = self._screen
        for mark, line, style in (("-", found.left, "red"), ("+", found.right, "green")):
            screen.line((f"{mark} {line.leaf}", style), (f"  {_figures(screen, line)}", "dim"))
            if line.intent:
                screen.line((_cut(line.intent), "dim"), indent=4)
        common = f"{count_of(found.turns_shared, 'turn') if found.turns_shared else 'no turn'} in common"
        screen.line(f"{common}; they separate at {found.parted_at}" if found.parted_at else common)
        differing = [pair for pair in found.pairs if not pair.same]
        shown = differing if self._full else differing[:_PAIRS]
        for pair in shown:
            self._pair(pair)
        turns = {pair.number for pair in found.pairs}
        same = len(turns.difference(pair.number for pair in differing))
        if same:
            screen.blank()
            screen.line((f"{same:,} of the {len(turns):,} turns after that are the same in both", "dim"))
        left = len({pair.number for pair in differing}.difference(pair.number for pair in shown))
        if left:
            screen.line((f"… {left:,} more turns differ; --full shows them", "dim"))

    def _pair(self, pair: Pair) -> None:
        screen = self._screen
        screen.blank()
        sides = [turn.id if turn is not None else "(ended)" for turn in (pair.left, pair.right)]
        dot = f" {screen.marks.dot} "
        screen.line((f"turn {pair.number}", "bold"), (dot, "dim"), (sides[0], "red"), "  ", (sides[1], "green"))
        only = pair.left or pair.right
        if pair.left is None or pair.right is None:
            if only is not None:
                mark, style = ("-", "red") if pair.left is not None else ("+", "green")
                did = [*only.gate_calls, only.utterance.code or only.utterance.content or ""]
                screen.line((f"{mark} {_cut('  '.join(d for d in did if d))}", style), indent=2)
            return
        for name, (left, right) in pair.differs.items():
            screen.line((name, "dim"), indent=2)
            self._values(left, right)

    def _values(self, left: Any, right: Any) -> None:
        from cantrip_acp.cli.render.renderer import unified_diff

        old, new = _text(left), _text(right)
        limit = None if self._full else _LINES
        lines = list(unified_diff("", old, new, limit=limit))[2:]
        for line, style in lines:
            if not line.startswith("@@"):
                self._screen.line((line if self._full else line[:2000], style), indent=4)


def _text(value: Any) -> str:
    if value is None:
        return "(none)"
    return value if isinstance(value, str) else json.dumps(value, indent=1, ensure_ascii=False, default=str)


def _cut(text: str) -> str:
    from cantrip_acp.text.sanitize import clean_line

    return clean_line(text, 200)


def _figures(screen: Screen, line: ThreadLine) -> str:
    from cantrip_acp.cli.render.table import count_of, number

    reward = f"reward {number(line.reward)}" if line.reward is not None else ""
    parts = (line.outcome, count_of(line.turns, "turn"), *line.spent.usage.words(), reward)
    return f" {screen.marks.dot} ".join(part for part in parts if part)


@click.command("compare", **examples(*FORKED, "cantrip loom compare hello.loom.jsonl"))
@file_argument
@turn_argument
@by_option
@method_option
@alike_option
@json_option
@state_option
def compare(
    name: str | None, turn: str | None, basis: str, method: str, alike: bool, as_json: bool, state_dir: Path | None
) -> None:
    """Compare the threads that separate at TURN of the loom FILE: outcome, reward, relative reward, turns, tokens, cost, gates.
    Without FILE, or if it is an empty text, the newest loom in the state folder is used.

    TURN is a number (1 is the first answer of the thread that was written last, 0 its start), `last`, or an id or its
    beginning. If no threads separate there, the nearest earlier turn with a branch is used. Without TURN, every group
    of the loom is compared. Casts of one cantrip on the same intent are a group too: they separate at its call.
    Turns, tokens and gates are counted only after the branch.
    """
    from cantrip_acp.files import paths
    from cantrip_acp.loom.find_loom import open_by_name

    with open_by_name(name, paths.state_dir(state_dir)) as held:
        compared = _compare_groups(held, turn, basis, method, alike=alike)
        if as_json:
            groups = [_data(*one) for one in compared]
            click.echo(json.dumps({"groups": groups, "failed_forks": failed_forks(held)}, default=str))
            return
        _tables(compared)
        _show_failed(held)


@click.command(
    "rank",
    **examples(
        *FORKED,
        'cantrip loom reward hello.loom.jsonl "" 1',
        "cantrip loom rank hello.loom.jsonl --by implicit --write",
        "cantrip loom list hello.loom.jsonl",
    ),
)
@file_argument
@turn_argument
@by_option
@method_option
@alike_option
@click.option("--write", is_flag=True, help="Write the relative rewards to the loom. Other rewards are not changed.")
@json_option
@state_option
def rank(
    name: str | None,
    turn: str | None,
    basis: str,
    method: str,
    alike: bool,
    write: bool,
    as_json: bool,
    state_dir: Path | None,
) -> None:
    """Rank the threads that separate at TURN of the loom FILE (without TURN: each group), best first, with relative rewards.
    Without FILE, or if it is an empty text, the newest loom in the state folder is used. Forks that failed before their first
    turn are named below the groups.

    --write adds a reward of the kind `relative` to the last turn of each thread. It never replaces another kind of reward.
    If some threads of a group have a reward, the threads without a reward are left out.
    """
    from cantrip_acp.files import paths
    from cantrip_acp.loom import rewards
    from cantrip_acp.loom.find_loom import find_loom, open_by_name
    from cantrip_acp.loom.loom import Loom

    state = paths.state_dir(state_dir)
    with Loom.open(find_loom(name, state)) if write else open_by_name(name, state) as held:
        compared = _compare_groups(held, turn, basis, method, alike=alike)
        written = 0
        skipped: list[str] = []
        for group, found, standings, _ in compared if write else ():
            if sum(s.relative is not None for s in standings) < 2:
                skipped.append(group.turn_id)
                continue
            written += rewards.record_relative(held, group, standings, by=f"rank:{method}", note=f"compared by {found}")
        if as_json:
            groups = [
                _data(group, found, _sort_standings(standings), lines) for group, found, standings, lines in compared
            ]
            data = {"groups": groups, "failed_forks": failed_forks(held), "written": written}
            click.echo(json.dumps(data, default=str))
            return
        _tables([(group, found, _sort_standings(standings), lines) for group, found, standings, lines in compared])
        _show_failed(held)
        if write:
            click.echo(f"{written} relative reward{'' if written == 1 else 's'} written")
        for turn_id in skipped:
            click.echo(f"not ranked: fewer than two of the threads that separate at {turn_id} have a reward", err=True)


_Comparison = tuple["Group", str, "list[Standing]", "dict[str, dict[str, Any]]"]


def _compare_groups(loom: Loom, turn: str | None, basis: str, method: str, *, alike: bool) -> list[_Comparison]:
    from cantrip_acp.loom import rewards
    from cantrip_acp.loom.find_loom import find_turn
    from cantrip_acp.loom.query.listing import Listing

    listing = Listing(loom)
    at: str | None = None
    if turn is not None:
        at = find_turn(loom, turn or None)
        above = [i for i in reversed(listing.outline.path(at)) if len(listing.outline.next.get(i, ())) > 1]
        at = above[0] if above else at
    compared: list[_Comparison] = []
    for group in rewards.groups(loom, at, alike=alike, outline=listing.outline):
        found, standings = rewards.ranked(loom, group, by=basis, method=method, outline=listing.outline)  # type: ignore[arg-type]
        compared.append(
            (group, found, standings, {leaf_id: _facts(loom, listing, group, leaf_id) for leaf_id in group.leaves})
        )
    return compared


def _facts(loom: Loom, listing: Listing, group: Group, leaf_id: str) -> dict[str, Any]:
    """Figures of a thread after the branch of its group: outcome, turns, tokens, cost, seconds, gates."""
    from cantrip_acp.loom.query.diff import gates_used

    line = listing.line(leaf_id)
    path = listing.outline.path(leaf_id)
    own = [i for i in path[path.index(group.turn_id) + 1 :] if listing.outline.places[i].role == "crystal"]
    before = listing.spent(group.turn_id)
    own_use = line.spent.usage - before.usage
    return {
        "outcome": line.outcome,
        "state": line.state,
        "intent": line.intent,
        "model": line.model,
        "turns": sum(listing.outline.places[i].is_utterance for i in own),
        "tokens": own_use.total_tokens,
        "cost": own_use.cost,
        **own_use.unknown(),
        "seconds": round(max(0.0, line.spent.seconds - before.seconds), 6),
        "gates": gates_used(loom, own),
    }


def _sort_standings(standings: list[Standing]) -> list[Standing]:
    return sorted(standings, key=lambda s: (s.rank is None, s.rank or 0))


def _data(group: Group, found: str, standings: list[Standing], facts: dict[str, dict[str, Any]]) -> dict[str, Any]:
    threads = [
        {"leaf": s.leaf, "rank": s.rank, "reward": s.reward, "relative": s.relative, **facts[s.leaf]} for s in standings
    ]
    return {"group": group.id, "turn": group.turn_id, "intent": group.intent, "by": found, "threads": threads}


def _show_failed(loom: Loom) -> None:
    from cantrip_acp.cli.render.terminal import Screen

    screen, failed = Screen(), failed_forks(loom)
    for each in failed[:_GROUPS]:
        about = f"fork {each['entity_id']} of {each['from_turn']}: {each['reason']}"
        screen.line((f"{screen.marks.failed} {about}", "red"), (f"  {_cut(each['error'] or '')}", "dim"))
    if len(failed) > _GROUPS:
        screen.line((f"… {len(failed) - _GROUPS:,} more forks failed; --json shows all of them", "dim"))


def _tables(compared: list[_Comparison]) -> None:
    from cantrip_acp.cli.render.table import Cell, mark_incomplete, money, number, print_table, tokens
    from cantrip_acp.cli.render.terminal import Screen

    screen = Screen()
    if not compared:
        screen.line("no threads separate there; a group is two forks of one turn, or two casts on the same intent")
    right = ("rank", "reward", "relative", "turns", "tokens", "cost", "seconds")
    for number_of, (group, found, standings, facts) in enumerate(compared):
        if number_of == _GROUPS:
            screen.line((f"… {len(compared) - _GROUPS:,} more groups; name a TURN, or use --json", "dim"))
            return
        if number_of:
            screen.blank()
        screen.line((group.turn_id, "bold"), (f" {screen.marks.dot} compared by {found}", "dim"))
        if group.intent:
            screen.line(_cut(group.intent), indent=2)
        rows: list[list[Cell]] = []
        for s in standings:
            fact = facts[s.leaf]
            rows.append(
                [
                    str(s.rank or ""),
                    s.leaf,
                    (str(fact["outcome"]), {"terminated": "green", "truncated": "yellow"}.get(fact["state"], "")),
                    (number(s.reward), "magenta"),
                    (number(s.relative), "magenta"),
                    f"{fact['turns']:,}",
                    tokens(fact["tokens"], fact.get("queries_without_usage", 0)),
                    mark_incomplete(money(fact["cost"]), fact.get("queries_without_cost", 0)),
                    f"{fact['seconds']:.2f}",
                    ", ".join(f"{gate} ×{n}" if n > 1 else gate for gate, n in fact["gates"].items()),
                    "" if group.intent is not None else str(fact["intent"] or ""),
                ]
            )
        head = (
            "rank",
            "thread",
            "outcome",
            "reward",
            "relative",
            "turns",
            "tokens",
            "cost",
            "seconds",
            "gates",
            "intent",
        )
        print_table(screen, head, rows, right=right, indent=2)
