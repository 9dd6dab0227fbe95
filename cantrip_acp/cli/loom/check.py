"""`cantrip loom check`: read every record of a loom and report exactly what is damaged."""

from __future__ import annotations

import json
from pathlib import Path

import click

from cantrip_acp.cli.command_table import examples
from cantrip_acp.cli.session.setup import state_option


@click.command(
    "check",
    **examples(
        "cantrip recipe new greeter",
        'cantrip cast greeter "Say hello."',
        "cantrip loom check",
        "cantrip loom check --json",
    ),
)
@click.argument("name", metavar="[FILE]", required=False)
@click.option("--json", "as_json", is_flag=True, help="As one JSON object.")
@state_option
def check(name: str | None, as_json: bool, state_dir: Path | None) -> int:
    """Read every record of a loom, and say what is damaged, and where: line and byte in a file, record in a database.

    Records that were changed, removed, doubled, swapped or cut off are found by the checksums that name each other. Records of
    a later version are named and are no damage. Nothing is changed. Exit status: 0 where all of it can be read, 1 where not.
    """
    import msgspec

    from cantrip_acp.cli.loom.find_loom import find
    from cantrip_acp.files import paths
    from cantrip_acp.loom.loom import Loom
    from cantrip_acp.loom.stores.address import open_store
    from cantrip_acp.text.sanitize import clean_line

    # Open the store directly: readers of a loom add the turns of processes that died, and this check must not.
    with Loom(open_store(find(name, paths.state_dir(state_dir)), readonly=True)) as held:
        problems = held.check()
        running = held.running_casts()
        unfinished = [
            {"entity": said.entity_id, "turn": said.id, "running": said.cast_id in running}
            for said in held.unfinished()
        ]
        endless = [start.id for start, end in held.casts() if end is None and start.id not in running]
        turns, where, later = len(held), str(held.location), dict(held.later)
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
                }
            )
        )
    else:
        for each in problems:
            place = f" (byte {each.offset:,})" if each.line is not None and each.offset is not None else ""
            click.echo(clean_line(f"{each}{place}"))
        for open_ in unfinished:
            what = f"entity {open_['entity']} has said what no turn tells of yet ({open_['turn']})"
            why = "it is at work" if open_["running"] else "its process ended, and the next writer completes it"
            click.echo(clean_line(f"note: {what}: {why}"))
        for cast_id in endless:
            # This is no damage: a process that died and a file that was cut off look the same.
            what = f"cast {cast_id} has no end, and no process works on it: its process died, or records were cut off"
            click.echo(clean_line(f"note: {what} at the end"))
        for name, many in later.items():
            what = f"{many:,} record{'' if many == 1 else 's'} of kind {name!r}"
            click.echo(clean_line(f"note: {what} of a later version; kept, and not used by this one"))
        count = f"{turns:,} turn{'' if turns == 1 else 's'}"
        click.echo(
            f"{clean_line(where)}: {count}, {f'{len(problems):,} problems' if problems else 'all of it can be read'}"
        )
    return 1 if problems else 0
