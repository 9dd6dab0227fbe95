"""What `Cantrip` needs of recipes: crystals of texts and mappings, MCP servers as sources of gates, and the cantrip of a recipe.

`core.cantrip` finds this module by its name.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cantrip_acp.crystals.contract import Crystal
from cantrip_acp.types.errors import DefinitionError

if TYPE_CHECKING:
    from cantrip_acp.core.cantrip import Cantrip
    from cantrip_acp.gates.contract import GateSource
    from cantrip_acp.gates.mcp.declaration import McpServer
    from cantrip_acp.loom.loom import Loom


def crystal(given: str | Mapping[str, Any], where: str, cost_limited: bool = False) -> Crystal:
    """The crystal of a text such as ``ollama:qwen3``, or of a mapping as a recipe has it.

    ``where`` is the argument, for errors. Paths are relative to the folder in which the program started.
    """
    from cantrip_acp.recipes.build import crystals

    if isinstance(given, str):
        if not given.strip():
            raise DefinitionError("is empty; write PROVIDER:MODEL, such as ollama:qwen3", where=where)
        return crystals.crystal_named(given, None, where, cost_limited=cost_limited)
    from cantrip_acp.recipes.build.crystal_factory import FactoryContext, options_of
    from cantrip_acp.recipes.build.python_files import Files
    from cantrip_acp.recipes.parse import validation
    from cantrip_acp.recipes.parse.problem_positions import KeyPath, dotted

    def error(path: KeyPath, message: str) -> DefinitionError:
        return DefinitionError(message, where=f"{where}.{dotted(path)}" if path else where)

    data = validation.crystal(dict(given), error)
    return crystals.make_crystal(options_of(data), FactoryContext(Path.cwd(), Files(), None, error, cost_limited))


def model(name: str, options: Mapping[str, Any], where: str, cost_limited: bool = False) -> Crystal:
    """The crystal of the argument ``model`` and of the options beside it, such as ``base_url`` and ``price``.

    A name without a provider is that of a model at ``base_url``.
    """
    from cantrip_acp.recipes.build.crystal_factory import BUILT_IN, available, options_of

    if not isinstance(name, str) or not name.strip():
        raise DefinitionError('must be a name such as "openai:gpt-4o" or "ollama:qwen3"', where=f"{where}.model")
    provider = name.partition(":")[0]
    known = provider in BUILT_IN or provider in available()
    if "base_url" in options and not known:
        return crystal({"provider": "local", "model": name, **options}, where, cost_limited)
    if not options or not known:
        return crystal(name, f"{where}.model", cost_limited)
    return crystal({**_complete(options_of(name)), **options}, where, cost_limited)


def _complete(options: dict[str, Any]) -> dict[str, Any]:
    """Add the default model if only the provider is named."""
    if options.get("model") == "":
        from cantrip_acp.crystals.catalog import lookup

        options["model"] = lookup.default(options["provider"]) or ""
    return options


def sources(given: Sequence[GateSource | McpServer]) -> Sequence[GateSource]:
    """Join all MCP servers to one source, so that they start at the same time."""
    from cantrip_acp.gates.mcp.declaration import McpServer
    from cantrip_acp.gates.mcp.servers import McpServers

    servers = [each for each in given if isinstance(each, McpServer)]
    others = [each for each in given if not isinstance(each, McpServer)]
    return (*others, McpServers(servers)) if servers else others


def load(
    name_or_path: str | os.PathLike[str], workspace: str | os.PathLike[str], crystal: Crystal | None, loom: Loom | None
) -> Cantrip:
    """Build the cantrip of a recipe. A file that the caller names is trusted; a name is checked as on the command line."""
    from cantrip_acp.files import paths
    from cantrip_acp.recipes import recipe, trust
    from cantrip_acp.recipes.build.build import build

    folder, state = Path(workspace).resolve(), paths.state_dir()
    found = recipe.load(name_or_path, folder, state_dir=state)
    if not recipe.is_path(name_or_path):
        trust.require(found, folder, state)
    return build(found, workspace=folder, loom=loom, crystal=crystal)
