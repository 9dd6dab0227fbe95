"""Gemini thinking: how much a model thinks, by level from Gemini 3 on, by a token budget before."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from cantrip_acp.core.errors import CrystalError, DefinitionError
from cantrip_acp.crystals.catalog.types import ModelInfo
from cantrip_acp.crystals.catalog.unsupported_params import nearest_effort

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""The values of ``effort``."""

_THINKS = re.compile(r"(?:^|/)gemini-(?:2\.5|[3-9]|\d\d)|-latest$")
_BY_BUDGET = re.compile(r"(?:^|/)gemini-[12][.\-]")
_BUDGETS = {"none": 0, "minimal": 512, "low": 2048, "medium": 8192, "high": 24576, "xhigh": 24576, "max": 24576}
_LEVELS = {
    "none": "MINIMAL",
    "minimal": "MINIMAL",
    "low": "LOW",
    "medium": "MEDIUM",
    "high": "HIGH",
    "xhigh": "HIGH",
    "max": "HIGH",
}
_XHIGH = re.compile(r"(?:^|/)gemini-(?:4-(?!argon)|[5-9]|\d\d)")
_NEXT = {"MINIMAL": "LOW", "MEDIUM": "HIGH", "XHIGH": "HIGH"}
"""The level to ask for where a model lacks this one."""
_EVERY_LEVEL = ("MINIMAL", "LOW", "MEDIUM", "HIGH", "XHIGH")
_RANGE = re.compile(r"(?:between|range|from)\D{0,20}(\d{1,9})\D{1,12}(\d{1,9})", re.IGNORECASE)
_NOT_TAKEN = re.compile(
    r"not (?:supported|allowed|valid|enabled)|unsupported|does(?: not|n't) support|unknown name|invalid|only works"
    r"|out of range|must be",
    re.IGNORECASE,
)
_PRO_LEAST = 128
_PRO_MOST = 32768


def check(options: Mapping[str, Any]) -> None:
    """Check effort and budget. Raises `DefinitionError` for an invalid value."""
    effort = options.get("effort")
    if effort is not None and effort not in EFFORTS:
        raise DefinitionError(f"effort is {effort!r}; it is one of {', '.join(EFFORTS)}")
    budget = options.get("thinking_budget")
    if budget is not None and (not isinstance(budget, int) or isinstance(budget, bool) or budget < -1):
        raise DefinitionError(
            f"thinking_budget is {budget!r}; it is a number of tokens, 0 for none, -1 for as it sees fit"
        )


def thinking(model: str, info: ModelInfo, options: Mapping[str, Any]) -> dict[str, Any] | None:
    """``thinkingConfig``; None for a model that does not think, because it would refuse it.

    ``effort`` is one of `EFFORTS`; ``thinking_budget`` is in tokens and overrides it. A pro model always thinks: if no
    thinking is asked for, it gets the minimum.
    """
    effort, budget = options.get("effort"), options.get("thinking_budget")
    # For a model in the table, the table decides; for any other, its name.
    thinks = info.reasoning or (not info.known and _THINKS.search(model) is not None)
    if not thinks and effort in (None, "none") and budget is None:
        return None
    pro = "-pro" in model
    config: dict[str, Any] = {"includeThoughts": True}
    if budget is not None:
        config["thinkingBudget"] = budget
    elif effort is not None and _BY_BUDGET.search(model):
        tokens = _BUDGETS[effort]
        config["thinkingBudget"] = max(_PRO_LEAST, tokens) if pro else tokens
        if pro and effort in ("xhigh", "max"):
            config["thinkingBudget"] = _PRO_MOST
    elif effort is not None:
        level = "XHIGH" if effort in ("xhigh", "max") and _XHIGH.search(model) else _LEVELS[effort]
        config["thinkingLevel"] = "LOW" if pro and level == "MINIMAL" else level
    if config.get("thinkingBudget") == 0:
        config["includeThoughts"] = False
    return config


def with_less(who: str, generation: Mapping[str, Any], error: CrystalError) -> tuple[dict[str, Any], str] | None:
    """``generationConfig`` without what ``error`` says the model does not take, and a note for the user.

    The note is empty where the user did not ask for that parameter. None where the error says no such thing. No table
    knows what each model takes. Only parameters of sampling, thinking and log-probabilities change, never the
    messages.
    """
    words = str(error)
    out = dict(generation)
    if error.status == 400 and "responseLogprobs" in out and re.search("logprobs", words, re.IGNORECASE):
        # Few models report log-probabilities, and each refuses with other words.
        del out["responseLogprobs"]
        return out, ""
    if error.status != 400 or not _NOT_TAKEN.search(words):
        return None
    if re.search(r"thinking|thought", words, re.IGNORECASE) and "thinkingConfig" in out:
        thought, notice = _thinking_with_less(who, out.pop("thinkingConfig"), words)
        return (out | {"thinkingConfig": thought} if thought is not None else out), notice
    for name, spoken in (("temperature", r"temperature"), ("topP", r"top_?p"), ("seed", r"\bseed\b")):
        if name in out and re.search(spoken, words, re.IGNORECASE):
            del out[name]
            return out, ""
    return None


def _thinking_with_less(who: str, config: Mapping[str, Any], words: str) -> tuple[dict[str, Any] | None, str]:
    """The nearest level or budget that the error names, else the next level, else none, so that the model decides."""
    thought = dict(config)
    level, budget = thought.pop("thinkingLevel", None), thought.pop("thinkingBudget", None)
    if level is not None:
        taken = [each for each in _EVERY_LEVEL if each != level and re.search(rf"\b{each}\b", words, re.IGNORECASE)]
        nearest = nearest_effort(level.lower(), [each.lower() for each in taken]).upper() if taken else _NEXT.get(level)
        what = f"{who} does not take the effort {level.lower()}; "
        if nearest is None:
            return thought, what + "it decides by itself how much to think"
        named = f" (it takes {', '.join(taken).lower()})" if taken else ""
        return {**thought, "thinkingLevel": nearest}, f"{what}{nearest.lower()} is used{named}"
    if budget is not None:
        thought["includeThoughts"] = True
        what = f"{who} does not take a thinking budget of {budget:,} tokens; "
        if (limits := _RANGE.search(words)) and int(limits[1]) < int(limits[2]):
            nearest_budget = min(max(budget, int(limits[1])), int(limits[2]))
            if nearest_budget != budget:
                return {**thought, "thinkingBudget": nearest_budget}, f"{what}{nearest_budget:,} is used"
        return thought, what + "it decides by itself how much to think"
    return None, f"{who} does not tell what it thinks"
