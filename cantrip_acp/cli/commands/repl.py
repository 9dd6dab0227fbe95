"""`cantrip repl`: talk to an entity in the terminal. Each line is a cast, and the entity remembers all earlier casts."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

import click

from cantrip_acp.cli.command_table import examples
from cantrip_acp.cli.session.permissions import (
    allow_host_option,
    ask_option,
    named_hosts,
    permissions,
    print_allowed,
    require_terminal,
)
from cantrip_acp.cli.session.setup import (
    ContextFiles,
    OpenedRecipe,
    context_option,
    cwd_option,
    loom_option,
    open_recipe,
    read_context_files,
    state_option,
)
from cantrip_acp.core.errors import CantripError

if TYPE_CHECKING:
    from cantrip_acp.cli.render.cast_output import CastText
    from cantrip_acp.cli.render.terminal import Screen
    from cantrip_acp.cli.session.loop_thread import EntityThread
    from cantrip_acp.core.context_block import ContextBlock
    from cantrip_acp.core.entity import Entity
    from cantrip_acp.gates.web.named_hosts import NamedHosts

HELP = """\
Each line is an intent; a line that ends in \\ goes on in the next one.
/usage  what all casts so far have used
/loom   where the record is
/quit   leave (Ctrl-D does too); Ctrl-C cancels the running cast"""


@click.command(
    "repl",
    **examples("cantrip recipe new greeter", "cantrip repl greeter", "printf 'Say hello.\\n' | cantrip repl greeter"),
)
@click.argument("recipe", required=False)
@cwd_option
@loom_option
@context_option
@state_option
@click.option(
    "--session",
    "session_id",
    metavar="ID",
    help="Continue this session of an editor or of `cantrip client`, with its history, in its folder.",
)
@click.option("--full", is_flag=True, help="Show complete outputs and changes.")
@ask_option
@allow_host_option
def repl(
    recipe: str | None,
    cwd: Path,
    loom_file: str | None,
    context_files: tuple[Path, ...],
    state_dir: Path | None,
    session_id: str | None,
    full: bool,
    ask: bool,
    allow_hosts: tuple[str, ...],
) -> int:
    """Talk to an entity made from RECIPE (a file, or a name; the built-in Familiar by default).

    Every line is an intent. The entity keeps what it learned and made from one to the next. Ctrl-C cancels the running
    cast, Ctrl-D leaves. From a pipe, each line of stdin is an intent.

    With --session you continue an editor's session here (close it there first). The session's own recipe is used unless you name
    another RECIPE, and its mode stays.

    The entity may do what the recipe allows; a line on stderr says what that is. With --ask it asks you first. The gate fetch
    sends requests only to hosts that your intents, the recipe (bash_network) or --allow-host name.

    Exit status: 0 at a terminal, or all casts ended by themselves; 1 one from a pipe was truncated or failed; 2 the
    command line, the recipe or a file is wrong; 3 there is no sandbox here; 130 interrupted.
    """
    from cantrip_acp.recipes import DEFAULT

    if ask:
        require_terminal()
    context, hosts = read_context_files(context_files), named_hosts(allow_hosts)
    entity = None
    if session_id is not None:
        if loom_file is not None:
            raise click.UsageError("--session has a loom of its own; leave --loom out")
        from cantrip_acp.cli.session.setup import open_session

        opening, entity = open_session(session_id, recipe, state_dir, hosts, ask=ask)
    else:
        opening = open_recipe(recipe or DEFAULT, cwd, loom_file, state_dir)
    try:
        with _leaving_politely():
            return _talk(opening, context, hosts, full=full, ask=ask, entity=entity)
    finally:
        opening.leave()


def _talk(
    opening: OpenedRecipe,
    given_with: ContextFiles,
    hosts: NamedHosts,
    *,
    full: bool,
    ask: bool,
    entity: Entity | None = None,
) -> int:
    from cantrip_acp.cli.errors import DONE, FAILED, INTERRUPTED
    from cantrip_acp.cli.render.cast_output import CastText
    from cantrip_acp.cli.render.terminal import Screen
    from cantrip_acp.cli.session.loop_thread import run_entity

    screen = Screen()
    asked = sys.stdin.isatty() and screen.terminal
    output = CastText(screen, opening.workspace, full=full)
    cantrip, context = given_with.to(opening.cantrip), given_with.blocks
    if entity is None:
        cantrip = cantrip.for_session((), permissions(hosts) if ask else hosts)
    _greet(screen, opening)
    screen.flush()
    print_allowed(cantrip, cantrip.circle if entity is None else entity.circle, hosts, ask=ask)
    output.renderer.begin_output()
    status = DONE
    with run_entity(entity if entity is not None else cantrip.invoke(loom=opening.loom)) as run:
        run.warm()
        for line in _prompts(opening.state_dir) if asked else _lines():
            words = line.strip()
            if words.startswith("/"):
                if words in ("/quit", "/exit"):
                    break
                _command(words, output, run, opening)
            elif words:
                if not asked:
                    output.show_intent(words)
                hosts.add_from_text(words)
                good, signalled = _one(run, words, output, context)
                context = ()  # the first cast pins it for the entity's whole life
                status = status if good or asked else FAILED
                if signalled is not None and (signalled != signal.SIGINT or not asked):
                    return INTERRUPTED
    return status


def _one(
    run: EntityThread, intent: str, output: CastText, context: tuple[ContextBlock, ...]
) -> tuple[bool, int | None]:
    """Run one cast. Return whether it ended by itself, and the signal that stopped it. A failed cast does not end
    the session."""
    from cantrip_acp.cli.errors import report_error
    from cantrip_acp.core.errors import SandboxMissing

    try:
        ended = run.cast(intent, output, context)
    except SandboxMissing:
        raise
    except CantripError as error:
        output.renderer.end_turn()
        output.screen.flush()
        report_error(error)
        return False, None
    if ended.result is None:
        output.show_cancelled()
        return False, ended.stopped_by
    output.show_result(ended.result, show_loom=False)
    return ended.result.terminated, ended.stopped_by


def _greet(screen: Screen, opening: OpenedRecipe) -> None:
    circle = opening.cantrip.circle
    dot = f" {screen.marks.dot} "
    parts = [opening.cantrip.crystal.model, circle.medium.name, ", ".join(circle.gates)]
    screen.line((opening.recipe.name, "bold"), (dot + dot.join(parts), "dim"))
    screen.line(("folder   ", "dim"), str(opening.workspace))
    screen.line(("loom     ", "dim"), opening.loom.location or "in memory")
    if sys.stdin.isatty():
        screen.line(("/help says what can be typed here", "dim"))


def _command(words: str, output: CastText, run: EntityThread, opening: OpenedRecipe) -> None:
    if words == "/help":
        for line in HELP.splitlines():
            output.renderer.show_note(line)
    elif words == "/usage":
        output.renderer.show_note(", ".join(run.entity.usage.words()) or "nothing so far")
    elif words == "/loom":
        output.renderer.show_note(opening.loom.location or "in memory")
    else:
        output.renderer.show_note(f"unknown command {words.split()[0]}; /help lists them", "yellow")


def _lines() -> Iterator[str]:
    """Yield intents from a pipe."""
    held = ""
    for line in sys.stdin:
        text = line.rstrip("\n")
        if text.endswith("\\"):
            held += text[:-1] + "\n"
            continue
        yield held + text
        held = ""
    if held:
        yield held


def _prompts(state_dir: Path) -> Iterator[str]:
    """Yield intents that a person types, with line editing and a history."""
    with _history(state_dir / "repl_history"):
        held = ""
        while True:
            try:
                text = input("\n… " if held else "\n❯ ")
            except EOFError:
                print()
                return
            except KeyboardInterrupt:
                print()
                held = ""
                continue
            if text.endswith("\\"):
                held += text[:-1] + "\n"
                continue
            yield held + text
            held = ""


@contextmanager
def _history(file: Path) -> Iterator[None]:
    from cantrip_acp.files.paths import private

    try:
        import readline
    except ImportError:  # this Python has no readline: typing works without it
        yield
        return
    with suppress(OSError):
        readline.read_history_file(file)
    readline.set_history_length(1000)
    try:
        yield
    finally:
        with suppress(OSError):
            private(file.parent)
            readline.write_history_file(file)
            file.chmod(0o600)


@contextmanager
def _leaving_politely() -> Iterator[None]:
    """SIGTERM or SIGHUP at the prompt leaves as Ctrl-D does: first ends what the entity started."""

    def leave(number: int, frame: FrameType | None) -> NoReturn:
        raise SystemExit(128 + number)

    from cantrip_acp.cli.session.loop_thread import handled_signals

    before = {number: signal.signal(number, leave) for number in handled_signals(signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
