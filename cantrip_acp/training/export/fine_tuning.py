"""Fine-tuning files: `Trl…` for trainers of TRL, `OpenAI` for its fine-tuning API."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from cantrip_acp.core.history.replayed_context import Window
from cantrip_acp.loom import rewards
from cantrip_acp.loom.rewards import Group
from cantrip_acp.training.export.rows import rendered, request_of, tools
from cantrip_acp.training.export.selection import Episode, Source, as_text
from cantrip_acp.types.messages import Message


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

    return {
        "prompt": _messages(source, prompt),
        "chosen": _messages(source, chosen.messages[at:]),
        "rejected": _messages(source, rejected.messages[rejected_at:]),
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


def _messages(source: Source, messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages for a chat template. It may join a content to other text, so null becomes empty text."""
    out = [rendered(m, arguments="data", thinking="reasoning_content", note=source.note) for m in messages]
    return [{**m, "content": "" if m["content"] is None else m["content"]} for m in out]


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


def _complete(window: Window, start: int) -> list[Message]:
    """The messages of a window for a trainer that trains all of them from ``start`` on: without interrupted answers there."""
    return [m for at, m in enumerate(window.messages) if m.kind != "partial" or at < start]


class TrlPrompts:
    """Writes one row per prompt: ``prompt``, ``reference``, ``intent``, ``tools``. The model answers it again in training.

    A prompt is what the crystal read before the first utterance of a cast, so a thread with several casts has several. Those
    before a fork are not of its thread. Equal prompts with the same reference are one row.
    """

    name = "trl-prompts"
    summary = "TRL prompts (GRPO, RLOO): prompt and reference, for reward functions"
    marks_truncated = True

    def rows(self, source: Source) -> Iterator[dict[str, Any]]:
        seen: set[bytes] = set()
        for episode in source.episodes(marked=True):
            casts: dict[str | None, tuple[Window, int]] = {}
            for window in episode.windows():
                for uttered in window.uttered:
                    if uttered.turn.entity_id == episode.entity_id:
                        casts.setdefault(source.begun(uttered.turn), (window, uttered.at))
            if not casts:
                source.leave_out(episode.leaf, "no utterance")
                continue
            for cast_id, (window, at) in casts.items():
                intent, reference = source.asked(cast_id)
                row = {
                    "prompt": _messages(source, window.messages[:at]),
                    "reference": as_text(reference),
                    "intent": intent,
                    "tools": json.dumps(tools(window.tools)),
                }
                key = msgspec.json.encode(row)
                if key not in seen:
                    seen.add(key)
                    yield {
                        **row,
                        "cantrip": {"thread": episode.leaf, "cantrip": episode.cantrip_id, "group": episode.group},
                    }
            source.count_exported(episode.leaf)


class TrlKto:
    """Writes one row per window of each thread with a reward: ``prompt``, ``completion``, ``label``, ``tools``.

    ``label`` is true if the reward is above the mean of the thread's group. If it has no group, or if all rewards of the group
    are equal, it is true if the reward is above 0. The turns before a fork are part of its prompt: its label is not for them.
    """

    name = "trl-kto"
    summary = "TRL unpaired preferences (KTO): prompt, completion, and a label from the reward"
    marks_truncated = True

    def rows(self, source: Source) -> Iterator[dict[str, Any]]:
        limits: dict[str, float] = {}
        for group in source.groups:
            known = [reward for leaf in group.leaves if (reward := source.reward(leaf)) is not None]
            if len(set(known)) > 1:
                limits[group.id] = math.fsum(known) / len(known)
        learned: set[str] = set()
        for episode in source.episodes(marked=True):
            if episode.reward is None:
                source.leave_out(episode.leaf, "no reward")
                continue
            limit = limits.get(episode.group or "", 0.0)
            path = source.outline.own_path(episode.leaf)
            learned.update(path[: path.index(episode.forked_from) + 1] if episode.forked_from in path else ())
            for number, window in enumerate(episode.windows()):
                fresh = [uttered.at for uttered in window.uttered if uttered.first not in learned]
                learned.update(uttered.first for uttered in window.uttered)
                if fresh:
                    messages = _messages(source, _complete(window, fresh[0]))
                    yield {
                        "prompt": messages[: fresh[0]],
                        "completion": messages[fresh[0] :],
                        "label": episode.reward > limit,
                        "tools": json.dumps(tools(window.tools)),
                        "cantrip": {**episode.about(), "window": number},
                    }
            source.count_exported(episode.leaf)


class TrlStepwise:
    """Writes one row per window of each thread: ``prompt``, ``completions`` and ``labels``, as text.

    A step is a turn: what the crystal said, and what the circle answered. Its label is true if the reward of the turn is
    above 0; for the last turn of a thread without one, if that of the thread is. A thread with another turn without a
    reward is left out.
    """

    name = "trl-stepwise"
    summary = "TRL stepwise supervision (process rewards): prompt, completions, and a label for each turn"
    marks_truncated = True

    def rows(self, source: Source) -> Iterator[dict[str, Any]]:
        learned: set[str] = set()
        for episode in source.episodes(marked=True):
            windows = list(episode.windows())
            steps = [uttered for window in windows for uttered in window.uttered]
            if not steps:
                source.leave_out(episode.leaf, "no utterance")
                continue
            given = {u.turn.id: rewards.of_turn(source.loom, u.turn.id) for u in steps}
            given[steps[-1].turn.id] = _either(given[steps[-1].turn.id], episode.reward)
            if None in given.values():
                source.leave_out(episode.leaf, "a turn without a reward (cantrip loom reward --implicit gives rewards)")
                continue
            for number, window in enumerate(windows):
                fresh = [uttered for uttered in window.uttered if uttered.first not in learned]
                learned.update(uttered.first for uttered in window.uttered)
                if not fresh:
                    continue
                messages = _messages(source, window.messages)
                starts = [uttered.at for uttered in fresh]
                yield {
                    "prompt": _text(messages[: starts[0]]),
                    "completions": [
                        _text(messages[at:end]) for at, end in zip(starts, [*starts[1:], len(messages)], strict=True)
                    ],
                    "labels": [(given[uttered.turn.id] or 0.0) > 0 for uttered in fresh],
                    "cantrip": {**episode.about(), "window": number},
                }
            source.count_exported(episode.leaf)


def _either(one: float | None, other: float | None) -> float | None:
    return other if one is None else one


def _text(messages: list[dict[str, Any]]) -> str:
    """Messages as plain text: the contents, and each call as ``gate(arguments)``."""
    parts: list[str] = []
    for message in messages:
        content = message["content"]
        parts += [content] if isinstance(content, str) else [part["text"] for part in content if "text" in part]
        for call in message.get("tool_calls", ()):
            parts.append(f"{call['function']['name']}({json.dumps(call['function']['arguments'], ensure_ascii=False)})")
    return "\n".join(part for part in parts if part)


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
                messages = _messages(source, _complete(window, fresh[0]))
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
