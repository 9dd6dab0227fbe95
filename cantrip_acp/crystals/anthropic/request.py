"""Anthropic request: builds the body of a Messages API request, with thinking, tool choice and token limit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cantrip_acp.crystals.anthropic.messages import THINKING, rendered, tools_of
from cantrip_acp.crystals.catalog.types import ModelInfo
from cantrip_acp.crystals.contract import Query
from cantrip_acp.crystals.tool_schemas import ToolSchemas
from cantrip_acp.types.errors import DefinitionError

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""The values of ``effort``. ``minimal`` is sent as ``low``, because Anthropic has no ``minimal``."""

UNKNOWN_MAX_TOKENS = 16_384
"""The token limit of a response for an unknown model. The API requires a number."""
MAX_TOKENS = 64_000
"""The token limit of a response if the call sets none. A lower limit of the model is used instead."""
LEAST_BUDGET = 1024

_BUDGETS = {"minimal": 1024, "low": 2048, "medium": 8192, "high": 16384, "xhigh": 32768, "max": 49152}


def check(options: Mapping[str, Any]) -> None:
    """Check effort and budget. Raises `DefinitionError` for an invalid value."""
    effort = options.get("effort")
    if effort is not None and effort not in EFFORTS:
        raise DefinitionError(f"effort is {effort!r}; it is one of {', '.join(EFFORTS)}")
    budget = options.get("thinking_budget")
    if budget is None:
        return
    if not isinstance(budget, int) or isinstance(budget, bool) or not (budget in (-1, 0) or budget >= LEAST_BUDGET):
        raise DefinitionError(
            f"thinking_budget is {budget!r}; it is a number of tokens, at least {LEAST_BUDGET}, "
            "0 for no thinking, or -1 to let the model decide"
        )


def thinking(info: ModelInfo, options: Mapping[str, Any]) -> tuple[dict[str, Any] | None, str | None]:
    """Return ``thinking`` and the effort of ``output_config``. None means that the request must omit the field.

    ``thinking_budget`` is in tokens, ``effort`` is one of `EFFORTS`. An adaptive model always gets a request for summaries
    of its thinking, and for it a budget becomes an effort. A model with a thinking budget thinks only if an option
    requests it. An unknown model is assumed to accept the request.
    """
    effort, budget = options.get("effort"), options.get("thinking_budget")
    off = budget == 0 or (budget is None and effort == "none")
    if info.thinking in ("adaptive", "always"):
        if off:
            return ({"type": "disabled"}, None) if info.thinking == "adaptive" else (_ADAPTIVE, "low")
        if effort in (None, "none") and budget is not None and budget > 0:
            effort = "low" if budget < 4096 else "medium" if budget < 16384 else "high"
        return _ADAPTIVE, _level(effort)
    if off or (effort is None and budget is None):
        return None, None
    if info.known and not info.reasoning:
        return None, None
    if not info.thinking and (budget is None or budget == -1):
        return _ADAPTIVE, _level(effort)
    tokens = budget if budget is not None and budget > 0 else _BUDGETS.get(effort or "medium", 8192)
    return {"type": "enabled", "budget_tokens": tokens}, None


_ADAPTIVE = {"type": "adaptive", "display": "summarized"}


def _level(effort: str | None) -> str | None:
    if effort in (None, "none"):
        return None
    return "low" if effort == "minimal" else effort


def request(
    query: Query,
    model: str,
    info: ModelInfo,
    options: Mapping[str, Any],
    *,
    forced: bool = True,
    schemas: ToolSchemas | None = None,
) -> dict[str, Any]:
    """Build the body of the request, without cache points and ``stream``.

    ``forced``: whether a call may be forced. ``schemas`` knows which schemas of tools the model refused.
    """
    call = query.params
    history = rendered(query.messages, model, info)
    messages = history.messages or [{"role": "user", "content": [{"type": "text", "text": "(empty)"}]}]
    most = info.max_output or (MAX_TOKENS if info.known else UNKNOWN_MAX_TOKENS)
    max_tokens = call.max_tokens or min(most, MAX_TOKENS)
    thought, effort = thinking(info, options)
    if thought is not None and thought["type"] == "enabled":
        if _breaks_off(messages):
            thought = None
        else:
            max_tokens, thought = _token_limits(max_tokens, thought, info)
    body: dict[str, Any] = {"model": model, "max_tokens": max_tokens}
    tools = tools_of(query.tools, schemas or ToolSchemas("")) or _tools_of_old(messages)
    if tools:
        body["tools"] = tools
        thinks = thought is not None and thought["type"] != "disabled"
        choice = _choice(query, forced=forced and info.forced_tools and not thinks)
        if choice is not None:
            body["tool_choice"] = choice
    if history.system:
        body["system"] = history.system
    body["messages"] = messages
    if thought is not None:
        body["thinking"] = thought
    if effort is not None:
        body["output_config"] = {"effort": effort}
    stop = [s for s in call.stop if s.strip()]
    if stop:
        body["stop_sequences"] = stop
    # While a model thinks it accepts no sampling parameters. Otherwise it accepts only one of the two.
    if info.sampling and (thought is None or thought["type"] == "disabled"):
        if call.temperature is not None:
            body["temperature"] = min(1.0, call.temperature)
        elif call.top_p is not None:
            body["top_p"] = call.top_p
        if call.top_k is not None:
            body["top_k"] = call.top_k
    return body


def _choice(query: Query, *, forced: bool) -> dict[str, Any] | None:
    if not query.tools or query.tool_choice == "none":
        return {"type": "none"}
    if query.tool_choice == "required" and forced:
        return {"type": "any"}
    return None


def _token_limits(max_tokens: int, thought: dict[str, Any], info: ModelInfo) -> tuple[int, dict[str, Any]]:
    """Return a token limit for thinking and answer together, as the API counts them, and the thinking with its budget."""
    budget = thought["budget_tokens"]
    total = max_tokens if budget < max_tokens else budget + max_tokens
    if info.max_output is not None:
        total = min(total, info.max_output)
        budget = max(LEAST_BUDGET, min(budget, total - LEAST_BUDGET))
    return total, {**thought, "budget_tokens": budget}


def _breaks_off(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the last tool calls were made without thinking (by another model). The API then refuses thinking until
    they are finished."""
    if messages[-1]["content"][0]["type"] != "tool_result":
        return False
    said = next(m["content"] for m in reversed(messages) if m["role"] == "assistant")
    return said[0]["type"] not in THINKING


def _tools_of_old(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Make definitions for tools that were called earlier. The API requires them even if no tools are offered now."""
    names: dict[str, None] = {}
    for message in messages:
        if message["role"] == "assistant":
            names.update((b["name"], None) for b in message["content"] if b["type"] == "tool_use")
    return [
        {"name": n, "description": "No longer available.", "input_schema": {"type": "object", "properties": {}}}
        for n in names
    ]
