"""Recipes: files (``*.cantrip.yaml``) that describe cantrips, and the built-in recipes.

`load` reads a recipe, `build.build` makes a `Cantrip` from it, `load_for_session` does both. The command line, the ACP
agent and the language server import this package; the core never does. Importing it is fast: pydantic and the YAML
parser are imported only for a text that is not in the cache. Start reading with `recipe.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cantrip_acp.core.cantrip import Cantrip
    from cantrip_acp.loom.loom import Loom
    from cantrip_acp.recipes.recipe import Recipe

DEFAULT = "familiar"
"""The name of the default recipe. It is a built-in recipe."""


__all__ = [
    "DEFAULT", "Recipe", "build", "cache", "convert", "inspect", "load", "load_for_session", "models", "parse",
    "recipe", "trust",
]  # fmt: skip


def load(
    name_or_path: str | Path,
    workspace: Path | None = None,
    *,
    state_dir: Path | None = None,
) -> Recipe:
    """Load a recipe by path or by name: from ``.cantrip/`` of the workspace, the user's folder, or the built-in ones.

    With ``state_dir`` the parsed data is cached there, so that the same text is not parsed twice.
    Raises `RecipeError` with file, line and column, or `DefinitionError` if there is no such recipe.
    """
    from cantrip_acp.recipes import recipe

    return recipe.load(name_or_path, workspace, state_dir=state_dir)


def load_for_session(
    name_or_path: str | None,
    workspace: Path,
    state_dir: Path,
    *,
    trusted: bool,
    loom: Loom | None = None,
) -> Cantrip:
    """Load a recipe (None: the default one) and build its cantrip, with a new crystal, for a session in ``workspace``.

    ``trusted`` means that the user who started the program named exactly this file. Otherwise a recipe from the
    workspace may use only harmless features until ``cantrip trust``. No loom is opened: pass one, or use
    ``cantrip.invoke(loom=…)``. Raises `UntrustedRecipe` or another `DefinitionError`, and `MissingKey` if no crystal
    is available.
    """
    from cantrip_acp.recipes import recipe
    from cantrip_acp.recipes.build import build

    if name_or_path is None:
        found = recipe.built_in(DEFAULT, state_dir=state_dir)
    else:
        found = recipe.load(name_or_path, workspace, state_dir=state_dir)
        if not trusted:
            from cantrip_acp.recipes import trust

            trust.require(found, workspace, state_dir)
    return build.build(found, workspace=workspace, loom=loom)


def __getattr__(name: str) -> Any:
    if name == "Recipe":
        from cantrip_acp.recipes.recipe import Recipe

        return Recipe
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
