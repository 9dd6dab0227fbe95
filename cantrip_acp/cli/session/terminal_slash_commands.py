"""The slash commands of `cantrip repl` and `cantrip client` that the agent does not have: they need the terminal, or choose
among the agent's sessions. Text from an agent is cleaned before it is shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cantrip_acp.acp.client.client import AgentRefused
from cantrip_acp.cli.render.client_output import loom_of
from cantrip_acp.cli.render.from_acp import get_list, get_text
from cantrip_acp.text.sanitize import clean_line

if TYPE_CHECKING:
    from cantrip_acp.cli.render.client_output import ClientText
    from cantrip_acp.cli.session.client_session import ClientSession

OWN: Mapping[str, tuple[str, str]] = {
    "ask": ("Ask before each write and command, or go back (also Shift-Tab)", ""),
    "clear": ("Begin a new conversation; this one is kept", ""),
    "help": ("List these commands", ""),
    "load": ("Open an earlier session and show its history; `last` is the newest other one", "[ID]"),
    "mode": ("List the session's modes, or change the mode", "[ID]"),
    "model": ("Show the models, or choose the one that answers from now on", "[model]"),
    "now": ("Send a line to the agent before its next query", "text"),
    "options": ("List the session's options and their values", ""),
    "plan": ("Change nothing until you approve a plan", ""),
    "queue": ("Show, edit, remove or send the prompts that wait", "[edit|remove|now NUMBER]"),
    "quit": ("Quit (also Ctrl-D)", ""),
    "resume": ("Open an earlier session without its history", "[ID]"),
    "sessions": ("List the agent's sessions of this folder", ""),
    "set": ("Change an option", "ID=VALUE"),
}
_OTHER_NAMES = {"new": "clear", "modes": "mode", "usage": "cost"}
"""Other names of commands."""
_FIRST = ("help", "now", "queue")
"""Commands of this program also if the agent has one of the same name."""

NOTES = """\
Each input is a prompt. A line that ends in \\ continues on the next line; so does Alt-Enter. A paste is one input.
`@path` attaches a file or a folder, `@src/app.py#L10-20` some lines; Tab completes the path.
`!command` runs a command in the sandbox. The agent reads its output with your next prompt.
What you type while a turn runs waits for its end.
Ctrl-C cancels the running turn."""


def names() -> list[tuple[str, str]]:
    """The names of all commands of our agent and of the terminal, with their slash, and their descriptions."""
    from cantrip_acp.acp.sessions.commands.slash_commands import COMMANDS

    found = {name: command.description for name, command in COMMANDS.items()}
    return sorted((f"/{name}", about) for name, about in (found | {name: OWN[name][0] for name in OWN}).items())


def model_option(options: Any) -> Mapping[str, Any] | None:
    """The config option of a session that chooses the model."""
    found = [each for each in options if isinstance(each, Mapping)]
    return next((each for each in found if "model" in (get_text(each, "category"), get_text(each, "id"))), None)


def values_of(option: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """An option's values, including the values inside groups."""
    found: list[Mapping[str, Any]] = []
    for each in get_list(option, "options"):
        if isinstance(each, Mapping):
            found += values_of(each) if get_list(each, "options") else [each]
    return found


class TerminalCommands:
    """Runs the commands of the terminal for one session."""

    def __init__(self, client: ClientSession, output: ClientText) -> None:
        self._client, self._output = client, output
        self._runs: Mapping[str, Callable[[str], None]] = {
            "ask": self._ask,
            "clear": self._clear,
            "help": self._help,
            "load": lambda rest: client.reopen(load=rest or "last"),
            "mode": self._mode,
            "model": self._model,
            "now": lambda rest: self._say("nothing runs that could read it now; send it as a message, without /now"),
            "options": self._options,
            "plan": self._plan,
            "queue": lambda rest: self._say("No prompt waits."),
            "resume": lambda rest: client.reopen(resume=rest or "last"),
            "sessions": self._sessions,
            "set": self._set,
        }

    def run(self, line: str) -> str | None:
        """Run a command. Returns a line for the agent: a command of the agent, or text that only looks like a command, such
        as a path. None if nothing is left to do. ``:name`` means the command of this program even if the agent has one of
        that name."""
        if line.startswith("!"):
            return self._shell(line[1:].strip())
        if line[0] not in "/:":
            return line
        typed, _, rest = line[1:].partition(" ")
        of_agent = [each for each, _ in self._client.commands]
        name = typed if typed in of_agent else _OTHER_NAMES.get(typed.lower(), typed.lower())
        rest = rest.strip()
        if name in self._runs and (line[0] == ":" or name in _FIRST or name not in of_agent):
            try:
                self._runs[name](rest)
            except AgentRefused as refused:
                self._output.show_note(self._output.text_of(refused).splitlines()[0])
            return None
        if line[0] == "/" and (name in of_agent or self._of_own_agent(f"/{name} {rest}")):
            return f"/{name} {rest}".rstrip()
        if (near := self._near(name)) is not None:
            self._output.show_note(f"unknown command /{name}; did you mean /{near}? /help lists them")
        elif rest or not self._client.own or line[0] == ":":
            return line
        else:
            self._output.show_note(f"unknown command /{name}; /help lists them")
        return None

    def names(self) -> list[tuple[str, str]]:
        """The names of all commands, with their slash, and their descriptions."""
        if self._client.own:
            return names()
        found = {name: OWN[name][0] for name in OWN} | dict(self._client.commands)
        return sorted((f"/{name}", about) for name, about in found.items())

    def models(self) -> list[tuple[str, str]]:
        """The models to choose from, with the known facts about them."""
        option = model_option(self._client.session.config_options)
        values = values_of(option) if option is not None else []
        return [(get_text(each, "value"), get_text(each, "description")) for each in values]

    def _of_own_agent(self, line: str) -> bool:
        # Its list of commands may not have come yet. It also knows misspelled names.
        from cantrip_acp.acp.sessions.commands.slash_commands import parse_command

        return self._client.own and parse_command(line) is not None

    def _near(self, name: str) -> str | None:
        """The command that is probably meant by a name that is no path."""
        if not name.replace("-", "").isalpha() or Path(f"/{name}").exists():
            return None
        near = get_close_matches(name, [each[1:] for each, _ in self.names()], cutoff=0.75)
        # First of all two letters in the wrong order.
        return min(near, key=lambda each: sorted(each) != sorted(name), default=None)

    def _shell(self, command: str) -> str | None:
        if not command.strip("! "):
            self._say(
                "write a command after the !, such as !ls: it runs in the sandbox, and the agent reads its output"
            )
        elif self._client.own or "run" in dict(self._client.commands):
            return f"/run {command}"
        else:
            self._output.show_note("no command was run: this agent has no /run. Ask the agent to run it")
        return None

    def _say(self, text: str) -> None:
        self._output.show_lines(text)

    def _choice(self, name: str, current: str, about: Mapping[str, Any]) -> None:
        words = clean_line(get_text(about, "description"), 200)
        self._say(f"{'*' if name == current else ' '} {clean_line(name, 60)}" + (f"  {words}" if words else ""))

    def _ask(self, rest: str) -> None:
        if self._client.asks:
            self._client.call(self.toggle_ask)
        else:
            self._say("there is no terminal to ask at")

    async def toggle_ask(self) -> None:
        """Switch to the mode `ask`, or back, and report it. It runs in the protocol's thread."""
        try:
            await self._client.toggle_ask()
        except AgentRefused as refused:
            words = self._output.text_of(refused).splitlines()[0]
            self._client.show(partial(self._output.show_note, words))
        else:
            self._client.show(lambda: self._say(self._client.mode_text))

    def _plan(self, rest: str) -> None:
        if self._client.asks:
            self._client.set_mode("plan")
            self._say("plan mode: nothing is changed until you approve a plan")
        else:
            self._say("there is no terminal to ask at")

    def _mode(self, name: str) -> None:
        modes = self._client.session.modes
        if name:
            self._client.set_mode(name)
            self._say(f"mode {name}")
        elif not get_list(modes, "availableModes"):
            self._say("this session has no modes")
        else:
            for each in get_list(modes, "availableModes"):
                if isinstance(each, Mapping):
                    self._choice(get_text(each, "id"), get_text(modes, "currentModeId"), each)

    def _model(self, name: str) -> None:
        option = model_option(self._client.session.config_options)
        if option is None:
            self._say("this session has no choice of models")
        elif name:
            self._client.set_option(get_text(option, "id"), name)
            self._say(f"model: {name}, from the next prompt on")
        else:
            now = str(option.get("currentValue"))
            self._say(f"model: {now}")
            for value, about in self.models():
                if value != now:
                    self._say(f"/model {value}" + (f"  {about}" if about else ""))
            if self._client.own:
                self._say("any PROVIDER:MODEL can be chosen; `cantrip models` lists what is known about them")

    def _options(self, rest: str) -> None:
        options = [each for each in self._client.session.config_options if isinstance(each, Mapping)]
        for option in options:
            name = clean_line(get_text(option, "name"), 60)
            self._say(f"{get_text(option, 'id')} = {option.get('currentValue')}  {name}")
            values = ", ".join(filter(None, (get_text(value, "value") for value in values_of(option))))
            self._say(f"  {values}")
        if not options:
            self._say("this session has no config options")

    def _set(self, rest: str) -> None:
        option, equals, value = rest.partition("=")
        if not equals or not option.strip():
            self._output.show_note("write /set ID=VALUE; /options lists the options")
            return
        self._client.set_option(option.strip(), value.strip())
        self._say(f"{option.strip()} = {value.strip()}")

    def _sessions(self, rest: str) -> None:
        found = sorted(self._client.sessions(), key=lambda each: each.updated_at, reverse=True)
        for each in found:
            self._choice(each.id, self._client.session.id, {"description": each.title})
        if not found:
            self._say("no sessions")

    def _clear(self, rest: str) -> None:
        """Begin a new conversation without the history of the earlier one. With our own agent it has the same model and mode."""
        earlier = self._client.continue_words()
        self._client.begin_anew()
        if earlier:
            self._say(f"the earlier conversation is kept: {earlier}")
        loom = loom_of(self._client.session.meta)
        self._say("a new conversation begins" + (f"; its loom is {loom}" if loom else ""))

    def _help(self, rest: str) -> None:
        from cantrip_acp.acp.sessions.commands.slash_commands import COMMANDS

        hints = {name: command.hint for name, command in COMMANDS.items()} if self._client.own else {}
        hints |= {name: hint for name, (_, hint) in OWN.items()}
        rows = []
        for name, about in self.names():
            hint = hints.get(name[1:])
            rows.append(f"- `{name}{f' {hint}' if hint else ''}`: {about}")
        self._output.show_answer("\n".join([*rows, "", "\n\n".join(NOTES.splitlines())]))
