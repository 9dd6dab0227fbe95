"""Shell completion of the names of recipes, looms, models and turns. `commands/completion.py` prints the script for a shell."""

from __future__ import annotations

import os
from pathlib import Path

import click
from click.shell_completion import CompletionItem

_MOST_LOOMS = 50
_MOST_TURNS = 100
_LARGEST_LOOM = 5_000_000
"""Bytes of the largest loom whose turns are offered, because the shell waits."""


def recipe_names(ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    """The recipes that can be used by name in the folder, and files."""
    from cantrip_acp.recipes.recipe import names

    known = names(Path(ctx.params.get("cwd") or ".").resolve())
    found = [CompletionItem(name, help=source) for name, (source, _) in known.items() if name.startswith(incomplete)]
    return found or [CompletionItem(incomplete, type="file")]


def model_names(ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    """The models of the catalog as ``PROVIDER:MODEL``, the providers, and the recipe's own ``crystals`` if one is named."""
    from cantrip_acp.crystals.catalog import lookup
    from cantrip_acp.recipes.parse.names import MODEL_PROVIDERS
    from cantrip_acp.types.errors import CantripError

    provider, colon, _ = incomplete.partition(":")
    if not colon:
        found = [CompletionItem(f"{name}:", help="a provider") for name in MODEL_PROVIDERS if name != "local"]
        found += [CompletionItem("embedded"), CompletionItem("scripted:")]
        # Only a model of a single provider can be named without the provider.
        found += [CompletionItem(model, help=owner) for owner, model, _ in lookup.list_models() if owner != "ollama"]
        try:
            from cantrip_acp.recipes import DEFAULT, load

            # click leaves the words in `args` while an option has no value yet.
            name = ctx.params.get("recipe") or next(iter(ctx.args), DEFAULT)
            recipe = load(name, Path(ctx.params.get("cwd") or ".").resolve())
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


def provider_names(ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    """The providers, after a colon the models of one, and the other commands of the group."""
    from cantrip_acp.recipes.parse.names import MODEL_PROVIDERS

    if ":" in incomplete:
        return model_names(ctx, incomplete)
    group = ctx.parent.command if ctx.parent is not None else None
    commands = group.list_commands(ctx) if isinstance(group, click.Group) else []
    return [CompletionItem(name) for name in (*MODEL_PROVIDERS, *commands) if name.startswith(incomplete)]


def turn_ids(ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    """The latest turns of the named loom, or of the newest one, each with a short text."""
    from cantrip_acp.files import paths
    from cantrip_acp.loom.find_loom import find_loom, open_readonly
    from cantrip_acp.types.errors import CantripError

    try:
        path = find_loom(ctx.params.get("name"), paths.state_dir(ctx.params.get("state_dir")))
        if not isinstance(path, Path) or path.stat().st_size > _LARGEST_LOOM:
            return []
        with open_readonly(path) as loom:
            turns = [turn for turn in loom.turns() if turn.role == "crystal" and turn.id.startswith(incomplete)]
    except (CantripError, OSError):
        return []  # A loom that cannot be read has no turns to offer.
    about = [turn.utterance.content or turn.utterance.code or ", ".join(turn.gate_calls) for turn in turns]
    found = [CompletionItem(turn.id, help=" ".join(text.split())[:60]) for turn, text in zip(turns, about, strict=True)]
    return found[: -_MOST_TURNS - 1 : -1]


def loom_names(ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    """The looms of the state folder, the newest first, or files."""
    from cantrip_acp.files import paths
    from cantrip_acp.loom.find_loom import ENDING, list_looms

    if os.sep in incomplete or Path(incomplete).exists():
        return [CompletionItem(incomplete, type="file")]
    names = [path.name.removesuffix(ENDING) for path in list_looms(paths.state_dir(ctx.params.get("state_dir")))]
    found = [CompletionItem(name) for name in names if name.startswith(incomplete)][:_MOST_LOOMS]
    return found or [CompletionItem(incomplete, type="file")]
