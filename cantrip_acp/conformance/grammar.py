"""The grammar of cases: every key that a case may have, and the shape of its value.

No expectation may be ignored silently: an unknown key fails its case, and the message has the path of the key.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from cantrip_acp.gates.wards import WARDS
from cantrip_acp.types.errors import DefinitionError


@dataclass(frozen=True)
class Problem:
    """Something wrong with a case or its outcome: its path in the case (``expect.loom.turns[0].id``, or empty), and a
    message."""

    path: str
    message: str
    rule: str = "schema"
    """The name of the rule in `lsp/recipes/rules.md`, if the case itself is wrong."""
    error: DefinitionError | None = None
    """Why the text of the case cannot be parsed, with its position."""

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


@dataclass(frozen=True)
class Shape:
    """What one place of a case may contain.

    - ``keys``: the known keys of a mapping. None: no mapping may be here. ``patterns``: further keys, as regular
      expressions.
    - ``items``: the shape of a list's items. None: no list may be here.
    - ``scalar``: a text, number or boolean may be here.
    - ``null``: null may be here.
    - ``free``: anything may be here.
    """

    keys: Mapping[str, Shape] | None = None
    patterns: tuple[tuple[str, Shape], ...] = ()
    items: Shape | None = None
    scalar: bool = True
    null: bool = True
    free: bool = False

    def check(self, value: Any, path: str) -> Iterator[Problem]:
        if self.free or (value is None and self.null):
            return
        if isinstance(value, Mapping):
            if self.keys is None:
                yield Problem(path, "a mapping has no meaning here")
                return
            for key, inner in value.items():
                where = f"{path}.{key}" if path else str(key)
                shape = self._shape(key)
                if shape is None:
                    yield Problem(where, f"unknown key{self._nearest(key)}", "unknown-key")
                else:
                    yield from shape.check(inner, where)
        elif isinstance(value, list):
            if self.items is None:
                yield Problem(path, "a list has no meaning here")
                return
            for number, inner in enumerate(value):
                yield from self.items.check(inner, f"{path}[{number}]")
        elif value is None or not self.scalar:
            kind = " or ".join(k for k, on in (("a mapping", self.keys is not None), ("a list", self.items)) if on)
            yield Problem(path, f"must be {kind}, not {'null' if value is None else repr(value)[:60]}")

    def _shape(self, key: str) -> Shape | None:
        known = (self.keys or {}).get(key)
        if known is not None:
            return known
        return next((shape for pattern, shape in self.patterns if re.fullmatch(pattern, key)), None)

    def _nearest(self, key: str) -> str:
        near = difflib.get_close_matches(key, self.keys or {}, n=1)
        if near:
            return f"; did you mean {near[0]!r}?"
        return f"; known here: {', '.join(self.keys or {}) or 'none'}"


def _map(keys: Mapping[str, Shape] | str, *patterns: tuple[str, Shape]) -> Shape:
    """A mapping with these keys; a string of names makes each of them plain."""
    named = dict.fromkeys(keys.split(), PLAIN) if isinstance(keys, str) else keys
    return Shape(named, tuple(patterns), scalar=False)


def _stated(shape: Shape) -> Shape:
    """The same shape, but not null: a null expectation would check nothing."""
    return replace(shape, null=False)


def _list(items: Shape, *, scalar: bool = False) -> Shape:
    return Shape(items=items, scalar=scalar)


PLAIN = Shape()
FREE = Shape(free=True)
TEXTS = _list(PLAIN, scalar=True)

USAGE = _map("prompt_tokens completion_tokens cached_tokens total_tokens cost")
TOOL_CALL = _map({"id": PLAIN, "gate": PLAIN, "args": FREE})
RESPONSE = _map(
    {
        **dict.fromkeys(("content", "thinking", "code", "bash", "delay_ms", "when", "repeat"), PLAIN),
        "tool_calls": _list(TOOL_CALL),
        "chunks": TEXTS,
        "usage": USAGE,
        "error": Shape(dict.fromkeys(("status", "message", "retry_after", "code"), PLAIN)),
        "tool_result": _map({"tool_call_id": PLAIN, "content": FREE}),
    }
)
SCRIPT = {
    "responses": _list(RESPONSE),
    "usage": USAGE,
    "raw_response": FREE,
    **dict.fromkeys(("record_inputs", "type", "stateless", "retry_behavior"), PLAIN),
    **dict.fromkeys(("provider", "name", "model", "context_window", "tools"), PLAIN),
}
# A child's script is a list of responses, or a mapping like a crystal's own.
CHILDREN = _list(Shape({**SCRIPT, "children": FREE}, items=RESPONSE, scalar=False))
CRYSTAL = _map({**SCRIPT, "children": CHILDREN})
GATE = Shape(
    {
        **dict.fromkeys(("name", "description", "behavior", "error", "delay_ms", "ephemeral"), PLAIN),
        "parameters": FREE,
        "result": FREE,
        "dependencies": FREE,
        "depends": FREE,
    }
)
WARD = _map(dict.fromkeys(WARDS, TEXTS))
CIRCLE = _map(
    {
        **dict.fromkeys(("type", "medium", "loom", "code_python"), PLAIN),
        "gates": _list(GATE),
        "wards": Shape(WARD.keys, items=WARD, scalar=False),
    }
)
CALL = _map(
    {
        **dict.fromkeys(
            (
                "system_prompt",
                "temperature",
                "top_p",
                "top_k",
                "min_p",
                "max_tokens",
                "seed",
                "tool_choice",
                "require_done_tool",
                "require_done",
            ),
            PLAIN,
        ),
        "stop": TEXTS,
    }
)
SETUP = _map(
    {
        "crystal": CRYSTAL,
        "circle": CIRCLE,
        "call": CALL,
        "folding": _map("trigger_after_turns trigger_at_tokens at_fraction keep_turns summarizer"),
        "retry": Shape(
            {
                **dict.fromkeys(("max_retries", "base_delay_ms", "max_delay_ms"), PLAIN),
                "retryable_status_codes": _list(PLAIN),
            },
            scalar=False,
        ),
        "filesystem": Shape({}, ((".*", PLAIN),), scalar=False),
    },
    (r"child_crystal(_l\d+)?|\w+_crystal|crystal_\w+", CRYSTAL),
)

THEN = _map(
    {
        "mutate_call": CALL,
        "delete_turn": PLAIN,
        "annotate_reward": _map("turn reward"),
        "fork": _map("from_turn crystal intent"),
        "extract_thread": PLAIN,
    }
)
ACTION = _map(
    {
        "construct_cantrip": PLAIN,
        "invoke": PLAIN,
        "cast": _map("intent crystal"),
        "then": Shape(THEN.keys, items=THEN, scalar=False),
    }
)

MESSAGE = _map({"role": PLAIN, "content": PLAIN, "tool_call_id": PLAIN, "tool_calls": _list(TOOL_CALL)})
TOOL = Shape({"name": PLAIN, "description": PLAIN, "parameters": FREE})
INVOCATION = _map(
    {
        **dict.fromkeys(("message_count", "tool_choice", "length"), PLAIN),
        **dict.fromkeys(
            ("messages_include", "messages_exclude", "message_count_includes", "message_count_excludes"), _stated(TEXTS)
        ),
        "messages": _stated(_list(MESSAGE)),
        "first_message": _stated(MESSAGE),
        "tools": _stated(_list(TOOL)),
    }
)
FIRST_RESULT = _map({"is_error": PLAIN, "content": FREE, "content_contains": _stated(TEXTS)})
RECORD = _map({"gate": PLAIN, "args": FREE, "result": FREE, "is_error": PLAIN, "tool_call_id": PLAIN})
OUTPUT = Shape({**dict.fromkeys(("stdout", "stderr", "exit_code", "error", "truncated"), PLAIN), "value": FREE})
METADATA = Shape(
    {
        **dict.fromkeys(("tokens_prompt", "tokens_completion", "tokens_cached", "cost"), PLAIN),
        **dict.fromkeys(("duration_ms", "timestamp", "model", "trace_id", "truncation_reason"), PLAIN),
    }
)
TURN = _map(
    {
        **dict.fromkeys(
            ("id", "parent_id", "entity_id", "cast_id", "cantrip_id", "role", "sequence", "continues", "reason"), PLAIN
        ),
        **dict.fromkeys(("reward", "terminated", "truncated", "length"), PLAIN),
        "gate_calls": _stated(_list(Shape(RECORD.keys))),
        "metadata": METADATA,
        "observation_contains": _stated(TEXTS),
        "utterance": Shape(
            {**dict.fromkeys(("content", "thinking", "code"), PLAIN), "tool_calls": _list(TOOL_CALL, scalar=True)}
        ),
        "observation": Shape(
            {"results": _list(RECORD, scalar=True), "output": OUTPUT, "outputs": _list(OUTPUT, scalar=True)}
        ),
    }
)
INVOCATIONS = _stated(_list(INVOCATION, scalar=True))
THREAD = _map({"turns": PLAIN, "length": PLAIN, "result": FREE, "last_turn": _stated(TURN)})
EXPECT = _map(
    {
        **dict.fromkeys(
            ("turns", "terminated", "truncated", "entities", "entity_ids_unique", "threads"), _stated(PLAIN)
        ),
        "error": PLAIN,
        "result": FREE,
        "result_contains": _stated(TEXTS),
        "results": _stated(_list(FREE)),
        "gate_calls_executed": _stated(_list(PLAIN)),
        "gate_call_order": _stated(_list(PLAIN)),
        "gate_results": _stated(_list(FREE)),
        "crystal_invocations": INVOCATIONS,
        "crystal_received_tools": _stated(_list(TOOL)),
        "crystal_received_tool_choice": PLAIN,
        "usage": _stated(USAGE),
        "cumulative_usage": _stated(USAGE),
        "thread": Shape({"length": PLAIN, "turns": _list(TURN)}, items=TURN, scalar=False, null=False),
        "loom": _stated(_map({"turn_count": PLAIN, "call": Shape(CALL.keys), "turns": _stated(_list(TURN))})),
    },
    (r"turn_[1-9]\d*_observation", _stated(FIRST_RESULT)),
    (r"thread_\d+", _stated(THREAD)),
    (r"(child_crystal(_l\d+)?|\w+_crystal|crystal_\w+)_invocations", INVOCATIONS),
)
CASE = _map(
    {
        **dict.fromkeys(("rule", "name", "notes", "description", "skip"), PLAIN),
        "setup": SETUP,
        "action": Shape(ACTION.keys, items=ACTION, scalar=False),
        "expect": EXPECT,
    }
)
