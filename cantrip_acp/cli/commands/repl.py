"""`cantrip repl`: lets the user talk to an entity in the terminal.

Each line is the intent of a cast. The entity remembers all earlier casts.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

import click

from cantrip_acp.cli.command_table import complete_recipe, examples
from cantrip_acp.cli.session.permissions import (
    allow_host_option,
    ask_option,
    named_hosts,
    permissions,
    print_allowed,
    require_terminal,
    with_answers,
)
from cantrip_acp.cli.session.setup import (
    ContextFiles,
    OpenedRecipe,
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
    from cantrip_acp.cli.render.cast_output import CastText
    from cantrip_acp.cli.render.terminal import Screen
    from cantrip_acp.cli.session.input_line import InputLine
    from cantrip_acp.cli.session.loop_thread import EntityThread
    from cantrip_acp.cli.session.mode import TerminalMode
    from cantrip_acp.cli.session.plan import TerminalPlan
    from cantrip_acp.cli.session.typed_lines import TypedLines
    from cantrip_acp.core.cantrip import Cantrip
    from cantrip_acp.core.context_block import ContextBlock
    from cantrip_acp.core.entity import Entity
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
    from cantrip_acp.recipes import DEFAULT

    if ask or planning:
        require_terminal("--plan" if planning else "--ask")
    ask = ask or planning
    context, hosts = read_context_files(context_files), named_hosts(allow_hosts)
    screen, line = _screen(state_dir)
    questions = ask or (sys.stdin.isatty() and screen.terminal)
    entity = None
    if session_id is not None:
        if loom_file is not None:
            raise click.UsageError("--session and --loom cannot be used together: the session has its own loom")
        from cantrip_acp.cli.session.setup import open_session

        opening, entity = open_session(
            session_id, recipe, state_dir, hosts, screen, questions=questions, ask=ask, model=model
        )
    else:
        opening = open_recipe(recipe or DEFAULT, cwd, loom_file, state_dir, model)
    place = _Place(opening)
    if line is not None:
        # Also what is typed before the session is ready is completed.
        line.complete = partial(_complete_words, opening.workspace)
    try:
        with _quit_on_signal():
            talk = partial(
                _talk, place, context, hosts, screen, line, full=full, questions=questions, ask=ask, planning=planning,
                entity=entity, loom_file=loom_file,
            )  # fmt: skip
            return talk() if line is None else line.run(talk)
    finally:
        place.opening.leave()


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


def _talk(
    place: _Place,
    given_with: ContextFiles,
    hosts: NamedHosts,
    screen: Screen,
    line: InputLine | None,
    *,
    full: bool,
    questions: bool,
    ask: bool,
    planning: bool,
    entity: Entity | None = None,
    loom_file: str | None = None,
) -> int:
    """Let the user talk to the entity. ``line`` is None in a pipe, and on a terminal that cannot move its cursor.
    ``questions`` says whether the user can be asked for permissions."""
    from cantrip_acp.acp.sessions import modes
    from cantrip_acp.cli.errors import DONE
    from cantrip_acp.cli.render.cast_output import CastText
    from cantrip_acp.cli.session.loop_thread import run_entity
    from cantrip_acp.cli.session.mode import TerminalMode
    from cantrip_acp.cli.session.plan import TerminalPlan

    asked = sys.stdin.isatty() and screen.terminal
    opening = place.opening
    output = CastText(screen, opening.workspace, full=full)
    cantrip = given_with.to(opening.cantrip)
    if entity is None:
        first = modes.ASK if ask else modes.TRUSTED
        asker = (
            permissions(hosts, opening.workspace, first, line.screen if line is not None else None)
            if questions
            else hosts
        )
        cantrip = cantrip.for_session((), asker)
        if asked:
            cantrip = with_answers(cantrip, screen)
    _print_header(screen, opening, "/help lists the commands" + (", Shift-Tab asks before each change" if line else ""))
    screen.flush()
    if entity is None:
        entity = cantrip.invoke(loom=opening.loom)
    opening.record_model(entity)
    read = input if line is None else line.ask
    mode = TerminalMode(entity, output.show_line) if questions else None
    plan = None
    if planning and mode is not None:
        editor = {} if line is None else {"in_terminal": line.in_terminal}
        plan = TerminalPlan(mode, output.show_line, read, **editor)
    now = mode.name if mode is not None else modes.TRUSTED
    print_allowed(cantrip, entity.circle, hosts, ask=now == modes.ASK, sandboxed=now == modes.SANDBOXED)
    output.renderer.begin_output()
    typed = _lines() if not asked else _prompts() if line is None else line.intents()
    waiting: list[str] = []
    status = DONE
    while True:
        with run_entity(entity) as run:
            talk = _Conversation(run, place.opening, output, hosts, line, mode, plan, read if asked else None)
            ended = talk.until_end(typed, given_with.blocks, waiting)
        if not ended.clear:
            return ended.status if ended.status != DONE else status
        status = status if ended.status == DONE else ended.status
        entity, waiting = _new_conversation(talk, place, cantrip, loom_file), talk.waiting
        if mode is not None:
            mode.move_to(entity)


@dataclass
class _Place:
    """Where the present conversation is recorded. A new conversation replaces it."""

    opening: OpenedRecipe


@dataclass
class _Ended:
    """How a conversation ended. ``clear``: another one follows."""

    status: int
    clear: bool = False


class _Conversation:
    """A conversation with one entity. ``read`` reads an answer of the user; None without a terminal."""

    def __init__(
        self,
        run: EntityThread,
        opening: OpenedRecipe,
        output: CastText,
        hosts: NamedHosts,
        line: InputLine | None,
        mode: TerminalMode | None,
        plan: TerminalPlan | None,
        read: Callable[[str], str] | None,
    ) -> None:
        from cantrip_acp.cli.session.shell import UserShell
        from cantrip_acp.cli.session.slash_commands import TerminalCommands
        from cantrip_acp.cli.session.typed_lines import TypedLines

        self.run, self.opening, self.output = run, opening, output
        self._hosts, self._line, self._plan = hosts, line, plan
        self._terminal = read is not None
        self.commands = TerminalCommands(run, opening, output, hosts, read, mode)
        self._queue = TypedLines(run.entity, output.show_line) if read is not None else None
        self._shell = UserShell(run.entity, output)
        run.warm()
        if line is not None:
            line.complete = self._complete
            if mode is not None:
                line.when_shift_tab(partial(run.soon, mode.toggle_ask))

    @property
    def waiting(self) -> list[str]:
        """The lines that were typed and not taken yet."""
        return self._queue.waiting() if self._queue is not None else []

    def _complete(self, typed: str) -> Iterator[tuple[str, int, str]]:
        return _complete_words(self.opening.workspace, typed, **{"/model": self.commands.models})

    def until_end(self, typed: Iterator[str], context: Sequence[ContextBlock], waiting: Sequence[str]) -> _Ended:
        """Talk until the user quits or begins a new conversation. ``context`` is for the first intent, ``waiting`` are lines
        that come before what is typed."""
        from cantrip_acp.acp.sessions.plan_mode import shown_intent
        from cantrip_acp.cli.errors import DONE, FAILED, INTERRUPTED

        queue, output, run = self._queue, self.output, self.run
        for text in reversed(waiting):
            assert queue is not None, "only a terminal has lines that wait"
            queue.put_first(text)
        blocks, status, planned = tuple(context), DONE, ""
        for text in queue.before(typed) if queue is not None else typed:
            words = text.strip()
            if words and (self._line is not None or (not self._terminal and not words.startswith("/"))):
                # What approves a plan is not the user's text, and the plan was just shown.
                output.show_intent(shown_intent(words, words) if words == planned else words)
            if words in ("/quit", "/exit") or (self._terminal and words in ("quit", "exit")):
                break
            if words == "/clear":
                return _Ended(status, clear=True)
            if words.startswith("!") and words.strip("! "):
                blocks = (*blocks, *self._run_command(words[1:].strip()))
                continue
            is_command = words.startswith("/") and (
                (queue is not None and queue.command(words))
                or (self._plan is not None and self._plan.command(words, run))
                or self.commands.run(words)
            )
            if is_command or not words:
                continue
            self._hosts.add_from_text(words)
            told = self._plan.context if self._plan is not None else ()
            given = (*blocks, *self._attached(words), *told)
            good, signalled, answer = _run_cast(run, words, output, given, queue, self._line)
            if self._plan is not None and queue is not None and (intent := self._plan.decide(answer, run)) is not None:
                queue.put_first(intent)
                planned = intent.strip()
            blocks = ()  # the entity keeps the context of its first cast for all later casts
            status = status if good or self._terminal else FAILED
            if signalled is not None and (signalled != signal.SIGINT or not self._terminal):
                return _Ended(INTERRUPTED)
        return _Ended(status)

    def _attached(self, words: str) -> Sequence[ContextBlock]:
        """What the intent mentions with ``@``, read as a link of an editor is read. The user sees what cannot be read."""
        from cantrip_acp.acp.sessions.prompt_content import read_links
        from cantrip_acp.cli.session.mentions import mentioned

        links, notes = mentioned(words, self.opening.workspace)
        blocks: Sequence[ContextBlock] = self.run.call(
            read_links, self.run.entity, None, links, lambda link, why: notes.append(f"{link.name}: {why}")
        )
        unread = {note.partition(": ")[0] for note in notes}
        if names := [link.name for link in links if link.name not in unread]:
            self.output.renderer.show_note(f"attached {', '.join(names)}")
        for note in notes:
            self.output.renderer.show_note(note, "yellow")
        self.output.screen.flush()
        return blocks

    def _run_command(self, command: str) -> Sequence[ContextBlock]:
        """Run a command of the user. Returns what the entity reads of it with the next intent."""
        shell, run = self._shell, self.run
        shell.begin()

        def stop(number: int) -> None:
            run.soon(shell.stop)

        try:
            with self._line.working(stop) if self._line is not None else run.stopping(stop):
                return [run.call(shell.run, command)]
        except CantripError as problem:
            self.output.renderer.show_note(str(problem), "yellow")
            return []
        finally:
            self.output.screen.flush()


def _new_conversation(talk: _Conversation, place: _Place, cantrip: Cantrip, loom_file: str | None) -> Entity:
    """An entity that knows nothing of the earlier conversation, which is kept. It has the same model, recipe and mode, and
    it is recorded in a new loom, unless the user named one."""
    from dataclasses import replace

    from cantrip_acp.recipes.build.build import open_loom

    earlier, opening, show = talk.run.entity, place.opening, talk.output.show_line
    kept = talk.commands.keep()
    if loom_file is None and opening.loom.location is not None:
        loom = open_loom(cantrip.loom_settings, None, opening.state_dir)
        place.opening = replace(opening, loom=loom, held=-1, session_id="")
        opening.leave()
    place.opening = replace(place.opening, model=talk.commands.model)
    entity = cantrip.replace(crystal=earlier.crystal).invoke(loom=place.opening.loom)
    place.opening.record_model(entity)
    if kept:
        show(f"the earlier conversation is kept: cantrip repl --session {kept}")
    show(f"a new conversation begins; its loom is {place.opening.loom.location or 'in memory'}")
    return entity


def _run_cast(
    run: EntityThread,
    intent: str,
    output: CastText,
    context: tuple[ContextBlock, ...],
    queue: TypedLines | None,
    line: InputLine | None,
) -> tuple[bool, int | None, Any]:
    """Run one cast. Returns whether it terminated, the signal that stopped it (None if there was no signal), and its answer.

    A failed cast does not end the session.
    """
    from cantrip_acp.cli.errors import report_error
    from cantrip_acp.types.errors import SandboxMissing

    output.begin()
    if queue is not None and line is None:
        output.show_line("working")
    try:
        with line.working(run.stop) if line is not None else nullcontext():
            ended = run.cast(intent, output, context, queue.read if queue is not None else None)
    except SandboxMissing:
        raise
    except CantripError as error:
        output.renderer.end_turn()
        output.screen.flush()
        report_error(error)
        return False, None, None
    finally:
        if queue is not None:
            queue.cast_ended()
    if queue is not None and ended.stopped_by is not None:
        queue.clear()
    if ended.result is None:
        output.show_cancelled()
        return False, ended.stopped_by, None
    output.show_result(ended.result, show_loom=False)
    return ended.result.terminated, ended.stopped_by, ended.result.result


def _print_header(screen: Screen, opening: OpenedRecipe, hint: str) -> None:
    circle = opening.cantrip.circle
    dot = f" {screen.marks.dot} "
    parts = [opening.cantrip.crystal.model, circle.medium.name, ", ".join(circle.gates)]
    screen.line((opening.recipe.name, "bold"), (dot + dot.join(parts), "dim"))
    screen.line(("folder   ", "dim"), str(opening.workspace))
    screen.line(("loom     ", "dim"), opening.loom.location or "in memory")
    if sys.stdin.isatty():
        screen.line((hint, "dim"))


def _lines() -> Iterator[str]:
    """Yield intents from a pipe."""
    earlier_lines = ""
    for line in sys.stdin:
        text = line.rstrip("\n")
        if text.endswith("\\"):
            earlier_lines += text[:-1] + "\n"
            continue
        yield earlier_lines + text
        earlier_lines = ""
    if earlier_lines:
        yield earlier_lines


def _prompts() -> Iterator[str]:
    """Yield intents that a person types at a terminal that cannot move its cursor (`TERM=dumb`)."""
    earlier_lines = ""
    while True:
        try:
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
