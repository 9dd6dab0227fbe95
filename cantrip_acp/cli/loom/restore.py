"""`cantrip loom restore`: restore the files of a workspace as they were after a turn of a loom."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cantrip_acp.cli.command_table import complete_loom, complete_turn, examples
from cantrip_acp.cli.errors import DONE, FAILED
from cantrip_acp.cli.session.setup import state_option
from cantrip_acp.text.sanitize import clean_line
from cantrip_acp.types.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cantrip_acp.checkpoints.restore import Plan, Step
    from cantrip_acp.loom.loom import Loom
    from cantrip_acp.types.records import FilesRecord


@click.command(
    "restore",
    **examples(
        "cantrip recipe new greeter",
        'cantrip cast greeter "Say hello." --loom hello.loom.jsonl',
        "cantrip loom restore hello.loom.jsonl last --dry-run",
    ),
)
@click.argument("name", metavar="FILE", shell_complete=complete_loom)
@click.argument("turn", shell_complete=complete_turn)
@click.option("--dry-run", is_flag=True, help="Only show what would be restored.")
@click.option(
    "--force",
    is_flag=True,
    help="Also restore files where you and the entity changed the same lines. The result is without your changes.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@state_option
def restore(name: str, turn: str, dry_run: bool, force: bool, as_json: bool, state_dir: Path | None) -> int:
    """Restore the files of a workspace as they were after TURN of the loom FILE.

    TURN is a number (1 is the first answer of the thread that was written last, 0 its start), `last`, or an id or its
    beginning. `0` restores the files from before any change of the entity.

    Your own changes stay: they are merged. If a file cannot be merged, the command asks you at a terminal; without a
    terminal, it does not change that file, and names it. Nothing is lost: the present files are saved first, so you
    can undo a restore by the same command with a later turn. The loom gets a record of it. Close the session in the
    editor first.

    Exit status: 0 if everything was restored; 1 if a file was left as it is, or you chose to restore nothing; 2 wrong usage.
    """
    from cantrip_acp.files import paths
    from cantrip_acp.loom.find_loom import find_loom, find_turn
    from cantrip_acp.loom.loom import Loom

    state = paths.state_dir(state_dir)
    with Loom.open(find_loom(name, state), readonly=dry_run) as loom:
        asks = at_terminal() and not (dry_run or as_json)
        found = restore_files(loom, find_turn(loom, turn or None), dry_run=dry_run, force=force, asks=asks)
    click.echo(json.dumps(found.data())) if as_json else found.show()
    return FAILED if found.conflicts or found.left else DONE


@dataclass(frozen=True, slots=True)
class Restored:
    """The result of a restore, or of a dry run: the action for each path, and the reason for each skipped file."""

    workspace: str
    dry_run: bool
    restored: dict[str, str]
    conflicts: dict[str, str]
    left: dict[str, str]

    def data(self) -> dict[str, Any]:
        return asdict(self)

    def show(self) -> None:
        from cantrip_acp.cli.render.terminal import Screen
        from cantrip_acp.text.sanitize import clean_line

        screen = Screen()
        verb, count = "would restore" if self.dry_run else "restored", len(self.restored)
        screen.line((f"{verb} {count} file{'' if count == 1 else 's'} of {self.workspace}", "bold"))
        for path, action in self.restored.items():
            screen.line((f"{action:<7}", "dim"), clean_line(path), indent=2)
        for path, why in self.conflicts.items():
            screen.line((f"left    {clean_line(path)}: {why}; --force restores it", "yellow"), indent=2)
        for path, why in self.left.items():
            screen.line((f"left    {clean_line(path)}: {why}", "yellow"), indent=2)


def at_terminal() -> bool:
    """Whether the user can be asked."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def restore_files(
    loom: Loom, turn_id: str, *, dry_run: bool = False, force: bool = False, asks: bool = False
) -> Restored:
    """Restore the files of a turn, and record it in the loom. With ``asks`` the user decides about conflicts at the terminal.

    Raises `CheckpointError` if no files were kept, or if the user cancels the restore.
    """
    from cantrip_acp.checkpoints.history import FileHistory
    from cantrip_acp.checkpoints.restore import finish_restores, make_plan, run_plan
    from cantrip_acp.checkpoints.store import Store
    from cantrip_acp.core.lifecycle.checkpoints import files_record, target_of_turn
    from cantrip_acp.core.lifecycle.saved_files import chain_key, state_of

    def action(step: Step) -> str:
        return "delete" if step.then is None else "merge" if step.merged else "write"

    kept, last_turn = _find_chain(loom, turn_id)
    key, workspace = chain_key(str(kept.ref)), str(kept.workspace)
    with Store(workspace, state=state_of(loom.location), create=False) as store:
        if not dry_run:
            finish_restores(store, *key)
        target = target_of_turn(FileHistory(store, *key), loom, last_turn, turn_id)
        plan = make_plan(store, target.undone, to=target.to, unsure=target.unsure, force=force)
        if asks:
            plan = _decide_conflicts(plan)
        done: Mapping[str, Step] = plan.steps
        left = dict(plan.left)
        if not dry_run:
            outcome = run_plan(store, *key, plan)
            done = outcome.done
            left.update(outcome.skipped)
            if outcome.checkpoint is not None:
                entity = loom.places[last_turn].entity_id
                ref = str(kept.ref)
                loom.append(files_record(outcome.checkpoint, last_turn, entity, ref, workspace, turn_id))
    restored = {path: action(step) for path, step in sorted(done.items())}
    return Restored(workspace, dry_run, restored, dict(plan.conflicts), left)


def _decide_conflicts(plan: Plan) -> Plan:
    """Ask the user whether the conflicts of a plan are restored all the same. Returns the plan to carry out. Raises
    `CheckpointError` if nothing is to be restored."""
    if not plan.conflicts:
        return plan
    from cantrip_acp.checkpoints.restore import UNSURE
    from cantrip_acp.cli.render.terminal import Screen

    screen = Screen()
    if plan.steps:
        names = [clean_line(path) for path in plan.steps]
        more = f" and {len(names) - 5} more" if len(names) > 5 else ""
        screen.line((f"restores {', '.join(names[:5])}{more}", "dim"))
    for path, why in plan.conflicts.items():
        screen.line((f"{'unsure  ' if why == UNSURE else 'conflict'} {clean_line(path)}: {why}", "yellow"))
    these, are = ("it", "it is") if len(plan.conflicts) == 1 else ("them", "they are")
    answer = ""
    while answer not in ("k", "o", "c"):
        try:
            answer = input(f"keep {these} as {are} (k), overwrite {these} (o), restore nothing (c)? ").strip()
        except (EOFError, KeyboardInterrupt):
            answer = "c"
    if answer == "c":
        raise CheckpointError("nothing was restored, as you chose")
    return plan.overwriting(plan.over) if answer == "o" else plan


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
        raise CheckpointError(
            f"no files were kept on the thread of turn {turn_id}: no turn changed any, the recipe says loom: {{files: false}}, "
            "or an earlier version wrote this loom"
        )
    return kept, turn_id
