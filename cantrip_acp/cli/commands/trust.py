"""`cantrip trust`: trust the recipes of a folder or the command of an MCP server, list what is trusted, or revoke it."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cantrip_acp.cli.command_table import examples
from cantrip_acp.cli.session.setup import state_option
from cantrip_acp.core.errors import CantripError, DefinitionError
from cantrip_acp.text.sanitize import clean_line

if TYPE_CHECKING:
    from cantrip_acp.recipes.trust import Content, Ledger

_LONGEST = 1000


@click.command(
    "trust",
    **examples(
        "cantrip recipe new greeter",
        "cantrip trust --yes .",
        "cantrip trust --mcp --yes -- npx -y @modelcontextprotocol/server-everything",
        "cantrip trust --list",
        "cantrip trust --revoke .",
    ),
)
@click.argument("words", metavar="[DIR]", nargs=-1)
@click.option("--mcp", is_flag=True, help="Trust the command of an MCP server (all that follows) instead of a folder.")
@click.option("--revoke", is_flag=True, help="Withdraw the trust in the folder.")
@click.option(
    "--list", "as_list", is_flag=True, help="Show the folders that are trusted, and whether they have changed."
)
@click.option("--yes", is_flag=True, help="Grant it without asking (for scripts).")
@click.option("--json", "as_json", is_flag=True, help="One JSON object: what would be granted, and whether it was.")
@state_option
def trust(
    words: tuple[str, ...],
    mcp: bool,
    revoke: bool,
    as_list: bool,
    yes: bool,
    as_json: bool,
    state_dir: Path | None,
) -> int:
    """Trust the recipes in DIR/.cantrip (by default, here) and the files that they name, as they are now.

    A recipe that came with a folder may do only what is harmless until you say this; it is asked again when any of it
    changes. What each of them could do is shown first, and then you are asked. Read them: a trusted recipe decides where
    prompts and keys go, and what the sandbox lets through.

    With --mcp, an MCP server that an editor names may run outside the sandbox, as you, when its command is exactly this one.

    The status is 0 where it was granted, 1 where it was not.
    """
    from cantrip_acp.files import paths
    from cantrip_acp.recipes.build.python_files import Files
    from cantrip_acp.recipes.recipe import recipe_files
    from cantrip_acp.recipes.trust import FOLDER, Ledger, content

    ledger = Ledger(paths.state_dir(state_dir))
    if as_list:
        return _list(ledger, as_json=as_json)
    if mcp:
        return _command(ledger, words, revoke=revoke, yes=yes, as_json=as_json)
    if len(words) > 1:
        raise click.UsageError("one folder at a time; a command comes after --mcp --")
    folder = Path(words[0]) if words else Path()
    shown = _line(folder.resolve())
    if revoke:
        was = ledger.revoke(folder)
        _say(f"{'no longer trusted' if was else 'was not trusted'}: {shown}", as_json, folder=shown, revoked=was)
        return 0
    if not (folder / FOLDER).is_dir():
        raise DefinitionError(f"has no {FOLDER} folder, so there is nothing to trust", where=str(folder))
    if not recipe_files(folder / FOLDER):
        raise DefinitionError("holds no recipe, so there is nothing to trust", where=str(folder / FOLDER))
    what = content(folder, Files())
    recipes = _described(folder, what)
    if not as_json:
        click.echo(f"to be trusted, as it is now: {shown}")
        for line in _lines(recipes):
            click.echo(line)
    granted = _agreed(f"Trust the recipes of {shown}?", yes=yes, as_json=as_json)
    if granted and not ledger.grant_seen(folder, what):
        raise DefinitionError("changed while you read it, and is not trusted; look again", where=str(folder / FOLDER))
    verdict = "trusted" if granted else "not trusted"
    _say(f"{verdict}: {shown}", as_json, folder=shown, trusted=granted, recipes=recipes)
    return 0 if granted else 1


def _command(ledger: Ledger, words: tuple[str, ...], *, revoke: bool, yes: bool, as_json: bool) -> int:
    if not words:
        raise click.UsageError("--mcp needs the server's command: cantrip trust --mcp -- COMMAND ARGS…")
    shown = _line(shlex.join(words))
    if revoke:
        was = ledger.revoke_command(words)
        _say(f"{'no longer trusted' if was else 'was not trusted'}: {shown}", as_json, command=shown, revoked=was)
        return 0
    if not as_json:
        click.echo(
            "This program could do on this machine whatever you can: it would run outside the sandbox, with your files,"
        )
        click.echo(
            "your network and the variables that an editor gives it, whenever an editor names exactly these words:"
        )
        click.echo(f"  {shown}")
    granted = _agreed("Let it run outside the sandbox?", yes=yes, as_json=as_json)
    if granted:
        ledger.grant_command(words)
    verdict = "may run" if granted else "may not run"
    _say(f"{verdict} outside the sandbox as an MCP server: {shown}", as_json, command=shown, trusted=granted)
    return 0 if granted else 1


def _agreed(question: str, *, yes: bool, as_json: bool) -> bool:
    """Whether the user agrees: by ``--yes``, or by an answer at the terminal."""
    if yes:
        return True
    if as_json or not (sys.stdin.isatty() and sys.stdout.isatty()):
        click.echo("nothing was granted: there is no terminal to ask at; read what is shown, then add --yes", err=True)
        return False
    return click.confirm(question, default=False)


def _say(text: str, as_json: bool, **data: Any) -> None:
    click.echo(json.dumps(data) if as_json else text)


def _list(ledger: Ledger, *, as_json: bool) -> int:
    trusted = ledger.folders()
    commands = ledger.commands()
    states = {folder: ledger.state(Path(folder)) for folder in sorted(trusted)}
    if as_json:
        listed = [
            {"folder": folder, "state": state, "since": trusted[folder].get("when")} for folder, state in states.items()
        ]
        servers = [{"command": json.loads(w), "since": e.get("when")} for w, e in sorted(commands.items())]
        click.echo(json.dumps({"folders": listed, "commands": servers}))
        return 0
    for words, entry in sorted(commands.items()):
        click.echo(
            f"MCP server: {_line(shlex.join(json.loads(words)))}  since {_line(str(entry.get('when', ''))[:19])}"
        )
    if not trusted and not commands:
        click.echo("no folder is trusted")
    for folder, state in states.items():
        changed = "" if state == "trusted" else "  (changed since: not trusted any more)"
        click.echo(f"{_line(folder)}  since {_line(str(trusted[folder].get('when', ''))[:19])}{changed}")
    return 0


def _described(folder: Path, what: Content) -> list[dict[str, Any]]:
    """Each file that would be trusted. For a recipe also what it could do, and which lines need trust."""
    from cantrip_acp.recipes.parse.document import SUFFIXES
    from cantrip_acp.recipes.recipe import load
    from cantrip_acp.recipes.trust import FOLDER, demands, powers

    found: list[dict[str, Any]] = []
    for name, digest in what.files.items():
        about: dict[str, Any] = {"file": _line(name), "sha256": digest}
        found.append(about)
        if not name.endswith(SUFFIXES) or "/" in name:
            continue
        try:
            recipe = load(folder / FOLDER / name)
        except CantripError as error:
            about["invalid"] = _line(str(error).splitlines()[0])
            continue
        about["can"] = [_line(power) for power in powers(recipe)]
        about["needs_trust"] = []
        for at, why in demands(recipe.data, recipe.folder, folder.resolve()):
            problem = recipe.problem(at, why)
            about["needs_trust"].append({"line": problem.line, "key": _line(problem.key), "why": _line(why)})
    return found


def _lines(recipes: list[dict[str, Any]]) -> list[str]:
    lines = []
    for about in recipes:
        lines.append(f"  {about['file']}")
        if "invalid" in about:
            lines.append(f"    not valid: {about['invalid']}")
        lines += [f"    it could {power}" for power in about.get("can", ())]
        lines += [f"    line {each['line']}: {each['key']}: {each['why']}" for each in about.get("needs_trust", ())]
    return lines


def _line(text: object) -> str:
    """Text from a folder that may be hostile: made one line, without terminal control sequences."""
    return clean_line(str(text), _LONGEST)
