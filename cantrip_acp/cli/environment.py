"""The environment variables that Cantrip reads, for `cantrip doctor` and for the page of reference.

Each is read where it is used. A test compares this table with the names in the code.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from cantrip_acp.types.checked_values import nearest

OURS = ("CANTRIP_", "YOOL_")
INSIDE = (
    "CANTRIP_CONTEXT",
    "CANTRIP_ENGINE_CALL",
    "CANTRIP_PROCESS",
    "CANTRIP_INPUT",
    "CANTRIP_SANDBOX",
    "CANTRIP_CELL",
)
"""The variables that Cantrip sets for the commands that it runs, because a command may run `cantrip` itself."""


@dataclass(frozen=True, slots=True)
class Variables:
    """Environment variables that are described together. ``meaning`` is Markdown, with links from the folder docs.
    ``dotenv``: whether they may also be in the file ``.env`` of the configuration folder."""

    names: tuple[str, ...]
    meaning: str
    dotenv: bool = False


MODELS = (
    Variables(
        ("CANTRIP_CRYSTAL",),
        "the crystal if a recipe names none: `anthropic:claude-sonnet-5-5`, `ollama:qwen3`, `scripted:FILE`",
        dotenv=True,
    ),
    Variables(("ANTHROPIC_API_KEY",), "Anthropic's key", dotenv=True),
    Variables(
        ("ANTHROPIC_AUTH_TOKEN",),
        "used if `ANTHROPIC_API_KEY` is not set; sent as `Authorization: Bearer`",
        dotenv=True,
    ),
    Variables(("OPENAI_API_KEY",), "OpenAI's key", dotenv=True),
    Variables(("GEMINI_API_KEY", "GOOGLE_API_KEY"), "Google's key; the first of the two that is set", dotenv=True),
    Variables(("OPENROUTER_API_KEY",), "OpenRouter's key", dotenv=True),
    Variables(
        ("ANTHROPIC_BASE_URL", "OPENAI_BASE_URL", "GOOGLE_GEMINI_BASE_URL"),
        "another address for that provider. It gets that provider's key",
        dotenv=True,
    ),
    Variables(
        ("ANTHROPIC_CUSTOM_HEADERS", "OPENAI_CUSTOM_HEADERS"),
        "headers that the official SDK adds; sent to the provider, or to the address that the variable above names",
    ),
    Variables(("OPENAI_ORG_ID", "OPENAI_PROJECT_ID"), "read by the official SDK; sent with OpenAI's key"),
    Variables(
        ("OLLAMA_HOST", "LMSTUDIO_BASE_URL", "VLLM_BASE_URL", "LLAMACPP_BASE_URL"),
        "where a server on your machine listens, if not at `127.0.0.1` and its usual port (11434, 1234, 8000, 8080)",
        dotenv=True,
    ),
    Variables(
        ("OLLAMA_API_KEY", "LM_API_TOKEN", "VLLM_API_KEY", "LLAMA_API_KEY"),
        "a key for it, if it needs one",
        dotenv=True,
    ),
    Variables(
        ("CANTRIP_BASE_URL",), "a gateway that replaces the address of every provider and of every recipe", dotenv=True
    ),
    Variables(
        ("CANTRIP_API_KEY",), "the gateway's key. No provider's key is ever sent to `CANTRIP_BASE_URL`", dotenv=True
    ),
    Variables(
        ("CANTRIP_HEADERS",),
        "headers for the gateway and for the addresses of providers: one `Name: value` for each line, or a JSON object",
        dotenv=True,
    ),
)
FOLDERS = (
    Variables(
        ("CANTRIP_STATE_DIR",),
        "the folder for looms and trust; else `$XDG_STATE_HOME/cantrip`, else `~/.local/state/cantrip`",
    ),
    Variables(
        ("CANTRIP_CACHE_DIR",),
        "the folder for weights of models and for downloaded [MCP servers](mcp.md); else "
        "`$XDG_CACHE_HOME/cantrip`, else `~/.cache/cantrip`",
    ),
    Variables(
        ("CANTRIP_WEIGHTS",),
        "the label of the version of the weights, for crystals without the key `weights`; each turn records it",
    ),
    Variables(
        ("CANTRIP_SUBSTRATE",),
        "where the [substrate](substrate.md) is: a SQLite file or `postgresql://…`; else `substrate.db` in "
        "the state folder. `off`: nothing is recorded, and sessions read no documents from it",
    ),
    Variables(
        ("CANTRIP_USER",),
        "your name among people who share one role of the PostgreSQL database of the substrate, so that each has a "
        "[culture of their own](team-database.md#what-sessions-know)",
    ),
    Variables(
        ("CANTRIP_TUPLE_SPACE",),
        "the [tuple-space](tuples.md) of `cast-batch`, `worker`, `tuple` and `mcp`, if `--space` names none: "
        "a SQLite file or `postgresql://…`",
    ),
    Variables(
        ("CANTRIP_PROJECT",),
        "a name for the [project](tuples.md#the-same-work), in place of the git remote or of `.cantrip/project-id`",
    ),
    Variables(
        ("CANTRIP_EXAMPLE", "CANTRIP_PROMPT", "CANTRIP_LOOMS"),
        "the example, the question and a folder for looms of the adapter for [agent-lightning](training.md#another-trainer-trains)",
    ),
    Variables(
        ("CANTRIP_NO_CACHE",),
        "if set, every call of a gate and every step of a tuple runs, as with `--no-cache`: no [result](receipts.md) and no "
        "[answer](tuples.md#reused-answers) is reused",
    ),
    Variables(("YOOL_TUPLE_QUEUE_MAXSIZE",), "the most waiting tuples of a lane; 8192 by default"),
    Variables(
        ("YOOL_TUPLE_LANE_CONCURRENCY",),
        "the default of `--concurrency`; 32 for `cantrip worker`, 8 for `cantrip cast-batch` and `cantrip mcp`",
    ),
    Variables(
        ("YOOL_TUPLE_MAX_LANE_CONCURRENCY", "YOOL_MAX_LANE_CONCURRENCY"),
        "the most that `--concurrency` may be; 64 by default",
    ),
    Variables(
        ("YOOL_TUPLE_COMPRESSION_THRESHOLD",),
        "how many tuples of the last level of a fan-out are in memory at the same time; 1024 by default",
    ),
    Variables(
        ("YOOL_TUPLE_CPU_QUOTA_PCT",),
        "what each cast of a worker may use of one processor, in per cent; 95 by default. A tuple's "
        "`cpu_quota_pct` can only lower it",
    ),
    Variables(
        ("YOOL_TUPLE_FREE_MB",),
        "with less free space in MB on the disk of the state folder, a worker takes nothing; 1000 by default",
    ),
    Variables(
        ("YOOL_TUPLE_HOT_DAYS", "YOOL_TUPLE_WARM_DAYS", "YOOL_TUPLE_MAX_MB"),
        "how long `cantrip gc` keeps large results of a tuple-space: 30 days, 365 days and 5000 MB by default "
        "([tiers](tuples.md#what-is-kept-and-for-how-long))",
    ),
    Variables(
        ("CANTRIP_CONFIG_DIR",),
        "your recipes, `.env`, `models.toml`, `settings.toml`; else `$XDG_CONFIG_HOME/cantrip`, else "
        "`~/.config/cantrip`",
    ),
    Variables(
        ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR"), "the user's folders, as other programs know them"
    ),
    Variables(("CANTRIP_DEBUG",), "`1`: show the traceback of an unexpected error"),
    Variables(("NO_COLOR", "FORCE_COLOR", "TERM"), "colour in the terminal"),
)
GATES = (
    Variables(
        ("CANTRIP_FETCH_PRIVATE_HOSTS",),
        "hosts on private addresses that the gate `fetch` may reach, with commas between them",
    ),
    Variables(
        ("CANTRIP_MIN_FREE_MB",),
        "how many MiB of a disk a turn must leave free; by default 1 GB or 5 % of the disk, whichever is "
        "less; `0`: no check",
    ),
    Variables(
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_TRACES_EXPORTER"),
        "send [spans](traces.md) there",
    ),
    Variables(
        (
            "OTEL_EXPORTER_OTLP_PROTOCOL",
            "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
            "OTEL_SERVICE_NAME",
            "OTEL_RESOURCE_ATTRIBUTES",
            "OTEL_SDK_DISABLED",
        ),
        "OpenTelemetry's own settings",
    ),
    Variables(("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT",), "`true`: spans contain messages"),
    Variables(
        ("TRACEPARENT", "TRACESTATE"),
        "the trace to which the tuples of `cast-batch` and `tuple out` [belong](traces.md#batches-and-workers)",
    ),
    Variables(
        ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"),
        "the proxy for requests to providers; never used for addresses of this machine",
    ),
)


def known() -> Iterator[str]:
    """The names of all variables."""
    for each in (*MODELS, *FOLDERS, *GATES):
        yield from each.names


def unknown(environment: Mapping[str, str]) -> Iterator[str]:
    """A warning for each variable with a name like ours that nothing reads."""
    names = [name for name in known() if name.startswith(OURS)]
    for name in sorted(environment):
        if name.startswith(OURS) and name not in (*names, *INSIDE):
            yield f"{name} is set, but nothing reads it{nearest(name, names)}"
