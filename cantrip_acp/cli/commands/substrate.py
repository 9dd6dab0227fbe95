"""`cantrip substrate`: show and change what sessions know."""

from __future__ import annotations

import difflib
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cantrip_acp.cli.command_table import SuggestingGroup, examples
from cantrip_acp.cli.commands import substrate_runs
from cantrip_acp.cli.session.setup import project_option
from cantrip_acp.files.paths import config_dir, state_dir, substrate_address
from cantrip_acp.text.sanitize import clean, clean_line
from cantrip_acp.types.errors import DefinitionError

if TYPE_CHECKING:
    from cantrip_acp.substrate.chunks import Chunk, Commit, Placement, Scope
    from cantrip_acp.substrate.projects import Project
    from cantrip_acp.substrate.substrate import Substrate

_MOST_SHOWN = 20
"""The number of chunks of one scope that `tree` and `show` print by default."""
limit_option = click.option(
    "--limit",
    type=click.IntRange(1),
    default=_MOST_SHOWN,
    show_default=True,
    help="How many chunks to show of each scope. --json shows all of them.",
)

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object in one line.")
lines_option = click.option("--json", "as_json", is_flag=True, help="Print a JSON object in one line for each.")
at_option = click.option(
    "--at", type=click.IntRange(1), metavar="COMMIT", help="As of this commit.  [default: the latest]"
)


@click.group(
    "substrate",
    cls=SuggestingGroup,
    **examples("cantrip substrate tree", "cantrip substrate remember 'Ports begin at 4000.'"),
)
def substrate() -> None:
    """Show what sessions know: documents, facts and earlier sessions of a folder, with their sources and their history.

    The substrate stores texts (chunks). Each chunk is placed on a scope, such as a project or a session; a scope is a
    chunk, too. NAME is the name or the id of a chunk. Every change is a commit with a number.
    """


@substrate.command("tree", short_help="Show scopes, with their size in tokens.", **examples("cantrip substrate tree"))
@click.argument("name", required=False)
@click.option("--depth", type=click.IntRange(1, 10), default=2, show_default=True, help="Levels below the scope.")
@limit_option
@at_option
@json_option
@project_option
def tree(name: str | None, depth: int, limit: int, at: int | None, as_json: bool, cwd: Path) -> int:
    """Show the scope NAME with what is placed on it. Without NAME, show the user's culture and the project of this
    folder.

    A star marks the scopes that every session in this folder reads from the beginning.

    Exit status: 0 done, 2 NAME is unknown (with similar names).
    """
    with _opened(cwd) as (found, project):
        pinned = {*project.pinned, *(each.chunk.id for each in found.scope(project.pins).placed)}
        from cantrip_acp.substrate.knowledge import render
        from cantrip_acp.substrate.owners import USER_CULTURE

        _known(found, at)
        read = render(found, [*project.pinned, *(each.chunk.id for each in found.scope(project.pins).placed)], at=at)
        sizes = {part.chunk: part.tokens for part in read.parts}
        ids = [found.one(name, at=at, prefer=project.near).id] if name else [USER_CULTURE, project.id, project.folder]
        most = None if as_json else limit
        # The folder refers to its project, which is shown before it.
        trees = [_tree(found, each, depth, at, (pinned, sizes), {*ids} - {each}, most) for each in ids]
        if as_json:
            click.echo(json.dumps({"commit": at or found.latest(), "tokens": read.tokens, "scopes": trees}))
        else:
            for each in trees:
                _print_tree(each, "")
            click.echo(f"* every session here reads this from the beginning: together about {read.tokens:,} tokens")
    return 0


@substrate.command("show", short_help="Show one chunk.", **examples("cantrip substrate show culture:user"))
@click.argument("name")
@limit_option
@at_option
@json_option
@project_option
def show(name: str, limit: int, at: int | None, as_json: bool, cwd: Path) -> int:
    """Show the chunk NAME: its text, its source, where it is placed and what is placed on it.

    Exit status: 0 found, 2 unknown (with similar names), or several have that name.
    """
    with _opened(cwd) as (found, project):
        chunk = found.one(name, at=_known(found, at), prefer=project.near)
        scope = found.scope(chunk.id, at=at)
        places = found.placements(chunk.id, at=at)
        if as_json:
            click.echo(json.dumps(_chunk_record(chunk, scope, places)))
        else:
            _print_chunk(chunk, scope, places, limit)
    return 0


@substrate.command(
    "search",
    short_help="Search what is known here.",
    **examples("cantrip substrate remember 'Ports begin at 4000.'", "cantrip substrate search ports"),
)
@click.argument("query")
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="Results to show.")
@click.option(
    "--everywhere",
    is_flag=True,
    help="Search in all projects; each hit names its folders.  [default: only what sessions in this folder can find]",
)
@at_option
@lines_option
@project_option
def search(query: str, limit: int, everywhere: bool, at: int | None, as_json: bool, cwd: Path) -> int:
    """Find the texts that sessions in this folder could find with the words of QUERY: first known texts, then records
    of earlier sessions.

    The command first lists texts with all words, then texts where the last word is only the beginning of a word. If no
    text has all words, the command lists texts with any of the words.

    Exit status: 0 found, 1 nothing found.
    """
    from cantrip_acp.substrate.boundary import Boundary
    from cantrip_acp.substrate.projects import folders_of
    from cantrip_acp.substrate.types import TYPES

    with _opened(cwd) as (found, project):
        boundary = Boundary() if everywhere else Boundary.of(read=[*project.near, TYPES])
        hits = found.search(query, at=_known(found, at), limit=limit, boundary=boundary)
        for hit in hits:
            homes = folders_of(found, hit.chunk.id).values() if everywhere else ()
            folders = list(dict.fromkeys(name for each in homes for name in each))
            record = {"id": hit.chunk.id, "name": hit.chunk.name, "source": hit.chunk.source, "text": hit.snippet}
            if as_json:
                click.echo(json.dumps(record | ({"projects": folders} if everywhere else {})))
                continue
            where = f"  {clean_line(', '.join(folders) or 'no project')}" if everywhere else ""
            click.echo(f"{clean_line(hit.chunk.name)}  {hit.chunk.id}  {clean_line(hit.chunk.source)}{where}")
            click.echo(f"    {clean_line(hit.snippet)}")
    if not hits and not as_json:
        click.echo("nothing found", err=True)
    return 0 if hits else 1


@substrate.command("pin", short_help="Let every session here read a scope.", **examples("cantrip substrate pin types"))
@click.argument("name")
@click.option("--remove", is_flag=True, help="Do not give this scope to new sessions any more.")
@json_option
@project_option
def pin(name: str, remove: bool, as_json: bool, cwd: Path) -> int:
    """Give the texts of the scope NAME to every session in this folder when it begins, after culture and documents.

    Running sessions do not change until their next prompt.

    Exit status: 0 done, 2 NAME is unknown, or is not pinned (--remove).
    """
    from cantrip_acp.substrate.projects import pin as set_pin

    with _opened(cwd) as (found, _):
        chunk, commit = set_pin(found, cwd.resolve(), name, remove=remove)
        if as_json:
            click.echo(json.dumps({"scope": chunk.id, "pinned": not remove, "commit": commit.number}))
        elif commit.changed:
            state = (
                "not read from the beginning any more" if remove else "read by every session here from the beginning"
            )
            click.echo(f"{clean_line(chunk.name)}  {chunk.id}  {state} (commit {commit.number})")
        else:
            click.echo(f"{clean_line(chunk.name)}  {chunk.id}  was pinned already")
    return 0


@substrate.command(
    "log", short_help="List commits.", **examples("cantrip substrate log", "cantrip substrate log types")
)
@click.argument("name", required=False)
@click.option("--limit", type=click.IntRange(1, 100_000), default=20, show_default=True, help="How many to show.")
@lines_option
@project_option
def log(name: str | None, limit: int, as_json: bool, cwd: Path) -> int:
    """List commits, the latest first. With NAME: those that changed this scope or what is placed on it.

    Exit status: 0 done, 2 NAME is unknown.
    """
    with _opened(cwd) as (found, project):
        scope = found.one(name, prefer=project.near).id if name else None
        for commit in found.log(scope, limit=limit):
            click.echo(json.dumps(_commit_record(commit)) if as_json else _commit_line(commit))
    return 0


@substrate.command(
    "diff",
    short_help="Show what changed.",
    **examples("cantrip substrate remember 'Ports begin at 4000.'", "cantrip substrate diff 1"),
)
@click.argument("first", type=click.IntRange(0))
@click.argument("last", type=click.IntRange(1), required=False)
@json_option
@project_option
def diff(first: int, last: int | None, as_json: bool, cwd: Path) -> int:
    """Show what changed after the commit FIRST, up to LAST (by default the latest).

    Exit status: 0 nothing changed, 1 something changed, 2 there is no such commit.
    """
    with _opened(cwd) as (found, _):
        last, first = _known(found, last) or found.latest(), _known(found, first) or 0
        if first > last:
            raise DefinitionError(f"commit {first} is not before commit {last}: give the earlier one first")
        changes = found.changes(last, since=first)
        if as_json:
            chunks = [{"id": each.id, "name": each.name, "commit": each.commit} for each in changes.chunks]
            placed, removed = ([_placement_record(each) for each in some] for some in (changes.placed, changes.removed))
            click.echo(json.dumps({"chunks": chunks, "placed": placed, "removed": removed}))
        else:
            for chunk in changes.chunks:
                before = found.find(chunk.id, at=first) if first else []
                _print_change(before[0] if before else None, chunk)
            for mark, placements in (("+", changes.placed), ("-", changes.removed)):
                for each in placements:
                    click.echo(f"{mark} {each.chunk} {'on' if each.kind == 'instance' else 'relates to'} {each.scope}")
    return 1 if changes.chunks or changes.placed or changes.removed else 0


@substrate.command(
    "remember", short_help="Add a fact.", **examples("cantrip substrate remember 'Ports begin at 4000.'")
)
@click.argument("text")
@click.option(
    "--everywhere",
    is_flag=True,
    help="Add the text to your own culture, for all folders.  [default: in this project's]",
)
@json_option
@project_option
def remember(text: str, everywhere: bool, as_json: bool, cwd: Path) -> int:
    """Add TEXT to what every session in this folder knows. You are its source: `user`.

    Exit status: 0 done, 2 TEXT is empty, too long, or looks like a secret.
    """
    from cantrip_acp.substrate.remembered_facts import remember as add

    with _opened(cwd) as (found, _):
        chunk, commit = add(found, cwd.resolve(), text, everywhere=everywhere)
        if as_json:
            click.echo(json.dumps({"id": chunk.id, "name": chunk.name, "commit": commit.number}))
        else:
            click.echo(f"{clean_line(chunk.name)}  {chunk.id}  (commit {commit.number})")
    return 0


@substrate.command(
    "record",
    short_help="Record the casts of a loom.",
    **examples(
        "cantrip recipe new greeter",
        'cantrip cast greeter "Say hello." --loom hello.loom.jsonl',
        "cantrip substrate record hello.loom.jsonl",
    ),
)
@click.argument("looms", nargs=-1, required=True, metavar="LOOM...")
@click.option("--check", is_flag=True, help="Write nothing. List what is missing in the substrate, or different there.")
@project_option
def record(looms: tuple[str, ...], check: bool, cwd: Path) -> int:
    """Record all casts of each LOOM as sessions, if they are not recorded yet: after a crash, or from an older version.

    Exit status: 0 done, 1 there are differences (--check), 2 a loom cannot be read.
    """
    from cantrip_acp.loom.loom import Loom
    from cantrip_acp.substrate.recorder import catch_up, differences

    wrong = 0
    with _opened(cwd) as (found, _):
        for name in looms:
            with Loom.open(name, readonly=True) as loom:
                if check:
                    lines = differences(found, loom)
                    wrong += len(lines)
                    click.echo("\n".join([*lines, f"{name}: {len(lines)} differences"]))
                else:
                    click.echo(f"{name}: {catch_up(found, loom)} commits")
    return 1 if wrong else 0


@substrate.command(
    "secure",
    short_help="Let PostgreSQL keep its users apart.",
    **examples("cantrip substrate secure --help"),
)
@click.option(
    "--earlier", metavar="ROLE", default="", help="Give the private texts that earlier versions stored to this role."
)
@json_option
def secure(earlier: str, as_json: bool) -> int:
    """Let PostgreSQL itself keep the private texts of its users apart, by row-level security. The role that made the
    tables does it once. It then prints the rights that each other role needs.

    Exit status: 0 done, 2 it is not PostgreSQL, the role is unknown, or you may not do it.
    """
    with _database() as found:
        given = found.tables.secure(earlier)
        state = found.tables.separation()
        assert state is not None
        if as_json:
            click.echo(json.dumps({"secured": state.secured, "given": given, "grants": state.grants}))
            return 0
        click.echo(f"{clean_line(found.location)}: each role reads what is shared, and its own private texts")
        if earlier:
            click.echo(f"{clean_line(earlier)} has {given:,} private texts")
        click.echo("Each role needs these rights:")
        for each in state.grants:
            click.echo(f"    {each}")
        if state.passes:
            click.echo(
                f"The role {clean_line(state.role)} is not limited: it is a superuser, or has BYPASSRLS.", err=True
            )
    return 0


for command in (substrate_runs.run, substrate_runs.serve, substrate_runs.commit):
    substrate.add_command(command)


@contextmanager
def _opened(cwd: Path) -> Iterator[tuple[Substrate, Project]]:
    """The user's substrate, with the documents of this folder as they are now."""
    from cantrip_acp.substrate.projects import sync

    with _database() as found:
        yield found, sync(found, cwd.resolve(), config_dir())


@contextmanager
def _database() -> Iterator[Substrate]:
    from cantrip_acp.substrate.substrate import open_substrate

    address = substrate_address(state_dir())
    if address is None:
        raise DefinitionError("the substrate is turned off: the variable CANTRIP_SUBSTRATE is `off`; unset it")
    with open_substrate(address) as found:
        yield found


def _known(found: Substrate, at: int | None) -> int | None:
    latest = found.latest()
    if at is not None and at > latest:
        raise DefinitionError(f"there is no commit {at}: the latest is {latest}")
    return at


def _tree(
    found: Substrate,
    scope_id: str,
    depth: int,
    at: int | None,
    read: tuple[set[str], dict[str, int]],
    above: set[str],
    most: int | None,
) -> dict[str, Any]:
    """``read``: the scopes that every session reads, and the size of each chunk there."""
    from cantrip_acp.substrate.knowledge import chunk_tokens

    scope = found.scope(scope_id, at=at)
    chunk = scope.chunk
    shown = scope.placed[:most]
    inside = []
    for each in shown if depth else ():
        below = {"kind": each.kind, "sequence": each.sequence}
        if each.chunk.id in above:
            inside.append({"id": each.chunk.id, "name": each.chunk.name, "above": True, **below})
        else:
            inside.append(_tree(found, each.chunk.id, depth - 1, at, read, above | {scope_id}, most) | below)
    return {
        "id": chunk.id,
        "name": chunk.name,
        # A scope that every session reads costs nothing while nothing is in it.
        "tokens": read[1].get(chunk.id, 0 if chunk.id in read[0] else chunk_tokens(chunk)),
        "source": chunk.source,
        "pinned": chunk.id in read[0],
        "count": len(scope.placed),
        "placed": inside,
    }


def _print_tree(tree: dict[str, Any], indent: str) -> None:
    star = "* " if tree.get("pinned") else ""
    kind = " (relates)" if tree.get("kind") == "relates" else ""
    if tree.get("above"):
        click.echo(f"{indent}{clean_line(tree['name'])}{kind}  {tree['id']}  (above)")
        return
    size = f"{tree['tokens']:,} tokens  " if tree["tokens"] else ""
    click.echo(f"{indent}{star}{clean_line(tree['name'])}{kind}  {size}{clean_line(tree['source'])}  {tree['id']}")
    for each in tree["placed"]:
        _print_tree(each, f"{indent}  ")
    hidden = tree["count"] - len(tree["placed"])
    if hidden and (tree["placed"] or tree["count"]):
        more = f" --limit {tree['count']}" if tree["placed"] else ""
        click.echo(f"{indent}  … {hidden:,} more: cantrip substrate tree {tree['id']}{more}")


def _print_chunk(chunk: Chunk, scope: Scope, places: list[Placement], most: int) -> None:
    click.echo(
        f"{clean_line(chunk.name)}\nid       {chunk.id}\nsource   {clean_line(chunk.source)}\ncommit   {chunk.commit}"
    )
    rules = json.dumps(_spec_record(chunk))
    if rules != "{}":
        click.echo(f"spec     {rules}")
    for place in places:
        label = "on" if place.kind == "instance" else "relates"
        click.echo(f"{label:<9}{place.scope}")
    for key, value in chunk.body.items():
        if key != "text":
            click.echo(
                f"{key}: {clean_line(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))}"
            )
    if chunk.text:
        click.echo(f"\n{clean(chunk.text)}")
    if scope.placed:
        click.echo(f"\n{len(scope.placed)} placed on it:")
        for each in scope.placed[:most]:
            number = f"{each.sequence}. " if each.sequence is not None else ""
            click.echo(f"  {number}{clean_line(each.chunk.name)} ({each.kind})  {each.chunk.id}")
        if len(scope.placed) > most:
            click.echo(f"  … {len(scope.placed) - most:,} more: --limit {len(scope.placed)}")


def _print_change(before: Chunk | None, after: Chunk) -> None:
    click.echo(
        f"{'new' if before is None else 'changed'}  {clean_line(after.name)}  {after.id}  {clean_line(after.source)}"
    )
    old, new = (clean(each.text).splitlines() if each is not None else [] for each in (before, after))
    for line in list(difflib.unified_diff(old, new, lineterm="", n=1))[2:]:
        click.echo(f"    {line}")


def _chunk_record(chunk: Chunk, scope: Scope, places: list[Placement]) -> dict[str, Any]:
    return {
        "id": chunk.id,
        "name": chunk.name,
        "spec": _spec_record(chunk),
        "body": chunk.body,
        "source": chunk.source,
        "commit": chunk.commit,
        "placements": [{"scope": each.scope, "kind": each.kind, "sequence": each.sequence} for each in places],
        "placed": [
            {"id": each.chunk.id, "name": each.chunk.name, "kind": each.kind, "sequence": each.sequence}
            for each in scope.placed
        ],
    }


def _spec_record(chunk: Chunk) -> dict[str, Any]:
    spec = chunk.spec
    rules = {"propagate": spec.propagate, "ordered": spec.ordered, "accepts": spec.accepts, "required": spec.required}
    return {key: value for key, value in rules.items() if value}


def _placement_record(placement: Placement) -> dict[str, Any]:
    return {"chunk": placement.chunk, "scope": placement.scope, "kind": placement.kind, "sequence": placement.sequence}


def _commit_record(commit: Commit) -> dict[str, Any]:
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(commit.at))
    more = {"author": commit.author, "source": commit.source, "message": commit.message, "changed": commit.changed}
    return {"commit": commit.number, "at": when, **more}


def _commit_line(commit: Commit) -> str:
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(commit.at))
    message = f"  {clean_line(commit.message)}" if commit.message else ""
    return f"{commit.number:>6}  {when}  {commit.changed:>4} changed  {clean_line(commit.source)}{message}"
