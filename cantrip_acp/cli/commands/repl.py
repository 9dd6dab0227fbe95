"""`cantrip repl`: lets the user talk to an entity in the terminal.

Each line is the intent of a cast. The entity remembers all earlier casts.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

import click

from cantrip_acp.cli.command_table import complete_recipe, examples
from cantrip_acp.cli.session.permissions import (
    allow_host_option,
    ask_option,
    named_hosts,
    print_allowed,
    require_terminal,
)
from cantrip_acp.cli.session.setup import (
    build_recipe,
    cache_option,
    context_option,
    cwd_option,
    loom_option,
    model_option,
    read_context_files,
    state_option,
)

if TYPE_CHECKING:
    from cantrip_acp.cli.render.client_output import ClientText
    from cantrip_acp.cli.render.terminal import Screen
    from cantrip_acp.cli.session.input_line import InputLine
    from cantrip_acp.cli.session.own_agent import OwnAgent
    from cantrip_acp.gates.web.named_hosts import NamedHosts
    from cantrip_acp.loom.query.history import CastPart


_SHOWN_CASTS, _SHOWN_LINES = 2, 6


@click.command(
    "repl",
    **examples("cantrip recipe new greeter", "cantrip repl greeter", "printf 'Say hello.\\n' | cantrip repl greeter"),
)
@click.argument("recipe", required=False, shell_complete=complete_recipe)
@model_option()
@cwd_option
@loom_option
@context_option
@state_option
@cache_option
@click.option(
    "--session",
    "session_id",
    metavar="ID",
    help="Continue a session or a cast, with its history and in its folder: an id of `cantrip loom list` or of an editor's list, "
    "the beginning of one, or `last`, the newest session of this folder.",
)
@click.option("--full", is_flag=True, help="Show complete outputs and changes.")
@click.option(
    "--plan",
    "planning",
    is_flag=True,
    help="Change nothing until you approve the entity's plan. Needs a terminal.",
)
@ask_option
@allow_host_option
def repl(
    recipe: str | None,
    model: str | None,
    cwd: Path,
    loom_file: str | None,
    context_files: tuple[Path, ...],
    state_dir: Path | None,
    session_id: str | None,
    full: bool,
    planning: bool,
    ask: bool,
    allow_hosts: tuple[str, ...],
) -> int:
    """Talk to an entity made from RECIPE (a file or a name; the built-in Familiar by default).

    Every input is an intent; a paste of several lines is one. The entity keeps its history and its variables between
    intents. If you type an input while a cast runs, the input waits. /queue shows, edits and removes such inputs, and
    /now sends one to the entity before its next query. @path attaches a file, and !command runs a command in the sandbox,
    whose output the entity reads with your next intent. /model shows or changes the model, and /clear begins a new
    conversation. Tab completes paths and the slash commands, which are those of an editor.
    Ctrl-C cancels the running cast and all waiting inputs. Ctrl-D quits. Without a terminal, each line of stdin is an
    intent.

    With --session you continue an editor's session in this terminal. Close the session in the editor first. The
    session's own recipe is used, unless you name another RECIPE. The session's mode stays the same. Without a terminal,
    Cantrip asks nothing.

    The entity may do everything that the recipe allows. A line on stderr says what the recipe allows. With --ask you
    are asked first. Shift-Tab, or /ask, switches these questions on and off, also while a cast runs. With --plan
    nothing changes until the entity has written a plan and you approve it. Then you also choose whether the entity asks
    you before each change. You can edit the plan in $EDITOR first, or return it with comments. /plan starts the mode
    plan again. The gate `fetch` sends requests only to hosts that your intents, the recipe (bash_network) or
    --allow-host names.

    Exit status: 0 on a terminal, or if all casts terminated; 1 a cast was truncated or failed; 2 the command line, the recipe
    or a file is wrong; 3 this machine has no sandbox; 130 interrupted.
    """
    from cantrip_acp.acp.sessions.options import modes
    from cantrip_acp.cli.render.terminal import Screen
    from cantrip_acp.cli.session.conversation import at_terminal
    from cantrip_acp.cli.session.own_agent import EarlierSession, NewSessions
    from cantrip_acp.files import paths
    from cantrip_acp.recipes import DEFAULT

    if ask or planning:
        require_terminal("--plan" if planning else "--ask")
    if session_id is not None and loom_file is not None:
        raise click.UsageError("--session and --loom cannot be used together: the session has its own loom")
    context, hosts = read_context_files(context_files), named_hosts(allow_hosts)
    asks = ask or planning or (sys.stdin.isatty() and Screen().terminal)
    mode = modes.PLAN if planning else modes.ASK if ask else modes.TRUSTED
    agent: OwnAgent
    if session_id is not None:
        state = paths.state_dir(state_dir)
        agent = EarlierSession(session_id, recipe, state, cwd, hosts, asks=asks, given=context, model=model)
        workspace, resume = Path(agent.metadata.cwd), agent.metadata.id
    else:
        built = build_recipe(recipe or DEFAULT, cwd, state_dir, model)
        agent = NewSessions(built, context, hosts, asks=asks, mode=mode, loom_file=loom_file)
        workspace, resume = built.workspace, None

    def talk(screen: Screen, line: InputLine | None) -> int:
        from cantrip_acp.acp.client.client import AgentRefused
        from cantrip_acp.cli.render.client_output import ClientText
        from cantrip_acp.cli.render.terminal import Screen
        from cantrip_acp.cli.session.client_session import ClientSession, Quit
        from cantrip_acp.cli.session.conversation import Conversation, questions_at

        output = ClientText(screen, Screen(sys.stderr), folder=workspace, full=full, own=True)
        client = ClientSession(
            agent.serve, output, folder=workspace, questions=questions_at(screen, line) if asks else None, own=True
        )
        try:
            with client:
                conversation = Conversation(client, output, line)
                try:
                    with conversation.working():
                        client.open(resume=resume)
                        if resume is not None and mode != modes.TRUSTED:
                            client.set_mode(mode)
                except AgentRefused as refused:
                    raise agent.problem or refused from None
                _print_header(screen, agent, workspace, hosts, conversation.hint, asks=asks)
                output.renderer.begin_output()
                _show_earlier(output, agent.earlier)
                status = conversation.run()
                if words := client.continue_words():
                    where = f" --state-dir {state_dir}" if state_dir is not None else ""
                    output.show_lines(f"continue with: {words}{where}")
                return status
        except Quit as quit_:
            return quit_.status

    if sys.stderr.isatty():
        import warnings

        from cantrip_acp.types.errors import GateFault

        # A notice shows them; a line between the others would tear the screen.
        warnings.filterwarnings("ignore", category=GateFault)
    with _quit_on_signal():
        return at_terminal(state_dir, workspace, talk)


def _show_earlier(output: ClientText, earlier: Sequence[CastPart]) -> None:
    """Show the end of the continued session: the last prompts, and the beginnings of their answers."""
    if len(earlier) > _SHOWN_CASTS:
        output.show_lines(f"… {len(earlier) - _SHOWN_CASTS} earlier; /loom lists the turns")
    for part in earlier[-_SHOWN_CASTS:]:
        output.show_prompt((part.start.intent if part.start is not None else "") or "…")
        said = next((turn.utterance.content for turn in reversed(part.turns) if turn.utterance.content), "") or ""
        lines = said.strip().splitlines()
        output.show_lines("\n".join([*lines[:_SHOWN_LINES], *(["…"] if len(lines) > _SHOWN_LINES else [])]))
    output.renderer.begin_output()


def _print_header(
    screen: Screen, agent: OwnAgent, workspace: Path, hosts: NamedHosts, hint: str, *, asks: bool
) -> None:
    from cantrip_acp.acp.sessions.options import modes

    opened = agent.opened
    assert opened is not None, "it was opened"
    entity, recipe, now = opened.entity, opened.recipe, opened.metadata.mode
    circle = entity.circle
    dot = f" {screen.marks.dot} "
    parts = [entity.crystal.model, circle.medium.name, ", ".join(entity.cantrip.circle.gates)]
    screen.line((recipe.name if recipe is not None else "", "bold"), (dot + dot.join(parts), "dim"))
    screen.line(("folder   ", "dim"), str(workspace))
    screen.line(("loom     ", "dim"), entity.loom.location or "in memory")
    if sys.stdin.isatty():
        screen.line((hint, "dim"))
    screen.flush()
    asking, sandboxed = asks and now == modes.ASK, asks and now == modes.SANDBOXED
    print_allowed(entity.cantrip, circle, hosts, ask=asking, sandboxed=sandboxed)


@contextmanager
def _quit_on_signal() -> Iterator[None]:
    """Inside the block, SIGTERM and SIGHUP quit like Ctrl-D: the processes that the entity started are ended first."""

    def exit_on_signal(number: int, frame: FrameType | None) -> NoReturn:
        raise SystemExit(128 + number)

    from cantrip_acp.cli.session.loop_thread import handled_signals

    before = {
        number: signal.signal(number, exit_on_signal) for number in handled_signals(signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
