"""Command table: the root command ``cantrip``, and the name, module and help line of each subcommand.

A subcommand's module is imported only when the subcommand runs.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import click

from cantrip_acp.version import __version__

COMMANDS: dict[str, tuple[str, str]] = {
    "acp": (
        "cantrip_acp.cli.command_table:acp",
        "Start the ACP agent on stdin and stdout. Editors run this command.",
    ),
    "lsp": ("cantrip_acp.cli.command_table:lsp", "Start the language server for recipes on stdin and stdout."),
    "cast": ("cantrip_acp.cli.commands.cast:cast", "Run a recipe once on an intent, and show what happens."),
    "cast-batch": (
        "cantrip_acp.cli.commands.cast_batch:cast_batch",
        "Run a recipe on many intents, here or by workers. The same command resumes.",
    ),
    "eval": (
        "cantrip_acp.cli.commands.eval:eval_",
        "Run a suite of tasks with crystals, with intervals, and find regressions.",
    ),
    "init": ("cantrip_acp.cli.commands.init:init", "Ask three questions, and write a recipe that runs."),
    "repl": ("cantrip_acp.cli.commands.repl:repl", "Talk to an entity in the terminal."),
    "client": ("cantrip_acp.cli.commands.client:client", "Talk to any ACP agent in the terminal."),
    "demo": ("cantrip_acp.cli.commands.demo:demo", "Watch an entity fix a small project. No key is needed."),
    "recipe": ("cantrip_acp.cli.commands.recipe:recipe", "Write, check and show recipes."),
    "gates": (
        "cantrip_acp.cli.commands.reference:gates",
        "List the gates that a recipe can name, with their arguments.",
    ),
    "wards": ("cantrip_acp.cli.commands.reference:wards", "List the wards (limits) that a recipe can set."),
    "trust": ("cantrip_acp.cli.commands.trust:trust", "Trust the recipes of a folder, or list the trusted folders."),
    "loom": ("cantrip_acp.cli.loom.commands:loom", "Show, compare, export and edit looms, the records of casts."),
    "sandbox": (
        "cantrip_acp.cli.commands.sandbox:sandbox",
        "Run one command in the sandbox, or show the sandbox's policy.",
    ),
    "quarantine": (
        "cantrip_acp.cli.commands.quarantine:quarantine",
        "Keep or drop the protected files that commands made and that were moved away.",
    ),
    "worker": ("cantrip_acp.cli.commands.worker:worker", "Take tuples of a lane and cast them."),
    "tuple": ("cantrip_acp.cli.commands.tuple:tuple_", "Put units of work into a tuple-space, and see their state."),
    "substrate": (
        "cantrip_acp.cli.commands.substrate:substrate",
        "Show what sessions know: documents, facts and earlier sessions, with their history.",
    ),
    "catalog": (
        "cantrip_acp.cli.commands.catalog:catalog",
        "List what a project's work can name: gates, recipes, mediums, providers and agents.",
    ),
    "mcp": (
        "cantrip_acp.cli.commands.mcp:mcp",
        "Serve the tuple-space to other agents by the Model Context Protocol (MCP).",
    ),
    "conformance": ("cantrip_acp.cli.commands.conformance:conformance", "Run a conformance suite."),
    "models": (
        "cantrip_acp.cli.commands.models:models",
        "List models with their context windows, limits, prices and abilities; download a small one.",
    ),
    "train": ("cantrip_acp.cli.commands.train:train", "Train a small model from the looms of its own casts."),
    "completion": (
        "cantrip_acp.cli.commands.completion:completion",
        "Print the script that completes words in your shell.",
    ),
    "gc": ("cantrip_acp.cli.commands.gc:gc", "Delete old looms of the state folder, and old results of a tuple-space."),
    "doctor": (
        "cantrip_acp.cli.commands.doctor:doctor",
        "Check what works on this machine, and say how to fix the rest.",
    ),
}
"""Name to (``module:attribute``, help line). To add a command, write a module and add a line here."""


class LazyGroup(click.Group):
    """A group that imports a command only when it is run."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0] if args else ""
        if name not in COMMANDS and is_intent(name):
            from cantrip_acp.recipes import DEFAULT

            # What has a blank in it is no misspelled command. Any other word is never cast.
            args = ["cast", name, *args[1:]] if len(args) == 1 or args[1].startswith("-") else ["cast", DEFAULT, *args]
            name = "cast"
        if name and name not in COMMANDS and not name.startswith("-"):
            raise click.UsageError(unknown_name("command", name, list(COMMANDS), OTHER_NAMES), ctx)
        from cantrip_acp.cli.settings import check_settings, use_settings

        use_settings(ctx, list(COMMANDS))
        found = super().resolve_command(ctx, args)
        if found[0] is not None and found[1] is not None:
            check_settings(ctx, found[0], found[1])
        return found


class SuggestingGroup(click.Group):
    """A group that suggests the nearest command name when a name is unknown."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0] if args else ""
        known = self.list_commands(ctx)
        if name and name not in known and not name.startswith("-"):
            raise click.UsageError(unknown_name(f"{ctx.info_name} command", name, known), ctx)
        found = super().resolve_command(ctx, args)
        if ctx.default_map and found[0] is not None and found[1] is not None:
            from cantrip_acp.cli.settings import check_settings

            check_settings(ctx, found[0], found[1])
        return found


OTHER_NAMES = {
    **dict.fromkeys(("run", "exec", "ask", "do", "fix"), "cast"),
    **dict.fromkeys(("chat", "shell"), "repl"),
    "model": "models",
}
"""Names of commands in other programs, with our names for them."""


def is_intent(word: str) -> bool:
    """Whether the first word of the command line is an intent for the default agent: `cantrip "fix the bug"`."""
    return not word.startswith("-") and len(word.split()) > 1


def near_names(name: str, known: Iterable[str]) -> list[str]:
    """The known name that is probably meant, if there is one."""
    return difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)


def unknown_name(what: str, name: str, known: list[str], other: Mapping[str, str] = MappingProxyType({})) -> str:
    """The error text for an unknown name: suggests the nearest known name, or lists all of them. ``other`` are names of other
    programs for the same things."""
    near = [other.get(each, each) for each in ([name] if name in other else near_names(name, [*known, *other]))]
    return f"unknown {what} {name!r}" + (f"; did you mean {near[0]!r}?" if near else f" (known: {', '.join(known)})")


def complete_recipe(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    """Complete the name of a recipe in the shell."""
    from cantrip_acp.cli.completion import recipe_names

    return recipe_names(ctx, incomplete)


def complete_loom(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    """Complete the name of a loom in the shell."""
    from cantrip_acp.cli.completion import loom_names

    return loom_names(ctx, incomplete)


def complete_turn(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    """Complete the id of a turn in the shell, after the name of its loom."""
    from cantrip_acp.cli.completion import turn_ids

    return turn_ids(ctx, incomplete)


def complete_provider(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    """Complete the name of a provider, or of one of its models, in the shell."""
    from cantrip_acp.cli.completion import provider_names

    return provider_names(ctx, incomplete)


def complete_format(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    """Complete the name of a format of exports in the shell."""
    from cantrip_acp.core import exports

    return [name for name in exports.names() if name.startswith(incomplete)]


def examples(*lines: str) -> dict[str, Any]:
    """The epilog of a command's help, with examples. In an empty folder they work one after the other."""
    head = "Example:" if len(lines) == 1 else "Examples:"
    return {"epilog": "\b\n" + "\n  ".join([head, *lines])}


@click.command(
    "acp",
    # The agent parses its own options, because it must be able to start without click.
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
    add_help_option=False,
    **examples("cantrip acp --help"),
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def acp(arguments: tuple[str, ...]) -> int:
    """Start the ACP agent (Agent Client Protocol) on stdin and stdout. Same as `cantrip-acp`, with the same options."""
    from cantrip_acp.acp.start import main

    return main(list(arguments))


# --- `cantrip lsp`: the language server.


@click.command(
    "lsp",
    # The server parses its own options, because it must be able to start without click.
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
    add_help_option=False,
    **examples("cantrip lsp --help"),
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def lsp(arguments: tuple[str, ...]) -> int:
    """Start the language server on stdin and stdout. It helps editors with recipes."""
    from cantrip_acp.lsp.start import main

    return main(list(arguments))


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    **examples(
        "cantrip demo", "cantrip recipe new greeter", 'cantrip cast greeter "Say hello."', "cantrip loom thread"
    ),
)
@click.version_option(__version__, message="cantrip %(version)s")
def cantrip() -> None:
    """Run language models as entities in sandboxed circles, and record every turn in a loom.

    `cantrip "fix the bug"` lets the default agent work in this folder, and `cantrip repl` talks to it.

    Editors start `cantrip-acp` instead. It speaks the Agent Client Protocol.
    """
