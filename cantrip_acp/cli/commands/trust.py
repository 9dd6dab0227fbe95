"""`cantrip trust`: trusts the recipes of a folder or the command of an MCP server, lists what is trusted, or revokes trust."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cantrip_acp.cli.command_table import examples
from cantrip_acp.cli.session.setup import state_option
from cantrip_acp.text.sanitize import clean_line
from cantrip_acp.types.errors import CantripError, DefinitionError

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
@click.option(
    "--mcp", is_flag=True, help="Trust the command of an MCP server (all following words) instead of a folder."
)
@click.option("--revoke", is_flag=True, help="Do not trust the folder or the command any more.")
@click.option(
    "--list", "as_list", is_flag=True, help="List the trusted folders and commands, and which folders have changed."
)
@click.option("--yes", is_flag=True, help="Grant the trust without asking (for scripts).")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON object: what would be trusted, and whether it is trusted now.",
)
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
    """Trust the recipes in DIR/.cantrip (by default of this folder) and the files that they name, in their present form.

    Without your trust, a recipe in a folder may do only harmless things. If one of the files changes, the folder is not trusted
    any more. The command first shows what each recipe could do, and then asks you. Read the recipes: a trusted recipe decides
    where prompts and keys are sent, and what the sandbox allows.

    --list also shows the hosts that commands in a folder may reach because you allowed them for that project, and --revoke
    forgets them.

    With --mcp you trust the command of an MCP server. If an editor names exactly this command, it may run outside the sandbox
    with your rights.

    Exit status: 0 trusted, 1 not trusted.
    """
    from cantrip_acp.files import paths
    from cantrip_acp.recipes.build.python_files import Files
    from cantrip_acp.recipes.recipe import recipe_files
    from cantrip_acp.recipes.trust import FOLDER, Ledger, content

    ledger = Ledger(paths.state_dir(state_dir))
    if as_list:
        return _list(ledger, as_json=as_json)
    if mcp:
        return _trust_command(ledger, words, revoke=revoke, yes=yes, as_json=as_json)
    if len(words) > 1:
        raise click.UsageError("name only one folder, or write --mcp -- before the command of an MCP server")
    folder = Path(words[0]) if words else Path()
    shown = _line(folder.resolve())
    if revoke:
        had_hosts = ledger.forget_hosts(folder)
        was = ledger.revoke(folder) or had_hosts
        _print(f"{'no longer trusted' if was else 'was not trusted'}: {shown}", as_json, folder=shown, revoked=was)
        return 0
    if not (folder / FOLDER).is_dir():
        raise DefinitionError(f"has no {FOLDER} folder, so there is nothing to trust", where=str(folder))
    if not recipe_files(folder / FOLDER):
        raise DefinitionError("contains no recipe, so there is nothing to trust", where=str(folder / FOLDER))
    what = content(folder, Files())
    recipes = _describe_files(folder, what)
    if not as_json:
        click.echo(f"This folder would be trusted in its present form: {shown}")
        for line in _file_lines(recipes):
            click.echo(line)
    granted = _confirm(f"Trust the recipes of {shown}?", yes=yes, as_json=as_json)
    if granted and not ledger.grant_seen(folder, what):
        raise DefinitionError(
            "is not trusted, because it changed after it was shown; run the command again", where=str(folder / FOLDER)
        )
    verdict = "trusted" if granted else "not trusted"
    _print(f"{verdict}: {shown}", as_json, folder=shown, trusted=granted, recipes=recipes)
    return 0 if granted else 1


def _trust_command(ledger: Ledger, words: tuple[str, ...], *, revoke: bool, yes: bool, as_json: bool) -> int:
    if not words:
        raise click.UsageError("--mcp needs the server's command: cantrip trust --mcp -- COMMAND ARGS…")
    shown = _line(shlex.join(words))
    if revoke:
        was = ledger.revoke_command(words)
        _print(f"{'no longer trusted' if was else 'was not trusted'}: {shown}", as_json, command=shown, revoked=was)
        return 0
    if not as_json:
        click.echo(
            "If an editor names exactly this command, it would run outside the sandbox. It could use your files, your"
        )
        click.echo(
            "network and the variables that the editor gives it, and do everything that you can do on this machine:"
        )
        click.echo(f"  {shown}")
    granted = _confirm("Let it run outside the sandbox?", yes=yes, as_json=as_json)
    if granted:
        ledger.grant_command(words)
    verdict = "may run" if granted else "may not run"
    _print(f"{verdict} outside the sandbox as an MCP server: {shown}", as_json, command=shown, trusted=granted)
    return 0 if granted else 1


def _confirm(question: str, *, yes: bool, as_json: bool) -> bool:
    """Whether the user agrees, by ``--yes`` or by an answer on the terminal."""
    if yes:
        return True
    if as_json or not (sys.stdin.isatty() and sys.stdout.isatty()):
        click.echo("nothing was trusted, because there is no terminal to ask. Read the text, then add --yes", err=True)
        return False
    return click.confirm(question, default=False)


def _print(text: str, as_json: bool, **data: Any) -> None:
    click.echo(json.dumps(data) if as_json else text)


def _list(ledger: Ledger, *, as_json: bool) -> int:
    trusted = ledger.folders()
    commands = ledger.commands()
    hosts = {folder: entry.get("patterns", []) for folder, entry in sorted(ledger.all_hosts().items())}
    states = {folder: ledger.state(Path(folder)) for folder in sorted(trusted)}
    if as_json:
        listed = [
            {"folder": folder, "state": state, "since": trusted[folder].get("when")} for folder, state in states.items()
        ]
        servers = [{"command": json.loads(w), "since": e.get("when")} for w, e in sorted(commands.items())]
        click.echo(json.dumps({"folders": listed, "commands": servers, "hosts": hosts}))
        return 0
    for words, entry in sorted(commands.items()):
        click.echo(
            f"MCP server: {_line(shlex.join(json.loads(words)))}  since {_line(str(entry.get('when', ''))[:19])}"
        )
    for folder, patterns in hosts.items():
        names = ", ".join(str(pattern).removeprefix("host ") for pattern in patterns)
        click.echo(f"{_line(folder)}  commands may reach {_line(names)}")
    if not trusted and not commands and not hosts:
        click.echo("no folder is trusted, and no MCP server is allowed")
    for folder, state in states.items():
        changed = "" if state == "trusted" else "  (changed since then, so it is not trusted any more)"
        click.echo(f"{_line(folder)}  since {_line(str(trusted[folder].get('when', ''))[:19])}{changed}")
    return 0


def _describe_files(folder: Path, what: Content) -> list[dict[str, Any]]:
    """Describe the files that would be trusted. For a recipe, also its possible effects and the lines that need trust."""
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
        for at, why in demands(recipe.data, recipe.path.parent, folder.resolve()):
            problem = recipe.problem(at, why)
            about["needs_trust"].append({"line": problem.line, "key": _line(problem.key), "why": _line(why)})
    return found


def _file_lines(recipes: list[dict[str, Any]]) -> list[str]:
    lines = []
    for about in recipes:
        lines.append(f"  {about['file']}")
        if "invalid" in about:
            lines.append(f"    not valid: {about['invalid']}")
        lines += [f"    it could {power}" for power in about.get("can", ())]
        lines += [f"    line {each['line']}: {each['key']}: {each['why']}" for each in about.get("needs_trust", ())]
    return lines


def _line(text: object) -> str:
    """Make text from a possibly hostile folder safe to print: one line, without terminal control sequences."""
    return clean_line(str(text), _LONGEST)
