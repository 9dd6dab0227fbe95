"""`cantrip loom`: read the record of casts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cantrip_acp.cli.commands import Suggesting, examples
from cantrip_acp.cli.loomcheck import check
from cantrip_acp.cli.loomcompare import compare, diff, rank
from cantrip_acp.cli.loomexport import export
from cantrip_acp.cli.loomfork import fork, replay
from cantrip_acp.cli.loomimport import import_
from cantrip_acp.cli.loomkeep import keep
from cantrip_acp.cli.loomlist import list_threads, stats
from cantrip_acp.cli.loomreward import reward
from cantrip_acp.cli.loomviewpage import view
from cantrip_acp.cli.opening import state_option

if TYPE_CHECKING:
    from cantrip_acp.loom.loom import Loom

file_argument = click.argument("name", metavar="[FILE]", required=False)
json_option = click.option("--json", "as_json", is_flag=True, help="As one JSON object.")


@click.group(
    "loom",
    cls=Suggesting,
    **examples(
        "cantrip recipe new greeter", 'cantrip cast greeter "Say hello."', "cantrip loom show", "cantrip loom thread"
    ),
)
def loom() -> None:
    """Read looms: the append-only record of what entities said, did and saw.

    FILE is a loom's file (JSON lines, or a database: sqlite:FILE, postgresql://…?loom=NAME), or the id of a session or cast
    in the state folder; without it, the newest loom there.
    """


@loom.command(
    "show",
    **examples(
        "cantrip recipe new greeter",
        'cantrip cast greeter "Say hello."',
        "cantrip loom show",
        "cantrip loom show --json",
    ),
)
@file_argument
@json_option
@state_option
def show(name: str | None, as_json: bool, state_dir: Path | None) -> None:
    """Show what a loom holds: each cast with a line a turn, its threads, and what is damaged."""
    from cantrip_acp.cli.loomview import LoomView, as_data
    from cantrip_acp.cli.screen import Screen

    with _opened(name, state_dir) as held:
        if as_json:
            click.echo(json.dumps(as_data(held), default=str))
        else:
            LoomView(Screen(), held).overview()


@loom.command(
    "thread",
    **examples(
        "cantrip recipe new greeter",
        'cantrip cast greeter "Say hello."',
        "cantrip loom thread",
        "cantrip loom thread --json",
    ),
)
@file_argument
@click.argument("turn", required=False)
@json_option
@click.option("--full", is_flag=True, help="Show outputs whole, however long.")
@state_option
def thread(name: str | None, turn: str | None, as_json: bool, full: bool, state_dir: Path | None) -> None:
    """Show one thread in full: the path from the root to TURN (an id, or its beginning; by default, the last leaf)."""
    import msgspec

    from cantrip_acp.cli.loomfile import leaf
    from cantrip_acp.cli.loomview import LoomView, problems
    from cantrip_acp.cli.screen import Screen

    with _opened(name, state_dir) as held:
        path = held.thread(leaf(held, turn))
        if not as_json:
            LoomView(Screen(), held, full=full).thread(path)
            return
        turns = [msgspec.to_builtins(t) for t in path]
        data = {"leaf": path.leaf.id, "state": path.state, "reason": path.reason, "result": path.result, "turns": turns}
        click.echo(json.dumps(data | {"problems": problems(held)}, default=str))


@loom.command(
    "tree",
    **examples("cantrip recipe new greeter", 'cantrip cast greeter "Say hello."', "cantrip loom tree"),
)
@file_argument
@state_option
def tree(name: str | None, state_dir: Path | None) -> None:
    """Draw a loom's tree: a line a turn, a branch where threads part (forks, children)."""
    from cantrip_acp.cli.loomtree import draw
    from cantrip_acp.cli.screen import Screen

    with _opened(name, state_dir) as held:
        draw(Screen(), held)


loom.add_command(export)
loom.add_command(check)
loom.add_command(import_)
loom.add_command(fork)
loom.add_command(keep)
loom.add_command(replay)
loom.add_command(view)
for command in (reward, list_threads, diff, compare, rank, stats):
    loom.add_command(command)


def _opened(name: str | None, state_dir: Path | None) -> Loom:
    from cantrip_acp.cli.loomfile import opened
    from cantrip_acp.files import paths

    return opened(name, paths.state_dir(state_dir))
