"""What `Cantrip` needs of recipes: the crystal of a text, MCP servers as sources of gates, and the cantrip of a recipe.

`core.cantrip` finds this module by its name.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cantrip_acp.core.errors import DefinitionError
from cantrip_acp.crystals.contract import Crystal

if TYPE_CHECKING:
    from cantrip_acp.core.cantrip import Cantrip
    from cantrip_acp.gates.contract import GateSource
    from cantrip_acp.gates.mcp.declaration import McpServer
    from cantrip_acp.loom.loom import Loom


def crystal(text: str, where: str, cost_limited: bool = False) -> Crystal:
    """The crystal of a text such as ``ollama:qwen3``. ``where`` is the argument that has the text, for errors."""
    from cantrip_acp.recipes.build import crystals

    if not text.strip():
        raise DefinitionError("is empty; write PROVIDER:MODEL, such as ollama:qwen3", where=where)
    return crystals.crystal_named(text, None, where, cost_limited=cost_limited)


def sources(given: Sequence[GateSource | McpServer]) -> Sequence[GateSource]:
    """The sources with all MCP servers as one of them, so that they start at the same time."""
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
