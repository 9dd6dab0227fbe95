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
from cantrip_acp.training.export.export_format import export_format
from cantrip_acp.training.export.rows import rendered, request_of, tools
from cantrip_acp.training.export.selection import Episode, Source, as_text
from cantrip_acp.types.messages import Message


@export_format(
    "trl-preference",
    "TRL preferences (DPO): prompt, chosen, rejected, from threads of a group with different rewards",
    marks_truncated=False,
)
def trl_preference(source: Source) -> Iterator[dict[str, Any]]:
    """One row per pair: ``prompt``, ``chosen``, ``rejected`` and ``tools``.

    A pair is two threads of one group (forks of one turn, or casts of one intent) with different rewards: the best
    thread with each one that has less. The prompt is what both saw when they parted. If the two prompts differ in any
    message, there is no pair. If a thread was folded later, its answer ends with the last utterance before the fold.
    """
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
    """The window with a thread's first utterance after the group parts, and the position of that utterance."""
    path = source.outline.own_path(episode.leaf)
    if group.turn_id not in path:
        return None
    below = set(path[path.index(group.turn_id) + 1 :])
    for window in episode.windows():
        for uttered in window.uttered:
            if (uttered.turn.continues or uttered.turn.id) in below:
                return window, uttered.at
    return None


@export_format(
    "trl-prompts", "TRL prompts (GRPO, RLOO): prompt and reference, for reward functions", marks_truncated=True
)
def trl_prompts(source: Source) -> Iterator[dict[str, Any]]:
    """One row per prompt: ``prompt``, ``reference``, ``intent``, ``tools``. The model answers it again in training.

    A prompt is what the crystal read before the first utterance of a cast, so a thread with several casts has several. Those
    before a fork are not of its thread. Equal prompts with the same reference are one row.
    """
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
                about = {"thread": episode.leaf, "cantrip": episode.cantrip_id, "group": episode.group}
                yield {**row, "cantrip": about}
        source.count_exported(episode.leaf)


def _divided(source: Source, window: Window, start: int) -> dict[str, Any]:
    """A window as ``prompt`` and ``completion``. A trainer trains all messages of the completion, so interrupted answers are
    left out there."""
    complete = [m for at, m in enumerate(window.messages) if m.kind != "partial" or at < start]
    messages = _messages(source, complete)
    return {"prompt": messages[:start], "completion": messages[start:]}


@export_format(
    "trl-kto", "TRL unpaired preferences (KTO): prompt, completion, and a label from the reward", marks_truncated=True
)
def trl_kto(source: Source) -> Iterator[dict[str, Any]]:
    """One row per window of each thread with a reward: ``prompt``, ``completion``, ``label``, ``tools``.

    ``label`` is true if the reward is above the mean of the thread's group. If it has no group, or if all rewards of the group
    are equal, it is true if the reward is above 0. The turns before a fork are part of its prompt: its label is not for them.
    """
    limits: dict[str, float] = {}
    for group in source.groups:
        known = [reward for leaf in group.leaves if (reward := source.reward(leaf)) is not None]
        if len(set(known)) > 1:
            limits[group.id] = math.fsum(known) / len(known)

    def unfit(episode: Episode) -> str | None:
        return "no reward" if episode.reward is None else None

    for episode, number, window, fresh in source.fresh_windows(marked=True, unfit=unfit):
        path = source.outline.own_path(episode.leaf)
        inherited = set(path[: path.index(episode.forked_from) + 1]) if episode.forked_from in path else set()
        own = [uttered.at for uttered in fresh if uttered.first not in inherited]
        if own:
            yield {
                **_divided(source, window, own[0]),
                "label": (episode.reward or 0.0) > limits.get(episode.group or "", 0.0),
                "tools": json.dumps(tools(window.tools)),
                "cantrip": {**episode.about(), "window": number},
            }


@export_format(
    "trl-stepwise",
    "TRL stepwise supervision (process rewards): prompt, completions, and a label for each turn",
    marks_truncated=True,
)
def trl_stepwise(source: Source) -> Iterator[dict[str, Any]]:
    """One row per window of each thread: ``prompt``, ``completions`` and ``labels``, as text.

    A step is a turn: what the crystal said, and what the circle answered. Its label is true if the reward of the turn is
    above 0; for the last turn of a thread without one, if that of the thread is. A thread with another turn without a
    reward is left out.
    """
    for episode in source.episodes(marked=True):
        windows = list(episode.windows())
        steps = [uttered.turn.id for window in windows for uttered in window.uttered]
        if not steps:
            source.leave_out(episode.leaf, "no utterance")
            continue
        given = {turn_id: rewards.of_turn(source.loom, turn_id) for turn_id in steps}
        if given[steps[-1]] is None:
            given[steps[-1]] = episode.reward
        if None in given.values():
            source.leave_out(episode.leaf, "a turn without a reward (cantrip loom reward --implicit gives rewards)")
            continue
        for number, window, fresh in source.fresh(windows):
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


def _text(messages: list[dict[str, Any]]) -> str:
    """Messages as plain text: the contents, and each call as ``gate(arguments)``."""
    parts: list[str] = []
    for message in messages:
        content = message["content"]
        parts += [content] if isinstance(content, str) else [part["text"] for part in content if "text" in part]
        for call in message.get("tool_calls", ()):
            parts.append(f"{call['function']['name']}({json.dumps(call['function']['arguments'], ensure_ascii=False)})")
    return "\n".join(part for part in parts if part)


@export_format("trl-sft", "TRL supervised fine-tuning: prompt, completion and tools", marks_truncated=False)
def trl_sft(source: Source) -> Iterator[dict[str, Any]]:
    """One row per window of each thread."""
    for episode, number, window, fresh in source.fresh_windows(marked=False, summaries=True):
        start = fresh[0].at
        requests = [request_of(uttered.turn) for uttered in window.uttered if uttered.at >= start]
        row = _divided(source, window, start)
        yield {
            **row,
            "messages": row["prompt"] + row["completion"],
            "tools": json.dumps(tools(window.tools)),
            "cantrip": {**episode.about(), "window": number, "trained_from": start, "requests": requests},
        }


@export_format("openai", "OpenAI fine-tuning files: chat messages, tools, weights", marks_truncated=False)
def openai(source: Source) -> Iterator[dict[str, Any]]:
    """One row per window of each thread."""
    for _, _, window, fresh in source.fresh_windows(marked=False, summaries=True):
        trained = {uttered.at for uttered in fresh}
        messages = []
        for at, message in enumerate(window.messages):
            out = rendered(message, arguments="text", thinking=None, note=source.note)
            if message.role == "assistant":
                out["weight"] = int(at in trained)
            if message.role == "tool":
                # Tool messages in this format do not have this key.
                out.pop("name", None)
            messages.append(out)
        row: dict[str, Any] = {"messages": messages}
        if window.tools:
            several = any(len(m.get("tool_calls", ())) > 1 for m in messages)
            row |= {"tools": tools(window.tools), "parallel_tool_calls": several}
        yield row
