"""Results: how a cast ended, and how the casts of a fork group ended."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic

from cantrip_acp.text.json_data import plain, thaw
from cantrip_acp.types.usage import Usage

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    Value = TypeVar("Value", default=Any)
else:
    from typing import TypeVar

    Value = TypeVar("Value")


_CALL = re.compile(r"```tool_call\b.*?(?:```|\Z)|<(tool_call|function_call)>.*?(?:</\1>|\Z)", re.DOTALL)
"""A tool call that a model wrote as text, also one that is cut off (`crystals.text_tools`)."""


def without_calls(text: str) -> str:
    """A model's text on one line, for people: without the tool calls in it.

    >>> without_calls("I look.\\n```tool_call\\n{}\\n```")
    'I look.'
    """
    return " ".join(_CALL.sub(" ", text).split())


def _shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHORT else f"{text[: _SHORT - 1]}…"


def _as_json(value: Any) -> str:
    return json.dumps(thaw(plain(value)), indent=2, ensure_ascii=False)


_SHORT = 200
"""The most characters of an answer in a repr."""


@dataclass(frozen=True, slots=True)
class CastResult(Generic[Value]):
    """How a cast ended.

    ``terminated``: it ended by itself, with ``done`` or with an answer in plain text. ``truncated``: it was cut off, by a limit,
    a cancel or an error. One of both is True, and ``reason`` says which way.
    ``result`` is the argument of ``done``, or the last text; None if it was cut off. With a ``result_type`` it is a value of
    that type, and a cast that was cut off raises `NoResult`.
    ``reason`` is one of done, text, max_turns, max_seconds, max_tokens, max_cost, output_limit, cancelled, parent_terminated,
    refusal, error.
    ``summary`` says what was done before a truncation (LOOP-4). ``loom`` is where the trace is, None in memory.
    ``usage`` includes all children; ``children_usage`` is their part, None if there were none. Both count every
    billed query: failed and repeated attempts, cancelled streams as far as their provider reported, summaries of
    folding.
    ``warnings`` name the wards that could not be enforced, or not exactly, and the MCP servers that could not be reached,
    and say why; and they name file and line of errors in the code of gates.
    """

    result: Value
    terminated: bool
    truncated: bool
    reason: str
    usage: Usage
    turns: int
    entity_id: str
    cast_id: str
    trace_id: str
    summary: str | None = None
    loom: str | None = None
    children_usage: Usage | None = None
    warnings: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<CastResult {self._ending()}: {_shortened(self.result)}>"

    def _repr_html_(self) -> str:
        """What a notebook shows: the whole answer, and how the cast ended.

        It is text and never markup: an image in a model's answer could send what it read to an address of its choice.
        """
        from html import escape

        shown = self.result if isinstance(self.result, str) else _as_json(self.result)
        parts = [shown if self.result is not None else self.summary or "no result", *self.warnings]
        texts = "".join(f'<pre style="white-space: pre-wrap">{escape(part)}</pre>' for part in parts)
        return f"{texts}<small>{escape(self._ending())}</small>"

    def _ending(self) -> str:
        """How the cast ended, in a few words: ``done, 3 turns, 1,204 tokens, $0.01``."""
        cost = [] if self.usage.cost is None else [f"${self.usage.cost:.4g}"]
        turns = "1 turn" if self.turns == 1 else f"{self.turns} turns"
        return ", ".join([self.reason, turns, f"{self.usage.total_tokens:,} tokens", *cost])

    @property
    def own_usage(self) -> Usage:
        """``usage`` without the children's part."""
        return self.usage if self.children_usage is None else self.usage - self.children_usage

    def record(self) -> dict[str, Any]:
        """The result as data, as the last line of ``cantrip cast --json`` has it."""
        return {
            "result": plain(self.result),
            "terminated": self.terminated,
            "truncated": self.truncated,
            "reason": self.reason,
            "usage": self.usage.record(),
            "entity_id": self.entity_id,
            "cast_id": self.cast_id,
            "trace_id": self.trace_id,
            "turns": self.turns,
            "loom": self.loom,
            **({"children_usage": self.children_usage.record()} if self.children_usage is not None else {}),
            **({"warnings": list(self.warnings)} if self.warnings else {}),
        }


@dataclass(frozen=True, slots=True)
class Sample(Generic[Value]):
    """One fork of a group.

    ``number`` is its place in the group (from 0), ``result`` how its cast ended, ``error`` what it failed with,
    ``worktree`` its folder, ``reward`` that of its thread (None if it has none). ``entity_id`` is in the loom if the fork
    itself could be made.
    """

    number: int
    entity_id: str
    result: CastResult[Value] | None
    error: Exception | None = None
    worktree: str | None = None
    reward: float | None = None

    @property
    def answer(self) -> Value:
        """The answer of the cast. Raises the error of a fork that failed."""
        if self.result is None:
            raise self.error or RuntimeError("the fork has no result")
        return self.result.result


@dataclass(frozen=True, slots=True)
class ForkGroup(Generic[Value]):
    """Forks of the turn ``turn_id``. Each fork's record has ``id``; ``samples`` are in the order of the request."""

    id: str
    turn_id: str
    samples: tuple[Sample[Value], ...]
