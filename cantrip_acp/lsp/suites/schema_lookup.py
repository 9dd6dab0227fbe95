"""Schema lookup for suites: what is allowed in a case, by the grammar of the conformance runner, and the rules to name."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from cantrip_acp.conformance.grammar import CASE, Shape
from cantrip_acp.recipes.parse.source_map import KeyPath

PAGE = Path(__file__).with_name("spec.md")

KEYS = {
    "rule": "The rule of the specification that the case shows, such as LOOP-3.",
    "name": "What the case shows, in words.",
    "notes": "Free text; nobody looks at it.",
    "skip": "With true the case is reported as skipped.",
    "setup": "What is built: crystal, circle, call, folding, retry, filesystem.",
    "action": "What is done, a mapping or a list in order: construct_cantrip, cast, invoke, then.",
    "expect": "What must hold afterwards. A key that nobody knows fails the case.",
    "crystal": "A scripted crystal: `responses`, one a query; null for none.",
    "responses": "What the crystal answers, one item a query: content, tool_calls, code, usage, error.",
    "circle": "Medium, gates and wards.",
    "call": "System prompt and sampling; `null` is none at all.",
    "folding": "When turns are folded.",
    "retry": "Which failures are tried again, and how often.",
    "filesystem": "Path and text of files that are there; they stand in for those under /.",
    "cast": "Casts the cantrip, or the entity that was invoked, on an `intent`.",
    "invoke": "With true, an entity that stays.",
    "construct_cantrip": "With true, the cantrip is made and checked, nothing is cast.",
    "then": "What is done after a cast: mutate_call, delete_turn, annotate_reward, fork, extract_thread.",
    "error": "In expect: the action failed, and its message holds this text.",
    "result": "In expect: the answer of the cast.",
    "crystal_invocations": "A number of queries, or a list that is matched query by query.",
    "loom": "In expect: turn_count, call, and turns, each matched by the keys that are given.",
    "thread": "In expect: a list of roles or turns, or length.",
    "turns": "A number of turns, or turns matched one by one.",
    "terminated": "Whether the entity ended by itself.",
    "truncated": "Whether a ward cut it off.",
    "gates": "Names, or mappings with name, parameters, behavior, result, error, delay_ms, ephemeral.",
    "wards": "Mappings of one key: max_turns, max_depth, require_done_tool …",
}
"""The meaning of the keys."""

WORDS: dict[str, tuple[str, ...]] = {
    "medium": ("conversation", "code", "bash", "monty"),
    "type": ("conversation", "code", "bash", "code_circle"),
    "behavior": ("throw", "delay"),
    "role": ("entity", "circle", "system", "user", "assistant", "tool", "call", "crystal", "fold"),
}
GATES = ("done", "echo", "read", "fetch", "call_agent", "call_agent_batch")
MATCHERS = ("not_null", "null", "greater_than(0)", "turns[0].id")
FLAGS = frozenset(
    {"skip", "invoke", "construct_cantrip", "terminated", "truncated", "is_error", "require_done_tool", "ephemeral"}
)


def at(path: KeyPath) -> Shape | None:
    """The shape at a key path of a suite (the first part is the case's number); None if nothing is allowed there."""
    shape: Shape | None = CASE
    for part in path[1:]:
        if shape is None or shape.free:
            return None
        shape = shape.items if isinstance(part, int) else _inner(shape, part)
    return shape


def _inner(shape: Shape, key: str) -> Shape | None:
    known = (shape.keys or {}).get(key)
    if known is not None:
        return known
    return next((inner for pattern, inner in shape.patterns if re.fullmatch(pattern, key)), None)


@cache
def rules() -> dict[str, str]:
    """Every rule of the specification with its meaning."""
    parts = re.split(r"(?m)^## (.+)$", PAGE.read_text(encoding="utf-8"))
    return {name.strip(): text.strip() for name, text in zip(parts[1::2], parts[2::2], strict=True)}


def link(rule: str) -> str:
    """The URI of a rule's explanation."""
    return f"{PAGE.as_uri()}#{rule.lower()}"
