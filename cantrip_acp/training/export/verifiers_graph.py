"""The message graph of a verifiers trace: each message once, each conversation a path from a root to a leaf."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from cantrip_acp.core.history.crystal_view import Window, WindowUtterance
from cantrip_acp.crystals.contract import Message, ToolDefinition
from cantrip_acp.crystals.logprobs import SampledTokens
from cantrip_acp.training.export.rows import Prompts, seconds, text_of, url_of

Note = Callable[[str], None]


class Graph:
    """Nodes and model calls of one trace. ``turns`` is the node of each turn, by its id. ``loose`` are the tokens of
    nodes whose prompt is unknown; they belong to no sequence."""

    def __init__(self, note: Note, learned: set[str] | None = None) -> None:
        """``learned`` are the utterances that earlier traces train, by their first turns; those of this trace are added
        to it."""
        self._learned = learned if learned is not None else set()
        self.masked: list[int] = []
        """The nodes of utterances that an earlier trace trains."""
        self.nodes: list[dict[str, Any]] = []
        self.calls: list[dict[str, Any]] = []
        self.turns: dict[str, int] = {}
        self.firsts: dict[str, int] = {}
        """The node of each utterance, by the id of its first turn. A delegation splits one utterance into several
        turns."""
        self.loose: dict[str, Any] = {}
        self._note = note
        self._heads: dict[tuple[int | None, bytes], int] = {}
        self._sequences: dict[int, list[int]] = {}

    def add(self, window: Window, prompts: Prompts) -> list[int]:
        """Add one window; returns the nodes of its utterances, in order."""
        said = {uttered.at: uttered for uttered in window.uttered}
        tools = [tool(t) for t in window.tools]
        nodes: list[int] = []
        parent: int | None = None
        for at, message in enumerate(window.messages):
            if at in said:
                parent = self._utterance(window.messages[: at + 1], parent, said[at], tools, prompts)
                nodes.append(parent)
            else:
                parent = self._context(parent, message, tools)
        return nodes

    def link(self, node: int, source: int, kind: str) -> None:
        """Add a causal link between two nodes; it is not part of a path."""
        links = self.nodes[node].setdefault("semantic_parents", [])
        if {"node": source, "type": kind} not in links:
            links.append({"node": source, "type": kind})

    def _context(self, parent: int | None, message: Message, tools: list[dict[str, Any]]) -> int:
        told = shaped(message, self._note)
        key = (parent, msgspec.json.encode([told, tools if parent is None else None]))
        found = self._heads.get(key)
        return found if found is not None else self._new(key, parent, told, tools)

    def _new(self, key: Any, parent: int | None, told: dict[str, Any], tools: list[dict[str, Any]]) -> int:
        node: dict[str, Any] = {"parent": parent, "message": told, "sampled": False, "timestamp": 0.0}
        if parent is None and tools:
            node["tools"] = tools
        self.nodes.append(node)
        self._heads[key] = len(self.nodes) - 1
        self._sequences[len(self.nodes) - 1] = self._sequences.get(parent, []) if parent is not None else []
        return len(self.nodes) - 1

    def _utterance(
        self,
        messages: Sequence[Message],
        parent: int | None,
        uttered: WindowUtterance,
        tools: list[dict[str, Any]],
        prompts: Prompts,
    ) -> int:
        turn = uttered.turn
        known = self.turns.get(turn.id)
        if known is not None:
            # The trace already has this prefix; siblings of a child may share one.
            return known
        sampled = turn.metadata.sampled
        before = self._sequences.get(parent, []) if parent is not None else []
        added: list[int] = []
        if isinstance(sampled, SampledTokens) and sampled.ids:
            prompt = prompts.of(sampled)
            if prompt and prompt[: len(before)] != before:
                # The template encoded the earlier turns with other tokens. Add a separate path, with the tokens that
                # the model saw.
                parent = self._again(messages[:-1], tools)
                before = []
            added = prompt[len(before) :]
            if not prompt:
                self._loose(turn.id, sampled)
        elif isinstance(sampled, SampledTokens):
            self._loose(turn.id, sampled)
        told = shaped(messages[-1], self._note)
        node = self._new((parent, f"said {turn.id}".encode()), parent, told, tools)
        end = seconds(turn.metadata.timestamp)
        self.nodes[node] |= {"sampled": True, "timestamp": end}
        if isinstance(sampled, SampledTokens) and sampled.ids and turn.id not in self.loose:
            ids = list(sampled.ids)
            self.nodes[node] |= {
                "token_ids": added + ids,
                "mask": [False] * len(added) + [True] * len(ids),
                "logprobs": list(sampled.logprobs),
            }
            self._sequences[node] = before + added + ids
        if uttered.first in self._learned:
            self._mask(node)
        self._learned.add(uttered.first)
        self.turns[turn.id] = self.firsts[turn.continues or turn.id] = node
        self.calls.append(_call(uttered, node, end))
        return node

    def _mask(self, node: int) -> None:
        """Keep the node's tokens, like those of a prompt, but train none of them."""
        self.masked.append(node)
        if "token_ids" in self.nodes[node]:
            self.nodes[node] |= {"mask": [False] * len(self.nodes[node]["token_ids"]), "logprobs": []}

    def _again(self, messages: Sequence[Message], tools: list[dict[str, Any]]) -> int | None:
        """Add the messages again, as nodes without tokens."""
        parent: int | None = None
        for message in messages:
            told = shaped(message, self._note)
            parent = self._new((parent, b"again %d" % len(self.nodes)), parent, told, tools)
            self._sequences[parent] = []
        return parent

    def _loose(self, turn_id: str, sampled: SampledTokens) -> None:
        self._note("tokens without their prompt's: kept in info.cantrip.tokens")
        self.loose[turn_id] = msgspec.to_builtins(sampled)


def _call(uttered: WindowUtterance, node: int, end: float) -> dict[str, Any]:
    counted = uttered.turn.metadata
    stop = counted.stop_reason if isinstance(counted.stop_reason, str) else None
    call: dict[str, Any] = {"node": node}
    if counted.tokens_prompt is not None and counted.tokens_completion is not None:
        cached = counted.tokens_cached or 0
        call["usage"] = {
            "prompt_tokens": max(0, counted.tokens_prompt - cached),
            "completion_tokens": counted.tokens_completion,
            "cached_input_tokens": cached,
            **({"cost": counted.cost} if counted.cost is not None else {}),
        }
    if counted.model is not None:
        call["model"] = counted.model
    if stop in ("stop", "length", "tool_calls"):
        call["finish_reason"] = stop
    # The time of the whole turn, the circle's time included.
    call["time"] = {"start": max(0.0, end - counted.duration_ms / 1000), "end": end}
    return call


def shaped(message: Message, note: Note) -> dict[str, Any]:
    """One message in the form of verifiers."""
    content: Any = message.content
    if message.attachments:
        content = []
        for each in message.attachments:
            if each.kind == "image":
                content.append({"type": "image_url", "image_url": {"url": url_of(each)}})
            else:
                note(f"an attachment ({each.kind}) is told by its name alone")
                content.append({"type": "text", "text": f"[{each.kind}: {each.title or each.uri or each.mime}]"})
        content.append({"type": "text", "text": message.content or ""})
    out: dict[str, Any] = {"role": message.role}
    if message.role == "assistant":
        if (words := text_of(message)) is not None:
            out["content"] = words
        if message.thinking:
            out["reasoning_content"] = message.thinking
        if message.tool_calls:
            out["tool_calls"] = [
                {"id": c.id, "type": "function", "name": c.gate, "arguments": c.args} for c in message.tool_calls
            ]
        return out
    out["content"] = content if content is not None else ""
    if message.role == "tool":
        out["tool_call_id"] = message.tool_call_id or ""
        if message.name:
            out["name"] = message.name
    return out


def tool(definition: ToolDefinition) -> dict[str, Any]:
    """One tool in the form of verifiers."""
    return {
        "type": "function",
        "name": definition.name,
        "description": definition.description,
        "parameters": definition.parameters,
    }
