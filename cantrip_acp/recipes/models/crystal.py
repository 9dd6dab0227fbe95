"""Crystals: a provider's model, you, or a script with the responses to play (also in a script file)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from cantrip_acp.recipes.models.field_types import (
    Arguments,
    Flag,
    Kind,
    Line,
    MaybeText,
    Model,
    PathText,
    Secret,
    Text,
    number,
    one_of,
    or_unknown,
    text,
    unknown,
    whole,
    wrong,
)
from cantrip_acp.recipes.parse import names

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""How much a model thinks before it answers, in words that every family's are mapped to."""


VERBOSITIES = ("low", "medium", "high")


class Usage(Model):
    """What a scripted response says that it cost. null is a number that its provider does not report."""

    noun = "usage"
    prompt_tokens: Annotated[int | None, or_unknown(whole(0))] = 0
    completion_tokens: Annotated[int | None, or_unknown(whole(0))] = 0
    cached_tokens: Annotated[int | None, or_unknown(whole(0))] = 0
    cache_write_tokens: Annotated[int | None, or_unknown(whole(0))] = 0
    reasoning_tokens: Annotated[int | None, or_unknown(whole(0))] = 0
    cost: Annotated[float | None, or_unknown(number(0))] = Field(
        default=None, description="US dollars; not known where it is left out."
    )


class ScriptedToolCall(Model):
    noun = "tool call"
    id: Text = Field(default="", description="Made up where it is left out.")
    gate: Line
    args: Arguments = Field(
        default_factory=dict, description="A mapping; a text is sent as it stands, valid JSON or not."
    )


class ScriptedError(Model):
    """A query that fails."""

    noun = "error"
    status: Annotated[int, whole(100, 599)] = Field(default=500, description="The HTTP status.")
    message: Text = ""
    retry_after: Annotated[float, number(0)] = Field(default=0, description="Seconds.")
    code: Text = Field(default="", description="context_length_exceeded: the messages do not fit.")


class ScriptedToolResult(Model):
    noun = "tool result"
    tool_call_id: Text
    content: Text = ""


class ScriptedResponse(Model):
    """One response of a scripted crystal; an empty one plays a crystal that says nothing."""

    noun = "response"
    content: MaybeText = None
    thinking: MaybeText = None
    tool_calls: list[ScriptedToolCall] = Field(default_factory=list)
    code: Text = Field(default="", description="Python for the code medium.")
    bash: Text = Field(default="", description="A command for the bash medium.")
    usage: Usage = Usage()
    error: ScriptedError = ScriptedError()
    delay_ms: Annotated[float, number(0)] = Field(default=0, description="Milliseconds to wait before each piece.")
    chunks: list[Text] = Field(default_factory=list, description="The text in pieces, as it streams.")
    when: Text = Field(default="", description="Use it only while the intent holds this text.")
    repeat: Flag = Field(default=False, description="Never used up.")
    tool_result: ScriptedToolResult = Field(
        default=ScriptedToolResult(tool_call_id=""), description="A tool result that the provider claims to carry."
    )


class ScriptMapping(Model):
    """A script with children of its own."""

    noun = "script"
    responses: list[ScriptedResponse]
    children: list[Script] = Field(default_factory=list, description="Scripts of child entities, by order of birth.")
    usage: Usage = Field(default=Usage(), description="Of every response that gives none.")


def _script_kind(value: Any) -> str:
    return "<mapping>" if isinstance(value, dict | ScriptMapping) else "<list>"


Script = Annotated[
    Annotated[list[ScriptedResponse], Tag("<list>")] | Annotated[ScriptMapping, Tag("<mapping>")],
    Discriminator(_script_kind),
]
"""What a script file holds, and what ``children`` lists."""


class LongPrice(Model):
    """US dollars for a million tokens of a query with a long prompt."""

    noun = "long price"
    input: Annotated[float, number(0)] = 0
    output: Annotated[float, number(0)] = 0
    cached: Annotated[float, number(0)] = Field(default=0, description="Read from a cache; without it, as input.")
    cache_write: Annotated[float, number(0)] = Field(default=0, description="Written to a cache; without it, as input.")


class Price(LongPrice):
    """US dollars for a million tokens."""

    noun = "price"
    above: Annotated[int, whole(1)] = Field(
        default=1, description="Tokens of a prompt beyond which a query costs what long says."
    )
    long: LongPrice = LongPrice()


class ScriptedCrystal(Model):
    """Plays responses in order, in place of a paid model."""

    noun = "crystal"
    provider: Literal["scripted"]
    responses: list[ScriptedResponse] = Field(default_factory=list)
    script: PathText = Field(default="", description="A file of responses; relative to this file.")
    children: list[Script] = Field(default_factory=list, description="Scripts of child entities, by order of birth.")
    usage: Usage = Field(default=Usage(), description="Of every response that gives none.")
    model: Line = Field(default="scripted", description="The name that it reports.")
    context_window: Annotated[int, whole(1)] = Field(default=1, description="Tokens; without it, not limited.")
    tools: Annotated[str, one_of(("native", "text"), "tools")] = Field(
        default="native",
        description="How it calls gates: by tools, or in its text, as a model does that takes no tools.",
    )


class ModelCrystal(Model):
    """A provider's model."""

    noun = "crystal"
    provider: Annotated[str, one_of(names.MODEL_PROVIDERS, "provider", known=names.provider_names())]
    model: Line
    base_url: Annotated[
        str, text("an address that begins with http:// or https://", pattern=r"^https?://[^ \t\r\n]")
    ] = Field(default="", description="Where the provider is asked, in place of its own address.")
    api_key_env: Annotated[
        str, text("the name of an environment variable", pattern=r"^[A-Za-z_]", without=r"[^A-Za-z0-9_]")
    ] = Field(default="", description="The environment variable that holds the key.")
    headers: dict[str, Secret] = Field(default_factory=dict, description="Sent with each request.")
    context_window: Annotated[int, whole(1)] = Field(
        default=1, description="Tokens, in place of what is known of the model."
    )
    max_input: Annotated[int, whole(1)] = Field(
        default=1, description="Tokens of a prompt, where the model takes fewer than its window holds."
    )
    images: Flag = Field(default=False, description="Whether it takes images, in place of what is known of the model.")
    price: Price = Field(default=Price(), description="In place of what is known of the model.")
    timeout_s: Annotated[float, number(1)] = Field(
        default=300, description="Seconds without a byte of an answer after which it is taken for dead."
    )
    verbosity: Annotated[str, one_of(VERBOSITIES, "verbosity")] = Field(
        default="medium", description="How long the answers of OpenAI's models are (GPT-5 and later)."
    )
    effort: Annotated[str, one_of(EFFORTS, "effort")] = Field(
        default="medium", description="How much the model thinks; without it, as the provider has it."
    )
    thinking_budget: Annotated[int, whole(-1)] = Field(
        default=0,
        description="Tokens to think with, of models that take a number: 0 for none, -1 for as many as it likes.",
    )
    api: Annotated[str, one_of(("responses", "chat"), "api")] = Field(
        default="responses", description="Which of OpenAI's two interfaces is used; other providers have one."
    )
    tools: Annotated[str, one_of(("auto", "native", "text"), "tools")] = Field(
        default="auto",
        description="How a model of one's own server calls gates: by tools, or in its text if it takes none. With text, a message "
        "with exactly one code block of the medium's tag is a program.",
    )
    summary: Annotated[str, one_of(("auto", "concise", "detailed", "none"), "summary")] = Field(
        default="auto", description="How OpenAI sums up what its model thought."
    )
    logprobs: Flag = Field(
        default=False,
        description="Keep each token's log-probability (and its id, where the server tells it) in the loom, for training.",
    )
    routing: dict[str, Any] = Field(
        default_factory=dict,
        description="OpenRouter's `provider`: which of a model's providers are asked, and in which order.",
    )


class HumanCrystal(Model):
    """You are the model, in the terminal."""

    noun = "crystal"
    provider: Literal["human"]


class AddedCrystal(Model):
    """A crystal that another package adds; its other keys are that package's."""

    model_config = ConfigDict(extra="allow")
    noun = "crystal"
    provider: Annotated[str, one_of(names.added_crystals())]


def _crystal_text(value: Any) -> str:
    if value is None:
        raise PydanticCustomError(
            "no-crystal", "cantrip requires a crystal: name one, or leave the key out to take $CANTRIP_CRYSTAL"
        )
    if not isinstance(value, str):
        raise wrong("a text such as anthropic:claude-sonnet-5-5, or a mapping with a provider", value)
    if value == "human":
        return value
    provider, colon, rest = value.partition(":")
    if provider not in (*names.MODEL_PROVIDERS, "scripted", *names.added_crystals()):
        raise unknown(provider, names.provider_names(), "provider ")
    if not colon or not rest[:1].strip(" \t\r\n"):
        raise wrong(f"{provider}:{'FILE' if provider == 'scripted' else 'MODEL'}", value, "model-of", provider)
    return value


def _crystal_text_schema() -> dict[str, Any]:
    words = "|".join((*names.MODEL_PROVIDERS, "scripted", *names.added_crystals()))
    return {
        "anyOf": [{"const": "human"}, {"type": "string", "pattern": f"^({words}):[^ \\t\\r\\n]"}],
        "examples": ["anthropic:claude-sonnet-5-5", "ollama:qwen3", "scripted:session.yaml"],
    }


def _crystal_kind(value: Any) -> str:
    if not isinstance(value, dict):
        return "<text>"
    provider = value.get("provider")
    if provider == "scripted":
        return "<scripted>"
    if provider == "human":
        return "<human>"
    return "<added>" if isinstance(provider, str) and provider in names.added_crystals() else "<model>"


CrystalText = Annotated[str, Kind(_crystal_text, _crystal_text_schema())]
Crystal = Annotated[
    Annotated[CrystalText, Tag("<text>")]
    | Annotated[ScriptedCrystal, Tag("<scripted>")]
    | Annotated[ModelCrystal, Tag("<model>")]
    | Annotated[HumanCrystal, Tag("<human>")]
    | Annotated[AddedCrystal, Tag("<added>")],
    Discriminator(_crystal_kind),
]
