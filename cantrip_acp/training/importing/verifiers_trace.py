"""The fields of a verifiers trace, each checked on decoding, because anybody may have written the file."""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from cantrip_acp.text import codecs
from cantrip_acp.training.importing.json_lines import ImportProblem, Report


class Call(msgspec.Struct, frozen=True):
    id: str
    name: str
    arguments: str = "{}"


class Message(msgspec.Struct, frozen=True):
    """A message; ``content`` is text or parts."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | list[dict[str, Any]] | None = None
    reasoning_content: str | None = None
    tool_calls: tuple[Call, ...] | None = None
    tool_call_id: str | None = None
    name: str | None = None

    @property
    def text(self) -> str:
        """Its text, with parts joined; images have none."""
        if isinstance(self.content, list):
            return "\n".join(str(p["text"]) for p in self.content if isinstance(p.get("text"), str))
        return self.content or ""

    @property
    def images(self) -> list[str]:
        """The addresses of its images."""
        parts = self.content if isinstance(self.content, list) else []
        found = (p.get("image_url") for p in parts)
        return [str(f["url"]) for f in found if isinstance(f, dict) and isinstance(f.get("url"), str)]


class Link(msgspec.Struct, frozen=True):
    node: int
    type: str


class Tool(msgspec.Struct, frozen=True):
    name: str
    description: str = ""
    parameters: dict[str, Any] = {}


class Node(msgspec.Struct, frozen=True):
    """A message and its place in the graph."""

    message: Message
    parent: int | None = None
    sampled: bool = False
    timestamp: float = 0.0
    tools: tuple[Tool, ...] = ()
    semantic_parents: tuple[Link, ...] = ()
    token_ids: tuple[int, ...] = ()
    mask: tuple[bool, ...] = ()
    logprobs: tuple[float, ...] = ()


class Usage(msgspec.Struct, frozen=True):
    """Tokens of a call; prompt tokens do not include those from a cache."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_input_tokens: int | None = None
    cost: float | None = None


class Span(msgspec.Struct, frozen=True):
    """A time span, in seconds since 1970."""

    start: float = 0.0
    end: float = 0.0


class ModelCall(msgspec.Struct, frozen=True):
    """A call of the model, and the node with its answer."""

    node: int | None = None
    model: str | None = None
    finish_reason: str | None = None
    usage: Usage | None = None
    time: Span = Span()


class Reward(msgspec.Struct, frozen=True):
    score: float
    weight: float = 1.0


class Error(msgspec.Struct, frozen=True):
    type: str = "Error"
    message: str = ""


class Trace(msgspec.Struct, frozen=True):
    """A trace, with the fields that a loom can represent."""

    id: str
    nodes: tuple[Node, ...]
    task: dict[str, Any] = {}
    calls: tuple[ModelCall, ...] = ()
    tools: tuple[Tool, ...] = ()
    rewards: dict[str, Reward | None] = {}
    metrics: dict[str, float | None] = {}
    info: dict[str, Any] = {}
    is_completed: bool = False
    ok: bool = False
    stop_condition: str | None = None
    is_timeout: bool = False
    errors: tuple[Error, ...] = ()


_SUMS = ("num_input_tokens", "num_output_tokens", "num_total_tokens")
_SAID = frozenset({"version", "verifiers", "is_timeout", "ok", "root_reply", "type", "stop_condition", *_SUMS})
"""Fields that repeat other fields of the same trace, or name the format."""
_OWN = frozenset({"agent", "env", "errors", "group", "id", "info", "masked", "task", "timing", "tokens"})
"""Fields that our own exports add, computed from the loom."""


def read(where: str, data: dict[str, Any], report: Report) -> list[Trace]:
    """The traces of a line: those of an episode, or the line itself. Adds the fields that `Trace` has no place for to the report.

    Raises `ImportProblem` for an invalid trace.
    """
    given = data.get("traces") if "traces" in data else [data]
    if not isinstance(given, list):
        raise ImportProblem(where, "traces is not a list")
    traces = [
        _trace(f"{where}: trace {number}" if len(given) > 1 else where, each) for number, each in enumerate(given)
    ]
    ours = bool(traces) and all(isinstance(trace.info.get("cantrip"), dict) for trace in traces)
    known = _SAID | (_OWN if ours else frozenset())
    if "traces" in data:
        report.fields("episode", data, known | {"traces"})
    for each, trace in zip(given, traces, strict=True):
        _unplaced(report, "trace", each, Trace, known)
        if not ours:
            report.fields("trace.info", trace.info, ())
            task = trace.task.get("data")
            report.fields("trace.task", trace.task, ("type", "data"))
            if isinstance(task, dict):
                report.fields("trace.task.data", task, ("prompt", "system_prompt"))
            elif task:
                report.note("a field that a loom has no place for: trace.task.data")
    return traces


def _unplaced(report: Report, where: str, data: Any, shape: Any, known: Collection[str]) -> None:
    """Note the fields of plain data that a struct lacks, at any depth."""
    if get_origin(shape) in (UnionType, Union):
        parts = [each for each in get_args(shape) if get_origin(each) is tuple or hasattr(each, "__struct_fields__")]
        shape = parts[0] if parts else None
    if isinstance(shape, type) and issubclass(shape, msgspec.Struct):
        hints = _hints(shape)
        report.fields(where, data, {*known, *hints})
        for key, inner in hints.items():
            if isinstance(data.get(key), dict | list):
                _unplaced(report, f"{where}.{key}", data[key], inner, ("type",))
    elif get_origin(shape) is tuple and isinstance(data, list):
        for each in data:
            if isinstance(each, dict):
                _unplaced(report, where, each, get_args(shape)[0], known)
    elif get_origin(shape) is dict and isinstance(data, dict):
        for each in data.values():
            if isinstance(each, dict):
                _unplaced(report, where, each, get_args(shape)[1], known)


@cache
def _hints(shape: type[msgspec.Struct]) -> dict[str, Any]:
    return get_type_hints(shape)


def _trace(where: str, data: Any) -> Trace:
    version = data.get("version", 1) if isinstance(data, dict) else 1
    if version != 1:
        raise ImportProblem(where, f"a verifiers trace of version {version!r}; this version of Cantrip reads version 1")
    try:
        trace = codecs.convert(data, Trace)
    except (msgspec.ValidationError, RecursionError) as error:
        raise ImportProblem(where, f"not a verifiers trace: {error}") from None
    for number, node in enumerate(trace.nodes):
        # Nodes are in the order of creation: a parent comes before its child, so there can be no cycle.
        if node.parent is not None and not 0 <= node.parent < number:
            raise ImportProblem(where, f"node {number} has the parent {node.parent}, which does not come before it")
        if any(not 0 <= link.node < len(trace.nodes) for link in node.semantic_parents):
            raise ImportProblem(where, f"node {number} is linked to a node that is not there")
        if node.sampled and node.message.role != "assistant":
            raise ImportProblem(
                where, f"node {number} is marked as the model's, but is a {node.message.role}'s message"
            )
        if node.mask and len(node.mask) != len(node.token_ids):
            raise ImportProblem(where, f"node {number} has {len(node.mask)} marks for {len(node.token_ids)} tokens")
    return trace
