"""`cantrip client`: a headless ACP client in the terminal, for any ACP agent."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from cantrip_acp.acp.client.client import AgentRefused
from cantrip_acp.cli.command_table import examples, unknown_name
from cantrip_acp.cli.render.from_acp import get_list, get_text
from cantrip_acp.cli.session.permissions import Policy
from cantrip_acp.cli.session.slash_commands import model_option, values_of
from cantrip_acp.text.sanitize import clean_line

if TYPE_CHECKING:
    from cantrip_acp.acp.client.client import ListedSession
    from cantrip_acp.cli.render.client_output import ClientOutput
    from cantrip_acp.cli.render.terminal import Screen
    from cantrip_acp.cli.session.client_session import ClientSession


# --- Client commands: input lines that begin with a colon are for the client, not for the agent. So are `/model` and `/clear`,
# unless the agent has commands with these names.

COMMANDS: Final[Mapping[str, str]] = {
    "help": "show this list",
    "modes": "list the session's modes",
    "mode ID": "change the mode",
    "ask": "switch to the mode ask, or back (also Shift-Tab)",
    "options": "list the session's config options and their values",
    "set ID=VALUE": "change a config option",
    "sessions": "list the agent's sessions of this folder",
    "new": "begin another session",
    "load ID": "open an earlier session and show its history; `last` is the newest other session",
    "resume ID": "open an earlier session without showing its history",
}


class ClientCommands:
    """The colon commands of one client session. Strings from the agent are cleaned before they are shown."""

    def __init__(self, headless: ClientSession, screen: Screen) -> None:
        self._headless = headless
        self._screen = screen

    def run(self, line: str) -> None:
        """Run one command line (without its colon). Print an error if it is wrong or if the agent refuses it."""
        name, _, rest = line.strip().partition(" ")
        rest = rest.strip()
        known: dict[str, Callable[[str], None]] = {
            "help": self._help,
            "modes": self._modes,
            "mode": self._mode,
            "ask": self._ask,
            "options": self._options,
            "set": self._set,
            "sessions": self._sessions,
            "new": lambda rest: self._headless.reopen(),
            "load": lambda rest: self._headless.reopen(load=rest or "last"),
            "resume": lambda rest: self._headless.reopen(resume=rest or "last"),
        }
        if name not in known:
            self._print(f"{unknown_name('command', name, list(known))}; :help lists them", "yellow")
            return
        try:
            known[name](rest)
        except AgentRefused as refused:
            # The full error text includes the agent's stderr, which is too long for a typing error.
            self._print(str(refused).splitlines()[0], "yellow")

    def run_slash(self, line: str) -> bool:
        """Run `/model` or `/clear`, and tell a misspelled command. Returns False for a line that the agent gets."""
        import difflib

        name, _, rest = line[1:].strip().partition(" ")
        known = [each for each, _ in self._headless.commands]
        ours = {each: run for each, run in self._ours().items() if each not in known}
        if name in ours:
            try:
                ours[name](rest.strip())
            except AgentRefused as refused:
                self._print(str(refused).splitlines()[0], "yellow")
            return True
        if name in known or not name.replace("-", "").isalpha() or Path(f"/{name}").exists():
            return False
        near = difflib.get_close_matches(name, [*known, *ours], n=1, cutoff=0.75)
        if near:
            self._print(f"unknown command /{name}; did you mean /{near[0]}?", "yellow")
        return bool(near)

    def _ours(self) -> dict[str, Callable[[str], None]]:
        found: dict[str, Callable[[str], None]] = {"clear": self._clear}
        return found if self._model_option() is None else {**found, "model": self._model}

    def _model_option(self) -> Mapping[str, Any] | None:
        return model_option(self._headless.session.config_options)

    def _model(self, rest: str) -> None:
        option = self._model_option()
        assert option is not None, "the command exists only then"
        if not rest:
            for each in values_of(option):
                self._choice(get_text(each, "value"), str(option.get("currentValue")), each)
            return
        self._headless.set_option(get_text(option, "id"), rest)
        self._print(f"model {rest}, from the next prompt on", "dim")

    def _clear(self, rest: str) -> None:
        earlier = self._headless.session.id
        self._headless.reopen()
        self._print(f"the earlier session is kept: :load {earlier}", "dim")

    def complete(self, typed: str) -> list[str]:
        """The lines that the Tab key makes of what was typed."""
        from cantrip_acp.cli.session.completions import completions

        commands = [(f"/{name}", about) for name, about in self._headless.commands]
        commands += [(f"/{name}", "") for name in self._ours() if f"/{name}" not in dict(commands)]
        commands += [(f":{name.partition(' ')[0]}", about) for name, about in COMMANDS.items()]
        if typed.startswith(":"):
            return sorted({name for name, _ in commands if name.startswith(typed)})
        option = self._model_option()
        values = [] if option is None else [(get_text(each, "value"), "") for each in values_of(option)]
        found = completions(typed, commands, self._headless.session.folder, {"/model": lambda: values})
        return [typed[: len(typed) - replaced] + text for text, replaced, _ in found]

    def _print(self, words: str, style: str = "") -> None:
        self._screen.line((clean_line(words, 400), style), indent=2)

    def _help(self, rest: str) -> None:
        for name, words in COMMANDS.items():
            self._screen.line((f":{name:<14}", "bold"), words, indent=2)
        for name, words in (
            ("/model [ID]", "show or choose the model"),
            ("/clear", "begin another session; this one is kept"),
        ):
            if name[1:].partition(" ")[0] in self._ours():
                self._screen.line((f"{name:<15}", "bold"), words, indent=2)
        self._screen.line((f"{'@path':<15}", "bold"), "attach a file, a folder or lines (@src/app.py#L10-20)", indent=2)
        self._print("All other lines go to the agent, also the agent's own /commands. Tab completes.", "dim")

    def _modes(self, rest: str) -> None:
        modes = self._headless.session.modes
        for each in get_list(modes, "availableModes"):
            if isinstance(each, Mapping):
                self._choice(get_text(each, "id"), get_text(modes, "currentModeId"), each)
        if not get_list(modes, "availableModes"):
            self._print("this session has no modes", "dim")

    def _mode(self, rest: str) -> None:
        if not rest:
            self._modes(rest)
            return
        self._headless.set_mode(rest)
        self._print(f"mode {rest}", "dim")

    def _ask(self, rest: str) -> None:
        """Switch to the mode `ask` or back. ``rest`` is what was being typed when Shift-Tab was pressed: it comes back."""
        if rest:
            import readline

            def give_back() -> None:
                readline.insert_text(rest)
                readline.set_startup_hook()

            readline.set_startup_hook(give_back)

        async def toggle() -> None:
            await self._headless.toggle_ask()

        self._headless.call(toggle)
        self._print(self._headless.mode_text, "dim")

    def _options(self, rest: str) -> None:
        options = [each for each in self._headless.session.config_options if isinstance(each, Mapping)]
        for option in options:
            self._screen.line(
                (clean_line(get_text(option, "id"), 60), "bold"),
                f" = {clean_line(str(option.get('currentValue')), 100)}",
                (f"  {clean_line(get_text(option, 'name'), 60)}", "dim"),
                indent=2,
            )
            values = [get_text(value, "value") for value in values_of(option)]
            self._screen.line((clean_line(", ".join(filter(None, values)), 400), "dim"), indent=4)
        if not options:
            self._print("this session has no config options", "dim")

    def _set(self, rest: str) -> None:
        option, equals, value = rest.partition("=")
        if not equals or not option.strip():
            self._print("write :set ID=VALUE; :options lists the options", "yellow")
            return
        self._headless.set_option(option.strip(), value.strip())
        self._print(f"{option.strip()} = {value.strip()}", "dim")

    def _sessions(self, rest: str) -> None:
        found = sorted(self._headless.sessions(), key=lambda each: each.updated_at, reverse=True)
        for each in found:
            mark = "*" if each.id == self._headless.session.id else " "
            self._screen.line(
                f"{mark} ", (clean_line(each.id, 100), "bold"), f"  {clean_line(each.title, 80)}", indent=2
            )
        if not found:
            self._print("no sessions", "dim")

    def _choice(self, name: str, current: str, about: Mapping[str, Any]) -> None:
        mark = "*" if name == current else " "
        self._screen.line(
            f"{mark} ",
            (clean_line(name, 60), "bold"),
            (f"  {clean_line(get_text(about, 'description'), 200)}", "dim"),
            indent=2,
        )


@click.command(
    epilog=examples(
        "cantrip client -- cantrip-acp",
        'cantrip client --prompt "What does this project do?" -- cantrip-acp',
        'cantrip client --json --allow once --allow edit=never --prompt "Run the tests" -- cantrip-acp --recipe coding',
        "cantrip client --list -- cantrip-acp",
        'cantrip client --load last --prompt "Where were we?" -- cantrip-acp',
        "printf 'steps: [{prompt: Hello, expect: {stop_reason: end_turn}}]' > smoke.yaml",
        "cantrip client --script smoke.yaml -- cantrip-acp",
    )["epilog"]
)
@click.argument("agent", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- AGENT-COMMAND")
@click.option(
    "--cwd",
    "folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=Path(),
    metavar="DIR",
    help="The session's folder. The agent may read and write its files through the client.  [default: here]",
)
@click.option(
    "--prompt",
    "prompts",
    multiple=True,
    metavar="TEXT",
    help="A prompt (may be repeated; - reads one from stdin). Without this option, each line of stdin is a prompt.",
)
@click.option(
    "--allow",
    "rules",
    multiple=True,
    metavar="[KIND=]RULE",
    help="The answer to permission requests: ask, once, always or never. KIND=RULE is for one kind of tool call (read, edit, "
    "execute, …). May be repeated. Without a terminal, ask means no.  [default: ask]",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    metavar="S",
    help="The maximum seconds for one answer of the agent.",
)
@click.option("--mode", metavar="ID", help="The id of the session mode to set.")
@click.option("--set", "options", multiple=True, metavar="ID=VALUE", help="A config option to set (may be repeated).")
@click.option("--auth", metavar="ID", help="The id of the agent's sign-in method to use.")
@click.option(
    "--load",
    metavar="ID",
    help="Open an earlier session and show its history; `last` is the newest session of the folder.",
)
@click.option("--resume", metavar="ID", help="Open an earlier session without showing its history.")
@click.option("--list", "listing", is_flag=True, help="List the agent's sessions of the folder, and do nothing else.")
@click.option("--all", "everywhere", is_flag=True, help="With --list: list the sessions of all folders.")
@click.option(
    "--script",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Send the prompts of a script and check what it expects (docs/client.md).",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print each update as a line of JSON, and a result line for each prompt."
)
@click.option("--full", is_flag=True, help="Show complete outputs and changes.")
@click.option("-v", "--verbose", is_flag=True, help="Show the agent's stderr as it comes.")
def client(
    agent: tuple[str, ...],
    folder: Path,
    prompts: tuple[str, ...],
    rules: tuple[str, ...],
    timeout: float | None,
    mode: str | None,
    options: tuple[str, ...],
    auth: str | None,
    load: str | None,
    resume: str | None,
    listing: bool,
    everywhere: bool,
    script: Path | None,
    as_json: bool,
    full: bool,
    verbose: bool,
) -> int:
    """Talk to an ACP agent in the terminal.

    Shows the agent's messages and thoughts, its tool calls with their output and changes, its usage, and why it stopped.
    On a terminal, Ctrl-C cancels the running turn, a second Ctrl-C quits, and Ctrl-D quits. :help lists the client's own
    commands (modes, config options, sessions).

    Exit status: 0 every turn ended with end_turn, or the script's expectations were met; 1 a turn was interrupted,
    refused or failed, or an expectation was not met; 2 the command line or the script is wrong, or the agent cannot
    be started; 130 interrupted.
    """
    try:
        policy = Policy.of(rules)
    except ValueError as problem:
        raise click.BadParameter(str(problem), param_hint="--allow") from None
    if wrong := next((each for each in options if "=" not in each), None):
        raise click.BadParameter(f"{wrong!r} is not ID=VALUE", param_hint="--set")
    if everywhere and not listing:
        raise click.UsageError("--all needs --list")
    if load and resume:
        raise click.UsageError(
            "--load and --resume cannot be used together: --load shows the history, --resume does not"
        )
    if script is not None:
        if prompts or load or resume or listing or mode or options:
            raise click.UsageError(
                "--script opens its own session; leave --prompt, --load, --resume, --list, --mode and --set out"
            )
        from cantrip_acp.cli.commands.client_script import run_script

        return run_script(
            script, agent, folder=folder.resolve(), policy=policy, auth=auth, as_json=as_json, verbose=verbose
        )
    return run(
        agent,
        folder=folder.resolve(),
        prompts=prompts,
        policy=policy,
        timeout=timeout,
        mode=mode,
        options=dict(each.split("=", 1) for each in options),
        auth=auth,
        load=load,
        resume=resume,
        listing=("all" if everywhere else "folder") if listing else None,
        as_json=as_json,
        full=full,
        verbose=verbose,
    )


def run(
    argv: Sequence[str],
    *,
    folder: Path,
    prompts: Sequence[str] = (),
    policy: Policy | None = None,
    timeout: float | None = None,
    mode: str | None = None,
    options: Mapping[str, str] | None = None,
    auth: str | None = None,
    load: str | None = None,
    resume: str | None = None,
    listing: str | None = None,
    as_json: bool = False,
    full: bool = False,
    verbose: bool = False,
) -> int:
    """Run the whole command and return its exit status."""
    from cantrip_acp.acp.client.client import AgentError, AgentMissing
    from cantrip_acp.cli.render.client_output import ClientJson, ClientText
    from cantrip_acp.cli.render.terminal import Screen
    from cantrip_acp.cli.session.client_session import ClientSession, Quit, echo
    from cantrip_acp.cli.session.questions import Questions

    screen = Screen()
    at_terminal = sys.stdin.isatty() and not as_json
    stack = ExitStack()
    if not as_json:
        stack.enter_context(screen.rendering())
    # After that, because what goes to stderr must not be in the midst of a message that may still change.
    output: ClientOutput = (
        ClientJson() if as_json else ClientText(screen, Screen(sys.stderr), folder=folder, full=full, verbose=verbose)
    )
    questions = Questions(screen) if at_terminal else None
    headless = ClientSession(argv, output, folder=folder, policy=policy, questions=questions, timeout=timeout)
    try:
        with stack, echo(not at_terminal), headless:
            if listing is not None:
                headless.initialize(auth)
                _list(headless.sessions(everywhere=listing == "all"), screen, as_json)
                return 0
            headless.open(mode=mode, auth=auth, load=load, resume=resume, options=options)
            return _turns(headless, output, screen, prompts, at_terminal)
    except Quit as quit_:
        return quit_.status
    except KeyboardInterrupt:
        return 130
    except AgentError as error:
        output.show_error(error)
        return 1
    except AgentMissing as missing:
        output.show_error(missing)
        return 2


def _list(found: Sequence[ListedSession], screen: Screen, as_json: bool) -> None:
    """Print the sessions, newest first."""
    import json

    from cantrip_acp.text.sanitize import clean_line

    for each in sorted(found, key=lambda session: session.updated_at, reverse=True):
        if as_json:
            about = {"id": each.id, "cwd": each.folder, "title": each.title, "updated_at": each.updated_at}
            print(json.dumps({"event": "listed", **about}))
            continue
        screen.line((clean_line(each.id, 100), "bold"), ("  " + clean_line(each.updated_at, 40), "dim"), whole=True)
        screen.line(clean_line(each.title, 200) or "(no title)", indent=2, whole=True)
        screen.line((clean_line(each.folder), "dim"), indent=2, whole=True)
    if not found and not as_json:
        screen.line(("no sessions", "dim"))


def _turns(
    headless: ClientSession, output: ClientOutput, screen: Screen, prompts: Sequence[str], at_terminal: bool
) -> int:
    from cantrip_acp.acp.client.client import AgentError, AgentRefused

    interactive = not prompts and at_terminal
    status = 0
    for words in _read_prompts_from_terminal(headless, screen) if interactive else _read_prompts(headless, prompts):
        if not interactive:
            output.show_prompt(words)
        try:
            outcome = headless.turn(words)
        except AgentError as error:
            output.show_error(error)
            status = 1
            # If the agent refused the prompt, the next prompt may work. If it died or hangs, nothing more is sent.
            if isinstance(error, AgentRefused):
                continue
            return status
        if headless.interrupted and not interactive:
            return 130
        if outcome.stop_reason != "end_turn":
            status = 1
    return 0 if interactive else status


def _read_prompts(headless: ClientSession, prompts: Sequence[str]) -> Iterator[str]:
    """Yield the prompts of the command line, or one prompt from each line of stdin."""
    if prompts:
        for words in prompts:
            if words == "-":
                with headless.keyboard():
                    words = sys.stdin.read()
            yield words
        return
    while True:
        # Python retries a read after a signal unless the signal handler raises; the handlers of `keyboard` do raise.
        with headless.keyboard():
            line = sys.stdin.readline()
        if not line:
            return
        if line.strip():
            yield line.rstrip("\n")


def _read_prompts_from_terminal(headless: ClientSession, screen: Screen) -> Iterator[str]:
    """Yield prompts from the terminal. A backslash at the end of a line continues the prompt on the next line."""
    import contextlib

    with contextlib.suppress(ImportError):
        import readline  # makes input() editable

        # Shift-Tab. `_ask` gives back what was being typed.
        readline.parse_and_bind(r'"\e[Z": "\C-a:ask \C-m"')
        readline.parse_and_bind("tab: complete")
        # The whole line is completed, because what can follow depends on its beginning.
        readline.set_completer_delims("")
        readline.set_completer(lambda typed, number: dict(enumerate(commands.complete(typed))).get(number))

    from cantrip_acp.cli.session.client_session import ASK, Quit

    commands = ClientCommands(headless, screen)
    hint = "Ctrl-C cancels a turn, Ctrl-C twice or Ctrl-D quits, :help lists the commands"
    asks = any(get_text(each, "id") == ASK for each in get_list(headless.session.modes, "availableModes"))
    screen.line((f"{hint}, Shift-Tab asks before each change" if asks else hint, "dim"))
    pressed = False
    mark = f"{screen.marks.prompt} "
    while True:
        screen.blank()
        try:
            with headless.keyboard():
                words = input(mark)
                while words.endswith("\\"):
                    words = words[:-1] + "\n" + input("  ")
        except EOFError:
            screen.blank()
            return
        except KeyboardInterrupt:
            screen.blank()
            if pressed:
                raise Quit(130) from None
            pressed = True
            screen.line(("press Ctrl-C again to quit", "dim"))
            continue
        pressed = False
        if words.startswith(":"):
            commands.run(words[1:])
        elif words.startswith("!") and words.strip("! ") and "run" in dict(headless.commands):
            yield f"/run {words[1:].strip()}"
        elif words.startswith("!") and words.strip("! "):
            screen.line(
                (
                    "no command was run: this agent has no /run. Ask the agent to run it",
                    "yellow",
                ),
                indent=2,
            )
        elif words.strip() and not (words.startswith("/") and commands.run_slash(words)):
            yield words
