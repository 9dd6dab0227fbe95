"""Options and helpers of the commands that use a tuple-space: ``--space``, the lanes and the recipes of a worker."""

from __future__ import annotations

import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from cantrip_acp.types.errors import DefinitionError

if TYPE_CHECKING:
    from cantrip_acp.cli.session.setup import OpenedRecipe
    from cantrip_acp.tuplespace.reuse.step_results import Reuse
    from cantrip_acp.tuplespace.stores.sql import TupleStore
    from cantrip_acp.tuplespace.workers.guardrails import DiskFloor, Policy
    from cantrip_acp.tuplespace.workers.worker import Yool
    from cantrip_acp.tuplespace.yools.cast_yool import CastYool

T = TypeVar("T")

space_option = click.option(
    "--space",
    metavar="SPACE",
    envvar="CANTRIP_TUPLE_SPACE",
    help="The tuple-space: a SQLite file, or postgresql://user@host/database for many hosts.  "
    "[default: $CANTRIP_TUPLE_SPACE, else tuples.db in the state folder]",
)


alarm_option = click.option(
    "--on-alarm",
    metavar="COMMAND",
    help="Run this shell command on the host for each alarm of the space: a budget that is spent to 50, 80 or 100 %, or a disk "
    "with too little space. Its stdin is the alarm as JSON.",
)


def open_space(space: str | None, state_dir: Path | None) -> TupleStore:
    """Open the tuple-space that the user named, or that of the state folder."""
    from cantrip_acp.files import paths
    from cantrip_acp.tuplespace.stores import open_store

    return open_store(space if space is not None else paths.private(paths.state_dir(state_dir)) / "tuples.db")


def reuse_in(store: TupleStore, state_dir: Path | None, workspace: Path) -> Reuse | None:
    """The reuse of answers for the project in a folder. None if ``CANTRIP_NO_CACHE`` is set."""
    from cantrip_acp.files import paths
    from cantrip_acp.git.project_identity import project_id
    from cantrip_acp.tuplespace.receipts import user_key
    from cantrip_acp.tuplespace.reuse.step_results import Reuse

    if os.environ.get("CANTRIP_NO_CACHE"):
        return None
    key = None
    if store.path is not None:
        try:
            key = user_key(paths.private(paths.state_dir(state_dir)) / "gate-receipts" / "key")
        except OSError as error:
            click.echo(f"cantrip: no answers are reused: {error}", err=True)
            return None
    return Reuse(project=project_id(workspace), key=key)


def disk_floor(state_dir: Path | None, policy: Policy, notice: Callable[[str], object] | None = None) -> DiskFloor:
    """The disk with the state folder. While it has too little space, a worker takes nothing."""
    from cantrip_acp.files import paths
    from cantrip_acp.tuplespace.workers.guardrails import DiskFloor, needed_mb

    def show(text: str) -> None:
        click.echo(f"cantrip: {text}", err=True)

    return DiskFloor(paths.state_dir(state_dir), needed_mb(policy), notice or show)


def run_async(main: Callable[[], Awaitable[T]]) -> T:
    """Run an event loop. A single error out of task groups is raised as itself."""
    import anyio

    try:
        return anyio.run(main)
    except BaseExceptionGroup as group:
        first: BaseException = group
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise first from None


def worker_name() -> str:
    """The name of this process as a worker, ``HOST:PID``, as ``tuple status`` shows it."""
    return f"{socket.gethostname()}:{os.getpid()}"


def give_back_of_dead_processes(store: TupleStore, lane: str) -> None:
    """Make tuples of a lane available again if the process that held them on this machine was killed, without waiting for
    their leases."""
    for holder in store.holders():
        host, _, pid = holder.worker.rpartition(":")
        if holder.lane == lane and host == socket.gethostname() and pid.isdigit():
            try:
                os.kill(int(pid), 0)
            except ProcessLookupError:
                store.revoke(holder.worker, f"its process {pid} on this machine was killed")
            except OSError:
                # It is the process of another user.
                continue


def cast_yools(opened: Sequence[OpenedRecipe], hosts: Sequence[str]) -> dict[str, Yool]:
    """A yool for each recipe, with the hosts of ``--allow-host``, and the one that puts the leaves of fan-outs.

    Raises DefinitionError if two recipes have one name.
    """
    from cantrip_acp.tuplespace.batch import cast_yool
    from cantrip_acp.tuplespace.fan_out import SPAWN, spawn

    yools: dict[str, Any] = {SPAWN: spawn}
    for each in opened:
        name = cast_yool(each.recipe.name)
        if name in yools:
            raise DefinitionError(
                f"two recipes have the name {each.recipe.name!r}: start a worker for each", where=each.recipe.file
            )
        yools[name] = cast_of(each, hosts)
    return yools


def cast_of(opened: OpenedRecipe, hosts: Sequence[str]) -> CastYool:
    from cantrip_acp.git.project_identity import project_id
    from cantrip_acp.tuplespace.batch import recipe_digest
    from cantrip_acp.tuplespace.yools.cast_yool import CastYool

    digest, project = recipe_digest(opened.recipe, opened.model), project_id(opened.workspace)
    return CastYool(opened.cantrip, opened.loom, digest, hosts=hosts, model=opened.model, project=project)
