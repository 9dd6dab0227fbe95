"""The slash commands of `cantrip repl` that the agent does not have, because only a terminal needs them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cantrip_acp.acp.client.client import AgentRefused
from cantrip_acp.cli.render.from_acp import get_list, get_text

if TYPE_CHECKING:
    from cantrip_acp.cli.render.client_output import ClientText
    from cantrip_acp.cli.session.client_session import ClientSession

OF_THE_TERMINAL = {
    "ask": ("Ask before each write and command, or go back (also Shift-Tab)", None),
    "clear": ("Begin a new conversation; this one is kept", None),
    "model": ("Show the models, or choose the one that answers from now on", "[model]"),
    "now": ("Send a line to the entity before its next query", "text"),
    "plan": ("Change nothing until you approve a plan", None),
    "quit": ("Quit (also Ctrl-D)", None),
}

NOTES = """\
Each input is an intent. A line that ends in \\ continues on the next line; so does Alt-Enter. A paste is one input.
`@path` attaches a file or a folder, `@src/app.py#L10-20` some lines; Tab completes the path.
`!command` runs a command in the sandbox. The agent reads its output with your next intent.
What you type while a cast runs waits for its end.
Ctrl-C cancels the running cast."""


def names() -> list[tuple[str, str]]:
    """The names of all commands, with their slash, and what they do."""
    from cantrip_acp.acp.sessions.slash_commands import COMMANDS

    found = {name: command.description for name, command in COMMANDS.items()}
    found |= {name: about for name, (about, _) in OF_THE_TERMINAL.items()}
    return sorted((f"/{name}", about) for name, about in found.items())


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
    """Runs these commands for one session. ``asks``: whether the user can be asked for permissions."""

    def __init__(self, client: ClientSession, output: ClientText, *, asks: bool) -> None:
        self._client, self._output, self._asks = client, output, asks

    def run(self, line: str) -> str | None:
        """Run a command. Returns the line that the agent gets in its place: a command of the agent, or text that only begins
        with a slash, such as a path. None if there is nothing more to do."""
        from cantrip_acp.acp.sessions.slash_commands import parse_command

        typed, _, rest = line[1:].partition(" ")
        name, rest = {"usage": "cost"}.get(typed.lower(), typed.lower()), rest.strip()
        own: dict[str, Callable[[str], None]] = {
            "ask": self._ask,
            "help": self._help,
            "model": self._model,
            "now": lambda rest: self._say("nothing runs that could read it now; send it as a message, without /now"),
            "plan": self._plan,
            "queue": lambda rest: self._say("No prompt waits."),
        }
        if name in own:
            try:
                own[name](rest)
            except AgentRefused as refused:
                self._output.show_note(str(refused).splitlines()[0])
            return None
        if parse_command(f"/{name} {rest}") is not None:
            return f"/{name} {rest}".rstrip()
        if (near := _near(name)) is not None:
            self._output.show_note(f"unknown command /{name}; did you mean /{near}? /help lists them")
        elif rest:
            return line
        else:
            self._output.show_note(f"unknown command /{name}; /help lists them")
        return None

    def models(self) -> list[tuple[str, str]]:
        """The models that can be chosen, with what is known about them."""
        option = model_option(self._client.session.config_options)
        values = values_of(option) if option is not None else []
        return [(get_text(each, "value"), get_text(each, "description")) for each in values]

    def _say(self, text: str) -> None:
        self._output.show_lines(text)

    def _ask(self, rest: str) -> None:
        if self._asks:
            self._client.call(self.toggle_ask)
        else:
            self._say("there is no terminal to ask at")

    async def toggle_ask(self) -> None:
        """Switch to the mode `ask`, or back, and say so. It runs in the protocol's thread."""
        await self._client.toggle_ask()
        self._client.show(lambda: self._say(self._client.mode_text))

    def _plan(self, rest: str) -> None:
        if self._asks:
            self._client.set_mode("plan")
            self._say("plan mode: nothing is changed until you approve a plan")
        else:
            self._say("there is no terminal to ask at")

    def _model(self, name: str) -> None:
        option = model_option(self._client.session.config_options)
        if option is None:
            self._say("this session has no choice of models")
        elif name:
            self._client.set_option(get_text(option, "id"), name)
            self._say(f"model: {name}, from the next intent on")
        else:
            now = str(option.get("currentValue"))
            self._say(f"model: {now}")
            for value, about in self.models():
                if value != now:
                    self._say(f"/model {value}" + (f"  {about}" if about else ""))
            self._say("any PROVIDER:MODEL can be chosen; `cantrip models` lists what is known about them")

    def _help(self, rest: str) -> None:
        from cantrip_acp.acp.sessions.slash_commands import COMMANDS

        hints = {name: command.hint for name, command in COMMANDS.items()}
        hints |= {name: hint for name, (_, hint) in OF_THE_TERMINAL.items()}
        rows = [f"- `{name}{f' {hint}' if (hint := hints[name[1:]]) else ''}`: {about}" for name, about in names()]
        self._output.show_answer("\n".join([*rows, "", "\n\n".join(NOTES.splitlines())]))


def _near(name: str) -> str | None:
    """The command that is probably meant by a name that is no path."""
    if not name.replace("-", "").isalpha() or Path(f"/{name}").exists():
        return None
    return next(iter(get_close_matches(name, [each[1:] for each, _ in names()], n=1, cutoff=0.75)), None)
