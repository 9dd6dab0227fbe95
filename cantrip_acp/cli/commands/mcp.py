"""`cantrip mcp`: an MCP server through which other agents give work to the workers of a lane, and read their receipts."""

from __future__ import annotations

import getpass
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cantrip_acp.cli.command_table import complete_recipe, examples
from cantrip_acp.cli.commands.worker import print_ended
from cantrip_acp.cli.session.option_groups import (
    Budget,
    Place,
    budget_options,
    casting_place_options,
    concurrency_option,
    dollars_option,
    option_group,
    retries_option,
)
from cantrip_acp.cli.session.permissions import named_hosts, print_allowed
from cantrip_acp.cli.session.setup import OpenedRecipe, load_trusted, open_recipe
from cantrip_acp.cli.session.tuple_space import cast_yools, disk_floor, open_space, run_async, space_option, worker_name
from cantrip_acp.files.installation import install_command
from cantrip_acp.types.errors import DefinitionError

if TYPE_CHECKING:
    from cantrip_acp.tuplespace.catalog.capabilities import Catalog
    from cantrip_acp.tuplespace.mcp_edge.answers import Answers
    from cantrip_acp.tuplespace.mcp_edge.mcp_server import HttpServer
    from cantrip_acp.tuplespace.stores.sql import TupleStore
    from cantrip_acp.tuplespace.workers.guardrails import Policy
    from cantrip_acp.tuplespace.workers.worker import Worker

DEFAULT_LANE = "mcp"
DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8732
_AT_ONCE = 8
_LAST_S = 5.0
"""After so many seconds, SIGTERM ends a server on stdio even if its client reads nothing any more."""


@dataclass(frozen=True, slots=True)
class OfOneTuple:
    """Limits on a client's requests. None: no limit."""

    max_usd: float | None
    max_tokens: int | None
    max_retries: int
    max_waiting: int | None


@dataclass(frozen=True, slots=True)
class HttpServing:
    """Whether HTTP is served (``http``), and how."""

    http: bool
    host: str
    port: int
    token_file: Path | None
    names: tuple[str, ...]
    origins: tuple[str, ...]
    as_json: bool

    def given(self) -> dict[str, object]:
        """The options that need ``--http``, by their names, and whether they were given."""
        texts = {"--token-file": self.token_file, "--server-name": self.names, "--allow-origin": self.origins}
        changed = {"--host": self.host != DEFAULT_HOST, "--port": self.port != DEFAULT_PORT}
        return {"--json": self.as_json, **texts, **changed}


@click.command("mcp", **examples("cantrip recipe new greeter", "cantrip mcp greeter --work < /dev/null"))
@click.argument("recipes", nargs=-1, shell_complete=complete_recipe)
@click.option(
    "--lane",
    "lanes",
    multiple=True,
    help=f"A lane that clients see and put tuples into. May be repeated; the first is the default.  [default: {DEFAULT_LANE}]",
)
@space_option
@click.option(
    "--work", is_flag=True, help="Also cast RECIPES here: take the tuples of the lanes, as `cantrip worker` does."
)
@concurrency_option("With --work: casts at once in each lane", _AT_ONCE)
@budget_options(
    "The most that all tuples which clients put into the lanes may cost together. The cost of earlier runs "
    "counts also after a restart.",
    "The most tokens that all tuples of the clients together may use.",
)
@dollars_option("--max-usd", "The most that one tuple may cost.")
@click.option("--max-tokens", type=click.IntRange(1), metavar="N", help="The most tokens that one tuple may use.")
@retries_option("The most further attempts after a failure.")
@click.option(
    "--max-waiting",
    type=click.IntRange(1),
    metavar="N",
    help="How many tuples may wait in a lane.  [default: $YOOL_TUPLE_QUEUE_MAXSIZE, else 8192]",
)
@click.option(
    "--http", is_flag=True, help="Serve streamable HTTP at /mcp, not stdin and stdout. Each request needs the token."
)
@click.option("--host", default=DEFAULT_HOST, show_default=True, help="With --http: the address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=DEFAULT_PORT,
    show_default=True,
    help="With --http: the port. 0 takes a free one.",
)
@click.option(
    "--token-file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="With --http: the file with the token.  [default: mcp-token in the state folder, made if it does not exist]",
)
@click.option(
    "--server-name",
    "names",
    multiple=True,
    metavar="NAME",
    help="With --http: a further host name under which clients reach this server, such as that of a proxy. May be repeated.",
)
@click.option(
    "--allow-origin",
    "origins",
    multiple=True,
    metavar="ORIGIN",
    help="With --http: a page that may call this server from a browser, such as https://example.org. May be repeated.",
)
@click.option(
    "--plain-names",
    is_flag=True,
    help="Name the tools catalog_lookup, tuple_dispatch and so on, for clients that refuse names with a dot (Claude Desktop).",
)
@click.option(
    "--json", "as_json", is_flag=True, help="With --http: print the address and the token's file as a JSON line."
)
@casting_place_options
@option_group("limits", OfOneTuple)
@option_group("http", HttpServing)
def mcp(
    recipes: tuple[str, ...],
    lanes: tuple[str, ...],
    space: str | None,
    work: bool,
    concurrency: int | None,
    budget: Budget,
    limits: OfOneTuple,
    http: HttpServing,
    plain_names: bool,
    place: Place,
) -> int:
    """Serve the tuple-space by the Model Context Protocol, on stdin and stdout or by HTTP.

    Clients have five tools: catalog.lookup, catalog.list_by_lane, tuple.dispatch, tuple.observe and receipt.get.
    Clients see only the tuples of --lane. If you name RECIPES, clients can start only these. Without RECIPES, --lane is
    needed, and the workers of the lane decide what they run.

    Workers do the work: `cantrip worker --lane LANE RECIPE…`, on this machine or on others, or --work. A recipe that you name by
    its path is trusted for this run.

    The server stops when stdin ends (without --http), or after SIGTERM or Ctrl-C. With --http and --work, the first signal
    lets running casts end, and the second gives them back to other workers.

    Exit status: 0 stopped; 2 the command line, a recipe or the token is wrong; 3 this machine has no sandbox.
    """
    if not recipes and (work or not lanes):
        raise click.UsageError("give the RECIPES that clients may cast, or --lane without --work")
    cwd, state_dir, loom_file = place.cwd, place.state_dir, place.loom_file
    of_work = {"--concurrency": concurrency, "--loom": loom_file, "--allow-host": place.allow_hosts}
    for needed, is_on, options in (("--http", http.http, http.given()), ("--work", work, of_work)):
        for option, given in options.items():
            if given and not is_on:
                raise click.UsageError(f"{option} needs {needed}")
    if http.http and http.host in ("0.0.0.0", "::") and not http.names:
        raise click.UsageError(
            f"--host {http.host} needs --server-name: the name or address under which clients reach the server"
        )
    if find_spec("mcp") is None or find_spec("uvicorn") is None:
        raise DefinitionError(
            f"the MCP server needs the packages mcp and uvicorn; install them with: {install_command('mcp')}"
        )
    from cantrip_acp.files import paths
    from cantrip_acp.git.project_identity import project_id
    from cantrip_acp.tuplespace.batch import cast_yool
    from cantrip_acp.tuplespace.catalog.build import recipe_capability
    from cantrip_acp.tuplespace.mcp_edge.answers import Answers, Limits
    from cantrip_acp.tuplespace.mcp_edge.mcp_server import HttpServer, listen, read_token
    from cantrip_acp.tuplespace.reuse.workspace_inputs import WorkspaceInputs
    from cantrip_acp.tuplespace.tuples import new_tuple
    from cantrip_acp.tuplespace.workers.guardrails import max_waiting, read_policy

    lanes = tuple(dict.fromkeys(lanes)) or (DEFAULT_LANE,)
    for lane in lanes:
        # Raises TupleError if no tuple can be in such a lane.
        new_tuple(lane, [{"yool": "agent.cast"}])
    policy = read_policy(cwd.resolve())
    stores: list[TupleStore] = []
    opened: list[OpenedRecipe] = []
    try:
        state = paths.private(paths.state_dir(state_dir))
        if work:
            for recipe in recipes:
                opened.append(open_recipe(recipe, cwd, loom_file or _loom(state, cwd), state_dir, many=True))
                print_allowed(opened[-1].cantrip, opened[-1].cantrip.circle, named_hosts(place.allow_hosts), ask=False)
        found = [each.recipe for each in opened] or [load_trusted(each, cwd, state_dir)[0] for each in recipes]
        stores.append(open_space(space, state_dir))
        common = f"mcp:{','.join(sorted(lanes))}"
        if budget or stores[0].budgets(common):
            # A budget of an earlier start ends when it is not asked for any more.
            stores[0].set_budget(common, usd=budget.budget_usd, tokens=budget.budget_tokens)
        own = [str(each).removeprefix("sqlite:") for each in (loom_file, stores[0].path) if each]

        def tell(text: str) -> None:
            click.echo(f"cantrip: {text}", err=True)

        answers = Answers(
            stores[0],
            lanes=lanes,
            recipes={each.name: recipe_capability(each) for each in found},
            authority={"user": getpass.getuser(), "agent": "cantrip-mcp"},
            limits=Limits(**{**asdict(limits), "max_waiting": max_waiting(policy, limits.max_waiting)}),
            budget=common if budget else None,
            catalog=_catalog(cwd),
            project=project_id(cwd) if found else "",
            files={
                cast_yool(each.name): WorkspaceInputs(each, cwd.resolve(), state, own, tell).digest for each in found
            },
        )
        stores += [open_space(space, state_dir) for _ in lanes if work]
        workers = _workers(opened, lanes, place, concurrency, stores[1:], policy) if work else []
        server = None
        if http.http:
            token, file, warning = read_token(http.token_file, state)
            if warning is not None:
                click.echo(f"cantrip: {warning}", err=True)
            listening = listen(http.host, http.port)
            named = {"names": http.names, "origins": http.origins}
            server = HttpServer(answers, listening, token, **named, plain_names=plain_names)
            click.echo(f"cantrip: MCP at {server.url}; clients send the token of {file}", err=True)
            if http.as_json:
                click.echo(json.dumps({"url": server.url, "token_file": str(file)}))
                sys.stdout.flush()
        elif sys.stdin.isatty():
            click.echo(
                "cantrip: waiting for an MCP client on stdin. Ctrl-D ends the server. To serve HTTP, add --http",
                err=True,
            )
        run_async(lambda: _serve(answers, server, workers, plain_names=plain_names))
        return 0
    finally:
        for store in stores:
            store.close()
        for each in opened:
            each.leave()


def _loom(state: Path, cwd: Path) -> str:
    """The loom of a project's casts. A cast that was given back continues from it, also in another server's process."""
    import hashlib

    from cantrip_acp.files import paths
    from cantrip_acp.git.project_identity import project_id

    looms = paths.private(state / "looms")
    keys = [hashlib.sha256(each.encode()).hexdigest()[:12] for each in (project_id(cwd), str(cwd.resolve()))]
    files = [looms / f"mcp-{key}.loom.db" for key in keys]
    # Earlier versions named it after the folder.
    return f"sqlite:{next((each for each in files if each.exists()), files[0])}"


async def _serve(answers: Answers, server: HttpServer | None, workers: Sequence[Worker], *, plain_names: bool) -> None:
    """Serve and work until a signal, or until stdin ends."""
    import anyio

    from cantrip_acp.tuplespace.mcp_edge.mcp_server import serve_stdio

    stdio, timers = anyio.CancelScope(), list[threading.Timer]()

    def give_back() -> None:
        """Give running tuples back, because a client does not wait long for its server's end. The next start continues them."""
        for worker in workers:
            worker.drain()
            worker.drain()

    async def watch_signals() -> None:
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async for _ in signals:
                if server is None:
                    give_back()
                    timers.append(threading.Timer(_LAST_S, os._exit, [0]))
                    timers[-1].daemon = True
                    timers[-1].start()
                    stdio.cancel()
                    continue
                server.stop()
                running = sum(worker.running for worker in workers)
                if running:
                    click.echo(
                        f"cantrip: {running} still running; stop again to give them back to other workers", err=True
                    )
                for worker in workers:
                    worker.drain()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch_signals)
        async with anyio.create_task_group() as working:
            for worker in workers:
                working.start_soon(worker.run)
            with stdio:
                await (server.run() if server is not None else serve_stdio(answers, plain_names=plain_names))
            if server is None:
                give_back()
            for timer in timers:
                timer.cancel()
        tasks.cancel_scope.cancel()


def _workers(
    opened: Sequence[OpenedRecipe],
    lanes: Sequence[str],
    place: Place,
    concurrency: int | None,
    stores: Sequence[TupleStore],
    policy: Policy,
) -> list[Worker]:
    """A worker for each lane, each with a store of its own: it waits for changes there."""
    from cantrip_acp.tuplespace.tuples import Pattern
    from cantrip_acp.tuplespace.workers.guardrails import cpu_percent, lane_concurrency
    from cantrip_acp.tuplespace.workers.worker import Worker

    yools, at_once = cast_yools(opened, place.allow_hosts), lane_concurrency(concurrency, _AT_ONCE, policy)
    return [
        Worker(
            store,
            Pattern({"lane": lane}),
            yools,
            name=worker_name(),
            concurrency=at_once,
            cpu_percent=cpu_percent(policy),
            disk=disk_floor(place.state_dir, policy),
            policy=policy,
            ended=lambda ended: print_ended(ended, as_json=False, err=True),
        )
        for lane, store in zip(lanes, stores, strict=True)
    ]


def _catalog(cwd: Path) -> Callable[[], Catalog]:
    """Make a function that returns the catalog of the project: its file, read again after each change, or else a new catalog.

    Raises `TupleError` if the file is not valid. If it becomes invalid later, that is logged, and the earlier content stays.
    """
    from cantrip_acp.tuplespace.catalog.build import build_catalog
    from cantrip_acp.tuplespace.catalog.capabilities import FILE, read_catalog
    from cantrip_acp.tuplespace.errors import TupleError

    path = cwd.resolve() / FILE
    if not os.path.lexists(path):
        built = build_catalog(cwd)
        return lambda: built

    def state() -> tuple[int, ...]:
        try:
            found = path.stat()
        except OSError:
            return ()
        return (found.st_mtime_ns, found.st_size, found.st_ino)

    seen, current = state(), read_catalog(path)

    def read() -> Catalog:
        nonlocal seen, current
        now = state()
        if now != seen:
            seen = now
            try:
                current = read_catalog(path)
            except TupleError as error:
                click.echo(f"cantrip: {error}. Clients see the former catalog", err=True)
        return current

    return read
