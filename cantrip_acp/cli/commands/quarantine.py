"""`cantrip quarantine`: lists what commands made and what was moved away, puts it back, or deletes it."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cantrip_acp.cli.command_table import SuggestingGroup, examples
from cantrip_acp.cli.session.setup import state_option
from cantrip_acp.text.sanitize import clean_line

if TYPE_CHECKING:
    from cantrip_acp.files.quarantine import Quarantine, Quarantined

_workspace = click.option(
    "--workspace",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=Path(),
    help="The workspace whose commands made them.  [default: this folder]",
)
_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
_ids = click.argument("ids", metavar="[ID]...", nargs=-1)
_all = click.option("--all", "every", is_flag=True, help="All of them.")


@click.group(
    "quarantine",
    cls=SuggestingGroup,
    **examples("cantrip quarantine list", "cantrip quarantine keep --all", "cantrip quarantine drop 20260101-120000-0a1b2c3d"),
)  # fmt: skip
def quarantine() -> None:
    """Show the protected files that commands made and that were moved away. Keep them, or drop them.

    A protected file makes programs run as soon as somebody opens its folder (.vscode, .npmrc, the settings of a git repository).
    If a command makes one that was not there before, it is moved to a private folder before the command's result is read.
    """


@quarantine.command("list", **examples("cantrip quarantine list", "cantrip quarantine list --json"))
@_workspace
@_json
@state_option
def list_(workspace: Path, as_json: bool, state_dir: Path | None) -> int:
    """List what was moved away: when, from where, why, and by which command.

    To look at the content before you decide, open the path that is shown. Exit status: 0.
    """
    found = _of(workspace, state_dir)
    entries = found.entries()
    if as_json:
        click.echo(json.dumps({"workspace": found.workspace, "entries": [_data(found, each) for each in entries]}))
        return 0
    if not entries:
        click.echo("nothing was moved away")
    for each in entries:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(each.when))
        click.echo(f"{each.id}  {clean_line(each.name)}  ({each.kind}, {each.size:,} bytes)")
        click.echo(f"    why: {clean_line(each.reason)}")
        click.echo(f"    when: {when}, by: {clean_line(each.command) or 'a command that was interrupted'}")
        click.echo(f"    now: {clean_line(each.lost) if each.lost else found.content(each.id)}")
    return 0


@quarantine.command(
    "keep", **examples("cantrip quarantine keep 20260101-120000-0a1b2c3d", "cantrip quarantine keep --all")
)
@_ids
@_all
@_workspace
@_json
@state_option
def keep(ids: tuple[str, ...], every: bool, workspace: Path, as_json: bool, state_dir: Path | None) -> int:
    """Put files back where they were. Nothing is overwritten. Read them first.

    Exit status: 0 all are back; 1 one could not be put back.
    """
    return _each("kept", ids, every, _of(workspace, state_dir), as_json)


@quarantine.command(
    "drop", **examples("cantrip quarantine drop 20260101-120000-0a1b2c3d", "cantrip quarantine drop --all")
)
@_ids
@_all
@_workspace
@_json
@state_option
def drop(ids: tuple[str, ...], every: bool, workspace: Path, as_json: bool, state_dir: Path | None) -> int:
    """Delete files that were moved away, for good.

    Exit status: 0 all are deleted; 1 one could not be deleted.
    """
    return _each("dropped", ids, every, _of(workspace, state_dir), as_json)


def _of(workspace: Path, state: Path | None) -> Quarantine:
    from cantrip_acp.files.quarantine import Quarantine

    return Quarantine(workspace, state)


def _each(done: str, ids: tuple[str, ...], every: bool, found: Quarantine, as_json: bool) -> int:
    from cantrip_acp.files.quarantine import QuarantineError

    if every == bool(ids):
        raise click.UsageError("name entries, as `cantrip quarantine list` shows them, or write --all")
    changed: list[Quarantined] = []
    failed: dict[str, str] = {}
    for each in [entry.id for entry in found.entries()] if every else ids:
        try:
            changed.append(found.keep(each) if done == "kept" else found.drop(each))
        except QuarantineError as error:
            failed[each] = str(error)
    if as_json:
        data = {"workspace": found.workspace, done: [each.id for each in changed], "failed": failed}
        click.echo(json.dumps(data))
    else:
        for entry in changed:
            click.echo(f"{done}: {clean_line(entry.name)}")
        if not changed and not failed:
            click.echo("nothing was moved away")
        for why in failed.values():
            click.echo(clean_line(why), file=sys.stderr)
    return 1 if failed else 0


def _data(found: Quarantine, entry: Quarantined) -> dict[str, Any]:
    import msgspec

    return {**msgspec.to_builtins(entry), "content": str(found.content(entry.id))}
