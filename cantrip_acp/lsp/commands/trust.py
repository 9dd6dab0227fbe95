"""Trust of recipes in an editor: a workspace's recipe may do only harmless things until the user trusts it.
For recipes in a ``.cantrip`` folder, trust is kept where ``cantrip trust`` keeps it. The command line trusts a recipe
elsewhere for the run that names it. Here such trust lasts until the server ends, and only while the recipe and the files
that it names do not change.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cantrip_acp.recipes.build.python_files import Files
    from cantrip_acp.recipes.recipe import Recipe


class TrustManager:
    """The trust that the user gave to this server."""

    def __init__(self) -> None:
        self._granted: set[str] = set()

    def require(self, recipe: Recipe, workspace: Path, state: Path) -> None:
        """Return if the recipe is trusted. Raises `UntrustedRecipe` or `RecipeError` with each key that needs trust."""
        from cantrip_acp.recipes import trust
        from cantrip_acp.types.errors import RecipeError, UntrustedRecipe

        if recipe.source != "workspace" or self._granted & {_content(recipe)}:
            return
        try:
            trust.require(recipe, workspace, state)
        except RecipeError as error:
            *places, _ = error.places
            how = (
                f"{recipe.file}: to allow this, read it and run the editor's command cantrip.trust (“Trust…” above it)"
            )
            if trust.lies_in(workspace, recipe):
                how += f", or in a terminal: cantrip trust {workspace}"
            raise UntrustedRecipe(places, folder=str(workspace), how=how) from None

    def asked(self, path: Path, files: Files, workspace: Path) -> int:
        """The number of a recipe's keys that need trust which it lacks. 0 if it may be cast, or is not valid."""
        from cantrip_acp.files import paths
        from cantrip_acp.types.errors import CantripError, UntrustedRecipe

        state = paths.state_dir()
        try:
            self.require(recipe_at(path, files, None), workspace, state)
        except UntrustedRecipe as error:
            return len(error.places) - 1
        except CantripError:
            return 0
        return 0

    def grant(self, recipe: Recipe, workspace: Path, state: Path) -> dict[str, Any]:
        """Trust the recipe in its present form; return the trusted files. Raises `DefinitionError` if it must be saved first."""
        from cantrip_acp.recipes import trust
        from cantrip_acp.types.errors import DefinitionError

        asked = [
            {"key": problem.key, "line": problem.line, "why": why}
            for path, why in trust.demands(recipe.data, recipe.path.parent, workspace)
            if (problem := recipe.problem(path, why))
        ]
        if trust.lies_in(workspace, recipe):
            if not recipe.path.is_file() or recipe.path.read_bytes() != recipe.raw:
                raise DefinitionError("save it first: trust is kept for the files as they are", where=recipe.file)
            what = trust.Ledger(state).grant(workspace)
            return {"trusted": True, "folder": str(workspace), "files": sorted(what.files), "demands": asked}
        self._granted.add(_content(recipe))
        return {"trusted": True, "folder": None, "files": [str(recipe.path)], "demands": asked}

    def revoke(self, recipe: Recipe, workspace: Path, state: Path) -> dict[str, Any]:
        from cantrip_acp.recipes import trust

        if trust.lies_in(workspace, recipe):
            trust.Ledger(state).revoke(workspace)
        self._granted.discard(_content(recipe))
        return {"trusted": False, "folder": str(workspace), "files": [str(recipe.path)], "demands": []}


def recipe_at(path: Path, files: Files, state: Path | None) -> Recipe:
    """Read the recipe in an editor's file. Its folder says if it is the user's own, built-in, or a workspace's."""
    from cantrip_acp.files.paths import config_dir
    from cantrip_acp.recipes import recipe

    folder = path.resolve().parent
    source: recipe.Source = "workspace"
    if folder == config_dir().resolve():
        source = "user"
    elif folder == recipe.BUILT_IN.resolve():
        source = "built-in"
    return recipe.read(path, source, files, file=str(path), state_dir=state)


def _content(recipe: Recipe) -> str:
    from cantrip_acp.recipes import trust
    from cantrip_acp.types.errors import DefinitionError

    whole = hashlib.sha256(f"{recipe.path}\0".encode() + recipe.raw)
    for file in trust.named_by(recipe):
        try:
            whole.update(recipe.files.read(file))
        except DefinitionError:
            whole.update(b"\0missing\0")
    for program in trust.programs(recipe, recipe.path.parent):
        whole.update(trust.program_digest(program).encode())
    return whole.hexdigest()
