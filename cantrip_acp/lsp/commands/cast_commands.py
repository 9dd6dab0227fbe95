"""Cast commands: cast a recipe, stop casts, show the last result or loom, and trust a recipe."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from lsprotocol import types

from cantrip_acp.lsp.commands import casts
from cantrip_acp.lsp.commands import trust as trusting
from cantrip_acp.lsp.commands.arguments import CommandArguments
from cantrip_acp.lsp.commands.command_run import CommandFailed, CommandRun
from cantrip_acp.lsp.recipes import lenses
from cantrip_acp.types.errors import CantripError, DefinitionError, IntentRequired, UntrustedRecipe

if TYPE_CHECKING:
    from cantrip_acp.core.cantrip import Cantrip
    from cantrip_acp.loom.loom import Loom
    from cantrip_acp.lsp.server.language_server import Server
    from cantrip_acp.recipes.build.python_files import Files
    from cantrip_acp.recipes.recipe import Recipe

T = TypeVar("T")


async def cast(server: Server, given: CommandArguments, work: CommandRun) -> dict[str, Any]:
    """Cast a recipe with the text in the editor, saved or not."""
    path = recipe_path(server, given)
    return await _cast(
        server, given, work, path, given.text("intent") if given.has("intent") else _known_intents(server, path)[0]
    )


async def cast_with(server: Server, given: CommandArguments, work: CommandRun) -> dict[str, Any]:
    """Cast a recipe, for clients that ask for the intent first. If the client sends none, the user chooses a known intent."""
    path = recipe_path(server, given)
    if given.has("intent"):
        return await _cast(server, given, work, path, given.text("intent"))
    known = [types.MessageActionItem(words) for words in _known_intents(server, path)]
    asked = types.ShowMessageRequestParams(types.MessageType.Info, f"Cast {path.name} on what?", actions=known)
    chosen = await server.window_show_message_request_async(asked)
    if chosen is None or not chosen.title.strip():
        raise IntentRequired("no intent was chosen, so nothing is cast")
    return await _cast(server, given, work, path, chosen.title)


async def _cast(server: Server, given: CommandArguments, work: CommandRun, path: Path, intent: str) -> dict[str, Any]:
    loom_file = given.text("loom", "") or None
    work.report("getting ready")
    files, workspace = server.files(), server.documents.workspace(path)
    cantrip, loom = await when_trusted(path, _prepare_cast, server.trusting, path, files, workspace, loom_file)
    if work.cancelled:
        loom.close()
        raise CommandFailed("the cast was cancelled before it began", data={"error": "Cancelled"})
    running = casts.RecipeCast(cantrip, loom, intent, work.report)
    try:
        return (await run_cast(server, work, path, running, intent)).record
    except CantripError as error:
        raise CommandFailed(str(error), data={"error": type(error).__name__, "loom": loom.location}) from error


async def run_cast(
    server: Server, work: CommandRun, recipe: Path, running: casts.RecipeCast, intent: str
) -> casts.CastOutcome:
    """Run a cast to its end. Raises `CantripError` if it failed."""
    server.casts.begin(recipe, running, intent)
    server.lenses_changed()
    work.on_cancel(running.cancel)
    how: casts.CastOutcome | str = "the cast was cut off"
    try:
        ended = how = await asyncio.shield(running.ended)
    except asyncio.CancelledError:
        running.cancel()
        raise
    except CantripError as error:
        how = str(error)
        raise
    finally:
        server.casts.end(recipe, running, how)
        server.lenses_changed()
    work.report(casts.summary(ended))
    return ended


async def when_trusted(recipe: Path, ready: Callable[..., T], *given: Any) -> T:
    """Call ``ready`` in a thread. If the recipe is not trusted, raise `CommandFailed`, which says how to trust it."""
    try:
        return await asyncio.to_thread(ready, *given)
    except UntrustedRecipe as error:
        mend = {"title": "Trust this recipe", "command": "cantrip.trust", "arguments": [{"uri": recipe.as_uri()}]}
        raise CommandFailed(
            str(error), data={"error": "UntrustedRecipe", "folder": error.folder, "command": mend}
        ) from error


async def stop(server: Server, given: CommandArguments, work: CommandRun) -> dict[str, Any]:
    """Stop the casts of a recipe, or all casts."""
    path = given.file() if given.has("uri") else None
    return {"cancelled": server.casts.cancel(path)}


async def last_result(server: Server, given: CommandArguments, work: CommandRun) -> dict[str, Any] | None:
    """Show and return the result of a recipe's last cast."""
    path = recipe_path(server, given)
    how = server.casts.last.get(path)
    if how is None:
        raise DefinitionError("nothing was cast here since the editor started the server", where=str(path))
    if isinstance(how, str):
        server.window_show_message(types.ShowMessageParams(types.MessageType.Error, how))
        return {"error": how}
    kind = types.MessageType.Info if how.well else types.MessageType.Warning
    server.window_show_message(types.ShowMessageParams(kind, casts.summary(how, whole=True)))
    return how.record


async def open_loom(server: Server, given: CommandArguments, work: CommandRun) -> dict[str, Any]:
    """Show a named loom, or the loom of a recipe's last cast."""
    if given.has("loom"):
        file = given.file("loom")
    else:
        path = recipe_path(server, given)
        how = server.casts.last.get(path)
        if not isinstance(how, casts.CastOutcome) or not how.loom:
            raise DefinitionError("no cast of it since the editor started left a loom in a file", where=str(path))
        file = Path(how.loom)
    if not file.is_file():
        raise DefinitionError("there is no such loom", where=str(file))
    return {"loom": str(file), "uri": file.as_uri(), "shown": await server.show(file.as_uri())}


async def trust(server: Server, given: CommandArguments, work: CommandRun) -> dict[str, Any]:
    """Trust a recipe in its present form; with ``revoke``, stop trusting it."""
    path = recipe_path(server, given)
    files, workspace = server.files(), server.documents.workspace(path)

    def judged() -> dict[str, Any]:
        from cantrip_acp.files import paths

        state = paths.state_dir()
        recipe = trusting.recipe_at(path, files, state)
        say = server.trusting.revoke if given.flag("revoke") else server.trusting.grant
        return say(recipe, workspace, state)

    said = await asyncio.to_thread(judged)
    server.recheck()
    return said


def recipe_path(server: Server, given: CommandArguments) -> Path:
    """The named recipe, else the only open recipe."""
    if given.has("uri"):
        return given.file()
    opened = [document.path for document in server.documents.by_uri.values() if document.recipe]
    if len(opened) == 1:
        return opened[0]
    raise DefinitionError(
        "which recipe? Name it by the argument uri: "
        + (", ".join(path.as_uri() for path in opened[:5]) if opened else "no recipe is open")
    )


def _known_intents(server: Server, path: Path) -> list[str]:
    """A recipe's intents: first the last one, then those noted in the recipe. Raises `IntentRequired` if there is none."""
    before = server.casts.intents.get(path)
    document = server.documents.at(path)
    noted = [words for _, words in lenses.noted(document.text)] if document is not None else []
    found = list(dict.fromkeys([*([before] if before is not None else []), *noted]))
    if not found:
        raise IntentRequired(
            "intent is required: give one as the argument `intent`, or note it in the recipe as a comment, "
            "`# intent: Say hello.` (INTENT-1)"
        )
    return found


def _prepare_cast(
    trusted: trusting.TrustManager, path: Path, files: Files, workspace: Path, loom_file: str | None
) -> tuple[Cantrip, Loom]:
    """Check the trust of a recipe, build its cantrip, and open its loom."""
    from cantrip_acp.files import paths
    from cantrip_acp.recipes.build.build import build, open_loom

    state = paths.state_dir()
    recipe: Recipe = trusting.recipe_at(path, files, state)
    trusted.require(recipe, workspace, state)
    cantrip = build(recipe, workspace=workspace)
    if cantrip.crystal.name == "human":
        raise DefinitionError("a human crystal answers in a terminal; use cantrip cast", where=str(path))
    return cantrip, open_loom(cantrip.loom_settings, loom_file, state)
