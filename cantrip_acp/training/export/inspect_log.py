"""Inspect's log format (``.eval``, version 2): an archive with a sample for each thread.

The threads of a group are the epochs of one sample. ``target`` is the expected answer, ``scores.reward`` the reward.
``metadata.cantrip``, of the sample and of its answers, has what the format has no field for. Messages are in the order in
which the crystal read them first: after a fold, the summary is a message, and what is kept beside it is not repeated. A
child's thread is a sample of its own.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec

from cantrip_acp.crystals.text_tools import words_of
from cantrip_acp.loom import rewards
from cantrip_acp.loom.query.thread import answer
from cantrip_acp.training.export.export_format import export_format
from cantrip_acp.training.export.rows import Note, arguments_of, content_of, request_of, url_of
from cantrip_acp.training.export.selection import Episode, Source
from cantrip_acp.types.messages import Attachment, Message
from cantrip_acp.types.records import Turn
from cantrip_acp.types.usage import NO_USAGE, Usage
from cantrip_acp.version import __version__

_STOPS = {"length": "max_tokens", "refusal": "content_filter"}
_KNOWN_STOPS = ("stop", "tool_calls", "content_filter")


@export_format(
    "inspect",
    "Inspect (.eval): an archive with a sample for each thread: messages, target, score, usage",
    marks_truncated=True,
    archive=True,
    ending="eval",
)
def inspect_log(source: Source) -> Iterator[dict[str, Any]]:
    """Yield one sample per thread, and the files by which a reader finds them."""
    epochs: Counter[str] = Counter()
    summaries: list[dict[str, Any]] = []
    for episode in source.episodes(marked=True):
        own = episode.group or episode.leaf
        epochs[own] += 1
        sample = _sample(source, episode, own, epochs[own])
        summaries.append(_summary(sample))
        source.count_exported(episode.leaf)
        yield {"path": f"samples/{own}_epoch_{epochs[own]}.json", "data": sample, "sample": True}
    if not summaries:
        return
    header = _header(source, summaries, epochs)
    start = {name: header[name] for name in ("version", "eval", "plan")}
    for path, data in (("_journal/start.json", start), ("summaries.json", summaries), ("header.json", header)):
        yield {"path": path, "data": data, "sample": False}


def _sample(source: Source, episode: Episode, own: str, epoch: int) -> dict[str, Any]:
    messages: list[dict[str, Any]] = []
    used: dict[str, Usage] = {}
    last: Turn | None = None
    opening = 0
    for _, message, uttered in episode.steps():
        if uttered is None:
            messages.append({"role": message.role, "content": content_of(message, source.note, _image)})
            continue
        opening = opening or len(messages)
        turn, model = uttered.turn, uttered.turn.metadata.model or "unknown"
        messages.append(_said(message, turn, source))
        messages += [_result(each, turn, source.note) for each in episode.results(turn)]
        used[model] = used.get(model, NO_USAGE) + turn.metadata.usage
        last = turn
    said = next((each for each in reversed(messages) if each["role"] == "assistant"), None)
    reply = answer(source.loom.turn(episode.leaf))
    reply = reply if isinstance(reply, str) else "" if reply is None else msgspec.json.encode(reply).decode()
    model = next(reversed(used), "unknown")
    sample: dict[str, Any] = {
        "id": own,
        "epoch": epoch,
        "input": messages[:opening],
        "target": episode.reference_text or "",
        "messages": messages,
        "output": {
            "model": model,
            "choices": [{"message": said, "stop_reason": _stop(last)}] if said is not None else [],
            "completion": reply,
        },
        "scores": {}
        if episode.reward is None
        else {"reward": {"value": episode.reward, "answer": reply, "metadata": {"by": "cantrip-acp"}}},
        "metadata": {"cantrip": {**episode.about(), "intent": episode.intent}},
        "store": {},
        "events": [],
        "model_usage": {name: _usage(each) for name, each in used.items()},
        "uuid": episode.leaf,
        "attachments": {},
        "turn_count": sum(each["role"] == "assistant" for each in messages),
    }
    for key, time in (("started_at", episode.started), ("completed_at", episode.ended)):
        if time:
            sample[key] = time
    if episode.error is not None:
        sample["error"] = {"message": episode.error, "traceback": "", "traceback_ansi": ""}
    return sample


def _said(message: Message, turn: Turn, source: Source) -> dict[str, Any]:
    content: Any = words_of(message) or ""
    if message.thinking:
        content = [{"type": "reasoning", "reasoning": message.thinking}, {"type": "text", "text": content}]
    about = {
        "usage": _usage(turn.metadata.usage),
        "timestamp": turn.metadata.timestamp,
        "reward": rewards.of_turn(source.loom, turn.id),
        "sampled": source.sampled(turn),
        "request": request_of(turn),
    }
    said: dict[str, Any] = {
        "id": turn.id,
        "role": "assistant",
        "content": content,
        "source": "generate",
        "metadata": {"cantrip": about},
    }
    if turn.metadata.model is not None:
        said["model"] = turn.metadata.model
    if message.tool_calls:
        said["tool_calls"] = [_call(each.id, each.gate, each.args) for each in message.tool_calls]
    return said


def _call(call_id: str, name: str, args: str) -> dict[str, Any]:
    found = arguments_of(args)
    unread = {"parse_error": f"not an object: {args}"} if found is None else {}
    return {"id": call_id, "function": name, "arguments": found or {}, "type": "function", **unread}


def _result(message: Message, turn: Turn, note: Note) -> dict[str, Any]:
    result: dict[str, Any] = {"role": "tool", "content": content_of(message, note, _image)}
    if message.tool_call_id:
        result["tool_call_id"] = message.tool_call_id
    if message.name:
        result["function"] = message.name
    if any(each.is_error and each.tool_call_id == message.tool_call_id for each in turn.observation.results):
        result["error"] = {"type": "unknown", "message": message.content or ""}
    return result


def _image(attachment: Attachment) -> dict[str, Any] | None:
    if attachment.kind != "image" or not attachment.data:
        return None
    return {"type": "image", "image": url_of(attachment), "detail": "auto"}


def _stop(turn: Turn | None) -> str:
    stop = turn.metadata.stop_reason if turn is not None else None
    if isinstance(stop, str):
        return _STOPS.get(stop, stop if stop in _KNOWN_STOPS else "unknown")
    return "tool_calls" if turn is not None and turn.utterance.tool_calls else "stop"


def _usage(used: Usage) -> dict[str, Any]:
    # Inspect counts cached tokens apart.
    read = max(0, (used.prompt_tokens or 0) - (used.cached_tokens or 0))
    said = used.completion_tokens or 0
    usage: dict[str, Any] = {
        "input_tokens": read,
        "output_tokens": said,
        "total_tokens": read + said + (used.cached_tokens or 0),
    }
    if used.cached_tokens:
        usage["input_tokens_cache_read"] = used.cached_tokens
    if used.cost is not None:
        usage["total_cost"] = used.cost
    return usage


def _summary(sample: dict[str, Any]) -> dict[str, Any]:
    kept = [
        "id",
        "epoch",
        "input",
        "target",
        "scores",
        "model_usage",
        "started_at",
        "completed_at",
        "uuid",
        "turn_count",
    ]
    error = {"error": sample["error"]["message"]} if "error" in sample else {}
    return {
        **{name: sample[name] for name in kept if name in sample},
        **error,
        "metadata": {},
        "completed": True,
        "message_count": len(sample["messages"]),
    }


def _header(source: Source, summaries: list[dict[str, Any]], epochs: Counter[str]) -> dict[str, Any]:
    header = source.loom.header
    name = header.id if header is not None else "loom"
    started = min(
        (each["started_at"] for each in summaries if "started_at" in each), default="1970-01-01T00:00:00+00:00"
    )
    ended = max((each["completed_at"] for each in summaries if "completed_at" in each), default=started)
    key = hashlib.sha256(msgspec.json.encode([name, [each["uuid"] for each in summaries]])).hexdigest()[:22]
    models: Counter[str] = Counter(model for each in summaries for model in each["model_usage"])
    rewards = [each["scores"]["reward"]["value"] for each in summaries if "reward" in each["scores"]]
    results: dict[str, Any] = {"total_samples": len(summaries), "completed_samples": len(summaries), "scores": []}
    if rewards:
        mean = {"name": "mean", "value": math.fsum(rewards) / len(rewards)}
        results["scores"] = [
            {"name": "reward", "scorer": "reward", "scored_samples": len(rewards), "metrics": {"mean": mean},
             "unscored_samples": len(summaries) - len(rewards)}
        ]  # fmt: skip
    return {
        "version": 2,
        "status": "success",
        "eval": {
            "eval_id": key,
            "run_id": key,
            "created": started,
            "task": "cantrip",
            "task_id": name,
            "dataset": {"name": name, "samples": len(epochs), "sample_ids": list(epochs), "shuffled": False},
            "model": models.most_common(1)[0][0] if models else "unknown",
            "config": {"epochs": max(epochs.values())},
            "packages": {"cantrip-acp": __version__},
        },
        "plan": {"name": "plan", "steps": []},
        "results": results,
        "stats": {"started_at": started, "completed_at": ended},
    }
