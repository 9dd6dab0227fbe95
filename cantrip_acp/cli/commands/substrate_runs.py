"""`cantrip substrate run`, `serve` and `commit`: run programs, let the user's programs talk to the engine, and add chunks."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import anyio
import anyio.to_thread
import click

from cantrip_acp.cli.command_table import complete_recipe, examples
from cantrip_acp.cli.session.permissions import named_hosts, print_allowed
from cantrip_acp.cli.session.setup import project_option
from cantrip_acp.files.paths import config_dir, state_dir, substrate_address
from cantrip_acp.types.errors import DefinitionError

if TYPE_CHECKING:
    from cantrip_acp.substrate.boundary import Boundary
    from cantrip_acp.substrate.engine.engine import AgentTask, CastAgent, Engine
    from cantrip_acp.substrate.view import SessionView

_LONGEST_PATH = 100
"""The longest path of a socket, in bytes; the system's own limit is a little more."""

recipe_option = click.option(
    "--recipe",
    shell_complete=complete_recipe,
    default="familiar",
    show_default=True,
    metavar="NAME",
    help="The recipe of an agent. A file that you name here is trusted for this run.",
)


@click.command(
    "run",
    short_help="Run a program, or an agent.",
    **examples("""cantrip substrate run agent '{"intent": "Which port do we use?"}'"""),
)
@click.argument("program")
@click.argument("given", metavar="[INPUT]", default="{}")
@recipe_option
@click.option("--json", "as_json", is_flag=True, help="Print the process as one JSON object in one line.")
@project_option
def run(program: str, given: str, recipe: str, as_json: bool, cwd: Path) -> int:
    """Run PROGRAM (a name or an id) in the sandbox, and print what it printed. INPUT is a JSON object, or - for stdin.

    The program reads your culture, your skills and the project of this folder. It writes only in this project, where it
    declares it. The program `agent` casts an entity: {"intent": "…", "crystal": "PROVIDER:MODEL", "scopes": ["…"]}.

    Exit status: 0 the program ended, 1 it failed, 2 PROGRAM is unknown or INPUT does not fit it, 3 no sandbox, 130
    interrupted.
    """
    data = _object(sys.stdin.read() if given == "-" else given)

    async def main() -> Mapping[str, Any]:
        from cantrip_acp.substrate.engine.engine import program_named

        view = await anyio.to_thread.run_sync(_view, cwd)
        async with _engine(view, recipe) as engine:
            found = await anyio.to_thread.run_sync(
                lambda: program_named(view.substrate, program, prefer=view.project.near)
            )
            process = await engine.run(found.id, data, _boundary(view, found.id), place=view.project.runs)
            chunk = await engine.wait(process)
            return {"process": process, **chunk.body}

    body = anyio.run(main)
    if as_json:
        click.echo(json.dumps({key: value for key, value in body.items() if key not in ("boundary", "engine", "host")}))
    else:
        text = str(body.get("text", ""))
        click.echo(text, nl=bool(text) and not text.endswith("\n"))
        if body["state"] != "ended":
            ended = f"exit status {body['exit_code']}" if "exit_code" in body else "it did not start"
            why = body.get("why") or ended
            click.echo(f"{body['process']} {body['state']}: {why}", err=True)
    return 0 if body["state"] == "ended" else 1


@click.command("serve", short_help="Serve the engine on a Unix socket.", **examples("cantrip substrate serve --help"))
@click.option("--socket", "path", type=click.Path(path_type=Path), help="[default: substrate.sock in the state folder]")
@click.option(
    "--read",
    "reads",
    multiple=True,
    metavar="SCOPE",
    help="Callers may read only these scopes.  [default: this project]",
)
@click.option("--write", "writes", multiple=True, metavar="SCOPE", help="These scopes may be written.  [default: none]")
@recipe_option
@project_option
def serve(path: Path | None, reads: tuple[str, ...], writes: tuple[str, ...], recipe: str, cwd: Path) -> int:
    """Serve the engine to your own programs, until Ctrl-C or SIGTERM: JSON-RPC 2.0, one message for each line.

    The methods are scope, search, commit, run and await. Only processes of your user can connect.

    Exit status: 0 stopped, 2 a scope is unknown, or the socket cannot be made.
    """
    place = path or state_dir() / "substrate.sock"
    if len(str(place.absolute()).encode()) > _LONGEST_PATH:
        raise DefinitionError(
            f"the path of a socket has at most {_LONGEST_PATH} bytes; give a shorter one with --socket",
            where=str(place),
        )

    async def main() -> None:
        from cantrip_acp.substrate.engine.socket_server import listen

        view = await anyio.to_thread.run_sync(_view, cwd)
        boundary = _served(view, reads, writes)
        async with _engine(view, recipe) as engine:
            engine.admit(boundary.holder, boundary)
            click.echo(f"serving {view.substrate.location} on {place}; Ctrl-C stops it", err=True)
            with anyio.CancelScope() as scope:
                asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, scope.cancel)
                await listen(engine, str(place), boundary.holder, boundary)

    try:
        anyio.run(main)
    except KeyboardInterrupt:
        return 0
    except OSError as problem:
        raise DefinitionError(f"the socket cannot be made: {problem.strerror}", where=str(place)) from None
    return 0


@click.command(
    "commit",
    short_help="Add chunks and placements.",
    **examples("""echo '{"chunks": [{"id": "notes", "name": "notes"}]}' | cantrip substrate commit -"""),
)
@click.argument("file", type=click.File("rb"))
@click.option("--message", default="", help="Why, for the log.")
@click.option("--replace", is_flag=True, help="Change chunks that other projects read, too.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object in one line.")
@project_option
def commit(file: BinaryIO, message: str, replace: bool, as_json: bool, cwd: Path) -> int:
    """Store the change in FILE (- for stdin): all of it, or nothing.

    The change is a JSON object with "chunks" ({"id", "name", "spec", "body"}), "placements" ({"chunk", "scope", "kind",
    "sequence"}) and "removals" ({"chunk", "scope", "kind"}). In placements and removals, "chunk" and "scope" are ids or
    names, and "project" is the project of this folder. A new chunk that is placed nowhere is placed on this project. Ids
    are the same for all projects: a chunk that another project reads changes only with --replace.

    Exit status: 0 done, 2 the change breaks a rule; the message names chunk, scope and rule.
    """
    from cantrip_acp.substrate.chunks import parse_change, refuse_secrets
    from cantrip_acp.substrate.projects import check_own, named, settle

    example = '{"chunks": [{"id": "notes", "name": "notes"}]}'
    change = parse_change(_object(file.read().decode("utf-8", "replace"), example))
    view = _view(cwd)
    project = settle(view.substrate, view.workspace)
    change, added = named(view.substrate, project, change)
    refuse_secrets(change)
    if not replace:
        check_own(view.substrate, project, change)
    found = view.substrate.commit(change, author="user", message=message)
    if as_json:
        click.echo(json.dumps({"commit": found.number, "changed": found.changed, "placed": added}))
        return 0
    click.echo(f"commit {found.number}: {found.changed} changed" if found.changed else "nothing changed")
    if added:
        click.echo(f"placed on the project of this folder, because the change places it nowhere: {', '.join(added)}")
    return 0


def _object(text: str, example: str = '{"args": ["a.txt"]}') -> dict[str, Any]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise DefinitionError(f"this is not JSON: {problem}; write for example {example}") from None
    if not isinstance(data, dict):
        raise DefinitionError(f"this is not a JSON object; write for example {example}")
    return data


def _view(cwd: Path) -> SessionView:
    from cantrip_acp.substrate.view import SessionView

    address = substrate_address(state_dir())
    if address is None:
        raise DefinitionError("the substrate is turned off: the variable CANTRIP_SUBSTRATE is `off`; unset it")
    view = SessionView(address, cwd.resolve(), config_dir=config_dir())
    view.bring_files()
    return view


def _engine(view: SessionView, recipe: str) -> Engine:
    from cantrip_acp.substrate.engine.engine import Engine

    return Engine(view.substrate, view.workspace, _caster(recipe, view.workspace), folders=(config_dir() / "skills",))


def _boundary(view: SessionView, program: str) -> Boundary:
    """The boundary of a program that the user runs: what it may read and, if it declares that, write."""
    from cantrip_acp.substrate.boundary import Boundary

    return Boundary((view.boundary.read[0] | {program},), (frozenset({view.project.id}),), "user")


def _served(view: SessionView, reads: tuple[str, ...], writes: tuple[str, ...]) -> Boundary:
    from cantrip_acp.substrate.boundary import Boundary
    from cantrip_acp.substrate.types import with_types

    written = [view.substrate.one(name, prefer=view.project.near).id for name in writes]
    if not reads:
        return Boundary((view.boundary.read[0] | frozenset(written),), (frozenset(written),), "socket")
    read = [view.substrate.one(name, prefer=view.project.near).id for name in reads]
    return with_types(Boundary.of(read=read, write=written, holder="socket"))


def _caster(recipe_name: str, workspace: Path) -> CastAgent:
    """Make the function that casts an entity of the recipe for each run of the agent program outside of another entity."""

    async def cast(task: AgentTask) -> str:
        from cantrip_acp.cli.session.setup import load_trusted
        from cantrip_acp.core.delegation.run_child import answer_of
        from cantrip_acp.recipes.build.build import build, open_loom
        from cantrip_acp.recipes.build.crystals import crystal_named
        from cantrip_acp.substrate.engine.program_gates import LimitedView, limits_of, show_session
        from cantrip_acp.substrate.view import SessionView

        recipe, folder, state = await anyio.to_thread.run_sync(load_trusted, recipe_name, workspace, None)
        crystal = crystal_named(task.crystal, recipe, "the agent's crystal") if task.crystal else None
        made = await anyio.to_thread.run_sync(lambda: build(recipe, workspace=folder, crystal=crystal))
        views = [each for each in made.contributors if isinstance(each, SessionView)]
        if not views:
            raise DefinitionError(
                f"the recipe {recipe.name} reads nothing from the substrate; add `memory: {{culture: true}}`"
            )
        limited = LimitedView(views[0], await anyio.to_thread.run_sync(limits_of, views[0], task))
        others = [each for each in made.contributors if each is not views[0]]
        hosts = named_hosts()
        hosts.add_from_text(task.intent)
        made = made.replace(contributors=(limited, *others)).for_session((), hosts)
        print_allowed(made, made.circle, hosts, ask=False)
        with open_loom(made.loom_settings, None, state) as loom:
            click.echo(f"{task.process}: {loom.location}", err=True)
            async with made.invoke(loom=loom) as entity:
                try:
                    result = await entity.cast(task.intent)
                finally:
                    limited.end()
                    await anyio.to_thread.run_sync(show_session, views[0], entity.id, task.process)
        answer = answer_of(result)
        return answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False, default=str)

    return cast
