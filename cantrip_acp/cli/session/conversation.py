"""The conversation of `cantrip repl` and `cantrip client`: what the user types goes to one ACP agent, line by line.

`at_terminal` gives the input line. A `Conversation` then runs the commands of this program, sends everything else as prompts,
and keeps what is typed meanwhile in a queue.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from cantrip_acp.acp.client.client import AgentError, AgentRefused
from cantrip_acp.cli.errors import DONE, FAILED, INTERRUPTED
from cantrip_acp.cli.render.client_output import ClientOutput, ClientText
from cantrip_acp.cli.render.from_acp import get_list, get_text
from cantrip_acp.cli.render.terminal import Screen
from cantrip_acp.cli.session.client_session import ASK, ClientSession, Quit
from cantrip_acp.cli.session.completions import completions
from cantrip_acp.cli.session.questions import Questions
from cantrip_acp.cli.session.terminal_slash_commands import TerminalCommands, names
from cantrip_acp.cli.session.typed_lines import TypedLines
from cantrip_acp.files import paths
from cantrip_acp.files.installation import install_command
from cantrip_acp.types.errors import SandboxMissing

if TYPE_CHECKING:
    from cantrip_acp.cli.session.input_line import InputLine

T = TypeVar("T")

_QUIT = ("/quit", "/exit", ":quit", ":exit")


def at_terminal(state_dir: Path | None, workspace: Path, talk: Callable[[Screen, InputLine | None], T]) -> T:
    """Call ``talk`` with standard output and the input line, and return its result. There is an input line if the terminal can
    move its cursor and prompt_toolkit is here (the extra ``terminal``). Then ``talk`` runs in another thread."""
    screen = Screen()
    if sys.stdin.isatty() and sys.stdout.isatty() and find_spec("rich") is None:
        click.echo(
            "cantrip: without the extra `terminal` nothing can be asked here; install it with: "
            + install_command("terminal"),
            err=True,
        )
    dumb = os.environ.get("TERM", "dumb") in ("dumb", "unknown")
    if not (sys.stdin.isatty() and screen.terminal) or dumb or find_spec("prompt_toolkit") is None:
        return talk(screen, None)
    from cantrip_acp.cli.session.input_line import InputLine

    # Text that is typed before the session is ready is completed, too.
    line = InputLine(
        paths.state_dir(state_dir) / "repl_history", lambda typed: completions(typed, names(), workspace, {})
    )
    return line.run(partial(talk, line.screen, line))


def questions_at(screen: Screen, line: InputLine | None) -> Questions:
    """Make the questions for the person at this terminal."""
    return Questions(screen) if line is None else Questions(screen, line.in_terminal)


class Conversation:
    """Sends prompts until they end.

    ``person``: whether somebody types them. ``line`` is None in a pipe, and on a terminal that cannot move its cursor. ``prompts``
    are those of the command line. They are sent as they are, and so is all input if the output is JSON.
    """

    def __init__(
        self,
        client: ClientSession,
        output: ClientOutput,
        line: InputLine | None,
        *,
        prompts: Sequence[str] = (),
    ) -> None:
        self._client, self._output, self._line, self._prompts = client, output, line, prompts
        self.person = sys.stdin.isatty() and not prompts and isinstance(output, ClientText)
        self._queue: TypedLines | None = None
        self._commands: TerminalCommands | None = None
        if prompts or not isinstance(output, ClientText):
            return
        self._commands = TerminalCommands(client, output)
        if self.person:
            self._queue = TypedLines(lambda text: client.show(partial(output.show_lines, text)), client.steer)
            client.steered = self._queue.delivered

    @property
    def hint(self) -> str:
        """The hint that a person sees at the beginning."""
        modes = get_list(self._client.session.modes, "availableModes")
        asks = self._line is not None and self._client.asks and any(get_text(each, "id") == ASK for each in modes)
        keys = ", Shift-Tab asks before each change" if asks else ""
        return f"/help lists the commands, Ctrl-C stops a turn, Ctrl-D quits{keys}"

    def working(self) -> AbstractContextManager[None]:
        """Inside the block the agent works: Ctrl-C and signals stop it."""
        return self._line.working(self._client.interrupt) if self._line is not None else nullcontext()

    def _complete(self, typed: str) -> Iterator[tuple[str, int, str]]:
        assert self._commands is not None, "the user types"
        return completions(
            typed, self._commands.names(), self._client.session.folder, {"/model": self._commands.models}
        )

    def run(self) -> int:
        """Talk until the user quits or the prompts end. Returns the exit status."""
        client, queue, status = self._client, self._queue, DONE
        if self._line is not None and (commands := self._commands) is not None:
            self._line.complete = self._complete
            self._line.when_shift_tab(lambda: client.soon(commands.toggle_ask))
        given = self._given() if self._prompts else self._typed()
        for text in queue.before(given) if queue is not None else given:
            words = text.strip() if self._commands is not None else text
            if not self._prompts and not words.strip():
                continue
            if self._line is not None or not self.person:
                self._output.show_prompt(words)
            if self._commands is not None and (words in _QUIT or (self.person and f"/{words}" in _QUIT)):
                break
            if self._commands is not None:
                if queue is not None and words.split()[0] in ("/queue", "/now"):
                    client.call(partial(_ignore, queue.command, words))
                    continue
                with self.working():
                    found = self._commands.run(words)
                if found is None:
                    continue
                words = found
            try:
                good = self._turn(words)
            except AgentError as problem:
                # If the agent refused the prompt, the next one may work. If it died or hangs, nothing more is sent.
                self._output.show_error(problem)
                good = False
                if not isinstance(problem, AgentRefused):
                    return FAILED
            status = status if good or self.person else FAILED
            if client.interrupted:
                if not self.person:
                    return INTERRUPTED
                if queue is not None:
                    queue.clear()
        return status

    def _turn(self, words: str) -> bool:
        """Run one prompt, and return whether it completed."""
        client, queue = self._client, self._queue
        if queue is not None and self._line is None and isinstance(self._output, ClientText):
            self._output.show_lines("working")
        try:
            with self.working():
                outcome = client.turn(words, queue.read if queue is not None else None)
        except AgentRefused as refused:
            about = refused.data if isinstance(refused.data, Mapping) else {}
            if client.own and about.get("error") == SandboxMissing.__name__:
                raise SandboxMissing(str(about.get("details") or refused)) from None
            raise
        finally:
            if queue is not None:
                queue.turn_ended()
        return outcome.stop_reason == "end_turn"

    def _given(self) -> Iterator[str]:
        for words in self._prompts:
            if words == "-":
                with self._client.keyboard():
                    words = sys.stdin.read()
            yield words

    def _typed(self) -> Iterator[str]:
        """Yield the typed or piped lines. A backslash at the end of a line continues it on the next one."""
        if self._line is not None:
            yield from self._line.intents()
            return
        earlier, pressed = "", False
        while True:
            try:
                with self._client.keyboard():
                    text = self._read_line(earlier)
            except KeyboardInterrupt:
                if not self.person:
                    raise Quit(INTERRUPTED) from None
                print()
                if pressed:
                    raise Quit(INTERRUPTED) from None
                print("press Ctrl-C again to quit")
                earlier, pressed = "", True
                continue
            pressed = False
            if text is None:
                break
            if text.endswith("\\"):
                earlier += text[:-1] + "\n"
                continue
            yield earlier + text
            earlier = ""
            if self._queue is not None and self._queue.input_ended:
                break
        if earlier:
            yield earlier

    def _read_line(self, earlier: str) -> str | None:
        """One line; None at the end of input."""
        if not self.person:
            line = sys.stdin.readline()
            return line.rstrip("\n") if line else None
        import readline  # noqa: F401 - makes input() editable

        try:
            return input("\n… " if earlier else "\n❯ ")
        except EOFError:
            print()
            return None


async def _ignore(work: Callable[[str], Any], words: str) -> None:
    await work(words)
