"""Shell completion of the names of recipes and looms. `commands/completion.py` prints the script for a shell."""

from __future__ import annotations

import os
from pathlib import Path

import click
from click.shell_completion import CompletionItem

_MOST_LOOMS = 50


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
