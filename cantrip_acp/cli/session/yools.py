"""What a worker runs besides recipes: commands of ``--yool``, and the agents of a project's ``AGENTS.md``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

if TYPE_CHECKING:
    from cantrip_acp.cli.session.setup import OpenedRecipe
    from cantrip_acp.tuplespace.catalog.capabilities import Capability
    from cantrip_acp.tuplespace.workers.worker import Yool

yool_option = click.option(
    "--yool",
    "commands",
    multiple=True,
    metavar="NAME=COMMAND",
    help="Run this shell command for the steps NAME, in the sandbox and in the project's folder. {path} in it is the step's "
    "argument path, as one word. May be repeated.",
)
inputs_option = click.option(
    "--inputs",
    "inputs",
    multiple=True,
    metavar="NAME=PATTERN",
    help="The files that the command of --yool NAME reads, such as src/**. While they, the command and the arguments are the "
    "same, its results are used again. May be repeated; NAME= alone: it reads no files.",
)


def command_yools(
    commands: Sequence[str],
    inputs: Sequence[str],
    cwd: Path,
    state_dir: Path | None,
    hosts: Sequence[str],
    authorities: Mapping[str, tuple[str, ...]],
) -> dict[str, Yool]:
    """The yools of ``--yool``. They can reach the hosts of ``--allow-host``."""
    from cantrip_acp.files import paths
    from cantrip_acp.git.project_identity import project_id
    from cantrip_acp.tuplespace.errors import TupleError
    from cantrip_acp.tuplespace.tuples import check_yool_name
    from cantrip_acp.tuplespace.yools.command_yool import Command, CommandYool

    found: dict[str, Command] = {}
    for text in commands:
        name, command = _pair(text, "--yool", "agent.lint.ruff='ruff check {path}'")
        if name in found:
            raise click.BadParameter(f"{name} is given twice", param_hint="--yool")
        try:
            check_yool_name(name)
        except TupleError as error:
            raise click.BadParameter(str(error), param_hint="--yool") from None
        found[name] = Command(run=command, network=tuple(hosts))
    for text in inputs:
        name, pattern = _pair(text, "--inputs", "'agent.lint.ruff=src/**'")
        if name not in found:
            raise click.BadParameter(f"there is no --yool {name}", param_hint="--inputs")
        more = (*(found[name].inputs or ()), *([pattern] if pattern else []))
        found[name] = msgspec.structs.replace(found[name], inputs=more)
    workspace, yools = cwd.resolve(), dict[str, Any]()
    state = paths.private(paths.state_dir(state_dir))
    for name, each in found.items():
        try:
            yools[name] = CommandYool(
                each,
                workspace,
                state,
                full_name=name,
                project=project_id(workspace),
                authority=authorities.get(name, ()),
            )
        except TupleError as error:
            raise click.BadParameter(f"{name}: {error}", param_hint="--yool") from None
    return yools


def _pair(text: str, option: str, example: str) -> tuple[str, str]:
    name, mark, value = text.partition("=")
    if not mark:
        raise click.BadParameter(f"write it as {option} {example}, not {text!r}", param_hint=option)
    return name.strip(), value


def agent_yools(
    agents: Sequence[Capability],
    cwd: Path,
    state_dir: Path | None,
    hosts: Sequence[str],
    open_agent: Callable[[str], OpenedRecipe],
) -> dict[str, Yool]:
    """The yools of agents. Their commands reach only hosts that the user allows. Raises `DefinitionError`."""
    from cantrip_acp.cli.session.tuple_space import cast_of
    from cantrip_acp.files import paths
    from cantrip_acp.git.project_identity import project_id
    from cantrip_acp.tuplespace.yools.command_yool import Command, CommandYool
    from cantrip_acp.types.errors import DefinitionError

    workspace, state = cwd.resolve(), paths.private(paths.state_dir(state_dir))
    yools: dict[str, Yool] = {}
    for each in agents:
        if each.recipe is not None:
            cast = cast_of(open_agent(each.recipe), hosts)
            cast.full_name, cast.authority = each.name, each.authority
            yools[each.name] = cast
            continue
        assert each.run is not None
        if refused := [host for host in each.network if host not in hosts]:
            options = " ".join(f"--allow-host {host}" for host in refused)
            raise DefinitionError(
                f"{each.name} wants to reach {', '.join(refused)}. If you allow it, start the worker with {options}",
                where=each.source,
            )
        command = Command(run=each.run, inputs=each.inputs, env=each.env, network=each.network)
        project = project_id(workspace)
        yools[each.name] = CommandYool(
            command, workspace, state, full_name=each.name, project=project, authority=each.authority
        )
    return yools
