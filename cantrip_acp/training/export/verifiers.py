"""verifiers format (version 1): one episode per line, as in its ``traces.jsonl``. Each thread has one trace, with its
children.

A trace is a graph. Each fold begins another branch, linked by ``compaction``. Each child is a branch, linked by
``subagent_call`` to the turn that spawned it and by ``subagent_return`` to the turn after. Forks of a turn share the
episode's ``group``. An utterance that several traces share is trained in the first. In the others its token mask is all
false, and ``info.cantrip.masked`` lists its node. ``info.cantrip`` also has what verifiers has no field for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import msgspec

from cantrip_acp.core.errors import LoomError
from cantrip_acp.loom.query.thread import INTERRUPTED, answer
from cantrip_acp.training.export.rows import Prompts, seconds
from cantrip_acp.training.export.selection import Episode, Source
from cantrip_acp.training.export.verifiers_graph import Graph, tool
from cantrip_acp.version import __version__

_STOPS = {
    "max_turns": "max_turns",
    "max_tokens": "max_total_tokens",
    "max_seconds": "agent_timeout",
    "error": "error",
}
"""The loom's reasons in the words of verifiers; the others stay as they are."""


class Verifiers:
    """Writes one row per thread."""

    name = "verifiers"
    summary = "verifiers (v1) episodes: traces as trees of messages, with token ids and log-probabilities"
    marks_truncated = True

    def rows(self, source: Source) -> Iterator[dict[str, Any]]:
        named = set(source.wanted.threads)
        children: list[str] = []
        learned: set[str] = set()
        for episode in source.episodes(marked=True):
            if episode.parent_turn is not None and episode.leaf not in named:
                children.append(episode.leaf)
                continue
            yield _row(source, episode, learned)
            source.count_exported(episode.leaf)
        for leaf in children:
            source.leave_out(leaf, "a child's whose parent's thread is left out")


def _row(source: Source, episode: Episode, learned: set[str]) -> dict[str, Any]:
    trace = _trace(source, episode, learned)
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


def _trace(source: Source, episode: Episode, learned: set[str]) -> dict[str, Any]:
    graph = Graph(source.note, learned)
    _thread(source, graph, episode)
    last = source.loom.turn(episode.leaf)
    record = source.loom.cantrip(episode.cantrip_id)
    prompt = record.call.get("system_prompt") if record is not None else None
    data: dict[str, Any] = {"id": episode.cast_id or episode.leaf, "prompt": episode.intent}
    if isinstance(prompt, str):
        data["system_prompt"] = prompt
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
    if graph.masked:
        trace["info"]["cantrip"]["masked"] = graph.masked
    if graph.loose:
        trace["info"]["cantrip"]["tokens"] = graph.loose
    if episode.relative is not None:
        trace["metrics"]["relative_reward"] = episode.relative
    if episode.state == "terminated":
        trace["stop_condition"] = "agent_completed"
    elif episode.reason is not None:
        trace["stop_condition"] = _STOPS.get(episode.reason, episode.reason)
    said = answer(last)
    if isinstance(said, str):
        trace["root_reply"] = said
    _stamp(graph.nodes)
    return trace


def _errors(episode: Episode) -> list[dict[str, Any]]:
    if episode.error is None:
        return []
    kind, colon, words = episode.error.partition(": ")
    return [{"type": kind if colon else "Error", "message": words if colon else kind}]


def _thread(source: Source, graph: Graph, episode: Episode) -> tuple[int | None, int | None]:
    """Add a thread's windows, then its children's; returns the first and the last sampled node."""
    prompts = Prompts()
    first: int | None = None
    last: int | None = None
    order: list[int] = []
    for window in episode.windows():
        nodes = graph.add(window, prompts)
        if last is not None and nodes and window.begun in ("fold", "cut"):
            graph.link(nodes[0], last, "compaction")
        elif last is not None and nodes and window.begun == "fork":
            graph.link(nodes[0], last, "continuation")
        first = nodes[0] if first is None and nodes else first
        last = nodes[-1] if nodes else last
        order += nodes
    if source.wanted.children:
        _children(source, graph, episode, order)
    return first, last


def _children(source: Source, graph: Graph, episode: Episode, order: list[int]) -> None:
    for turn_id in source.outline.own_path(episode.leaf):
        for begun in source.outline.spawned.get(turn_id, ()):
            leaf = source.outline.tips[begun]
            if source.outline.places[leaf].role == "call":
                continue
            try:
                source.seen.check(leaf)
            except LoomError as problem:
                source.leave_out(leaf, str(problem))
                continue
            first, last = _thread(source, graph, source.episode(leaf))
            source.count_exported(leaf)
            spawner = graph.firsts.get(source.loom.turn(turn_id).continues or turn_id)
            if first is None or last is None or spawner is None:
                continue
            graph.link(first, spawner, "subagent_call")
            after = [n for n in order if n > spawner]
            if after:
                graph.link(after[0], last, "subagent_return")


def _stamp(nodes: list[dict[str, Any]]) -> None:
    """Give each node without a time the time of the first turn that read it, as verifiers does."""
    for node in reversed(nodes):
        parent = node["parent"]
        if parent is not None and node["timestamp"] and not nodes[parent]["timestamp"]:
            nodes[parent]["timestamp"] = node["timestamp"]
