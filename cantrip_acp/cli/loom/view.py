"""`cantrip loom view`: show a loom as a page in the browser, or write the page to an HTML file."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import click

from cantrip_acp.cli.command_table import complete_loom, examples
from cantrip_acp.cli.session.setup import state_option


@click.command(
    "view",
    **examples(
        "cantrip recipe new greeter",
        'cantrip cast greeter "Say hello." --loom hello.loom.jsonl',
        "cantrip loom view hello.loom.jsonl --html hello.html",
    ),
)
@click.argument("name", metavar="[FILE]", required=False, shell_complete=complete_loom)
@click.argument("other", metavar="[FILE2]", required=False, shell_complete=complete_loom)
@click.option(
    "--html",
    "target",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the page to one HTML file instead of serving it. An existing loom is never overwritten.",
)
@click.option("--raw", is_flag=True, help="With --html: do not mask texts that look like keys, tokens or passwords.")
@click.option("--turn", metavar="TURN", help="Show this turn first (a number, `last`, or an id or its beginning).")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Serve on this port.  [default: a free port]")
@click.option("--no-browser", is_flag=True, help="Only print the address. Do not open a browser.")
@click.option("--readonly", is_flag=True, help="Do not allow the page to give rewards.")
@click.option(
    "--frame",
    "frames",
    multiple=True,
    metavar="ORIGIN",
    help="Allow pages of ORIGIN (for example an editor) to show the view in a frame. May be repeated.",
)
@click.option(
    "--host",
    "hosts",
    multiple=True,
    metavar="NAME:PORT",
    help="Allow requests with this host name, for a proxy in front of the view. May be repeated.",
)
@state_option
def view(
    name: str | None,
    other: str | None,
    target: Path | None,
    raw: bool,
    turn: str | None,
    port: int,
    no_browser: bool,
    readonly: bool,
    frames: tuple[str, ...],
    hosts: tuple[str, ...],
    state_dir: Path | None,
) -> None:
    """Open a loom as a page in the browser: its tree, each turn, a search, and a comparison of two threads.

    The page shows new turns at once. It is served only on this machine, at an address with a secret part. Ctrl-C ends the
    server. With --html the page is written to a single file, and texts that look like secrets are masked (see --raw). Press ?
    on the page to see its keyboard shortcuts. FILE is as for `cantrip loom show`.

    With FILE2 the page has the turns of both looms, and shows the threads that were written last side by side, with what
    differs. It follows both. A fork of a session in an editor has a loom of its own.
    """
    from cantrip_acp.files import paths
    from cantrip_acp.loom.find_loom import find_loom

    if raw and target is None:
        raise click.UsageError("--raw needs --html")
    path = find_loom(name, paths.state_dir(state_dir))
    beside = None if other is None else find_loom(other, paths.state_dir(state_dir))
    wanted = None if turn is None else _turn(path, turn)
    if target is not None:
        _write(path, beside, target, raw, "" if wanted is None else f"turn={wanted}")
        return
    _serve(path, beside, wanted, port, not no_browser, readonly, frames, hosts)


def _write(path: Path | str, beside: Path | str | None, target: Path, raw: bool, fragment: str) -> None:
    from cantrip_acp.loom.view import write_html

    count = write_html(path, target, beside, raw=raw)
    page = Path(target).absolute()
    click.echo(f"{page}  {count:,} turns")
    click.echo(f"open it in a browser: {page.as_uri()}{fragment and f'#{fragment}'}")


def _turn(path: Path | str, turn: str) -> str:
    from cantrip_acp.loom.find_loom import find_turn
    from cantrip_acp.loom.loom import Loom

    with Loom.open(path, readonly=True) as held:
        return find_turn(held, turn)


def _serve(
    path: Path | str,
    beside: Path | str | None,
    turn: str | None,
    port: int,
    browser: bool,
    readonly: bool,
    frames: tuple[str, ...],
    hosts: tuple[str, ...],
) -> None:
    from cantrip_acp.cli.session.loop_thread import handled_signals
    from cantrip_acp.loom.view import serve
    from cantrip_acp.types.errors import DefinitionError, LoomError

    ended = threading.Event()
    for number in handled_signals(signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: ended.set())
    try:
        served = serve(path, beside, port=port, readonly=readonly, frames=frames, hosts=hosts)
    except OSError as error:
        raise DefinitionError(
            f"cannot serve on port {port}: {error.strerror}; choose another port, or omit --port"
        ) from error
    with served:
        trouble = served.trouble()
        if trouble is not None:
            raise LoomError(trouble)
        address = served.url if turn is None else served.link(turn)
        click.echo(address)
        if browser:
            import webbrowser

            if not webbrowser.open(address):
                click.echo("no browser was found; open the address above", err=True)
        click.echo("press Ctrl-C to end the server", err=True)
        ended.wait()
