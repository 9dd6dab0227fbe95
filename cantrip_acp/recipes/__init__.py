"""Recipes: cantrips as files (``*.cantrip.yaml``, ``*.cantrip.toml``), and the built-in ones.

`load` reads one, `build.build` makes a `Cantrip` of it, `load_for_session` does both for a session. Imported by the
doors (command line, ACP agent), never by the core. Kept light: pydantic and the YAML parser are loaded for a text
that was not seen before, and for the error messages of one that is wrong.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cantrip_acp.core.cantrip import Cantrip
    from cantrip_acp.loom.loom import Loom
    from cantrip_acp.recipes.recipe import Recipe

DEFAULT = "familiar"
"""The built-in recipe that serves where none is named."""


def load(
    name_or_path: str | Path,
    workspace: Path | None = None,
    *,
    state_dir: Path | None = None,
) -> Recipe:
    """The recipe in a file, or of a name: in ``.cantrip/`` of the workspace, the user's folder, or built in.

    With ``state_dir`` what was read is kept there, so that the same text is not parsed twice.
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
    """A cantrip for one session in ``workspace``, with a crystal of its own; the built-in recipe where none is named.

    ``trusted``: whoever started the program named this very file. A recipe that came with the workspace is otherwise
    held to what is harmless until ``cantrip trust`` (`UntrustedRecipe`). Raises `DefinitionError`, and `MissingKey`
    where no crystal can be had. No loom is opened: give one, or use ``cantrip.invoke(loom=…)``.
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
