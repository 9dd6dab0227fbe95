"""The whole of a recipe, and its small parts."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from cantrip_acp.recipes.models.circle import Circle
from cantrip_acp.recipes.models.crystal import Crystal
from cantrip_acp.recipes.models.field_types import (
    Flag,
    Line,
    Model,
    PathText,
    Secret,
    Text,
    number,
    one_of,
    text,
    texts,
    whole,
)


class Call(Model):
    """Who the entity is and how it thinks; fixed for good."""

    noun = "call"
    system_prompt: Text = Field(default="", description="The first message of every query, unchanged.")
    system_prompt_file: PathText = Field(default="", description="A file that holds it; relative to this file.")
    temperature: Annotated[float, number(0, 2)] = 1
    top_p: Annotated[float, number(0, 1)] = 1
    max_tokens: Annotated[int, whole(1)] = Field(default=1, description="Tokens of one response.")
    seed: Annotated[int, whole(-(2**31), 2**31 - 1)] = 0
    stop: Annotated[list[str], texts("a list of texts")] = Field(
        default_factory=list, description="Texts that end a response."
    )
    tool_choice: Annotated[str, one_of(("auto", "required", "none"))] = "auto"
    require_done_tool: Flag = Field(default=False, description="Only done ends a cast; prose alone does not (LOOP-6).")
    require_done: Flag = Field(default=False, description="An older name of require_done_tool.", deprecated=True)


class Folding(Model):
    """When earlier turns are summarised in what the crystal sees."""

    noun = "folding"
    at_fraction: Annotated[float, number(0, 1, above=True)] = Field(default=0.8, description="Of the crystal's window.")
    trigger_after_turns: Annotated[int, whole(1)] = 1
    trigger_at_tokens: Annotated[int, whole(1)] = 1
    keep_turns: Annotated[int, whole(0)] = Field(default=0, description="Turns that stay as they are.")
    summarizer: Line = Field(default="", description="One of crystals; without it, a digest by rule.")


class Retry(Model):
    """How a failed query is asked again."""

    noun = "retry"
    max_retries: Annotated[int, whole(0)] = Field(default=3, description="Attempts after the first.")
    retryable_status_codes: list[Annotated[int, whole(100, 599)]] = Field(
        default_factory=list, description="In place of 429 and 5xx."
    )
    base_s: Annotated[float, number(0)] = Field(
        default=1, description="Seconds before the first retry; each next wait doubles."
    )
    max_wait_s: Annotated[float, number(0)] = Field(default=60, description="Seconds; no wait is longer.")
    max_retry_after_s: Annotated[float, number(0)] = Field(
        default=300, description="Seconds; where a provider asks for more, give up."
    )


class Loom(Model):
    """Where the turns are kept."""

    noun = "loom"
    store: Annotated[
        str,
        text(
            "memory, jsonl, sqlite:FILE or postgresql://…",
            # The second pattern makes "$" mean one thing in every dialect.
            pattern=r"^(memory$|jsonl$|sqlite:[^ \t\r\n]|postgres(ql)?://[^ \t\r\n])",
            without=r"[\r\n]",
        ),
    ] = Field(default="jsonl", description="memory, jsonl, sqlite:FILE or postgresql://…")
    fsync: Flag = Field(default=False, description="Wait for the disk after each turn.")
    snapshots: Flag = Field(
        default=False, description="Keep a code circle's state after each turn, so that a fork need not replay."
    )
    files: Flag = Field(
        default=False,
        description="Pin the workspace's files after each turn that changed them, in its git repository and outside of any "
        "branch, so that a fork can have them as they were.",
    )


class Memory(Model):
    """What an entity is told of before an intent; content, never authority."""

    noun = "memory"
    culture: Flag = Field(
        default=False,
        description="AGENTS.md, CLAUDE.md and .cantrip/culture/*.md of the session's folder, again when they change.",
    )
    sessions: Annotated[int, whole(0)] = Field(
        default=0, description="Earlier casts in this folder, at most so many, as short digests."
    )


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


class Recipe(Model):
    """A cantrip as a file: crystal, call and circle."""

    noun = "recipe"
    name: Line = Field(default="", description="What it is called; without it, the file's name.")
    description: Text = Field(default="", description="What it does, in a sentence.")
    crystal: Crystal = Field(
        default="", description="The model; without it, $CANTRIP_CRYSTAL or a provider with a key."
    )
    crystals: dict[str, Crystal] = Field(
        default_factory=dict, description="Crystals that children may be given, by name."
    )
    call: Call = Call()
    circle: Circle
    folding: Folding = Folding()
    retry: Retry = Retry()
    loom: Loom = Loom()
    memory: Memory = Memory()
    mcp_servers: list[McpServer] = Field(
        default_factory=list, description="Servers whose tools are gates beside the circle's."
    )
