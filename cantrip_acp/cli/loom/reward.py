"""`cantrip loom reward`: give a reward, compute rewards, ask a verifier for one, or show the rewards of a loom."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cantrip_acp.cli.command_table import complete_loom, complete_turn, examples
from cantrip_acp.cli.session.setup import cwd_option, state_option

if TYPE_CHECKING:
    from cantrip_acp.training.judge import Verdict
    from cantrip_acp.types.records import RewardRecord

_RANGE = re.compile(r"\s*([-+]?[\d.]+(?:[eE][-+]?\d+)?)\s*\.\.\s*([-+]?[\d.]+(?:[eE][-+]?\d+)?)\s*")


@click.command(
    "reward",
    **examples(
        "cantrip recipe new greeter",
        'cantrip cast greeter "Say hello." --loom hello.loom.jsonl',
        'cantrip loom reward hello.loom.jsonl last 1 --note "just right"',
        "cantrip loom reward hello.loom.jsonl --implicit",
        "cantrip loom reward hello.loom.jsonl",
    ),
)
@click.argument("name", metavar="FILE", shell_complete=complete_loom)
@click.argument("turn", required=False, shell_complete=complete_turn)
@click.argument("reward", type=float, required=False)
@click.option("--note", metavar="TEXT", help="The reason for the reward.")
@click.option("--by", metavar="NAME", help="The name of the person who gives the reward.  [default: your user name]")
@click.option(
    "--implicit",
    is_flag=True,
    help="Compute rewards: the share of a turn's gate calls and programs that succeeded. They say nothing about the end of a "
    "thread; `cantrip loom rank --by implicit` does.",
)
@click.option("--verifier", metavar="RECIPE", help="Let this recipe judge the thread that ends in TURN.")
@click.option("--range", "bounds", metavar="LOW..HIGH", help="The range of a verifier's rewards.  [default: 0..1]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@cwd_option
@state_option
def reward(
    name: str,
    turn: str | None,
    reward: float | None,
    note: str | None,
    by: str | None,
    implicit: bool,
    verifier: str | None,
    bounds: str | None,
    as_json: bool,
    cwd: Path,
    state_dir: Path | None,
) -> None:
    """Give TURN of the loom FILE a reward. All rewards stay in the loom, with person and time. The last one counts.

    TURN is a number (1 is the first answer of the thread that was written last, 0 its start), `last`, or an id or its
    beginning. Write a negative reward after two dashes: cantrip loom reward FILE TURN -- -1

    Without REWARD, the rewards of TURN (or of all turns) are shown. --implicit computes rewards for the thread that ends in
    TURN, or for all turns. Turns that already have a reward are not changed.

    A --verifier is a recipe. It is cast with the thread as context, and must call done with {"reward": NUMBER, "note": TEXT}.
    """
    from cantrip_acp.files import paths
    from cantrip_acp.loom.find_loom import find_loom

    if (reward is not None) + implicit + (verifier is not None) > 1:
        raise click.UsageError("use only one of REWARD, --implicit and --verifier")
    if bounds is not None and verifier is None:
        raise click.UsageError("--range needs --verifier")
    path = find_loom(name, paths.state_dir(state_dir))
    if verifier is not None:
        if note is not None or by is not None:
            raise click.UsageError("--note and --by cannot be used with --verifier: the verifier writes both")
        _judge(path, turn, verifier, _bounds(bounds), cwd, state_dir, as_json=as_json)
    elif implicit:
        _compute_implicit(path, turn, by or "implicit", as_json=as_json)
    elif reward is not None:
        _give(path, turn, reward, note, by, as_json=as_json)
    elif note is not None or by is not None:
        raise click.UsageError("the reward is missing: cantrip loom reward FILE TURN REWARD")
    else:
        _show(path, turn, as_json=as_json)


def _give(
    path: Path | str, turn: str | None, reward: float, note: str | None, by: str | None, *, as_json: bool
) -> None:
    import getpass

    from cantrip_acp.loom.find_loom import find_turn
    from cantrip_acp.loom.loom import Loom

    with Loom.open(path) as held:
        rewarded = find_turn(held, turn or None)
        held.annotate_reward(rewarded, reward, by=by or getpass.getuser(), note=note)
        given = held.assigned(rewarded)[-1]
    click.echo(json.dumps(_data(given)) if as_json else f"{rewarded}  reward {reward:g}")


def _compute_implicit(path: Path | str, turn: str | None, by: str, *, as_json: bool) -> None:
    from cantrip_acp.loom import rewards
    from cantrip_acp.loom.find_loom import find_turn
    from cantrip_acp.loom.loom import Loom

    with Loom.open(path) as held:
        turn_ids = list(held.places) if turn is None else held.path(find_turn(held, turn or None))
        written = rewards.record_implicit(held, turn_ids, by=by)
    if as_json:
        click.echo(json.dumps({"written": [{"turn_id": turn_id, "reward": share} for turn_id, share in written]}))
        return
    for turn_id, share in written:
        click.echo(f"{turn_id}  reward {share:g}")
    click.echo(f"{len(written)} implicit reward{'' if len(written) == 1 else 's'} written")


def _judge(
    path: Path | str,
    turn: str | None,
    verifier: str,
    bounds: tuple[float, float],
    cwd: Path,
    state_dir: Path | None,
    *,
    as_json: bool,
) -> None:
    import anyio

    from cantrip_acp.cli.session.setup import open_recipe
    from cantrip_acp.loom.find_loom import find_turn, open_readonly
    from cantrip_acp.loom.loom import Loom
    from cantrip_acp.text.sanitize import clean_line
    from cantrip_acp.training.judge import record_verdict, verify

    # Judging may take minutes. So the loom is opened read-only: another process can write to it during this time.
    with open_readonly(path) as held:
        judged = find_turn(held, turn or None)
        opening = open_recipe(verifier, cwd, None, state_dir)

        async def run() -> Verdict:
            low, high = bounds
            return await verify(opening.cantrip, held, judged, low=low, high=high, record=False, keep=opening.loom)

        try:
            verdict = anyio.run(run)
        finally:
            opening.loom.close()
    with Loom.open(path) as held:
        given = record_verdict(held, verdict)
    if as_json:
        click.echo(json.dumps({**_data(given), "loom": verdict.loom}))
        return
    click.echo(f"{judged}  reward {verdict.reward:g}  by {clean_line(verdict.by)}")
    if words := verdict.usage.words():
        click.echo(f"the verifier used {', '.join(words)}")
    if verdict.note:
        click.echo(clean_line(verdict.note, 2000))


def _bounds(text: str | None) -> tuple[float, float]:
    if text is None:
        return 0.0, 1.0
    found = _RANGE.fullmatch(text)
    try:
        if found is not None:
            return float(found[1]), float(found[2])
    except ValueError:
        pass
    raise click.UsageError(f"--range must be LOW..HIGH, such as 0..1 or -1..1, not {text!r}")


def _show(path: Path | str, turn: str | None, *, as_json: bool) -> None:
    from cantrip_acp.cli.render.table import number, print_table
    from cantrip_acp.cli.render.terminal import Screen
    from cantrip_acp.loom.find_loom import find_turn, open_readonly

    with open_readonly(path) as held:
        of = find_turn(held, turn or None) if turn is not None else None
        given = held.assigned(of)
    data = [_data(record) for record in given]
    if as_json:
        click.echo(json.dumps({"rewards": data}))
        return
    screen = Screen()
    if not data:
        screen.line("no reward was given" + (f" to {of}" if of is not None else ""))
    rows = [
        [
            d["turn_id"],
            number(d["reward"]) or "none",
            d["kind"],
            d["by"],
            d["timestamp"][:19].replace("T", " "),
            d["note"] or "",
        ]
        for d in data
    ]
    print_table(screen, ("turn", "reward", "kind", "by", "when", "note"), rows, right=("reward",))


def _data(record: RewardRecord) -> dict[str, Any]:
    """A reward as plain data, with its kind."""
    import msgspec

    from cantrip_acp.loom.rewards import kind

    data: dict[str, Any] = msgspec.to_builtins(record)
    data.pop("type", None)
    return {**data, "kind": kind(record)}
