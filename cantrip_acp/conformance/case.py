"""A case, and every key that a case may hold.

An expectation must never be passed over in silence: a key that stands nowhere below fails its case, with the key's path.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Problem:
    """Something wrong with a case or its outcome: where in the case (``expect.loom.turns[0].id``, or empty), and what."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


@dataclass(frozen=True)
class Case:
    """One case as read. ``problem`` is why it could not be read; such a case fails."""

    file: Path
    line: int
    data: Mapping[str, Any] = field(default_factory=dict)
    problem: Problem | None = None

    @classmethod
    def of(cls, value: Any, file: Path, line: int) -> Case:
        if isinstance(value, Mapping):
            return cls(file, line, value)
        return cls(file, line, {}, Problem("", f"a case is a mapping with rule, name, setup …, not {value!r:.60}"))

    @property
    def rule(self) -> str:
        return str(self.data.get("rule") or "-")

    @property
    def name(self) -> str:
        return " ".join(str(self.data.get("name") or "(no name)").split())

    @property
    def where(self) -> str:
        return f"{self.file}:{self.line}"

    @property
    def setup(self) -> Mapping[str, Any]:
        return self.data.get("setup") or {}

    @property
    def expect(self) -> Mapping[str, Any]:
        return self.data.get("expect") or {}

    @property
    def actions(self) -> list[tuple[str, Mapping[str, Any]]]:
        """The actions in order, each with its path in the case; one mapping counts as a list of one."""
        action = self.data.get("action")
        if action is None:
            return []
        if isinstance(action, list):
            return [(f"action[{n}]", item) for n, item in enumerate(action)]
        return [("action", action)]

    def problems(self) -> list[Problem]:
        """What is wrong with the case itself, before anything is run."""
        if self.problem is not None:
            return [self.problem]
        found = list(CASE.check(self.data, ""))
        if not found and self.data.get("action") is None and not (self.data.get("rule") and self.data.get("name")):
            found.append(Problem("", "a case without an action needs a rule and a name, to say what it stands for"))
        return found


@dataclass(frozen=True)
class Shape:
    """What may stand at one place of a case.

    ``keys`` are a mapping's known keys, ``patterns`` further ones as regular expressions, ``items`` the shape of a list's items.
    Where ``keys`` is None a mapping is out of place there, where ``items`` is None a list is; ``scalar`` says whether a
    text, number or boolean may stand there. Null may stand everywhere. ``free`` admits anything at all.
    """

    keys: Mapping[str, Shape] | None = None
    patterns: tuple[tuple[str, Shape], ...] = ()
    items: Shape | None = None
    scalar: bool = True
    free: bool = False

    def check(self, value: Any, path: str) -> Iterator[Problem]:
        if self.free or value is None:
            return
        if isinstance(value, Mapping):
            if self.keys is None:
                yield Problem(path, "a mapping has no meaning here")
                return
            for key, inner in value.items():
                where = f"{path}.{key}" if path else str(key)
                shape = self._shape(key)
                if shape is None:
                    yield Problem(where, f"unknown key{self._nearest(key)}")
                else:
                    yield from shape.check(inner, where)
        elif isinstance(value, list):
            if self.items is None:
                yield Problem(path, "a list has no meaning here")
                return
            for number, inner in enumerate(value):
                yield from self.items.check(inner, f"{path}[{number}]")
        elif not self.scalar:
            kind = " or ".join(k for k, on in (("a mapping", self.keys is not None), ("a list", self.items)) if on)
            yield Problem(path, f"must be {kind}, not {value!r:.60}")

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
    """A mapping of these keys; a text of names makes each of them plain."""
    named = dict.fromkeys(keys.split(), PLAIN) if isinstance(keys, str) else keys
    return Shape(named, tuple(patterns), scalar=False)


def _list(items: Shape, *, scalar: bool = False) -> Shape:
    return Shape(items=items, scalar=scalar)


PLAIN = Shape()
FREE = Shape(free=True)
TEXTS = _list(PLAIN, scalar=True)

USAGE = _map("prompt_tokens completion_tokens cached_tokens total_tokens")
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
CRYSTAL = _map(
    {
        "responses": _list(RESPONSE),
        "children": FREE,
        "usage": USAGE,
        "raw_response": FREE,
        **dict.fromkeys(
            ("record_inputs", "type", "stateless", "retry_behavior", "provider", "name", "context_window"), PLAIN
        ),
    }
)
GATE = Shape(
    {
        **dict.fromkeys(("name", "description", "behavior", "error", "delay_ms", "ephemeral"), PLAIN),
        "parameters": FREE,
        "result": FREE,
        "dependencies": FREE,
        "depends": FREE,
    }
)
CIRCLE = _map(
    # Wards are the product's own: an unknown one is its DefinitionError, which a case may expect.
    {
        "type": PLAIN,
        "medium": PLAIN,
        "gates": _list(GATE),
        "wards": Shape(items=FREE, keys={}, patterns=((".*", FREE),)),
    }
)
CALL = _map(
    {
        **dict.fromkeys(
            ("system_prompt", "temperature", "top_p", "max_tokens", "tool_choice", "require_done_tool", "require_done"),
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
        "mutate_call": FREE,
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
            ("messages_include", "messages_exclude", "message_count_includes", "message_count_excludes"), TEXTS
        ),
        "messages": _list(MESSAGE),
        "first_message": MESSAGE,
        "tools": _list(TOOL),
    }
)
OBSERVATION = _map({"is_error": PLAIN, "content": FREE, "content_contains": TEXTS})
METADATA = _map(
    "tokens_prompt tokens_completion tokens_cached cost duration_ms timestamp model trace_id truncation_reason"
)
TURN = _map(
    {
        **dict.fromkeys(
            ("id", "parent_id", "entity_id", "cast_id", "cantrip_id", "role", "sequence", "continues", "reason"), PLAIN
        ),
        **dict.fromkeys(("reward", "terminated", "truncated", "length"), PLAIN),
        "gate_calls": _list(Shape({"gate": PLAIN, "args": FREE, "result": FREE, "is_error": PLAIN})),
        "metadata": METADATA,
        "observation_contains": TEXTS,
        "utterance": FREE,
        "observation": FREE,
    }
)
INVOCATIONS = _list(INVOCATION, scalar=True)
THREAD = _map({"turns": PLAIN, "length": PLAIN, "result": FREE, "last_turn": TURN})
EXPECT = _map(
    {
        **dict.fromkeys(
            ("error", "turns", "terminated", "truncated", "entities", "entity_ids_unique", "threads"), PLAIN
        ),
        "result": FREE,
        "result_contains": TEXTS,
        "results": _list(FREE),
        "gate_calls_executed": _list(PLAIN),
        "gate_call_order": _list(PLAIN),
        "gate_results": _list(FREE),
        "crystal_invocations": INVOCATIONS,
        "crystal_received_tools": _list(TOOL),
        "crystal_received_tool_choice": PLAIN,
        "usage": USAGE,
        "cumulative_usage": USAGE,
        "thread": Shape({"length": PLAIN, "turns": _list(TURN)}, items=TURN, scalar=False),
        "loom": _map({"turn_count": PLAIN, "call": CALL, "turns": _list(TURN)}),
    },
    (r"turn_[1-9]\d*_observation", OBSERVATION),
    (r"thread_\d+", THREAD),
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
