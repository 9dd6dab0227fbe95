"""Models of a whole recipe, and of its call, folding, retry, loom, memory and MCP servers."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from cantrip_acp.recipes.models.circle import Circle
from cantrip_acp.recipes.models.crystal import Crystal
from cantrip_acp.recipes.models.field_types import (
    Flag,
    Kind,
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
    wrong,
)


class Call(Model):
    """The identity of the entity and the settings of its queries. They never change during its life."""

    noun = "call"
    system_prompt: Text = Field(default="", description="The first message of every query, unchanged.")
    system_prompt_file: PathText = Field(
        default="", description="The path of a file with the system prompt, relative to the recipe."
    )
    temperature: Annotated[float, number(0, 2)] = 1
    top_p: Annotated[float, number(0, 1)] = 1
    top_k: Annotated[int, whole(1)] = 1
    min_p: Annotated[float, number(0, 1)] = 0
    max_tokens: Annotated[int, whole(1)] = Field(default=1, description="Maximum tokens of one response.")
    seed: Annotated[int, whole(-(2**31), 2**31 - 1)] = 0
    stop: Annotated[list[str], texts("a list of texts")] = Field(
        default_factory=list, description="Texts that end a response."
    )
    tool_choice: Annotated[str, one_of(("auto", "required", "none"))] = "auto"
    require_done_tool: Flag = Field(
        default=False, description="Only the gate done ends a cast; a response without a gate call does not (LOOP-6)."
    )
    require_done: Flag = Field(default=False, description="An older name of require_done_tool.", deprecated=True)


class Folding(Model):
    """When earlier turns are replaced by a summary in the messages to the crystal."""

    noun = "folding"
    at_fraction: Annotated[float, number(0, 1, above=True)] = Field(
        default=0.8, description="Fold when the messages fill this part of the context window."
    )
    trigger_after_turns: Annotated[int, whole(1)] = 1
    trigger_at_tokens: Annotated[int, whole(1)] = 1
    keep_turns: Annotated[int, whole(0)] = Field(
        default=0, description="Number of last turns that are not folded. The very last one never is."
    )
    summarizer: Line = Field(
        default="",
        description="The name of one of crystals, which writes the summary. Without this key, it is made by rule.",
    )


class Retry(Model):
    """How failed queries are repeated."""

    noun = "retry"
    max_retries: Annotated[int, whole(0)] = Field(default=3, description="Maximum attempts after the first one.")
    retryable_status_codes: list[Annotated[int, whole(100, 599)]] = Field(
        default_factory=list, description="The HTTP statuses after which a query is repeated, in place of 429 and 5xx."
    )
    base_s: Annotated[float, number(0)] = Field(
        default=1, description="Seconds before the first retry. Each further wait is twice as long."
    )
    max_wait_s: Annotated[float, number(0)] = Field(default=60, description="Maximum seconds between two attempts.")
    max_retry_after_s: Annotated[float, number(0)] = Field(
        default=300,
        description="Maximum seconds that a provider may ask to wait. If it asks for more, the query fails.",
    )


class Loom(Model):
    """Where and how the turns are recorded."""

    noun = "loom"
    store: Annotated[
        str,
        text(
            "memory, jsonl, sqlite:FILE or postgresql://…",
            # The second pattern is needed because "$" has different meanings in different dialects.
            pattern=r"^(memory$|jsonl$|sqlite:[^ \t\r\n]|postgres(ql)?://[^ \t\r\n])",
            without=r"[\r\n]",
        ),
    ] = Field(default="jsonl", description="memory, jsonl, sqlite:FILE or postgresql://…")
    fsync: Flag = Field(default=False, description="Wait for the disk after each turn.")
    snapshots: Flag = Field(
        default=False,
        description="Save the variables of a code circle after each turn, so that a fork can restore them without a replay.",
    )
    files: Flag = Field(
        default=True,
        description="Keep the workspace's files of each turn that changed some, in the state folder, so that they can be restored "
        "(/undo, cantrip loom restore).",
    )


class Memory(Model):
    """What an entity knows, from the substrate. It is content; it does not give the entity permissions."""

    noun = "memory"
    culture: Flag = Field(
        default=False,
        description="Whether the entity gets AGENTS.md, CLAUDE.md and .cantrip/culture/*.md of the session's folder, and gets "
        "them again when they change.",
    )
    sessions: Annotated[int, whole(0)] = Field(
        default=0,
        description="Maximum number of earlier sessions in this folder that the entity gets as short summaries.",
    )
    placement: Annotated[str, one_of(("system", "history"))] = Field(
        default="system",
        description="Where the entity reads what it knows: in the system prompt, or as a message of the user before all others.",
    )
    max_tokens: Annotated[int, whole(500)] = Field(
        default=16_000,
        description="Maximum size of what the entity knows, at least 500. What has no room is named at the end.",
    )
    programs: Flag = Field(
        default=False,
        description="Whether the entity has the programs of the substrate as gates: scripts of skills, and programs that you "
        "pinned. They run in the sandbox.",
    )
    record: Flag = Field(default=True, description="Whether sessions are recorded in the substrate.")
    batches: Flag = Field(
        default=False,
        description="Whether casts of `cast-batch` and of workers read earlier sessions and are recorded as sessions, too. "
        "Without it, samples are independent of each other.",
    )


_VARIABLE = text("the name of an environment variable", pattern=r"^[A-Za-z_]", without=r"[^A-Za-z0-9_]")


class McpServer(Model):
    """A server that speaks the Model Context Protocol: a program (``command``) or an address (``url``)."""

    noun = "mcp_servers"
    name: Line = Field(description="The name of the server. Its gates are called NAME.TOOL.")
    command: Line = Field(default="", description="The program of a server on stdio. It runs in the sandbox.")
    args: Annotated[list[str], texts("a list of texts")] = Field(default_factory=list)
    env: dict[str, Secret] = Field(default_factory=dict, description="Environment variables for the program.")
    env_names: list[Annotated[str, _VARIABLE]] = Field(
        default_factory=list, description="Names of your environment variables that the program gets."
    )
    url: Annotated[str, text("an address that begins with http:// or https://", pattern=r"^https?://[^ \t\r\n]")] = (
        Field(default="", description="The address of a server on HTTP.")
    )
    transport: Annotated[str, one_of(("http", "sse"), "transport")] = Field(
        default="http", description="The transport for url: streamable HTTP, or the older server-sent events."
    )
    headers: dict[str, Secret] = Field(default_factory=dict, description="Headers that are sent with each request.")
    header_env: dict[str, Annotated[str, _VARIABLE]] = Field(
        default_factory=dict,
        description="Headers whose values come from your environment variables (header to variable).",
    )
    sandbox: Flag = Field(
        default=True,
        description="Whether the program runs in the circle's sandbox. If false, it runs with your rights.",
    )
    trusted: Flag = Field(
        default=False, description="Whether to believe the server when it says which of its tools only read."
    )
    required: Flag = Field(default=False, description="Whether a cast fails if the server cannot be used.")
    start_s: Annotated[float, number(0, above=True)] = Field(default=15, description="Maximum seconds for the start.")
    call_s: Annotated[float, number(0, above=True)] = Field(default=120, description="Maximum seconds for one call.")


def _result_schema(value: Any) -> Any:
    if isinstance(value, dict) or (isinstance(value, str) and value.strip() and "\0" not in value):
        return value
    raise wrong("a JSON Schema (a mapping), or the path of a file with one", value)


_TYPES = ["object", "array", "string", "number", "integer", "boolean", "null"]
ResultSchema = Annotated[
    Any,
    Kind(
        _result_schema,
        {
            "anyOf": [
                {"type": "string", "pattern": "[^ \\t\\r\\n]", "not": {"pattern": "\\x00"}},
                {
                    "type": "object",
                    "properties": {
                        "type": {"anyOf": [{"enum": _TYPES}, {"type": "array", "items": {"enum": _TYPES}}]},
                        "title": {"type": "string"},
                        "properties": {"type": "object"},
                        "required": {"type": "array", "items": {"type": "string"}},
                        "enum": {"type": "array"},
                        "$defs": {"type": "object"},
                    },
                },
            ]
        },
    ),
]


class Recipe(Model):
    """A cantrip as a file: crystal, call and circle."""

    noun = "recipe"
    name: Line = Field(default="", description="The name of the recipe. Without this key, the name of the file.")
    description: Text = Field(default="", description="One sentence that says what the recipe does.")
    crystal: Crystal = Field(
        default="", description="The model. Without this key, $CANTRIP_CRYSTAL, else a provider with a key."
    )
    crystals: dict[str, Crystal] = Field(
        default_factory=dict, description="Crystals that child entities may use, by name."
    )
    call: Call = Call()
    circle: Circle
    result_schema: ResultSchema = Field(
        default="",
        description="The JSON Schema of the answer, or the path of a file with it (JSON or YAML), relative to the recipe. An "
        "answer that does not fit is an error that the entity reads, and only the gate done ends a cast. References may only "
        "name its own $defs.",
    )
    inputs: list[Line] = Field(
        default_factory=list,
        description="The files of the workspace on which a result depends, as patterns relative to it (`src/**`). A batch casts "
        "an intent again when one of them has changed. Ignored files do not count. Without this key, all files that are not "
        "ignored count, if the entity can read them; an empty list means none.",
    )
    folding: Folding = Folding()
    retry: Retry = Retry()
    loom: Loom = Loom()
    memory: Memory = Memory()
    mcp_servers: list[McpServer] = Field(
        default_factory=list, description="MCP servers whose tools become gates of the circle."
    )
