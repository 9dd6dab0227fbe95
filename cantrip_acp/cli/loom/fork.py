"""`cantrip loom fork` and `replay`: fork one or more entities from a turn, or run a recorded thread again."""

from __future__ import annotations

import json
import signal
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import click

from cantrip_acp.cli.command_table import complete_loom, complete_recipe, complete_turn, examples
from cantrip_acp.cli.errors import DONE, FAILED, INTERRUPTED
from cantrip_acp.cli.json_errors import CAST, JsonFlag
from cantrip_acp.cli.render.terminal import Screen
from cantrip_acp.cli.session.loop_thread import SIGNALS
from cantrip_acp.cli.session.option_groups import Place, option_group
from cantrip_acp.cli.session.permissions import allow_host_option, named_hosts
from cantrip_acp.cli.session.setup import cwd_option, state_option
from cantrip_acp.types.errors import CantripError

if TYPE_CHECKING:
    from cantrip_acp.cli.session.setup import OpenedRecipe
    from cantrip_acp.core.cantrip import Cantrip
    from cantrip_acp.core.casting.result import ForkGroup, Sample
    from cantrip_acp.core.entity import Entity
    from cantrip_acp.core.forking.fork import State
    from cantrip_acp.loom.loom import Loom


_OWN = "(state)"
"""The value of ``--worktree`` if no folder is named."""

_HOW = {"snapshot": "variables from a snapshot", "replay": "variables by running its code again"}


def _require_recipe(context: click.Context, parameter: click.Parameter, given: str | None) -> str:
    if given is None:
        raise click.UsageError(
            "--recipe is missing: a loom does not hold the recipe. Give the name or the file with which the thread was cast, such "
            "as --recipe familiar"
        )
    return given


@dataclass(frozen=True, slots=True)
class Forking:
    """How a turn is forked: which state a fork has and where it works; how many forks are made (None: one, and no group) and
    run at once; the expected answer."""

    resume: bool
    cast_id: str | None
    state: State
    worktree: str | None
    restore_files: bool
    samples: int | None
    concurrency: int
    reference: str | None

    def folder(self, opening: OpenedRecipe, name: str) -> bool | str:
        """The folder for the worktree of a fork, or for the worktrees of a group. False if no worktree is wanted."""
        from cantrip_acp.files.paths import private

        if self.worktree is None:
            return False
        if self.worktree != _OWN:
            return str(Path(self.worktree).expanduser().absolute())
        return str(private(opening.state_dir / "worktrees") / f"{opening.workspace.name}-{name}")


@click.command(
    "fork",
    **examples(
        "cantrip recipe new greeter",
        'cantrip cast greeter "Say hello." --loom hello.loom.jsonl',
        'cantrip loom fork hello.loom.jsonl last "Say it louder." --recipe greeter',
        "cantrip loom tree hello.loom.jsonl",
        'cantrip loom fork hello.loom.jsonl last "Say it once more." --recipe greeter --samples 3 --concurrency 2',
    ),
)
@click.argument("name", metavar="FILE", shell_complete=complete_loom)
@click.argument("turn", shell_complete=complete_turn)
@click.argument("intent", required=False)
@click.option("--resume", is_flag=True, help="Continue the cast of TURN, without an INTENT and without a new message.")
@click.option(
    "--cast", "cast_id", metavar="ID", help="With --resume: the cast to continue, if several casts begin at TURN."
)
@click.option(
    "--recipe",
    "-r",
    shell_complete=complete_recipe,
    callback=_require_recipe,
    metavar="RECIPE",
    help="The recipe of the fork. It may be different from the original one.",
)
@click.option(
    "--state",
    type=click.Choice(["auto", "snapshot", "replay", "none"]),
    default="snapshot",
    show_default=True,
    help="How the variables of a code circle are restored. snapshot: from a saved snapshot; replay: by running its cells "
    "again with a copy of the files that they can write; auto: from a snapshot, else by replay; none: not at all.",
)
@click.option(
    "--worktree",
    is_flag=False,
    flag_value=_OWN,
    metavar="[DIR]",
    help="Let the fork work in a new git worktree in DIR (by default in the state folder), with the files that were saved at "
    "that turn. It is not removed. Put this option last, or write --worktree=DIR.",
)
@click.option(
    "--restore-files",
    is_flag=True,
    help="First restore the files of the workspace as they were after TURN (`cantrip loom restore`).",
)
@click.option("--samples", type=click.IntRange(1), metavar="N", help="Make a group of N forks, to compare them.")
@click.option(
    "--concurrency",
    type=click.IntRange(1),
    default=4,
    show_default=True,
    metavar="K",
    help="How many forks run at the same time.",
)
@click.option(
    "--reference",
    metavar="TEXT",
    help="The expected answer, for the recipe's scoring function and for exports. The model never sees it. By default it is "
    "that of the forked cast, if INTENT is the same.",
)
@click.option(
    "--json",
    "as_json",
    cls=JsonFlag,
    fields=CAST,
    is_flag=True,
    help="Print events as JSON lines; the last one is the result.",
)
@click.option("--full", is_flag=True, help="Show complete outputs and changes.")
@allow_host_option
@cwd_option
@state_option
@option_group("how", Forking)
@option_group("place", Place)
def fork(
    name: str, turn: str, intent: str | None, recipe: str, how: Forking, as_json: bool, full: bool, place: Place
) -> int:
    """Make a new entity with the history of all turns up to TURN of the loom FILE, and cast it on INTENT.

    TURN is a number (1 is the first answer of the thread that was written last, 0 its start), `last`, or an id or its
    beginning. The original thread does not change. The new thread is written to the same loom.

    With --resume and without INTENT, the fork continues the cast of TURN: its crystal gets the same messages as the original
    crystal after that turn. If the cast ended with TURN, the fork continues with the next cast.

    The fork sees the present files of the workspace. With --restore-files they are first restored as they were after TURN.
    With --worktree it sees the saved files of TURN in a separate folder; your branches, index and files are not changed. With
    --samples, several forks run and share a group id in the loom. A failure in one fork does not affect the others.

    Exit status: that of `cantrip cast`; for a group, 0 only if every cast terminated.
    """
    from cantrip_acp.cli.session.setup import open_recipe
    from cantrip_acp.files import paths
    from cantrip_acp.loom.find_loom import find_loom, find_turn
    from cantrip_acp.types.errors import IntentRequired
    from cantrip_acp.types.records import new_id

    if how.resume and intent is not None:
        raise click.UsageError(
            "--resume and INTENT cannot be used together: --resume continues a cast without a new intent"
        )
    if how.resume and how.reference is not None:
        raise click.UsageError(
            "--resume and --reference cannot be used together: a resumed cast keeps its own reference"
        )
    if how.cast_id is not None and not how.resume:
        raise click.UsageError("--cast needs --resume: it chooses the cast that --resume continues")
    if not how.resume and (intent is None or not intent.strip()):
        raise IntentRequired(
            "intent is required: say what the fork should do (INTENT-1), or use --resume to continue the cast"
        )
    path = find_loom(name, paths.state_dir(place.state_dir))
    hosts = named_hosts(place.allow_hosts)
    opening = open_recipe(recipe, place.cwd, path, place.state_dir)
    try:
        origin = find_turn(opening.loom, turn or None)
        hosts.add_from_thread(opening.loom, origin)
        hosts.add_from_text(intent)
        if how.restore_files:
            from cantrip_acp.cli.loom.restore import at_terminal
            from cantrip_acp.cli.loom.restore import restore_files as restore

            asks = at_terminal() and not as_json
            done = restore(opening.loom, origin, asks=asks)
            if not as_json:
                done.show()
        opening = replace(opening, cantrip=opening.cantrip.for_session((), hosts))
        if how.samples is None:
            entity_id = new_id("e")
            made = partial(
                opening.cantrip.fork,
                origin,
                loom=opening.loom,
                state=how.state,
                entity_id=entity_id,
                worktree=how.folder(opening, entity_id),
                resume=(how.cast_id or True) if how.resume else False,
            )
            return _run(made, opening, origin, intent, as_json=as_json, full=full, reference=how.reference)
        return _run_group(opening, origin, intent, how, how.samples, as_json=as_json)
    finally:
        opening.loom.close()


def _run(
    forked: Callable[[], Awaitable[Entity]],
    opening: OpenedRecipe,
    origin: str,
    intent: str | None,
    *,
    as_json: bool,
    full: bool,
    reference: str | None,
) -> int:
    from cantrip_acp.cli.commands.cast import show_ending
    from cantrip_acp.cli.render.cast_output import CastJson, CastText
    from cantrip_acp.cli.render.terminal import Screen
    from cantrip_acp.cli.session.loop_thread import run_entity

    screen, loom = Screen(), opening.loom
    output: CastJson | CastText = CastJson() if as_json else CastText(screen, opening.workspace, full=full)

    with nullcontext() if as_json else screen.rendering(), run_entity(forked) as run:
        if not isinstance(output, CastJson):
            made = loom.fork_of(run.entity.id)
            assert made is not None, "it was just written"
            how = _HOW.get(made.strategy, "there were no variables to restore")
            screen.line((f"fork of {origin}", "bold"), (f" {screen.marks.dot} {how}", "dim"))
            if isinstance(made.worktree, str):
                screen.line(
                    (f"worktree {made.worktree}", "bold"), (f" {screen.marks.dot} stays until you remove it", "dim")
                )
            for lost in made.missing:
                screen.line((f"missing  {lost}", "yellow"))
            if intent is not None:
                output.show_intent(intent)
        try:
            ended = run.cast(intent, output, reference=reference)
        except CantripError as error:
            if isinstance(output, CastJson):
                output.show_error(str(error), entity_id=run.entity.id, usage=run.entity.usage, loom=loom.location)
            else:
                output.renderer.end_turn()
            raise
        return show_ending(ended, output)


@click.command(
    "replay",
    **examples(
        "cantrip recipe new greeter",
        'cantrip cast greeter "Say hello." --loom hello.loom.jsonl',
        "cantrip loom replay hello.loom.jsonl --recipe greeter",
    ),
)
@click.argument("name", metavar="FILE", shell_complete=complete_loom)
@click.argument("turn", required=False, shell_complete=complete_turn)
@click.option(
    "--recipe",
    "-r",
    shell_complete=complete_recipe,
    callback=_require_recipe,
    metavar="RECIPE",
    help="The recipe whose circle runs the thread again.",
)
@click.option(
    "--recorded-gates",
    is_flag=True,
    help="All gates return their recorded results and do nothing; only modules are loaded.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@cwd_option
@state_option
def replay(
    name: str, turn: str | None, recipe: str, recorded_gates: bool, as_json: bool, cwd: Path, state_dir: Path | None
) -> int:
    """Run the thread that ends in TURN again with the recorded answers of the crystal, and report the first difference.

    TURN is a number (1 is the first answer of the thread that was written last, 0 its start), `last`, or an id or its
    beginning; by default it is the last.

    No model is asked. The loom and the files of the workspace are not changed: commands, cells, write_file and edit_file write
    to a temporary copy of the writable folders. Other gates that write (git_commit, run_tests, gates of an editor) and
    children return their recorded results. Gates that read are really called, unless you use --recorded-gates. If the wards
    allow the network, the real network is used.

    Exit status: 0 every observation is the same, 1 one differs, 2 and 3 as in `cantrip cast`.
    """
    import json

    import anyio

    from cantrip_acp.cli.session.setup import trusted_cantrip
    from cantrip_acp.core.forking.replay import replay as lived_again
    from cantrip_acp.crystals.scripted import ScriptedCrystal
    from cantrip_acp.files import paths
    from cantrip_acp.loom.find_loom import find_loom, find_turn
    from cantrip_acp.loom.loom import Loom

    with Loom.open(find_loom(name, paths.state_dir(state_dir)), readonly=True) as held:
        last = find_turn(held, turn)
        cantrip = trusted_cantrip(recipe, cwd, state_dir, ScriptedCrystal([]))

        async def run() -> tuple[int, str | None]:
            replayed = await lived_again(cantrip, held, last, recorded_gates=recorded_gates)
            return replayed.turns, None if replayed.divergence is None else str(replayed.divergence)

        turns, differs = anyio.run(run)
    if as_json:
        click.echo(json.dumps({"leaf": last, "turns": turns, "divergence": differs}))
    else:
        click.echo(f"{turns} turns, all the same" if differs is None else f"the first difference is at {differs}")
    return 0 if differs is None else 1


def _run_group(
    opening: OpenedRecipe, origin: str, intent: str | None, how: Forking, samples: int, *, as_json: bool
) -> int:
    """Fork a turn ``samples`` times and cast each fork on the intent. An intent of None resumes the cast.

    Returns the exit status: 0 if every cast terminated, 130 if a signal stopped them, else 1.
    """
    from cantrip_acp.types.records import new_id

    loom, group = opening.loom, new_id("g")
    report = _JsonReport(group, origin, loom) if as_json else _TextReport(group, origin, samples, loom)
    cantrips = _cantrips(opening, samples)
    intents = None if intent is None else [intent] * samples
    made = anyio.run(_cast, cantrips, loom, origin, intents, group, how, how.folder(opening, group), report)
    if made is None:
        report.stopped()
        return INTERRUPTED
    report.ended(made)
    done = all(sample.result is not None and sample.result.terminated for sample in made.samples)
    return DONE if done else FAILED


def _cantrips(opening: OpenedRecipe, samples: int) -> list[Cantrip]:
    """The cantrips of the forks. In each of them a scripted crystal starts at the beginning of its script."""
    from cantrip_acp.crystals.scripted import ScriptedCrystal
    from cantrip_acp.recipes.build.crystals import crystal_for

    first = opening.cantrip
    if not isinstance(first.crystal, ScriptedCrystal):
        return [first] * samples
    return [first, *(first.with_crystal(crystal_for(opening.recipe)) for _ in range(samples - 1))]


async def _cast(
    cantrips: list[Cantrip],
    loom: Loom,
    origin: str,
    intents: list[str] | None,
    group: str,
    how: Forking,
    worktree: bool | str,
    report: _TextReport | _JsonReport,
) -> ForkGroup | None:
    """Run the group. Returns None if a signal stopped it. The loom then has everything that happened before."""
    from cantrip_acp.core.forking.group import fork_group

    made: ForkGroup | None = None
    async with anyio.create_task_group() as tasks:

        async def on_signal() -> None:
            with anyio.open_signal_receiver(*(signal.Signals(number) for number in SIGNALS)) as received:
                async for _ in received:
                    tasks.cancel_scope.cancel()

        tasks.start_soon(on_signal)
        made = await fork_group(
            cantrips,
            origin,
            intents,
            loom=loom,
            concurrency=how.concurrency,
            state=how.state,
            worktree=worktree,
            group=group,
            ended=report.sample,
            resume=how.cast_id or True,
            reference=how.reference,
        )
        tasks.cancel_scope.cancel()
    return made


class _TextReport:
    """Output for people: a line for each fork that ends, and a summary."""

    def __init__(self, group: str, origin: str, samples: int, loom: Loom) -> None:
        self._screen = screen = Screen()
        self._loom = loom
        screen.line((f"group {group}", "bold"), (f" {screen.marks.dot} {samples} forks of {origin}", "dim"))

    def sample(self, sample: Sample) -> None:
        screen, result = self._screen, sample.result
        dot, number = f" {screen.marks.dot} ", f"{sample.number + 1}"
        if result is None:
            screen.line((f"{screen.marks.failed} {number}", "red"), (f"{dot}{sample.entity_id}", "dim"))
            screen.line((str(sample.error), "red"), indent=2)
        else:
            mark, style = (screen.marks.done, "green") if result.terminated else (screen.marks.stop, "yellow")
            turns = f"{result.turns} turn{'' if result.turns == 1 else 's'}"
            screen.line((f"{mark} {number}", style), (dot.join(("", sample.entity_id, result.reason, turns)), "dim"))
            text = result.result if isinstance(result.result, str) else json.dumps(result.result, default=str)
            if result.terminated:
                screen.line(text, indent=2)
        if sample.worktree is not None:
            screen.line((f"worktree {sample.worktree}", "dim"), indent=2)

    def ended(self, made: ForkGroup) -> None:
        screen = self._screen
        done = sum(sample.result is not None and sample.result.terminated for sample in made.samples)
        screen.line(f"{done} of {len(made.samples)} done")
        if self._loom.location is not None:
            screen.line((f"compare them: cantrip loom compare {self._loom.location}", "dim"))
        if any(sample.worktree is not None for sample in made.samples):
            screen.line(("a worktree stays until you remove it: git worktree remove --force DIR", "dim"))

    def stopped(self) -> None:
        self._screen.line((f"{self._screen.marks.stop} stopped; the turns until now are in the loom", "yellow"))


class _JsonReport:
    """Output for programs: a JSON object for each fork that ends, and one for the group."""

    def __init__(self, group: str, origin: str, loom: Loom) -> None:
        self._about: dict[str, Any] = {"group": group, "from_turn": origin, "loom": loom.location}

    def sample(self, sample: Sample) -> None:
        outcome = sample.result.record() if sample.result is not None else {"entity_id": sample.entity_id}
        error = None if sample.error is None else str(sample.error)
        self._put({"event": "fork", "number": sample.number, **outcome, "error": error, "worktree": sample.worktree})

    def ended(self, made: ForkGroup) -> None:
        self._put({"event": "group", "forks": [sample.entity_id for sample in made.samples], "stopped": False})

    def stopped(self) -> None:
        self._put({"event": "group", "stopped": True})

    def _put(self, data: dict[str, Any]) -> None:
        click.echo(json.dumps(data | self._about, default=str))
