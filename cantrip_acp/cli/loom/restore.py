"""`cantrip loom restore`: restore the files of a workspace as they were after a turn of a loom."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cantrip_acp.cli.command_table import examples
from cantrip_acp.cli.errors import DONE, FAILED
from cantrip_acp.cli.session.setup import state_option

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cantrip_acp.checkpoints.restore import Plan, Step
    from cantrip_acp.loom.loom import Loom
    from cantrip_acp.loom.records.turn import FilesRecord


@click.command(
    "restore",
    **examples(
        "cantrip recipe new greeter",
        'cantrip cast greeter "Say hello." --loom hello.loom.jsonl',
        'cantrip loom restore hello.loom.jsonl "" --dry-run',
    ),
)
@click.argument("name", metavar="FILE")
@click.argument("turn")
@click.option("--dry-run", is_flag=True, help="Only show what would be restored.")
@click.option(
    "--force", is_flag=True, help="Restore also files that you changed where the entity had, without your changes."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@state_option
def restore(name: str, turn: str, dry_run: bool, force: bool, as_json: bool, state_dir: Path | None) -> int:
    """Restore the files of a workspace as they were after TURN of the loom FILE.

    TURN is a turn's id or its beginning; an empty text is the last turn of the thread that was written last. The id of the
    first turn of a thread, which `cantrip loom tree` shows, stands for the files before the entity changed any.

    What you changed yourself stays: it is merged, or the file is left as it is and named. Nothing is lost: the present files
    are kept first, so the same command with a later turn takes the restore back. The loom gets a record of it. Close the
    session in the editor first.

    Exit status: 0 if everything was restored; 1 if a file was left as it is; 2 wrong usage.
    """
    from cantrip_acp.checkpoints.history import FileHistory
    from cantrip_acp.checkpoints.restore import finish_restores, make_plan, run_plan
    from cantrip_acp.checkpoints.store import Store
    from cantrip_acp.core.lifecycle.checkpoints import chain_key, files_record, state_of, target_of_turn
    from cantrip_acp.files import paths
    from cantrip_acp.loom.find_loom import find_loom, find_turn
    from cantrip_acp.loom.loom import Loom
    from cantrip_acp.text.redaction import shared

    state = paths.state_dir(state_dir)
    with Loom.open(find_loom(name, state), readonly=dry_run) as loom:
        turn_id = find_turn(loom, turn or None)
        kept, last_turn = _find_chain(loom, turn_id)
        loom_key, entity_key = chain_key(str(kept.ref))
        with Store(str(kept.workspace), state=state_of(loom.location) or state, create=False) as store:
            if not dry_run:
                finish_restores(store, loom_key, entity_key)
            history = FileHistory(store, loom_key, entity_key)
            target = target_of_turn(history, loom, last_turn, turn_id)
            plan = make_plan(store, target.undone, to=target.to, force=force)
            done: Mapping[str, Step] = plan.steps
            skipped: Mapping[str, str] = {}
            if not dry_run:
                outcome = run_plan(store, loom_key, entity_key, plan)
                done, skipped = outcome.done, outcome.skipped
                if outcome.checkpoint is not None:
                    loom.append(
                        files_record(
                            outcome.checkpoint,
                            last_turn,
                            loom.places[last_turn].entity_id,
                            str(kept.ref),
                            str(kept.workspace),
                            shared().text,
                            turn_id,
                        )
                    )
    _print(plan, done, skipped, str(kept.workspace), dry_run=dry_run, as_json=as_json)
    return FAILED if plan.conflicts or plan.left or skipped else DONE


def _find_chain(loom: Loom, turn_id: str) -> tuple[FilesRecord, str]:
    """The last record of files on a thread with this turn, and the last turn of that thread."""
    from msgspec import UNSET

    records = [each for each in loom.files() if each.checkpoint is not UNSET]
    for each in reversed(records):
        if turn_id in loom.path(each.turn_id):
            leaf = loom.last_turn(loom.places[each.turn_id].entity_id)
            own = leaf is not None and each.turn_id in loom.path(leaf)
            return each, leaf if own and leaf is not None else each.turn_id
    kept = loom.files_at(turn_id)
    if kept is None or kept.checkpoint is UNSET:
        raise click.ClickException(
            f"no files were kept on the thread of turn {turn_id}: no turn changed any, the recipe says loom: {{files: false}}, "
            "or an earlier version wrote this loom"
        )
    return kept, turn_id


def _print(
    plan: Plan, done: Mapping[str, Step], skipped: Mapping[str, str], workspace: str, *, dry_run: bool, as_json: bool
) -> None:
    from cantrip_acp.cli.render.terminal import Screen
    from cantrip_acp.text.sanitize import clean_line

    def action(step: Step) -> str:
        return "delete" if step.then is None else "merge" if step.merged else "write"

    left = {**plan.left, **skipped}
    if as_json:
        data: dict[str, Any] = {
            "workspace": workspace,
            "dry_run": dry_run,
            "restored": {path: action(step) for path, step in sorted(done.items())},
            "conflicts": dict(plan.conflicts),
            "left": left,
        }
        click.echo(json.dumps(data))
        return
    screen = Screen()
    verb = "would restore" if dry_run else "restored"
    screen.line((f"{verb} {len(done)} file{'' if len(done) == 1 else 's'} of {workspace}", "bold"))
    for path, step in sorted(done.items()):
        screen.line((f"{action(step):<7}", "dim"), clean_line(path), indent=2)
    for path, why in plan.conflicts.items():
        screen.line((f"left    {clean_line(path)}: {why}; --force restores it", "yellow"), indent=2)
    for path, why in left.items():
        screen.line((f"left    {clean_line(path)}: {why}", "yellow"), indent=2)
