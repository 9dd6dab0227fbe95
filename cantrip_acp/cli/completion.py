"""Shell completion: `cantrip completion SHELL` prints the script, and the functions here complete names of recipes and looms."""

from __future__ import annotations

import os
from pathlib import Path

import click
from click.shell_completion import BashComplete, CompletionItem, get_completion_class

from cantrip_acp.cli.command_table import examples

_MOST_LOOMS = 50
_SHELLS = ("bash", "zsh", "fish")


def recipe_names(ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    """The recipes that can be used by name in the folder, and files."""
    from cantrip_acp.recipes.recipe import names

    known = names(Path(ctx.params.get("cwd") or ".").resolve())
    found = [CompletionItem(name, help=source) for name, (source, _) in known.items() if name.startswith(incomplete)]
    return found or [CompletionItem(incomplete, type="file")]


def loom_names(ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    """The looms of the state folder, the newest first, or files."""
    from cantrip_acp.files import paths
    from cantrip_acp.loom.find_loom import ENDING, list_looms

    if os.sep in incomplete or Path(incomplete).exists():
        return [CompletionItem(incomplete, type="file")]
    names = [path.name.removesuffix(ENDING) for path in list_looms(paths.state_dir(ctx.params.get("state_dir")))]
    found = [CompletionItem(name) for name in names if name.startswith(incomplete)][:_MOST_LOOMS]
    return found or [CompletionItem(incomplete, type="file")]


@click.command("completion", **examples("cantrip completion bash", "cantrip completion zsh", "cantrip completion fish"))
@click.argument("shell", type=click.Choice(_SHELLS))
def completion(shell: str) -> None:
    """Print the script that completes commands, options, and the names of recipes and looms in your shell.

    \b
    bash   echo 'eval "$(cantrip completion bash)"' >> ~/.bashrc
    zsh    echo 'eval "$(cantrip completion zsh)"' >> ~/.zshrc
    fish   cantrip completion fish > ~/.config/fish/completions/cantrip.fish
    """
    from cantrip_acp.cli.command_table import cantrip

    made = get_completion_class(shell)
    assert made is not None, "click knows these shells"
    # click would start bash to read its version; whoever runs this knows which shell it is for.
    source = made(cantrip, {}, "cantrip", "_CANTRIP_COMPLETE")
    click.echo(BashComplete.source_template % source.source_vars() if shell == "bash" else source.source())
