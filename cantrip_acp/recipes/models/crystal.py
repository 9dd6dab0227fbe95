"""Models of a recipe's crystal: a provider's model, a human, or a script with responses (also as a script file)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from cantrip_acp.crystals.embedded import weights
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
"""How much a model thinks before it answers. Each provider's own levels are mapped to these."""


VERBOSITIES = ("low", "medium", "high")


class Usage(Model):
    """The usage that a scripted response reports. null means that the provider does not report the number."""

    noun = "usage"
    prompt_tokens: Annotated[int | None, or_unknown(whole(0))] = 0
    completion_tokens: Annotated[int | None, or_unknown(whole(0))] = 0
    cached_tokens: Annotated[int | None, or_unknown(whole(0))] = 0
    cache_write_tokens: Annotated[int | None, or_unknown(whole(0))] = 0
    reasoning_tokens: Annotated[int | None, or_unknown(whole(0))] = 0
    cost: Annotated[float | None, or_unknown(number(0))] = Field(
        default=None, description="US dollars. Unknown if the key is omitted."
    )


class ScriptedToolCall(Model):
    noun = "tool call"
    id: Text = Field(default="", description="The id of the call. Generated if the key is omitted.")
    gate: Line
    args: Arguments = Field(
        default_factory=dict,
        description="The arguments as a mapping. A text is sent unchanged, even if it is not valid JSON.",
    )


class ScriptedError(Model):
    """A query that fails."""

    noun = "error"
    status: Annotated[int, whole(100, 599)] = Field(default=500, description="The HTTP status.")
    message: Text = ""
    retry_after: Annotated[float, number(0)] = Field(default=0, description="Seconds.")
    code: Text = Field(
        default="", description="The provider's error code. context_length_exceeded: the messages are too long."
    )


class ScriptedToolResult(Model):
    noun = "tool result"
    tool_call_id: Text
    content: Text = ""


class ScriptedResponse(Model):
    """One response of a scripted crystal. In an empty response the crystal says nothing."""

    noun = "response"
    content: MaybeText = None
    thinking: MaybeText = None
    tool_calls: list[ScriptedToolCall] = Field(default_factory=list)
    code: Text = Field(default="", description="Python for the code medium.")
    bash: Text = Field(default="", description="A command for the bash medium.")
    usage: Usage = Usage()
    error: ScriptedError = ScriptedError()
    delay_ms: Annotated[float, number(0)] = Field(default=0, description="Milliseconds to wait before each piece.")
    chunks: list[Text] = Field(default_factory=list, description="The text in pieces, as they are streamed.")
    when: Text = Field(default="", description="Use this response only if the intent contains this text.")
    repeat: Flag = Field(default=False, description="Use this response for any number of queries.")
    tool_result: ScriptedToolResult = Field(
        default=ScriptedToolResult(tool_call_id=""), description="A tool result that the response contains."
    )


class ScriptMapping(Model):
    """A script with scripts for its child entities."""

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
"""The type of a script file, and of each item of ``children``."""


class LongPrice(Model):
    """The price of queries with a long prompt, in US dollars for a million tokens."""

    noun = "long price"
    input: Annotated[float, number(0)] = 0
    output: Annotated[float, number(0)] = 0
    cached: Annotated[float, number(0)] = Field(
        default=0, description="Price of tokens that are read from a cache. Without this key, the price of input."
    )
    cache_write: Annotated[float, number(0)] = Field(
        default=0, description="Price of tokens that are written to a cache. Without this key, the price of input."
    )


class Price(LongPrice):
    """The price of a model, in US dollars for a million tokens."""

    noun = "price"
    above: Annotated[int, whole(1)] = Field(
        default=1, description="Queries with more prompt tokens than this have the prices in long."
    )
    long: LongPrice = LongPrice()


class ScriptedCrystal(Model):
    """A crystal that returns written responses in order and asks no model."""

    noun = "crystal"
    provider: Literal["scripted"]
    responses: list[ScriptedResponse] = Field(default_factory=list)
    script: PathText = Field(default="", description="The path of a file with responses, relative to the recipe.")
    children: list[Script] = Field(default_factory=list, description="Scripts of child entities, by order of birth.")
    usage: Usage = Field(default=Usage(), description="Of every response that gives none.")
    model: Line = Field(default="scripted", description="The model name that the crystal reports.")
    context_window: Annotated[int, whole(1)] = Field(
        default=1, description="Tokens of the context window. Without this key there is no limit."
    )
    tools: Annotated[str, one_of(("native", "text"), "tools")] = Field(
        default="native",
        description="How the crystal calls gates: with tools, or in its text, like a model without tools.",
    )


class ModelCrystal(Model):
    """A model of a provider."""

    noun = "crystal"
    provider: Annotated[str, one_of(names.MODEL_PROVIDERS, "provider", known=names.provider_names())]
    model: Line = Field(
        default="",
        description=f"The name of the model. The provider embedded needs none: its default is {weights.DEFAULT}.",
    )
    base_url: Annotated[
        str, text("an address that begins with http:// or https://", pattern=r"^https?://[^ \t\r\n]")
    ] = Field(default="", description="The address for requests, in place of the provider's own address.")
    api_key_env: Annotated[
        str, text("the name of an environment variable", pattern=r"^[A-Za-z_]", without=r"[^A-Za-z0-9_]")
    ] = Field(default="", description="The environment variable with the key.")
    headers: dict[str, Secret] = Field(default_factory=dict, description="Headers that are sent with each request.")
    context_window: Annotated[int, whole(1)] = Field(
        default=1, description="Tokens of the context window, in place of the value in the model catalog."
    )
    max_input: Annotated[int, whole(1)] = Field(
        default=1, description="Maximum tokens of a prompt, if it is smaller than the context window."
    )
    images: Flag = Field(
        default=False, description="Whether the model accepts images, in place of the value in the model catalog."
    )
    price: Price = Field(
        default=Price(), description="The price of the model, in place of the price in the model catalog."
    )
    timeout_s: Annotated[float, number(1)] = Field(
        default=300, description="Seconds without any data after which a query fails."
    )
    verbosity: Annotated[str, one_of(VERBOSITIES, "verbosity")] = Field(
        default="medium", description="The length of the answers of OpenAI's models (GPT-5 and later)."
    )
    effort: Annotated[str, one_of(EFFORTS, "effort")] = Field(
        default="medium", description="How much the model thinks. Without this key, the provider's default."
    )
    thinking_budget: Annotated[int, whole(-1)] = Field(
        default=0, description="Maximum thinking tokens, for models that accept a number: 0 for none, -1 for no limit."
    )
    api: Annotated[str, one_of(("responses", "chat"), "api")] = Field(
        default="responses", description="Which of OpenAI's two interfaces is used. Other providers have only one."
    )
    tools: Annotated[str, one_of(("auto", "native", "text"), "tools")] = Field(
        default="auto",
        description="How a model on your own server calls gates: with tools, or in its text if it does not support tools. With "
        "text, a message with exactly one code block in the medium's language is a program.",
    )
    summary: Annotated[str, one_of(("auto", "concise", "detailed", "none"), "summary")] = Field(
        default="auto", description="How OpenAI summarizes the model's thinking."
    )
    logprobs: Flag = Field(
        default=False,
        description="Record each token's log-probability (and its id, if the server sends it) in the loom, for training.",
    )
    token_prompts: Flag = Field(
        default=False,
        description="Send a vLLM, SGLang or llama.cpp server the token ids of the prompt, in which earlier answers keep the "
        "tokens that were sampled. For training; it needs tools: text and logprobs: true.",
    )
    weights: Line = Field(
        default="",
        description="A label of the version of the weights, which a trainer sets. Each turn records it, and exports contain it.",
    )
    # 512 is llama.cpp's own limit.
    threads: Annotated[int, whole(1, 512)] = Field(
        default=1, description="Threads of an embedded model. Without this key, one for each processor."
    )
    gpu_layers: Annotated[int, whole(-1)] = Field(
        default=0, description="How many layers of an embedded model an accelerator computes: 0 for none, -1 for all."
    )
    routing: dict[str, Any] = Field(
        default_factory=dict,
        description="OpenRouter's option `provider`: which providers of a model may be used, and in which order.",
    )


class HumanCrystal(Model):
    """A human answers in the terminal, in place of a model."""

    noun = "crystal"
    provider: Literal["human"]


class AddedCrystal(Model):
    """A crystal from another package. Its other keys are the options of that package."""

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
    if value in ("human", "embedded"):
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
        "anyOf": [{"enum": ["human", "embedded"]}, {"type": "string", "pattern": f"^({words}):[^ \\t\\r\\n]"}],
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
