"""`cantrip loom fork` and `replay`: go on from any turn of a loom, or live a thread again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from cantrip_acp.cli.commands import examples
from cantrip_acp.cli.opening import cwd_option, state_option
from cantrip_acp.errors import CantripError

if TYPE_CHECKING:
    from cantrip_acp.cantrip import Cantrip
    from cantrip_acp.entity import Entity
    from cantrip_acp.loom.loom import Loom


@click.command(
    "fork",
    **examples(
        "cantrip recipe new greeter",
        'cantrip cast greeter "Say hello." --loom hello.loom.jsonl',
        'cantrip loom fork hello.loom.jsonl "" "Say it louder." --recipe greeter',
        "cantrip loom tree hello.loom.jsonl",
    ),
)
@click.argument("name", metavar="FILE")
@click.argument("turn")
@click.argument("intent")
@click.option(
    "--recipe", "-r", required=True, metavar="RECIPE", help="What the fork is cast with; need not be the first one."
)
@click.option(
    "--state",
    type=click.Choice(["auto", "snapshot", "replay", "none"]),
    default="auto",
    show_default=True,
    help="How a code circle's variables are had.",
)
@click.option("--json", "as_json", is_flag=True, help="Print events as JSON lines; the last one is the result.")
@click.option("--full", is_flag=True, help="Show outputs and changes whole, however long.")
@cwd_option
@state_option
def fork(
    name: str,
    turn: str,
    intent: str,
    recipe: str,
    state: str,
    as_json: bool,
    full: bool,
    cwd: Path,
    state_dir: Path | None,
) -> int:
    """Go on from TURN of the loom FILE with INTENT, as a new entity that has lived through all that led to it.

    TURN is a turn's id or its beginning; an empty one is the turn that was written last. The original thread stays as it
    is; the new one is written to the same file. Files of the workspace are as they are now.

    Exit status as of `cantrip cast`.
    """
    from cantrip_acp import folders
    from cantrip_acp.cli.loomfile import find, leaf
    from cantrip_acp.cli.opening import open_recipe
    from cantrip_acp.errors import IntentRequired

    if not intent.strip():
        raise IntentRequired("intent is required: say what the fork is to do (INTENT-1)")
    path = find(name, folders.state_dir(state_dir))
    opening = open_recipe(recipe, cwd, path, state_dir)
    try:
        origin = leaf(opening.loom, turn or None)
        return _run(opening.cantrip, opening.loom, opening.workspace, origin, intent, state, as_json=as_json, full=full)
    finally:
        opening.loom.close()


def _run(
    cantrip: Cantrip, loom: Loom, workspace: Path, origin: str, intent: str, state: str, *, as_json: bool, full: bool
) -> int:
    from cantrip_acp.cli.cast import tell
    from cantrip_acp.cli.castview import JsonFace, TextFace
    from cantrip_acp.cli.running import running
    from cantrip_acp.cli.screen import Screen
    from cantrip_acp.loom.turn import ForkRecord

    screen = Screen()
    face: JsonFace | TextFace = JsonFace() if as_json else TextFace(screen, workspace, full=full)

    async def forked() -> Entity:
        return await cantrip.fork(origin, loom=loom, state=state)  # type: ignore[arg-type]

    with running(forked) as run:
        if not isinstance(face, JsonFace):
            made = next(r for r in loom.records() if isinstance(r, ForkRecord) and r.entity_id == run.entity.id)
            screen.line((f"fork of {origin}", "bold"), (f" {screen.marks.dot} state by {made.strategy}", "dim"))
            for lost in made.missing:
                screen.line((f"missing  {lost}", "yellow"))
            face.intent(intent)
        try:
            ended = run.cast(intent, face)
        except CantripError as error:
            if isinstance(face, JsonFace):
                face.failed(str(error), entity_id=run.entity.id, usage=run.entity.usage, loom=loom.location)
            else:
                face.transcript.finish()
            raise
    return tell(ended, face)


@click.command(
    "replay",
    **examples(
        "cantrip recipe new greeter",
        'cantrip cast greeter "Say hello." --loom hello.loom.jsonl',
        "cantrip loom replay hello.loom.jsonl --recipe greeter",
    ),
)
@click.argument("name", metavar="FILE")
@click.argument("turn", required=False)
@click.option("--recipe", "-r", required=True, metavar="RECIPE", help="Whose circle it is lived again in.")
@click.option("--recorded-gates", is_flag=True, help="Gates answer what they answered then, and act on nothing.")
@click.option("--json", "as_json", is_flag=True, help="As one JSON object.")
@cwd_option
@state_option
def replay(
    name: str,
    turn: str | None,
    recipe: str,
    recorded_gates: bool,
    as_json: bool,
    cwd: Path,
    state_dir: Path | None,
) -> int:
    """Live the thread that ends in TURN again, with the crystal's recorded words, and tell where it goes another way.

    No model is asked and the loom is not written to. Commands, cells and gates run for real, unless --recorded-gates.
    TURN is an id or its beginning; by default the leaf that was written last.

    Exit status: 0 where every observation is the same, 1 where one differs, 2 and 3 as of `cantrip cast`.
    """
    import json

    import anyio

    from cantrip_acp import folders
    from cantrip_acp.cli.loomfile import find, leaf
    from cantrip_acp.cli.opening import trusted_cantrip
    from cantrip_acp.crystals.scripted import ScriptedCrystal
    from cantrip_acp.loom.loom import Loom
    from cantrip_acp.replaying import replay as lived_again

    with Loom.open(find(name, folders.state_dir(state_dir)), readonly=True) as held:
        last = leaf(held, turn)
        cantrip = trusted_cantrip(recipe, cwd, state_dir, ScriptedCrystal([]))

        async def run() -> tuple[int, str | None]:
            told = await lived_again(cantrip, held, last, recorded_gates=recorded_gates)
            return told.turns, None if told.divergence is None else str(told.divergence)

        turns, differs = anyio.run(run)
    if as_json:
        click.echo(json.dumps({"leaf": last, "turns": turns, "divergence": differs}))
    else:
        click.echo(f"{turns} turns, all the same" if differs is None else f"went another way at {differs}")
    return 0 if differs is None else 1
