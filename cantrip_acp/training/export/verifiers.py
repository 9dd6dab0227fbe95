"""Export in the verifiers format (version 1): one episode per line, as in the file ``traces.jsonl`` of verifiers.

Each thread has one trace, which includes its children.

A trace is a graph. Each fold starts a new branch, linked by ``compaction``. Each child is a branch, linked by
``subagent_call`` to the turn that spawned it and by ``subagent_return`` to the next turn. Forks of a turn share the
episode's ``group``. An answer that was rejected (`rejected`) has an episode of its own. An utterance that several traces
share is trained in the first. In the others its token mask is all false, and ``info.cantrip.masked`` lists its node.
``info.cantrip.written`` lists the nodes that a script or a person wrote. ``info.cantrip`` also has what verifiers has no
field for, such as the rewards of children.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from cantrip_acp.core.history.replayed_context import Window, WindowUtterance
from cantrip_acp.crystals.contract import CUTS
from cantrip_acp.crystals.text_tools import words_of
from cantrip_acp.loom import rewards
from cantrip_acp.loom.query.thread import INTERRUPTED, answer
from cantrip_acp.training.export.export_format import export_format
from cantrip_acp.training.export.rejected import RejectedAnswer, failed_casts, rejected_answers
from cantrip_acp.training.export.rows import Note, Sequences, attachments_as_parts, image_url, request_of, seconds
from cantrip_acp.training.export.selection import Episode, Source
from cantrip_acp.types.messages import Message, SampledTokens, ToolDefinition
from cantrip_acp.types.records import Turn
from cantrip_acp.version import __version__

_STOPS = {"max_turns": "max_turns", "max_tokens": "max_total_tokens", "max_seconds": "agent_timeout", "error": "error"}
"""Maps the loom's reason for an end to the stop condition of verifiers. Other reasons are written unchanged."""


@export_format(
    "verifiers",
    "verifiers (v1) episodes: traces as trees of messages, with token ids and log-probabilities",
    marks_truncated=True,
)
def verifiers(source: Source) -> Iterator[dict[str, Any]]:
    """One row for each thread. A child's thread is in the row of its parent (`Source.trees`)."""
    for episode, embedded in source.trees():
        if not embedded:
            graph = Graph(source.note, source.sampled, source.take)
            _thread(source, graph, episode)
            yield _row(source, episode, graph, answer(source.loom.turn(episode.leaf)))
            source.count_exported(episode.leaf)
        yield from _rejected(source, rejected_answers(source, episode))
    for _, answers in failed_casts(source):
        yield from _rejected(source, answers)


def _rejected(source: Source, answers: Iterable[RejectedAnswer]) -> Iterator[dict[str, Any]]:
    """Make an episode for each rejected answer: its prompt and the answer."""
    for each in answers:
        graph = Graph(source.note, source.sampled, lambda _: True)
        graph.add(each.window, Sequences(source))
        yield _row(source, each.episode, graph, each.attempt.content)


def _row(source: Source, episode: Episode, graph: Graph, reply: Any) -> dict[str, Any]:
    trace = _trace(source, episode, graph, reply)
    row: dict[str, Any] = {
        "id": f"{trace['id']}-episode",
        "env": {"id": "cantrip-acp"},
        "task": trace["task"],
        "ok": trace["ok"],
        "is_timeout": trace["is_timeout"],
        "errors": trace["errors"],
        "traces": [trace],
    }
    if episode.group is not None:
        row["group"] = {"id": episode.group}
    return row


def _trace(source: Source, episode: Episode, graph: Graph, reply: Any) -> dict[str, Any]:
    """``reply`` is the answer of the thread."""
    record = source.loom.cantrip(episode.cantrip_id)
    prompt = record.call.get("system_prompt") if record is not None else None
    data: dict[str, Any] = {"id": episode.cast_id or episode.leaf, "prompt": episode.intent}
    if isinstance(prompt, str):
        data["system_prompt"] = prompt
    if episode.reference_text is not None:
        data["answer"] = episode.reference_text
    key = hashlib.sha256(msgspec.json.encode([episode.cantrip_id, episode.intent])).hexdigest()[:32]
    timed_out = episode.reason == "max_seconds"
    trace: dict[str, Any] = {
        "version": 1,
        "id": episode.leaf,
        "verifiers": {"version": f"cantrip-acp {__version__}"},
        "task": {"type": "CantripTask", "data": data, "key": key},
        "agent": {"config": {}, "name": "agent"},
        "tools": [tool(t) for t in source.seen.circle(episode.cantrip_id).tools],
        "nodes": graph.nodes,
        "calls": graph.calls,
        "rewards": {} if episode.reward is None else {"reward": {"score": episode.reward, "weight": 1.0}},
        "metrics": {"turns": float(sum(1 for n in graph.nodes if n["sampled"]))},
        "info": {"cantrip": {**episode.about(), "turns": {str(node): i for i, node in graph.turns.items()}}},
        "is_completed": episode.state != "active" and episode.reason != INTERRUPTED,
        "ok": episode.complete,
        "is_timeout": timed_out,
        "errors": _errors(episode),
        "timing": {
            "start": seconds(episode.started),
            "agent": {"start": seconds(episode.started), "end": seconds(episode.ended)},
        },
    }
    extra = {
        "requests": graph.requests,
        "masked": graph.masked,
        "written": graph.written,
        "children": graph.children,
        "tokens": graph.loose,
    }
    trace["info"]["cantrip"] |= {name: value for name, value in extra.items() if value}
    if episode.relative is not None:
        trace["metrics"]["relative_reward"] = episode.relative
    if episode.state == "terminated":
        trace["stop_condition"] = "agent_completed"
    elif episode.reason is not None:
        trace["stop_condition"] = _STOPS.get(episode.reason, episode.reason)
    if isinstance(reply, str):
        trace["root_reply"] = reply
    _fill_timestamps(graph.nodes)
    return trace


def _errors(episode: Episode) -> list[dict[str, Any]]:
    if episode.error is None:
        return []
    kind, colon, words = episode.error.partition(": ")
    return [{"type": kind if colon else "Error", "message": words if colon else kind}]


def _thread(source: Source, graph: Graph, episode: Episode) -> tuple[int | None, int | None]:
    """Add the windows of a thread, then those of its children. Returns the first and the last sampled node of the thread."""
    sequences = Sequences(source)
    first: int | None = None
    last: int | None = None
    order: list[int] = []
    for window in episode.queries():
        if window.begun == "summary":
            source.note("the query of a fold's summary is left out")
            continue
        nodes = graph.add(window, sequences)
        if last is not None and nodes and window.begun in ("fold", "cut"):
            graph.link(nodes[0], last, "compaction")
        elif last is not None and nodes and window.begun in ("fork", "cantrip", "tools", "asked again"):
            graph.link(nodes[0], last, "continuation")
        first = nodes[0] if first is None and nodes else first
        last = nodes[-1] if nodes else last
        order += nodes
    for turn_id, child in source.children(episode):
        begun, ended = _thread(source, graph, child)
        graph.children[child.leaf] = rewards.of_thread(source.loom, child.leaf, outline=source.outline)
        spawner = graph.firsts.get(source.loom.turn(turn_id).continues or turn_id)
        if begun is None or ended is None or spawner is None:
            continue
        graph.link(begun, spawner, "subagent_call")
        after = [n for n in order if n > spawner]
        if after:
            graph.link(after[0], ended, "subagent_return")
    return first, last


def _fill_timestamps(nodes: list[dict[str, Any]]) -> None:
    """Set each missing timestamp to that of the first turn that read the node, as verifiers does."""
    for node in reversed(nodes):
        parent = node["parent"]
        if parent is not None and node["timestamp"] and not nodes[parent]["timestamp"]:
            nodes[parent]["timestamp"] = node["timestamp"]


class Graph:
    """The nodes and model calls of one trace. Each message is one node. Each conversation is a path from a root to a leaf.

    ``turns`` maps the id of a turn to its node. ``loose`` maps the id of a turn to its tokens if the tokens of its prompt
    are unknown. These tokens are in no node.
    """

    def __init__(self, note: Note, by_model: Callable[[Turn], bool], take: Callable[[str], bool]) -> None:
        """``by_model`` says whether a model wrote an utterance, ``take`` whether this trace is the first that has one
        (`Source.take`)."""
        self._by_model = by_model
        self._take = take
        self.masked: list[int] = []
        """The nodes of utterances that an earlier trace trains."""
        self.written: list[int] = []
        """The nodes of utterances that a script or a person wrote."""
        self.nodes: list[dict[str, Any]] = []
        self.calls: list[dict[str, Any]] = []
        self.turns: dict[str, int] = {}
        self.firsts: dict[str, int] = {}
        """Maps the id of an utterance's first turn to its node. A delegation splits one utterance into several turns."""
        self.loose: dict[str, Any] = {}
        self.requests: dict[str, Any] = {}
        """Maps each sampled node to the parameters of its query."""
        self.children: dict[str, float | None] = {}
        """The rewards of children by their last turns. All tokens of a trace have the reward of the trace."""
        self._note = note
        self._heads: dict[tuple[int | None, bytes], int] = {}
        self._sequences: dict[int, list[int]] = {}

    def add(self, window: Window, sequences: Sequences) -> list[int]:
        """Add one window. Returns the nodes of its utterances, in order."""
        utterances = {uttered.at: uttered for uttered in window.uttered}
        tools = [tool(t) for t in window.tools]
        nodes: list[int] = []
        parent: int | None = None
        for at, message in enumerate(window.messages):
            if at in utterances:
                parent = self._utterance(window.messages[: at + 1], parent, utterances[at], tools, sequences)
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
        node_message = convert_message(message, self._note)
        key = (parent, msgspec.json.encode([node_message, tools if parent is None else None]))
        found = self._heads.get(key)
        return found if found is not None else self._new(key, parent, node_message, tools)

    def _new(self, key: Any, parent: int | None, node_message: dict[str, Any], tools: list[dict[str, Any]]) -> int:
        node: dict[str, Any] = {"parent": parent, "message": node_message, "sampled": False, "timestamp": 0.0}
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
        sequences: Sequences,
    ) -> int:
        turn = uttered.turn
        known = self.turns.get(turn.id)
        if known is not None:
            # The trace already has this turn, because sibling children may share a prefix.
            return known
        sampled, prompt = sequences.of(turn)
        before = self._sequences.get(parent, []) if parent is not None else []
        added: list[int] = []
        if sampled is not None and sampled.ids:
            if prompt and prompt[: len(before)] != before:
                # The template encoded the earlier turns with other tokens. Add a separate path with the tokens
                # that the model read.
                parent = self._copy_path(messages[:-1], tools)
                before = []
            added = prompt[len(before) :]
            if not prompt:
                self._add_loose(turn.id, sampled)
        elif sampled is not None:
            self._add_loose(turn.id, sampled)
        node_message = convert_message(messages[-1], self._note)
        node = self._new((parent, f"said {turn.id}".encode()), parent, node_message, tools)
        end = seconds(turn.metadata.timestamp)
        self.nodes[node] |= {"sampled": True, "timestamp": end}
        if sampled is not None and sampled.ids and turn.id not in self.loose:
            ids = list(sampled.ids)
            self.nodes[node] |= {
                "token_ids": added + ids,
                "mask": [False] * len(added) + [True] * len(ids),
                "logprobs": list(sampled.logprobs),
            }
            self._sequences[node] = before + added + ids
        if not self._take(uttered.first):
            # All its tokens are not trained. The node keeps them, as a prompt does.
            self.masked.append(node)
            if "token_ids" in self.nodes[node]:
                self.nodes[node] |= {"mask": [False] * len(self.nodes[node]["token_ids"]), "logprobs": []}
        self.turns[turn.id] = self.firsts[turn.continues or turn.id] = node
        if not self._by_model(turn):
            self.written.append(node)
        self.calls.append(_call(uttered, node, end))
        if asked := request_of(turn):
            self.requests[str(node)] = asked
        return node

    def _copy_path(self, messages: Sequence[Message], tools: list[dict[str, Any]]) -> int | None:
        """Add the messages as a new path of nodes without tokens. Returns the last node; None if there is no message."""
        parent: int | None = None
        for message in messages:
            node_message = convert_message(message, self._note)
            parent = self._new((parent, b"again %d" % len(self.nodes)), parent, node_message, tools)
            self._sequences[parent] = []
        return parent

    def _add_loose(self, turn_id: str, sampled: SampledTokens) -> None:
        self._note("tokens whose prompt has no tokens: written only to info.cantrip.tokens")
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
    if stop in ("stop", *CUTS, "tool_calls"):
        call["finish_reason"] = "length" if stop in CUTS else stop
    # The time of the whole turn. It includes the time that the circle needed.
    call["time"] = {"start": max(0.0, end - counted.duration_ms / 1000), "end": end}
    return call


def convert_message(message: Message, note: Note) -> dict[str, Any]:
    out: dict[str, Any] = {"role": message.role}
    if message.role == "assistant":
        if (words := words_of(message)) is not None:
            out["content"] = words
        if message.thinking:
            out["reasoning_content"] = message.thinking
        if message.tool_calls:
            out["tool_calls"] = [
                {"id": c.id, "type": "function", "name": c.gate, "arguments": c.args} for c in message.tool_calls
            ]
        return out
    out["content"] = message.content or ""
    if message.attachments:
        out["content"] = [
            *attachments_as_parts(message, note, image_url),
            {"type": "text", "text": message.content or ""},
        ]
    if message.role == "tool":
        out["tool_call_id"] = message.tool_call_id or ""
        if message.name:
            out["name"] = message.name
    return out


def tool(definition: ToolDefinition) -> dict[str, Any]:
    return {
        "type": "function",
        "name": definition.name,
        "description": definition.description,
        "parameters": definition.parameters,
    }
