"""The command table: each command's name, arguments and function.
A command is ``async def function(server, given, work)``: `arguments.Given` are its arguments; `command_run.Work` reports
progress and cancels. The return value is the answer, as plain data. A `CantripError` becomes the request's error.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Command:
    """``takes`` names the arguments in order. ``module`` and ``function`` are imported when the command is called.
    With ``quiet`` no progress is shown, because the command ends at once.
    """

    name: str
    title: str
    takes: tuple[str, ...]
    about: str
    module: str
    function: str
    quiet: bool = False


_CASTING = "cantrip_acp.lsp.commands.cast_commands"
_LOOMING = "cantrip_acp.lsp.commands.loom_commands"
_LOOM_FILES = "cantrip_acp.lsp.commands.loom_commands"
_KNOWLEDGE = "cantrip_acp.lsp.knowledge"

_LISTED: tuple[Command, ...] = (
    Command(
        "cantrip.cast",
        "Cast",
        ("uri", "intent", "loom"),
        "cast a recipe, as the editor has it; without an intent on that of before, else on the first that it notes",
        _CASTING,
        "cast",
    ),
    Command(
        "cantrip.castWith",
        "Cast with…",
        ("uri", "intent", "loom"),
        "the same, for clients that ask for the intent and send it on; where one does not, a known one is chosen",
        _CASTING,
        "cast_with",
    ),
    Command("cantrip.stop", "Stop", ("uri",), "end the casts of a recipe, or all", _CASTING, "stop", quiet=True),
    Command(
        "cantrip.lastResult",
        "Last result",
        ("uri",),
        "show what came of a recipe's last cast",
        _CASTING,
        "last_result",
        quiet=True,
    ),
    Command(
        "cantrip.openLoom",
        "Open loom",
        ("uri", "loom"),
        "show the loom of a recipe's last cast, or the one that is named",
        _CASTING,
        "open_loom",
        quiet=True,
    ),
    Command(
        "cantrip.trust",
        "Trust",
        ("uri", "revoke"),
        "trust a recipe as it is now, or no longer",
        _CASTING,
        "trust",
        quiet=True,
    ),
    Command(
        "cantrip.loom.fork",
        "Fork",
        ("uri", "turn", "intent", "recipe", "state"),
        "continue from a turn as a new entity; without an intent, with the intent of the turn's cast",
        _LOOMING,
        "fork",
    ),
    Command(
        "cantrip.loom.reward",
        "Reward",
        ("uri", "turn", "reward", "note"),
        "give a turn a reward; without a number the user chooses one",
        _LOOMING,
        "reward",
        quiet=True,
    ),
    Command(
        "cantrip.loom.replay",
        "Replay",
        ("uri", "turn", "recipe", "recordedGates"),
        "live a thread again with its recorded words, and tell where it goes another way",
        _LOOMING,
        "replay",
    ),
    Command(
        "cantrip.loom.export",
        "Export",
        ("uri", "turn", "format", "output", "hidden"),
        "write threads for trainers and trace stores",
        _LOOM_FILES,
        "export",
    ),
    Command(
        "cantrip.loom.view",
        "Open in viewer",
        ("uri", "turn", "hosts", "hidden", "html"),
        "open a loom's page, or write it to a file",
        _LOOM_FILES,
        "view",
        quiet=True,
    ),
    Command(
        "cantrip.substrate.pin",
        "Pin",
        ("uri", "scope", "remove"),
        "let every session of a folder read a scope from the beginning, or no longer",
        _KNOWLEDGE,
        "pin",
        quiet=True,
    ),
    Command(
        "cantrip.substrate.remember",
        "Remember",
        ("uri", "text", "everywhere"),
        "add a fact to what sessions of a folder know, or those of all folders",
        _KNOWLEDGE,
        "remember",
        quiet=True,
    ),
)

COMMANDS: dict[str, Command] = {command.name: command for command in _LISTED}
