"""A verifiers trace as it was written: checked field by field, since anybody may have written it."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from cantrip_acp import shapes
from cantrip_acp.loom.importing.contract import ImportProblem


class Call(msgspec.Struct, frozen=True):
    """A tool call of an assistant's message."""

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
        """The text of it, parts joined; images have none."""
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
    """A semantic parent."""

    node: int
    type: str


class Tool(msgspec.Struct, frozen=True):
    """A tool's definition."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = {}


class Node(msgspec.Struct, frozen=True):
    """A message in its place."""

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
    """Tokens of a call; the prompt's without those from a cache."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_input_tokens: int | None = None
    cost: float | None = None


class Span(msgspec.Struct, frozen=True):
    """Seconds since 1970."""

    start: float = 0.0
    end: float = 0.0


class ModelCall(msgspec.Struct, frozen=True):
    """A call of the model, and the node that it gave."""

    node: int | None = None
    model: str | None = None
    finish_reason: str | None = None
    usage: Usage | None = None
    time: Span = Span()


class Reward(msgspec.Struct, frozen=True):
    """A reward and its weight."""

    score: float
    weight: float = 1.0


class Error(msgspec.Struct, frozen=True):
    """A failure."""

    type: str = "Error"
    message: str = ""


class Trace(msgspec.Struct, frozen=True):
    """A trace, as far as a loom has a place for it."""

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


def read(where: str, data: dict[str, Any]) -> list[Trace]:
    """The traces of a line: an episode's, or the line itself. Raises `ImportProblem` for a shape that is none."""
    given = data.get("traces") if "traces" in data else [data]
    if not isinstance(given, list):
        raise ImportProblem(where, "traces is no list")
    return [_trace(f"{where}: trace {number}" if len(given) > 1 else where, each) for number, each in enumerate(given)]


def _trace(where: str, data: Any) -> Trace:
    version = data.get("version", 1) if isinstance(data, dict) else 1
    if version != 1:
        raise ImportProblem(where, f"a verifiers trace of version {version!r}; version 1 is read")
    try:
        trace = shapes.convert(data, Trace)
    except (msgspec.ValidationError, RecursionError) as error:
        raise ImportProblem(where, f"no verifiers trace: {error}") from None
    for number, node in enumerate(trace.nodes):
        # In the order of making: a parent stands before its child, which rules out every circle.
        if node.parent is not None and not 0 <= node.parent < number:
            raise ImportProblem(where, f"node {number} has the parent {node.parent}, which does not stand before it")
        if any(not 0 <= link.node < len(trace.nodes) for link in node.semantic_parents):
            raise ImportProblem(where, f"node {number} is linked to a node that is not there")
        if node.sampled and node.message.role != "assistant":
            raise ImportProblem(where, f"node {number} is said to be a model's, and is a {node.message.role}'s message")
        if node.mask and len(node.mask) != len(node.token_ids):
            raise ImportProblem(where, f"node {number} has {len(node.mask)} marks for {len(node.token_ids)} tokens")
    return trace
