"""`cantrip trust`: the user's word for the recipes of a folder."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cantrip_acp.cli.commands import examples
from cantrip_acp.cli.opening import state_option
from cantrip_acp.cli.untrusted import clean_line
from cantrip_acp.errors import CantripError, DefinitionError

if TYPE_CHECKING:
    from cantrip_acp.recipes.trust import Ledger


@click.command(
    "trust",
    **examples(
        "cantrip recipe new greeter",
        "cantrip trust .",
        "cantrip trust --mcp -- npx -y @modelcontextprotocol/server-everything",
        "cantrip trust --list",
        "cantrip trust --revoke .",
    ),
)
@click.argument("words", metavar="[DIR]", nargs=-1)
@click.option("--mcp", is_flag=True, help="Trust the command of an MCP server (all that follows) instead of a folder.")
@click.option("--revoke", is_flag=True, help="Trust the folder no longer.")
@click.option(
    "--list", "as_list", is_flag=True, help="Show the folders that are trusted, and whether they have changed."
)
@state_option
def trust(words: tuple[str, ...], mcp: bool, revoke: bool, as_list: bool, state_dir: Path | None) -> int:
    """Trust the recipes in DIR/.cantrip (by default, here) and the files that they name, as they are now.

    A recipe that came with a folder may do only what is harmless until you say this; it is asked again when any of it
    changes. Read them first: a trusted recipe decides where prompts and keys go, and what the sandbox lets through.

    With --mcp, an MCP server that an editor names may run outside the sandbox, as you, when its command is exactly this one.
    """
    from cantrip_acp import folders
    from cantrip_acp.recipes.recipe import recipe_files
    from cantrip_acp.recipes.trust import FOLDER, Ledger

    ledger = Ledger(folders.state_dir(state_dir))
    if as_list:
        return _list(ledger)
    if mcp:
        return _command(ledger, words, revoke=revoke)
    if len(words) > 1:
        raise click.UsageError("one folder at a time; a command comes after --mcp --")
    folder = Path(words[0]) if words else Path()
    if revoke:
        if ledger.revoke(folder):
            click.echo(f"no longer trusted: {folder.resolve()}")
        else:
            click.echo(f"was not trusted: {folder.resolve()}")
        return 0
    if not (folder / FOLDER).is_dir():
        raise DefinitionError(f"has no {FOLDER} folder, so there is nothing to trust", where=str(folder))
    if not recipe_files(folder / FOLDER):
        raise DefinitionError("holds no recipe, so there is nothing to trust", where=str(folder / FOLDER))
    what = ledger.grant(folder)
    click.echo(f"trusted, as it is now: {folder.resolve()}")
    _show_what(folder, list(what.files))
    return 0


def _command(ledger: Ledger, words: tuple[str, ...], *, revoke: bool) -> int:
    if not words:
        raise click.UsageError("--mcp needs the server's command: cantrip trust --mcp -- COMMAND ARGS…")
    shown = shlex.join(words)
    if revoke:
        was = ledger.revoke_command(words)
        click.echo(f"{'no longer trusted' if was else 'was not trusted'}: {shown}")
        return 0
    ledger.grant_command(words)
    click.echo(f"may run outside the sandbox as an MCP server: {shown}")
    return 0


def _list(ledger: Ledger) -> int:
    trusted = ledger.folders()
    commands = ledger.commands()
    for words, entry in sorted(commands.items()):
        shown = clean_line(shlex.join(json.loads(words)))
        click.echo(f"MCP server: {shown}  since {str(entry.get('when', ''))[:19]}")
    if not trusted and not commands:
        click.echo("no folder is trusted")
    for folder, entry in sorted(trusted.items()):
        state = ledger.state(Path(folder))
        changed = "" if state == "trusted" else "  (changed since: not trusted any more)"
        click.echo(f"{folder}  since {str(entry.get('when', ''))[:19]}{changed}")
    return 0


def _show_what(folder: Path, names: list[str]) -> None:
    """The files, and what in them needs the trust."""
    from cantrip_acp.recipes.document import SUFFIXES
    from cantrip_acp.recipes.recipe import load
    from cantrip_acp.recipes.trust import FOLDER, demands

    for name in names:
        path = folder / FOLDER / name
        click.echo(f"  {name}")
        if not name.endswith(SUFFIXES):
            continue
        try:
            recipe = load(path)
        except CantripError as error:
            click.echo(f"    not valid: {str(error).splitlines()[0]}")
            continue
        for at, why in demands(recipe.data, recipe.folder, folder.resolve()):
            problem = recipe.problem(at, why)
            click.echo(f"    line {problem.line}: {problem.key}: {why}")
