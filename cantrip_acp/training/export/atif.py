"""ATIF format (Agent Trajectory Interchange Format 1.8, of Harbor 0.26): one trajectory per line, each a whole document.

A thread is a trajectory. The system prompt, intents and other messages are steps of ``system`` and ``user``; an utterance
is a step of ``agent``, with the circle's answers as its observation. After a fold, the summary is a step too, and what is
kept beside it is not repeated. Children are embedded (``subagent_trajectories``), and the result of the call that started one
refers to it. An utterance that an earlier row has is marked with ``is_copied_context``; one that a script or a person wrote
has ``llm_call_count`` 0. What the format has no field for is in ``extra.cantrip``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from cantrip_acp.core.history.replayed_context import WindowUtterance
from cantrip_acp.crystals.text_tools import words_of
from cantrip_acp.loom import rewards
from cantrip_acp.training.export.export_format import export_format
from cantrip_acp.training.export.rows import Sequences, arguments_of, content_of, request_of, tools, url_of
from cantrip_acp.training.export.selection import Episode, Source
from cantrip_acp.types.messages import Attachment, Message
from cantrip_acp.types.records import Turn
from cantrip_acp.types.usage import NO_USAGE, Usage
from cantrip_acp.version import __version__

VERSION = "ATIF-v1.8"
_MEDIA = {
    "image": ("jpeg", "png", "gif", "webp"),
    "audio": ("wav", "mpeg", "mp4", "aac", "ogg", "flac", "webm", "aiff"),
}
_OTHER_NAMES = {
    "audio/mp3": "audio/mpeg",
    "audio/x-wav": "audio/wav",
    "audio/wave": "audio/wav",
    "audio/x-m4a": "audio/mp4",
}


@export_format(
    "atif", "ATIF (Harbor): trajectories of steps, with observations, metrics and token ids", marks_truncated=True
)
def atif(source: Source) -> Iterator[dict[str, Any]]:
    """One row per thread. A child's thread is in the row of its parent (`Source.trees`)."""
    for episode, embedded in source.trees():
        if not embedded:
            yield _trajectory(source, episode)
            source.count_exported(episode.leaf)


def _trajectory(source: Source, episode: Episode) -> dict[str, Any]:
    steps: list[dict[str, Any]] = []
    sequences = Sequences(source)
    used, model = NO_USAGE, None
    definitions: list[dict[str, Any]] = []
    by_turn: dict[str, tuple[dict[str, Any], Turn]] = {}
    for window, message, uttered in episode.steps():
        definitions = tools(window.tools) or definitions
        if uttered is None:
            steps.append({"source": message.role, "message": content_of(message, source.note, _media)})
            continue
        step = _utterance(source, episode, uttered, message, sequences)
        by_turn[uttered.first] = step, uttered.turn
        steps.append(step)
        used = used + uttered.turn.metadata.usage
        model = uttered.turn.metadata.model or model
    for number, step in enumerate(steps, 1):
        step["step_id"] = number
    trajectory: dict[str, Any] = {
        "schema_version": VERSION,
        "session_id": episode.entity_id,
        "trajectory_id": episode.leaf,
        "agent": _known(
            {
                "name": "cantrip-acp",
                "version": __version__,
                "model_name": model,
                "tool_definitions": definitions or None,
            }
        ),
        "steps": steps,
        "final_metrics": _known({**_usage(used, "total_"), "total_steps": len(steps)}),
        "extra": {"cantrip": {**episode.about(), "intent": episode.intent, "error": episode.error}},
    }
    if embedded := _children(source, episode, by_turn):
        trajectory["subagent_trajectories"] = embedded
    return trajectory


def _children(
    source: Source, episode: Episode, by_turn: dict[str, tuple[dict[str, Any], Turn]]
) -> list[dict[str, Any]]:
    embedded: list[dict[str, Any]] = []
    for turn_id, child in source.children(episode):
        embedded.append(_trajectory(source, child))
        step, turn = by_turn[source.loom.turn(turn_id).continues or turn_id]
        results = step.get("observation", {}).get("results", [])
        start = source.outline.starts.get(child.cast_id or "")
        called = start.parent_call_id if start is not None else None
        # The gate's record has both the id of the call and the crystal's own id of it.
        called = next((r.tool_call_id for r in turn.observation.results if r.call_id == called), called)
        result = next((each for each in results if each.get("source_call_id") == called), None)
        # A cell or a command may have called the gate: its result is the observation's only one.
        for found in [result] if result is not None else results[:1]:
            refs = found.setdefault("subagent_trajectory_ref", [])
            refs.append({"trajectory_id": child.leaf, "session_id": child.entity_id})
    return embedded


def _utterance(
    source: Source, episode: Episode, uttered: WindowUtterance, message: Message, sequences: Sequences
) -> dict[str, Any]:
    turn, counted = uttered.turn, uttered.turn.metadata
    sampled, prompt = sequences.of(turn)
    by_model = source.sampled(turn)
    step: dict[str, Any] = {
        "source": "agent",
        "message": words_of(message) or "",
        "timestamp": counted.timestamp or None,
        "model_name": counted.model,
        "reasoning_content": message.thinking,
        "tool_calls": [_call(each.id, each.gate, each.args) for each in message.tool_calls] or None,
        "is_copied_context": not source.take(uttered.first) or None,
        "extra": {
            "cantrip": {"turn": turn.id, "reward": rewards.of_turn(source.loom, turn.id), "request": request_of(turn)}
        },
    }
    known = {each.id for each in message.tool_calls}
    results = [
        _known(
            {
                "source_call_id": m.tool_call_id if m.tool_call_id in known else None,
                "content": content_of(m, source.note, _media),
            }
        )
        for m in episode.results(turn)
    ]
    if results:
        step["observation"] = {"results": results}
    if by_model:
        step["llm_call_count"] = 1
        tokens = (
            {}
            if sampled is None
            else {
                "prompt_token_ids": prompt or None,
                "completion_token_ids": list(sampled.ids) or None,
                "logprobs": list(sampled.logprobs) or None,
            }
        )
        step["metrics"] = _known({**_usage(counted.usage), **tokens}) or None
    elif not message.thinking:
        step["llm_call_count"] = 0
    return _known(step)


def _usage(usage: Usage, prefix: str = "") -> dict[str, Any]:
    return {
        f"{prefix}prompt_tokens": usage.prompt_tokens,
        f"{prefix}completion_tokens": usage.completion_tokens,
        f"{prefix}cached_tokens": usage.cached_tokens,
        f"{prefix}cost_usd": usage.cost,
    }


def _call(call_id: str, name: str, args: str) -> dict[str, Any]:
    found = arguments_of(args)
    unread = {"extra": {"cantrip": {"arguments": args}}} if found is None else {}
    return {"tool_call_id": call_id, "function_name": name, "arguments": found or {}, **unread}


def _media(attachment: Attachment) -> dict[str, Any] | None:
    mime = _OTHER_NAMES.get(attachment.mime, attachment.mime)
    if mime.removeprefix(f"{attachment.kind}/") not in _MEDIA.get(attachment.kind, ()) or not attachment.data:
        return None
    path = url_of(msgspec.structs.replace(attachment, mime=mime))
    return {"type": attachment.kind, "source": {"media_type": mime, "path": path}}


def _known(fields: dict[str, Any]) -> dict[str, Any]:
    """Leave out the fields that are None, because the format has no unknown values."""
    return {name: value for name, value in fields.items() if value is not None}
