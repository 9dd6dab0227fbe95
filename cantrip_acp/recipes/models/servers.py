"""MCP servers, whose tools are gates beside the circle's own."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from cantrip_acp.recipes.models.base import Model
from cantrip_acp.recipes.models.field_types import Flag, Line, Secret, number, one_of, text, texts

_VARIABLE = text("the name of an environment variable", pattern=r"^[A-Za-z_]", without=r"[^A-Za-z0-9_]")


class McpServer(Model):
    """A server that speaks the Model Context Protocol: a program (``command``) or an address (``url``)."""

    noun = "mcp_servers"
    name: Line = Field(description="What it is called; its gates are NAME.TOOL.")
    command: Line = Field(default="", description="The program of a server on stdio, started in the sandbox.")
    args: Annotated[list[str], texts("a list of texts")] = Field(default_factory=list)
    env: dict[str, Secret] = Field(default_factory=dict, description="Variables that the program gets.")
    env_names: list[Annotated[str, _VARIABLE]] = Field(
        default_factory=list, description="Variables that it gets from yours."
    )
    url: Annotated[str, text("an address that begins with http:// or https://", pattern=r"^https?://[^ \t\r\n]")] = (
        Field(default="", description="Where a server is reached over HTTP.")
    )
    transport: Annotated[str, one_of(("http", "sse"), "transport")] = Field(
        default="http", description="Of a url: streamable HTTP, or the older server-sent events."
    )
    headers: dict[str, Secret] = Field(default_factory=dict, description="Sent with each request.")
    header_env: dict[str, Annotated[str, _VARIABLE]] = Field(
        default_factory=dict, description="Headers whose values are in variables of yours."
    )
    sandbox: Flag = Field(default=True, description="Whether its program runs in the circle's sandbox, or as you.")
    trusted: Flag = Field(default=False, description="Whether it is believed which of its tools only read.")
    required: Flag = Field(default=False, description="Whether a cast fails without it.")
    start_s: Annotated[float, number(0, above=True)] = Field(default=15, description="Seconds that it has to start in.")
    call_s: Annotated[float, number(0, above=True)] = Field(default=120, description="Seconds that a call may take.")
