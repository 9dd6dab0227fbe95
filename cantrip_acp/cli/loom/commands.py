"""`cantrip loom`: the group of loom commands, with `show`, `thread`, `tree`, `check` and `keep`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cantrip_acp.cli.command_table import SuggestingGroup, complete_loom, complete_turn, examples
from cantrip_acp.cli.loom.context import context
from cantrip_acp.cli.loom.diff import compare, diff, rank
from cantrip_acp.cli.loom.export_import import export, import_
from cantrip_acp.cli.loom.fork import fork, replay
from cantrip_acp.cli.loom.list import list_threads, stats
from cantrip_acp.cli.loom.restore import restore
from cantrip_acp.cli.loom.reward import reward
from cantrip_acp.cli.loom.view import view
from cantrip_acp.cli.session.setup import state_option

if TYPE_CHECKING:
    from cantrip_acp.loom.loom import Loom


# --- `cantrip loom keep`: marks a loom of the state folder, so that `cantrip gc` never deletes it.


@click.command(
    "keep",
    **examples(
        "cantrip recipe new greeter", 'cantrip cast greeter "Say hello."', "cantrip loom keep", "cantrip loom keep --no"
    ),
)
@click.argument("name", metavar="[FILE]", required=False, shell_complete=complete_loom)
@click.option("--no", "let_go", is_flag=True, help="Remove the mark.")
@state_option
def keep(name: str | None, let_go: bool, state_dir: Path | None) -> None:
    """Mark a loom, so that `cantrip gc` never deletes it.

    The mark is an empty file NAME.keep in the same folder. Looms outside the state folder are never deleted and need no mark.
    """
    from cantrip_acp.files import paths
    from cantrip_acp.loom.find_loom import find_loom
    from cantrip_acp.retention.looms import FOLDER, KEEP
    from cantrip_acp.types.errors import DefinitionError

    state = paths.state_dir(state_dir)
    path = find_loom(name, state)
    if not isinstance(path, Path) or path.resolve().parent != (state / FOLDER).resolve():
        raise DefinitionError(
            f"needs no mark: only looms in {state / FOLDER} are deleted by `cantrip gc`", where=str(path)
        )
    mark = path.with_name(path.name + KEEP)
    if let_go:
        mark.unlink(missing_ok=True)
        click.echo(f"{path.name}  mark removed")
        return
    os.close(os.open(mark, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    click.echo(f"{path.name}  kept")


file_argument = click.argument("name", metavar="[FILE]", required=False, shell_complete=complete_loom)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@click.group(
    "loom",
    cls=SuggestingGroup,
    **examples(
        "cantrip recipe new greeter", 'cantrip cast greeter "Say hello."', "cantrip loom show", "cantrip loom thread"
    ),
)
def loom() -> None:
    """Show, check, compare, fork, export and import looms. A loom records what entities said, did and observed.

    FILE is a loom: a JSON lines file, a database (sqlite:FILE, postgresql://…?loom=NAME), or the id of a session or cast in
    the state folder. Without FILE, the newest loom in the state folder is used.
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
    """Show the contents of a loom: each cast with one line per turn, its threads, and any damage."""
    from cantrip_acp.cli.loom.show import LoomView, as_data
    from cantrip_acp.cli.render.terminal import Screen

    with _open(name, state_dir) as held:
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
@click.argument("turn", required=False, shell_complete=complete_turn)
@json_option
@click.option("--full", is_flag=True, help="Show complete outputs.")
@state_option
def thread(name: str | None, turn: str | None, as_json: bool, full: bool, state_dir: Path | None) -> None:
    """Show every turn of one thread, from the root to TURN: a number (1 is the first answer of the thread that was
    written last, 0 its start), `last`, or an id or its beginning. By default it is the turn that was written last.
    """
    import msgspec

    from cantrip_acp.cli.loom.show import LoomView, problems
    from cantrip_acp.cli.render.terminal import Screen
    from cantrip_acp.loom.find_loom import find_turn

    with _open(name, state_dir) as held:
        path = held.thread(find_turn(held, turn))
        if not as_json:
            LoomView(Screen(), held, full=full).thread(path)
            return
        turns = [msgspec.to_builtins(t) for t in path]
        data = {"leaf": path.leaf.id, "state": path.state, "reason": path.reason, "result": path.result, "turns": turns}
        click.echo(json.dumps(data | {"problems": problems(held)}, default=str))


@loom.command(
    "tree",
    **examples(
        "cantrip recipe new greeter",
        'cantrip cast greeter "Say hello."',
        "cantrip loom tree",
        "cantrip loom tree --json",
    ),
)
@file_argument
@json_option
@state_option
def tree(name: str | None, as_json: bool, state_dir: Path | None) -> None:
    """Draw a loom as a tree: one line for each turn, and a branch where threads separate (forks, children).
    Forks that failed before their first turn are shown too."""
    from cantrip_acp.cli.loom.show import as_data, draw, failed_forks
    from cantrip_acp.cli.render.terminal import Screen

    with _open(name, state_dir) as held:
        if as_json:
            # Each turn names its parent, and so the turns are the tree.
            data = {"turns": as_data(held)["turns"], "failed_forks": failed_forks(held)}
            click.echo(json.dumps(data, default=str))
        else:
            draw(Screen(), held)


def _open(name: str | None, state_dir: Path | None) -> Loom:
    from cantrip_acp.files import paths
    from cantrip_acp.loom.find_loom import open_by_name

    return open_by_name(name, paths.state_dir(state_dir))


@click.command(
    "check",
    **examples(
        "cantrip recipe new greeter",
        'cantrip cast greeter "Say hello."',
        "cantrip loom check",
        "cantrip loom check --json",
    ),
)
@click.argument("name", metavar="[FILE]", required=False, shell_complete=complete_loom)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@state_option
def check(name: str | None, as_json: bool, state_dir: Path | None) -> int:
    """Read every record of a loom, and report damage with its position (line and byte of a file, record of a database).

    Each record's checksum includes the checksum of the record before it. So changed, removed, repeated, swapped and cut off
    records are found. Records of a later version are reported, but they are not damage. The loom is not changed.

    What the model read before each turn is rebuilt and compared with the digest that was recorded when it was sent. Turns where
    they differ are named; that is no damage either: another version may word a message otherwise.

    Exit status: 0 everything can be read, 1 there is damage.
    """
    import msgspec

    from cantrip_acp.core.history.replayed_context import differing_turns
    from cantrip_acp.files import paths
    from cantrip_acp.loom.find_loom import find_loom
    from cantrip_acp.loom.loom import Loom
    from cantrip_acp.loom.stores.address import open_store
    from cantrip_acp.text.sanitize import clean_line

    # Open the store directly: `open_by_name` may add the last turn of a process that died, but a check changes nothing.
    with Loom(open_store(find_loom(name, paths.state_dir(state_dir)), readonly=True)) as held:
        problems = held.check()
        differing = differing_turns(held)
        running = held.running_casts()
        unfinished = [
            {"entity": utterance.entity_id, "turn": utterance.id, "running": utterance.cast_id in running}
            for utterance in held.unfinished()
        ]
        endless = [start.id for start, end in held.casts() if end is None and start.id not in running]
        turns = sum(place.is_utterance for place in held.places.values())
        where, later = str(held.location), dict(held.later)
    if as_json:
        click.echo(
            json.dumps(
                {
                    "loom": where,
                    "turns": turns,
                    "problems": msgspec.to_builtins(problems),
                    "later": later,
                    "unfinished": unfinished,
                    "casts_without_end": endless,
                    "differing_turns": differing,
                }
            )
        )
    else:
        for each in problems:
            place = f" (byte {each.offset:,})" if each.line is not None and each.offset is not None else ""
            click.echo(clean_line(f"{each}{place}"))
        for open_ in unfinished:
            what = f"the turn {open_['turn']} of entity {open_['entity']} is not complete yet"
            why = (
                "it is running"
                if open_["running"]
                else "its process ended, and the next process that writes completes it"
            )
            click.echo(clean_line(f"note: {what}: {why}"))
        for cast_id in endless:
            # Not reported as damage: a loom looks the same if its process died and if its last records were cut off.
            what = (
                f"cast {cast_id} has no end, and no process runs it: its process died, or the last records are missing"
            )
            click.echo(clean_line(f"note: {what}"))
        for turn_id in differing:
            what = f"what the model read before the turn {turn_id} is not what this version rebuilds from the loom"
            click.echo(clean_line(f"note: {what}"))
        for name, many in later.items():
            what = f"{many:,} record{'' if many == 1 else 's'} of kind {name!r}"
            click.echo(clean_line(f"note: {what} from a later version; this version does not use them"))
        count = f"{turns:,} turn{'' if turns == 1 else 's'}"
        click.echo(
            f"{clean_line(where)}: {count}, {f'{len(problems):,} problems' if problems else 'everything can be read'}"
        )
    return 1 if problems else 0


loom.add_command(export)
loom.add_command(check)
loom.add_command(import_)
loom.add_command(fork)
loom.add_command(keep)
loom.add_command(replay)
loom.add_command(view)
for command in (context, reward, restore, list_threads, diff, compare, rank, stats):
    loom.add_command(command)
