"""MCP servers of a recipe as a source of gates, with values from the environment."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from cantrip_acp.core.errors import DefinitionError
from cantrip_acp.gates.mcp.servers import McpServer, McpServers

if TYPE_CHECKING:
    from cantrip_acp.recipes.parse.source_map import KeyPath
    from cantrip_acp.recipes.recipe import Recipe


def sources(recipe: Recipe) -> list[McpServers]:
    """The gate sources of the recipe; empty where it names no server.

    Raises `RecipeError` with the position where a variable is not set or a value cannot be used.
    """
    servers = [_server(recipe, place, data) for place, data in enumerate(recipe.data.get("mcp_servers", ()))]
    return [McpServers(servers)] if servers else []


def _server(recipe: Recipe, place: int, data: dict[str, Any]) -> McpServer:
    at: KeyPath = ("mcp_servers", place)
    env = dict(data.get("env", {}))
    for index, name in enumerate(data.get("env_names", ())):
        env[name] = _variable(recipe, name, (*at, "env_names", index))
    headers = dict(data.get("headers", {}))
    for header, name in data.get("header_env", {}).items():
        headers[header] = _variable(recipe, name, (*at, "header_env", header))
    given: dict[str, Any] = {key: data[key] for key in ("trusted", "required", "start_s", "call_s") if key in data}
    if "url" in data:
        given |= {"transport": data.get("transport", "http"), "url": data["url"], "headers": headers}
    else:
        given |= {"command": data["command"], "args": tuple(data.get("args", ())), "env": env}
        given["sandboxed"] = data.get("sandbox", True)
    try:
        return McpServer(name=data["name"], **given)
    except DefinitionError as error:
        raise recipe.error(at, str(error)) from None


def _variable(recipe: Recipe, name: str, place: KeyPath) -> str:
    value = os.environ.get(name)
    if value is None:
        raise recipe.error(place, f"the environment variable {name} is not set")
    return value
