"""`cantrip catalog`: write, search and compare the catalog of everything that a project's work can name."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cantrip_acp.cli.command_table import SuggestingGroup, examples
from cantrip_acp.cli.session.setup import project_option
from cantrip_acp.text.sanitize import clean_line
from cantrip_acp.types.errors import DefinitionError

if TYPE_CHECKING:
    from cantrip_acp.tuplespace.catalog.capabilities import Capability, Catalog, CatalogDiff

_KINDS = ("agent", "gate", "medium", "provider", "recipe")
_OF_PACKAGES = ("gate", "medium", "provider")
"""The kinds of capabilities that have the version of their package."""
file_option = click.option(
    "--file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The catalog to read.  [default: .catalog/capabilities.json; without it, what `cantrip catalog build` would write]",
)


@click.group("catalog", cls=SuggestingGroup, **examples("cantrip catalog list", "cantrip catalog build"))
def catalog() -> None:
    """Write, search and compare the catalog: every gate, recipe, medium, provider and agent of a project, by name."""


@catalog.command(
    "build",
    short_help="Write .catalog/capabilities.json.",
    **examples("cantrip recipe new greeter", "cantrip catalog build", "cantrip catalog build --check"),
)
@click.option("--check", is_flag=True, help="Write nothing. The exit status is 1 if the file is not up to date.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@project_option
def build(check: bool, as_json: bool, cwd: Path) -> int:
    """Write .catalog/capabilities.json from AGENTS.md, the recipes in .cantrip, and what is installed. Put it into git.

    The same files and installed packages give the same text. A file that is up to date is not written again. For --check, a file
    is also up to date if nothing but the versions of installed packages has changed.

    Exit status: 0 done, 1 the file is not up to date (--check), 2 AGENTS.md, a recipe or an installed gate is not valid.
    """
    from cantrip_acp.files.folder import Folder
    from cantrip_acp.tuplespace.catalog.build import build_catalog
    from cantrip_acp.tuplespace.catalog.capabilities import FILE, Catalog, parse_catalog
    from cantrip_acp.tuplespace.errors import TupleError

    path = cwd / FILE
    built, upgraded = build_catalog(cwd), 0
    text, old_text = built.to_json(), b""
    try:
        # Both may have come with a repository, or from a command that works in the folder.
        if os.path.lexists(path.parent):
            with Folder.of(path.parent) as folder:
                if folder.entry(path.name) is not None:
                    with folder.file(path.name) as file:
                        old_text = file.read()
        up_to_date = text == old_text
        if not (up_to_date or check):
            with Folder.of(path.parent, make=True) as folder:
                folder.replace(path.name, text)
    except OSError as error:
        raise DefinitionError(error.strerror or str(error), where=str(error.filename or path)) from None
    try:
        old = parse_catalog(old_text, str(path)) if old_text else Catalog(())
    except TupleError as error:
        if check:
            click.echo(str(error), err=True)
        old = Catalog(())
    changes = old.diff(built)
    if check and not up_to_date and _is_only_upgraded(changes):
        up_to_date, upgraded = True, len(changes.changed)
    if as_json:
        counts = {kind: len(built.list(kind=kind)) for kind in _KINDS}
        data = {"file": str(path), "catalog_id": built.catalog_id, "capabilities": counts, "up_to_date": up_to_date}
        click.echo(json.dumps({**data, "written": not (up_to_date or check), "changes": _as_json(changes)}))
    else:
        if old_text and not upgraded:
            _print_changes(changes)
        if up_to_date:
            state = "is up to date" + (f", except for {upgraded} versions of installed packages" if upgraded else "")
        else:
            state = "is not up to date: run cantrip catalog build" if check else "written"
        click.echo(f"{path}  {len(built)} capabilities  {state}")
    return 1 if check and not up_to_date else 0


def _is_only_upgraded(changes: CatalogDiff) -> bool:
    """Whether packages were upgraded without a change of their capabilities."""
    return (
        not (changes.added or changes.removed)
        and bool(changes.changed)
        and all(new.kind in _OF_PACKAGES and _changed_fields(old, new) == ["version"] for old, new in changes.changed)
    )


@catalog.command(
    "lookup",
    short_help="Show one capability.",
    **examples("cantrip catalog lookup gate.read_file", "cantrip catalog lookup agent.cast.coding --json"),
)
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object in one line.")
@file_option
@project_option
def lookup(name: str, as_json: bool, file: Path | None, cwd: Path) -> int:
    """Show the capability NAME: version, kind, lane, authority, budget, description and the schema of its arguments.

    A NAME without a version, such as agent.dev.python, finds the highest version (agent.dev.python.v2).

    Exit status: 0 found, 2 unknown (with similar names), or the catalog is not valid.
    """
    click.echo(json.dumps(_record(_open(file, cwd).lookup(name)), indent=None if as_json else 2))
    return 0


@catalog.command(
    "list",
    short_help="List capabilities.",
    **examples("cantrip catalog list --kind recipe", "cantrip catalog list --lane coding --json"),
)
@click.option("--lane", help="List only entries with this lane.")
@click.option("--kind", type=click.Choice(_KINDS), help="List only entries of this kind.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line for each entry.")
@file_option
@project_option
def list_(lane: str | None, kind: str | None, as_json: bool, file: Path | None, cwd: Path) -> int:
    """List the capabilities, sorted by name.

    Exit status: 0 done (also if there are none), 2 the catalog is not valid.
    """
    from cantrip_acp.cli.render.table import print_table
    from cantrip_acp.cli.render.terminal import Screen

    found = _open(file, cwd).list(lane, kind)
    if as_json:
        for each in found:
            click.echo(json.dumps(_record(each)))
    elif found:
        rows = [[c.name, c.kind, c.lane or "", _short(c.version), c.description.split("\n")[0]] for c in found]
        print_table(Screen(), ["name", "kind", "lane", "version", "description"], rows)
    else:
        click.echo("cantrip: nothing in the catalog matches", err=True)
    return 0


@catalog.command(
    "diff",
    short_help="Compare two catalogs.",
    **examples(
        "cantrip catalog build",
        "cp .catalog/capabilities.json old.json",
        "cantrip recipe new greeter",
        "cantrip catalog build",
        "cantrip catalog diff old.json .catalog/capabilities.json",
    ),
)
@click.argument("old", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("new", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def diff(old: Path, new: Path, as_json: bool) -> int:
    """Show what was added, removed and changed from the catalog OLD to the catalog NEW.

    Exit status: 0 done, 2 a file is not a valid catalog. --json has an empty list for each kind of change if nothing differs.
    """
    from cantrip_acp.tuplespace.catalog.capabilities import read_catalog

    changes = read_catalog(old).diff(read_catalog(new))
    if as_json:
        click.echo(json.dumps(_as_json(changes)))
    else:
        _print_changes(changes)
        click.echo(f"{changes.nodes_read} nodes read, {changes.nodes} in {new}")
    return 0


def _open(file: Path | None, cwd: Path) -> Catalog:
    from cantrip_acp.tuplespace.catalog.build import build_catalog
    from cantrip_acp.tuplespace.catalog.capabilities import FILE, read_catalog

    if file is None and not os.path.lexists(cwd / FILE):
        return build_catalog(cwd)
    return read_catalog(file or cwd / FILE)


def _record(capability: Capability) -> dict[str, Any]:
    import msgspec

    record: dict[str, Any] = msgspec.to_builtins(capability)
    return record


def _as_json(changes: CatalogDiff) -> dict[str, Any]:
    return {
        "added": [each.name for each in changes.added],
        "removed": [each.name for each in changes.removed],
        "changed": [{"name": new.name, "fields": _changed_fields(old, new)} for old, new in changes.changed],
        "nodes_read": changes.nodes_read,
        "nodes": changes.nodes,
    }


def _print_changes(changes: CatalogDiff) -> None:
    for mark, capabilities in (("+", changes.added), ("-", changes.removed)):
        for each in capabilities:
            click.echo(clean_line(f"{mark} {each.name} ({_short(each.version)})", 2000))
    for old, new in changes.changed:
        click.echo(clean_line(f"* {new.name}: {', '.join(_changed_fields(old, new))}", 2000))


def _changed_fields(old: Capability, new: Capability) -> list[str]:
    return [name for name in _fields(old) if getattr(old, name) != getattr(new, name)]


def _fields(capability: Capability) -> Iterable[str]:
    return capability.__struct_fields__


def _short(version: str) -> str:
    return version[:14] if version.startswith("sha256:") else version
