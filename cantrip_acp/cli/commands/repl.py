"""`cantrip repl`: lets the user talk to an entity in the terminal.

Each line is the intent of a cast. The entity remembers all earlier casts.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

import click

from cantrip_acp.acp.sessions.modes import TRUSTED
from cantrip_acp.cli.command_table import complete_recipe, examples
from cantrip_acp.cli.session.permissions import (
    allow_host_option,
    ask_option,
    named_hosts,
    print_allowed,
    require_terminal,
)
from cantrip_acp.cli.session.setup import (
    cache_option,
    context_option,
    cwd_option,
    loom_option,
    model_option,
    open_recipe,
    read_context_files,
    state_option,
)
from cantrip_acp.files.installation import install_command
from cantrip_acp.types.errors import CantripError

if TYPE_CHECKING:
    from cantrip_acp.cli.render.terminal import Screen
    from cantrip_acp.cli.session.client_session import ClientSession
    from cantrip_acp.cli.session.input_line import InputLine
    from cantrip_acp.cli.session.own_agent import EarlierSession, NewSessions
    from cantrip_acp.cli.session.slash_commands import TerminalCommands
    from cantrip_acp.cli.session.typed_lines import TypedLines
    from cantrip_acp.gates.web.named_hosts import NamedHosts


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
    help="Continue the session with this id, which an editor or `cantrip client` began, with its history and in its folder.",
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
    from cantrip_acp.acp.sessions import modes
    from cantrip_acp.files import paths
    from cantrip_acp.recipes import DEFAULT

    if ask or planning:
        require_terminal("--plan" if planning else "--ask")
    context, hosts = read_context_files(context_files), named_hosts(allow_hosts)
    screen, line = _screen(state_dir)
    asks = ask or planning or (sys.stdin.isatty() and screen.terminal)
    mode = modes.PLAN if planning else modes.ASK if ask else modes.TRUSTED
    agent: NewSessions | EarlierSession
    with ExitStack() as stack:
        if session_id is not None:
            if loom_file is not None:
                raise click.UsageError("--session and --loom cannot be used together: the session has its own loom")
            from cantrip_acp.cli.session.own_agent import EarlierSession

            state = paths.state_dir(state_dir)
            agent = EarlierSession(session_id, recipe, state, hosts, asks=asks, given=context, model=model)
            workspace = Path(agent.metadata.cwd)
        else:
            from cantrip_acp.cli.session.own_agent import NewSessions

            opening = open_recipe(recipe or DEFAULT, cwd, loom_file, state_dir, model)
            stack.callback(opening.leave)
            agent = NewSessions(opening, context, hosts, asks=asks, mode=mode, loom_file=loom_file)
            workspace = opening.workspace
        if line is not None:
            # Also what is typed before the session is ready is completed.
            line.complete = partial(_complete_words, workspace)
        talk = _Talk(agent, workspace, hosts, screen, line, full=full, asks=asks, mode=mode)
        stack.enter_context(_quit_on_signal())
        return talk.run() if line is None else line.run(talk.run)


def _screen(state_dir: Path | None) -> tuple[Screen, InputLine | None]:
    """Standard output, and the input line if the terminal can move its cursor and prompt_toolkit is here (the extra
    ``terminal``)."""
    from importlib.util import find_spec

    from cantrip_acp.cli.render.terminal import Screen
    from cantrip_acp.files import paths

    screen = Screen()
    if sys.stdin.isatty() and sys.stdout.isatty() and find_spec("rich") is None:
        click.echo(
            "cantrip: without the extra `terminal` nothing can be asked here; install it with: "
            + install_command("terminal"),
            err=True,
        )
    if not (sys.stdin.isatty() and screen.terminal) or os.environ.get("TERM", "dumb") in ("dumb", "unknown"):
        return screen, None
    if find_spec("prompt_toolkit") is None:
        return screen, None
    from cantrip_acp.cli.session.input_line import InputLine

    line = InputLine(paths.state_dir(state_dir) / "repl_history", partial(_complete_words, None))
    return line.screen, line


def _complete_words(workspace: Path | None, typed: str, **arguments: Any) -> Iterator[tuple[str, int, str]]:
    from cantrip_acp.cli.session import slash_commands
    from cantrip_acp.cli.session.completions import completions

    return completions(typed, slash_commands.names(), workspace, arguments)


class _Talk:
    """The conversation of one command. ``line`` is None in a pipe, and on a terminal that cannot move its cursor. ``asks`` says
    whether the user can be asked for permissions."""

    def __init__(
        self,
        agent: NewSessions | EarlierSession,
        workspace: Path,
        hosts: NamedHosts,
        screen: Screen,
        line: InputLine | None,
        *,
        full: bool,
        asks: bool,
        mode: str,
    ) -> None:
        from cantrip_acp.cli.render.client_output import ClientText
        from cantrip_acp.cli.render.terminal import Screen

        self._agent, self._workspace, self._hosts, self._line = agent, workspace, hosts, line
        self._asks, self._mode = asks, mode
        self._screen = screen
        self._output = ClientText(screen, Screen(sys.stderr), folder=workspace, full=full, own=True)
        self._terminal = sys.stdin.isatty() and screen.terminal

    def run(self) -> int:
        """Talk until the user quits. Returns the exit status."""
        from cantrip_acp.acp.client.client import AgentRefused
        from cantrip_acp.cli.session.client_session import ClientSession, Quit
        from cantrip_acp.cli.session.own_agent import NewSessions
        from cantrip_acp.cli.session.questions import Questions
        from cantrip_acp.cli.session.slash_commands import TerminalCommands
        from cantrip_acp.cli.session.typed_lines import TypedLines

        agent, line, output = self._agent, self._line, self._output
        questions = None
        if self._asks:
            questions = Questions(self._screen) if line is None else Questions(self._screen, line.in_terminal)
        if sys.stderr.isatty():
            import warnings

            from cantrip_acp.types.errors import GateFault

            # A notice shows them; a line between the others would tear the screen.
            warnings.filterwarnings("ignore", category=GateFault)
        new = isinstance(agent, NewSessions)
        client = ClientSession(agent.serve, output, folder=self._workspace, questions=questions, own=True)
        try:
            with client:
                try:
                    client.open(resume=None if isinstance(agent, NewSessions) else agent.metadata.id)
                    if not new and self._mode != TRUSTED:
                        client.set_mode(self._mode)
                except AgentRefused as refused:
                    raise agent.problem or refused from None
                self._print_header("/help lists the commands" + (", Shift-Tab asks before each change" if line else ""))
                commands = TerminalCommands(client, output, asks=self._asks)
                queue = TypedLines(lambda text: client.show(partial(output.show_lines, text)), client.steer)
                client.steered = queue.delivered
                if line is not None:
                    line.complete = lambda typed: _complete_words(self._workspace, typed, **{"/model": commands.models})
                    if self._asks:
                        line.when_shift_tab(lambda: client.soon(commands.toggle_ask))
                return self._turns(client, commands, queue if self._terminal else None)
        except Quit as quit_:
            return quit_.status

    def _turns(self, client: ClientSession, commands: TerminalCommands, queue: TypedLines | None) -> int:
        from cantrip_acp.cli.errors import DONE, FAILED, INTERRUPTED

        line, output, status = self._line, self._output, DONE
        typed = _lines(client) if not self._terminal else _prompts(client) if line is None else line.intents()
        for text in queue.before(typed) if queue is not None else typed:
            words = text.strip()
            if words and (line is not None or (not self._terminal and not words.startswith("/"))):
                output.show_prompt(words)
            if words in ("/quit", "/exit") or (self._terminal and words in ("quit", "exit")):
                break
            if words == "/clear":
                self._begin_anew(client)
                continue
            if words.startswith("!") and words.strip("! "):
                words = f"/run {words[1:].strip()}"
            elif words.startswith("/"):
                if queue is not None and (words.split()[0] in ("/queue", "/now")):
                    client.call(partial(_ignoring, queue.command, words))
                    continue
                words = commands.run(words) or ""
            if not words:
                continue
            good = self._turn(client, words, queue)
            status = status if good or self._terminal else FAILED
            if client.interrupted:
                if not self._terminal:
                    return INTERRUPTED
                if queue is not None:
                    queue.clear()
        return status

    def _turn(self, client: ClientSession, words: str, queue: TypedLines | None) -> bool:
        """Run one prompt, and return whether it came to its end. A failed one does not end the talk."""
        from cantrip_acp.acp.client.client import AgentRefused
        from cantrip_acp.cli.errors import report_error
        from cantrip_acp.cli.session.mentions import mentioned
        from cantrip_acp.types.errors import SandboxMissing

        output = self._output
        if names := [link.name for link in mentioned(words, self._workspace)[0]]:
            output.show_lines(f"attached {', '.join(names)}")
        if queue is not None and self._line is None:
            output.show_lines("working")
        try:
            with self._line.working(client.interrupt) if self._line is not None else nullcontext():
                outcome = client.turn(words, queue.read if queue is not None else None)
        except AgentRefused as refused:
            output.end_turn()
            about = refused.data if isinstance(refused.data, Mapping) else {}
            text = str(about.get("details") or refused)
            if about.get("error") == SandboxMissing.__name__:
                raise SandboxMissing(text) from None
            report_error(CantripError(text))
            return False
        finally:
            if queue is not None:
                queue.turn_ended()
        return outcome.stop_reason == "end_turn"

    def _begin_anew(self, client: ClientSession) -> None:
        """Begin a conversation that knows nothing of the earlier one, which is kept. It has the same model, recipe and mode, and
        it is recorded in a new loom, unless the user named one."""
        show, earlier = self._output.show_lines, self._agent.keep()
        client.begin_anew()
        if earlier:
            show(f"the earlier conversation is kept: cantrip repl --session {earlier}")
        opened = self._agent.opened
        assert opened is not None, "it was opened"
        show(f"a new conversation begins; its loom is {opened.entity.loom.location or 'in memory'}")

    def _print_header(self, hint: str) -> None:
        from cantrip_acp.acp.sessions import modes

        screen, opened = self._screen, self._agent.opened
        assert opened is not None, "it was opened"
        entity, recipe, now = opened.entity, opened.recipe, opened.metadata.mode
        circle = entity.circle
        dot = f" {screen.marks.dot} "
        parts = [entity.crystal.model, circle.medium.name, ", ".join(entity.cantrip.circle.gates)]
        screen.line((recipe.name if recipe is not None else "", "bold"), (dot + dot.join(parts), "dim"))
        screen.line(("folder   ", "dim"), str(self._workspace))
        screen.line(("loom     ", "dim"), entity.loom.location or "in memory")
        if sys.stdin.isatty():
            screen.line((hint, "dim"))
        screen.flush()
        asking, sandboxed = self._asks and now == modes.ASK, self._asks and now == modes.SANDBOXED
        print_allowed(entity.cantrip, circle, self._hosts, ask=asking, sandboxed=sandboxed)
        self._output.renderer.begin_output()


async def _ignoring(work: Callable[[str], Awaitable[bool]], words: str) -> None:
    await work(words)


def _lines(client: ClientSession) -> Iterator[str]:
    """Yield intents from a pipe."""
    earlier_lines = ""
    while True:
        with client.keyboard():
            line = sys.stdin.readline()
        if not line:
            break
        text = line.rstrip("\n")
        if text.endswith("\\"):
            earlier_lines += text[:-1] + "\n"
            continue
        yield earlier_lines + text
        earlier_lines = ""
    if earlier_lines:
        yield earlier_lines


def _prompts(client: ClientSession) -> Iterator[str]:
    """Yield intents that a person types at a terminal that cannot move its cursor (`TERM=dumb`)."""
    earlier_lines = ""
    while True:
        try:
            with client.keyboard():
                text = input("\n… " if earlier_lines else "\n❯ ")
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            print()
            earlier_lines = ""
            continue
        if text.endswith("\\"):
            earlier_lines += text[:-1] + "\n"
            continue
        yield earlier_lines + text
        earlier_lines = ""


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
