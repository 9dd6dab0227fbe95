"""Shell completion of the names of recipes, looms, models and turns. `commands/completion.py` prints the script for a shell."""

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


def model_names(ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    """The models of the catalog as ``PROVIDER:MODEL``, the providers, and the recipe's own ``crystals`` if one is named."""
    from cantrip_acp.core.errors import CantripError
    from cantrip_acp.crystals.catalog import lookup
    from cantrip_acp.recipes.parse.names import MODEL_PROVIDERS

    provider, colon, _ = incomplete.partition(":")
    if not colon:
        found = [CompletionItem(f"{name}:", help="a provider") for name in MODEL_PROVIDERS if name != "local"]
        found += [CompletionItem("embedded"), CompletionItem("scripted:")]
        # Only what one provider has can be named alone.
        found += [CompletionItem(model, help=owner) for owner, model, _ in lookup.list_models() if owner != "ollama"]
        try:
            from cantrip_acp.recipes import load

            recipe = load(ctx.params.get("recipe") or "familiar", Path(ctx.params.get("cwd") or ".").resolve())
            found += [CompletionItem(name, help="of the recipe") for name in recipe.data.get("crystals", {})]
        except (CantripError, OSError):
            pass  # An unreadable recipe has no names to offer.
        return [item for item in found if item.value.startswith(incomplete)]
    if provider == "scripted":
        return [CompletionItem(incomplete, type="file")]
    return [
        CompletionItem(f"{provider}:{model}")
        for _, model, _ in lookup.list_models(provider)
        if f"{provider}:{model}".startswith(incomplete)
    ]


def loom_names(ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    """The looms of the state folder, the newest first, or files."""
    from cantrip_acp.files import paths
    from cantrip_acp.loom.find_loom import ENDING, list_looms

    if os.sep in incomplete or Path(incomplete).exists():
        return [CompletionItem(incomplete, type="file")]
    names = [path.name.removesuffix(ENDING) for path in list_looms(paths.state_dir(ctx.params.get("state_dir")))]
    found = [CompletionItem(name) for name in names if name.startswith(incomplete)][:_MOST_LOOMS]
    return found or [CompletionItem(incomplete, type="file")]
