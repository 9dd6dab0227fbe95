"""Overflow texts: what providers say if the messages do not fit the model's context window.

No two providers use the same words, and few send a code. `ROWS` has a sentence of each, with the place and the day on which
it was seen, so that a new report is a new row. What no row knows is handled by `core.folding.apply.may_be_overflow`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OverflowText:
    """One sentence. ``pattern`` finds it in lower case, ``example`` is how it looked, ``source`` where, and ``seen`` when.

    ``providers`` are the presets, the crystals or the kinds of servers that send it.
    """

    providers: str
    pattern: str
    example: str
    source: str
    seen: str
    status: int = 400


ROWS = (
    OverflowText(
        "anthropic",
        r"prompt is too long",
        "prompt is too long: 202095 tokens > 200000 maximum",
        "github.com/stackblitz/bolt.new/issues/2449",
        "2024-11-15",
    ),
    OverflowText(
        "anthropic",
        r"exceed context limit",
        "input length and `max_tokens` exceed context limit: 142123 + 64000 > 200000, decrease input length or `max_tokens`",
        "github.com/OpenHands/benchmarks/issues/45",
        "2025-10-24",
    ),
    OverflowText(
        "openai, deepseek, deepinfra, fireworks, huggingface, vllm, openrouter",
        r"maximum context",
        "This model's maximum context length is 131072 tokens. However, you requested 131134 tokens (122942 in the messages, "
        "8192 in the completion).",
        "github.com/evalstate/fast-agent/issues/621; github.com/ogx-ai/ogx/issues/697 (Fireworks)",
        "2026-01-19",
    ),
    OverflowText(
        "openai",
        r"context window",
        "Your input exceeds the context window of this model. Please adjust your input and try again.",
        "github.com/earendil-works/pi/issues/129",
        "2025-12-06",
    ),
    OverflowText(
        "openai, groq and gateways: the code",
        r"context[_ ]length",
        "context_length_exceeded",
        "github.com/xtekky/gpt4free/issues/137",
        "2023-04-26",
    ),
    OverflowText(
        "openai before 2024",
        r"reduce your prompt",
        "This is 8977 tokens (8977 in your prompt; 0 for the completion). Please reduce your prompt; or completion length.",
        "github.com/OpenRouterTeam/openrouter-examples/issues/10",
        "2024-07-25",
    ),
    OverflowText(
        "groq, cerebras",
        r"reduce the length of the (?:messages|input|prompt)",
        "Please reduce the length of the messages or completion. Current length is 42328 while limit is 40000",
        "github.com/cline/cline/issues/5140",
        "2025-07-24",
    ),
    OverflowText(
        "groq: more than its tokens per minute in one request",
        r"request too large for model",
        "Request too large for model `moonshotai/kimi-k2-instruct` on tokens per minute (TPM): Limit 10000, Requested 15088",
        "github.com/cline/cline/issues/4971",
        "2025-07-16",
        413,
    ),
    OverflowText(
        "google",
        r"input token count.{0,40}exceeds",
        "The input token count (1196265) exceeds the maximum number of tokens allowed (1048575).",
        "github.com/earendil-works/pi/issues/129",
        "2025-12-06",
    ),
    OverflowText(
        "xai",
        r"maximum prompt length",
        "This model's maximum prompt length is 131072 but the request contains 136973 tokens.",
        "github.com/cline/cline/issues/3120",
        "2025-04-25",
    ),
    OverflowText(
        "xai",
        r"input_too_large",
        "Failed to start sampling: [input_too_large] Current message (1149677 tokens) exceeds budget (975424 tokens)",
        "github.com/UKGovernmentBEIS/inspect_ai/pull/5208",
        "2026-09-03",
    ),
    OverflowText(
        "zai",
        r"prompt exceeds max(?:imum)? length",
        "Prompt exceeds max length",
        "github.com/zeroclaw-labs/zeroclaw/issues/4124 (code 1261)",
        "2026-03-21",
    ),
    OverflowText(
        "GLM at Volcano Engine",
        r"input length \d+ exceeds the maximum length",
        "Input length 203743 exceeds the maximum length 202752",
        "github.com/langgenius/dify/issues/32221",
        "2026-02-11",
    ),
    OverflowText(
        "alibaba",
        r"range of input length should be",
        "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 202745]",
        "github.com/anomalyco/opencode/pull/45834",
        "2026-08-28",
    ),
    OverflowText(
        "moonshot",
        r"exceeded model token limit",
        "Invalid request: Your request exceeded model token limit: 262144 (requested: 269030)",
        "github.com/MoonshotAI/kimi-cli/issues/2011",
        "2026-04-22",
    ),
    OverflowText(
        "moonshot before 2025",
        r"model max length exceeded",
        "model max length exceeded, max length:8192",
        "github.com/MoonshotAI/MoonshotAI-Cookbook/issues/18",
        "2024-04-15",
    ),
    OverflowText(
        "moonshot: the size in bytes",
        r"total message size \d+ exceeds limit",
        "total message size 2100954 exceeds limit 2097152",
        "github.com/MoonshotAI/kimi-code/issues/1862",
        "2026-07-17",
    ),
    OverflowText(
        "mistral",
        r"too large for model with \d+ maximum",
        "Prompt contains 140000 tokens and 0 draft tokens, too large for model with 131072 maximum context length",
        "github.com/earendil-works/pi/issues/129",
        "2025-12-06",
    ),
    OverflowText(
        "Poolside, GLM behind LiteLLM, SGLang",
        r"exceeds? (?:the )?maximum (?:allowed )?input length",
        "Input length 131393 exceeds the maximum allowed input length of 131040 tokens.",
        "github.com/earendil-works/pi/issues/4943; github.com/NVIDIA-NeMo/Switchyard/pull/314",
        "2026-08-05",
    ),
    OverflowText(
        "nvidia (TensorRT-LLM), Baidu",
        r"exceeds? (?:the |model'?s )?(?:max_seq_len|maximum (?:sequence length|input))",
        "Prompt too long: 5152 tokens exceeds max_seq_len 2048 (leave room for output tokens)",
        "github.com/0xBakeer/inference-atlas/pull/186",
        "2026-09-01",
    ),
    OverflowText(
        "sambanova",
        r"requires a sequence length of|maximum supported sequence length",
        "Requested generation length 1 is not possible! The provided prompt is 4309 tokens long, so generating 1 tokens requires "
        "a sequence length of 4310, but the maximum supported sequence length is just 4096!",
        "github.com/cline/cline/issues/294",
        "2024-09-13",
    ),
    OverflowText(
        "huggingface, together (Text Generation Inference)",
        r"`inputs` tokens \+ `max_new_tokens` must be <=",
        "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 8740 `inputs` tokens and 500 "
        "`max_new_tokens`",
        "github.com/huggingface/huggingface_hub/issues/2763",
        "2025-01-20",
        422,
    ),
    OverflowText(
        "huggingface, together (Text Generation Inference)",
        r"`inputs` must have less than",
        "Input validation error: `inputs` must have less than 1024 tokens. Given: 1168.",
        "github.com/huggingface/text-generation-inference/issues/695",
        "2023-07-25",
        422,
    ),
    OverflowText(
        "vllm",
        r"longer than the maximum model length",
        "The decoder prompt (length 88049) is longer than the maximum model length of 32768.",
        "logs of vLLM's engine V1 in public repositories",
        "2026-07-02",
    ),
    OverflowText(
        "vllm",
        r"too long to fit into the model",
        "The prompt (total length 25938) is too long to fit into the model (context length 4096).",
        "github.com/vllm-project/vllm/issues/12165",
        "2025-01-17",
    ),
    OverflowText(
        "vllm: no room for an answer is left",
        r"max_tokens must be at least 1, got -",
        "max_tokens must be at least 1, got -904.",
        "clients that know vLLM's answers",
        "2026-11-28",
    ),
    OverflowText(
        "SGLang, together",
        r"longer than the model'?s context length",
        "The input (263000 tokens) is longer than the model's context length (262144 tokens).",
        "github.com/openclaw/openclaw/issues/129352",
        "2026-08-25",
    ),
    OverflowText(
        "llamacpp",
        r"exceed_context_size|exceeds? the available context",
        "the request exceeds the available context size (4096 tokens), try increasing it",
        "github.com/ggml-org/llama.cpp, tools/server",
        "2025-12-06",
    ),
    OverflowText(
        "lmstudio",
        r"when context the overflows|context length of only",
        "Trying to keep the first 111490 tokens when context the overflows. However, the model is loaded with context length of "
        "only 32768 tokens, which is not enough.",
        "github.com/lmstudio-ai/lmstudio-bug-tracker/issues/546",
        "2025-03-24",
    ),
    OverflowText(
        "lmstudio",
        r"cannot truncate prompt with n_keep",
        "Cannot truncate prompt with n_keep (15028) >= n_ctx (7424)",
        "github.com/anomalyco/opencode/issues/11141",
        "2026-01-29",
    ),
    OverflowText(
        "lmstudio (MLX)",
        r"context size (?:has been )?exceeded",
        "Context size has been exceeded.",
        "github.com/lmstudio-ai/lmstudio-bug-tracker/issues/2339",
        "2026-08-30",
        500,
    ),
    OverflowText(
        "ollama",
        r"prompt too long",
        "prompt too long; exceeded max context length by 4 tokens",
        "clients that know Ollama's answers, such as github.com/earendil-works/pi",
        "2026-11-28",
    ),
    OverflowText(
        "DwarfStar",
        r"configured context size is",
        "Prompt has 32769 tokens, but the configured context size is 32768 tokens",
        "clients that know its answers, such as github.com/earendil-works/pi",
        "2026-11-28",
    ),
    OverflowText(
        "GitHub Copilot",
        r"model_max_prompt_tokens_exceeded|prompt token count of \d+ exceeds",
        "prompt token count of 138898 exceeds the limit of 64000",
        "github.com/microsoft/copilot-intellij-feedback/issues/94",
        "2025-04-14",
    ),
    OverflowText(
        "GitHub Models",
        r"tokens_limit_reached|request body too large for .{1,80} model",
        "Request body too large for gpt-4o model. Max size: 8000 tokens.",
        "github.com/eslint/tsc-meetings/pull/593",
        "2025-07-03",
        413,
    ),
    OverflowText(
        "Amazon Bedrock",
        r"input is too long",
        "Input is too long for requested model.",
        "github.com/earendil-works/pi/issues/129",
        "2025-12-06",
    ),
    OverflowText(
        "gateways",
        r"too many (?:input )?tokens(?!,? please wait)|token limit exceeded",
        "Too many input tokens: 140000",
        "github.com/jin-bo/agentao/pull/88",
        "2026-06-14",
    ),
    OverflowText(
        "gateways",
        r"exceeds? the (?:maximum|available) (?:context|number of tokens|input)",
        "the input exceeds the maximum number of tokens",
        "github.com/jin-bo/agentao/pull/88",
        "2026-06-14",
    ),
)

_ANY = re.compile("|".join(row.pattern for row in ROWS), re.IGNORECASE)
_STATUSES = (400, 413, 422, 500)


def is_overflow(status: int, text: str) -> bool:
    """Whether an error with this status and this text (with its code) says that the messages are too long.

    A 429 with "too many tokens" is a limit of tokens per minute: waiting helps, and folding does not.
    """
    return status in _STATUSES and _ANY.search(text) is not None
