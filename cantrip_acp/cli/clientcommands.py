"""What can be typed at `cantrip client` beside prompts: lines that begin with a colon are for the client itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from cantrip_acp.acp.client.errors import AgentRefused
from cantrip_acp.cli.commands import unknown
from cantrip_acp.cli.toolview import listed, text
from cantrip_acp.text.sanitize import clean_line

if TYPE_CHECKING:
    from cantrip_acp.cli.headless import Headless
    from cantrip_acp.cli.screen import Screen

COMMANDS: Final[Mapping[str, str]] = {
    "help": "this list",
    "modes": "the session's modes",
    "mode ID": "change the mode",
    "options": "the session's config options and their values",
    "set ID=VALUE": "change a config option",
    "sessions": "the agent's sessions of this folder",
    "new": "begin another session",
    "load ID": "open an earlier session and show its past; `last` is the one before",
    "resume ID": "open an earlier session without its past",
}


class ClientCommands:
    """The commands over one headless session. Strings of the agent are cleaned before they are shown."""

    def __init__(self, headless: Headless, screen: Screen) -> None:
        self._headless = headless
        self._screen = screen

    def run(self, line: str) -> None:
        """A line without its colon; what is wrong with it, or what the agent refuses, is said."""
        name, _, rest = line.strip().partition(" ")
        rest = rest.strip()
        known: dict[str, Callable[[str], None]] = {
            "help": self._help,
            "modes": self._modes,
            "mode": self._mode,
            "options": self._options,
            "set": self._set,
            "sessions": self._sessions,
            "new": lambda rest: self._headless.reopen(),
            "load": lambda rest: self._headless.reopen(load=rest or "last"),
            "resume": lambda rest: self._headless.reopen(resume=rest or "last"),
        }
        if name not in known:
            self._say(f"{unknown('command', name, list(known))}; :help lists them", "yellow")
            return
        try:
            known[name](rest)
        except AgentRefused as refused:
            # The whole text shows the agent's stderr too, which is much for a slip of the finger.
            self._say(str(refused).splitlines()[0], "yellow")

    def _say(self, words: str, style: str = "") -> None:
        self._screen.line((clean_line(words, 400), style), indent=2)

    def _help(self, rest: str) -> None:
        for name, words in COMMANDS.items():
            self._screen.line((f":{name:<14}", "bold"), words, indent=2)
        self._say("Everything else goes to the agent, its own /commands too.", "dim")

    def _modes(self, rest: str) -> None:
        modes = self._headless.session.modes
        for each in listed(modes, "availableModes"):
            if isinstance(each, Mapping):
                self._choice(text(each, "id"), text(modes, "currentModeId"), each)
        if not listed(modes, "availableModes"):
            self._say("this session has no modes", "dim")

    def _mode(self, rest: str) -> None:
        if not rest:
            self._modes(rest)
            return
        self._headless.set_mode(rest)
        self._say(f"mode {rest}", "dim")

    def _options(self, rest: str) -> None:
        options = [each for each in self._headless.session.config_options if isinstance(each, Mapping)]
        for option in options:
            self._screen.line(
                (clean_line(text(option, "id"), 60), "bold"),
                f" = {clean_line(str(option.get('currentValue')), 100)}",
                (f"  {clean_line(text(option, 'name'), 60)}", "dim"),
                indent=2,
            )
            values = [text(value, "value") for value in _values(option)]
            self._screen.line((clean_line(", ".join(filter(None, values)), 400), "dim"), indent=4)
        if not options:
            self._say("this session has no config options", "dim")

    def _set(self, rest: str) -> None:
        option, equals, value = rest.partition("=")
        if not equals or not option.strip():
            self._say("say :set ID=VALUE; :options lists them", "yellow")
            return
        self._headless.set_option(option.strip(), value.strip())
        self._say(f"{option.strip()} = {value.strip()}", "dim")

    def _sessions(self, rest: str) -> None:
        found = sorted(self._headless.sessions(), key=lambda each: each.updated_at, reverse=True)
        for each in found:
            mark = "*" if each.id == self._headless.session.id else " "
            self._screen.line(
                f"{mark} ", (clean_line(each.id, 100), "bold"), f"  {clean_line(each.title, 80)}", indent=2
            )
        if not found:
            self._say("no sessions", "dim")

    def _choice(self, name: str, current: str, about: Mapping[str, Any]) -> None:
        mark = "*" if name == current else " "
        self._screen.line(
            f"{mark} ",
            (clean_line(name, 60), "bold"),
            (f"  {clean_line(text(about, 'description'), 200)}", "dim"),
            indent=2,
        )


def _values(option: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """An option's values; those of groups too."""
    found: list[Mapping[str, Any]] = []
    for each in listed(option, "options"):
        if isinstance(each, Mapping):
            found += _values(each) if listed(each, "options") else [each]
    return found
