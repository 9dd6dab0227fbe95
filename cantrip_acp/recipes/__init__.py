"""Recipes: cantrips as files (``*.cantrip.yaml``), and the built-in ones.

`load` reads one, `build.build` makes a `Cantrip` of it, `load_for_session` does both for a session. The command line,
the ACP agent and the language server import it, never the core. Its imports are light: pydantic and the YAML parser
are loaded only for a new text, and for the error messages of an invalid one. Start reading with `recipe.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cantrip_acp.core.cantrip import Cantrip
    from cantrip_acp.loom.loom import Loom
    from cantrip_acp.recipes.recipe import Recipe

DEFAULT = "familiar"
"""The default recipe, which is built in."""


def load(
    name_or_path: str | Path,
    workspace: Path | None = None,
    *,
    state_dir: Path | None = None,
) -> Recipe:
    """Load a recipe by path or by name: from ``.cantrip/`` of the workspace, the user's folder, or the built-in ones.

    With ``state_dir`` the parsed data is cached there, so that the same text is not parsed twice.
    Raises `RecipeError` with file, line and column, or `DefinitionError` where there is no such recipe.
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
    """A cantrip for one session in ``workspace``, with its own crystal; the default recipe where none is named.

    ``trusted``: the user who started the program named exactly this file. Otherwise a recipe from the workspace may
    only use harmless features until ``cantrip trust`` (`UntrustedRecipe`). Raises `DefinitionError`, and `MissingKey`
    where no crystal is available. No loom is opened: pass one, or use ``cantrip.invoke(loom=…)``.
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
