"""Fine-tuning files: `TrlSft` and `TrlPreference` for trainers of TRL, `OpenAI` for its fine-tuning API."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from cantrip_acp.core.history.crystal_view import Window
from cantrip_acp.crystals.contract import Message
from cantrip_acp.loom.rewards import Group
from cantrip_acp.training.export.rows import rendered, request_of, tools
from cantrip_acp.training.export.selection import Episode, Source


class TrlPreference:
    """Writes one row per pair: ``prompt``, ``chosen``, ``rejected`` and ``tools``.

    A pair is two threads of one group (forks of one turn, or casts of one intent) with different rewards: the best
    thread with each one that has less. The prompt is what both saw when they parted. If the two prompts differ in any
    message, there is no pair. If a thread was folded later, its answer ends with the last utterance before the fold.
    """

    name = "trl-preference"
    summary = "TRL preferences (DPO): prompt, chosen, rejected, from threads of a group with different rewards"
    marks_truncated = False

    def rows(self, source: Source) -> Iterator[dict[str, Any]]:
        wanted = {episode.leaf: episode for episode in source.episodes(marked=False)}
        paired: set[str] = set()
        for group in source.groups:
            scored = [e for leaf in group.leaves if (e := wanted.get(leaf)) is not None and e.reward is not None]
            if len(scored) < 2:
                continue
            best = max(scored, key=lambda e: e.reward if e.reward is not None else 0.0)
            stretch = _parting(source, best, group)
            for other in scored:
                if other.reward == best.reward:
                    continue
                row = _pair(source, group, best, stretch, other)
                if row is not None:
                    paired |= {best.leaf, other.leaf}
                    source.count_exported(best.leaf)
                    source.count_exported(other.leaf)
                    yield row
        for leaf, episode in wanted.items():
            if leaf not in paired:
                source.leave_out(leaf, "no reward" if episode.reward is None else "nothing to compare it with")


def _pair(
    source: Source, group: Group, best: Episode, one: tuple[Window, int] | None, other: Episode
) -> dict[str, Any] | None:
    two = _parting(source, other, group)
    if one is None or two is None:
        source.note("a pair without an utterance after its threads part")
        return None
    (chosen, at), (rejected, rejected_at) = one, two
    prompt = chosen.messages[:at]
    if prompt != rejected.messages[:rejected_at] or chosen.tools != rejected.tools:
        source.note("a pair whose prompts differ (another call, circle or fold)")
        return None

    def to_messages(messages: list[Message]) -> list[dict[str, Any]]:
        out = [rendered(m, arguments="data", thinking="reasoning_content", note=source.note) for m in messages]
        return [{**m, "content": "" if m["content"] is None else m["content"]} for m in out]

    return {
        "prompt": to_messages(prompt),
        "chosen": to_messages(chosen.messages[at:]),
        "rejected": to_messages(rejected.messages[rejected_at:]),
        "tools": json.dumps(tools(chosen.tools)),
        "cantrip": {
            "group": group.id,
            "parted_at": group.turn_id,
            "chosen": best.leaf,
            "rejected": other.leaf,
            "chosen_reward": best.reward,
            "rejected_reward": other.reward,
        },
    }


def _parting(source: Source, episode: Episode, group: Group) -> tuple[Window, int] | None:
    """The window with a thread's first utterance below the turn where the group parts, and the position of that
    utterance."""
    path = source.outline.own_path(episode.leaf)
    if group.turn_id not in path:
        return None
    below = set(path[path.index(group.turn_id) + 1 :])
    for window in episode.windows():
        for uttered in window.uttered:
            if (uttered.turn.continues or uttered.turn.id) in below:
                return window, uttered.at
    return None


class TrlSft:
    """Writes one row per window of each thread."""

    name = "trl-sft"
    summary = "TRL supervised fine-tuning: prompt, completion and tools"
    marks_truncated = False

    def rows(self, source: Source) -> Iterator[dict[str, Any]]:
        learned: set[str] = set()
        for episode in source.episodes(marked=False):
            for number, window in enumerate(episode.windows(summaries=True)):
                fresh = [uttered.at for uttered in window.uttered if uttered.first not in learned]
                learned.update(uttered.first for uttered in window.uttered)
                if not fresh:
                    continue
                messages = [
                    rendered(m, arguments="data", thinking="reasoning_content", note=source.note)
                    for at, m in enumerate(window.messages)
                    # An interrupted answer must not be trained, and the whole completion is trained.
                    if m.kind != "partial" or at < fresh[0]
                ]
                for message in messages:
                    # A template may join it to other text, so null becomes empty text.
                    message["content"] = "" if message["content"] is None else message["content"]
                requests = [request_of(uttered.turn) for uttered in window.uttered if uttered.at >= fresh[0]]
                about = {**episode.about(), "window": number, "trained_from": fresh[0], "requests": requests}
                yield {
                    "prompt": messages[: fresh[0]],
                    "completion": messages[fresh[0] :],
                    "messages": messages,
                    "tools": json.dumps(tools(window.tools)),
                    "cantrip": about,
                }
            source.count_exported(episode.leaf)


class OpenAI:
    """Writes one row per window of each thread."""

    name = "openai"
    summary = "OpenAI fine-tuning files: chat messages, tools, weights"
    marks_truncated = False

    def rows(self, source: Source) -> Iterator[dict[str, Any]]:
        learned_ids: set[str] = set()
        for episode in source.episodes(marked=False):
            for window in episode.windows(summaries=True):
                fresh = {u.at for u in window.uttered if u.first not in learned_ids}
                learned_ids.update(u.first for u in window.uttered)
                if not fresh:
                    # Other rows have all of its turns: a prefix that forks share is trained once.
                    continue
                messages = []
                for at, message in enumerate(window.messages):
                    out = rendered(message, arguments="text", thinking=None, note=source.note)
                    if message.role == "assistant":
                        out["weight"] = int(at in fresh)
                    if message.role == "tool":
                        # Tool messages in this format do not have this key.
                        out.pop("name", None)
                    messages.append(out)
                row: dict[str, Any] = {"messages": messages}
                if window.tools:
                    row |= {"tools": tools(window.tools), "parallel_tool_calls": _several(messages)}
                yield row
            source.count_exported(episode.leaf)


def _several(messages: list[dict[str, Any]]) -> bool:
    return any(len(m.get("tool_calls", ())) > 1 for m in messages)
